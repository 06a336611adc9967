"""A workload whose images are on a slow disk that all ranks share, with a limit of training images
per second.
"""

import time

from workloads.data.input import Transformed
from workloads.digits import Digits


class Disk(Transformed):
    """Reads each sample slowly."""

    def __init__(self, samples, seconds):
        super().__init__(samples, lambda sample: sample)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


class SlowDigits(Digits):
    """``digits``, a small data set like MNIST, which comes with Ringside."""

    class Options(Digits.Options):
        """What a plan may set under ``workload_options``."""

        reads_per_s: float = 4000.0
        """Training images that all ranks together read in a second."""

    def batches(self, *, rank, world_size, device):
        self.training_set = Disk(self.read_training_set(), world_size / self.options.reads_per_s)
        return super().batches(rank=rank, world_size=world_size, device=device)
