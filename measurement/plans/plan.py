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
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from measurement.errors import quoted, unknown_name
from measurement.plans.settings import (
    ArmRole,
    Batches,
    Precision,
    Section,
    SpeedSettings,
    TrainingSettings,
)

ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
MAX_RANKS, MAX_RANKS_HERE = 1 << 16, 1 << 10
"""Ranks that an arm may have in all, and on the driver's machine."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HOROVOD = "horovod"
"""The backend that plans usually ask about."""
CONTROL_SUFFIX = "control"
EVENTS = "tensorboard"
"""The report that is written while arms run."""
FLOOR = "floor"
"""The name of the no-op backend's arm, which exchanges nothing."""
USUAL_LAUNCHES = 8
"""Launches expected within a budget of minutes before any is measured."""
FIXED_LENGTH = ("launches", "seconds_per_launch", "steps_per_launch", "rounds")
"""Settings of ``measurement`` that replace ``minutes``."""
BY_COMMAND, BY_BACKEND, IN_TRAINING = (
    "for arms by command",
    "for arms of a backend",
    "with training, whose blocks are epochs",
)
OWN_BATCHES, FITTED = (
    "where arms have batches of their own",
    "with fit: memory, which leaves none for an arm that waits",
)
IN_IMAGE = "in an image, which has its own packages"
MEANINGLESS = {
    BY_COMMAND: (
        "fit transport launcher options workload_options container training points trace nodes"
    ),
    BY_BACKEND: "samples_per_step iteration_ends untimed impose packages image scripts",
    IN_IMAGE: "python packages",
    IN_TRAINING: "",
    OWN_BATCHES: "training points",
    FITTED: "",
}
"""Keys that mean nothing in some plans and arms: only their default is accepted there."""
NEUTRAL: dict[str, dict[str, Any]] = {
    BY_COMMAND: {"floor": False, "local_every": 0},
    BY_BACKEND: {},
    IN_TRAINING: {"control": False, "local_every": 0, "minutes": None},
    OWN_BATCHES: {},
    FITTED: {"mode": "sequential"},
}
"""Keys of ``measurement`` that mean nothing there, with their values then."""
ALTERNATIVES = {
    "container": "name it before python in each command",
    "nodes": "the launchers' flags choose the hosts",
}
"""What to do instead of some of them."""


def _require_meaning(section: Any, where: str) -> None:
    """Refuse keys that mean nothing there, in a plan or an arm."""
    fields = type(section).model_fields
    keys = [name for name in MEANINGLESS[where].split() if name in fields]
    meaningless = [
        name
        for name in keys
        if getattr(section, name) != fields[name].get_default(call_default_factory=True)
    ]
    if "measurement" in fields:
        meaningless += [
            f"measurement.{name}"
            for name, only in NEUTRAL[where].items()
            if getattr(section.measurement, name) != only
        ]
    if meaningless:
        raise ValueError(
            f"{meaningless[0]} means nothing {where};"
            f" {ALTERNATIVES.get(meaningless[0], 'leave it out')}"
        )


def _with_neutral(content: dict[str, Any], where: str) -> dict[str, Any]:
    """A plan's content, with the ``NEUTRAL`` values in ``measurement`` as defaults."""
    measurement = content.get("measurement", {})
    return (
        {**content, "measurement": {**NEUTRAL[where], **measurement}}
        if isinstance(measurement, dict)
        else content
    )


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int | float) else value


def _as_list(value: object) -> object:
    """Join several lists of hosts."""
    return (
        ",".join(value)
        if isinstance(value, list) and all(isinstance(part, str) for part in value)
        else value
    )


def _are_variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not VARIABLE.fullmatch(name) or "\0" in text:
            raise ValueError(
                f"{quoted(name)} is not an environment variable: use letters, digits and _, and no"
                " NUL in its value"
            )
    return value


