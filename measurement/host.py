"""This host and its software: cores, GPUs, git state, other processes, the installed MPI and NCCL.

Releases of MPI and NCCL differ in speed, so both are recorded.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measurement.agent.ringside_agent import machine
from measurement.agent.ringside_agent.machine import usable_cores
from measurement.host_counters import nvml


def core_count() -> int:
    """How many cores this process may use."""
    return len(usable_cores())


def crowded_warning(ranks: int, cores: int | None) -> str | None:
    """A sentence where ranks that compute on the CPU share cores; ``cores``: that they may use
    together, None where not known.
    """
    if cores is None or ranks <= cores:
        return None
    return (
        f"{ranks} ranks share {cores} core{'' if cores == 1 else 's'}: each also waits for its turn"
        " on a core, most of all in exchange, as it would not where every rank has its own; use at"
        f" most {cores} to ask about the libraries"
    )


def shared_gpus_warning(ranks: int, gpus: int) -> str | None:
    """A sentence where ranks share GPUs; ``gpus``: 0 where their number is not known."""
    if not gpus or ranks <= gpus:
        return None
    return (
        f"{ranks} ranks have {gpus} GPU{'' if gpus == 1 else 's'}: some compute on the same one, in"
        " turns, and NCCL refuses that"
    )


def git_state(folder: Path) -> dict[str, Any]:
    """Commit of the checkout that contains ``folder``, and whether it has changes; empty outside a
    checkout.
    """
    commit = output_of(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None:
        return {}
    status = output_of(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return {"git_commit": commit, "git_dirty": bool(status)}


def cards() -> list[str]:
    """The GPUs of this machine by NVML, which needs no torch; empty where NVML cannot read them."""
    library = nvml()
    if library is None:
        return []
    try:
        handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
        return [str(library.nvmlDeviceGetName(handle)) for handle in handles]
    except library.NVMLError:
        return []


ASK_TIMEOUT_S = 20.0


def output_of(argv: list[str]) -> str | None:
    """A program's output; None where it is missing, fails, or takes too long."""
    try:
        completed = subprocess.run(
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout.strip() if completed.returncode == 0 else None


WATCHED_S = 0.5
BUSY = 0.10
"""Share of the cores used by others from which on a machine is busy."""
BUSY_REMEDY = "they disturb what is measured: end them first ('top' names them)"


def busy_warning(cores: Sequence[int]) -> str | None:
    """A sentence where other processes use enough of these cores to disturb a comparison; watches
    for ``WATCHED_S``.
    """
    before = machine.read_core_use(cores)
    time.sleep(WATCHED_S)
    use = machine.core_use_between(before, machine.read_core_use(cores))
    if use is None:
        return None
    share = (use["busy_s"] - use["own_s"]) / (use["wall_s"] * len(cores))
    return None if share < BUSY else f"other processes use {share:.0%} of the {len(cores)} cores"


PCI_DEVICES = Path("/sys/bus/pci/devices")


def gpu_number(local_rank: int) -> int | None:
    """The GPU that a rank uses among those that its process sees; None: it sees none."""
    import torch

    return local_rank % torch.cuda.device_count() if torch.cuda.is_available() else None


def pci_address(number: int) -> str | None:
    """The PCI address of the GPU with this number in CUDA, such as ``0000:1b:00.0``; None where
    torch does not report it.
    """
    import torch

    properties: Any = torch.cuda.get_device_properties(number)
    if not hasattr(properties, "pci_bus_id"):
        return None
    domain, bus = properties.pci_domain_id, properties.pci_bus_id
    return f"{domain:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"


def cores_near(address: str | None) -> frozenset[int]:
    """The cores of the NUMA node of a PCI device; empty where Linux does not report them.

    By ``local_cpulist`` (Linux, Documentation/ABI/testing/sysfs-bus-pci), such as ``0-15,32-47``.
    """
    try:
        listed = (PCI_DEVICES / str(address) / "local_cpulist").read_text(encoding="utf-8").strip()
    except OSError:
        return frozenset()
    bounds = [[int(bound) for bound in part.split("-")] for part in listed.split(",") if part]
    return frozenset(core for bound in bounds for core in range(bound[0], bound[-1] + 1))


def cores_near_gpus(local_ranks: int) -> list[frozenset[int]]:
    """By local rank, the cores near its GPU; empty where there is no GPU, or each rank sees only
    its own.
    """
    numbers = [gpu_number(rank) for rank in range(local_ranks)]
    if len(set(numbers)) == 1 < local_ranks:
        return [frozenset()] * local_ranks
    return [
        frozenset() if number is None else cores_near(pci_address(number)) for number in numbers
    ]


OPEN_MPI, MPICH = "Open MPI", "MPICH"
VERSION_PATTERNS = (
    (OPEN_MPI, re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(\S+)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\S+)")),
    (MPICH, re.compile(r"HYDRA build details:\s+Version:\s+(\S+)")),
)
"""By name: the pattern of its version in the output of ``--version``."""


class InstalledMpi(NamedTuple):
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
    output = output_of([executable, "--version"])
    return None if output is None else mpi_that_says(output)


def mpi_that_says(text: str) -> InstalledMpi | None:
    """Return the MPI whose launcher prints this for ``--version``. Pure."""
    matches = ((name, pattern.search(text)) for name, pattern in VERSION_PATTERNS)
    return next((InstalledMpi(name, match[1]) for name, match in matches if match), None)


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
    *_, file = str(Path(symbol.file.decode()).resolve()).rpartition("/site-packages/")
    return f"{version_of(number.value)} ({file})"


def version_of(code: int) -> str:
    """NCCL's version code as text: 21805 is 2.18.5 (``NCCL_VERSION`` in nccl.h)."""
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"
