"""Traces of known truth: on one clock, as files that viewers open, and what is concluded from
them."""

from __future__ import annotations

import base64
import gzip
import itertools

import pandas as pd
import pytest

from backends.horovod.timeline import read_timeline
from measurement.records.record import ArmTrace, Span, Traces
from reports import conclude
from reports.parts_schema import Estimate
from reports.schema import ArmSummary
from reports.traces import traced_steps, with_causes
from runners.protocol import TraceReply
from runners.traces import on_one_clock, perfetto_file
from tests.kit import trace_format
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

    def rank(behind_ms):
        collectives = [
            span("exchange", "gloo:all_reduce", at - behind_ms, 4, num_bytes=1000) for at in (5, 6)
        ]
        return reply([span("step", "0", -behind_ms, 10), *collectives])

    traced = on_one_clock([rank(0), rank(5)], [0.0, 0.005])
    steps = [each for rank in traced for each in rank.spans if each.row == "step"]
    assert [each.begin_ns for each in steps] == [START, START]
    path = tmp_path / "two.json.gz"
    path.write_bytes(perfetto_file(traced))
    events = trace_format.read(path)
    assert trace_format.faults(events) == []
    exchanges = trace_format.slices(events, row="exchange")
    assert [each["args"]["bytes"] for each in exchanges] == [1000] * 4


def happened(phase, at_us, tensor, name):
    return {"ph": phase, "ts": at_us, "pid": tensor, "name": name}


TIMELINE = [
    {
        "name": "process_name",
        "ph": "M",
        "pid": 0,
        "args": {"start_time_since_epoch_in_micros": START // 1000},
    },
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.0.weight"}},
    {"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "allreduce.0.bias"}},
    happened("B", 1000, 1, "NEGOTIATE_ALLREDUCE"),
    happened("E", 1100, 1, ""),
    happened("B", 2000, 1, "ALLREDUCE"),
    happened("B", 2001, 2, "ALLREDUCE"),
    happened("E", 2500, 1, ""),
    happened("E", 2501, 2, ""),
]


def test_an_operation_of_horovods_timeline_begins_on_each_rank_when_it_had_submitted_all_of_it():
    (fused,) = read_timeline(TIMELINE)
    assert (fused.begin_ns, fused.length_ns) == (START + 2 * MS, 501_000)
    assert fused.tensors == ["0.weight", "0.bias"]

    def submitted(tensor, at_ms):
        return span("exchange", "submitted", at_ms, 0, num_bytes=8, tensors=[tensor])

    weight = submitted("0.weight", 0.5)
    ranks = [reply([weight, submitted("0.bias", 1.0), fused])]
    ranks.append(reply([weight, submitted("0.bias", 1.5)]))
    exchanges = [each for rank in on_one_clock(ranks, [0.0, 0.0]) for each in rank.spans]
    assert [(each.begin_ns - START) / MS for each in exchanges] == [1.0, 1.5]
    assert {(each.end_ns, each.num_bytes) for each in exchanges} == {(fused.end_ns, 16)}


def traced_arm(name, *, waits_ms=0.0, copies_ms=0.0, count=2, size=1 << 20):
    """Five steps of 20 ms on two ranks: a forward pass, copies of gradients, and exchanges."""
    spans = []
    for step, rank in itertools.product(range(5), (0, 1)):
        at, more = 20.0 * step + 0.001 * step, {"rank": rank}
        copied = copies_ms + 0.001 * step
        spans += [
            span("step", str(step), at, 20, **more),
            span("phase", "forward", at, 5, **more),
            span("library", "torch::distributed::reducer::mul_out", at + 6, copied, **more),
        ]
        for number in range(count):
            begin = at + 8 + 0.5 * number
            length = 0.4 + waits_ms
            entered_ns = START + round((begin + waits_ms + 0.001 * step) * MS)
            exchanged = more | {"num_bytes": size, "entered_ns": entered_ns}
            spans.append(span("exchange", "all_reduce", begin, length, **exchanged))
    return ArmTrace(arm=name, file=f"{name}.json.gz", spans=spans)


def concluded(tmp_path, *traces, **truth):
    """The arms are alike, but for ``truth``."""
    equal = {"ratios": {"horovod-gloo": 1.0}, "launches": 5, "rounds": 24}
    folder = write_results(tmp_path, noise=0.002, drift=0.05, **equal, **truth)
    folder.traces_folder.mkdir()
    (folder.traces_folder / "traces.json").write_text(Traces(arms=list(traces)).model_dump_json())
    return conclude(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        ({"waits_ms": 9.0}, {}, "cycle waits"),
        ({"waits_ms": 1.0}, {}, None),
        ({"count": 12, "size": 1024}, {}, "small collectives"),
        ({}, {"copies_ms": 4.0}, None),
    ],
)
def test_a_cause_is_named_where_it_explains_half_of_the_term(tmp_path, ours, theirs, name):
    """The candidate exposes 4 ms more of exchange; traced steps are longer than timed ones."""
    traces = [traced_arm("ddp-gloo", **theirs), traced_arm("horovod-gloo", **ours)]
    comparison = concluded(tmp_path, *traces, more_exchange_s={"horovod-gloo": 0.004})
    because = comparison.result("horovod-gloo").because
    assert (because.term, because.named) == ("exposed_exchange", name)
    if name:
        assert because.named_s == pytest.approx(0.004, rel=0.2)
        assert because.named_s <= because.difference_s, "no more than the term's time"
        assert f"of that is {name}" in comparison.findings[0]
    causes = {each.name for arm in comparison.arms for each in arm.causes}
    assert ("gradient copies" in causes) == bool(theirs)


def test_no_cycle_is_waited_for_longer_than_it_lasts():
    """On a crowded host 9 ms passed where a cycle lasts 5."""
    arm = ArmSummary(
        name="arm",
        role="candidate",
        status="ok",
        backend="horovod",
        transport="gloo",
        launcher=None,
        described={"cycle_time_ms": 5.0},
        step_terms_s=dict.fromkeys([*TERMS, "step"], Estimate(value=0.02)),
        world_size=2,
    )
    steps = traced_steps(traced_arm("arm", waits_ms=9.0))
    causes = with_causes(arm, pd.DataFrame(), steps, buffer_bytes=0, confidence=0.95).causes
    assert {cause.name: cause.per_step_s.value for cause in causes} == {
        "cycle waits": pytest.approx(0.005)
    }