def _is_forwarded(value: str) -> str:
    if not VARIABLE.fullmatch(value.removesuffix("*")):
        raise ValueError(
            f"{quoted(value)} is not the name of an environment variable: use letters, digits and"
            " _, and a final * for all that begin so"
        )
    return value


Hosts = Annotated[str, BeforeValidator(_as_list)]
Variables = Annotated[
    dict[str, Annotated[str, BeforeValidator(_as_text)]], AfterValidator(_are_variables)
]
"""Environment variables; YAML's numbers and booleans are written as the text a shell would have."""


def _are_words(value: str | None) -> str | None:
    try:
        shlex.split(value or "")
    except ValueError as error:
        raise ValueError(f"{quoted(value)}: {error}; quote its words as in a shell") from error
    return value


SCRIPT = "script"
"""The backend, and the workload, of an arm that is a command of the user's."""


class Arm(Section):
    """One thing compared: a backend with its transport, launcher and options; or a command of yours
    that starts a script.
    """

    backend: str = ""
    """The library: ddp, horovod, fsdp2, replicate, naive, dp, single, or your own by
    ``module:Class`` or ``path/to/file.py:Class``. Left out where ``command`` is given."""
    transport: str | None = None
    """What carries the bytes: gloo, nccl or mpi. None: the backend's own default on this device."""
    launcher: str | None = None
    """Which command starts the ranks. None: the backend's customary one (torchrun, horovodrun,
    ...)."""
    options: dict[str, Any] = {}
    """The backend's options, named as the library names them."""
    environment: Variables = {}
    """Set in every rank of this arm alone; shown in the report as asked for."""
    workload: str | None = None
    """A workload of this arm's own. None: the plan's."""
    workload_options: dict[str, Any] = {}
    """Options of this arm's workload, over the plan's."""
    local_batch_size: int | None = Field(default=None, ge=1)
    """Samples per rank and micro-step of this arm alone. None: the plan's. The verdict then says
    "at each arm's own batch"."""
    fit: Literal["memory"] | None = None
    """``memory``: find the largest ``local_batch_size`` that this arm's memory holds, before
    anything is timed, from the plan's on. Where all arms say so, the verdict is one "at equal
    memory"."""
    command: str | None = None
    """Your own script, by the command that starts it, such as ``horovodrun -np 2 -H localhost:2
    python train.py``. It runs unmodified."""
    directory: str | None = None
    """Where the command is started, or the ranks of a backend, which find ``file.py:Class`` there.
    None: where ``ringside`` is."""
    python: str | None = None
    """A Python of another environment, such as /envs/old/bin/python. Its folder comes first on
    PATH. Without ``command``, ranks are run by it, and this Ringside must be installed there."""
    packages: Annotated[str | None, AfterValidator(_are_words)] = None
    """Requirements that replace packages of the command's environment, such as ``torch==2.9.1
    numpy<2``. uv makes an environment with them, and an equal copy for each other arm. None: the
    unchanged environment, or such a copy."""
    image: Annotated[str | None, AfterValidator(_are_words)] = None
    """An image in which the command runs, such as nvcr.io/nvidia/pytorch:25.11-py3. Before it may
    stand flags of its program: ``-v /data:/data IMAGE``. The first of podman, docker, apptainer,
    singularity and enroot that has it runs it."""
    commit: str | None = None
    """A git revision, checked out into a worktree of its own, in which the command or the ranks are
    started."""
    samples_per_step: int | None = Field(default=None, ge=1)
    """Samples that each rank of a script uses in an optimizer step. None: counted in the first
    tensor that its loader yields."""
    iteration_ends: str | int | None = None
    """Which optimizer's class ends an iteration of a script that has several, or how many steps do.
    None: an iteration ends where the first optimizer's step comes again."""
    untimed: Literal["nothing", "evaluation"] = "nothing"
    """What between two steps of a script is not timed. ``evaluation``: while its model is in
    evaluation mode."""
    impose: dict[str, Any] = {}
    """Settings that replace the script's own, by the names of the table of differences, such as
    ``loader.workers: 4``. They are settings of speed: threads, loaders, buckets, kernels,
    environment variables."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_backend_or_a_command(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        backend, command = content.get("backend"), content.get("command")
        if command is not None and backend in (None, "", SCRIPT):
            return {**content, "backend": SCRIPT}
        if command is not None:
            raise ValueError(
                f"backend '{backend}' and a command are both given; leave one of them out"
            )
        if not backend:
            raise ValueError("give a backend, such as ddp, or the command that starts your script")
        return content

    @model_validator(mode="after")
    def _has_no_meaningless_keys(self) -> Arm:
        key = next((name for name in ("workload", "local_batch_size") if getattr(self, name)), None)
        if self.command is not None and key:
            raise ValueError(f"an arm by command brings its own work; leave {key} out")
        if self.fit and self.local_batch_size:
            raise ValueError(
                "fit finds the local_batch_size of an arm, and a number is given too; leave one of"
                " them out"
            )
        if self.image:
            _require_meaning(self, IN_IMAGE)
        _require_meaning(self, BY_BACKEND if self.command is None else BY_COMMAND)
        return self

    @property
    def has_own_work(self) -> bool:
        """Whether it runs another workload than the plan's, or the same from a commit or under a
        Python of its own.
        """
        return bool(
            self.workload or self.workload_options or self.commit or self.python or self.directory
        )


class ScriptSettings(Section):
    """How arms by command are compared with each other."""

    seed_flag: str | None = None
    """Flag by which the scripts take a seed, such as ``--seed``. Each launch then has a seed of its
    own, the same in all arms."""
    same_start: bool = False
    """Load the baseline's first parameters and buffers into the other arms, by name."""
    same_data: bool = False
    """Say where the first batches differ. Neither script is changed."""
    cpu: bool = False
    """Give the CPU to whatever asks torch for CUDA, to check scripts for GPUs where there are none.
    There is no verdict on speed. A host is said to have as many GPUs as CUDA_VISIBLE_DEVICES names;
    otherwise as many as a launcher starts ranks there, or 2."""
    loss_margin: float = Field(default=0.02, gt=0, lt=1)
    """A loss that is higher by less than this share counts as no worse."""
    trackers: Literal["offline", "on"] = "offline"
    """``offline``: variables tell W&B, MLflow, Comet and Neptune to upload nothing. ``on``:
    trackers work as usual."""
    keep_files: bool = False
    """Keep the folder in which each start worked, with what it wrote, beside the logs of its arm
    and launch."""


