"""Builds a wheel for the torch in this environment from Horovod's published sources.

Downloads, checks, edits and compiles. The caller decides on CPU or NCCL operations and on the
cache's directory.

Horovod 0.28.1 (2023) needs edits before it compiles against current PyTorch. Each is an exact
replacement in one file. A text that is not found is an error, because the sources are then not the
ones that the edits were made for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from install import toolchain
from install.toolchain import BuildError, PrerequisiteError

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
LOG_TAIL_LINES = 15
FIRST_ERROR = re.compile(r".*(?:\berror: |CMake Error|: not found).*")
"""The line of a build's log that names the cause: a missing header or program, or the compiler's
first error."""

CPU_ENVIRONMENT = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the bundled Gloo's older minimum
}
LEFT_OUT_BY_GCC_13 = "-include cstdint -include string"
"""Horovod and its Gloo use both without including them. From GCC 13 on, other headers of its
library no longer do it for them."""


def build_wheel(directory: Path, operations: str, *, targets: Sequence[str]) -> Path:
    """Build a wheel into a directory of the cache, next to its build log, and return it.

    The sources are removed.

    ``targets``: compute capabilities of an NCCL build.

    Raises:
        PrerequisiteError: The machine lacks a compiler, a header or make.
        BuildError: Download or compilation failed.
    """
    problems = toolchain.machine_problems()
    if problems:
        raise PrerequisiteError("; ".join(problems))
    directory.mkdir(parents=True, exist_ok=True)
    # Not below the cache: Horovod's CMake files use the source path as a regular expression, and
    # the key has a "+".
    with tempfile.TemporaryDirectory(prefix="ringside-horovod-") as scratch:
        work = Path(scratch)
        note("downloading the sources")
        shutil.unpack_archive(download_sdist(work), work)
        sources = work / f"horovod-{HOROVOD_VERSION}"
        apply_edits(sources, edits_for(operations))
        environment = build_environment(operations, work, targets=targets)
        log = directory / "build.log"
        note(f"compiling for {operations}, which takes minutes; log: {log}")
        compile_wheel(sources, work / "dist", log, environment)
        (wheel,) = (work / "dist").glob("horovod-*.whl")
        # the cache may be another file system, and only a rename is atomic
        arriving = directory / f"arriving-{wheel.name}.tmp"
        shutil.copyfile(wheel, arriving)
        return arriving.replace(directory / wheel.name)


def note(what: str) -> None:
    """Report a stage that begins."""
    print(f"Horovod {HOROVOD_VERSION}: {what}", file=sys.stderr, flush=True)


def download_sdist(work: Path) -> Path:
    """Download Horovod's source distribution with pip, and check its digest.

    Raises:
        BuildError: It cannot be downloaded, or is not the one that the edits were made for.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    argv = [*pip, "--no-binary", "horovod", "--dest", str(work), f"horovod=={HOROVOD_VERSION}"]
    run_quietly(argv, "download of the sources")
    archive = work / f"horovod-{HOROVOD_VERSION}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        raise BuildError(
            f"{archive.name} has SHA-256 {digest}, expected {SDIST_SHA256}: not the published"
            " sources"
        )
    return archive


