"""The operations among ranks that are threads: right results pass, wrong ones are named; sizes and
bandwidth factors by hand."""

from __future__ import annotations

import functools
import threading

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
        return combined(tensors, op)

    def own_share(self, whole):
        return whole.chunk(len(self.ranks))[self.ranks.index(self.rank)]

    def group(self, ranks):
        return type(self)(rank=self.rank, ranks=ranks, tables=self.tables)


def combined(tensors, op):
    two = {
        "sum": torch.add,
        "avg": torch.add,
        "prod": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
    }[op]
    result = functools.reduce(two, tensors)
    return result / len(tensors) if op == "avg" else result


def run(operation, *, size="1 KiB", world_size=2, communicator=Threads, **options):
    """What each rank finds wrong."""
    options = CollectivesOptions(operations=(operation,), sizes=(size,), **options)
    benchmark = Collectives(seed=1, options=options)
    (case,) = benchmark.cases(world_size)
    tables, wrong = (
        {
            tuple(range(n)): (threading.Barrier(n, timeout=10), {})
            for n in (world_size, world_size - 1)
            if n
        },
        {},
    )

    def rank_main(rank):
        place = communicator(rank=rank, ranks=range(world_size), tables=tables)
        made = benchmark.repetition(case, place, device=torch.device("cpu"))
        made.fill()
        made.run()
        wrong[rank] = made.check()
        made.clear()
        made.run()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


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
        assert run(operation, world_size=world_size, **options) == dict.fromkeys(range(world_size))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("operation", [name for name in COLLECTIVES if OPERATIONS[name].reduces])
def test_right_results_of_every_op_pass_and_another_ops_do_not(operation, op, dtype):
    if op == "avg" and dtype in ("int64", "uint8"):
        return
    assert run(operation, world_size=5, op=op, dtype=dtype) == dict.fromkeys(range(5))
    for other in {"sum", "prod", "min", "max"} - {op}:

        class Confused(Threads):
            """Reduces by another op."""

            def combine(self, tensors, _, other=other):
                return combined(tensors, other)

        assert any(
            run(operation, world_size=5, op=op, dtype=dtype, communicator=Confused).values()
        ), other


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


class Doubles(Threads):
    """The sum is twice the sum."""

    def all_reduce(self, tensor, *, op):
        super().all_reduce(tensor, op=op)
        tensor *= 2


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_one_lost_element_is_found(operation):
    assert any(
        "element" in (wrong or "") for wrong in run(operation, communicator=LosesTheLast).values()
    )


@pytest.mark.parametrize(
    "operation", ["broadcast", "all_gather", "gather", "scatter", "all_to_all"]
)
def test_ranks_in_the_wrong_order_are_found(operation):
    assert any(run(operation, communicator=Swaps).values())


def test_the_value_seen_and_the_right_one_are_told():
    """Element 0 is 0 on rank 0 and 7 on rank 1: the sum is 7."""
    assert (
        run("all_reduce", communicator=Doubles)[0]
        == "14 where 7 is right (element 0; 256 of 256 elements are wrong)"
    )


def test_what_a_library_leaves_out_is_not_offered():
    benchmark = Collectives(seed=1, options=CollectivesOptions(sizes=(1024,), operations="all"))
    place = Threads(rank=0, ranks=range(2), tables={})
    reasons = {
        case.operation: benchmark.unsupported_reason(case, place) for case in benchmark.cases(2)
    }
    assert reasons == {**dict.fromkeys(COLLECTIVES), "send_recv": "not offered by threads"}


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 8, 0.875),
        ("broadcast", 4, 1.0),
        ("send_recv", 4, 1.0),
        ("group_all_reduce", 5, 1.5),
        ("reduce", 4, 1.0),
        ("gather", 4, 0.75),
        ("scatter", 8, 0.875),
        ("all_to_all", 4, 0.75),
    ],
)
def test_busbw_factors_are_those_of_nccl_tests(operation, ranks, factor):
    """nccl-tests, doc/PERFORMANCE.md; of five ranks four are in the group."""
    (case,) = Collectives(
        seed=1, options=CollectivesOptions(operations=(operation,), sizes=(1 << 20,))
    ).cases(ranks)
    assert case.busbw_factor == pytest.approx(factor)


def test_a_size_that_cannot_be_shared_is_rounded_down_and_keeps_its_name():
    cases = Collectives(
        seed=1,
        options=CollectivesOptions(operations=("all_reduce", "all_gather"), sizes=("64 KiB",)),
    ).cases(3)
    assert [(case.name, case.message_bytes) for case in cases] == [
        ("all_reduce/64KiB", 65536),
        ("all_gather/64KiB", 65532),
    ]


def test_operations_dtypes_and_places_are_multiplied_and_only_what_is_unusual_is_named():
    options = CollectivesOptions(
        operations=("all_reduce", "all_gather", "gather"),
        sizes=(1024,),
        dtype=["float32", "bfloat16"],
        op=["sum", "max"],
    )
    assert [case.operation for case in Collectives(seed=1, options=options).cases(2)] == [
        *("all_reduce", "all_reduce max", "all_reduce bfloat16", "all_reduce max bfloat16"),
        *("all_gather", "all_gather bfloat16"),
        *("gather", "gather bfloat16"),
    ]


@pytest.mark.parametrize(
    ("given_", "size"),
    [(65536, 65536), ("65536", 65536), ("64KiB", 65536), ("64 KiB", 65536), ("1 GiB", 1 << 30)],
)
def test_sizes_are_read_in_either_form(given_, size):
    assert CollectivesOptions(sizes=(given_,)).sizes == (size,)


@given(st.integers(64, 1 << 30))
def test_a_size_survives_its_own_text(size):
    assert CollectivesOptions(sizes=(format_size(size),)).sizes == (size,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload_options": {"sizes": ["64 pages"]}}, "could not interpret byte unit: pages"),
        ({"workload_options": {"sizes": [3]}}, "greater than or equal to 64"),
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
        ({"world_size": 1}, "needs 2 ranks or more, and world_size is 1"),
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
