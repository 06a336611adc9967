"""Variables in a user's shell that change what is measured: one table of what each does, and to
which libraries.

A variable that makes a library measure something else, or fail, is refused. The progress and the
headline report the others. Variables in the plan's ``environment`` are the user's choice: refused
as well, but not reported. The table is in docs/variables.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from measurement.errors import cut

Library = Literal["horovod", "torch.distributed", "cuda", "any"]
"""Which ranks a variable affects: those of a library, those that compute on GPUs, or all."""


@dataclass(frozen=True, kw_only=True)
class DisturbingVariable:
    """One variable, or all with the same beginning."""

    name: str
    """With ``*`` at its end: all that begin so."""
    does: str
    """What follows the variable in a sentence."""
    library: Library = "any"
    is_refused: bool = False
    only: tuple[str, ...] = ()
    """The values that have this effect, in capitals; empty: all but ``unless``."""
    unless: tuple[str, ...] = ("", "0")

    def acts(self, name: str, value: str) -> bool:
        """Whether a variable is this one, with a value that has an effect."""
        is_named = name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name
        setting = value.strip().upper()
        return is_named and setting not in self.unless and (not self.only or setting in self.only)


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """A variable of the table that an environment contains."""

    name: str
    value: str
    variable: DisturbingVariable

    def __str__(self) -> str:
        return f"{self.setting} {self.variable.does}"

    @property
    def setting(self) -> str:
        """Name and value."""
        return f"{self.name}={cut(self.value)}"


KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Makes glibc keep freed memory (mallopt(3)), in processes started with these: no allocation is a
separate mapping, and the heap is trimmed only above 1 TiB. ``freed_memory: keep`` sets them."""
MALLOC = "changes when malloc gives memory back; 'freed_memory' in the plan does so for all arms"
BINDS = "binds threads to cores, beside what 'affinity' in the plan says"
LOGS = "has lines logged while steps are timed"
WAITS = "has the CPU wait for every collective, so that nothing overlaps"
PROFILES = "loads a profiler, which takes time in every step"
TABLE = (
    DisturbingVariable(
        name="HOROVOD_AUTOTUNE",
        does=(
            "changes fusion and cycle time while steps are timed; tune beforehand, leave it out,"
            " and give what was found as fusion_threshold_mb and cycle_time_ms"
        ),
        library="horovod",
        is_refused=True,
    ),
    DisturbingVariable(
        name="HOROVOD_TIMELINE",
        does=(
            "has Horovod write each operation to a file while steps are timed; unset it, and record"
            " timelines without measuring"
        ),
        library="horovod",
        is_refused=True,
        unless=("", "DYNAMIC"),
    ),
    DisturbingVariable(
        name="TORCH_DISTRIBUTED_DEBUG",
        does=(
            "compares every collective between the ranks before it runs: naive and FSDP2 lose two"
            " thirds of their throughput, and DDP over Gloo dies of a segmentation fault; unset it,"
            " or set INFO"
        ),
        library="torch.distributed",
        is_refused=True,
        only=("DETAIL",),
    ),
    DisturbingVariable(
        name="TORCH_DISTRIBUTED_DEBUG", does=LOGS, library="torch.distributed", only=("INFO",)
    ),
    DisturbingVariable(
        name="HOROVOD_LOG_LEVEL", does=LOGS, library="horovod", only=("TRACE", "DEBUG", "INFO")
    ),
    DisturbingVariable(
        name="CUDA_LAUNCH_BLOCKING",
        does="has the CPU wait for every kernel, so that nothing overlaps",
        library="cuda",
    ),
    DisturbingVariable(name="NCCL_DEBUG", does=LOGS, library="cuda", only=("INFO", "TRACE")),
    DisturbingVariable(name="NCCL_PROFILER_PLUGIN", does=PROFILES, library="cuda"),
    DisturbingVariable(name="TORCH_NCCL_BLOCKING_WAIT", does=WAITS, library="torch.distributed"),
    DisturbingVariable(name="NCCL_BLOCKING_WAIT", does=WAITS, library="torch.distributed"),
    DisturbingVariable(
        name="TORCH_NCCL_DESYNC_DEBUG",
        does="notes every collective in the store, for each rank",
        library="torch.distributed",
    ),
    DisturbingVariable(
        name="TORCH_NCCL_NAN_CHECK",
        does="looks for NaN before every collective",
        library="torch.distributed",
    ),
    DisturbingVariable(name="CUDA_INJECTION64_PATH", does=PROFILES, library="cuda"),
    DisturbingVariable(name="NVTX_INJECTION64_PATH", does=PROFILES, library="cuda"),
    DisturbingVariable(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        does="allocates GPU memory for every tensor",
        library="cuda",
    ),
    DisturbingVariable(
        name="NVIDIA_TF32_OVERRIDE",
        does="decides on TF32 in the place of the plan",
        library="cuda",
        unless=("",),
    ),
    DisturbingVariable(name="TORCH_LOGS", does=LOGS),
    DisturbingVariable(name="TORCH_CPP_LOG_LEVEL", does=LOGS, only=("INFO",)),
    DisturbingVariable(name="GLOG_v", does=LOGS),
    DisturbingVariable(
        name="KINETO_USE_DAEMON", does="lets a daemon trace the ranks while steps are timed"
    ),
    DisturbingVariable(name="ONEDNN_VERBOSE", does=LOGS, unless=("", "0", "NONE")),
    DisturbingVariable(name="DNNL_VERBOSE", does=LOGS, unless=("", "0", "NONE")),
    DisturbingVariable(name="MKL_VERBOSE", does=LOGS),
    DisturbingVariable(name="TORCH_COMPILE_DEBUG", does="writes what is compiled to files"),
    DisturbingVariable(
        name="TORCH_COMPILE_DISABLE",
        does="leaves models uncompiled, whatever 'speed' in the plan says",
    ),
    DisturbingVariable(
        name="TORCHDYNAMO_DISABLE",
        does="leaves models uncompiled, whatever 'speed' in the plan says",
    ),
    DisturbingVariable(
        name="PYTHONDEVMODE", does="checks memory and warnings at run time, which slows Python"
    ),
    DisturbingVariable(
        name="PYTHONMALLOC", does="replaces Python's allocator", unless=("", "DEFAULT", "PYMALLOC")
    ),
    DisturbingVariable(
        name="PYTHONTRACEMALLOC", does="records where memory is allocated, which slows Python"
    ),
    DisturbingVariable(
        name="PYTHONOPTIMIZE", does="leaves out assertions, also those of your workload"
    ),
    DisturbingVariable(name="PYTHONPERFSUPPORT", does="prepares Python for perf, which slows it"),
    DisturbingVariable(
        name="COVERAGE_PROCESS_START", does="notes every line of Python that runs, which slows it"
    ),
    DisturbingVariable(name="LD_PRELOAD", does="loads its library before all others"),
    DisturbingVariable(name="LD_AUDIT", does="has its library see every call of another"),
    DisturbingVariable(name="LD_DEBUG", does="logs what the dynamic linker does"),
    DisturbingVariable(name="MALLOC_*", does=MALLOC, unless=("",)),
    DisturbingVariable(
        name="GLIBC_TUNABLES",
        does="changes glibc, among it malloc; 'freed_memory' in the plan is for that",
    ),
    DisturbingVariable(name="OMP_PROC_BIND", does=BINDS, unless=("", "FALSE")),
    DisturbingVariable(name="OMP_PLACES", does=BINDS, unless=("",)),
    DisturbingVariable(name="GOMP_CPU_AFFINITY", does=BINDS, unless=("",)),
    DisturbingVariable(name="KMP_AFFINITY", does=BINDS, unless=("", "NONE", "DISABLED")),
    DisturbingVariable(
        name="OMP_WAIT_POLICY", does="decides whether waiting threads keep their cores"
    ),
    DisturbingVariable(
        name="KMP_BLOCKTIME",
        does="decides for how long waiting threads keep their cores",
        unless=("",),
    ),
)


