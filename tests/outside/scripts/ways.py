"""One training, written in many ways that people use; each way is the same training as ``plain``
unless it says otherwise.

``ways.py WAY [LIBRARY]`` trains under DDP, Horovod or alone. In the ways of ``WAITS``, ranks wait
for rank 1, which rests.
"""

import contextlib
import sys
import time

import torch
from torch.distributed import all_reduce
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WAY, LIBRARY = sys.argv[1], (*sys.argv[2:], "alone")[0]
rank, size = 0, 1
if LIBRARY == "horovod":
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
elif LIBRARY == "ddp":
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(3)
x, y = torch.randn(256, 16), torch.randint(0, 4, (256,))
data = TensorDataset(x, y)
net = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))


class Module(torch.nn.Module):
    """Holds the network, as a class of Lightning's does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        return self.model(inputs)


class Renamed(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.before, self.after = model[0], model[2]

    def forward(self, inputs):
        return self.after(torch.relu(self.before(inputs)))


def loader(batch=16):
    return DataLoader(
        data,
        batch_size=batch,
        sampler=DistributedSampler(data, num_replicas=size, rank=rank, shuffle=False),
    )


def epochs(make):
    while True:
        yield from make()


made, small = loader(), loader(8)


def kept():
    return made


def looked_at():
    next(iter(made))
    return epochs(kept)


SOURCES = {
    "in_the_loop": lambda: epochs(loader),
    "looks_first": looked_at,
    "passes": lambda: epochs(lambda: small),
    "all_first": lambda: epochs(lambda: small),
}
model = {"module": Module, "renamed": Renamed}.get(WAY, lambda one: one)(net)
RATE = 2e-5 if WAY in ("small_rate", "rounds_away") else 0.05
if WAY == "rounds_away":
    model.bfloat16()
if WAY == "scaler_off":
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
elif WAY == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
if LIBRARY == "horovod":
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
elif LIBRARY == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
scaler = torch.amp.GradScaler("cpu", enabled=False)
warm_up = (
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    if WAY == "warm_up"
    else None
)


def loss_of(batch):
    inputs = batch[0].to(next(model.parameters()).dtype)
    return torch.nn.functional.cross_entropy(model(inputs), batch[1])


def average(value):
    """Mean over ranks, as a script that knows one library has it."""
    if LIBRARY == "horovod":
        return hvd.allreduce(value)
    all_reduce(value)
    return value / size


def meet():
    (hvd.barrier if LIBRARY == "horovod" else torch.distributed.barrier)()


def wait_in_step(loss):
    if rank == 1:
        time.sleep(0.1)
    if WAY == "averages":
        average(loss.detach().clone())
        average(torch.ones(1))
    elif WAY == "asks":
        work = all_reduce(loss.detach().clone(), async_op=True)
        work.wait()
    elif WAY == "meets":
        meet()


WAITS = ("averages", "asks", "meets", "late", "late_clips")
CLIPS = WAY == "late_clips"
source = SOURCES.get(WAY, lambda: epochs(kept))()
while True:
    optimizer.zero_grad()
    if WAY == "all_first":
        for batch in [next(source), next(source)]:
            (loss_of(batch) / 2).backward()
    elif WAY == "passes":
        for _ in range(2):
            (loss_of(next(source)) / 2).backward()
    elif WAY == "scaler_off":
        scaler.scale(loss_of(next(source))).backward()
    else:
        loss = loss_of(next(source))
        if WAY in WAITS:
            wait_in_step(loss)
        loss.backward()
    if CLIPS and LIBRARY == "horovod":
        optimizer.synchronize()
    if CLIPS:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if WAY == "scaler_off":
        scaler.step(optimizer)
        scaler.update()
    else:
        with (
            optimizer.skip_synchronize()
            if CLIPS and LIBRARY == "horovod"
            else contextlib.nullcontext()
        ):
            optimizer.step()
    if warm_up is not None:
        warm_up.step()
