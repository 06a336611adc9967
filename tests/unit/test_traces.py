"""Traces of known truth: on one clock, as files that viewers open, and what is concluded from them."""

from __future__ import annotations

import base64
import gzip
import json

import pandas as pd
import pytest

from backends.horovod.timeline import read_timeline
from measurement.records.trace import ArmTrace, Span, Traces
from reports import conclude
from reports.schema import ArmSummary
from reports.tables.sections import sections
from reports.traces.causes import with_causes
from reports.traces.exchange import traced_steps
from runners.protocol.messages import TraceReply
from runners.traces.trace_file import on_one_clock, viewers_file
from tests.kit import trace_format
from tests.kit.results_factory import Truth, make_plan, write_results

MS = 1_000_000
START = 1_700_000_000_000 * MS


def reply(spans, events=()):
    packed = gzip.compress(json.dumps(list(events)).encode())
    return TraceReply(spans=spans, events=base64.b64encode(packed).decode())


def span(row, name, begin_ms, length_ms, **more):
    return Span(row=row, name=name, begin_ns=START + round(begin_ms * MS), length_ns=round(length_ms * MS), **more)


def test_ranks_are_on_one_clock_and_the_file_follows_the_formats_rules(tmp_path):
    """The second rank's host is 5 ms behind; two collectives overlap, and an arrow connects two operations of each rank."""
    ranks = []
    for behind_ms in (0, 5):
        own = [span("step", "0", -behind_ms, 10), span("phase", "forward", -behind_ms, 4)]
        own += [span("exchange", "gloo:all_reduce", at - behind_ms, 4, num_bytes=1000) for at in (5, 6)]
        events = [
            {"name": name, "cat": "cpu_op", "row": "training thread", "begin_ns": START + at - behind_ms * MS, "length_ns": 1000}
            for name, at in (("a", 0), ("b", 5000))
        ]
        events += [
            {"flow": kind, "id": 7, "cat": "fwdbwd", "row": "training thread", "begin_ns": START + at - behind_ms * MS}
            for kind, at in (("s", 0), ("f", 5000))
        ]
        ranks.append(reply(own, events))
    traced = on_one_clock(ranks, [0.0, 0.005])
    assert [[one.begin_ns for one in rank.spans if one.row == "step"] for rank in traced] == [[START], [START]]
    path = tmp_path / "two.json.gz"
    path.write_bytes(viewers_file({"ddp": traced, "other": traced}))
    events = trace_format.read(path)
    assert trace_format.faults(events) == []
    assert len({one["pid"] for one in events}) == 4 and len({one["id"] for one in events if one["ph"] == "s"}) == 4
    exchange = trace_format.slices(events, row="exchange")
    assert len(exchange) == 8 and {one["args"]["bytes"] for one in exchange} == {1000}
    crossing = [*events, {**exchange[0], "ts": exchange[0]["ts"] + 1}]
    assert any("crosses" in fault for fault in trace_format.faults(crossing))


