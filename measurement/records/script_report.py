"""What the agent in a user's script reports of one rank: its settings and its first steps."""

from __future__ import annotations

from typing import Any

from measurement.records.record_types import Written

Sketch = list[float]
"""float64 [up to 16]: a count sketch, whose norm is about that of the tensor. Linear, so sketches
can be subtracted."""


class ComparedStep(Written):
    """One of a script's first steps on one rank."""

    loss: float | None = None
    """Mean over the step's backward passes; None: no scalar was seen."""
    backward_passes: int = 1
    learning_rates: list[float] = []
    """By parameter group of all optimizers, when the step was taken."""
    samples: int | None = None
    """How many this rank used; None: they could not be counted."""
    batch: str | None = None
    """Digest of the tensors that the loader yielded for it."""
    gradients: dict[str, Sketch] = {}
    """After the exchange, when the optimizer steps; by parameter, in the first step only."""
    parameters: dict[str, Sketch] = {}
    """After the step."""


class LineUse(Written):
    """One line of the functions that lead to ``step()``, in a compared step."""

    place: str
    """``train.py:48``."""
    text: str
    """The line itself."""
    seconds: float
    """Its time in a step, with all that it calls: median of some steps."""
    exchange_s: float = 0.0
    """Seconds of these that it waits for exchange."""
    phases: list[str] = []
    """Phases of the step that it contains: ``data_wait``, ``forward``, ``backward``,
    ``optimizer``."""
    collectives: dict[str, float] = {}
    """How many it calls in a step, besides those of gradients: ``all_reduce of 4 B``."""


class ScriptReport(Written):
    """One rank of a script."""

    rank: int
    configuration: dict[str, Any] = {}
    """Settings by dotted name, such as ``optimizer.0.lr``; plain JSON values. Names:
    docs/scripts.md."""
    defaults: dict[str, Any] = {}
    """The library's defaults of those settings that the script has changed."""
    started: dict[str, Sketch] = {}
    """Parameters and buffers before the first step, by name without wrappers' prefixes; buffers
    under ``buffer:NAME``."""
    sizes: dict[str, int] = {}
    """Number of elements, by the names of ``started``."""
    steps: list[ComparedStep] = []
    perturbed: bool = False
    """Whether parameters were changed in their last place after the first step, as the control's
    are: the others then show how far rounding grows."""
    buffers: dict[str, Sketch] = {}
    """Buffers after the compared steps."""
    sharded: bool = False
    """Whether each rank has a share of the parameters, so that ranks are not compared with each
    other."""
    without_optimizer: list[str] = []
    """Parameters that have a gradient and no optimizer."""
    samples_from: str | None = None
    """Where samples come from: ``loader``, ``samples_per_step``; None: they could not be counted,
    and iterations are."""
    written_files: list[str] = []
    """Some of the files outside the folder of its start that it wrote."""
    lines: list[LineUse] = []
    """Lines that take time in a step, or call collectives."""
    trackers: list[str] = []
    """Modules of experiment trackers that it imported, and that variables keep offline."""
    ports: list[int] = []
    """Ports that its process asked for, to meet other ranks."""
    store_files: list[str] = []
    """Files at which it meets other ranks (``torch.distributed.FileStore``)."""
    notes: list[str] = []
    """What the agent could not read, one sentence each."""
