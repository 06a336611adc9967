"""A workload that writes bytes which are no UTF-8, and then more than a pipe holds.

Named by path on command lines."""

import os

from workloads.digits import Digits

LATE_STEP = 20


class BinaryOutput(Digits):
    """Later than any trial of it."""

    steps = 0

    def compute_loss(self, model, batch):
        BinaryOutput.steps += 1
        if BinaryOutput.steps == LATE_STEP:
            for descriptor in (1, 2):
                os.write(descriptor, b"caf\xe9 \xff\n" + b"x" * 100_000 + b"\n")
        return super().compute_loss(model, batch)
