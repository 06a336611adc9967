"""``--cpu``: what asks torch for CUDA gets the CPU, so that a script for GPUs runs where there are
none.

It shows what a script computes, not how fast. A tensor's own ``device`` stays ``cpu``, its
``is_cuda`` False, and ``torch.compile`` compiles nothing. What cannot be emulated raises: captured
graphs, and custom kernels. ``SyncBatchNorm`` takes the statistics of its own rank.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
from collections import defaultdict
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Callable, Sequence

from .place import World, world_of_variables
from .settings import with_arguments

USUAL_DEVICES = 2
"""GPUs of a host where no variable says how many: the smallest number that exchanges."""
CAPABILITY = (8, 0)
"""Compute capability of a GPU that has bfloat16 and TF32."""
MEMORY_BYTES = 80 << 30
NO_GRAPH = (
    "--cpu cannot replay a CUDA graph that was captured; run the step as it is, or use"
    " torch.cuda.make_graphed_callables"
)


def returns(value: Any) -> Callable[..., Any]:
    """A function that returns this for any arguments."""
    return lambda *_, **__: value


class Event:
    """A CUDA event by the clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        self._at = perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end._at - self._at) * 1000

    query = returns(True)
    wait = synchronize = returns(None)


class Stream(contextlib.nullcontext):
    """A CUDA stream, whose work is always done."""

    cuda_stream = stream_id = device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    is_capturing = returns(False)
    query = returns(True)
    wait_stream = wait_event = synchronize = returns(None)


def emulate_cuda(torch: Any, rank_variables: Sequence[Sequence[str | None]]) -> None:
    """Replace CUDA by the CPU, in a process that has just imported torch.

    ``rank_variables``: see ``settings.Settings``.
    """
    to_cpu = functools.partial(on_cpu, torch)
    enter_mode(torch, to_cpu)
    values = values_of(torch)
    values["device_count"] = functools.partial(device_count, rank_variables)
    modules = [torch.cuda, torch.cuda.memory, torch.cuda.nvtx, torch.cuda.profiler]
    if hasattr(torch, "accelerator"):  # since torch 2.6
        modules.append(torch.accelerator)
    for module in modules:
        for name in dir(module):
            original = getattr(module, name)
            if isinstance(values.get(name), type):
                setattr(module, name, values[name])
                continue
            is_function = callable(original) and not isinstance(original, type)
            if name in values or (is_function and name in getattr(module, "__all__", ())):
                value = values.get(name) or returns(0 if "memory" in name else None)
                setattr(module, name, functools.wraps(original)(functools.partial(value)))
    for name in torch.cuda.__all__:
        if name.endswith("Tensor"):
            setattr(torch.cuda, name, getattr(torch, name))
    torch.cuda.nccl.version = returns((0, 0, 0))
    torch.Generator = generator_of(torch.Generator)
    torch.UntypedStorage.cuda = lambda storage, *_, **__: storage
    context = importlib.import_module("torch.utils._device").DeviceContext
    context.__init__ = mapped(context.__init__, to_cpu)
    torch.load = with_arguments(torch.load, {"map_location": "cpu"})
    autocast = torch.amp.autocast_mode.autocast
    autocast.__init__ = half_by_default(mapped(autocast.__init__, to_cpu), torch.float16)
    autocast.__enter__ = in_bfloat16(autocast.__enter__, torch)
    if hasattr(torch.amp, "GradScaler"):  # since torch 2.3
        torch.amp.GradScaler.__init__ = mapped(torch.amp.GradScaler.__init__, to_cpu)
    ddp = torch.nn.parallel.DistributedDataParallel
    ddp.__init__ = with_arguments(ddp.__init__, {"device_ids": None, "output_device": None})
    ddp._passing_sync_batchnorm_handle = torch.nn.Module.compile = returns(None)
    torch.compile = lambda model=None, **_: (lambda function: function) if model is None else model
    torch.nn.DataParallel.__init__ = without_devices
    torch.nn.SyncBatchNorm.forward = torch.nn.BatchNorm1d.forward  # by its own rank's batch
    if hasattr(torch.distributed, "init_process_group"):
        over_gloo(torch.distributed, to_cpu)


def on_cpu(torch: Any, value: Any) -> Any:
    """A value in which the CPU replaces a GPU: a device, or its name."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str):
        return (
            "cpu" if value.partition(":")[0] == "cuda" else value.replace("torch.cuda.", "torch.")
        )
    return value


def enter_mode(torch: Any, to_cpu: Callable[[Any], Any]) -> None:
    """Map the arguments of all of torch's functions and methods, in this thread and in those that
    it will start.
    """
    tensor = torch.Tensor

    class OnCpu(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in (tensor.cuda, tensor.pin_memory):
                return args[0]
            if function is tensor.record_stream:
                return None
            if function is torch.device:  # scripts read its type to choose their path for GPUs
                return function(*args, **(kwargs or {}))
            args = [to_cpu(argument) for argument in args]
            kwargs = {name: to_cpu(value) for name, value in (kwargs or {}).items()}
            if function is tensor.to and len(args) > 1 and isinstance(args[1], int):
                args[1] = "cpu"
            if isinstance(kwargs.get("device"), int):
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    OnCpu().__enter__()
    run = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    @functools.wraps(run)
    def in_thread(self: threading.Thread) -> None:
        with OnCpu():
            run(self)

    threading.Thread._bootstrap_inner = in_thread  # type: ignore[attr-defined]


def generator_of(original: Any) -> Any:
    """``torch.Generator``, whose generators are the CPU's."""

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=Kind):
        def __new__(cls, *_: Any, **__: Any) -> Any:
            return super().__new__(cls, "cpu")

    return Generator


