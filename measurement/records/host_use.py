"""What a host did while a block ran: what its counters say before and after (``measurement.probes.host_counters`` reads them)."""

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
"""NVML's clocks throttle reasons that slow a GPU which has work (nvml.h, nvmlClocksThrottleReason...)."""


LOOPBACK = "lo"


class _Counted(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Traffic(_Counted):
    """What passed over one network interface."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int

    @property
    def packets(self) -> int:
        """Sent and received."""
        return self.sent_packets + self.received_packets

    def since(self, before: Traffic) -> Traffic:
        """What passed after an earlier reading."""
        return Traffic(
            sent_bytes=self.sent_bytes - before.sent_bytes,
            received_bytes=self.received_bytes - before.received_bytes,
            sent_packets=self.sent_packets - before.sent_packets,
            received_packets=self.received_packets - before.received_packets,
        )


class _GpuState(_Counted):
    """One GPU at one time; None where it does not tell."""

    utilisation: float | None
    """Share of the last sample, up to a second long, in which the GPU worked."""
    sm_mhz: int | None
    memory_used_bytes: int | None
    slowed_by: int | None
    """NVML's bits, see ``SLOWED_BY``."""


class GpuCounters(_GpuState):
    """The counters of one GPU at one time."""

    energy_mj: int | None


class GpuUse(_GpuState):
    """What one GPU did: its state at the end, and the energy that it took."""

    energy_j: float | None


class HostUse(_Counted):
    """What a host did between two readings of its counters, whoever had it do so."""

    wall_s: float
    core_busy_s: list[float]
    """CPU seconds of every core."""
    memory_used_bytes: int
    """At the end."""
    memory_bytes: int
    network: dict[str, Traffic]
    """By interface, those that nothing passed over left out."""
    energy_j: dict[str, float]
    """By processor package; empty where it cannot be read."""
    gpus: dict[int, GpuUse]

    def link_bytes(self, interface: str | None) -> tuple[int, int]:
        """Bytes sent and received over one interface; None: over all that lead to other hosts."""
        found = [traffic for name, traffic in self.network.items() if (name == interface if interface else name != LOOPBACK)]
        return sum(traffic.sent_bytes for traffic in found), sum(traffic.received_bytes for traffic in found)

    def rows(self) -> Iterator[tuple[str, str, float]]:
        """What is measured, of which interface, package or GPU, and the value."""
        yield "wall_s", "", self.wall_s
        yield "memory_used_bytes", "", self.memory_used_bytes
        yield "memory_bytes", "", self.memory_bytes
        yield "busy_s", "", sum(self.core_busy_s)
        for interface, traffic in self.network.items():
            for name, number in traffic:
                yield name, interface, number
        for package, joules in self.energy_j.items():
            yield "energy_j", package, joules
        for gpu, use in self.gpus.items():
            for name, value in use:
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
    """Microjoules taken, and where the counter begins anew."""
    gpus: dict[int, GpuCounters]

    def since(self, before: HostCounters) -> HostUse:
        """What happened after an earlier reading of the same host. Cores and interfaces that were not there then are left out."""
        known = {name: before.network[name] for name in self.network if name in before.network}
        passed = {name: self.network[name].since(then) for name, then in known.items() if self.network[name].packets > then.packets}
        return HostUse(
            wall_s=self.at_s - before.at_s,
            core_busy_s=[now - then for now, then in zip(self.core_busy_s, before.core_busy_s, strict=False)],
            memory_used_bytes=self.memory_used_bytes,
            memory_bytes=self.memory_bytes,
            network=passed,
            energy_j={
                name: (now - before.energy_uj[name][0]) % limit / 1e6
                for name, (now, limit) in self.energy_uj.items()
                if name in before.energy_uj and limit > 0
            },
            gpus={number: _gpu_use(before.gpus[number], now) for number, now in self.gpus.items() if number in before.gpus},
        )


def _gpu_use(before: GpuCounters, now: GpuCounters) -> GpuUse:
    taken = None if now.energy_mj is None or before.energy_mj is None else (now.energy_mj - before.energy_mj) / 1e3
    return GpuUse(energy_j=taken, **now.model_dump(exclude={"energy_mj"}))


HOST_COLUMNS = {"turn": "Int32", "host": "string", "measure": "string", "of": "string", "value": "float64"}
"""hosts.parquet: what every host of the arm did during each of its blocks, untimed steps included, one row per value
(``HostUse.rows``). ``of``: which interface, package or GPU; empty of the host as a whole. Beside these one row per core:
``core_busy_s`` of the core that ``of`` names, over all blocks of the launch; ``turn`` is null there."""
