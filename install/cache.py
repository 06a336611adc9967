"""The cache of built Horovod wheels, and the stored result of the last build in this environment.

The cache is outside the checkout: <cache>/ringside/horovod/<key>/ holds the wheel and build.log.
The key contains everything that the compiled code depends on. So a new torch, Python, MPI, CPU
class or edit causes a new build, and nothing else does.
"""

import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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
