"""One block: what its ranks timed, and what its hosts did meanwhile.

An epoch of training is a block, too. Raw samples are stored, derived numbers never.
"""

from __future__ import annotations

import base64
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    SerializationInfo,
)

from measurement.records import Written

PHASES = ("data_wait", "forward", "backward", "optimizer", "exchange")
"""The last is a script's wait for exchange outside C++; it is 0 for Ringside's own ranks."""


@dataclass(frozen=True, kw_only=True)
class BlockSteps:
    """Every rank's steps, one after another, by rank."""

    rank: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    samples: npt.NDArray[np.int64]
    phases_s: npt.NDArray[np.float64]
    """[rows, len(PHASES)]."""


def _pack(values: Any, info: SerializationInfo) -> str | list[Any]:
    floats = np.asarray(values, dtype=np.float64)
    return base64.b64encode(floats.tobytes()).decode() if info.mode_is_json() else floats.tolist()


def _table(value: Any) -> npt.NDArray[np.float64]:
    packed = (
        np.frombuffer(base64.b64decode(value))
        if isinstance(value, str)
        else np.asarray(value, dtype=np.float64)
    )
    return packed.reshape(-1, len(PHASES))


def _row(value: Any) -> array[float]:
    return array("d", base64.b64decode(value) if isinstance(value, str) else value)


Phases = Annotated[npt.NDArray[np.float64], PlainValidator(_table), PlainSerializer(_pack)]
"""float64 [steps, len(PHASES)]: seconds."""
Sketch = Annotated[Any, PlainValidator(_row), PlainSerializer(_pack)]
"""float64 [up to 64], as an ``array``, which has a quarter of a list's memory: all ranks send
hundreds each."""


BlockKind = Literal["sync", "local"]
"""``sync``: ranks exchange gradients, as in training. ``local``: they do not."""


class CoreUse(Written):
    """Use of one rank's cores while a block ran, untimed steps included
    (``ringside_agent.machine``).
    """

    machine: str
    """Whose cores they are. Hosts of one kernel, such as a node's pods, are one machine."""
    cores: list[int]
    wall_s: float
    busy_s: float
    """CPU seconds of all cores together, of all processes."""
    steal_s: float
    """Seconds that a hypervisor gave to other guests."""
    own_s: float
    """CPU time of the rank's process and its children."""
    other_threads_s: float | None = None
    """CPU time of the process's threads besides the training thread: the library's, and torch's own
    where it has several."""


class ThreadTimes(Written):
    """What the threads of a rank did during a block's timed steps
    (``ringside_agent.machine``), in seconds.

    The rest of the training thread's time is waiting: for peers, a loader, a disk, or a device.
    """

    running_s: float
    """Time of the training thread on a core."""
    runnable_s: float
    """Time of the training thread, ready to run while another thread had the core."""
    library_s: float
    """CPU time of the library's threads: those that appeared when it was set up."""
    others_s: float
    """CPU time of all other threads: torch's own, where it has several."""


class RankSteps(Written):
    """What one rank timed in one block."""

    rank: int
    untimed_s: float
    """Rebuild and warm-up steps; of an epoch, its evaluation."""
    samples: list[int]
    """int [steps]: this rank's, in the workload's unit."""
    phases_s: Phases
    """float64 [steps, len(PHASES)], seconds on this rank's clock."""
    skipped_steps: int = 0
    """Timed steps whose gradients overflowed in fp16: the optimizer took no step."""
    restarts: int = 0
    """How often the batches ended in the timed steps and were restarted."""
    wrong: str | None = None
    """What was wrong with a micro-benchmark's result before the timed steps; None: nothing."""
    core_use: CoreUse | None = None
    """None where the kernel does not report it."""
    threads: ThreadTimes | None = None
    """None where the kernel does not report it, and for a micro-benchmark or an epoch."""
    start: int = 0
    """How often a script was started in this launch before this block."""
    first_step: int | None = None
    """Number of the script's step, from 0, with which the block's untimed steps began; None of a
    workload."""
    losses: list[float] = []
    """Mean loss of each step of a script's block, untimed ones included; NaN where none was
    seen."""
    loss_samples: list[int] = []
    """A script's samples in those steps, on this rank."""
    gaps: list[tuple[int, float]] = []
    """Timed steps of a script that contain a long pause, such as an evaluation, and its seconds."""
    page_faults: int | None = None
    """Minor ones of the rank's process in the timed steps (``ru_minflt``, getrusage(2)); None of a
    micro-benchmark or an epoch."""


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


Traffic = dict[str, int]
"""Traffic of a network interface: ``sent_bytes``, ``received_bytes``, ``sent_packets``,
``received_packets``."""
Gpu = dict[str, float | None]
"""A GPU's ``utilisation``, ``sm_mhz``, ``memory_used_bytes`` and ``slowed_by`` (NVML's bits, see
``SLOWED_BY``). Utilisation is the share of the last sample, up to a second long, in which it
worked. Its energy is ``energy_mj`` at a reading, or ``energy_j`` between two. None where the GPU
does not report it."""


