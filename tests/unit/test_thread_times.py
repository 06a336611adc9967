"""Who had the core: a real thread that takes it, beside a training thread pinned to the same
one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from measurement.agent.ringside_agent.machine import read_threads, threads_between
from measurement.records.block import BlockRecord, CoreUse, RankSteps, ThreadTimes
from tests.kit.commands import run_python

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


USED = {"machine": "a", "wall_s": 1.0, "busy_s": 0.9, "steal_s": 0.0, "own_s": 0.6}
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
            core_use=CoreUse(**USED, cores=[number]),
        )
        for number, seconds in enumerate((1.0, 3.0))
    ]
    both = BlockRecord.joined(BLOCK, ranks)
    assert both.threads == ran_for(2.0)
    assert (both.page_faults, both.foreign_share) == (50, pytest.approx(0.3))
    assert BlockRecord.joined(BLOCK, [ranks[0], rank(1)]).threads is None
    assert BlockRecord.joined(BLOCK, [rank(0)]).foreign_share is None
