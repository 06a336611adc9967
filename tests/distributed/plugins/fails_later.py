"""Backends whose rank 1 fails in some way once blocks have been measured.

Named by path on command lines."""

import os
import signal
import time
from pathlib import Path

import horovod.torch as hvd

from backends.ddp import DDP
from backends.horovod.backend import Horovod

AFTER_STEPS = 20


class Fails:
    """What the backends below share: what happens is named by an environment variable."""

    def setup(self, world, *, device, store=None):
        self.rank, self.steps = world.rank, 0
        return super().setup(world, device=device, store=store)

    def prepare(self, model, build_optimizer):
        prepared = super().prepare(model, build_optimizer)
        prepared.model.register_forward_pre_hook(self.count)
        return prepared

    def count(self, *_):
        self.steps += 1
        if self.rank == 1 and self.steps > AFTER_STEPS:
            self.fail(os.environ["TESTS_FAULT"])

    def fail(self, fault):
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "raises":
            raise ValueError("no more steps from me")
        elif fault == "hangs":
            time.sleep(600)
        else:
            Path(os.environ["TESTS_FOLDER"], fault).touch()


class FailingDDP(Fails, DDP):
    pass


class FailingHorovod(Fails, Horovod):
    pass


class UnstartedDDP(DDP):
    """Its rank 0 fails before it meets the others, who wait for it in their library."""

    def setup(self, world, *, device, store=None):
        if world.rank == 0:
            raise OSError("no way to start")
        return super().setup(world, device=device, store=store)


class TornDownHorovod(Horovod):
    """Rank 0 tears its library down before it raises, as ``finally`` or a ``with`` block does: the
    others hear of that first."""

    def prepare(self, model, build_optimizer):
        prepared = super().prepare(model, build_optimizer)
        prepared.model.register_forward_pre_hook(self.fail)
        return prepared

    def fail(self, *_):
        if hvd.rank() == 0:
            hvd.shutdown()
            time.sleep(1)
            raise OSError("sample 7 is damaged")
