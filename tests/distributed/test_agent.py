"""The agent in real scripts, which know nothing of it: two ranks under launchers, and single
processes that train unusually.

Under horovodrun: ``test_scripts``.
"""

from __future__ import annotations

import contextlib
import math
import sys

import pytest

from runners.protocol import (
    BlockReply,
    ErrorReply,
    FinishedReply,
    StartedReply,
)
from tests.conftest import no_process_stays
from tests.kit.scripts import ScriptDriver

STEPS, WARMUP = 10, 2
TORCHRUN = "torchrun --nproc-per-node 2 either.py --by ddp"
IMPOSED = {
    "threads.torch": 2,
    "loader.workers": 1,
    "loader.persistent_workers": True,
    "ddp.bucket_cap_mb": 2,
    "optimizer.0.0.foreach": True,
    "environment.OMP_PROC_BIND": "false",
}


@contextlib.contextmanager
def driver(folder, **settings):
    with no_process_stays(), contextlib.closing(ScriptDriver(folder, **settings)) as made:
        yield made


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """All that a driver does with an arm: start, two blocks with the ranks stopped in between,
    finish.

    With settings in place of the script's own, as ``ab --explain`` has it."""
    settings = {"recorded": ["OMP_"], "secret": "TOKEN", "impose": IMPOSED}
    with driver(tmp_path_factory.mktemp("launched"), **settings) as arm:
        arm.start(*TORCHRUN.split())
        found = {"started": arm.receive(), "blocks": []}
        for number in range(2):
            found["blocks"].append(arm.block(STEPS, warmup=WARMUP, block=number))
            for act in ("stop", "continue"):
                arm.supervisors.tell(arm.arm, 0, act)
        found["counters"] = arm.supervisors.tell(arm.arm, 0, "counters")
        found |= {"finished": arm.finish(), "exit_code": arm.exit_code, "log": arm.log}
    return found


def test_ranks_start_run_blocks_and_finish(launched):
    found = launched
    assert all(isinstance(reply, StartedReply) for reply in found["started"]), found["log"]
    assert all(isinstance(reply, FinishedReply) for reply in found["finished"])
    assert found["exit_code"] == 0, found["log"]
    reports = [reply.report for reply in found["started"]]
    assert [(one.rank, one.local_rank, one.world_size) for one in reports] == [(0, 0, 2), (1, 1, 2)]
    backend = reports[0].backend
    assert (backend["library"], backend["transport"]) == ("ddp", "gloo")
    assert found["counters"]  # read by Ringside's own Python
    assert found["finished"][0].drift.parameters == found["finished"][1].drift.parameters != {}
    assert found["log"].count("left the group") == 2, "in its 'finally'"


def test_blocks_are_whole_and_their_phases_sum(launched):
    for number, replies in enumerate(launched["blocks"]):
        for rank, reply in enumerate(replies):
            assert isinstance(reply, BlockReply)
            own = reply.steps
            assert (own.rank, own.samples, len(own.phases_s)) == (rank, [8] * STEPS, STEPS)
            assert own.first_step == 5 + number * (STEPS + WARMUP)
            assert len(own.losses) == len(own.loss_samples) == STEPS + WARMUP
            assert all(math.isfinite(loss) for loss in own.losses)
            assert (own.phases_s[:, :-1] > 0).all()
            assert not own.phases_s[:, -1].all(), "DDP waits in backward"
            assert 0 < sum(map(sum, own.phases_s)) <= own.core_use.wall_s
            assert own.threads.running_s > 0


def test_what_ranks_report_of_their_first_steps_can_be_held_against_each_other(launched):
    first, other = (reply.script for reply in launched["started"])
    assert first.started == other.started
    assert first.notes == other.notes == []
    assert set(first.sizes) == set(first.started) >= {"0.weight", "buffer:1.running_mean"}
    assert [len(one.steps) for one in (first, other)] == [5, 5]
    for mine, theirs in zip(first.steps, other.steps, strict=True):
        assert mine.batch != theirs.batch
        assert (mine.samples, mine.backward_passes, mine.learning_rates) == (8, 1, [0.01])
        for name, value in mine.parameters.items():
            assert theirs.parameters[name] == pytest.approx(value, rel=1e-5, abs=1e-6)
    gradient = first.steps[0].gradients["0.weight"]
    # after the exchange
    assert other.steps[0].gradients["0.weight"] == pytest.approx(gradient, rel=1e-5, abs=1e-7)
    expected = IMPOSED | {"loader.batch_size": 8, "sampler.replicas": 2, "optimizer.0.0.lr": 0.01}
    for reported in (first, other):
        assert reported.configuration.items() >= expected.items()


