"""Operations on every dtype over the group, checked against what torch computes itself.

``mpirun -np N python cases.py operations``: on tensors as they are, and on tensors broken up as
those beyond 32-bit counts are.
"""

import functools

import torch
import torch.distributed as dist

from backends.mpi import operations as mpi_operations

KINDS = {
    "SUM MAX BAND BOR BXOR": "bool",
    "SUM PRODUCT MIN MAX BAND BOR BXOR": "uint8 int8 int16 int32 int64 uint16 uint32 uint64",
    "SUM AVG PRODUCT MIN MAX": "float16 bfloat16 float32 float64",
    "SUM AVG PRODUCT": "complex64 complex128",
    "": "float8_e4m3fn",
}
"""Dtypes by how they can be reduced."""
TWO_BY_TWO = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
SHAPE = (3, 4)
SMALL_LIMIT_BYTES = 48
"""A tensor of ours has 12 to 192 bytes."""


def values(dtype, size, *, to=0):
    """What each rank has for a rank: small whole numbers, exact in every dtype."""
    rng = torch.Generator().manual_seed(to)
    return [torch.randint(0, 4, SHAPE, generator=rng).float().to(dtype) for _ in range(size)]


def exact(tensor):
    """In a dtype in which torch computes everything."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def combined(op, tensors):
    """What a reduction must give."""
    found = functools.reduce(TWO_BY_TWO[op], map(exact, tensors)).to(tensors[0].dtype)
    return found / len(tensors) if op == "AVG" else found


def check(what, found, expected):
    assert torch.equal(exact(found), exact(expected)), f"{what}: {found} instead of {expected}"


def reductions(dtype, op, rank, size):
    mine, wanted = values(dtype, size), combined(op, values(dtype, size))
    tensor = mine[rank].t().contiguous().t()  # not contiguous
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, op)
    # dist.all_reduce refuses some by itself
    dist.distributed_c10d._get_default_group().allreduce([tensor], options).wait()
    check(f"all_reduce {op}", tensor, wanted)
    if op == "SUM":
        dist.reduce(mine[rank], size - 1)
        check("reduce", mine[rank], wanted if rank == size - 1 else values(dtype, size)[rank])
        output, blocks = (
            torch.empty(SHAPE, dtype=dtype),
            [values(dtype, size, to=n) for n in range(size)],
        )
        dist.reduce_scatter(output, [block[rank] for block in blocks])
        check("reduce_scatter", output, combined(op, blocks[rank]))


def moves(dtype, rank, size):
    everyones, outputs = values(dtype, size), [torch.empty(SHAPE, dtype=dtype) for _ in range(size)]
    together, mine = torch.cat(everyones), everyones[rank].t().contiguous().t()
    dist.all_gather(outputs, mine)
    check("all_gather", torch.cat(outputs), together)
    whole = torch.empty_like(together)
    dist.all_gather_into_tensor(whole, everyones[rank])
    check("all_gather_into_tensor", whole, together)
    dist.gather(mine, outputs if rank == 1 else None, dst=1)
    check("gather", torch.cat(outputs), together)
    dist.scatter(outputs[0], everyones[::-1] if rank == 1 else None, src=1)
    check("scatter", outputs[0], everyones[size - 1 - rank])
    dist.all_to_all_single(whole, torch.cat([values(dtype, size, to=n)[rank] for n in range(size)]))
    check("all_to_all", whole, torch.cat(values(dtype, size, to=rank)))
    works = [dist.isend(mine, (rank + 1) % size), dist.irecv(outputs[0], (rank - 1) % size)]
    for work in works:
        work.wait()
    check("send_recv", outputs[0], everyones[rank - 1])
    dist.broadcast(mine, size - 1)
    check("broadcast", mine, everyones[-1])


def run_all():
    """Over the default group."""
    place, usual = (dist.get_rank(), dist.get_world_size()), mpi_operations.LIMIT_BYTES
    for limit in (usual, SMALL_LIMIT_BYTES):
        mpi_operations.LIMIT_BYTES = limit
        for ops, names in KINDS.items():
            for dtype in (getattr(torch, name) for name in names.split()):
                moves(dtype, *place)
                for op in ops.split():
                    reductions(dtype, op, *place)
    mpi_operations.LIMIT_BYTES = usual
