"""Finds this machine's tools for compiling Horovod: compiler, headers, make, CUDA toolkit, GPUs.

Does not import torch.

A machine with a driver and no nvcc gets a CUDA toolkit for one build, from wheels of torch's own
release of CUDA. torch's wheels contain the run-time library and most headers; three more contain
the compiler. They go into a scratch folder with links to torch's files, so the environment does not
change.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 20.0
OPERATIONS = ("auto", "cpu", "nccl")
CPP20_PROBE = (
    "#include <concepts>\ntemplate <typename T> concept C = std::integral<T>;\nint main() {}\n"
)
CHECK_CPP20 = ("-std=c++20", "-x", "c++", "-fsyntax-only", "-")
INSTALL_HINT = (
    "Debian/Ubuntu: apt-get install g++ make python3-dev; Fedora/RHEL: dnf install gcc-c++ make"
    " python3-devel; without root: conda install -c conda-forge cxx-compiler make, or `module load"
    " gcc` on a cluster"
)


class PrerequisiteError(Exception):
    """The build that was asked for cannot start on this machine."""


class BuildError(Exception):
    """The build ran and failed."""


class CudaToolkit(NamedTuple):
    """A CUDA toolkit: its compiler and headers."""

    home: Path
    """Directory that holds bin/nvcc and include/."""
    version: str
    """Release, such as "13.0"."""


def output_of(argv: Sequence[str], *, stdin: str | None = None) -> str | None:
    """Run a short command and return its output and errors together; None if it is missing, fails
    or takes too long.
    """
    try:
        completed = subprocess.run(
            argv,
            input=stdin or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()


def machine_problems() -> list[str]:
    """List the prerequisites of a build that are missing on this machine, a sentence for each."""
    names = (os.environ.get("CXX", ""), "c++", "g++", "clang++")  # as CMake looks
    compiler = next((path for name in names if (path := shutil.which(name))), None)
    header = Path(sysconfig.get_path("include"), "Python.h")
    problems = []
    if compiler is None:
        problems.append("no C++ compiler (looked for $CXX, c++, g++ and clang++ on PATH)")
    elif output_of([compiler, *CHECK_CPP20], stdin=CPP20_PROBE) is None:
        problems.append(f"{compiler} does not compile C++20, which torch's headers need")
    if not header.is_file():
        problems.append(f"no Python headers ({header} does not exist)")
    if shutil.which("make") is None:
        problems.append("no make on PATH")
    return problems


def find_cuda_toolkit() -> CudaToolkit | None:
    """Find nvcc in $CUDA_HOME or on PATH, and its toolkit. nvcc on PATH may be a wrapper script, so
    nvcc itself is asked.
    """
    home = os.environ.get("CUDA_HOME", "")
    nvcc = shutil.which("nvcc", path=f"{home}/bin") if home else shutil.which("nvcc")
    if nvcc is None:
        return None
    release = re.search(r"release (\d+\.\d+)", output_of([nvcc, "--version"]) or "")
    top = re.search(r"TOP=(\S+)", output_of([nvcc, "--dryrun", "none.cu"]) or "")
    root = Path(top.group(1)).resolve() if top else Path(nvcc).resolve().parent.parent
    return CudaToolkit(home=root, version=release.group(1)) if release else None


def gpu_compute_capabilities() -> tuple[str, ...]:
    """Return the compute capabilities of the GPUs that the driver shows, such as ("90",); empty if
    there is none.
    """
    output = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]) or ""
    return tuple(
        sorted(
            {major + minor for major, minor in re.findall(r"^(\d+)\.(\d+)$", output, re.MULTILINE)}
        )
    )


def kernel_targets(requested: Sequence[str]) -> tuple[str, ...]:
    """Return the compute capabilities to compile CUDA kernels for: those asked for, else those of
    the GPUs here, else Hopper's.
    """
    return tuple(requested) or gpu_compute_capabilities() or ("90",)


def nccl_home() -> Path | None:
    """Return the directory of torch's own NCCL wheel.

    Built with it, Horovod runs the same NCCL as torch.
    """
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    homes = [Path(root) / "nccl" for root in roots]
    return next((home for home in homes if (home / "include" / "nccl.h").is_file()), None)


def choose_operations(requested: str) -> str:
    """Choose between a CPU build and one whose GPU operations run over NCCL, by what this machine
    has: returns "cpu" or "nccl".

    Raises:
        PrerequisiteError: "nccl" was asked for and cannot be built here.
    """
    can_build = nccl_home() is not None and bool(find_cuda_toolkit() or torch_cuda_release())
    if requested == "auto":
        return "nccl" if can_build and gpu_compute_capabilities() else "cpu"
    if requested == "nccl" and not can_build:
        raise PrerequisiteError(
            "a GPU build of Horovod needs NCCL from torch's wheel, and a CUDA toolkit (nvcc on"
            " PATH, or CUDA_HOME) or a torch with wheels of CUDA 13; install them, or ask for 'cpu'"
        )
    return requested


def cpu_class() -> str:
    """Name the vector instructions that Horovod's build compiles in when /proc/cpuinfo lists them:
    "avx-f16c-fma" or "baseline".
    """
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return "-".join(flag for flag in ("avx", "f16c", "fma") if flag in flags) or "baseline"


COMPILER_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm")
CONSTRAINTS = Path(__file__).with_name("constraints.txt")


def torch_cuda_files() -> Path | None:
    """Return the folder of torch's own CUDA wheels, with run-time library and headers; None without
    wheels of CUDA 13.
    """
    nccl = nccl_home()
    folders = sorted(nccl.parent.glob("cu*")) if nccl else []
    return next(
        (folder for folder in folders if (folder / "include" / "cuda_runtime.h").is_file()), None
    )


def torch_cuda_release() -> str:
    """Return the CUDA release of torch's wheels, such as "13.2"; empty where no compiler matches
    them.
    """
    if torch_cuda_files() is None:
        return ""
    try:
        return ".".join(metadata.version("nvidia-cuda-runtime").split(".")[:2])
    except metadata.PackageNotFoundError:
        return ""


def compiler_requirements(release: str) -> list[str]:
    """Return what to install for a CUDA release: the pinned versions where the pins are of that
    release, else its newest.
    """
    pins = [line.partition("==") for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()]
    pinned = {name: version for name, _, version in pins if version.startswith(f"{release}.")}
    return [f"{name}=={pinned.get(name, f'{release}.*')}" for name in COMPILER_WHEELS]


def complete_toolkit(target: Path, release: str) -> CudaToolkit:
    """Link torch's headers and run-time library to the compiler installed in ``target``: CMake and
    nvcc accept that as a toolkit.

    Raises:
        PrerequisiteError: The wheels do not have the layout of CUDA 13.
    """
    ours = torch_cuda_files()
    home = target / "nvidia" / (ours.name if ours else "")
    if ours is None or not (home / "bin" / "nvcc").is_file():
        raise PrerequisiteError(
            f"the compiler wheels of CUDA {release} have no nvcc at {home / 'bin'}; install a CUDA"
            " toolkit"
        )
    for folder in ("include", "lib"):
        (home / folder).mkdir(exist_ok=True)
        for file in (ours / folder).iterdir():
            if not (home / folder / file.name).exists():
                (home / folder / file.name).symlink_to(file)
    (home / "lib64").symlink_to("lib")
    # the linker looks for this name, which the wheel does not have
    if not (home / "lib" / "libcudart.so").exists():
        (home / "lib" / "libcudart.so").symlink_to(next((ours / "lib").glob("libcudart.so.*")))
    return CudaToolkit(home=home, version=release)
