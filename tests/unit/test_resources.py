"""What a rank is given of its host."""

from __future__ import annotations

import hashlib
import threading

import pytest

from measurement.agent.ringside_agent.place import World
from measurement.host import core_count
from runners.rank import resources
from runners.rank.resources import threads_of
from tests.kit.commands import run_python

BY_TORCHRUN = {"TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("asked", "environment", "threads"),
    [
        (None, {}, core_count()),
        (3, {"OMP_NUM_THREADS": "2"}, 3),
        (None, {"OMP_NUM_THREADS": "7", **BY_TORCHRUN}, 7),
        (None, {"OMP_NUM_THREADS": "1", **BY_TORCHRUN}, core_count()),
        (None, {"OMP_NUM_THREADS": "1"}, 1),
        (None, {"OMP_NUM_THREADS": "many"}, core_count()),
    ],
)
def test_threads_of_a_rank_alone_are_all_cores_or_what_was_asked_for(asked, environment, threads):
    """torchrun's own OMP_NUM_THREADS=1 does not count; a user's does."""
    assert threads_of(World(), asked=asked, environment=environment) == threads


def test_more_ranks_than_cores_have_a_thread_each():
    ranks = 4 * core_count()
    shared = World(local_world_size=ranks, world_size=ranks)
    assert threads_of(shared, asked=None, environment={}) == 1


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
@pytest.mark.parametrize(("version", "hooks"), [((3, 11, 9), 1), ((3, 11, 10), 0)])
def test_only_a_cpython_with_the_defect_waits(version, hooks):
    script = (
        "import os, sys; sys.path.insert(0, '')\n"
        "from runners.rank import resources\n"
        f"sys.version_info = {version}\n"
        "hooks = []; os.register_at_fork = lambda **hook: hooks.append(hook)\n"
        "resources.make_forks_safe(); resources.make_forks_safe(); print(len(hooks))"
    )
    assert int(run_python(script).stdout) == hooks
