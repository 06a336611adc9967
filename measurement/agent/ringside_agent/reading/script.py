"""What is known of a script while it runs: its models, optimizers, loader and device."""

from __future__ import annotations

from typing import Any, Callable, Iterator

from ..recorder import Recorder
from ..reporting import message_of, uncompiled
from ..settings import Settings
from . import batches, models


class Script:
    """What the first steps have shown."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.settings, self.recorder = settings, recorder
        self.device: Any = None
        self.world_size = 1
        self.roots: list[Any] = []
        """Models, the one with most of the optimizers' parameters first."""
        self.is_sharded = False
        self.accumulation = 1
        self.notes: list[str] = []
        self.autocast: dict[str, Any] = {}
        self.rates: list[float] = []
        """Learning rate of the first group, by step."""
        self.keeps_gradients: bool | None = None
        """Whether a step's gradients are still there when the next backward pass begins; None until
        one does."""
        self.loaded = 0
        """Parameters for which optimizers had a state that is not zero before their first steps."""
        self.stepped: list[Any] = []
        """References to the optimizers, in the order in which they first stepped."""
        self.yielded = batches.BatchLog()
        self.is_countable = True
        """Whether it is known which of the batches that a loader yields a step uses."""

    @property
    def optimizers(self) -> list[Any]:
        """The living optimizers that have stepped, in the order of their first steps."""
        living = (reference() for reference in self.stepped)
        return [optimizer for optimizer in living if optimizer is not None]

    def record_safely(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call a reader.

        What cannot be read is left out, with a note, and the script is still measured.
        """
        try:
            return uncompiled(act)(*arguments)
        except Exception as error:  # noqa: BLE001 - a script's own objects may raise anything
            self.unread(error, act.__name__.replace("_", " ").strip())
            return None

    def unread(self, error: BaseException, name: str = "steps") -> None:
        """Add a note of what could not be read, once."""
        note = f"the agent could not read all of the first steps ({name}): {message_of(error)}"
        self.notes += [] if note in self.notes else [note]

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """All parameters of the optimizers, by name; one that no model has, by its place in its
        optimizer.
        """
        names = {}
        for prefix, root in models.prefixes(self.roots):
            names.update(
                {
                    id(parameter): prefix + name
                    for name, parameter in models.named(root, "_parameters")
                }
            )
        for index, optimizer in enumerate(self.optimizers):
            for number, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    yield names.get(id(parameter), f"optimizer.{index}.{number}.{place}"), parameter

    @property
    def samples_from(self) -> str | None:
        """Where samples come from; None: iterations are counted."""
        if self.settings.samples_per_step is not None:
            return "samples_per_step"
        return "loader" if self.is_countable and self.recorder.samples() else None

    def samples_of(self, counted: int) -> int:
        """Samples of a step whose batches contain ``counted``."""
        if self.settings.samples_per_step is not None:
            return self.settings.samples_per_step
        return counted if self.samples_from else 1

    def model_report(self) -> dict[str, Any]:
        """``RankReport.model``."""
        trained = [parameter for _, parameter in self.named_parameters() if parameter.requires_grad]
        return {
            "class": type(models.unwrapped(self.roots[0])).__name__ if self.roots else None,
            "parameters": sum(parameter.numel() for parameter in trained),
            "gradient_bytes": sum(
                parameter.numel() * parameter.element_size() for parameter in trained
            ),
        }