def disturbances(
    environment: Mapping[str, str], libraries: Collection[Library]
) -> list[Disturbance]:
    """The variables of the table that an environment contains and that affect ranks of these
    libraries.
    """
    reached = [
        variable for variable in TABLE if variable.library == "any" or variable.library in libraries
    ]
    return [
        Disturbance(name=name, value=value, variable=variable)
        for variable in reached
        for name, value in sorted(environment.items())
        if variable.acts(name, value)
    ]


def refusal(environment: Mapping[str, str], libraries: Collection[Library]) -> str | None:
    """Why ranks of these libraries cannot be measured correctly in this environment, and what to
    do; None: they can.
    """
    return next(
        (
            str(disturbance)
            for disturbance in disturbances(environment, libraries)
            if disturbance.variable.is_refused
        ),
        None,
    )


def describe_variables(by_arm: Mapping[str, Iterable[Disturbance]]) -> list[str]:
    """A sentence for each variable, with its arms where it does not affect all.

    ``by_arm``: the variables of each.
    """
    by_text: dict[str, list[str]] = {}
    for arm, of_arm in by_arm.items():
        for disturbance in of_arm:
            by_text.setdefault(str(disturbance), []).append(arm)
    return [
        (
            text
            if len(arms) == len(by_arm)
            else f"{text}; it reaches {', '.join(arms)} alone, which makes the comparison uneven"
        )
        for text, arms in by_text.items()
    ]
