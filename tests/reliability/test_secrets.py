"""What other users of a host see and can do: read ``ps``, and connect to what listens there."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from measurement.agent.ringside_agent import settings
from measurement.records.results import ResultsFolder
from runners.launchers.base import RUN_ID
from runners.session.endpoint import KEY_PREFIX, shared_key
from tests.conftest import REPOSITORY, needs_horovod, started_processes, wait_until, write_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")
SECRET = "hunter2-hunter2"
MODULES = {"runners.ddp", "runners.hvd"}
"""What ranks run."""
LOOK_EVERY_S = 0.1
"""Launchers live for longer, and what is looked at needs the core."""
OTHERS = [65534] if os.geteuid() == 0 else []
"""Users that only root can act for."""
ARMS = {
    "ddp": {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"},
    "horovod": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
    "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "mpirun"},
}


def started(*command):
    return subprocess.Popen(
        list(map(str, command)),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def compare(plan):
    return started(sys.executable, "-m", "runners.cli", "compare", plan, "-o", plan.parent / "out")


def end_of(process):
    """What it said; it ends well."""
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def seen_while(process):
    """Until it ends, again and again every process that the test started: its number, its words and
    its environment."""
    while process.poll() is None:
        time.sleep(LOOK_EVERY_S)
        for one in started_processes():
            with contextlib.suppress(psutil.Error):
                yield one.pid, one.cmdline(), one.environ()


@needs_horovod
@pytest.mark.costly
def test_no_process_shows_or_has_a_secret_of_the_drivers_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SITE_API_KEY", SECRET)
    monkeypatch.setenv("SITE_FOLDER", "/site/data")
    short = {"rounds": 1, "local_every": 0}
    plan = write_plan(
        tmp_path, world_size=1, arms=ARMS, forward_environment=["SITE_*"], measurement=short
    )
    process = compare(plan)
    seen, with_folder, keys, tried, read_by_others = set(), set(), {}, set(), set()
    for _, words, held in seen_while(process):
        named = (
            [*words, settings.decode(held[settings.VARIABLE]).key_file]
            if settings.VARIABLE in held
            else words
        )
        keys |= {
            name: Path(name).read_text()
            for name in named
            if name.endswith("/key") and Path(name).is_file()
        }
        for secret in (SECRET, *keys.values()):
            if secret in " ".join(words) or (RUN_ID in held and secret in held.values()):
                seen.add(" ".join(words))
        for name in keys.keys() - tried:
            tried.add(name)
            read_by_others |= {name for user in OTHERS if reads(name, user=user)}
        if held.get("SITE_FOLDER") and settings.VARIABLE in held and MODULES & {*words}:
            with_folder.add(settings.decode(held[settings.VARIABLE]).arm)
    end_of(process)
    assert {record.status for record in ResultsFolder(tmp_path / "out").records()} == {"ok"}
    assert seen == set()
    assert len(keys) == 1
    assert read_by_others == set()
    assert not any(Path(name).parent.exists() for name in keys), "the key goes with the comparison"
    assert with_folder == set(ARMS), "what the plan names, all ranks have"
    written = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(
        secret.encode() in content for secret in (SECRET, *keys.values()) for content in written
    )


@pytest.mark.costly
@pytest.mark.parametrize(
    "command",
    [
        "torchrun --standalone --nproc-per-node 1 -m runners.ddp",
        pytest.param("mpirun -np 1 --allow-run-as-root python -m runners.hvd", marks=needs_horovod),
    ],
    ids=lambda command: command.split()[0],
)
def test_a_run_that_stands_alone_neither_shows_nor_writes_a_secret(tmp_path, monkeypatch, command):
    """horovodrun, which its user starts, writes its whole environment into command lines;
    docs/security.md says so."""
    monkeypatch.setenv("SITE_API_KEY", SECRET)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    short = [
        "--local-batch-size",
        "16",
        "--blocks",
        "2",
        "--block-steps",
        "3",
        "-o",
        str(tmp_path / "run"),
    ]
    process, shown, ranks = started(*command.split(), *short), set(), set()
    for pid, words, _ in seen_while(process):
        line = " ".join(words)
        shown |= {line} if SECRET in line else set()
        ranks |= {pid} if "runners." in line else set()
    assert SECRET not in end_of(process)
    assert len(ranks) >= 2
    assert shown == set()
    assert not any(
        SECRET.encode() in path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    )


def reads(name, *, user):
    """Whether another user reads a file."""
    return (
        subprocess.run(
            ["cat", name], user=user, group=user, extra_groups=[], capture_output=True, check=False
        ).returncode
        == 0
    )


EVIL = """
from pathlib import Path
Path({mark!r}).touch()
from workloads.digits import Digits
class C(Digits): pass
"""


def is_let_in(user):
    """Whether a process of another user may pose as a rank's supervisor, where the supervisors of a
    host meet."""
    child = os.fork()
    if not child:
        found = 0
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            for name in {
                line.split()[-1]
                for line in Path("/proc/net/unix").read_text().splitlines()
                if "@ringside-" in line
            }:
                with socket.socket(socket.AF_UNIX) as other, contextlib.suppress(ConnectionError):
                    other.settimeout(20)
                    other.connect(name.replace("@", "\0", 1))
                    other.sendall(b"joined 1 1 1.0\n")
                    found |= bool(other.recv(1))
        finally:
            os._exit(found)
    return bool(os.waitpid(child, 0)[1])


@pytest.mark.costly
def test_who_reaches_the_store_and_the_supervisors_has_nothing_imported_and_is_let_go(tmp_path):
    """Everybody sees the port, and ranks read their job seconds after they were started."""
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "imported")))
    plan = write_plan(tmp_path, arms=["ddp", "naive"], measurement={"rounds": 1, "local_every": 0})
    process = compare(plan)
    wait_until(lambda: drivers_port() or process.poll() is not None, seconds=60)
    store = TCPStore(
        "127.0.0.1",
        drivers_port(),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=20),
    )
    for place in ("0/naive/job", "0/naive/command/0"):
        store.set(place, f'{{"workload": "{tmp_path}/evil.py:C"}}')
    for user in OTHERS:
        wait_until(
            lambda: (
                "@ringside-" in Path("/proc/net/unix").read_text() or process.poll() is not None
            ),
            seconds=60,
        )
        assert not is_let_in(user)
    end_of(process)
    assert {record.status for record in ResultsFolder(tmp_path / "out").records()} == {"ok"}
    assert not (tmp_path / "imported").exists()


def drivers_port():
    """Of the store. Everybody sees which ports are listened at."""
    for one in started_processes():
        with contextlib.suppress(psutil.Error):
            held = one.environ()
            if settings.VARIABLE in held:
                return int(settings.decode(held[settings.VARIABLE]).store.rpartition(":")[2])
    return None


def test_the_key_of_a_driver_that_was_killed_goes_with_the_next_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    host = socket.gethostname()
    names = [
        f"{KEY_PREFIX}{host}-{ended.pid}-x",
        f"{KEY_PREFIX}{host}-{os.getppid()}-x",
        f"{KEY_PREFIX}another-{ended.pid}-x",
        "ringside-1",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    with shared_key([]) as made:
        assert len(made.read_text()) == 64 and made.stat().st_mode & 0o077 == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            [*names[1:], made.parent.name]
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
