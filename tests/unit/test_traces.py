"""Traces of known truth: on one clock, as files that viewers open, and what is concluded from
them."""

from __future__ import annotations

import base64
import gzip

import pandas as pd
import pytest
import torch

from backends.horovod.timeline import noting_compression, noting_submits, read_timeline
from measurement.records.trace import ArmTrace, Span, Traces
from reports import conclude
from reports.estimate import Estimate
from reports.schema import ArmSummary, NamedCause
from reports.traces.causes import with_causes, with_named_cause
from reports.traces.exchange import traced_steps
from reports.wording.causes import cause_clause
from runners.protocol.messages import TraceReply
from runners.traces.trace_file import on_one_clock, perfetto_file
from tests.kit import trace_format
from tests.kit.changed import changed
from tests.kit.results_factory import write_results

MS = 1_000_000
TERMS = ("compute", "data_wait", "imbalance", "exposed_exchange", "in_forward")
START = 1_700_000_000_000 * MS


def reply(spans):
    return TraceReply(spans=spans, events=base64.b64encode(gzip.compress(b"[]")).decode())


def span(row, name, begin_ms, length_ms, **more):
    return Span(
        row=row,
        name=name,
        begin_ns=START + round(begin_ms * MS),
        length_ns=round(length_ms * MS),
        **more,
    )


def test_ranks_are_on_one_clock_and_the_file_follows_the_formats_rules(tmp_path):
    """The second rank's host is 5 ms behind; two collectives overlap."""
    ranks = []
    for behind_ms in (0, 5):
        spans = [span("step", "0", -behind_ms, 10), span("phase", "forward", -behind_ms, 4)]
        spans += [
            span("exchange", "gloo:all_reduce", at - behind_ms, 4, num_bytes=1000) for at in (5, 6)
        ]
        ranks.append(reply(spans))
    traced = on_one_clock(ranks, [0.0, 0.005])
    assert [[each.begin_ns for each in rank.spans if each.row == "step"] for rank in traced] == [
        [START],
        [START],
    ]
    path = tmp_path / "two.json.gz"
    path.write_bytes(perfetto_file(traced))
    events = trace_format.read(path)
    assert trace_format.faults(events) == []
    assert len({each["pid"] for each in events}) == 2
    assert [each["args"]["bytes"] for each in trace_format.slices(events, row="exchange")] == [
        1000
    ] * 4


def timeline(*events):
    """Begin and end of what happened to two tensors, in microseconds."""
    start = {
        "name": "process_name",
        "ph": "M",
        "pid": 0,
        "args": {"start_time_since_epoch_in_micros": START // 1000},
    }
    tensors = ("allreduce.0.weight", "allreduce.0.bias")
    names = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
        for pid, name in enumerate(tensors, start=1)
    ]
    return [
        start,
        *names,
        *({"ph": ph, "ts": ts, "pid": pid, "name": name} for ph, ts, pid, name in events),
    ]


TIMELINE = timeline(
    ("B", 1000, 1, "NEGOTIATE_ALLREDUCE"),
    ("E", 1100, 1, ""),
    ("B", 2000, 1, "ALLREDUCE"),
    ("B", 2001, 2, "ALLREDUCE"),
    ("B", 2100, 1, "GLOO_ALLREDUCE"),
    ("E", 2400, 1, ""),
    ("E", 2500, 1, ""),
    ("E", 2501, 2, ""),
)


def test_horovods_timeline_gives_fused_operations_that_begin_on_each_rank_when_it_had_submitted_them():
    (fused,) = read_timeline(TIMELINE)
    assert (fused.begin_ns, fused.length_ns, fused.tensors) == (
        START + 2 * MS,
        501_000,
        ["0.weight", "0.bias"],
    )

    def submitted(*at_ms):
        names = ("0.weight", "0.bias")
        return [
            span("exchange", "submitted", at, 0, num_bytes=8, tensors=[name])
            for name, at in zip(names, at_ms, strict=True)
        ]

    traced = on_one_clock(
        [reply([*submitted(0.5, 1.0), fused]), reply(submitted(0.5, 1.5))], [0.0, 0.0]
    )
    exchanges = [each for rank in traced for each in rank.spans]
    assert [(each.rank, (each.begin_ns - START) / MS, each.num_bytes) for each in exchanges] == [
        (0, 1.0, 16),
        (1, 1.5, 16),
    ]
    assert {each.end_ns for each in exchanges} == {fused.end_ns}


