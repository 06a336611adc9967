"""A small script of a user's, under Horovod, DDP or alone, that may end or crash; it
knows nothing of Ringside."""

import argparse
import contextlib

import torch
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--by", choices=("ddp", "horovod", "nothing"), default="nothing")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--crash-at", type=int)
parser.add_argument("--no-loader", action="store_true")
parser.add_argument("--unlike-shards", action="store_true")
given = parser.parse_args()

rank, size = 0, 1
if given.by == "horovod":
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
elif given.by == "ddp":
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(7)
data = TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
sampler = DistributedSampler(data, num_replicas=size, rank=rank)
loader = [data[:8]] * 16 if given.no_loader else DataLoader(data, batch_size=8, sampler=sampler)
if given.unlike_shards:
    loader = DataLoader(torch.utils.data.Subset(data, range(8 * (24 - 3 * rank))), batch_size=8)
torch.manual_seed(given.seed)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
if given.by == "horovod":
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # which takes a step without gradients
elif given.by == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
steps = 0
try:
    while steps < given.steps:
        sampler.set_epoch(steps // 16)
        with (
            Join([model]) if given.unlike_shards and given.by == "ddp" else contextlib.nullcontext()
        ):
            for inputs, targets in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                steps += 1
                if steps == given.crash_at:
                    raise ValueError("the disk of the user is full")
                if steps == given.steps:
                    break
        if given.unlike_shards and given.by == "horovod":
            hvd.join()
finally:
    if given.by == "ddp":
        torch.distributed.destroy_process_group()
        print("left the group", flush=True)
