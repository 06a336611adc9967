"""The communication library that a script uses, and its settings in force."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from ..place import joined_distributed
from ..recorder import Recorder
from ..reporting import never_compile
from .script import Script
from .values import plain

NO_SETTINGS = (
    "module",
    "device_ids",
    "output_device",
    "dim",
    "process_group",
    "device_mesh",
    "forward_sync_buffers",
    "named_parameters",
    "num_groups",
)
"""Arguments that say what is trained and where, or are aliases of others."""
IF_NONE = {"bucket_cap_mb": 25, "broadcast_buffers": True}
"""DDP's values for these where they are None."""
COLLECTIVE = re.compile(
    r"_?(grouped_)?(all_?(reduce|gather|to_?all)|reduce|broadcast|gather|scatter|send|recv|(monitored_)?barrier)"
)
"""How the names of functions that exchange something begin, in torch and Horovod."""


def describe(script: Script) -> dict[str, Any]:
    """``RankReport.backend``: library, transport and settings."""
    library = library_of(script)
    settings = {"library": library, "transport": transport_of(library, script.device)}
    if library == "ddp":
        return {**settings, **ddp_settings(wrappers(script)[0])}
    if library == "horovod":
        return {**settings, **horovod_settings(script.optimizers)}
    return settings


def library_of(script: Script) -> str:
    """``ddp``, ``horovod``, ``fsdp`` or ``none``."""
    if any(is_horovods(optimizer) for optimizer in script.optimizers):
        return "horovod"
    if script.is_sharded:
        return "fsdp"
    return "ddp" if wrappers(script) else "none"


def is_horovods(optimizer: Any) -> bool:
    """Whether ``DistributedOptimizer`` made it."""
    return hasattr(optimizer, "_allreduce_delay") or hasattr(optimizer, "backward_passes_per_step")


def watch_exchange(recorder: Recorder) -> None:
    """Time this thread's exchange, by whichever name a script calls it: all public names call these
    functions.

    DDP's reducer waits in C++, within backward, and does not call them.
    """
    c10d = getattr(sys.modules["torch"]._C, "_distributed_c10d", None)
    library = getattr(sys.modules.get("horovod.torch.mpi_ops"), "mpi_lib", None)
    recorder.thread = get_ident()
    for owner, names in (
        (getattr(c10d, "ProcessGroup", None), COLLECTIVE),
        (getattr(c10d, "Work", None), re.compile("wait$")),
        (library, re.compile("horovod_torch_wait_and_clear$")),
    ):
        for name in filter(names.match, dir(owner)):
            setattr(owner, name, timed(getattr(owner, name), recorder))


def timed(original: Any, recorder: Recorder) -> Any:
    """A function whose time counts as exchange.

    Not timed: calls inside it, those of other threads, and those of an evaluation that is left out.
    """

    @functools.wraps(original)
    def exchange(*args: Any, **kwargs: Any) -> Any:
        thread = recorder.thread
        if recorder.off or recorder.is_evaluating or get_ident() != thread:
            return original(*args, **kwargs)
        recorder.thread = 0
        began = perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            recorder.exchange += perf_counter_ns() - began
            recorder.thread = thread

    exchange._torchdynamo_disable = True  # type: ignore[attr-defined]  # in a compiled function, too
    never_compile(exchange)
    return exchange


def wrappers(script: Script) -> list[Any]:
    """Those of DDP, in the script's models."""
    wrapper = sys.modules["torch"].nn.parallel.DistributedDataParallel
    return [
        module for root in script.roots for module in root.modules() if isinstance(module, wrapper)
    ]


def transport_of(library: str, device: Any) -> str | None:
    """``gloo``, ``nccl`` or ``mpi``; None where nothing is exchanged, or it is not known."""
    if library == "horovod":
        return _transport_of_horovod(device)
    distributed = joined_distributed()
    if distributed is None:
        return None
    backends = str(distributed.get_backend())
    if ":" not in backends:
        return backends
    by_device = dict(part.partition(":")[::2] for part in backends.split(","))
    return by_device.get(device.type if device is not None else "cpu", backends)


def _transport_of_horovod(device: Any) -> str | None:
    horovod: Any = sys.modules.get("horovod.torch")
    if horovod is None:
        return None
    if device is not None and device.type == "cuda" and horovod.nccl_built():
        return "nccl"
    return "gloo" if horovod.gloo_enabled() else "mpi"


def ddp_settings(wrapper: Any) -> dict[str, Any]:
    """DDP's settings, by the names of its arguments."""
    torch: Any = sys.modules["torch"]
    settings = {
        "bucket_cap_mb": getattr(wrapper, "bucket_bytes_cap", 0) / (1 << 20),
        "first_bucket": getattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", None),
    }
    settings.update(
        {
            name: plain(getattr(wrapper, name))
            for name in arguments_of(wrapper.__init__)
            if hasattr(wrapper, name)
        }
    )
    if sizes := getattr(wrapper, "bucket_bytes_cap_list", None):
        settings["bucket_cap_mb_list"] = [size / (1 << 20) for size in sizes]
    settings["comm_hook"] = _logged(wrapper).get("comm_hook") or "none"
    return settings


def defaults(script: Script) -> dict[str, Any]:
    """The library's defaults, by name, of those settings that the script has changed."""
    library, described = library_of(script), describe(script)
    maker: Any = None
    if library == "ddp":
        maker = wrappers(script)[0].__init__
    elif library == "horovod":
        maker = sys.modules["horovod.torch"].DistributedOptimizer
    return {
        f"{library}.{name}": value
        for name, value in (arguments_of(maker) if maker else {}).items()
        if name in described and described[name] != value
    }


def arguments_of(function: Any) -> dict[str, Any]:
    """The settings that a function takes, with the defaults of this version of the library."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not parameter.empty and name not in NO_SETTINGS
    }
    return {
        name: as_recorded(name, IF_NONE.get(name) if value is None else value)
        for name, value in defaults.items()
    }


def _logged(wrapper: Any) -> dict[str, Any]:
    """DDP's own log of its settings and counters."""
    try:
        logged: dict[str, Any] = wrapper._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return {}
    return logged


def horovod_settings(optimizers: list[Any]) -> dict[str, Any]:
    """The settings of ``DistributedOptimizer``, by the names of its arguments."""
    optimizer = next(optimizer for optimizer in optimizers if is_horovods(optimizer))
    renamed = {
        "compression": getattr(optimizer, "_compression", None),
        "groups": getattr(optimizer, "_groups", None),
    }
    if "dasum" in str(type(optimizer).__mro__):
        renamed["op"] = sys.modules["horovod.torch"].Adasum
    defaults = arguments_of(sys.modules["horovod.torch"].DistributedOptimizer)
    return {
        name: as_recorded(name, renamed.get(name, getattr(optimizer, name, value)))
        for name, value in defaults.items()
    }


def as_recorded(name: str, value: Any) -> Any:
    """A setting as plain JSON: an operation and a compressor by their names, a process set by its
    number.
    """
    if name == "op":
        ops: dict[Any, str] = {
            getattr(sys.modules["horovod.torch"], op, None): op
            for op in ("Average", "Sum", "Adasum")
        }
        return ops.get(value, "unknown")
    if name == "compression":
        kind = getattr(value, "__name__", type(value).__name__)
        return {"NoneCompressor": "none", "FP16Compressor": "fp16"}.get(kind, kind)
    if name == "groups" and isinstance(value, list):
        return len(value)
    return plain(getattr(value, "process_set_id", value))
