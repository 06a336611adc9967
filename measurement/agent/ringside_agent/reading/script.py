"""What is known of a script while it runs: its optimizers, loader and device, and its models, found
among all objects, with their parameters and buffers by names that wrappers do not change.

All scripts can have one start (``same_start``): the baseline saves its parameters and buffers
before the first forward pass, and the others load them.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from typing import Any, Callable, Iterable, Iterator

from ..place import World, find_world
from ..recorder import Recorder
from ..reporting import message_of, uncompiled
from ..settings import Settings
from . import batches

WRAPPED = (
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
    "_original_module",
)
"""Names that torch.compile, FSDP and others give to what they wrap."""
SHARDED = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
BUFFER = "buffer:"
"""How names of buffers begin in a ``ScriptReport``."""
SCHEDULES = frozenset(("LRScheduler", "_LRScheduler", "ReduceLROnPlateau"))
START_TIMEOUT_S = 600.0
"""How long to wait for the baseline's first parameters, which its rank 0 saves and other arms load
(``same_start``)."""


class Script:
    """What the first steps have shown."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.settings, self.recorder = settings, recorder
        self.device: Any = None
        self.place = World()
        """The rank's, once it is connected to the driver."""
        self.roots: list[Any] = []
        """Models, the one with most of the optimizers' parameters first."""
        self.is_sharded = False
        self.accumulation = 1
        self.notes: list[str] = []
        self.autocast_dtype: str | None = None
        """Of the last autocast in the first steps; None: there was none."""
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

    def find_models(self, trained: Iterable[Any], *, called: Any) -> None:
        """Find the models, that with most of these parameters first; see ``trained_first``."""
        self.roots = trained_first(find_roots(), set(map(id, trained)), called=called)
        self.is_sharded = is_sharded(self.roots)

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
        self.note(f"the agent could not read all of the first steps ({name}): {message_of(error)}")

    def note(self, sentence: str) -> None:
        """Add a note to the script's report, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """All parameters of the optimizers, by name; one that no model has, by its place in its
        optimizer.
        """
        names = {
            id(parameter): prefix + name
            for prefix, root in prefixes(self.roots)
            for name, parameter in named_tensors(root, "_parameters")
        }
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
            "class": type(unwrapped(self.roots[0])).__name__ if self.roots else None,
            "parameters": sum(parameter.numel() for parameter in trained),
            "gradient_bytes": sum(
                parameter.numel() * parameter.element_size() for parameter in trained
            ),
        }


def share_start(script: Script) -> None:
    """Save or load the start, where the driver asked for it."""
    settings = script.settings
    if not settings.state or not settings.state_file:
        return
    if script.is_sharded:
        script.note(
            "each rank has a share of the parameters, so the baseline's start was not loaded"
        )
    elif settings.state == "load":
        load_state(settings.state_file, script)
    elif find_world(settings).rank == 0:
        state = state_of(script.roots)
        new = f"{settings.state_file}.{os.getpid()}"
        sys.modules["torch"].save(
            {name: tensor.detach().cpu().clone() for name, tensor in state.items()}, new
        )
        os.replace(new, settings.state_file)


def load_state(path: str, script: Script) -> None:
    """Copy the baseline's parameters and buffers into this script's models, by name.

    Raises:
        RuntimeError: the baseline has written none in time.
    """
    torch: Any = sys.modules["torch"]
    deadline = time.monotonic() + START_TIMEOUT_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the baseline has not written its first parameters within {START_TIMEOUT_S:g} s"
            )
        time.sleep(0.1)
    saved: dict[str, Any] = torch.load(path, map_location="cpu")
    state = state_of(script.roots)
    matching = [
        name
        for name, tensor in state.items()
        if name in saved and saved[name].shape == tensor.shape
    ]
    with torch.no_grad():
        for name in matching:
            state[name].copy_(saved[name])
    missing = sorted({*state, *saved}.difference(matching))
    if missing:
        script.note(
            f"{len(missing)} tensors were not loaded from the baseline, since the other has none of"
            f" this name and shape, such as {missing[0]}"
        )


def objects_of(is_wanted: Callable[[type], bool]) -> list[Any]:
    """All objects whose classes are wanted.

    No other thread runs meanwhile: torch 2.0 warns of each tensor that a library's thread frees
    during the search.
    """
    interval = sys.getswitchinterval()
    is_wanted_class: Callable[[Any], bool] = functools.lru_cache(maxsize=None)(is_wanted)
    sys.setswitchinterval(1.0)
    try:
        return [instance for instance in gc.get_objects() if is_wanted_class(type(instance))]
    finally:
        sys.setswitchinterval(interval)


def is_schedule(kind: type) -> bool:
    """Whether a class is a learning-rate schedule's."""
    return not SCHEDULES.isdisjoint(base.__name__ for base in kind.__mro__)


