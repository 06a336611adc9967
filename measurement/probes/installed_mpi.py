"""Which MPI an ``mpirun`` belongs to, and its version. Each program is asked once."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass

OPEN_MPI, MPICH = "Open MPI", "MPICH"
ASK_TIMEOUT_S = 20.0
SAID = (
    (OPEN_MPI, re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(\S+)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\S+)")),
    (MPICH, re.compile(r"HYDRA build details:\s+Version:\s+(\S+)")),
)
"""By name: where its ``--version`` has the version."""


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
    """Return the MPI of a program, which is looked for on a PATH; None where it is not there or says nothing that is known."""
    found = shutil.which(program, path=path)
    if found is None:
        return None
    try:
        said = subprocess.run([found, "--version"], capture_output=True, timeout=ASK_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return mpi_that_says(said.decode(errors="replace"))


def mpi_that_says(text: str) -> InstalledMpi | None:
    """Return the MPI whose launcher prints this for ``--version``. Pure."""
    told = ((name, pattern.search(text)) for name, pattern in SAID)
    return next((InstalledMpi(name=name, version=match[1]) for name, match in told if match), None)
