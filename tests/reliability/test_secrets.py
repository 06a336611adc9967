"""What other users of a host see and can do: read ``ps``, and connect to what listens there."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from measurement.agent.ringside_agent import settings
from measurement.records.results import ResultsFolder
from runners.launchers.base import RUN_ID
from runners.session.endpoint import KEY_PREFIX, shared_key
from tests.conftest import REPOSITORY, needs_horovod, started_processes, wait_until, write_plan
from tests.kit.commands import SHORT

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
    """Until it ends, again and again every process that the test started: its words and its
    environment."""
    while process.poll() is None:
        time.sleep(LOOK_EVERY_S)
        for one in started_processes():
            with contextlib.suppress(psutil.Error):
                yield one.cmdline(), one.environ()


def files_below(folder):
    """What is written there."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


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
    seen, with_folder, keys, read_by_others = set(), set(), {}, set()
    for words, held in seen_while(process):
        told = settings.decode(held[settings.VARIABLE]) if settings.VARIABLE in held else None
        if told and told.key_file not in keys and Path(told.key_file).is_file():
            keys[told.key_file] = Path(told.key_file).read_text()
            read_by_others |= {user for user in OTHERS if reads(told.key_file, user=user)}
        for secret in (SECRET, *keys.values()):
            if secret in " ".join(words) or (RUN_ID in held and secret in held.values()):
                seen.add(" ".join(words))
        if told and held.get("SITE_FOLDER") and MODULES & {*words}:
            with_folder.add(told.arm)
    end_of(process)
    assert {record.status for record in ResultsFolder(tmp_path / "out").records()} == {"ok"}
    assert seen == set()
    assert len(keys) == 1
    assert read_by_others == set()
    assert not any(Path(name).parent.exists() for name in keys), "the key goes with the comparison"
    assert with_folder == set(ARMS), "what the plan names, all ranks have"
    written = b"".join(files_below(tmp_path / "out"))
    assert not any(secret.encode() in written for secret in (SECRET, *keys.values()))


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
    process = started(*command.split(), *SHORT, "-o", tmp_path / "run")
    lines = {" ".join(words) for words, _ in seen_while(process)}
    assert SECRET not in end_of(process)
    assert any("runners." in line for line in lines)
    assert not any(SECRET in line for line in lines)
    assert SECRET.encode() not in b"".join(files_below(tmp_path / "run"))


def reads(name, *, user):
    """Whether another user reads a file."""
    who = {"user": user, "group": user, "extra_groups": []}
    return subprocess.run(["test", "-r", name], check=False, **who).returncode == 0


EVIL = """
from pathlib import Path
Path({mark!r}).touch()
from workloads.digits import Digits
class C(Digits): pass
"""


@pytest.mark.costly
def test_who_reaches_the_store_has_nothing_imported(tmp_path):
    """Everybody sees the port, and ranks read their job seconds after they were started."""
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "imported")))
    plan = write_plan(tmp_path, arms=["ddp", "naive"], measurement={"rounds": 1, "local_every": 0})
    process = compare(plan)
    wait_until(lambda: drivers_port() or process.poll() is not None, seconds=60)
    store = TCPStore("127.0.0.1", drivers_port(), wait_for_workers=False)
    for place in ("0/naive/job", "0/naive/command/0"):
        store.set(place, f'{{"workload": "{tmp_path}/evil.py:C"}}')
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
    kept = {
        f"{KEY_PREFIX}{host}-{os.getppid()}-x",
        f"{KEY_PREFIX}another-{ended.pid}-x",
        "ringside-1",
    }
    for name in (f"{KEY_PREFIX}{host}-{ended.pid}-x", *kept):
        (tmp_path / name).mkdir()
    with shared_key([]) as made:
        assert len(made.read_text()) == 64 and made.stat().st_mode & 0o077 == 0
        assert {path.name for path in tmp_path.iterdir()} == {*kept, made.parent.name}
    assert {path.name for path in tmp_path.iterdir()} == kept
