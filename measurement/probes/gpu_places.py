"""Where a rank's GPU is on its host: its address on the PCI bus, and the cores next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PCI_DEVICES = Path("/sys/bus/pci/devices")


def gpu_number(local_rank: int) -> int | None:
    """The GPU that a rank takes of those that its process sees; None: it sees none."""
    import torch

    return local_rank % torch.cuda.device_count() if torch.cuda.is_available() else None


def pci_address(number: int) -> str | None:
    """Such as ``0000:1b:00.0``, as CUDA tells it of the GPU with this number; None where torch does not hand it on."""
    import torch

    found: Any = torch.cuda.get_device_properties(number)
    if not hasattr(found, "pci_bus_id"):
        return None
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def cores_near(address: str | None) -> frozenset[int]:
    """The cores of the NUMA node that a device on the PCI bus hangs on; empty where Linux does not tell.

    By ``local_cpulist`` (Linux, Documentation/ABI/testing/sysfs-bus-pci), such as ``0-15,32-47``.
    """
    try:
        listed = (PCI_DEVICES / str(address) / "local_cpulist").read_text(encoding="utf-8").strip()
    except OSError:
        return frozenset()
    bounds = [[int(bound) for bound in part.split("-")] for part in listed.split(",") if part]
    return frozenset(core for own in bounds for core in range(own[0], own[-1] + 1))


def cores_near_gpus(local_ranks: int) -> list[frozenset[int]]:
    """By local rank, the cores near its GPU; none are known where there is no GPU, or each rank sees its own one only."""
    numbers = [gpu_number(rank) for rank in range(local_ranks)]
    if len(set(numbers)) == 1 < local_ranks:
        return [frozenset()] * local_ranks
    return [frozenset() if number is None else cores_near(pci_address(number)) for number in numbers]