def values_of(torch: Any) -> dict[str, Any]:
    """What functions of ``torch.cuda`` and ``torch.accelerator`` are, by name; the others do
    nothing.
    """
    stream, current = Stream(), [0]

    def set_device(device: Any) -> None:
        named = str(device).rpartition(":")[2]
        current[0] = int(named) if named.isdecimal() else current[0]

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(NO_GRAPH)

    properties = SimpleNamespace(
        name="CPU", total_memory=MEMORY_BYTES, multi_processor_count=1, gcnArchName=""
    )
    properties.major, properties.minor = CAPABILITY
    contexts = (
        "device",
        "device_of",
        "device_index",
        "stream",
        "StreamContext",
        "range",
        "profile",
    )
    fixed = {
        **dict.fromkeys(
            ("is_available", "is_initialized", "is_bf16_supported", "is_tf32_supported"), True
        ),
        "is_current_stream_capturing": False,
        "get_device_name": "CPU",
        "get_device_capability": CAPABILITY,
        "get_device_properties": properties,
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "memory_summary": "",
        "memory_stats": defaultdict(int),
        "get_arch_list": [],
        **dict.fromkeys(("current_stream", "default_stream"), stream),
        "current_accelerator": torch.device("cuda"),
    }
    return {
        **{name: returns(value) for name, value in fixed.items()},
        **dict.fromkeys(contexts, lambda *_, **__: contextlib.nullcontext()),
        **dict.fromkeys(
            ("current_device", "current_device_index", "current_device_idx"), lambda: current[0]
        ),
        **dict.fromkeys(("set_device", "set_device_index", "set_device_idx"), set_device),
        **dict.fromkeys(("CUDAGraph", "Graph", "graph"), refuse),
        "Event": Event,
        "Stream": Stream,
        "ExternalStream": Stream,
        "make_graphed_callables": lambda callables, *_, **__: callables,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "initial_seed": torch.initial_seed,
    }


def device_count(rank_variables: Sequence[Sequence[str | None]]) -> int:
    """GPUs that this host reports: those that are visible, or as many as a launcher starts ranks
    here.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return len(visible.split(","))
    world = world_of_variables(os.environ, rank_variables)
    return USUAL_DEVICES if world == World() else world.local_world_size


def mapped(original: Callable[..., Any], map_value: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function whose arguments are mapped."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(
            *map(map_value, args), **{name: map_value(value) for name, value in kwargs.items()}
        )

    return call


def half_by_default(original: Callable[..., None], half: Any) -> Callable[..., None]:
    """Autocast whose default dtype is that of CUDA."""

    @functools.wraps(original)
    def __init__(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        original(
            self,
            device_type,
            half if dtype is None and device_type == "cuda" else dtype,
            *args,
            **kwargs,
        )

    return __init__


def in_bfloat16(original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
    """``autocast.__enter__``: CPUs take a hundred times as long for convolutions in float16, which
    stays what was asked for.
    """

    @functools.wraps(original)
    def __enter__(self: Any) -> Any:
        fast_dtype = self.fast_dtype
        self.fast_dtype = torch.bfloat16 if fast_dtype is torch.float16 else fast_dtype
        try:
            return original(self)
        finally:
            self.fast_dtype = fast_dtype

    return __enter__


def without_devices(self: Any, module: Any, *_: Any, **__: Any) -> None:
    """``DataParallel.__init__``: its module is called directly."""
    super(sys.modules["torch"].nn.DataParallel, self).__init__()
    self.module, self.device_ids = module, []


def over_gloo(distributed: Any, to_cpu: Callable[[Any], Any]) -> None:
    """Have process groups meet over Gloo, which takes no devices."""

    def gloo(value: Any) -> Any:
        return "gloo" if isinstance(value, str) and "nccl" in value else to_cpu(value)

    begin = mapped(with_arguments(distributed.init_process_group, {"device_id": None}), gloo)
    names = {
        "init_process_group": lambda backend=None, *args, **kwargs: begin(
            backend or "gloo", *args, **kwargs
        ),
        "new_group": mapped(distributed.new_group, gloo),
        "barrier": with_arguments(distributed.barrier, {"device_ids": None}),
        "is_nccl_available": returns(True),
    }
    for name, function in names.items():
        for module in (distributed, distributed.distributed_c10d):
            setattr(module, name, function)
    if hasattr(distributed, "init_device_mesh"):
        distributed.init_device_mesh = mapped(distributed.init_device_mesh, to_cpu)


def emulate_horovod_build(horovod: Any) -> None:
    """Answer a script that Horovod was built for GPUs."""
    for name in ("nccl_built", "cuda_built"):
        setattr(horovod, name, returns(True))
