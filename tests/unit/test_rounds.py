"""The order of blocks, their lengths and what is left out, with ranks that answer at once."""

from __future__ import annotations

import itertools
import random

import pytest

from measurement.records.block import RankSteps
from runners.driver.rounds import SLOWEST_BLOCK, Rounds
from runners.progress import LaunchProgress
from runners.session.arm_run import ArmRun, Exchange
from tests.kit.plans import tiny
from tests.kit.results_factory import make_record

PLAN = {
    "seed": 7,
    "arms": {"a": {"backend": "ddp"}, "b": {"backend": "horovod"}, "c": {"backend": "horovod"}},
    "measurement": {"rounds": 2, "local_every": 2, "block_s": 0.1},
}
AS_BEFORE = (
    "a-sync-4 a-control-sync-4 b-sync-4 c-sync-4 "
    "b-sync-10 c-sync-10 a-sync-10 a-control-sync-10 "
    "a-control-sync-10 b-sync-10 c-sync-10 a-sync-10 "
    "c-local-10 a-control-local-10 b-local-10 a-local-10"
)
"""Arm, kind and steps of the blocks of seed 7, launch 0, as version 0.1.0 hands them out."""


class Session:
    """Ranks that take ``step_s`` for each repetition, and note what they are told."""

    exit_codes: tuple[int, ...] = ()
    restarting_s = 0.0

    def __init__(self, name, commands, step_s, wrong):
        self.name, self.commands, self.step_s, self.wrong = name, commands, step_s, wrong

    def end(self):
        pass

    def exchange(self, command, expected, timeout_s):
        self.commands.append((self.name, command))
        step_s = self.step_s * command.repetitions
        took = {
            "untimed_s": 0,
            "samples": [1] * command.steps,
            "phases_s": [[0.0, 0.0, step_s, 0.0, 0.0]] * command.steps,
            "wrong": self.wrong.get(command.case),
        }
        replies = [expected(steps=RankSteps(rank=rank, **took)) for rank in range(2)]
        return Exchange(replies=replies, took_s=command.steps * step_s, hosts={})


def run(*, cases=(), steps_s=None, wrong=None, session=Session, **measurement):
    """Every command that the arms were given, and the arms.

    ``steps_s`` and ``wrong``: by arm; a step takes 10 ms where it is not named."""
    plan = tiny(**{**PLAN, "measurement": PLAN["measurement"] | measurement})
    commands, arms = [], {}
    for name in plan.compared_arms():
        ranks = session(
            name, commands, (steps_s or {}).get(name, 0.01), (wrong or {}).get(name, {})
        )
        arms[name] = ArmRun(
            session=ranks,
            job=None,
            record=make_record(arm=name, role=plan.role(name), world_size=2),
            say=lambda what: None,
            can={"block", "steps_apart"},
        )
    turns, seconds = itertools.count(), plan.measurement.seconds_per_launch
    rounds = Rounds(
        plan,
        cases=cases,
        rng=random.Random(f"{plan.seed}/0"),
        progress=LaunchProgress(seconds_per_launch=1),
        seconds=seconds,
        keep=lambda: next(turns),
    )
    rounds.run([*arms.values()])
    return commands, arms


def blocks_of(arms):
    """Those of all arms."""
    return [block for arm in arms.values() for block in arm.record.blocks]


def test_training_keeps_the_order_it_always_had():
    commands, _ = run()
    handed_out = [f"{arm}-{command.kind}-{command.steps}" for arm, command in commands]
    assert handed_out == AS_BEFORE.split()


def test_in_training_a_far_slower_arm_shortens_all_blocks():
    _, arms = run(steps_s={"c": 0.1})
    assert {block.steps for block in blocks_of(arms)} == {round(SLOWEST_BLOCK)}


@pytest.mark.parametrize(("asked", "taken"), [(25, 30), (3, 3)], ids=["whole blocks of 10", "few"])
def test_a_launch_may_end_after_so_many_steps_of_each_arm(asked, taken):
    _, arms = run(steps_per_launch=asked, local_every=0)
    steps = {sum(block.steps for block in arm.record.blocks) for arm in arms.values()}
    assert steps == {taken}


class Anew(Session):
    """One whose ranks take long to start again with each command."""

    def exchange(self, command, expected, timeout_s):
        self.restarting_s = 1000.0
        return super().exchange(command, expected, timeout_s)


def test_being_started_anew_before_the_rounds_makes_a_launch_no_longer():
    _, arms = run(session=Anew, rounds=None, seconds_per_launch=1e-9)
    assert {len(arm.record.blocks) for arm in arms.values()} == {1}


@pytest.mark.parametrize(("cases", "warmups"), [((), [1, 0, 0]), (("op/1KiB",), [1, 1, 1, 1])])
def test_a_run_that_nobody_interrupts_warms_its_model_up_once_and_needs_no_trial(cases, warmups):
    """The tensors of a micro-benchmark are made again in each block."""
    commands, _ = run(
        cases=cases, mode="separate", rounds=3, block_steps=5, warmup_steps=1, local_every=0
    )
    assert [command.warmup_steps for arm, command in commands if arm == "a"] == warmups


CASES = [f"op/{number}KiB" for number in range(5)]


def test_each_round_has_every_case_with_its_arms_together_and_no_local_blocks():
    commands, arms = run(cases=CASES, rounds=3)
    blocks = commands[4 * len(CASES) :]
    assert {command.kind for _, command in blocks} == {"sync"}
    groups = [blocks[at : at + 4] for at in range(0, len(blocks), 4)]
    assert all({arm for arm, _ in group} == set(arms) for group in groups)
    assert all(len({command.case for _, command in group}) == 1 for group in groups)
    order = [group[0][1].case for group in groups]
    rounds = [order[at : at + 5] for at in (0, 5, 10)]
    assert [sorted(cases) for cases in rounds] == [CASES] * 3
    assert rounds[0] != rounds[1] != rounds[2]


@pytest.mark.parametrize(
    ("step_s", "length"),
    [(10e-6, (100, 100)), (0.5e-3, (100, 2)), (0.02, (5, 1)), (3.0, (1, 1))],
)
def test_short_repetitions_share_a_step_and_long_ones_are_few(step_s, length):
    steps_s = dict.fromkeys(("a", "a-control", "b", "c"), step_s)
    _, arms = run(cases=CASES[:1], steps_s=steps_s)
    assert {(block.steps, block.repetitions) for block in blocks_of(arms)} == {length}


def test_a_wrong_value_before_a_block_makes_the_arm_wrong_and_leaves_the_others():
    _, arms = run(cases=CASES, wrong={"c": {CASES[2]: f"{CASES[2]} gives 3 where 2 is right"}})
    wrong = arms.pop("c").record
    assert (wrong.status, wrong.blocks) == ("wrong", [])
    assert wrong.error.message == "rank 0: op/2KiB gives 3 where 2 is right"
    assert {arm.record.status for arm in arms.values()} == {"ok"}
    assert len(blocks_of(arms)) == 3 * 2 * len(CASES)
