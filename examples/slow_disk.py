"""A workload whose images lie on a slow disk that all ranks share, which gives so many training images a second."""

import time

from workloads.data.input import Transformed
from workloads.digits import Digits


class Disk(Transformed):
    """Takes its time to read each sample."""

    def __init__(self, samples, seconds):
        super().__init__(samples, lambda sample: sample)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


class SlowDigits(Digits):
    """``digits``, MNIST's small sister, which comes with Ringside."""

    class Options(Digits.Options):
        """What a plan may set under ``workload_options``."""

        reads_per_s: float = 4000.0
        """Training images that all ranks together read in a second."""

    def batches(self, *, rank, world_size, device):
        self.training_set = Disk(self.read_training_set(), world_size / self.options.reads_per_s)
        return super().batches(rank=rank, world_size=world_size, device=device)
