"""The models of a script: found among all objects, and their parameters and buffers by names that
wrappers do not change.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any, Callable, Iterable, Iterator, List, Tuple

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
SCHEDULES = frozenset(("LRScheduler", "_LRScheduler", "ReduceLROnPlateau"))

Named = List[Tuple[str, Any]]


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


def named(root: Any, kind: str) -> Named:
    """Each parameter (``_parameters``) or buffer (``_buffers``) of a module once, by its name
    without wrappers' prefixes.
    """
    seen: set[int] = set()
    return list(_named(root, kind, "", seen, set()))


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
        state.update({prefix + name: parameter for name, parameter in named(root, "_parameters")})
        state.update({BUFFER + prefix + name: buffer for name, buffer in named(root, "_buffers")})
    return state
