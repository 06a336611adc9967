"""The counters of this host: CPU time of each core, memory, network interfaces, energy, GPUs.

A supervisor reads them when the driver asks, between blocks. ``records.block`` computes the use
between two readings. NVML is read through nvidia-ml-py where that is installed.
"""

from __future__ import annotations

import contextlib
import time
from functools import cache
from pathlib import Path
from typing import Any

import psutil

POWERCAP = Path("/sys/class/powercap")
IDLE = ("idle", "iowait", "steal", "guest", "guest_nice")
"""Fields of a core's times that are not work of this machine, or are included in another field."""


def read_counters() -> dict[str, Any]:
    """The counters now, as ``measurement.records.block.HostCounters`` has them.

    Takes some milliseconds.
    """
    memory = psutil.virtual_memory()
    return {
        "at_s": time.monotonic(),
        "core_busy_s": list(map(_busy_s, psutil.cpu_times(percpu=True))),
        "memory_used_bytes": memory.total - memory.available,
        "memory_bytes": memory.total,
        "network": {
            name: {
                "sent_bytes": counted.bytes_sent,
                "received_bytes": counted.bytes_recv,
                "sent_packets": counted.packets_sent,
                "received_packets": counted.packets_recv,
            }
            for name, counted in psutil.net_io_counters(pernic=True).items()
        },
        "energy_uj": _energy(),
        "gpus": _gpus(),
    }


def _busy_s(times: Any) -> float:
    spent: dict[str, float] = times._asdict()
    return round(sum(seconds for name, seconds in spent.items() if name not in IDLE), 3)


def _energy() -> dict[str, tuple[int, int]]:
    """Microjoules of each processor package, and where its counter wraps (the kernel's powercap
    interface, RAPL).

    Most kernels let only root read them.
    """
    energy_uj = {}
    for zone in POWERCAP.glob("intel-rapl:*"):
        with contextlib.suppress(OSError, ValueError):
            name = (zone / "name").read_text(encoding="utf-8").strip()
            if name.startswith("package"):
                energy_uj[name] = (
                    int((zone / "energy_uj").read_text(encoding="utf-8")),
                    int((zone / "max_energy_range_uj").read_text(encoding="utf-8")),
                )
    return energy_uj


def _gpus() -> dict[int, dict[str, Any]]:
    """Return the counters of each GPU of this host."""
    library = nvml()
    if library is None:
        return {}
    gpus = {}
    for number in range(library.nvmlDeviceGetCount()):
        device = library.nvmlDeviceGetHandleByIndex(number)

        def read(name: str, *arguments: Any, device: Any = device) -> Any:
            try:
                return getattr(library, name)(device, *arguments)
            except library.NVMLError:  # this model does not report it
                return None

        rates, memory = read("nvmlDeviceGetUtilizationRates"), read("nvmlDeviceGetMemoryInfo")
        gpus[number] = {
            "energy_mj": read("nvmlDeviceGetTotalEnergyConsumption"),
            "utilisation": None if rates is None else rates.gpu / 100,
            "sm_mhz": read("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
            "memory_used_bytes": None if memory is None else memory.used,
            "slowed_by": read("nvmlDeviceGetCurrentClocksThrottleReasons"),
        }
    return gpus


@cache
def nvml() -> Any:
    """The library, initialised; None where it is missing or finds no driver."""
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - not installed, or no driver
        return None
    return pynvml
