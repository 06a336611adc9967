"""A comparison plan: what is trained, by which arms, and how it is measured.

Read from YAML, and checked as it is constructed.

Only the form is checked here. ``runners.planning.arms`` checks whether backends, launchers and
workloads exist and fit.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    model_validator,
)

from measurement.errors import unknown_name
from measurement.plans.sections import SCRIPT, VARIABLE, Arm, Measurement, ScriptSettings, Variables
from measurement.plans.settings import (
    BY_BACKEND,
    BY_COMMAND,
    FITTED,
    FOR_HOSTS,
    IN_TRAINING,
    OWN_BATCHES,
    WITHOUT_HOSTS,
    ArmRole,
    Batches,
    Precision,
    Section,
    SpeedSettings,
    TrainingSettings,
    require_meaning,
    with_neutral,
)

ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
MAX_RANKS, MAX_RANKS_HERE = 1 << 16, 1 << 10
"""Ranks that an arm may have in all, and on the driver's machine."""
HOROVOD = "horovod"
"""The backend that plans usually ask about."""
CONTROL_SUFFIX = "control"
EVENTS = "tensorboard"
"""The report that is written while arms run."""
FLOOR = "floor"
"""The name of the no-op backend's arm, which exchanges nothing."""


def _as_list(value: object) -> object:
    """Join several lists of hosts."""
    return (
        ",".join(value)
        if isinstance(value, list) and all(isinstance(part, str) for part in value)
        else value
    )


Name = Annotated[str, StringConstraints(pattern=f"^{ARM_NAME.pattern}$")]
"""The name of a comparison, arm or point: it becomes a folder."""
Hosts = Annotated[str, BeforeValidator(_as_list)]


def _as_words(value: Any) -> Any:
    """Split a command as a shell does."""
    return shlex.split(value) if isinstance(value, str) else value


Words = Annotated[list[str], BeforeValidator(_as_words), Field(min_length=2)]


class Point(Section):
    """One of the places at which a study makes its comparison; what is left out is as the plan
    says.
    """

    world_size: int | None = Field(default=None, ge=1)
    """Ranks at this point. May be left out where the point names hosts: then all their slots are
    used."""
    hosts: Hosts | None = None
    """Hosts at this point, as in the plan's ``hosts``."""
    local_batch_size: int | None = Field(default=None, ge=1)
    """Samples per rank and micro-step at this point."""


ONLY_ACROSS_HOSTS = ("hosts", "host_differences", *FOR_HOSTS)
"""Fields that do not count in a plan for one machine."""


def _parts(content: dict[str, Any], section: str) -> dict[str, dict[str, Any]]:
    """The parts of a section that is not checked yet, by name, as far as they are any."""
    parts = content.get(section)
    named = parts if isinstance(parts, dict) else {}
    return {name: dict(part) for name, part in named.items() if isinstance(part, dict | Section)}


