"""Where a script's step goes by line: what the agent sees of a loop, and what a report says of two
scripts."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch import distributed
from torch.utils.checkpoint import checkpoint

from measurement.agent.ringside_agent.reading.lines import Lines
from measurement.agent.ringside_agent.recorder import Recorder
from measurement.records.record import LineUse, ScriptReport
from reports.scripts.configuration import line_differences, other_lines
from reports.scripts.script_arms import ScriptArm
from tests.kit.commands import run_python

ONE_RANK = """
import torch.distributed, tests.unit.test_script_lines as case
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
print([line["collectives"] for line in case.report_of(case.averages) if line["collectives"]])
"""


@pytest.fixture(autouse=True)
def untraced():
    """Another test in this process may have left first steps that were never ended."""
    sys.settrace(None)


def rests(loss):
    time.sleep(0.02)


def averages(loss):
    total = loss.detach().clone()
    distributed.all_reduce(total)
    distributed.all_gather_object([None], 1)


def clips(loss):
    torch.nn.utils.clip_grad_norm_([torch.ones(2, requires_grad=True)], 0.5)


def checkpoints(loss):
    checkpoint(torch.relu, torch.ones(2, requires_grad=True), use_reentrant=False)


def report_of(besides):
    """What is reported of three traced steps of a loop that calls this in each."""
    return traced(besides).report()


def traced(besides, *optimizers):
    """The agent's hooks are called where torch has them.

    ``optimizers``: that the script is known to have."""
    script = SimpleNamespace(recorder=Recorder(), device=None, optimizers=optimizers)
    lines = Lines(script)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: lines.end_step())
    for step in range(4):
        loss = model(torch.ones(8, 64)).sum()
        loss.backward()
        optimizer.step()
        if step == 0:
            lines.begin()
        besides(loss)
    return lines


def test_lines_have_their_time_and_the_phase_that_they_hold():
    by_text = {line["text"]: line for line in report_of(rests)}
    resting = by_text["besides(loss)"]
    assert resting["phases"] == [] and resting["seconds"] > 0
    assert resting["place"].startswith("tests/unit/test_script_lines.py:")
    assert by_text["loss = model(torch.ones(8, 64)).sum()"]["phases"] == ["forward"]
    assert sys.gettrace() is None


def test_clipping_is_read_and_whether_gradients_are_still_on_their_way():
    assert traced(clips).uses["step.clipping"] == "clip_grad_norm_ 0.5"
    late = traced(clips, SimpleNamespace(_handles={"weight": 1})).uses["step.clipping"]
    assert late == "before the exchange: clip_grad_norm_ 0.5"
    assert traced(rests).uses == {"step.clipping": "none", "step.checkpointed": 0}


def test_activation_checkpoints_are_counted():
    assert traced(checkpoints).uses["step.checkpointed"] == 1


@pytest.mark.process
def test_collectives_count_where_the_loop_calls_them_and_once():
    """``all_gather_object`` calls ``all_gather`` twice, which is none of the script's."""
    assert (
        run_python(ONE_RANK).stdout.strip()
        == "[{'all_reduce (sum) of 4 B': 1.0, 'all_gather_object': 1.0}]"
    )


def test_nobody_elses_trace_is_taken_away():
    def tracer(*_):
        return None

    sys.settrace(tracer)
    try:
        assert report_of(rests) == []
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)


def arm(name, *lines, ranks=1):
    return ScriptArm(
        name=name, reports=[ScriptReport(rank=rank, lines=list(lines)) for rank in range(ranks)]
    )


def line(number, text, seconds, *, phases=(), **more):
    return LineUse(
        place=f"train.py:{number}", text=text, seconds=seconds, phases=list(phases), **more
    )


FORWARD = line(1, "out = model(x)", 0.02, phases=["forward"])
LOGS = line(3, "writer.add_scalar('loss', loss)", 0.005)


def test_a_line_that_one_script_has_alone_is_named_where_it_takes_time():
    (difference,) = line_differences([arm("old", FORWARD), arm("new", FORWARD, LOGS)])
    assert difference.severity == "speed"
    assert difference.sentence.endswith("of new is train.py:3: writer.add_scalar('loss', loss)")


EXPLAIN_NOTHING = {
    "the same line elsewhere": [LOGS.model_copy(update={"place": "port.py:9"})],
    "another that takes as long": [line(4, "log(loss)", 0.005)],
    "one that takes next to nothing": [LOGS, line(4, "count += 1", 0.0001)],
    "one that mostly waits": [LOGS, line(4, "o.synchronize()", 0.005, exchange_s=0.003)],
}


@pytest.mark.parametrize("new", EXPLAIN_NOTHING.values(), ids=EXPLAIN_NOTHING)
def test_nothing_is_said_of_lines_that_explain_nothing(new):
    assert line_differences([arm("old", FORWARD, LOGS), arm("new", FORWARD, *new)]) == []


def test_nothing_is_said_of_a_script_whose_lines_were_not_seen():
    assert line_differences([arm("old"), arm("new", FORWARD, LOGS)]) == []


def test_unlike_numbers_of_collectives_are_named_with_place_and_time():
    reduces = line(7, "mean(loss)", 0.001, exchange_s=0.001, collectives={"all_reduce of 4 B": 2.0})
    (difference,) = line_differences([arm("old", FORWARD), arm("new", FORWARD, reduces)])
    assert difference.values == {
        "old": None,
        "new": "2 all_reduce of 4 B at train.py:7, waited for 1.00 ms in each of the first steps",
    }


@pytest.mark.parametrize(
    ("old", "severity"), [({"allreduce_ of 4 B": 1.0}, "training"), ({}, "speed")]
)
def test_a_sum_over_ranks_is_held_against_a_mean_and_not_against_nothing(old, severity):
    arms = [
        arm(name, FORWARD, line(7, "total = reduced(loss)", 0.001, collectives=collectives))
        for name, collectives in (("old", old), ("new", {"all_reduce (sum) of 4 B": 1.0}))
    ]
    (difference,) = line_differences(arms)
    assert difference.severity == severity


def test_a_line_waits_for_as_long_as_the_rank_that_comes_last():
    waiting = arm("new", line(7, "reduced(loss)", 0.010, exchange_s=0.009), ranks=2)
    waiting.reports[1].lines = [line(7, "reduced(loss)", 0.003, exchange_s=0.002)]
    (other,) = other_lines(waiting)
    assert (other.exchange_s, other.seconds) == pytest.approx((0.002, 0.001))