def _as_words(value: Any) -> Any:
    """Split a command as a shell does."""
    return shlex.split(value) if isinstance(value, str) else value


Words = Annotated[list[str], BeforeValidator(_as_words), Field(min_length=2)]


class Measurement(Section):
    """How the arms are measured. The defaults are what ``benchmarks/calibration.py`` checked."""

    mode: Literal["interleaved", "sequential", "separate"] = "interleaved"
    """``interleaved``: all arms are up at once and take turns. ``sequential``: one at a time, the
    launch is the unit. ``separate``: people started the runs themselves, each by its own command
    (``python -m runners.ddp``); no driver runs such a plan."""
    minutes: float | None = Field(default=5.0, gt=0)
    """Minutes to spend, starts and checks included. Three launches show what a launch costs and how
    much it varies. That sets the rounds of the later ones. At least three launches are made. In a
    study, each point has as many minutes. Not in trainings. Where ``launches``,
    ``seconds_per_launch``, ``steps_per_launch`` or ``rounds`` is given, that says how long."""
    launches: int = Field(default=5, ge=1)
    """How often every arm is restarted; replaces ``minutes``. The interval counts launches; with
    three, the variance is poorly estimated."""
    seconds_per_launch: float = Field(default=45.0, gt=0)
    """Seconds of blocks in each launch, all arms together. Rounds are never cut, so a launch may
    run over by one."""
    steps_per_launch: int | None = Field(default=None, ge=1)
    """Timed steps of each arm in each launch. Replaces ``seconds_per_launch``."""
    rounds: int | None = Field(default=None, ge=1)
    """Rounds per launch. In a round each arm has one block. Replaces ``seconds_per_launch``."""
    block_s: float = Field(default=0.15, gt=0)
    """Wished length of a block in seconds. It sets the steps per block, which are the same for all
    arms. Many short blocks give narrower intervals than few long ones."""
    block_steps: int | None = Field(default=None, ge=1)
    """Timed steps per block; replaces ``block_s``."""
    warmup_steps: int = Field(default=2, ge=0)
    """Untimed steps at the start of each block."""
    local_every: int = Field(default=4, ge=0)
    """Every this many rounds, each arm also runs a block without gradient exchange. 0: never; the
    report then cannot say why."""
    control: bool = True
    """Run a second copy of the baseline (an A/A control). It must turn out equal."""
    floor: bool = True
    """Run an arm with a no-op backend (the floor). It shows what computing itself costs."""
    rehearsal: Literal["once", "always", "never"] = "once"
    """Before the first launch, start every arm, run a few samples and take the gate; a command
    takes its first steps, alone. ``once``: unless that was passed before with the same plan,
    versions, machines and sources."""
    noise_threshold: float = Field(default=0.01, gt=0, lt=1)
    """Differences smaller than this share do not matter to you, nor do differences in accuracy by
    less than so many points."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the intervals, for all candidates together."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Add launches until no verdict is 'undecided', but start none after this many minutes."""
    start_timeout_s: float = Field(default=180.0, gt=0)
    """How long the ranks of an arm may take to start, connect and build their model."""
    block_timeout_s: float = Field(default=120.0, gt=0)
    """How long one block may take before the arm counts as hung. The parity gate may take three
    times as long, an epoch with its evaluation 30 times."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_budget_or_a_length(cls, content: Any) -> Any:
        """A length that is null counts as not given."""
        if not isinstance(content, dict):
            return content
        content = {
            name: value
            for name, value in content.items()
            if value is not None or name not in FIXED_LENGTH
        }
        fixed = next((name for name in FIXED_LENGTH if name in content), None)
        if fixed and content.get("minutes") is not None:
            raise ValueError(
                f"minutes and {fixed} are both given, and minutes sets the length of launches;"
                " leave one of them out"
            )
        return {**content, "minutes": None} if fixed else content

    @model_serializer(mode="wrap")
    def _without_chosen_lengths(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the lengths that ``minutes`` chooses: their defaults would look as if they were
        in force.
        """
        return {
            name: value
            for name, value in write(self).items()
            if self.minutes is None or name not in FIXED_LENGTH
        }

    @property
    def until_decided(self) -> bool:
        """Whether launches are added until no verdict is undecided."""
        return self.max_minutes is not None

    @property
    def expected_launches(self) -> int:
        """Launches to expect before any is measured."""
        return self.launches if self.minutes is None else USUAL_LAUNCHES

    @property
    def expected_launch_s(self) -> float:
        """Seconds of blocks to expect in a launch before any is measured."""
        return (
            self.seconds_per_launch
            if self.minutes is None
            else 60 * self.minutes / USUAL_LAUNCHES / 2
        )


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