def build_environment(
    operations: str, work: Path, *, targets: Sequence[str] = ()
) -> dict[str, str]:
    """Return the build's environment: the caller's without HOROVOD_* variables, with this
    environment's tools first on PATH.

    ``work``: scratch directory, for a compiler where this machine has none, and the layout of NCCL
    that CMake can find.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")
    }
    tools = str(Path(sys.executable).parent)
    environment = {
        **inherited,
        **CPU_ENVIRONMENT,
        "PATH": f"{tools}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        "CXXFLAGS": f"{inherited.get('CXXFLAGS', '')} {LEFT_OUT_BY_GCC_13}".strip(),
    }
    if operations != "nccl":
        return environment
    return environment | gpu_environment(environment["PATH"], work, targets=targets)


def fetch_toolkit(work: Path) -> toolchain.CudaToolkit:
    """Install the compiler of torch's CUDA release into the scratch directory.

    Raises:
        BuildError: It cannot be downloaded.
    """
    release, target = toolchain.torch_cuda_release(), work / "cuda"
    note(f"no nvcc here: downloading that of CUDA {release} for the build (about 215 MB)")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    packages = toolchain.compiler_requirements(release)
    run_quietly(
        [*uv, "--no-deps", "--target", str(target), *packages], f"download of {packages[0]}"
    )
    return toolchain.complete_toolkit(target, release)


def gpu_environment(path: str, work: Path, *, targets: Sequence[str]) -> dict[str, str]:
    """Return the variables of an NCCL build: the toolkit, torch's NCCL wheel, the GPUs to compile
    for.
    """
    toolkit = toolchain.find_cuda_toolkit() or fetch_toolkit(work)
    nccl = toolchain.nccl_home()
    assert nccl is not None, "choose_operations has looked for it"
    # cuBLAS, cuSPARSE and others that torch's headers include
    headers = sorted(nccl.parent.glob("cu*/include"))
    return {
        "CUDA_HOME": str(toolkit.home),
        "HOROVOD_CUDA_HOME": str(toolkit.home),
        "PATH": f"{toolkit.home / 'bin'}{os.pathsep}{path}",
        "CPLUS_INCLUDE_PATH": os.pathsep.join(str(header) for header in headers),
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_NCCL_HOME": str(linkable_nccl(nccl, work)),
        "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(toolchain.kernel_targets(targets)),
        "HOROVOD_WITHOUT_NVTX": "1",
    }


def linkable_nccl(nccl: Path, work: Path) -> Path:
    """Link NCCL's files to where a linker finds them: the wheel has only libnccl.so.2, and `-lnccl`
    looks for libnccl.so.

    Returns:
        A directory below ``work`` with links to the wheel's include/ and, as lib/libnccl.so, to its
        library.
    """
    home = work / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(nccl / "include")
    (home / "lib" / "libnccl.so").symlink_to(nccl / "lib" / "libnccl.so.2")
    return home


def compile_wheel(sources: Path, target: Path, log: Path, environment: Mapping[str, str]) -> None:
    """Compile the edited sources into a wheel in ``target``, and write all output to the log.

    Raises:
        BuildError: The compiler or CMake failed.
    """
    pip = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [*pip, "--no-cache-dir", "--wheel-dir", str(target), str(sources)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        cause = FIRST_ERROR.search(text)
        what = cause[0].strip() if cause else "the build failed"
        raise BuildError(f"{what}; log: {log}\n{log_tail(text)}")


def log_tail(log: str) -> str:
    """Return the last lines of a build log, each shortened: a compiler command has thousands of
    characters.
    """
    lines = log.splitlines()[-LOG_TAIL_LINES:]
    return "\n".join(f"  | {textwrap.shorten(line, 160, placeholder=' ...')}" for line in lines)


def run_quietly(argv: Sequence[str], what: str) -> None:
    """Run a short command whose output matters only if it fails.

    Raises:
        BuildError: It failed.
    """
    completed = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if completed.returncode != 0:
        raise BuildError(f"{what} failed\n{log_tail(completed.stderr)}")


class Edit(NamedTuple):
    """One exact replacement in one file of the unpacked source distribution."""

    path: str
    """File, relative to the root of the sources."""
    old: str
    """Text to replace; must occur exactly once."""
    new: str
    """Text put in its place."""


# Horovod's torch extension is in <prefix>/lib/pythonX.Y/site-packages/horovod/torch.
RPATHS = ("$ORIGIN/../../../..", "$ORIGIN/../../torch/lib", "$ORIGIN/../../nvidia/nccl/lib")

COMMON_EDITS = (
    # torch 2.15's headers need C++20; CMakeLists.txt strips -std= from CXXFLAGS
    Edit("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    Edit(
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 20)",
    ),
    # CMake writes the build environment's absolute path to libmpi into the extension; a cached
    # wheel must find the Open MPI and the NCCL of the environment that it is installed into
    Edit(
        "CMakeLists.txt",
        "project(horovod CXX)",
        "project(horovod CXX)\nset(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\nset(CMAKE_INSTALL_RPATH"
        f' "{";".join(RPATHS)}")',
    ),
)
# a CUDA build of torch beside any nvcc on PATH makes FindPytorch demand a whole CUDA toolkit
CPU_EDITS = (Edit("cmake/Modules/FindPytorch.cmake", "(torch.version.cuda is not None)", "False"),)
# nvcc 13 no longer knows C++11, and its headers need C++17
NCCL_EDITS = (
    Edit(
        "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        "set(CMAKE_CUDA_STANDARD 17)",
    ),
)


def edits_for(operations: str) -> tuple[Edit, ...]:
    """List the edits of a build for "cpu" or "nccl", in the order in which they are applied."""
    return COMMON_EDITS + (NCCL_EDITS if operations == "nccl" else CPU_EDITS)


def apply_edits(root: Path, edits: Sequence[Edit]) -> None:
    """Apply edits to the unpacked source distribution at ``root``.

    Raises:
        BuildError: A text does not occur exactly once. Edits before it are already made.
    """
    for edit in edits:
        file = root / edit.path
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        count = text.count(edit.old)
        if count != 1:
            raise BuildError(
                f"{edit.path} holds {edit.old!r} {count} times, expected once: these are not the"
                " Horovod sources that the edits in install/wheel.py were made for"
            )
        file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def edits_digest(edits: Sequence[Edit]) -> str:
    """Digest the edits for the key of a cached wheel: ten hexadecimal digits."""
    texts = "".join(f"{text}\0" for edit in edits for text in edit)
    return hashlib.sha256(texts.encode()).hexdigest()[:10]
