"""A trace: the spans of a few untimed steps of every rank, on one clock.

Viewers' files are beside it.

``traces/traces.json`` holds the spans that reports draw and count; ``traces/arm-NAME.json.gz``
every event, for Perfetto.
"""

from __future__ import annotations

from typing import Literal

from measurement.records.record_types import Written

Row = Literal["step", "phase", "exchange", "library", "gradient"]
"""A whole step; a phase of the training thread; a collective; the library's own work; in earlier
traces, a parameter's finished gradient."""


class Span(Written):
    """A stretch of time on one rank."""

    row: Row
    name: str
    """A step's number, one of ``PHASES``, or what the library calls it."""
    rank: int = 0
    begin_ns: int
    """Since the epoch, by the rank's host; once it is stored, by the driver. A collective begins
    when its rank reaches it."""
    length_ns: int
    num_bytes: int | None = None
    """Bytes of a collective's tensors on this rank; None: not known."""
    entered_ns: int | None = None
    """When a collective began to move data, once all ranks had entered; None: not known."""
    tensors: list[str] = []
    """What was fused into a collective, where that is known."""

    @property
    def end_ns(self) -> int:
        """Where it ends, on the clock of ``begin_ns``."""
        return self.begin_ns + self.length_ns


class NcclCollective(Written):
    """How NCCL carries out a collective of one size."""

    operation: str | None = None
    """Such as ``AllReduce``; None where this release of NCCL does not say."""
    num_bytes: int
    algorithm: str
    """Such as ``RING``."""
    protocol: str
    """Such as ``SIMPLE``."""


class NcclChoices(Written):
    """What NCCL chose by itself, as its log says."""

    version: str | None = None
    network: str | None = None
    """Such as ``IB`` or ``Socket``."""
    channels: int | None = None
    """How many it has for collectives."""
    connections: list[str] = []
    """The kinds between ranks, such as ``P2P/CUMEM`` or ``NET/IB/GDRDMA``."""
    collectives: list[NcclCollective] = []
    """The largest, in the order of their sizes; those before the traced steps are among them."""


class ArmTrace(Written):
    """The trace of an arm."""

    arm: str
    file: str | None = None
    """The viewers' file, in the folder of the traces; None: there is none."""
    spans: list[Span] = []
    nccl: NcclChoices | None = None
    """None: it does not exchange over NCCL."""
    error: str | None = None
    """Why there is none."""


class Traces(Written):
    """The traces of a comparison."""

    schema_version: int = 1
    arms: list[ArmTrace]