def timeline(*events):
    """Begin and end of what happened to two tensors, in microseconds."""
    start = {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": START // 1000}}
    tensors = ("allreduce.0.weight", "allreduce.0.bias")
    names = [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in enumerate(tensors, start=1)]
    return [start, *names, *({"ph": ph, "ts": ts, "pid": pid, "name": name} for ph, ts, pid, name in events)]


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
    assert (fused.begin_ns, fused.length_ns, fused.tensors) == (START + 2 * MS, 501_000, ["0.weight", "0.bias"])

    def submitted(*at_ms):
        names = ("0.weight", "0.bias")
        return [span("exchange", "submitted", at, 0, num_bytes=8, tensors=[name]) for name, at in zip(names, at_ms, strict=True)]

    traced = on_one_clock([reply([*submitted(0.5, 1.0), fused]), reply(submitted(0.5, 1.5))], [0.0, 0.0])
    found = [one for rank in traced for one in rank.spans]
    assert [(one.rank, (one.begin_ns - START) / MS, one.num_bytes) for one in found] == [(0, 1.0, 16), (1, 1.5, 16)]
    assert {one.end_ns for one in found} == {fused.end_ns}


def traced_arm(name, *, waits_ms=0.0, copies_ms=0.0, count=2, size=1 << 20, late_ms=0.0):
    spans = []
    for step in range(5):
        at = 20.0 * step + 0.001 * step
        for rank in (0, 1):
            spans += [span("step", str(step), at, 20, rank=rank), span("phase", "forward", at, 5, rank=rank)]
            spans += [span("library", "torch::distributed::reducer::mul_out", at + 6, copies_ms + 0.001 * step, rank=rank)]
            for number in range(count):
                begin, end = at + 8 + 0.5 * number + late_ms * rank, at + 8.4 + 0.5 * number + late_ms + waits_ms
                entered = START + round((end - 0.4 + 0.001 * step) * MS)
                more = {"rank": rank, "num_bytes": size, "entered_ns": entered}
                spans.append(span("exchange", "all_reduce", begin, end - begin, **more))
    return ArmTrace(arm=name, file=f"{name}.json.gz", spans=spans)


def concluded(tmp_path, *traces, **truth):
    """The candidate exposes 4 ms more of exchange, in steps of 20 ms."""
    plan = make_plan(["horovod-gloo"], launches=5, rounds=24)
    quiet = {"noise": 0.002, "drift": 0.05, "ratios": {"horovod-gloo": 1.0}}
    folder = write_results(tmp_path, truth=Truth(**quiet, **truth), plan=plan)
    folder.traces_folder.mkdir()
    (folder.traces_folder / "traces.json").write_text(Traces(arms=list(traces)).model_dump_json())
    return conclude(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        ({"waits_ms": 4.0}, {}, "cycle waits"),
        ({"waits_ms": 1.0}, {}, None),
        ({"count": 12, "size": 1024}, {}, "small collectives"),
        ({}, {"copies_ms": 4.0}, None),
    ],
)
def test_a_cause_is_named_where_it_explains_half_of_the_term(tmp_path, ours, theirs, name):
    traces = [traced_arm("ddp-gloo", **theirs), traced_arm("horovod-gloo", **ours)]
    found = concluded(tmp_path, *traces, more_exchange_s={"horovod-gloo": 0.004})
    because = found.result("horovod-gloo").because
    assert (because.term, because.named) == ("exposed_exchange", name)
    causes = {one.name: one for arm in found.arms for one in arm.causes}
    if name:
        assert causes[name].per_step_s.value == pytest.approx(0.004, rel=0.2)
        assert f"of that is {name}" in found.findings[0]
    assert ("gradient copies" in causes) == bool(theirs)
    assert {section.name for section in sections(found)} >= {"exchanges"}


def test_no_cycle_is_waited_for_longer_than_it_lasts():
    """On a crowded host 9 ms passed where a cycle lasts 5."""
    term = {"value": 0.001}
    terms = dict.fromkeys(
        ("compute", "data_wait", "imbalance", "exposed_exchange", "persistent", "sync_data_wait", "in_forward"), term
    )
    what = {"name": "hvd", "role": "candidate", "status": "ok", "backend": "horovod", "transport": "gloo", "launcher": None}
    told = {"described": {"cycle_time_ms": 5.0}, "step_terms_s": {**terms, "step": term}, "world_size": 2}
    steps = traced_steps(traced_arm("hvd", waits_ms=9.0))
    found = with_causes(ArmSummary.model_validate(what | told), pd.DataFrame(), steps, buffer_bytes=0, confidence=0.95)
    assert [(one.name, one.per_step_s.value) for one in found.causes] == [("cycle waits", pytest.approx(0.005))]


@pytest.mark.slow
def test_equal_arms_name_nothing_and_skew_is_told_apart_from_transfer(tmp_path):
    found = concluded(tmp_path, *(traced_arm(name, late_ms=3.0) for name in ("ddp-gloo", "horovod-gloo")))
    assert all(result.because is None for result in found.results)
    first = found.traces.arms[0].exchanges[0]
    assert (first.skew_s, first.transfer_s, first.last_rank, first.last_share) == pytest.approx((0.003, 0.0004, 1, 1.0))
