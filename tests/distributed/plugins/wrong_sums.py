"""Backends whose all_reduce gives a wrong value: what the check of a micro-benchmark must catch."""

from __future__ import annotations

from backends.ddp import DDP
from backends.torch_distributed import TorchCommunicator


class AddsOne(TorchCommunicator):
    """Every sum is one too large, from the n-th on."""

    after = 0
    calls = 0

    def all_reduce(self, tensor, *, op):
        super().all_reduce(tensor, op=op)
        self.calls += 1
        if self.calls > self.after:
            tensor += 1


class AddsOneLater(AddsOne):
    """Not yet in the gate, which runs each of two sizes once, nor in the trials of the block
    length."""

    after = 2 + 2 * (1 + 4)


class Wrong(DDP):
    """Wrong from the first."""

    def communicator(self):
        return AddsOne()


class WrongLater(DDP):
    """Wrong in the first block."""

    def communicator(self):
        return AddsOneLater()
