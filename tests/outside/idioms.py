"""Workloads as people write them: each with one ordinary idiom, or one ordinary mistake."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from workloads import Workload
from workloads.digits import Digits


class Plain(Workload):
    """A line through ten numbers, on samples that a generator makes."""

    def build_model(self):
        return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def samples(self, rank):
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        while True:
            inputs = torch.randn(self.local_batch_size, 10, generator=generator)
            yield inputs, inputs.sum(dim=1, keepdim=True)

    def batches(self, *, rank, world_size, device):
        for inputs, targets in self.samples(rank):
            yield inputs.to(device), targets.to(device)

    def compute_loss(self, model, batch):
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    def count_samples(self, batch):
        return len(batch[0])


class Scheduled(Plain):
    """A schedule by step, and a moving average of the weights."""

    def build_optimizer(self, model):
        optimizer = super().build_optimizer(model)
        self.schedule = LambdaLR(optimizer, lambda step: 0.5**step)
        return optimizer

    def after_step(self, step, *, model, optimizer):
        self.schedule.step()
        parameters = [parameter.detach() for parameter in model.parameters()]
        if step == 1:
            self.average = [parameter.clone() for parameter in parameters]
        for mine, theirs in zip(self.average, parameters, strict=True):
            mine.lerp_(theirs, 0.1)


class ScheduledDigits(Digits):
    """A rate that halves with each step."""

    def build_optimizer(self, model):
        optimizer = super().build_optimizer(model)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return optimizer

    def after_step(self, step, *, model, optimizer):
        self.schedule.step()


class FewerThanSaid(Digits):
    def epoch_batches(self, epoch, **where):
        yield from itertools.islice(super().epoch_batches(epoch, **where), 2)


class TwoOptimizers(Plain):
    def build_optimizer(self, model):
        return [
            torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9),
            torch.optim.Adam(model[2].parameters(), lr=0.01),
        ]


class Recommender(Plain):
    """An embedding with sparse gradients beside dense layers, with an optimizer each."""

    def build_model(self):
        return Bags()

    def build_optimizer(self, model):
        return [
            torch.optim.SparseAdam(model.rows.parameters(), lr=0.01),
            torch.optim.SGD(model.classify.parameters(), lr=0.05),
        ]

    def samples(self, rank):
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        while True:
            rows = torch.randint(100, (self.local_batch_size, 4), generator=generator)
            yield rows, rows.float().mean(dim=1, keepdim=True) / 100


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.EmbeddingBag(100, 8, sparse=True)
        self.classify = nn.Linear(8, 1)

    def forward(self, rows):
        return self.classify(self.rows(rows))


class Unused(Plain):
    """A layer that takes no part in the loss, and one that is frozen."""

    def build_model(self):
        model = super().build_model()
        model[0].spare = nn.Linear(3, 3)
        model[2].bias.requires_grad_(False)
        return model


class Tied(Plain):
    """One matrix for tokens in and out, and a model that returns a dict."""

    def build_model(self):
        return TiedModel()

    def samples(self, rank):
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        while True:
            tokens = torch.randint(20, (self.local_batch_size, 5), generator=generator)
            yield tokens[:, :-1], tokens[:, 1:]

    def compute_loss(self, model, batch):
        tokens, following = batch
        return nn.functional.cross_entropy(
            model(tokens)["logits"].flatten(0, 1), following.flatten()
        )


class TiedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, tokens):
        return {"logits": self.out(self.tokens(tokens))}


class Checkpointed(Plain):
    """Activations that are computed again in the backward pass."""

    def build_model(self):
        return CheckpointedModel()


class CheckpointedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(10, 16), nn.Tanh())
        self.out = nn.Linear(16, 1)

    def forward(self, inputs):
        return self.out(torch.utils.checkpoint.checkpoint(self.inner, inputs, use_reentrant=False))


class Finite(Plain):
    """Five batches, and no more."""

    def samples(self, rank):
        return itertools.islice(super().samples(rank), 5)


class Uneven(Plain):
    """Batches of 1, 2, 3, 4, 1, ... samples, which weigh by them."""

    weighs_micro_batches = True

    def samples(self, rank):
        for number, (inputs, targets) in enumerate(super().samples(rank)):
            size = min(1 + number % 4, len(inputs))
            yield inputs[:size], targets[:size]


class Compiled(Plain):
    """Traced again as Inductor would have it, without the minutes of its compiler."""

    def build_model(self):
        return torch.compile(super().build_model(), backend="aot_eager")


class Plateau(Plain):
    """Each rank follows its own loss, which is noise of its own."""

    def build_optimizer(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return optimizer

    def compute_loss(self, model, batch):
        loss = super().compute_loss(model, batch)
        self.loss = loss.item()
        return loss

    def after_step(self, step, *, model, optimizer):
        self.schedule.step(self.loss)


class PlateauDigits(Digits):
    """The same in a training with epochs."""

    build_optimizer, after_step = Plateau.build_optimizer, Plateau.after_step

    def compute_loss_and_hits(self, model, batch):
        loss, hits = super().compute_loss_and_hits(model, batch)
        self.loss = loss.item()
        return loss, hits

    def compute_loss(self, model, batch):
        loss = super().compute_loss(model, batch)
        self.loss = loss.item()
        return loss


class Skipping(nn.Module):
    """A layer that every other step leaves out, as stochastic depth does; the first step has it."""

    def __init__(self):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 1)
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        x = self.first(x)
        if self.steps % 2:
            x = x + self.layer(x)
        return self.last(x)


class LayerDrop(Plain):
    """With weight decay, which steps of zeros apply and missing ones do not."""

    def build_model(self):
        return Skipping()

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)


class NoOptimizerClass(Plain):
    def build_optimizer(self, model):
        return LambdaLR(super().build_optimizer(model), lambda step: 1.0)


class TupleLoss(Plain):
    def compute_loss(self, model, batch):
        loss = super().compute_loss(model, batch)
        return loss, {"loss": loss.item()}


class LossPerSample(Plain):
    def compute_loss(self, model, batch):
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets, reduction="none")


class OwnBackward(Plain):
    def compute_loss(self, model, batch):
        inputs, _ = batch
        penalty = 0.01 * model(inputs).square().mean()
        penalty.backward()
        return super().compute_loss(model, batch)


class NanLoss(Plain):
    def compute_loss(self, model, batch):
        return super().compute_loss(model, batch) * float("nan")


class NanGradient(Plain):
    """The loss is finite; the square root's slope at 0 is not."""

    def compute_loss(self, model, batch):
        outputs = model(batch[0])
        return super().compute_loss(model, batch) + (outputs - outputs).abs().sum().sqrt()


class Diverges(Plain):
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1e20)


class SameShard(Plain):
    def samples(self, rank):
        return super().samples(0)


class NoBatches(Plain):
    def samples(self, rank):
        return iter(())


class CountsTensors(Plain):
    def count_samples(self, batch):
        return batch[0].shape


class RaisesInLoss(Plain):
    def compute_loss(self, model, batch):
        inputs, targets = batch
        weights = {"mse": 1.0}
        return weights["mae"] * nn.functional.mse_loss(model(inputs), targets)


class RaisesInLoader(Plain):
    """In a loader process, in the fourth batch."""

    def batches(self, *, rank, world_size, device):
        yield from torch.utils.data.DataLoader(
            Damaged(rank), batch_size=self.local_batch_size, num_workers=1
        )


class Damaged(torch.utils.data.Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index >= 60:
            raise OSError(f"sample {index} is damaged")
        inputs = torch.randn(10, generator=torch.Generator().manual_seed(2 * index + self.rank))
        return inputs, inputs.sum(dim=0, keepdim=True)


class SparseUnderAdam(Recommender):
    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters())


class Unfinished(Workload):
    def build_model(self):
        return nn.Linear(1, 1)