def test_tensors_that_were_filled_with_zeros_are_exchanged_besides():
    """That they were filled took the place of their exchange, which was lost, and so was the
    cause."""
    zeros = {"num_bytes": 4000, "tensors": ["unused"]}
    spans = [
        span("exchange", "submitted", 1, 0, **zeros),
        span("library", "zero-filled", 1, 0, **zeros),
    ]
    moved = span("exchange", "horovod:allreduce", 2, 3, tensors=["unused"])
    traced = on_one_clock([reply([*spans, moved]), reply(spans)], [0.0, 0.0])
    for rank in traced:
        assert [
            (each.row, each.name, each.rank, each.num_bytes, each.length_ns) for each in rank.spans
        ] == [
            ("library", "zero-filled", rank.rank, 4000, 0),
            ("exchange", "horovod:allreduce", rank.rank, 4000, 4 * MS),
        ]


def traced_arm(name, *, waits_ms=0.0, copies_ms=0.0, count=2, size=1 << 20, late_ms=0.0):
    spans = []
    for step in range(5):
        at = 20.0 * step + 0.001 * step
        for rank in (0, 1):
            spans += [
                span("step", str(step), at, 20, rank=rank),
                span("phase", "forward", at, 5, rank=rank),
            ]
            spans += [
                span(
                    "library",
                    "torch::distributed::reducer::mul_out",
                    at + 6,
                    copies_ms + 0.001 * step,
                    rank=rank,
                )
            ]
            for number in range(count):
                begin, end = (
                    at + 8 + 0.5 * number + late_ms * rank,
                    at + 8.4 + 0.5 * number + late_ms + waits_ms,
                )
                entered = START + round((end - 0.4 + 0.001 * step) * MS)
                more = {"rank": rank, "num_bytes": size, "entered_ns": entered}
                spans.append(span("exchange", "all_reduce", begin, end - begin, **more))
    return ArmTrace(arm=name, file=f"{name}.json.gz", spans=spans)


def concluded(tmp_path, *traces, **truth):
    """The candidate exposes 4 ms more of exchange, in steps of 20 ms."""
    quiet = {
        "noise": 0.002,
        "drift": 0.05,
        "ratios": {"horovod-gloo": 1.0},
        "launches": 5,
        "rounds": 24,
    }
    folder = write_results(tmp_path, **quiet, **truth)
    folder.traces_folder.mkdir()
    (folder.traces_folder / "traces.json").write_text(Traces(arms=list(traces)).model_dump_json())
    return conclude(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        ({"waits_ms": 4.0}, {}, "cycle waits"),
        # no more than the term's time: traced steps are longer than timed ones
        (
            {"waits_ms": 9.0},
            {},
            "cycle waits",
        ),
        ({"waits_ms": 1.0}, {}, None),
        ({"count": 12, "size": 1024}, {}, "small collectives"),
        ({}, {"copies_ms": 4.0}, None),
    ],
)
def test_a_cause_is_named_where_it_explains_half_of_the_term(tmp_path, ours, theirs, name):
    traces = [traced_arm("ddp-gloo", **theirs), traced_arm("horovod-gloo", **ours)]
    comparison = concluded(tmp_path, *traces, more_exchange_s={"horovod-gloo": 0.004})
    because = comparison.result("horovod-gloo").because
    assert (because.term, because.named) == ("exposed_exchange", name)
    causes = {each.name: each for arm in comparison.arms for each in arm.causes}
    if name:
        assert (
            because.named_s == pytest.approx(0.004, rel=0.2)
            and because.named_s <= because.difference_s
        )
        assert f"of that is {name}" in comparison.findings[0]
    assert ("gradient copies" in causes) == bool(theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "option"),
    [("compression", {"compression": "fp16"}), ("cycle waits", {"cycle_time_ms": 21})],
    ids=str,
)
def test_a_cause_has_all_that_sets_an_arm_apart_from_one_that_is_like_it_but_for_its_option(
    tmp_path, cause, option
):
    """Conversions took 30 ms of the 138 by which float16 made Horovod's exchange longer, so nothing
    was named."""
    comparison = concluded(
        tmp_path,
        traced_arm("ddp-gloo"),
        traced_arm("horovod-gloo"),
        more_exchange_s={"horovod-gloo": 0.004},
    )
    result, arm = (
        comparison.result("horovod-gloo"),
        next(arm for arm in comparison.arms if arm.name == "horovod-gloo"),
    )
    known = Estimate(value=0.001, ci_low=0.0009, ci_high=0.0011)
    converts = NamedCause(
        name=cause, term="exposed_exchange", per_step_s=known, setting="another value"
    )
    slow = changed(arm, options={"groups": 1, **option}, causes=[converts])
    alike, other = (
        {
            "horovod-gloo": slow,
            "ddp-gloo": changed(slow, name="ddp-gloo", options={"groups": groups}, causes=[]),
        }
        for groups in (1, 5)
    )
    because = with_named_cause(result, alike).because
    assert (because.named, because.named_s) == (cause, because.difference_s)
    apart = {"library_overhead": Estimate(value=-0.0015)}
    shorter = changed(result, term_differences_s=result.term_differences_s | apart)
    named = with_named_cause(shorter, alike)
    assert named.because.gain_s == pytest.approx(0.004 - 0.0015, rel=0.2), (
        "what a longer cycle wins back counts, too"
    )
    assert f"of that is {cause} (another value in horovod-gloo changes it)" in cause_clause(named)
    assert with_named_cause(result, other).because.named is None


