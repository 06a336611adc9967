"""What ranks do in the tests of the process group over MPI: ``mpirun -np N python cases.py
NAME[:ARGUMENT] ...``, one by one."""

import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

import backends.mpi.process_group  # noqa: F401 - registers the backend
from backends.mpi.library import load_mpi
from measurement.errors import WorldSizeMismatchError

CASES = {}
WORLD = load_mpi().COMM_WORLD
LONG, SHORT = timedelta(seconds=60), timedelta(seconds=3)


def case(function):
    CASES[function.__name__] = function
    return function


def start(timeout=LONG):
    """The default group; (rank, world size)."""
    dist.init_process_group("mpi4py", init_method="mpi4py://", timeout=timeout)
    return dist.get_rank(), dist.get_world_size()


def message_of(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except (RuntimeError, ValueError, WorldSizeMismatchError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


@case
def mixed(count):
    """Random operations, sizes and dtypes, up to 40 under way at once; checked; memory must not
    grow."""
    rank, size = start()
    rng, pending, resident = random.Random(5), [], []
    dtypes = [torch.float32, torch.float64, torch.int64, torch.int8, torch.float16, torch.bfloat16]

    def begin(kind, mine, root, is_async):
        """Works, and tensors with what they come to: rank r gives r + 1."""
        output, before = torch.zeros_like(mine), (rank - 1) % size
        if kind == "sum":
            return [dist.all_reduce(mine, async_op=is_async)], [(mine, sum(range(1, size + 1)))]
        if kind == "broadcast":
            return [dist.broadcast(mine, root, async_op=is_async)], [(mine, root + 1)]
        if kind == "ring":
            return [
                dist.isend(mine, (rank + 1) % size, tag=root),
                dist.irecv(output, before, tag=root),
            ], [(output, before + 1)]
        output = mine.new_zeros(size * len(mine))
        work = dist.all_to_all_single(output, mine.repeat(size), async_op=is_async)
        return [work], list(zip(output.chunk(size), range(1, size + 1), strict=True))

    for number in range(int(count) + 1):
        mine = torch.full((int(10 ** rng.uniform(0, 4.5)),), rank + 1, dtype=rng.choice(dtypes))
        kind = rng.choice(("sum", "broadcast", "ring", "all_to_all"))
        pending.append(begin(kind, mine, rng.randrange(size), rng.random() < 0.8))
        while len(pending) > (rng.randrange(40) if number < int(count) else 0):
            works, expected = pending.pop(0)
            for work in filter(None, works):
                work.wait()
            assert all((tensor == value).all() for tensor, value in expected), expected
        if number % (int(count) // 10) == 0:
            resident.append(psutil.Process().memory_info().rss / 2**20)
    assert max(resident[5:]) - max(resident[2:5]) < 30, resident


@case
def overlap():
    """An asynchronous operation returns before the others have come, and goes on without its
    caller."""
    rank, _ = start()
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1 << 20)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        store.set("issued", "")
        while not work.is_completed():
            time.sleep(0.001)
        assert work.is_success()
    else:
        store.wait(["issued"])
        dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()


@case
def subsets():
    """Groups in any order of ranks, made by their members only; freed; and made again, more often
    than MPI has communicators."""
    rank, size = start()
    evens, last = list(range(0, size, 2)), [size - 1, 0]
    # Only one by its members alone, and at the end: torch 2.15 names later groups differently on
    # ranks that took no part.
    for ranks, is_local in ((last, False), (evens, True)):
        group = dist.new_group(ranks, use_local_synchronization=is_local)
        if rank in ranks:
            tensor = torch.full((1,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(ranks)
            dist.destroy_process_group(group)
    dist.destroy_process_group()
    start()
    for _ in range(300):
        group = dist.new_group(evens)
        if rank in evens:
            dist.barrier(group=group)
            dist.destroy_process_group(group)


@case
def own_store():
    """As Ringside's worker: a store, rank and size of the caller's own; they must be MPI's."""
    store, rank, size = next(dist.rendezvous("mpi4py://"))
    said = message_of(
        dist.init_process_group, "mpi4py", store=store, rank=rank, world_size=size + 1
    )
    assert (
        f"WorldSizeMismatchError: asked for rank {rank} of {size + 1}, and MPI counts rank {rank} of {size}"
        in said
    )
    dist.init_process_group(
        "mpi4py", store=dist.PrefixStore("again", store), rank=rank, world_size=size
    )
    dist.barrier()


@case
def refusals():
    """What cannot be done says so, on every rank alike, and the group goes on."""
    _, size = start()
    assert "MPI has no ReduceOp.PREMUL_SUM" in message_of(
        dist.all_reduce, torch.ones(2), op=dist._make_nccl_premul_sum(2.0)
    )
    assert "MPI has no ReduceOp.AVG of torch.int64 tensors; it has SUM, " in message_of(
        dist.all_reduce, torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG
    )
    assert "use to_dense()" in message_of(dist.all_reduce, torch.eye(3).to_sparse())
    assert "must have" in message_of(
        dist.all_gather_into_tensor, torch.zeros(size * 2 + 1), torch.zeros(2)
    )
    assert "one tensor for each rank" in message_of(
        dist.all_gather, [torch.zeros(2)] * (size + 1), torch.zeros(2)
    )
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


@case
def operations():
    """Each on every dtype."""
    from tests.distributed.ranks import operations

    start()
    operations.run_all()


@case
def absent(folder):
    """Rank 0 stays away: the others' errors say in what, who and out of how many; by wait, future
    and the call itself.

    They are written to files, since mpirun may drop what was printed shortly before the MPI_Abort
    with which this ends.
    """
    rank, _ = start(timeout=SHORT)
    store = dist.distributed_c10d._get_default_store()
    quiet = dist.new_group(timeout=SHORT)
    if rank > 0:
        work = dist.all_reduce(torch.ones(4, 3), async_op=True)
        queued = dist.broadcast(torch.ones(2), 0, async_op=True)
        told = [message_of(work.wait), message_of(work.get_future().wait), message_of(queued.wait)]
        told += [message_of(dist.barrier, group=quiet), message_of(dist.all_reduce, torch.ones(1))]
        Path(folder, f"rank-{rank}.txt").write_text("\n".join(told))
        store.set(f"raised on {rank}", "")
    # The first that leaves ends the job by MPI_Abort, so all of them stay until the last has
    # written.
    store.wait(["raised on 1", "raised on 2"], LONG)


@case
def killed():
    """The last rank is killed; the others raise, and the first of them ends the job by
    MPI_Abort."""
    rank, size = start(timeout=SHORT)
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1000))


@case
def failing():
    """One rank fails by itself while the others wait for it: the job ends long before their time is
    over."""
    rank, _ = start(timeout=LONG)
    dist.barrier()
    if rank == 0:
        raise ValueError("rank 0 has had enough")
    dist.all_reduce(torch.ones(1000))


@case
def forgetful():
    """Ends with a group still there and an operation under way."""
    start()
    dist.all_reduce(torch.ones(1000), async_op=True)


def main():
    torch.set_num_threads(1)
    for asked in sys.argv[1:]:
        name, _, argument = asked.partition(":")
        CASES[name](*filter(None, [argument]))
        if WORLD.rank == 0:
            print("passed", name, argument, flush=True)
        if name != "forgetful" and dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
