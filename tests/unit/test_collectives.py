"""The operations among ranks that are threads: right results pass, wrong ones are named; sizes and
bandwidth factors by hand."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from measurement.communicator import Communicator
from runners.planning.arms import resolve_arms
from runners.planning.workload import resolve_cases, resolve_workload
from tests.kit.plans import tiny
from tests.kit.refusals import refusal
from workloads.collectives import Collectives, CollectivesOptions, format_size
from workloads.operations import OPERATIONS


class Threads(Communicator):
    """All ranks in one process: each puts its tensor on the table, all look, then all go on."""

    library = "threads"

    def __init__(self, *, rank, ranks, tables):
        super().__init__(rank=rank, ranks=ranks)
        self.tables = tables

    def exchange(self, tensor):
        barrier, table = self.tables.setdefault(
            self.ranks, (threading.Barrier(len(self.ranks), timeout=10), {})
        )
        table[self.rank] = tensor.clone()
        barrier.wait()
        tensors = [table[rank] for rank in self.ranks]
        barrier.wait()
        return tensors

    def all_reduce(self, tensor, *, op):
        tensor.copy_(self.combine(self.exchange(tensor), op))

    def reduce(self, tensor, *, op, root):
        total = self.combine(self.exchange(tensor), op)
        tensor.copy_(total if self.rank == root else total * 0)

    def broadcast(self, tensor, *, root):
        tensor.copy_(self.exchange(tensor)[self.ranks.index(root)])

    def all_gather(self, tensor, *, out):
        return out.copy_(torch.cat(self.exchange(tensor)))

    def reduce_scatter(self, tensor, *, op, out):
        return self.own_share(self.combine(self.exchange(tensor), op))

    def gather(self, tensor, *, root, out):
        whole = torch.cat(self.exchange(tensor))
        if self.rank == root:
            out.copy_(whole)

    def scatter(self, tensor, *, root, out):
        out.copy_(self.own_share(self.exchange(tensor)[self.ranks.index(root)]))

    def all_to_all(self, tensor, *, out):
        return torch.cat([self.own_share(other) for other in self.exchange(tensor)])

    def combine(self, tensors, op):
        two = {
            "sum": torch.add,
            "avg": torch.add,
            "prod": torch.mul,
            "min": torch.minimum,
            "max": torch.maximum,
        }[op]
        result = functools.reduce(two, tensors)
        return result / len(tensors) if op == "avg" else result

    def own_share(self, whole):
        return whole.chunk(len(self.ranks))[self.ranks.index(self.rank)]

    def group(self, ranks):
        return type(self)(rank=self.rank, ranks=ranks, tables=self.tables)


def collectives(**options):
    return Collectives(local_batch_size=1, seed=1, options=CollectivesOptions(**options))


def run(operation, *, size="1 KiB", world_size=2, communicator=Threads, **options):
    """What each rank finds wrong."""
    benchmark, tables = collectives(operations=(operation,), sizes=(size,), **options), {}
    (case,) = benchmark.cases(world_size)

    def rank_main(rank):
        place = communicator(rank=rank, ranks=range(world_size), tables=tables)
        made = benchmark.repetition(case, place, device=torch.device("cpu"))
        made.fill()
        made.run()
        wrong = made.check()
        made.clear()
        made.run()
        return wrong

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(rank_main, range(world_size)))


COLLECTIVES = [
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
]
GROUPED = ["group_all_reduce", "group_broadcast"]


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        *((world_size, {}) for world_size in (2, 3, 5)),
        *((5, {"dtype": dtype}) for dtype in ("float16", "bfloat16", "int32", "int8")),
        (5, {"root": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("operation", [*COLLECTIVES, *GROUPED])
def test_right_results_pass(operation, options, world_size):
    if world_size >= OPERATIONS[operation].least_ranks:
        assert run(operation, world_size=world_size, **options) == [None] * world_size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("operation", [name for name in COLLECTIVES if OPERATIONS[name].reduces])
def test_right_results_of_every_op_pass_and_another_ops_do_not(operation, op, dtype):
    if op == "avg" and dtype in ("int64", "uint8"):
        return
    assert run(operation, world_size=5, op=op, dtype=dtype) == [None] * 5
    for other in {"sum", "prod", "min", "max"} - {op}:

        class Confused(Threads):
            """Reduces by another op."""

            def combine(self, tensors, _, other=other):
                return super().combine(tensors, other)

        assert any(run(operation, world_size=5, op=op, dtype=dtype, communicator=Confused)), other


class LosesTheLast(Threads):
    """Every exchange forgets the last element."""

    def exchange(self, tensor):
        tensors = super().exchange(tensor)
        for other in tensors:
            other[-1] = 0
        return tensors


class Swaps(Threads):
    """Ranks in the wrong order."""

    def exchange(self, tensor):
        return super().exchange(tensor)[::-1]


@pytest.mark.parametrize(
    ("communicator", "operation"),
    [
        *((LosesTheLast, operation) for operation in COLLECTIVES),
        *((Swaps, name) for name in COLLECTIVES if not OPERATIONS[name].reduces),
    ],
)
def test_a_lost_element_and_ranks_in_the_wrong_order_are_found(communicator, operation):
    assert any(run(operation, communicator=communicator))


def test_what_a_library_leaves_out_is_not_offered():
    benchmark = collectives(sizes=(1024,), operations="all")
    place = Threads(rank=0, ranks=range(2), tables={})
    reasons = {
        case.operation: benchmark.unsupported_reason(case, place) for case in benchmark.cases(2)
    }
    assert reasons == {**dict.fromkeys(COLLECTIVES), "send_recv": "not offered by threads"}


def test_busbw_factors_are_those_of_nccl_tests():
    """nccl-tests, doc/PERFORMANCE.md; of five ranks four are in the group."""
    cases = collectives(operations="all", sizes=(1 << 20,)).cases(5)
    shares = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
    wanted = {
        **dict.fromkeys(OPERATIONS, 1.0),
        **dict.fromkeys(shares, 0.8),
        "all_reduce": 1.6,
        "group_all_reduce": 1.5,
    }
    assert {case.operation: case.busbw_factor for case in cases} == pytest.approx(wanted)


def test_a_size_that_cannot_be_shared_is_rounded_down_and_keeps_its_name():
    cases = collectives(operations=("all_reduce", "all_gather"), sizes=("64 KiB",)).cases(3)
    assert [(case.name, case.message_bytes) for case in cases] == [
        ("all_reduce/64KiB", 65536),
        ("all_gather/64KiB", 65532),
    ]


def test_operations_dtypes_and_places_are_multiplied_and_only_what_is_unusual_is_named():
    benchmark = collectives(
        operations=("all_reduce", "all_gather", "gather"),
        sizes=(1024,),
        dtype=["float32", "bfloat16"],
        op=["sum", "max"],
    )
    assert [case.operation for case in benchmark.cases(2)] == [
        *("all_reduce", "all_reduce max", "all_reduce bfloat16", "all_reduce max bfloat16"),
        *("all_gather", "all_gather bfloat16"),
        *("gather", "gather bfloat16"),
    ]


@given(st.integers(64, 1 << 30))
def test_a_size_survives_its_own_text(size):
    assert collectives(sizes=(format_size(size),)).options.sizes == (size,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload_options": {"sizes": ["64 pages"]}}, "could not interpret byte unit: pages"),
        (
            {"workload_options": {"operations": ["all_redcue"]}},
            "unknown operation 'all_redcue'; did you mean 'all_reduce'?",
        ),
        (
            {"workload_options": {"operations": ["group_all_reduce"]}},
            "needs 3 ranks or more, and world_size is 2",
        ),
        (
            {"workload_options": {"operations": ["reduce"], "root": 2}},
            "root 2 is not a rank of world_size 2; give 0 to 1",
        ),
        (
            {"world_size": 1, "arms": {"ddp": {"backend": "single"}}},
            "backend 'single' offers no collectives",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(changes, message):
    def resolve():
        plan = tiny(**{"workload": "collectives", **changes})
        workload = resolve_workload(plan.workload, plan.workload_options)
        resolve_cases(plan, workload, resolve_arms(plan))

    assert message in refusal(resolve)
