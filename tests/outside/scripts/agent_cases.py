"""Scripts of one process that train in unusual ways, by name; as users write them, they know
nothing of Ringside."""

import atexit
import contextlib
import functools
import itertools
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader


def data(workers=0, size=4):
    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    whole = [{"x": x[number], "labels": {"y": y[number]}} for number in range(64)]
    return DataLoader(whole, batch_size=size, num_workers=workers)


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.1), torch.nn.Linear(5, 3)
    )


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch["x"]), batch["labels"]["y"])


def forever(loader):
    while True:
        yield from loader


def plain(steps=10**9, model=None, step=None):
    """Ends after so many steps."""
    model = model or net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    take = step or optimizer.step
    for number, batch in enumerate(forever(data())):
        if number == steps:
            return
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        take() if step is None else take(optimizer)


def tidies_up():
    atexit.register(print, "atexit", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        atexit.register(
            lambda: print("left behind" if Path(folder).exists() else "removed", flush=True)
        )
        try:
            plain()
        finally:
            print("finally", flush=True)


def cannot_be_left():
    while True:
        with contextlib.suppress(SystemExit):
            plain()
        print("goes on", flush=True)


def takes_long_to_end():
    try:
        plain()
    finally:
        time.sleep(10**6)


def join(folder, rank=0, size=1):
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=size)


def tidy_rank(rank, folder):
    join(folder, rank, 2)
    try:
        tidies_up()
    finally:
        torch.distributed.destroy_process_group()
        print("left the group", flush=True)


def starts_tidy_ranks(method):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(tidy_rank, (folder,), 2, start_method=method)
    print("joined", flush=True)


spawns_tidy_ranks = functools.partial(starts_tidy_ranks, "spawn")
forks_tidy_ranks = functools.partial(starts_tidy_ranks, "fork")


def lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for batch in forever(data()):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


def evaluates():
    """Evaluates and saves after every 8 steps; it accumulates two batches a step."""
    model, held_out = net(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(forever(data())):
        (loss_of(model, batch) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        if number % 16 == 15:
            model.eval()
            with torch.no_grad():
                for _ in range(150):
                    for held in held_out:
                        loss_of(model, held)
            torch.save(model.state_dict(), "/dev/null")
            model.train()


def stepped(groups):
    """A step for each group of batches, with a backward pass for each of them."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for group in groups:
        for batch in group:
            (loss_of(model, batch) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def ahead(loader):
    """Each batch once the next one is there."""
    iterator = iter(loader)
    batch = next(iterator)
    for following in iterator:
        yield batch
        batch = following
    yield batch


def prefetches_for_several_losses():
    stepped([batch, batch] for _ in itertools.count() for batch in ahead(data(size=8)))


def overflows():
    """Every third step overflows, and GradScaler leaves it out."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=8.0, growth_interval=10**6, backoff_factor=0.999
    )
    for number, batch in enumerate(forever(data())):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
        scaler.scale(loss * (float("inf") if number % 3 == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def compiled():
    """The model and the optimizer's step, which then waits for others, are compiled by a backend
    that needs no compiler."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    model = torch.compile(net(), backend="eager")

    def step(optimizer):
        optimizer.step()
        torch.distributed.all_reduce(torch.ones(1), async_op=True).wait()

    plain(model=model, step=torch.compile(step, backend="eager"))


class Odd:
    @property
    def shape(self):
        raise RuntimeError("not yet")


def odd():
    """Its batches cannot be looked at once it has taken 15 steps; it ends after 40."""
    model, x, y = net(), torch.randn(4, 6), torch.randint(0, 3, (4,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    taken = 0
    for _ in DataLoader(
        range(40), batch_size=None, collate_fn=lambda number: [Odd() if number > 15 else x]
    ):
        optimizer.zero_grad()
        loss_of(model, {"x": x, "labels": {"y": y}}).backward()
        optimizer.step()
        taken += 1
    print("ended by itself", taken)


def spawned(rank, folder):
    join(folder, rank, 2)
    plain(20 if rank == 0 else 40)
    if rank == 0:
        raise KeyError("rank 0")


def spawns():
    """Starts its ranks itself, of which one fails."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(spawned, (folder,), 2)


def shards():
    """FSDP2 over one rank."""
    from torch.distributed.fsdp import fully_shard

    with tempfile.TemporaryDirectory() as folder:
        join(folder)
        model = net()
        fully_shard(model)
        plain(model=model)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
