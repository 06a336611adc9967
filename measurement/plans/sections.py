"""The sections of a plan: its arms, each a backend with its options or a command, and how they are
measured.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from measurement.plans.settings import BY_BACKEND, BY_COMMAND, IN_IMAGE, Section, require_meaning

SCRIPT = "script"
"""The backend, and the workload, of an arm that is a command of the user's."""
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
"""The name of an environment variable."""


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int | float) else value


Variables = dict[
    Annotated[str, StringConstraints(pattern=f"^{VARIABLE}$")],
    Annotated[str, BeforeValidator(_as_text)],
]
"""Environment variables; YAML's numbers and booleans are written as the text a shell would have."""


def _are_words(value: str | None) -> str | None:
    shlex.split(value or "")  # raises a ValueError, which names the value
    return value


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
    iteration_ends: int | str | None = Field(default=None, union_mode="left_to_right")
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
            require_meaning(self, IN_IMAGE)
        require_meaning(self, BY_BACKEND if self.command is None else BY_COMMAND)
        return self

    @property
    def has_own_work(self) -> bool:
        """Whether it runs another workload than the plan's, or the same from a commit or under a
        Python of its own.
        """
        return bool(
            self.workload or self.workload_options or self.commit or self.python or self.directory
        )


USUAL_LAUNCHES = 8
"""Launches expected within a budget of minutes before any is measured."""
FIXED_LENGTH = ("launches", "seconds_per_launch", "steps_per_launch", "rounds")
"""Settings of ``measurement`` that replace ``minutes``."""


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
    """How long the ranks of an arm may take to start, connect and build their model. A command that
    is slow to start alone gets more beside others."""
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
