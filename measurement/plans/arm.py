"""One arm of a plan: a backend with its options, or a command."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

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
