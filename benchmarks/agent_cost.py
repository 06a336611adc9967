"""What does the agent cost a script in each step? At most 20 µs are wanted.

    python benchmarks/agent_cost.py [--blocks 60] [--steps 300]
    horovodrun -np 1 python benchmarks/agent_cost.py --horovod [...]

One process takes tiny steps on the CPU, from a loader, in blocks: with the agent in torch, and with
everything as torch has it, in random order. Printed: µs per step of either, and the mean difference
over pairs of blocks with its 95% interval, by the clock and by the thread's CPU time. ``--horovod``
wraps the optimizer, so that the hooks fire twice. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from torch.optim import optimizer as hooks
from torch.utils.data import DataLoader, TensorDataset, dataloader

from measurement.agent.ringside_agent import settings, watching
from reports.statistics.student import t_interval

PATCHED = (
    (torch.autograd, "backward"),
    (dataloader._BaseDataLoaderIter, "__next__"),
    (dataloader._BaseDataLoaderIter, "__init__"),
    (DataLoader, "__iter__"),
)
HOOKS = (hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks)


def state() -> list[Any]:
    """What the agent changes in torch, as it is now."""
    return [getattr(owner, name) for owner, name in PATCHED] + [
        dict(registered) for registered in HOOKS
    ]


def put(found: list[Any]) -> None:
    """Have torch as it was then."""
    for (owner, name), value in zip(PATCHED, found, strict=False):
        setattr(owner, name, value)
    for registered, then in zip(HOOKS, found[len(PATCHED) :], strict=True):
        registered.clear()
        registered.update(then)


def batches(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def make_step(*, horovod: bool) -> Callable[[], None]:
    """Return a function that takes a step."""
    model = torch.nn.Linear(4, 4)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    if horovod:
        import horovod.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    loader = batches(
        DataLoader(TensorDataset(torch.randn(4096, 4), torch.randn(4096, 4)), batch_size=4)
    )

    def step() -> None:
        x, y = next(loader)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def us_per_step(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """By the clock, and of the thread's CPU time."""
    began, cpu = perf_counter_ns(), thread_time_ns()
    for _ in range(steps):
        step()
    return (perf_counter_ns() - began) / 1e3 / steps, (thread_time_ns() - cpu) / 1e3 / steps


def main() -> None:
    """Print the cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=60, help="of either kind")
    parser.add_argument("--steps", type=int, default=300, help="of a block")
    parser.add_argument("--horovod", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    bare = state()

    nobody = settings.Settings(driver="", key_file="", arm="", launch=0)
    recorder = watching.watch_torch(nobody).recorder
    recorder.before_step = recorder.after_step = recorder.before_backward = recorder.on_batch = (
        None  # as in blocks
    )
    step = make_step(horovod=given.horovod)
    us_per_step(step, given.steps)
    watched = state()
    found: dict[str, list[tuple[float, float]]] = {"bare": [], "watched": []}
    for _ in range(given.blocks):
        for kind in random.sample(["bare", "watched"], 2):
            put(bare if kind == "bare" else watched)
            recorder.begin(-1)
            found[kind].append(us_per_step(step, given.steps))
    for number, clock in enumerate(("clock", "CPU time")):
        show(clock, *([block[number] for block in found[kind]] for kind in ("bare", "watched")))


def show(clock: str, bare: Sequence[float], watched: Sequence[float]) -> None:
    """Print both and what one costs more."""
    differences = [one - other for one, other in zip(watched, bare, strict=True)]
    mean = t_interval(differences, confidence=0.95)
    assert mean is not None
    print(
        f"{clock}: bare {median(bare):.1f}, watched {median(watched):.1f} µs per step (medians of blocks); the agent costs "
        f"{mean.value:.2f} µs [{mean.ci_low:.2f} {mean.ci_high:.2f}], median over pairs {median(differences):.2f}"
    )


if __name__ == "__main__":
    main()
