"""The project that train_hvd.py and its port train_ddp.py belong to: their model, data, flags and
loop, as one file of the user's.

Nothing of Ringside is imported here, nor anything but torch.
"""

import argparse
import collections
import csv
import gzip
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

Ranks = collections.namedtuple("Ranks", "rank size mean")
"""A rank's place, and the mean of a number over all ranks: of either library."""


class Net(nn.Module):
    """A ConvNet with batch norm and dropout, whose logits are scaled by a parameter of its own."""

    def __init__(self, width=16, dropout=0.25):
        super().__init__()
        self.backbone = nn.Sequential(
            *block(1, width),
            *block(width, 2 * width),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(7 * 7 * 2 * width, 10),
        )
        self.scale = nn.Parameter(torch.ones(1))
        self.extra_units = 0

    def forward(self, images):
        for _ in range(self.extra_units):
            unit_of_work()
        return self.scale * self.backbone(images)


def block(inputs, outputs):
    return (
        nn.Conv2d(inputs, outputs, 5, padding=2),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def read_data(source, samples, *, train):
    """The digits of a csv.gz (64 pixels and a label a line), or synthetic ones; every fifth is held
    out."""
    if source == "synthetic":
        seeded = torch.Generator().manual_seed(0)
        labels = torch.randint(10, (samples,), generator=seeded)
        images = 0.15 * torch.randn(10, 1, 28, 28, generator=seeded)[labels] + torch.randn(
            samples, 1, 28, 28, generator=seeded
        )
    else:
        with gzip.open(source, "rt") as file:
            table = torch.tensor([[int(value) for value in row] for row in csv.reader(file)])
        images, labels = table[:, :-1].float().reshape(-1, 1, 8, 8), table[:, -1]
        images = F.interpolate(images, size=(28, 28), mode="bilinear")
        images = (images - images.mean()) / images.std()
    held_out = torch.arange(len(labels)) % 5 == 0
    chosen = ~held_out if train else held_out
    return TensorDataset(images[chosen], labels[chosen])


def schedule(warmup_steps, all_steps):
    """Linear warm-up, then linear decay; by step."""

    def factor(step):
        return (step + 1) / warmup_steps if step < warmup_steps else max(0.05, 1 - step / all_steps)

    return factor


def parse_args(description, mistakes):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", default="synthetic", help="'synthetic', or the path of a csv.gz of digits"
    )
    parser.add_argument("--samples", type=int, default=4096, help="of synthetic data")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01, help="for one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--warmup-steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint", help="written after each epoch")
    parser.add_argument("--resume", help="a checkpoint to begin with")
    parser.add_argument("--no-evaluation", action="store_true")
    parser.add_argument(
        "--extra-work",
        type=float,
        default=0.0,
        help="share of a step's compute that each forward pass adds",
    )
    parser.add_argument("--mistake", choices=mistakes)
    return parser.parse_args()


def unit_of_work(size=torch.ones(48, 48)):  # noqa: B008
    return size @ size


def units_for(net, images, labels, share, passes=30):
    """How many units of work take that share of a forward and a backward pass, by this thread's own
    CPU time.

    Leaves the net, its gradients and the generator as they are: gradients are asked for without
    ``backward()``.
    """
    before, kept = (
        torch.get_rng_state(),
        {name: value.clone() for name, value in net.state_dict().items()},
    )
    steps, units = [], []
    for _ in range(passes):
        started = time.thread_time()
        torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))
        between = time.thread_time()
        for _ in range(50):
            unit_of_work()
        steps.append(between - started)
        units.append((time.thread_time() - between) / 50)
    net.load_state_dict(kept)
    torch.set_rng_state(before)
    return round(share * statistics.median(steps) / statistics.median(units))


def add_work(args, net, dataset, device, ranks):
    """The same in all ranks."""
    if args.extra_work:
        first = [part[: args.batch_size].to(device) for part in dataset.tensors]
        net.extra_units = round(ranks.mean(units_for(net, *first, args.extra_work)))
        print(f"{net.extra_units} units of extra work in each step", flush=True)


def evaluate(args, model, loader, device, ranks):
    model.eval()
    loss = hits = 0.0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images.to(device))
            loss += F.cross_entropy(logits, labels.to(device), reduction="sum").item()
            hits += (logits.argmax(1).cpu() == labels).sum().item()
    model.train()
    count = len(loader.sampler)
    loss, accuracy = ranks.mean(loss / count), ranks.mean(hits / count)
    if ranks.rank == 0:
        print(f"evaluation: loss {loss:.4f}, accuracy {accuracy:.1%}", flush=True)


def train(args, model, optimizer, loader, device, ranks, evaluation):
    """Calls ``evaluation`` after each epoch."""
    scheduler = LambdaLR(optimizer, schedule(args.warmup_steps, args.epochs * len(loader)))
    per_epoch = args.mistake == "schedule-per-epoch"
    steps = 0
    for epoch in range(args.epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if not per_epoch:
                scheduler.step()
            steps += 1
            if steps % 50 == 0 and ranks.rank == 0:
                print(f"epoch {epoch}, step {steps}: loss {loss.item():.4f}", flush=True)
        if per_epoch:
            scheduler.step()
        evaluation()
        if args.checkpoint and ranks.rank == 0:
            torch.save(getattr(model, "module", model).state_dict(), args.checkpoint)
