"""Who used the cores, counted by the real kernel: this process, its children, and others; and who
had the core that a training thread is pinned to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from measurement.agent.ringside_agent import machine
from measurement.agent.ringside_agent.machine import read_threads, threads_between, usable_cores
from measurement.host import busy_warning, shared_gpus_warning
from measurement.records.block import BlockRecord, CoreUse, RankSteps, ThreadTimes, load_of
from tests.kit.commands import run_python

SPIN = "import time\nuntil = time.perf_counter() + {}\nwhile time.perf_counter() < until: pass"

pytestmark = pytest.mark.skipif(
    machine.read_core_use(usable_cores()) is None, reason="the kernel has no /proc/stat"
)


def use_of(act):
    before = machine.read_core_use(usable_cores())
    act()
    return CoreUse(**machine.core_use_between(before, machine.read_core_use(usable_cores())))


@pytest.mark.slow
def test_own_time_is_own_and_that_of_a_thread_besides_the_training_thread_told_apart():
    def spin_beside():
        thread = threading.Thread(target=lambda: sum(range(20_000_000)))
        thread.start()
        thread.join()

    used = use_of(spin_beside)
    assert 0.5 * used.own_s < used.other_threads_s <= used.own_s
    assert used.busy_s > 0.5 * used.own_s
    share = used.other_threads_s / used.wall_s
    assert load_of([used])["other_threads_share"] == pytest.approx(share)


@pytest.mark.process
def test_a_childs_time_is_own_while_it_lives():
    """As of a loader's workers, which are never waited for between two blocks."""
    with subprocess.Popen([sys.executable, "-c", SPIN.format(60)]) as child:
        try:
            use = use_of(lambda: time.sleep(1.2))
        finally:
            child.kill()
    assert use.own_s > 0.2


@pytest.fixture
def strangers():
    """Processes that take all cores, started by a shell that ends at once, so that they are
    nobody's children here."""
    number = len(usable_cores())
    script = f"for one in {'. ' * number}; do {sys.executable} -c '{SPIN.format(60)}' > /dev/null 2>&1 & echo $!; done"
    pids = subprocess.run(
        ["sh", "-c", script], check=True, timeout=10, capture_output=True, text=True
    ).stdout
    yield
    for pid in pids.split():
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.process
@pytest.mark.usefixtures("strangers")
def test_a_strangers_time_is_foreign_and_told():
    use = use_of(lambda: time.sleep(1.0))
    assert use.busy_s - use.own_s > 0.25
    assert busy_warning(usable_cores()).startswith("other processes use ")


def use(**changes):
    given = {"machine": "a", "cores": [0], "wall_s": 1.0, "busy_s": 1.0, "steal_s": 0.0}
    return CoreUse(**given | {"own_s": 1.0} | changes)


def test_pinned_ranks_count_each_on_its_own_core():
    load = load_of([use(own_s=0.7), use(cores=[1], own_s=1.0, steal_s=0.1)])
    assert load["foreign_share"] == pytest.approx(0.3 / 2)
    assert load["steal_share"] == pytest.approx(0.1 / 2)


def test_ranks_that_share_cores_are_not_each_others_load():
    both = [use(cores=[0, 1], busy_s=2.0, own_s=own_s) for own_s in (1.2, 0.8)]
    assert load_of(both)["foreign_share"] == pytest.approx(0.0)
    assert load_of([both[0], use(machine="b", cores=[0, 1], busy_s=2.0, own_s=1.0)])[
        "foreign_share"
    ] == pytest.approx(1.8 / 4)


def test_hosts_of_one_kernel_count_the_same_cores(monkeypatch):
    """As the pods of a node, or the hosts of a lab: each counts all that the cores did, and its own
    ranks alone."""
    machines = []
    for host in ("pod-1", "pod-2"):
        monkeypatch.setattr(machine.socket, "gethostname", lambda host=host: host)
        machine.machine_id.cache_clear()
        machines.append(use_of(lambda: None).machine)
    both = [use(machine=machine, busy_s=2.0, wall_s=2.0) for machine in machines]
    assert load_of(both)["foreign_share"] == pytest.approx(0.0)


def test_ranks_that_share_gpus_are_told_so():
    for gpus in (0, 2, 4):
        assert shared_gpus_warning(2, gpus) is None
    assert shared_gpus_warning(2, 1).startswith("2 ranks have 1 GPU: ")


SHARED_CORE = """
import hashlib, json, os, sys, threading, time
from measurement.agent.ringside_agent.machine import read_threads, threads_between
from measurement.agent.ringside_agent.machine import own_threads

def compute(seconds):  # without the interpreter's lock
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
own = threading.Thread(target=compute, args=(3.0,))
own.start()
known = own_threads()
library = threading.Thread(target=compute, args=(1.0,))
library.start()
before = read_threads()
compute(0.5)
print(json.dumps(threads_between(before, read_threads(), is_library=lambda thread: thread not in known)))
os._exit(0)
"""


@pytest.mark.process
@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(),
    reason="this kernel keeps no schedstat (CONFIG_SCHED_INFO)",
)
def test_threads_that_come_later_are_the_librarys_and_take_the_core():
    shares = json.loads(run_python(SHARED_CORE).stdout)
    assert all(seconds > 0 for seconds in shares.values()), shares


def test_without_counters_nothing_is_known():
    assert threads_between(None, read_threads()) is None


BLOCK = BlockRecord(turn=0, round=0, block=0, kind="sync", steps=1)


def ran_for(seconds):
    return ThreadTimes(running_s=seconds, runnable_s=0.0, library_s=0.0, others_s=1.0)


def rank(number, **known):
    return RankSteps(rank=number, untimed_s=0.0, samples=[1], phases_s=[[0.0] * 5], **known)


def test_a_block_has_the_mean_over_ranks_or_nothing():
    ranks = [
        rank(
            number,
            threads=ran_for(seconds),
            page_faults=100 * number,
            core_use=use(cores=[number], busy_s=0.9, own_s=0.6),
        )
        for number, seconds in enumerate((1.0, 3.0))
    ]
    both = BlockRecord.joined(BLOCK, ranks)
    assert both.threads == ran_for(2.0)
    assert (both.page_faults, both.foreign_share) == (50, pytest.approx(0.3))
    assert BlockRecord.joined(BLOCK, [ranks[0], rank(1)]).threads is None
    assert BlockRecord.joined(BLOCK, [rank(0)]).foreign_share is None
