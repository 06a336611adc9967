"""Operations on every dtype over the group, checked against what torch computes itself.

``mpirun -np N python cases.py operations:FILE``: FILE gets two tables as JSON, of tensors as they
are and of tensors broken up as those beyond 32-bit counts are.
"""

import functools
import json
from pathlib import Path

import torch
import torch.distributed as dist

import backends.mpi.process_group  # noqa: F401 - registers the backend
from backends.mpi import operations as mpi_operations

NAMES = """
    bool uint8 int8 int16 int32 int64 uint16 uint32 uint64
    float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn
"""
DTYPES = {name: getattr(torch, name) for name in NAMES.split()}
SHAPE = (3, 4)
SMALL_LIMIT_BYTES = 48
"""A tensor of ours has 12 to 192 bytes."""


def value(rank, dtype, *, rows=SHAPE[0], seed=0):
    """Small whole numbers, exact in every dtype, and known on every rank."""
    drawn = torch.randint(
        0, 4, (rows, SHAPE[1]), generator=torch.Generator().manual_seed(seed * 100 + rank)
    )
    return drawn.to(torch.float32).to(dtype)


def strided(tensor):
    """The same values, not contiguous."""
    return tensor.t().contiguous().t()


def exact(dtype):
    """A dtype in which torch computes everything, and to compare in."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        wide = exact(one.dtype)
        assert torch.equal(one.to(wide), other.to(wide)), f"{one} instead of {other}"


def everyones(dtype, size, **how):
    """The value of each rank."""
    return [value(rank, dtype, **how) for rank in range(size)]


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


def combine(op, tensors):
    """What a reduction must give."""
    found = functools.reduce(
        TWO_BY_TWO[op], [tensor.to(exact(tensor.dtype)) for tensor in tensors]
    ).to(tensors[0].dtype)
    return found / len(tensors) if op == "AVG" else found


def all_reduce(op, dtype, rank, size):
    tensor = strided(value(rank, dtype))
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, op)
    # dist.all_reduce refuses some by itself
    dist.distributed_c10d._get_default_group().allreduce([tensor], options).wait()
    check([tensor], [combine(op, everyones(dtype, size))])


def reduce_scatter(dtype, rank, size):
    """Even lists, uneven lists, and the tensor form."""
    for uneven in (0, 1):
        blocks = [value(rank, dtype, seed=to, rows=2 + uneven * to) for to in range(size)]
        output = torch.zeros_like(blocks[rank])
        dist.reduce_scatter(output, blocks)
        check([output], [combine("SUM", everyones(dtype, size, seed=rank, rows=2 + uneven * rank))])
    output = torch.zeros(SHAPE, dtype=dtype)
    dist.reduce_scatter_tensor(
        output, torch.cat([value(rank, dtype, seed=to) for to in range(size)])
    )
    check([output], [combine("SUM", everyones(dtype, size, seed=rank))])


def broadcast(dtype, rank, size):
    tensor = strided(value(rank, dtype))
    dist.broadcast(tensor, size - 1)
    check([tensor], [value(size - 1, dtype)])


def all_gather(dtype, rank, size):
    """Even lists, uneven lists, the tensor form, and in place."""
    for uneven in (0, 1):
        expected = [value(r, dtype, rows=2 + uneven * r) for r in range(size)]
        outputs = [torch.zeros_like(tensor) for tensor in expected]
        dist.all_gather(outputs, strided(expected[rank]))
        check(outputs, expected)
    output = torch.zeros(size * SHAPE[0], SHAPE[1], dtype=dtype)
    dist.all_gather_into_tensor(output, value(rank, dtype))
    check([output], [torch.cat(everyones(dtype, size))])
    output.zero_()
    mine = output.chunk(size)[rank]
    mine.copy_(value(rank, dtype))
    dist.all_gather_into_tensor(output, mine)
    check([output], [torch.cat(everyones(dtype, size))])


def all_to_all(dtype, rank, size):
    outputs = [torch.zeros(SHAPE, dtype=dtype) for _ in range(size)]
    dist.all_to_all(outputs, [strided(value(rank, dtype, seed=to)) for to in range(size)])
    check(outputs, everyones(dtype, size, seed=rank))


def send_recv(dtype, rank, size):
    """Round the ring: blocking with a tag, and nonblocking in another order."""
    after, before = (rank + 1) % size, (rank - 1) % size
    tensor = strided(torch.zeros(SHAPE, dtype=dtype))
    sent = dist.isend(strided(value(rank, dtype)), after, tag=7)
    dist.recv(tensor, before, tag=7)
    sent.wait()
    check([tensor], [value(before, dtype)])
    tensors = [torch.zeros(SHAPE, dtype=dtype) for _ in range(2)]
    received = [dist.irecv(tensor, before, tag=tag) for tag, tensor in enumerate(tensors)]
    sent = [dist.isend(value(rank, dtype, seed=tag), after, tag=tag) for tag in (1, 0)]
    for work in received + sent:
        work.wait()
    check(tensors, [value(before, dtype, seed=tag) for tag in range(2)])


OPERATIONS = {
    f"all_reduce {op}": lambda *place, op=op: all_reduce(op, *place) for op in TWO_BY_TWO
} | {
    operation.__name__: operation
    for operation in (
        reduce_scatter,
        broadcast,
        all_gather,
        all_to_all,
        send_recv,
    )
}


def cell(operation, dtype):
    """ "passed", "unsupported" and why, or "wrong" and what."""
    try:
        operation(dtype, dist.get_rank(), dist.get_world_size())
    except NotImplementedError as error:
        return f"unsupported: {error}"
    except (AssertionError, ValueError, RuntimeError) as error:
        return f"wrong: {type(error).__name__}: {error}"
    return "passed"


def write_tables(file):
    """Over the default group."""
    whole, limit = make_table(), mpi_operations.LIMIT_BYTES
    mpi_operations.LIMIT_BYTES = SMALL_LIMIT_BYTES
    broken_up = make_table()
    mpi_operations.LIMIT_BYTES = limit
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps([whole, broken_up]))


def make_table():
    """The worst cell of all ranks."""
    mine = {
        label: {name: cell(operation, dtype) for name, dtype in DTYPES.items()}
        for label, operation in OPERATIONS.items()
    }
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {
        label: {name: max(rank[label][name] for rank in everyone) for name in row}
        for label, row in mine.items()
    }
