"""Workloads in one file: images from a slow disk that all ranks share, as many training images a second as it can read."""

import time

from workloads.data.input import Augmented, Transformed
from workloads.digits import Digits
from workloads.imagenet import Imagenet
from workloads.mnist import Mnist


class Disk(Transformed):
    """Takes its time to read each sample."""

    def __init__(self, samples, seconds):
        super().__init__(samples, lambda sample: sample)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


class OnSlowDisk:
    """Mixed into a workload: the samples that it trains on lie on such a disk."""

    def batches(self, *, rank, world_size, device):
        samples, seconds = self.read_training_set(), world_size / self.options.reads_per_s
        if isinstance(samples, Augmented):  # what it draws for a sample, it draws after reading
            samples.samples = Disk(samples.samples, seconds)
        else:
            samples = Disk(samples, seconds)
        self.training_set = samples
        return super().batches(rank=rank, world_size=world_size, device=device)

    def compute_loss(self, model, batch):
        time.sleep(self.options.accelerator_s)
        return super().compute_loss(model, batch)


class SlowDigits(OnSlowDisk, Digits):
    """``digits``, MNIST's small sister, which comes with Ringside."""

    class Options(Digits.Options):
        """What a plan may set under ``workload_options``."""

        reads_per_s: float = 4000.0
        """Training images that all ranks together read in a second."""
        accelerator_s: float = 0.0
        """So long each step waits besides, as a rank waits for its GPU: a few cores can then stand for several GPUs."""


class SlowMnist(OnSlowDisk, Mnist):
    """``mnist``: the four files, in the folder ``data_dir``."""

    class Options(Mnist.Options):
        """What a plan may set under ``workload_options``."""

        reads_per_s: float = 4000.0
        """Training images that all ranks together read in a second."""
        accelerator_s: float = 0.0
        """So long each step waits besides, as a rank waits for its GPU: a few cores can then stand for several GPUs."""


class SlowImagenet(OnSlowDisk, Imagenet):
    """``imagenet``: folders of JPEG files."""

    class Options(Imagenet.Options):
        """What a plan may set under ``workload_options``."""

        reads_per_s: float = 100.0
        """Training images that all ranks together read in a second."""
        accelerator_s: float = 0.0
        """So long each step waits besides, as a rank waits for its GPU: a few cores can then stand for several GPUs."""