class _OfHost(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    core_busy_s: list[float]
    """CPU seconds of every core."""
    memory_used_bytes: int
    """At the end."""
    memory_bytes: int
    network: dict[str, Traffic]
    """By interface."""
    gpus: dict[int, Gpu]


class HostUse(_OfHost):
    """What a host did between two readings of its counters, for all processes; without idle
    interfaces.
    """

    wall_s: float
    energy_j: dict[str, float]
    """By processor package; empty where it cannot be read."""

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


class HostCounters(_OfHost):
    """The counters of a host at one time."""

    at_s: float
    """By its monotonic clock."""
    energy_uj: dict[str, tuple[int, int]]
    """Microjoules taken, and where the counter restarts."""

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


class BlockRecord(Written):
    """One block: which it was, when it ran, and what its ranks timed.

    An epoch of training is a block, too.

    A rank makes it with its own steps in ``ranks``; ``joined`` combines those of all ranks. On disk
    ``ranks`` become ``steps.parquet`` (``columns``) and ``losses.parquet``, ``hosts`` become
    ``hosts.parquet``. ``record.json`` has the rest.
    """

    turn: int
    """Its number among the blocks of all arms in this launch, in the order they ran."""
    round: int
    block: int
    """Its number among this arm's blocks in this launch."""
    kind: BlockKind
    case: str | None = None
    """The case of a micro-benchmark."""
    steps: int
    repetitions: int = 1
    """How often a micro-benchmark repeats its operation in each step."""
    started_s: float = 0.0
    """Seconds since this launch's blocks began."""
    wall_s: float = 0.0
    """From the command to the last rank's reply, without stopping and continuing ranks."""
    untimed_s: float = 0.0
    """The longest of the ranks'."""
    skipped_steps: int = 0
    """The most of the ranks'."""
    restarts: int = 0
    """The most of the ranks'."""
    link_bytes: dict[str, tuple[int, int]] = {}
    """Bytes each host sent and received over the plan's interface while the block ran, untimed
    steps included; not on one host."""
    foreign_share: float | None = None
    """Share of the ranks' cores that other processes took meanwhile; ticks may make it slightly
    negative. None: not known."""
    steal_share: float | None = None
    """Share that a hypervisor's other guests took. None: not known."""
    other_threads_share: float | None = None
    """CPU seconds a second that a rank's threads besides its training thread took: mean over
    ranks."""
    threads: ThreadTimes | None = None
    """The mean over ranks; None where a rank has none."""
    page_faults: float | None = None
    """The mean over ranks; None where a rank has none."""
    gaps: list[tuple[int, float]] = []
    """See ``RankSteps.gaps``; of each step the longest of the ranks'."""
    ranks: list[RankSteps] = []
    """By rank; empty where the record was read from a file, or ``packed``."""
    hosts: dict[str, HostUse] = {}
    """What the arm's hosts did meanwhile; empty where the record was read from a file, or no driver
    read their counters."""
    _columns: BlockSteps | None = PrivateAttr(default=None)

    @classmethod
    def joined(cls, block: BlockRecord, ranks: Sequence[RankSteps], **measured: Any) -> BlockRecord:
        """Make the record of a block from ``block``, one rank's, and the steps of all ranks, at
        least one.

        ``measured``: fields that only the caller knows.
        """
        load = load_of([steps.core_use for steps in ranks if steps.core_use])
        names = ("untimed_s", "skipped_steps", "restarts")
        longest = {name: max(getattr(steps, name) for steps in ranks) for name in names}
        faults = [steps.page_faults for steps in ranks if steps.page_faults is not None]
        # by step, the longest last
        gaps = dict(sorted(gap for steps in ranks for gap in steps.gaps))
        update = {
            "ranks": list(ranks),
            "gaps": list(gaps.items()),
            "threads": mean_times([steps.threads for steps in ranks]),
            "page_faults": fmean(faults) if len(faults) == len(ranks) else None,
        }
        return block.model_copy(update=update | longest | load | measured)

    def packed(self) -> BlockRecord:
        """A copy with its steps in columns only.

        The block's own fields have the other figures of its ranks.
        """
        block = self.model_copy(update={"ranks": []})
        block._columns = self.columns
        return block

    @property
    def columns(self) -> BlockSteps:
        """All ranks' steps."""
        if self._columns is not None:
            return self._columns
        lengths = [len(steps.samples) for steps in self.ranks]
        rows, samples = sum(lengths), chain.from_iterable(steps.samples for steps in self.ranks)
        none = np.zeros((0, len(PHASES)))
        return BlockSteps(
            rank=np.repeat(np.array([steps.rank for steps in self.ranks], np.int32), lengths),
            step=np.fromiter(chain.from_iterable(map(range, lengths)), np.int32, rows),
            samples=np.fromiter(samples, np.int64, rows),
            phases_s=np.concatenate([none, *(steps.phases_s for steps in self.ranks)]),
        )


def load_of(uses: Sequence[CoreUse]) -> dict[str, Any]:
    """The load fields of a block from its ranks' core use.

    Ranks that share cores count the same cores, and each its own time.
    """
    places = [(use.machine, tuple(use.cores)) for use in uses]
    counts = Counter(places)
    capacity_s = busy_s = steal_s = own_s = 0.0
    for use, place in zip(uses, places, strict=True):
        share = 1 / counts[place]
        capacity_s += share * use.wall_s * len(use.cores)
        busy_s += share * use.busy_s
        steal_s += share * use.steal_s
        own_s += use.own_s
    if not capacity_s:
        return {}
    other_threads = [
        use.other_threads_s / use.wall_s
        for use in uses
        if use.other_threads_s is not None and use.wall_s
    ]
    return {
        "foreign_share": (busy_s - own_s) / capacity_s,
        "steal_share": steal_s / capacity_s,
        "other_threads_share": fmean(other_threads) if other_threads else None,
    }


def mean_times(times: Sequence[ThreadTimes | None]) -> ThreadTimes | None:
    """The mean over ranks; None where a rank has none."""
    measured = [time.model_dump() for time in times if time is not None]
    if not measured or len(measured) < len(times):
        return None
    return ThreadTimes(**{name: fmean(time[name] for time in measured) for name in measured[0]})
