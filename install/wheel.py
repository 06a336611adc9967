"""Builds a wheel for the torch in this environment from Horovod's published sources.

Downloads, checks, edits and compiles. The caller decides on CPU or NCCL operations and on the
cache's directory.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from install import cache, edits, toolchain
from install.toolchain import BuildError, PrerequisiteError

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
LOG_TAIL_LINES = 15

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


def build_wheel(directory: Path, operations: str, *, targets: Sequence[str] = ()) -> Path:
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
    progress = BuildProgress(f"Horovod {HOROVOD_VERSION} ({operations})")
    # Not below the cache: Horovod's CMake files use the source path as a regular expression, and
    # the key has a "+".
    with tempfile.TemporaryDirectory(prefix="ringside-horovod-") as scratch:
        work = Path(scratch)
        progress.note("downloading the sources")
        sources = unpack(download_sdist(work), work)
        edits.apply_edits(sources, edits.edits_for(operations))
        environment = build_environment(operations, work, targets=targets, progress=progress)
        progress.note(f"configuring; log: {directory / 'build.log'}")
        compile_wheel(sources, work / "dist", directory / "build.log", environment, progress)
        progress.note("built")
        progress.close()
        return keep_wheel(work / "dist", directory)


def keep_wheel(built: Path, directory: Path) -> Path:
    """Check the wheel that pip built and move it into the cache atomically; returns its new path.

    Raises:
        BuildError: There is no wheel, or it lacks the compiled torch extension.
    """
    wheel = cache.cached_wheel(built)
    names = zipfile.ZipFile(wheel).namelist() if wheel else []
    if wheel is None or not any(name.startswith("horovod/torch/mpi_lib_v2.") for name in names):
        raise BuildError(
            "the build left no wheel with the torch extension in it; log:"
            f" {directory / 'build.log'}"
        )
    arriving = directory / f"arriving-{wheel.name}.tmp"
    shutil.copyfile(wheel, arriving)
    return arriving.replace(directory / wheel.name)


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


def unpack(archive: Path, work: Path) -> Path:
    """Unpack the source distribution and return the root of the sources."""
    with tarfile.open(archive) as tar:
        # Python 3.11.0 to 3.11.3 have none
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(work)
    return work / archive.name.removesuffix(".tar.gz")


def build_environment(
    operations: str, work: Path, *, targets: Sequence[str], progress: BuildProgress
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
    toolkit = toolchain.find_cuda_toolkit() or fetch_toolkit(work, progress)
    return environment | gpu_environment(
        environment["PATH"], work, toolkit=toolkit, targets=targets
    )


def fetch_toolkit(work: Path, progress: BuildProgress) -> toolchain.CudaToolkit:
    """Install the compiler of torch's CUDA release into the scratch directory.

    Raises:
        PrerequisiteError: There are no wheels to match this torch.
        BuildError: They cannot be downloaded.
    """
    release = toolchain.torch_cuda_release()
    if not release:
        raise PrerequisiteError(
            "a GPU build needs nvcc, and this torch has no wheels of CUDA 13 to match: install a"
            " CUDA toolkit"
        )
    progress.note(f"no nvcc here: downloading that of CUDA {release} for the build (about 215 MB)")
    run_quietly(
        toolchain.install_argv(release, work / "cuda"), f"download of the CUDA {release} compiler"
    )
    return toolchain.complete_toolkit(work / "cuda", release)


def gpu_environment(
    path: str, work: Path, *, toolkit: toolchain.CudaToolkit, targets: Sequence[str]
) -> dict[str, str]:
    """Return the variables of an NCCL build: the toolkit, torch's NCCL wheel, the GPUs to compile
    for.

    Raises:
        PrerequisiteError: NCCL is missing.
    """
    nccl = toolchain.nccl_home()
    if nccl is None:
        raise PrerequisiteError("a GPU build needs the NCCL of torch's wheel")
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


def compile_wheel(
    sources: Path, target: Path, log: Path, environment: Mapping[str, str], progress: BuildProgress
) -> None:
    """Compile the edited sources into a wheel in ``target``, and write all output to the log.

    Raises:
        BuildError: The compiler or CMake failed.
    """
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--verbose",
        "--no-deps",
        "--no-build-isolation",
        "--no-cache-dir",
    ]
    argv = [*pip, "--wheel-dir", str(target), str(sources)]
    with log.open("w", encoding="utf-8") as file:
        status = stream_output(argv, environment, file, progress)
    if status != 0:
        progress.close()
        text = log.read_text(encoding="utf-8")
        raise BuildError(f"{explain(text)}; log: {log}\n{textwrap.indent(log_tail(text), '  | ')}")


def stream_output(
    argv: Sequence[str], environment: Mapping[str, str], log: TextIO, progress: BuildProgress
) -> int:
    """Run a command, log and show each line of its output as it comes, and return its exit
    status.
    """
    with subprocess.Popen(
        argv,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            log.write(line)
            progress.feed(line)
    return process.returncode


def explain(log: str) -> str:
    """Find the cause of a failed build in its output: the missing header or program, or the
    compiler's first error.
    """
    causes = (
        (r"fatal error: (\S+): No such file or directory", "the header {} is missing"),
        (r"Could NOT find (\w+)", "CMake did not find {}"),
        (
            r"(?:Killed signal terminated program|internal compiler error: Killed)\s*(\S*)",
            "the compiler {} ran out of memory",
        ),
        (r"(?:/bin/sh: \d+: |: )(\S+): (?:command )?not found", "the program {} is missing"),
        (r"(?<!\w)error: (.+)", "the compiler said: {}"),
        (r"CMake Error at (.+)", "CMake failed at {}"),
    )
    for pattern, sentence in causes:
        match = re.search(pattern, log)
        if match:
            return sentence.format(match.group(1).strip())
    return "the build failed"


def log_tail(log: str) -> str:
    """Return the last lines of a build log, each shortened: a compiler command has thousands of
    characters.
    """
    return "\n".join(
        textwrap.shorten(line, 160, placeholder=" ...")
        for line in log.splitlines()[-LOG_TAIL_LINES:]
    )


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
        tail = textwrap.indent(log_tail(completed.stderr), "  | ")
        raise BuildError(f"{what} failed (exit {completed.returncode})\n{tail}")


CMAKE_STEP = re.compile(r"\[\s*(\d+)%\] (?:Building|Linking)")


class BuildProgress:
    """Reports stages on standard error.

    On a terminal, one line is redrawn as the compiler progresses.
    """

    def __init__(self, title: str) -> None:
        self._title, self._started_s = title, time.monotonic()

    def note(self, what: str) -> None:
        """Report a stage that begins, and the time since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self._started_s), 60)
        line = f"{self._title}  {minutes}:{seconds:02d}  {what}"
        redrawn = sys.stderr.isatty()
        print(
            f"\r\033[K{line[:110]}" if redrawn else line,
            end="" if redrawn else "\n",
            file=sys.stderr,
            flush=True,
        )

    def feed(self, line: str) -> None:
        """On a terminal, show the percentage in a line of CMake's output, if any."""
        step = CMAKE_STEP.search(line) if sys.stderr.isatty() else None
        if step is not None:
            self.note(f"{step[1]}%")

    def close(self) -> None:
        """End the line, so that it stays on the screen."""
        if sys.stderr.isatty():
            print(file=sys.stderr)
