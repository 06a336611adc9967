"""Hooks the recorder into torch: optimizer steps, backward passes, first forward, GradScaler,
autocast, loaders, batches.

Loader workers are not hooked.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from time import perf_counter_ns
from typing import Any

from . import rank
from .machine import counting_threads
from .reading import batches
from .reading.first_steps import FirstSteps
from .recorder import Recorder
from .reporting import call_safely
from .settings import Settings


def watch_torch(settings: Settings) -> rank.Rank:
    """Hook torch, which has just been imported. Returns what may become a rank."""
    torch: Any = sys.modules["torch"]
    recorder = Recorder(settings.iteration_ends)
    this_rank = rank.Rank(settings, recorder)
    optimizer = importlib.import_module("torch.optim.optimizer")
    optimizer.register_optimizer_step_pre_hook(recorder.pre_hook)
    optimizer.register_optimizer_step_post_hook(recorder.post_hook)
    watch_backward(torch.autograd, recorder)
    watch_forward(torch.nn.Module, this_rank.first)
    call_safely(watch_loaders, torch.utils.data.dataloader, recorder)
    call_safely(watch_sampler, torch.utils.data.DistributedSampler)
    call_safely(watch_scaler, torch, recorder)
    call_safely(watch_autocast, torch, this_rank.first)
    if hasattr(torch.distributed, "init_process_group"):
        begin = torch.distributed.init_process_group
        torch.distributed.init_process_group = counting_threads(begin)
    if settings.untimed == "evaluation":
        watch_evaluation(torch.nn.Module, recorder)
    os.register_at_fork(after_in_child=this_rank.forget_after_fork)
    return this_rank


def watch_backward(autograd: Any, recorder: Recorder) -> None:
    """Time the outermost backward passes. Tensors' own ``backward()`` looks the function up
    here.
    """
    original = autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if recorder.off or recorder.in_backward:
            return original(*args, **kwargs)
        if recorder.before_backward is not None:
            recorder.before_backward()
        recorder.in_backward = True
        began = perf_counter_ns() - recorder.exchange
        try:
            result = original(*args, **kwargs)
        finally:
            recorder.backward_ended = perf_counter_ns() - recorder.exchange
            recorder.backward += recorder.backward_ended - began
            recorder.in_backward = False
        try:
            recorder.note_backward(args[0] if args else kwargs.get("tensors"))
        except Exception as error:  # noqa: BLE001 - the pass is counted, and its loss left out
            recorder.unread(error)
        return result

    autograd.backward = backward
    recorder.hot.append(backward)


def watch_forward(module: Any, first: FirstSteps) -> None:
    """Hook the first forward pass that trains, without a global hook, of which torch.compile
    warns.
    """
    call = module.__call__
    state = {"is_over": False}

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not state["is_over"] and first.before_forward(self):
            stop()
        return call(self, *args, **kwargs)

    def stop() -> None:
        state["is_over"] = True
        if module.__call__ is __call__:  # else another wrapper has replaced it, and calls this one
            module.__call__ = call

    module.__call__ = __call__
    first.stop_forward = stop


def watch_scaler(torch: Any, recorder: Recorder) -> None:
    """Record which losses are scaled, and which steps GradScaler leaves out."""
    of_cuda = torch.cuda.amp.GradScaler
    for owner in {of_cuda, getattr(torch.amp, "GradScaler", of_cuda)}:  # the latter since torch 2.3
        if "step" in vars(owner):
            _watch_scaler(owner, recorder)


def _watch_scaler(owner: Any, recorder: Recorder) -> None:
    scale, step = owner.scale, owner.step

    @functools.wraps(scale)
    def scaled(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        if not recorder.off and not isinstance(outputs, (list, tuple)):
            recorder.scaled = (result, outputs)
        return result

    @functools.wraps(step)
    def stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before, recorder.scaler = recorder.fired, self
        result = step(self, optimizer, *args, **kwargs)
        if recorder.off:
            return result
        try:
            if recorder.fired == before and recorder.backwards:
                recorder.skip(optimizer)
            elif self.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False):
                by_device = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
                recorder.overflows += [
                    (len(recorder.rows) - 1, overflow) for overflow in by_device.values()
                ]
        except Exception as error:  # noqa: BLE001 - whether a step overflowed is left out
            recorder.unread(error)
        return result

    owner.scale, owner.step = scaled, stepped


def watch_autocast(torch: Any, first: FirstSteps) -> None:
    """Record the dtype of autocast in the first steps."""
    owner = torch.amp.autocast_mode.autocast
    enter = owner.__enter__

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        if getattr(self, "_enabled", False) and torch.is_grad_enabled():
            first.script.autocast_dtype = str(self.fast_dtype).replace("torch.", "")
        return enter(self)

    owner.__enter__ = __enter__
    first.stop_autocast = functools.partial(setattr, owner, "__enter__", enter)


def watch_evaluation(module: Any, recorder: Recorder) -> None:
    """Leave out the time in which a model is in evaluation mode: from ``eval()`` until it trains
    again.

    Its mode is set by ``train()``, or restored by assigning ``training`` in each module.
    """
    train, assign = module.train, module.__setattr__
    since = [0]

    def is_trained(module: Any) -> bool:
        return any(parameter.requires_grad for parameter in module.parameters())

    @functools.wraps(train)
    def switched(self: Any, mode: bool = True) -> Any:
        if not (mode or recorder.off or recorder.is_evaluating) and is_trained(self):
            recorder.is_evaluating, since[0] = True, perf_counter_ns()
            module.__setattr__ = assigned
        return train(self, mode)

    @functools.wraps(assign)
    def assigned(self: Any, name: str, value: Any) -> None:
        assign(self, name, value)
        if name == "training" and value and is_trained(self):
            module.__setattr__ = assign
            if recorder.is_evaluating:
                recorder.is_evaluating = False
                recorder.left_out += perf_counter_ns() - max(since[0], recorder.start)

    module.train = switched


def watch_loaders(module: Any, recorder: Recorder) -> None:
    """Time what loaders' iterators take for each batch, and count what they yield."""
    begin = module._BaseDataLoaderIter.__init__

    @functools.wraps(begin)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, loader, *args, **kwargs)
        if recorder.on_loader is not None:
            recorder.on_loader(loader, self)
        owner: Any = next(cls for cls in type(self).__mro__ if "__next__" in vars(cls))
        if not hasattr(vars(owner)["__next__"], "_ringside"):
            owner.__next__ = timed_next(vars(owner)["__next__"], recorder)

    module._BaseDataLoaderIter.__init__ = __init__
    iterate = module.DataLoader.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:
        began = perf_counter_ns() - recorder.exchange
        try:
            iterator = iterate(self)
        finally:
            if not recorder.is_evaluating and sys.modules["torch"].is_grad_enabled():
                recorder.wait += perf_counter_ns() - recorder.exchange - began
        if recorder.on_loader is not None:
            recorder.on_loader(self, iterator)  # whose workers may stay from epoch to epoch
        return iterator

    module.DataLoader.__iter__ = __iter__


