"""Nothing of a waiting arm runs, and its loaders give it nothing for free: seen from outside, while
arms take turns."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import no_process_stays, write_plan
from tests.kit.commands import started

pytestmark = pytest.mark.costly("waiting arms")

SLOW_LOADER = Path(__file__).parent / "plugins" / "slow_loader.py"
ARMS = ("ddp", "naive")
STOPPED = (
    psutil.STATUS_STOPPED,
    psutil.STATUS_TRACING_STOP,
    psutil.STATUS_ZOMBIE,
    psutil.STATUS_DEAD,
)
WORLD_SIZE = 2
LOADER_WORKERS = 2
SNAPSHOTS = 10

SLEEPS_S = 2 * 10 * 0.005
"""What a loader sleeps for a batch of two (``slow_loader.py``): on no machine it comes sooner."""


def look(process):
    """What the kernel says of a process: its state and the CPU time that it has used; None if it
    has ended."""
    with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
        return process.status(), process.cpu_times()[:2]
    return None


def words(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def arms_seen(driver):
    """By arm: its ranks, each the parent of a supervisor that names its arm, and all that descends
    from them but supervisors."""
    with contextlib.suppress(psutil.NoSuchProcess):
        ours = {
            process: words(process) for process in psutil.Process(driver).children(recursive=True)
        }
        supervisors = {
            process: said
            for process, said in ours.items()
            if any(word.endswith("rank_supervisor.py") for word in said)
        }
        found = {
            arm: [process.parent() for process, said in supervisors.items() if arm in said]
            for arm in ARMS
        }
        return {
            arm: (
                ranks,
                {child for rank in ranks for child in rank.children(recursive=True)}
                - set(supervisors),
            )
            for arm, ranks in found.items()
        }
    return dict.fromkeys(ARMS, ([], set()))


@pytest.fixture(scope="module")
def taken_turns(tmp_path_factory):
    """A comparison, what was seen of it from outside, and the mean step that its ranks timed, by
    arm."""
    folder = tmp_path_factory.mktemp("turns")
    plan = write_plan(
        folder,
        workload=f"{SLOW_LOADER}:SlowLoader",
        local_batch_size=2,
        arms={arm: {"backend": arm, "launcher": "spawn"} for arm in ARMS},
        measurement={"rounds": 8, "block_steps": 6, "local_every": 0},
    )
    with no_process_stays(), started("compare", plan, "-o", folder / "out") as driver:
        seen = watch(driver)
        _, said = driver.communicate(timeout=240)
    assert driver.returncode == 0, said
    results = ResultsFolder(folder / "out")
    return seen, {
        record.arm: results.steps(record)["step_s"].mean() for record in results.records()
    }


def watch(driver):
    """What the kernel said of an arm's processes at two moments of one turn of the other arm."""
    seen = []
    deadline = time.monotonic() + 240
    while driver.poll() is None and time.monotonic() < deadline:
        arms = arms_seen(driver.pid)
        for waiting, running in (ARMS, ARMS[::-1]):
            seen += snapshot(*arms[waiting], arms[running][0])
        time.sleep(0.1)
    return seen


def snapshot(waiting_ranks, their_processes, running_ranks):
    """One entry if an arm with loader processes waited all the while and the other arm ran.

    The driver stops an arm before it continues another, so then all of the arm's processes have
    stopped.
    """
    views = []
    for _ in range(2):
        is_turn = any(seen and seen[0] not in STOPPED for seen in map(look, running_ranks))
        views.append({process: look(process) for process in [*waiting_ranks, *their_processes]})
        is_waiting = all(
            views[-1][rank] and views[-1][rank][0] == psutil.STATUS_STOPPED
            for rank in waiting_ranks
        )
        if not (is_turn and is_waiting and len(their_processes) >= WORLD_SIZE * LOADER_WORKERS):
            return []
        time.sleep(0.03)
    return [views]


def test_no_process_of_a_waiting_arm_runs(taken_turns):
    seen, _ = taken_turns
    assert len(seen) >= SNAPSHOTS
    for before, after in seen:
        # what is None had ended before the arm was stopped
        there = [process for view in (before, after) for process in view.values() if process]
        assert {state for state, _ in there} <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        assert before == after, "a process computed while its arm waited"


def test_a_batch_is_not_loaded_while_its_arm_waits(taken_turns):
    """With batches from a queue that was filled while the arm did not step, it would be several
    times as fast."""
    _, step_s = taken_turns
    assert step_s.keys() == set(ARMS)
    assert min(step_s.values()) > 0.9 * SLEEPS_S / LOADER_WORKERS
