"""What a rank is given of its host."""

from __future__ import annotations

import hashlib
import threading

import pytest

from measurement.agent.ringside_agent.place import World
from measurement.probes.fingerprint import core_count
from runners.rank import resources
from runners.rank.resources import threads_of
from tests.kit.commands import run_python

ALONE = World(launcher="torchrun")
SHARED = World(local_world_size=4 * core_count(), world_size=4 * core_count())
BY_TORCHRUN = {"TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("world", "asked", "environment", "threads"),
    [
        (ALONE, None, {}, core_count()),
        (SHARED, None, {}, 1),
        (ALONE, 3, {"OMP_NUM_THREADS": "2"}, 3),
        (ALONE, None, {"OMP_NUM_THREADS": "7"}, 7),
        (ALONE, None, {"OMP_NUM_THREADS": "7", **BY_TORCHRUN}, 7),
        (ALONE, None, {"OMP_NUM_THREADS": "1", **BY_TORCHRUN}, core_count()),
        (ALONE, None, {"OMP_NUM_THREADS": "1"}, 1),
        (ALONE, None, {"OMP_NUM_THREADS": "many"}, core_count()),
    ],
)
def test_threads_are_a_share_of_the_cores_or_what_was_asked_for(world, asked, environment, threads):
    """torchrun's own OMP_NUM_THREADS=1 does not count; a user's does."""
    assert threads_of(world, asked=asked, environment=environment) == threads


@pytest.mark.slow
def test_a_fork_waits_for_a_native_thread_that_runs(monkeypatch):
    monkeypatch.setattr(resources, "MAX_WAIT_S", 60.0)
    began, much = threading.Event(), bytes(300_000_000)

    def work():
        began.set()
        hashlib.sha256(much)  # without the interpreter's lock

    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    resources.wait_for_native_threads()
    thread.join(timeout=resources.LOOK_EVERY_S)
    assert not thread.is_alive()


def test_a_fork_waits_only_a_moment_for_a_thread_that_always_runs(monkeypatch):
    monkeypatch.setattr(resources, "own_threads", lambda: [1])
    monkeypatch.setattr(resources, "state", lambda _: "R")
    resources.wait_for_native_threads()


@pytest.mark.process
@pytest.mark.parametrize(
    ("version", "waits"), [((3, 11, 9), True), ((3, 11, 10), False), ((3, 13, 0), False)]
)
def test_only_a_cpython_with_the_defect_waits(version, waits):
    script = (
        "import os, sys; sys.path.insert(0, '')\n"
        "from runners.rank import resources\n"
        f"sys.version_info = {version}\n"
        "hooks = []; os.register_at_fork = lambda **hook: hooks.append(hook)\n"
        "resources.make_forks_safe(); resources.make_forks_safe(); print(len(hooks))"
    )
    assert run_python(script).stdout.split() == [str(int(waits))]
