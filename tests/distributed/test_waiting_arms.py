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
WAITING = {psutil.STATUS_STOPPED}
LOADERS = 2 * 2
"""Two of each rank."""
SNAPSHOTS = 10

SLEEPS_S = 2 * 10 * 0.005
"""What a loader sleeps for a batch of two (``slow_loader.py``): on no machine it comes sooner."""


def look(processes):
    """What the kernel says of them: state and CPU time."""
    return {process: (process.status(), process.cpu_times()[:2]) for process in processes}


def arms_seen(driver):
    """By arm: what is seen of its ranks, each the parent of a supervisor that names its arm, and of
    all that they have started but supervisors."""
    ours = {process: process.cmdline() for process in driver.children(recursive=True)}
    supervisors = {
        process: words
        for process, words in ours.items()
        if any(word.endswith("rank_supervisor.py") for word in words)
    }
    found = {}
    for arm in ARMS:
        ranks = {process.parent() for process, words in supervisors.items() if arm in words}
        started = {child for rank in ranks for child in rank.children(recursive=True)}
        found[arm] = look(ranks), look(started - supervisors.keys())
    return found


def states(processes):
    return {state for state, _ in processes.values()}


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
    """Two views, by process, of arms with loaders that waited while the other one ran.

    The driver stops an arm before it continues another, so all of it has stopped where that runs.
    """
    seen, deadline = [], time.monotonic() + 240
    while driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        with contextlib.suppress(psutil.Error):
            views = []
            for _ in range(3):
                views.append(arms_seen(psutil.Process(driver.pid)))
                time.sleep(0.03)
            for waiting, running in (ARMS, ARMS[::-1]):
                runs = states(views[0][running][0])
                (ranks, loaders), (ranks_after, loaders_after) = (
                    view[waiting] for view in views[1:]
                )
                waits = states(ranks) == states(ranks_after) == WAITING
                if waits and runs and not runs & WAITING and len(loaders) >= LOADERS:
                    seen.append((ranks | loaders, ranks_after | loaders_after))
    return seen


def test_no_process_of_a_waiting_arm_runs(taken_turns):
    seen, _ = taken_turns
    assert len(seen) >= SNAPSHOTS
    for before, after in seen:
        assert states(before) <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        assert before == after, "a process computed while its arm waited"


def test_a_batch_is_not_loaded_while_its_arm_waits(taken_turns):
    """With batches from a queue that was filled while the arm did not step, it would be several
    times as fast."""
    _, step_s = taken_turns
    assert step_s.keys() == set(ARMS)
    assert min(step_s.values()) > 0.9 * SLEEPS_S / 2
