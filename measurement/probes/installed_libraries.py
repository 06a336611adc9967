"""Which MPI an ``mpirun`` belongs to, and which NCCL a library calls.

Releases differ in speed, so both are recorded.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OPEN_MPI, MPICH = "Open MPI", "MPICH"
ASK_TIMEOUT_S = 20.0
VERSION_PATTERNS = (
    (OPEN_MPI, re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(\S+)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\S+)")),
    (MPICH, re.compile(r"HYDRA build details:\s+Version:\s+(\S+)")),
)
"""By name: the pattern of its version in the output of ``--version``."""


@dataclass(frozen=True, kw_only=True)
class InstalledMpi:
    """An MPI by its launcher."""

    name: str
    version: str

    def __str__(self) -> str:
        """As in ``Open MPI 5.0.11``."""
        return f"{self.name} {self.version}"


@functools.cache
def installed_mpi(program: str, path: str | None = None) -> InstalledMpi | None:
    """Return the MPI of a program on a PATH; None where it is missing or its output is unknown."""
    executable = shutil.which(program, path=path)
    if executable is None:
        return None
    try:
        output = subprocess.run(
            [executable, "--version"], capture_output=True, timeout=ASK_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return mpi_that_says(output.decode(errors="replace"))


def mpi_that_says(text: str) -> InstalledMpi | None:
    """Return the MPI whose launcher prints this for ``--version``. Pure."""
    matches = ((name, pattern.search(text)) for name, pattern in VERSION_PATTERNS)
    return next(
        (InstalledMpi(name=name, version=match[1]) for name, match in matches if match), None
    )


PACKAGES = "site-packages"


class _Symbol(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def nccl_of(library: str | Path) -> str | None:
    """The NCCL that a library calls, by the linker, such as ``2.30.7
    (nvidia/nccl/lib/libnccl.so.2)``; None: it calls none.

    The library is loaded if needed. An NCCL that is linked into it with hidden symbols is not
    found.
    """
    try:
        function = ctypes.CDLL(str(library)).ncclGetVersion
    except (OSError, AttributeError):
        return None
    number, symbol = ctypes.c_int(), _Symbol()
    if function(ctypes.byref(number)) or not ctypes.CDLL(None).dladdr(
        function, ctypes.byref(symbol)
    ):
        return None
    return f"{version_of(number.value)} ({_shortened(Path(symbol.file.decode()).resolve())})"


def version_of(code: int) -> str:
    """NCCL's version code as text: 21805 is 2.18.5 (``NCCL_VERSION`` in nccl.h)."""
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"


def _shortened(path: Path) -> str:
    """The path relative to site-packages, if it is there."""
    parts = path.parts
    return str(Path(*parts[parts.index(PACKAGES) + 1 :])) if PACKAGES in parts else str(path)