def summary(backend, *, described=(), **terms):
    """An arm of two ranks whose terms take 1 ms each, but for those named."""
    known = dict.fromkeys([*TERMS, "step"], Estimate(value=0.001)) | terms
    what = {
        "name": "arm",
        "role": "candidate",
        "status": "ok",
        "backend": backend,
        "transport": "gloo",
        "launcher": None,
    }
    return ArmSummary.model_validate(
        what | {"described": dict(described), "step_terms_s": known, "world_size": 2}
    )


def causes_of(backend, spans, **described):
    """What is found in five steps of 20 ms on two ranks, each with these spans: seconds by name."""

    def moved(cause, rank, number):
        by = 20 * MS * number + 10 * number
        entered_ns = cause.entered_ns and cause.entered_ns + by
        return changed(cause, rank=rank, begin_ns=cause.begin_ns + by, entered_ns=entered_ns)

    every = [
        moved(cause, rank, number)
        for number in range(5)
        for rank in (0, 1)
        for cause in [span("step", f"{number}", 0, 20), *spans]
    ]
    steps = traced_steps(ArmTrace(arm="arm", spans=every))
    arm = summary(backend, described=described)
    named = with_causes(arm, pd.DataFrame(), steps, buffer_bytes=0, confidence=0.95)
    return {cause.name: cause.per_step_s.value for cause in named.causes}


def test_no_cycle_is_waited_for_longer_than_it_lasts():
    """On a crowded host 9 ms passed where a cycle lasts 5."""
    waited = span("exchange", "horovod:allreduce", 1, 10, num_bytes=8, entered_ns=START + 10 * MS)
    assert causes_of("horovod", [waited], cycle_time_ms=5.0) == {
        "cycle waits": pytest.approx(0.005)
    }


def gradients(*at_ms):
    return [
        span("gradient", "torch::autograd::AccumulateGrad", at, 0, num_bytes=1 << 20)
        for at in at_ms
    ]


def buckets(first_ms, *, length_ms=1.0, begin_by=0.0):
    """Eight, one after another."""
    at = [first_ms + max(number * length_ms, number * begin_by) for number in range(8)]
    return [
        span("exchange", "gloo:all_reduce", begin, length_ms, num_bytes=1 << 20) for begin in at
    ]


def test_a_first_bucket_is_late_where_it_waits_for_gradients_that_come_last():
    """Seven of eight transfers could have been hidden, of 1 ms each; the last gradient's own could
    not."""
    ready = gradients(*range(1, 9))
    causes = causes_of("ddp", [*ready, *buckets(8.5)])
    assert causes == {"late first bucket": pytest.approx(0.0075, rel=1e-3)}
    assert causes_of("ddp", [*ready, *buckets(1.5)]) == {}, "in order"
    assert causes_of("planted.py:DDP", [*ready, *buckets(8.5)], bucket_cap_bytes=1 << 20) == causes
    assert causes_of("horovod", [*ready, *buckets(8.5)]) == {}, (
        "Horovod's tensors leave as they come"
    )


