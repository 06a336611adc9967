"""What a host did while a block ran, by its counters before and after
(``measurement.host_counters`` reads them).
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

SLOWED_BY = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat",
    0x80: "power supply",
}
"""NVML's clocks throttle reasons that slow a GPU which has work (nvml.h,
nvmlClocksThrottleReason...)."""


LOOPBACK = "lo"


class _Counted(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


Traffic = dict[str, int]
"""Traffic of a network interface: ``sent_bytes``, ``received_bytes``, ``sent_packets``,
``received_packets``."""
Gpu = dict[str, float | None]
"""A GPU's ``utilisation``, ``sm_mhz``, ``memory_used_bytes`` and ``slowed_by`` (NVML's bits, see
``SLOWED_BY``). Utilisation is the share of the last sample, up to a second long, in which it
worked. Its energy is ``energy_mj`` at a reading, or ``energy_j`` between two. None where the GPU
does not report it."""


class HostUse(_Counted):
    """What a host did between two readings of its counters, for all processes."""

    wall_s: float
    core_busy_s: list[float]
    """CPU seconds of every core."""
    memory_used_bytes: int
    """At the end."""
    memory_bytes: int
    network: dict[str, Traffic]
    """By interface, without idle ones."""
    energy_j: dict[str, float]
    """By processor package; empty where it cannot be read."""
    gpus: dict[int, Gpu]

    def link_bytes(self, interface: str | None) -> tuple[int, int]:
        """Bytes sent and received over one interface; None: over all that lead to other hosts."""
        interfaces = [
            traffic
            for name, traffic in self.network.items()
            if (name == interface if interface else name != LOOPBACK)
        ]
        sent = sum(traffic["sent_bytes"] for traffic in interfaces)
        return sent, sum(traffic["received_bytes"] for traffic in interfaces)

    def rows(self) -> Iterator[tuple[str, str, float]]:
        """Each measure, its interface, package or GPU, and the value."""
        yield "wall_s", "", self.wall_s
        yield "memory_used_bytes", "", self.memory_used_bytes
        yield "memory_bytes", "", self.memory_bytes
        yield "busy_s", "", sum(self.core_busy_s)
        for interface, traffic in self.network.items():
            for name, number in traffic.items():
                yield name, interface, number
        for package, joules in self.energy_j.items():
            yield "energy_j", package, joules
        for gpu, use in self.gpus.items():
            for name, value in use.items():
                if value is not None:
                    yield f"gpu_{name}", str(gpu), value


class HostCounters(_Counted):
    """The counters of a host at one time."""

    at_s: float
    """By its monotonic clock."""
    core_busy_s: list[float]
    memory_used_bytes: int
    memory_bytes: int
    network: dict[str, Traffic]
    energy_uj: dict[str, tuple[int, int]]
    """Microjoules taken, and where the counter restarts."""
    gpus: dict[int, Gpu]

    def since(self, before: HostCounters) -> HostUse:
        """The use since an earlier reading of the same host. New cores and interfaces are left
        out.
        """
        passed = {
            name: {count: number - before.network[name][count] for count, number in now.items()}
            for name, now in self.network.items()
            if name in before.network
        }
        return HostUse(
            wall_s=self.at_s - before.at_s,
            core_busy_s=[
                now - then for now, then in zip(self.core_busy_s, before.core_busy_s, strict=False)
            ],
            memory_used_bytes=self.memory_used_bytes,
            memory_bytes=self.memory_bytes,
            network={
                name: traffic for name, traffic in passed.items() if sum(traffic.values()) > 0
            },
            energy_j={
                name: (now - before.energy_uj[name][0]) % limit / 1e6
                for name, (now, limit) in self.energy_uj.items()
                if name in before.energy_uj and limit > 0
            },
            gpus={
                number: _gpu_use(before.gpus[number], now)
                for number, now in self.gpus.items()
                if number in before.gpus
            },
        )


def _gpu_use(before: Gpu, now: Gpu) -> Gpu:
    state, energy_mj, until = dict(now), now["energy_mj"], before["energy_mj"]
    del state["energy_mj"]
    return state | {
        "energy_j": None if energy_mj is None or until is None else (energy_mj - until) / 1e3
    }


HOST_COLUMNS = {
    "turn": "Int32",
    "host": "string",
    "measure": "string",
    "of": "string",
    "value": "float64",
}
"""hosts.parquet: what every host of the arm did during each of its blocks, untimed steps included,
one row per value (``HostUse.rows``). ``of``: which interface, package or GPU; empty of the host as
a whole. Beside these one row per core: ``core_busy_s`` of the core that ``of`` names, over all
blocks of the launch; ``turn`` is null there."""
