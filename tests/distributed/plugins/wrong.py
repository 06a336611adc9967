"""Backends that compute the wrong thing or end otherwise than they should, each in one way.

Named by path in plans."""

import dataclasses
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from backends.ddp import DDP


class SkipsOneParameter(DDP):
    """The last parameter's gradient is never exchanged."""

    def prepare(self, model, build_optimizer):
        name = list(dict(model.named_parameters()))[-1]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [name])
        return super().prepare(model, build_optimizer)


class SameShardEverywhere(DDP):
    """Every rank believes that it is rank 0."""

    def setup(self, world, *, device, store=None):
        counted = super().setup(world, device=device, store=store)
        return dataclasses.replace(counted, rank=0)


class Misbehaves(DDP):
    """Rank 1 does something in its n-th ``barrier``: that before the timed steps of a block, the
    trial first."""

    after = 5

    def barrier(self):
        self.blocks = getattr(self, "blocks", 0) + 1
        if self.blocks == self.after and dist.get_rank() == 1:
            self.misbehave()
        super().barrier()

    def misbehave(self):
        raise NotImplementedError


class Dies(Misbehaves):
    """kill -9."""

    def misbehave(self):
        print("last words of rank 1", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Misbehaves):
    """Sleeps for ever."""

    def misbehave(self):
        print("going to sleep", flush=True)
        time.sleep(3600)


class Raises(Misbehaves):
    """A Python exception."""

    def misbehave(self):
        raise ValueError("no more steps from me")


class Unfair(DDP):
    """Takes other threads than the plan gave it."""

    def setup(self, world, *, device, store=None):
        torch.set_num_threads(2)
        return super().setup(world, device=device, store=store)


class SaysEachBlock(DDP):
    """Computes rightly. A rank's log has a line for each block, written before its timed steps."""

    def barrier(self):
        print("block", flush=True)
        super().barrier()


class RaisesAtSetup(DDP):
    """Refuses to start."""

    def setup(self, world, *, device, store=None):
        raise RuntimeError("not on this machine")