def alone(folder, name, *, blocks=1, **settings):
    """A single process, its first report and the replies to blocks, of which the last is what came
    instead."""
    with driver(folder, ranks=1, **settings) as arm:
        arm.start(sys.executable, "agent_cases.py", name)
        replies = arm.receive()
        while isinstance(replies[-1], StartedReply | BlockReply) and len(replies) <= blocks:
            replies += arm.block(20, block=len(replies))
        if isinstance(replies[-1], StartedReply | BlockReply):
            replies += arm.finish()
        else:
            arm.exit_code = arm.process.wait(timeout=60)
        return replies, arm


@pytest.mark.costly
def test_what_goes_wrong_in_the_probe_does_not_end_the_script(tmp_path):
    replies, arm = alone(tmp_path, "odd", blocks=2)
    assert isinstance(replies[-1], ErrorReply)
    assert replies[-1].message == "the agent failed: RuntimeError: not yet"
    assert any("batches.py" in line for line in replies[-1].excerpt)
    assert arm.exit_code == 0
    assert "ended by itself 40" in arm.log


@pytest.mark.costly
@pytest.mark.parametrize(("name", "samples"), [("prefetches_for_several_losses", 8), ("lbfgs", 4)])
def test_a_step_of_several_backward_passes_counts_the_samples_it_uses(tmp_path, name, samples):
    """With batches that are drawn before their passes: ``test_ways``."""
    replies, _ = alone(tmp_path, name)
    script, own = replies[0].script, replies[1].steps
    assert (script.samples_from, script.notes) == ("loader", [])
    assert all(step.backward_passes > 1 and step.samples == samples for step in script.steps)
    assert own.samples == [samples] * 20


@pytest.mark.costly
@pytest.mark.parametrize("untimed", ["nothing", "evaluation"])
def test_an_evaluation_is_timed_unless_the_plan_says_otherwise(tmp_path, untimed):
    replies, _ = alone(tmp_path, "evaluates", untimed=untimed)
    own = replies[1].steps
    assert replies[0].script.configuration["accumulation"] == 2
    assert own.samples == [8] * 20
    assert {step for step, _ in own.gaps} >= ({1, 9, 17} if untimed == "nothing" else set())
    assert (own.untimed_s > sum(map(sum, own.phases_s))) == (untimed == "evaluation")


@pytest.mark.costly
def test_steps_that_overflow_are_counted_and_losses_are_not_scaled(tmp_path):
    replies, _ = alone(tmp_path, "overflows")
    script, own = replies[0].script, replies[1].steps
    assert [math.isfinite(step.loss) for step in script.steps] == [True, True, False, True, True]
    assert script.steps[0].loss < 3
    assert script.steps[2].parameters == script.steps[1].parameters
    assert 6 <= own.skipped_steps <= 7
    assert script.configuration["autocast.dtype"] == "bfloat16"
    assert script.configuration["scaler.enabled"] is True


@pytest.mark.costly
def test_compiled_steps_are_steps_and_the_probe_is_not_compiled(tmp_path):
    replies, arm = alone(tmp_path, "compiled")
    assert isinstance(replies[-1], FinishedReply)
    assert replies[0].script.configuration["model.class"] == "Sequential"
    assert replies[1].steps.phases_s[:, -1].all()
    assert "does not know how to trace" not in arm.log
    assert "recompile_limit" not in arm.log
    assert "global hooks" not in arm.log


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "ranks", "said"),
    [
        ("tidies_up", 1, ["finally", "removed", "atexit"]),
        (
            "spawns_tidy_ranks",
            2,
            ["finally", "left the group", "removed", "atexit"] * 2 + ["joined"],
        ),
        ("forks_tidy_ranks", 2, ["finally", "left the group"] * 2 + ["joined"]),
        ("cannot_be_left", 1, ["goes on"]),
        (
            "takes_long_to_end",
            1,
            ["within 5 s of its last step, so its 'finally' and 'atexit' are cut short"],
        ),
    ],
)
def test_what_a_script_does_at_its_end_is_done(tmp_path, name, ranks, said):
    """Children that are forked have no ``atexit`` before Python 3.14."""
    with driver(tmp_path, ranks=ranks) as arm:
        arm.start(sys.executable, "agent_cases.py", name)
        assert all(isinstance(reply, StartedReply) for reply in arm.receive())
        assert all(isinstance(reply, FinishedReply) for reply in arm.finish())
    assert arm.exit_code == 0, arm.log
    assert {line: arm.log.count(line) for line in said} == {
        line: said.count(line) for line in said
    }, arm.log
    assert "Traceback" not in arm.log


@pytest.mark.costly
def test_a_share_of_the_parameters_is_not_compared(tmp_path):
    replies, _ = alone(tmp_path, "shards")
    script = replies[0].script
    assert script.sharded
    assert not script.started
    assert not script.steps[0].parameters
    assert replies[1].drift.parameters == {}