def find_roots() -> list[Any]:
    """Modules with parameters that are in no other module."""
    torch: Any = sys.modules["torch"]
    modules = [
        module
        for module in objects_of(lambda kind: issubclass(kind, torch.nn.Module))
        if "_modules" in vars(module)
    ]
    inside = {
        id(child) for module in modules for child in module._modules.values() if child is not None
    }
    return [
        module
        for module in modules
        if id(module) not in inside and next(module.parameters(), None) is not None
    ]


def trained_first(roots: Iterable[Any], trained: set[int], *, called: Any = None) -> list[Any]:
    """Roots by how many of the optimizers' parameters they have, most first; of as many, the one
    that was called.

    A root is left out whose parameters are all in earlier ones: they share its layers.
    """
    seen: set[int] = set()
    distinct = []
    for root in sorted(
        roots,
        key=lambda root: (
            -sum(id(parameter) in trained for parameter in root.parameters()),
            root is not called,
        ),
    ):
        parameter_ids = {id(parameter) for parameter in root.parameters()}
        if not parameter_ids <= seen:
            distinct.append(root)
        seen |= parameter_ids
    return distinct


def is_sharded(roots: Iterable[Any]) -> bool:
    """Whether each rank has only a share of the parameters."""
    for module in (module for root in roots for module in root.modules()):
        if any(base.__name__ in SHARDED for base in type(module).__mro__):
            return True
        if any(type(parameter).__name__ == "DTensor" for parameter in module._parameters.values()):
            return True
    return False


def unwrapped(root: Any) -> Any:
    """The user's own module inside wrappers."""
    while True:
        inner = [
            child
            for name, child in root._modules.items()
            if child is not None and is_wrapper(root, name)
        ]
        if not inner:
            return root
        root = inner[0]


def is_wrapper(module: Any, child: str) -> bool:
    """Whether a module only wraps its child of this name, which is then left out of parameters'
    names.
    """
    alone = len(module._modules) == 1 and not any(
        parameter is not None for parameter in module._parameters.values()
    )
    return child in WRAPPED or (child == "module" and alone)


def named_tensors(root: Any, kind: str) -> list[tuple[str, Any]]:
    """Each parameter (``_parameters``) or buffer (``_buffers``) of a module once, by its name
    without wrappers' prefixes.
    """
    return list(_named(root, kind, "", set(), set()))


def _named(
    module: Any, kind: str, prefix: str, seen: set[int], visited: set[int]
) -> Iterator[tuple[str, Any]]:
    if id(module) in visited:
        return
    visited.add(id(module))
    for name, tensor in getattr(module, kind).items():
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield prefix + name, tensor
    for name, child in module._modules.items():
        if child is not None:
            inner = prefix if is_wrapper(module, name) else f"{prefix}{name}."
            yield from _named(child, kind, inner, seen, visited)


def prefixes(roots: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Each root with the prefix of its names: empty for the first, for others their class, numbered
    where several share it.
    """
    count: dict[str, int] = {}
    for position, root in enumerate(roots):
        if position == 0:
            yield "", root
            continue
        name = type(unwrapped(root)).__name__
        count[name] = count.get(name, 0) + 1
        yield f"{name}." if count[name] == 1 else f"{name}#{count[name]}.", root


def state_of(roots: Iterable[Any]) -> dict[str, Any]:
    """Parameters, and buffers under ``buffer:NAME``, of all roots."""
    state: dict[str, Any] = {}
    for prefix, root in prefixes(roots):
        state.update(
            {prefix + name: parameter for name, parameter in named_tensors(root, "_parameters")}
        )
        state.update(
            {BUFFER + prefix + name: buffer for name, buffer in named_tensors(root, "_buffers")}
        )
    return state
