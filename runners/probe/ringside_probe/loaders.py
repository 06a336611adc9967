"""Times what loaders take for each batch, and has batches counted. Loader workers are left alone."""

from __future__ import annotations

import functools
import sys
import weakref
from time import perf_counter_ns
from typing import Any

from .reading import batches
from .recorder import Recorder


def watch(module: Any, recorder: Recorder) -> None:
    """Time what loaders' iterators take for each batch, and count what they yield."""
    if module is None:
        return
    begin = module._BaseDataLoaderIter.__init__

    @functools.wraps(begin)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, loader, *args, **kwargs)
        self._ringside_loader = weakref.ref(loader)
        owner: Any = next(one for one in type(self).__mro__ if "__next__" in vars(one))
        if not hasattr(vars(owner)["__next__"], "_ringside"):
            owner.__next__ = timed_next(vars(owner)["__next__"], recorder)

    module._BaseDataLoaderIter.__init__ = __init__
    iterate = module.DataLoader.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:
        began = perf_counter_ns()
        try:
            return iterate(self)
        finally:
            if not recorder.is_evaluating and sys.modules["torch"].is_grad_enabled():
                recorder.wait += perf_counter_ns() - began

    module.DataLoader.__iter__ = __iter__


def timed_next(original: Any, recorder: Recorder) -> Any:
    """A loader iterator's ``__next__`` that is timed. Those of an evaluation, without gradients, are not, nor are its batches."""
    is_training = sys.modules["torch"].is_grad_enabled

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        began = perf_counter_ns()
        batch = original(self)
        if not recorder.off and is_training():
            if not recorder.is_evaluating:
                recorder.wait += perf_counter_ns() - began
            try:
                recorder.drawn.append(batches.size_of(batch))
                if recorder.on_batch is not None:
                    recorder.on_batch(self, batch)
            except Exception as error:  # noqa: BLE001 - the probe's edge
                recorder.failed(error)
        return batch

    recorder.hot.append(__next__)
    __next__._ringside = True  # type: ignore[attr-defined]
    return __next__
