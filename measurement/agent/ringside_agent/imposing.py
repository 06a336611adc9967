"""Settings that replace a script's own: ``impose`` in a plan, and ``ringside ab --explain``.

Their names are those of the settings that are read (``reading.configuration``). They are settings
of speed. Where a variable or ``loader.in_order`` changes what a script computes, the comparison of
first steps shows it.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Mapping

THREADS = "threads.torch"
VARIABLE = "environment."
OMP_NUM_THREADS = f"{VARIABLE}OMP_NUM_THREADS"
OF_LOADER = {
    "loader.workers": "num_workers",
    "loader.persistent_workers": "persistent_workers",
    "loader.prefetch": "prefetch_factor",
    "loader.pin_memory": "pin_memory",
    "loader.multiprocessing_context": "multiprocessing_context",
    "loader.in_order": "in_order",
}
WITH_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout")
"""Arguments of a loader that it refuses without workers."""
OF_DDP = {
    f"ddp.{name}": name
    for name in (
        "batched_grad_copy",
        "bucket_cap_mb",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
    )
}
OF_OPTIMIZER = ("fused", "foreach")
KNOWN = (
    THREADS,
    f"{VARIABLE}NAME",
    *OF_LOADER,
    *OF_DDP,
    *(f"optimizer.0.0.{name}" for name in OF_OPTIMIZER),
)
"""As a message names them."""


def is_known(name: str) -> bool:
    """Whether a setting can be imposed."""
    return name in KNOWN or (name.startswith(VARIABLE) and name[len(VARIABLE) :].isidentifier())


def impose_variables(settings: Mapping[str, Any]) -> None:
    """Set the environment variables, before libraries read them; those whose value is None are
    unset.
    """
    for name, value in settings.items():
        if name.startswith(VARIABLE):
            os.environ.pop(name[len(VARIABLE) :], None)
            os.environ.update({name[len(VARIABLE) :]: str(value)} if value is not None else {})


def impose_on_torch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply all other settings, in a rank that has just imported torch."""
    if THREADS in settings:
        torch.set_num_threads(settings[THREADS])
        torch.set_num_threads = _only_in_children(torch.set_num_threads)
    owners = {
        torch.utils.data.DataLoader: _arguments(OF_LOADER, settings),
        torch.nn.parallel.DistributedDataParallel: _arguments(OF_DDP, settings),
    }
    for owner, arguments in owners.items():
        if arguments:
            owner.__init__ = with_arguments(owner.__init__, arguments)
    chosen = {
        name: settings[f"optimizer.0.0.{name}"]
        for name in OF_OPTIMIZER
        if f"optimizer.0.0.{name}" in settings
    }
    if chosen:
        _choose_kernels(torch.optim.Optimizer, chosen)


def _arguments(names: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {argument: settings[name] for name, argument in names.items() if name in settings}


def _only_in_children(original: Callable[[int], None]) -> Callable[[int], None]:
    """A ``set_num_threads`` that does nothing in the rank itself: workers of loaders set one
    thread.
    """
    rank = os.getpid()

    @functools.wraps(original)
    def set_num_threads(number: int) -> None:
        if os.getpid() != rank:
            original(number)

    return set_num_threads


def with_arguments(original: Callable[..., Any], imposed: Mapping[str, Any]) -> Callable[..., Any]:
    """A function, or an ``__init__``, that is called with these arguments, as far as this version
    has them.
    """
    import inspect  # only here: most processes of a launcher do not need it

    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(
            {name: value for name, value in imposed.items() if name in signature.parameters}
        )
        if "num_workers" in signature.parameters and not bound.arguments.get("num_workers"):
            for name in WITH_WORKERS:
                bound.arguments.pop(name, None)
        return original(*bound.args, **bound.kwargs)

    return call


def _choose_kernels(owner: Any, chosen: Mapping[str, Any]) -> None:
    """Give these settings to every new optimizer that has them."""
    original = owner.__init__

    @functools.wraps(original)
    def __init__(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        original(
            self,
            params,
            {**defaults, **{name: value for name, value in chosen.items() if name in defaults}},
        )

    owner.__init__ = __init__