def test_exchange_exposed_in_the_trace_is_what_no_computing_hides():
    """From the last gradient at 8 ms to the last collective's end at 16.5; and a broadcast of 0.5
    ms before all gradients."""
    early = span("exchange", "gloo:broadcast", 0.2, 0.5)
    spans = [early, *gradients(*range(1, 9)), *buckets(8.5)]
    moved = [
        changed(each, rank=rank) for rank in (0, 1) for each in [span("step", "0", 0, 20), *spans]
    ]
    (step,) = traced_steps(ArmTrace(arm="ddp", spans=moved))
    assert (step.tail_s(), step.exposed_s()) == (pytest.approx(0.0085), pytest.approx(0.009))


def test_conversions_and_sparse_gradients_take_what_they_take():
    converted = [span("library", "compression", at, 0.5) for at in (8, 12)]
    gathered = [
        span("exchange", f"horovod:{name}", 10, 2, num_bytes=8, tensors=["w"])
        for name in ("allreduce", "allgather")
    ]
    assert causes_of("horovod", converted) == {"compression": pytest.approx(0.001)}
    assert causes_of("horovod", gathered) == {"sparse gathers": pytest.approx(0.002)}
    assert causes_of("ddp", [span("exchange", "gloo:sparse_all_reduce", 10, 2)]) == {
        "sparse gathers": pytest.approx(0.002)
    }


def test_zeros_take_what_their_exchange_takes_after_all_else():
    """They are handed in at 12 ms; others' exchange ends at 13, theirs at 15."""
    zeros = [span("library", "zero-filled", 12, 0, tensors=["unused"])]
    both = [
        span("exchange", "horovod:allreduce", begin, length, num_bytes=8, tensors=[name])
        for name, begin, length in (("used", 10, 3), ("unused", 12, 3))
    ]
    assert causes_of("horovod", [*zeros, *both])["zero-filled gradients"] == pytest.approx(0.002)
    assert "zero-filled gradients" not in causes_of("horovod", both)


class Handed:
    """What ``hvd.DistributedOptimizer`` is to who notes its exchange."""

    sparse_as_dense = False

    def __init__(self, *parameters):
        self._parameter_names = {each: str(number) for number, each in enumerate(parameters)}
        self._compression = self

    def _allreduce_grad_async(self, parameter):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return None if parameter.grad.is_sparse else self._compression.compress(parameter.grad)

    def compress(self, tensor):
        return tensor.half(), tensor.dtype

    def decompress(self, tensor, dtype):
        return tensor.to(dtype)


def test_what_horovod_is_handed_is_noted_by_the_names_of_its_timeline():
    dense, sparse, unused = (torch.nn.Parameter(torch.zeros(4, 2)) for _ in range(3))
    dense.grad = torch.ones(4, 2)
    sparse.grad = torch.sparse_coo_tensor([[1]], [[1.0, 2.0]], (4, 2))
    optimizer, spans = Handed(dense, sparse, unused), []
    with noting_submits(optimizer, spans), noting_compression(optimizer, spans):
        sent = [optimizer._allreduce_grad_async(each) for each in (dense, sparse, unused)]
        optimizer._compression.decompress(*sent[0])
    submitted = [(each.tensors, each.num_bytes) for each in spans if each.name == "submitted"]
    assert submitted == [(["0"], 32), (["1.indices"], 8), (["1.values"], 8), (["2"], 32)]
    assert [(each.tensors, each.num_bytes) for each in spans if each.name == "zero-filled"] == [
        (["2"], 32)
    ]
    assert [each.row for each in spans if each.name == "compression"] == ["library"] * 3
    assert optimizer._compression is optimizer


@pytest.mark.slow
def test_equal_arms_name_nothing(tmp_path):
    comparison = concluded(
        tmp_path, *(traced_arm(name, late_ms=3.0) for name in ("ddp-gloo", "horovod-gloo"))
    )
    assert all(result.because is None for result in comparison.results)
