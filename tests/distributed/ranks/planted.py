"""A rank that takes the gate with backends that compute wrongly, each in one way, and one that is
right: see ``test_planted``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.planted FOLDER``
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from backends.torch_distributed import Naive, NaivePrepared, sync_gradients
from runners.rank.engine import start_engine
from runners.rank.parity import run_gate
from tests.kit.ranks import job_of, leave_what_is_seen, trainer_of
from tests.outside.everyday import Complex, Half
from tests.outside.idioms import Plain, Recommender


class Right(NaivePrepared):
    def step(self):
        self.exchange()
        self.optimizer.step()

    def trained(self):
        return [parameter for parameter in self.bare.parameters() if parameter.requires_grad]

    def exchange(self):
        sync_gradients(self.bare)


class LayerLeftOut(Right):
    def exchange(self):
        own = self.trained()[0].grad.clone()
        sync_gradients(self.bare)
        self.trained()[0].grad = own


class Twice(Right):
    def exchange(self):
        sync_gradients(self.bare)
        for parameter in self.trained():
            dist.all_reduce(parameter.grad)


class Stale(Right):
    """Steps with the gradients of the step before; the first is right."""

    def exchange(self):
        sync_gradients(self.bare)
        found = [parameter.grad.clone() for parameter in self.trained()]
        for parameter, gradient in zip(self.trained(), getattr(self, "last", found), strict=True):
            parameter.grad = gradient
        self.last = found


class InHalf(Right):
    def exchange(self):
        for parameter in self.trained():
            whole = (
                torch.view_as_real(parameter.grad)
                if parameter.is_complex()
                else parameter.grad.to_dense()
            )
            half = whole.bfloat16() / dist.get_world_size()
            dist.all_reduce(half)
            half = half.to(whole.dtype)
            half = torch.view_as_complex(half) if parameter.is_complex() else half
            parameter.grad = half.to_sparse(1) if parameter.grad.is_sparse else half


class OwnBuffer(Right):
    """Rank 1 keeps a buffer of its own."""

    def __init__(self, bare, optimizer):
        super().__init__(bare, optimizer)
        if dist.get_rank() == 1:
            bare.offset.add_(1.0)


class Drifts(Right):
    """Rank 1's buffer goes another way in the steps."""

    def step(self):
        super().step()
        if dist.get_rank() == 1:
            self.trained()[-1].data.mul_(1.1)


def backend_of(prepared_class):
    class Planted(Naive):
        def prepare(self, model, build_optimizer):
            return prepared_class(model, super().prepare(model, build_optimizer).optimizer)

    return Planted


def with_buffer(workload_class):
    class Buffered(workload_class):
        def build_model(self):
            model = super().build_model()
            model.register_buffer("offset", torch.randn(3))
            return model

    return Buffered


KINDS = {"fp32": Plain, "bf16": Half, "complex": Complex, "sparse": Recommender}
FAULTS = (LayerLeftOut, Twice, Stale, InHalf, OwnBuffer, Drifts)


def take(engine, workload_class, prepared_class):
    backend = backend_of(prepared_class)(transport="gloo")
    vars(backend).update(vars(engine.backend))
    workload = with_buffer(workload_class)(local_batch_size=4, seed=1)
    return run_gate(trainer_of(engine, workload, backend)).model_dump()


def take_all(kind, world, store):
    """One kind of model under every backend."""
    engine = start_engine(job_of(world, backend="naive"), world, store=store)
    found = {one.__name__: take(engine, KINDS[kind], one) for one in (Right, *FAULTS)}
    engine.backend.teardown()
    return found


if __name__ == "__main__":
    leave_what_is_seen(sys.argv[1], KINDS, take_all)