FOR_HOSTS = ("network_interface", "driver_address")
"""Fields that a plan for one machine may not have."""
ONLY_ACROSS_HOSTS = ("hosts", "nodes", "host_differences", *FOR_HOSTS)
"""Fields that do not count in a plan for one machine."""


class Plan(Section):
    """One question: which of these arms trains this workload faster on these ranks?"""

    name: str
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
    forward_environment: list[Annotated[str, AfterValidator(_is_forwarded)]] = []
    """Variables of the driver's environment that all ranks get, too: names, or ``MYLAB_*`` for all
    that begin so. Variables that steer the libraries are always forwarded. Variables that look like
    secrets never are."""
    baseline: str
    """The reference arm. A ratio is an arm's throughput divided by the baseline's."""
    question: str | None = None
    """The backend or arm that the headline is about, or how arms' names end, such as ``tuned`` for
    ``hvd-tuned``. None: Horovod's arms; where the baseline is Horovod's, all others; where there is
    no Horovod, every candidate."""
    arms: dict[str, Arm] = Field(min_length=1)
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
    points: dict[str, Point] = {}
    """Makes a study: the comparison is repeated at each of these points, one after another."""
    trace: bool = False
    """After the launches, trace a few steps of every arm in one launch more, which no figure
    counts. See docs/traces.md."""
    reports: list[str] | None = Field(default=None, min_length=1)
    """Reports to write: markdown, csv, html, tensorboard, pull-request, junit, openmetrics,
    bencher, otava, mlflow, wandb, or your own by ``module:Class`` or ``path/to/file.py:Class``.
    None: the first five. comparison.json is always written."""
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
    def _begins_at_the_first_point(cls, content: Any) -> Any:
        """The world size of a study defaults to that of its first point."""
        points = content.get("points") if isinstance(content, dict) else None
        first = next(iter(points.values()), None) if isinstance(points, dict) else None
        if isinstance(first, dict) and "world_size" in first and "world_size" not in content:
            return {**content, "world_size": first["world_size"]}
        return content

    @model_validator(mode="before")
    @classmethod
    def _training_has_no_control(cls, content: Any) -> Any:
        """The defaults of ``measurement`` are those of blocks."""
        if not isinstance(content, dict) or content.get("training") is None:
            return content
        return _with_neutral(content, IN_TRAINING)

    @model_validator(mode="before")
    @classmethod
    def _fitted_arms_are_up_one_at_a_time(cls, content: Any) -> Any:
        """Each uses all the memory."""
        arms = content.get("arms") if isinstance(content, dict) else None
        is_fitted = isinstance(arms, dict) and any(
            isinstance(arm, dict) and arm.get("fit") for arm in arms.values()
        )
        return _with_neutral(content, FITTED) if is_fitted else content

    @model_validator(mode="before")
    @classmethod
    def _scripts_are_their_own_workload(cls, content: Any) -> Any:
        """Arms by command have no floor and no steps without exchange."""
        arms = content.get("arms") if isinstance(content, dict) else None
        if not isinstance(arms, dict) or not any(
            isinstance(arm, dict) and arm.get("command") for arm in arms.values()
        ):
            return content
        return {**_with_neutral(content, BY_COMMAND), "workload": content.get("workload") or SCRIPT}

    @model_validator(mode="before")
    @classmethod
    def _has_the_baselines_workload(cls, content: Any) -> Any:
        """The plan's workload defaults to the baseline's, where every arm names one."""
        arms = content.get("arms") if isinstance(content, dict) else None
        if not isinstance(arms, dict) or content.get("workload"):
            return content
        workloads = {
            name: arm.get("workload") if isinstance(arm, dict) else getattr(arm, "workload", None)
            for name, arm in arms.items()
        }
        if not workloads or not all(workloads.values()):
            return content
        return {**content, "workload": workloads.get(content.get("baseline"), "")}

    @model_validator(mode="after")
    def _has_one_python(self) -> Plan:
        if self.container is not None and any(arm.python for arm in self.arms.values()):
            raise ValueError(
                "container and an arm's own python exclude each other; leave one of them out"
            )
        return self

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
        _require_meaning(self, BY_COMMAND if self.are_scripts else BY_BACKEND)
        if self.allow and not (self.are_scripts or self.has_own_work):
            raise ValueError(
                "allow is for arms by command, or with a workload, options, a commit or a Python of"
                " their own; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _training_fits(self) -> Plan:
        if self.training is None:
            return self
        _require_meaning(self, IN_TRAINING)
        if self.measurement.until_decided:
            raise ValueError(
                "max_minutes is for throughput, not for training; set measurement.launches, the"
                " number of seeds"
            )
        return self

    @model_validator(mode="after")
    def _fits_own_batches(self) -> Plan:
        if self.batches:
            _require_meaning(self, OWN_BATCHES)
        if any(arm.fit for arm in self.arms.values()):
            _require_meaning(self, FITTED)
        return self

    @model_validator(mode="after")
    def _fits_on_one_machine(self) -> Plan:
        if (
            self.hosts is None
            and self.measurement.mode != "separate"
            and self.world_size > MAX_RANKS_HERE
        ):
            raise ValueError(
                f"world_size {self.world_size} is more than {MAX_RANKS_HERE} ranks on one machine;"
                " name hosts, or use fewer"
            )
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> Plan:
        for name in [self.name, *self.arms, *self.points]:
            if not ARM_NAME.fullmatch(name):
                raise ValueError(
                    f"name {quoted(name)} may hold only letters, digits and . _ + -, at most 100 of"
                    " them (it becomes a folder)"
                )
        if self.baseline not in self.arms:
            raise ValueError(unknown_name("baseline arm", self.baseline, self.arms))
        if self.question is not None and not self.asked_arms():
            others = [arm.backend for name, arm in self.arms.items() if name != self.baseline]
            candidates = dict.fromkeys(
                [*others, *(name for name in self.arms if name != self.baseline)]
            )
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
        somewhere = [self.hosts, *(point.hosts for point in self.points.values())]
        for field in FOR_HOSTS:
            if not any(somewhere) and getattr(self, field) is not None:
                raise ValueError(
                    f"{field} is for several machines; name them under hosts, such as"
                    " host1:2,host2:2"
                )
        if self.nodes == "draw" and not any(somewhere):
            raise ValueError("nodes: draw is for plans that name several hosts")
        if self.scaling == "strong" and any(
            point.local_batch_size for point in list(self.points.values())[1:]
        ):
            raise ValueError(
                "scaling: strong shares out the first point's batch; let no other point name a"
                " local_batch_size"
            )
        return self

    @model_validator(mode="after")
    def _arms_have_names_of_their_own(self) -> Plan:
        if self.measurement.control and self.control_name in self.arms:
            raise ValueError(
                f"arm '{self.control_name}' has the name of the control; rename it or set control:"
                " false"
            )
        if self.has_floor and FLOOR in self.arms:
            raise ValueError(
                f"arm '{FLOOR}' has the name of the arm without any library; rename it or set"
                " floor: false"
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
        control: dict[str, ArmRole] = (
            {self.control_name: "control"} if self.measurement.control else {}
        )
        others: dict[str, ArmRole] = {
            name: "candidate" for name in self.arms if name != self.baseline
        }
        floor: dict[str, ArmRole] = {FLOOR: "floor"} if self.has_floor else {}
        return {self.baseline: "baseline", **control, **others, **floor}

    def role(self, arm: str) -> ArmRole:
        """The role of an arm."""
        return self.roles()[arm]

    def compared_arms(self) -> dict[str, Arm]:
        """The arms that are compared, in the order of ``roles``: all but the floor."""
        compared = [name for name, role in self.roles().items() if role != "floor"]
        return {name: self.arms.get(name, self.arms[self.baseline]) for name in compared}

    def asked_arms(self) -> list[str]:
        """The candidates that the plan's question is about, see ``question``."""
        candidates = {
            name: self.arms[name] for name, role in self.roles().items() if role == "candidate"
        }
        if self.question is not None:
            ending = f"-{self.question}"
            return [
                name
                for name, arm in candidates.items()
                if self.question in (name, arm.backend) or name.endswith(ending)
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
