"""How the arms of a plan are measured: its sections ``measurement`` and ``scripts``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from measurement.plans.settings import Section

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
