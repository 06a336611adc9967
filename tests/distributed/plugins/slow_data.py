"""MNIST from a slow disk: every sample takes its time. Named by path in plans."""

import time

from workloads.data.input import Transformed, length
from workloads.mnist import Mnist

SECONDS = 0.03


class Slow(Transformed):
    """Sleeps before each sample."""

    def __init__(self, samples):
        super().__init__(samples, lambda sample: sample)

    def __len__(self):
        return length(self.samples)

    def __getitem__(self, index):
        time.sleep(SECONDS)
        return super().__getitem__(index)


class SlowMnist(Mnist):
    """Trains as ``mnist`` does."""

    def read_training_set(self):
        return Slow(super().read_training_set())
