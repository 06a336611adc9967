"""Workloads in one file: images from a slow disk that all ranks share, as many training images a second as it can read."""

import time

from workloads.data.input import Transformed
from workloads.digits import Digits
from workloads.imagenet import Imagenet


class Disk(Transformed):
    """Reads each sample in a time of its own."""

    seconds = 0.0

    def __init__(self, samples):
        super().__init__(samples, lambda sample: sample)

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


class SlowDisk:
    """Mixed into a workload: its training set lies on such a disk."""

    def read_training_set(self):
        return Disk(super().read_training_set())

    def batches(self, *, rank, world_size, device):
        self.training_set.seconds = world_size / self.options.reads_per_s
        return super().batches(rank=rank, world_size=world_size, device=device)


class SlowDigits(SlowDisk, Digits):
    """``digits``, MNIST's small sister, which comes with Ringside."""

    class Options(Digits.Options):
        """What a plan may set under ``workload_options``."""

        reads_per_s: float = 4000.0
        """Training images that all ranks together read in a second."""


class SlowImagenet(SlowDisk, Imagenet):
    """``imagenet``: folders of JPEG files."""

    class Options(Imagenet.Options):
        """What a plan may set under ``workload_options``."""

        reads_per_s: float = 100.0
        """Training images that all ranks together read in a second."""