class Plan(Section):
    """One question: which of these arms trains this workload faster on these ranks?"""

    name: Name
    """Name of the comparison. The results folder is named after it."""
    workload: str = ""
    """A registered workload, a torchvision model's name, 'package.module:Class' or
    'path/to/file.py:Class'. Left out where arms are commands."""
    workload_options: dict[str, Any] = {}
    """Options of the workload."""
    local_batch_size: int = Field(default=32, ge=1)
    """Samples per rank and micro-step."""
    micro_steps: int = Field(default=1, ge=1)
    """Backward passes accumulated into one optimizer step, in every arm alike."""
    precision: Precision = "fp32"
    """``tf32``: matrix products and convolutions in TensorFloat-32, on GPUs that have it.
    ``amp-fp16`` and ``amp-bf16`` are PyTorch's automatic mixed precision; ``amp-fp16`` also scales
    the loss, as ``torch.amp.GradScaler`` does by default."""
    max_gradient_norm: float | None = Field(default=None, gt=0)
    """Clip gradients to this L2 norm over all parameters, after the exchange."""
    speed: SpeedSettings = SpeedSettings()
    """PyTorch's settings for speed, the same in every arm."""
    world_size: int = Field(ge=1, le=MAX_RANKS)
    """Number of ranks. May be left out where hosts are given: then all their slots are used."""
    hosts: Hosts | None = None
    """Where the ranks run, such as ``host1:2,host2:2``; the first ranks on the first host. Or a
    hostfile, by a path with a slash: ``./hosts``. None: on this machine."""
    nodes: Literal["first", "draw"] = "first"
    """Which of more hosts than the ranks need take them. ``first``: those that are named first.
    ``draw``: each launch draws others, so that the interval holds for hosts like these. All must
    have as many slots."""
    network_interface: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$"
    )
    """Network interface that every host and library shall use, such as eth0. None: each library
    chooses."""
    driver_address: str | None = None
    """Address at which all hosts reach the driver. None: its address on ``network_interface``, or
    towards the hosts."""
    host_differences: Literal["refuse", "report"] = "refuse"
    """Whether hosts with different versions of Python, PyTorch, Horovod or MPI are refused. Other
    processors are only reported."""
    seed: int = Field(default=1, ge=0, lt=1 << 32)
    """Seeds the weights, the batches and the order of the blocks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks compute. ``auto``: on GPUs where there are any."""
    threads: int | None = Field(default=None, ge=1)
    """OMP_NUM_THREADS of every rank. None: the host's cores divided by its ranks."""
    affinity: Literal["spread", "none"] = "spread"
    """``spread`` pins each local rank to its equal share of the cores, where there is at least one
    for each. It prefers cores next to the rank's GPU, and whole physical cores. ``none`` leaves
    placement to the kernel."""
    freed_memory: Literal["keep", "return"] = "return"
    """``return`` leaves malloc unchanged, as in a user's own run. ``keep`` makes a rank keep the
    memory that it frees, by glibc's environment variables. That narrows intervals on CPUs, but
    ordinary trainings run without it."""
    container: Words | None = None
    """Run the ranks of every arm in a container, by the command of its Python, in which this
    Ringside is installed, such as ``apptainer exec /images/train.sif python3``. It shares its
    host's network, processes, /tmp and folders. None: as ``ringside`` itself runs."""
    environment: Variables = {}
    """Set in every rank of every arm."""
    forward_environment: list[Annotated[str, StringConstraints(pattern=rf"^{VARIABLE}\*?$")]] = []
    """Variables of the driver's environment that all ranks get, too: names, or ``MYLAB_*`` for all
    that begin so. Variables that steer the libraries are always forwarded. Variables that look like
    secrets never are."""
    baseline: str
    """The reference arm. A ratio is an arm's throughput divided by the baseline's."""
    question: str | None = None
    """The backend or arm that the headline is about, or how arms' names end, such as ``tuned`` for
    ``hvd-tuned``. None: Horovod's arms; where the baseline is Horovod's, all others; where there is
    no Horovod, every candidate."""
    arms: dict[Name, Arm] = Field(min_length=1)
    """What is compared, by names of your choice. In a file, an option whose value is a list makes
    an arm of each value."""
    allow: list[str] = []
    """Where arms are commands, or have a workload, options, a commit or a Python of their own:
    differences in their work that do not withhold the verdict. Names such as ``model.parameters``
    or ``optimizer``, or ``all``."""
    left_out: dict[str, str] = {}
    """Written by ``ringside compare --available``: arms that the machine could not run, with what
    it lacks."""
    measurement: Measurement = Measurement()
    """How the arms are measured."""
    scripts: ScriptSettings = ScriptSettings()
    """How arms by command are compared, beyond ``measurement``."""
    training: TrainingSettings | None = None
    """Train every arm to the end. A block is then an epoch, and there is no control. Launch n has
    the seed ``seed`` + n. An arm of a single process trains with the global batch of the others."""
    points: dict[Name, Point] = {}
    """Makes a study: the comparison is repeated at each of these points, one after another."""
    trace: bool = False
    """After the launches, trace a few steps of every arm in one launch more, which no figure
    counts. See docs/traces.md."""
    reports: list[str] | None = Field(default=None, min_length=1)
    """Reports to write: markdown, csv, html, tensorboard, pull-request, junit, openmetrics,
    bencher, otava, mlflow, wandb, or your own by ``module:Class`` or ``path/to/file.py:Class``.
    None: the first four. comparison.json is always written."""
    link: str | None = Field(default=None, pattern=r"^https?://[^\s<>]+$")
    """URL at which the whole report will be found, for reports that point to it. None: in CI, the
    page of the job."""
    peak_tflops: float | None = Field(default=None, gt=0)
    """TFLOP/s that one GPU, or on CPUs one core, can do at most in the precision in use. Model
    FLOP/s over it are the MFU. None: as the maker's data sheet says, of GPUs that Ringside knows;
    CPUs then have no MFU."""
    scaling: Literal["weak", "strong"] = "weak"
    """What stays the same from point to point: the batch of each rank (weak), or of all ranks
    together (strong)."""

    @model_validator(mode="before")
    @classmethod
    def _has_defaults_that_follow(cls, content: Any) -> Any:
        """Defaults that follow from other keys: a study begins at its first point, trainings have
        no control, each fitted arm uses all the memory, and commands are their own workload.
        """
        if not isinstance(content, dict):
            return content
        arms, points = _parts(content, "arms"), _parts(content, "points")
        first = next(iter(points.values()), {})
        if "world_size" in first:
            content = {"world_size": first["world_size"], **content}
        if content.get("training") is not None:
            content = with_neutral(content, IN_TRAINING)
        if any(arm.get("fit") for arm in arms.values()):
            content = with_neutral(content, FITTED)
        workload = ""
        if any(arm.get("command") for arm in arms.values()):
            content, workload = with_neutral(content, BY_COMMAND), SCRIPT
        elif all(arm.get("workload") for arm in arms.values()):
            workload = arms.get(content.get("baseline", ""), {}).get("workload", "")
        is_missing = content.get("workload") in (None, "")
        return {**content, "workload": workload} if workload and is_missing else content

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Plan:
        """Refuse to compare scripts with workloads."""
        kinds = {arm.command is not None for arm in self.arms.values()}
        if len(kinds) > 1:
            raise ValueError("some arms are commands and others are not; compare them in two plans")
        if not self.workload:
            raise ValueError(
                "workload is missing: name one, such as digits, or give every arm a command"
            )
        if self.are_scripts and self.workload != SCRIPT:
            raise ValueError("arms by command bring their own work; leave workload out")
        require_meaning(self, BY_COMMAND if self.are_scripts else BY_BACKEND)
        if self.allow and not (self.are_scripts or self.has_own_work):
            raise ValueError(
                "allow is for arms by command, or with a workload, options, a commit or a Python of"
                " their own; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _has_meaning_throughout(self) -> Plan:
        """Refuse keys that exclude others, or mean nothing beside them."""
        if self.container is not None and any(arm.python for arm in self.arms.values()):
            raise ValueError(
                "container and an arm's own python exclude each other; leave one of them out"
            )
        is_fitted = any(arm.fit for arm in self.arms.values())
        has_hosts = any([self.hosts, *(point.hosts for point in self.points.values())])
        for applies, where in (
            (self.training is not None, IN_TRAINING),
            (self.batches is not None, OWN_BATCHES),
            (is_fitted, FITTED),
            (not has_hosts, WITHOUT_HOSTS),
        ):
            if applies:
                require_meaning(self, where)
        is_here = self.hosts is None and self.measurement.mode != "separate"
        if is_here and self.world_size > MAX_RANKS_HERE:
            raise ValueError(
                f"world_size {self.world_size} is more than {MAX_RANKS_HERE} ranks on one machine;"
                " name hosts, or use fewer"
            )
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> Plan:
        if self.baseline not in self.arms:
            raise ValueError(unknown_name("baseline arm", self.baseline, self.arms))
        if self.question is not None and not self.asked_arms():
            others = {name: arm for name, arm in self.arms.items() if name != self.baseline}
            candidates = dict.fromkeys([*(arm.backend for arm in others.values()), *others])
            raise ValueError(unknown_name("question", self.question, candidates))
        is_one_question = (
            self.measurement.control
            or self.training is not None
            or self.measurement.mode == "separate"
        )
        if len(self.arms) == 1 and not (is_one_question or self.are_scripts):
            raise ValueError(
                "one arm and no control leaves nothing to compare; add an arm or set control: true"
            )
        if self.scaling == "strong" and any(
            point.local_batch_size for point in list(self.points.values())[1:]
        ):
            raise ValueError(
                "scaling: strong shares out the first point's batch; let no other point name a"
                " local_batch_size"
            )
        for key, is_used, name in (
            ("control", self.measurement.control, self.control_name),
            ("floor", self.has_floor, FLOOR),
        ):
            if is_used and name in self.arms:
                raise ValueError(
                    f"arm '{name}' has the name of the {key}; rename it or set {key}: false"
                )
        return self

    @property
    def is_alone(self) -> bool:
        """Whether there is one command and nothing to compare it with: the report then shows where
        its step's time goes.
        """
        return self.are_scripts and len(self.arms) == 1 and not self.measurement.control

    @property
    def control_name(self) -> str:
        """The name of the second copy of the baseline."""
        return f"{self.baseline}-{CONTROL_SUFFIX}"

    @property
    def are_scripts(self) -> bool:
        """Whether the arms are commands of the user's."""
        return all(arm.command is not None for arm in self.arms.values())

    @property
    def has_own_work(self) -> bool:
        """Whether an arm of a backend has work of its own."""
        return any(arm.command is None and arm.has_own_work for arm in self.arms.values())

    @property
    def batches(self) -> Batches | None:
        """Where arms' batches come from, if they differ; None: all have the plan's."""
        if all(arm.fit for arm in self.arms.values()):
            return "fit"
        is_own = any(
            arm.fit or arm.local_batch_size not in (None, self.local_batch_size)
            for arm in self.arms.values()
        )
        return "own" if is_own else None

    @property
    def has_floor(self) -> bool:
        """Whether the floor runs, an arm without any library.

        Not in a micro-benchmark, nor where arms do different work.
        """
        measure = self.measurement
        is_blind = (
            measure.mode == "separate"
            or self.training is not None
            or self.speed.sync_batchnorm
            or self.has_own_work
        )
        return measure.floor and measure.local_every > 0 and not is_blind and self.batches is None

    def roles(self) -> dict[str, ArmRole]:
        """Every arm of a launch with its role: the baseline, its control, the candidates, the
        floor.
        """
        roles: dict[str, ArmRole] = {self.baseline: "baseline"}
        if self.measurement.control:
            roles[self.control_name] = "control"
        roles |= {name: "candidate" for name in self.arms if name != self.baseline}
        if self.has_floor:
            roles[FLOOR] = "floor"
        return roles

    def role(self, arm: str) -> ArmRole:
        """The role of an arm."""
        return self.roles()[arm]

    def compared_arms(self) -> dict[str, Arm]:
        """The arms that are compared, in the order of ``roles``: all but the floor."""
        return {
            name: self.arms.get(name, self.arms[self.baseline])
            for name, role in self.roles().items()
            if role != "floor"
        }

    def asked_arms(self) -> list[str]:
        """The candidates that the plan's question is about, see ``question``."""
        candidates = {name: arm for name, arm in self.arms.items() if name != self.baseline}
        if self.question is not None:
            return [
                name
                for name, arm in candidates.items()
                if self.question in (name, arm.backend) or name.endswith(f"-{self.question}")
            ]
        baseline = self.arms[self.baseline].backend
        unlike = [
            name
            for name, arm in candidates.items()
            if (arm.backend == HOROVOD) != (baseline == HOROVOD)
        ]
        return unlike or list(candidates)

    @property
    def writes_events(self) -> bool:
        """Whether TensorBoard's events are written while arms run: unless ``reports`` names
        others.
        """
        return self.reports is None or EVENTS in self.reports

    def to_yaml(self) -> str:
        """The whole plan, defaults included, as it was run."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
