"""What the driver sets in the processes of a start: the agent's own settings, in one environment
variable without secrets, and settings that replace a script's own.

The latter are ``impose`` in a plan, and ``ringside ab --explain``. Their names are those of the
settings that are read (``reading.configuration``). They are settings of speed. Where a variable or
``loader.in_order`` changes what a script computes, the comparison of first steps shows it.
"""

from __future__ import annotations

import base64
import functools
import json
import os
from typing import Any, Callable, Mapping, NamedTuple, Sequence

VARIABLE = "RINGSIDE_AGENT"
RANK_VARIABLE = "RINGSIDE_AGENT_RANK"
"""Set in a rank to its process id, so that the agent does nothing in what it starts."""

COMPARED_STEPS = 5
"""First steps of each script, untimed, in which its settings, gradients and parameters are read."""

THREADS = "threads.torch"
ENVIRONMENT = "environment."
OMP_NUM_THREADS = f"{ENVIRONMENT}OMP_NUM_THREADS"
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
OF_OPTIMIZER = {f"optimizer.0.0.{name}": name for name in ("fused", "foreach")}
IMPOSABLE = (
    THREADS,
    f"{ENVIRONMENT}NAME",
    *OF_LOADER,
    *OF_DDP,
    *OF_OPTIMIZER,
)
"""As a message names them."""


class Settings(NamedTuple):
    """As the driver wrote them."""

    driver: str
    key_file: str
    arm: str
    launch: int
    start: int = 0
    python: str = ""
    samples_per_step: int | None = None
    iteration_ends: str | int | None = None
    untimed: str = "nothing"
    state_file: str | None = None
    state: str | None = None
    rank_variables: Sequence[Sequence[str | None]] = ()
    """Rank variables of each launcher, see ``place.VariableNames``."""
    recorded: Sequence[str] = ()
    """Beginnings of variables that ranks report."""
    left_out: Sequence[str] = ()
    """Those of ``recorded`` that differ from rank to rank anyway."""
    secret: str = ""
    """What the names of secrets look like, as a regular expression."""
    store: str = ""
    """For a rank of ours: ``host:port`` of the store at which process groups meet. Empty: it is a
    script's."""
    launcher: str = ""
    """That started it; its class knows the variables to read."""
    log_folder: str | None = None
    """None: this host's own (``runners.processes.remote_results``), where timings are kept, too."""
    threads: int = 1
    sandbox: str = ""
    """Folder of this start, in which a script's own files appear; empty: it has none."""
    trackers: Sequence[str] = ()
    """Modules of experiment trackers that variables keep offline."""
    ports: Mapping[str, int] = {}
    """By a port that a script asks for: the port that this start uses instead."""
    spare_ports: Sequence[int] = ()
    """Ports for stores whose ports are not in ``ports``; none where it runs on several hosts."""
    hosts: Sequence[str] = ()
    """On which it runs; none where it is this machine alone."""
    cpu: bool = False
    """Give the CPU to whatever asks torch for CUDA, see ``cpus_for_gpus``."""
    impose: Mapping[str, Any] = {}
    """Settings that replace the script's own, see ``impose_on_torch``."""
    perturbs: bool = False
    """Change parameters in their last place after the first compared step, see
    ``reading.first_steps.perturb``: the control shows how far rounding grows."""


def read(*, in_children: bool = False) -> Settings | None:
    """The settings; None where there are none, and in a process that a rank started, unless
    ``in_children``.

    Raises:
        ValueError: they cannot be read.
        TypeError: one is missing.
    """
    text = os.environ.get(VARIABLE)
    is_child = os.environ.get(RANK_VARIABLE, str(os.getpid())) != str(os.getpid())
    if not text or (is_child and not in_children):
        return None
    return decode(text)


def encode(settings: Settings) -> str:
    """Encode the settings that differ from their defaults as one word without special characters of
    a shell.
    """
    changed = {
        name: value
        for name, value in settings._asdict().items()
        if value != Settings._field_defaults.get(name)
    }
    return base64.urlsafe_b64encode(json.dumps(changed).encode()).decode()


def decode(text: str) -> Settings:
    """Decode the variable's text; unknown names are left out."""
    values: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text.encode()))
    return Settings(**{name: value for name, value in values.items() if name in Settings._fields})


def is_imposable(name: str) -> bool:
    """Whether a setting can be imposed."""
    return name in IMPOSABLE or (
        name.startswith(ENVIRONMENT) and name[len(ENVIRONMENT) :].isidentifier()
    )


def impose_variables(settings: Mapping[str, Any]) -> None:
    """Set the environment variables, before libraries read them; those whose value is None are
    unset.
    """
    for name, value in settings.items():
        if name.startswith(ENVIRONMENT):
            os.environ.pop(name[len(ENVIRONMENT) :], None)
            if value is not None:
                os.environ[name[len(ENVIRONMENT) :]] = str(value)


def impose_on_torch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply all other settings, in a rank that has just imported torch."""
    if THREADS in settings:
        torch.set_num_threads(settings[THREADS])
        torch.set_num_threads = _only_in_children(torch.set_num_threads)
    owners = {
        torch.utils.data.DataLoader: OF_LOADER,
        torch.nn.parallel.DistributedDataParallel: OF_DDP,
    }
    for owner, names in owners.items():
        if arguments := _arguments(names, settings):
            owner.__init__ = with_arguments(owner.__init__, arguments)
    if chosen := _arguments(OF_OPTIMIZER, settings):
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