def watch_sampler(owner: Any) -> None:
    """Record whether a sampler was given an epoch."""
    original = owner.set_epoch

    @functools.wraps(original)
    def set_epoch(self: Any, epoch: int) -> None:
        self._ringside = True
        original(self, epoch)

    set_epoch._ringside = True  # type: ignore[attr-defined]
    owner.set_epoch = set_epoch


def timed_next(original: Any, recorder: Recorder) -> Any:
    """A timed ``__next__`` of a loader's iterator.

    In an evaluation, neither time nor batches are recorded.

    An evaluation is where gradients are off, or the trained model is in evaluation mode.
    """
    has_gradients = sys.modules["torch"].is_grad_enabled

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        began = perf_counter_ns() - recorder.exchange
        try:
            batch = original(self)
        except StopIteration:
            if recorder.on_batch is not None:
                batches.source_of(self).is_over = True
            raise
        if (
            not recorder.off
            and has_gradients()
            and (recorder.model is None or recorder.model.training)
        ):
            if not recorder.is_evaluating:
                recorder.wait += perf_counter_ns() - recorder.exchange - began
            try:
                recorder.drawn.append(batches.size_of(batch))
            except Exception as error:  # noqa: BLE001 - the agent's edge
                recorder.drawn.append(0)
                (recorder.failed if recorder.on_batch is None else recorder.unread)(error)
            if recorder.on_batch is not None:
                recorder.on_batch(self, batch)
        return batch

    recorder.hot.append(__next__)
    __next__._ringside = True  # type: ignore[attr-defined]
    return __next__
