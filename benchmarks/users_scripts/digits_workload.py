"""The training of train_hvd.py and train_ddp.py as one workload: the same model, data, optimizer
and schedule."""

import itertools

import torch
import torch.nn.functional as F
from digits_net import Net, read_data, schedule
from pydantic import BaseModel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from workloads.base import Workload


class Options(BaseModel, extra="forbid"):
    data: str = "synthetic"
    samples: int = 4096
    width: int = 16
    dropout: float = 0.25
    epochs: int = 4
    learning_rate: float = 0.02
    momentum: float = 0.9
    warmup_steps: int = 50
    extra_units: int = 0


class DigitsTraining(Workload):
    Options = Options
    sample_unit = "images"

    def build_model(self):
        net = Net(self.options.width, self.options.dropout)
        net.extra_units = self.options.extra_units
        return net

    def build_optimizer(self, model):
        given = self.options
        optimizer = torch.optim.SGD(
            model.parameters(), lr=given.learning_rate, momentum=given.momentum
        )
        all_steps = given.epochs * (given.samples * 4 // 5 // (2 * self.local_batch_size))
        self.schedule = LambdaLR(optimizer, schedule(given.warmup_steps, all_steps))
        return optimizer

    def after_step(self, step, *, model, optimizer):
        self.schedule.step()

    def batches(self, *, rank, world_size, device):
        images = read_data(self.options.data, self.options.samples, train=True)
        sampler = DistributedSampler(
            images, num_replicas=world_size, rank=rank, seed=self.seed, drop_last=True
        )
        loader = DataLoader(
            images, batch_size=self.local_batch_size, sampler=sampler, drop_last=True
        )
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            for inputs, labels in loader:
                yield inputs.to(device), labels.to(device)

    def compute_loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    def count_samples(self, batch):
        return len(batch[1])
