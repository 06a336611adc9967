"""Answers of hosts are found among what shells print there: words, numbers, JSON, bytes, without a
line end, or too much."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from measurement.errors import LaunchError
from runners.hosts.preflight import ask
from runners.planning.check_process import facts_of, require_data_on
from runners.planning.workload import resolve_workload
from runners.processes import remote, remote_results
from runners.processes.remote import MARK, framed, taken
from runners.session.endpoint import shared_key
from tests.kit.plans import tiny

HOST = "192.0.2.1"
"""Of nobody (RFC 5737); the ssh below reaches it."""
GREETINGS = {
    "text": b"Welcome to host1!\n",
    "a blank line": b"\n",
    "a number": b"7\n",
    "JSON": b'{"torch": "1.0"}\n[]\n',
    "CRLF": b"one\r\ntwo\r\n",
    "no UTF-8": b"\xff\xfe\x00\x1b[31m\n",
    "a megabyte without a line end": b"x" * 2**20,
    "no line end": b"ready> ",
}


@pytest.fixture
def greeting_host(tmp_path, monkeypatch):
    """Its shell greets in every way, and prints the command that it is to run."""
    made_ssh(
        tmp_path,
        monkeypatch,
        'cat "$HERE/greeting"; echo "$line"; cat "$HERE/greeting"; exec sh -c "$line"',
    )
    (tmp_path / "greeting").write_bytes(b"".join(GREETINGS.values()))


def made_ssh(folder, monkeypatch, script):
    """An ``ssh`` that runs the last of its arguments here, as ``script`` says."""
    (folder / "ssh").write_text(
        f"#!/bin/sh\nHERE={shlex.quote(str(folder))}\nfor line; do :; done\n{script}\n"
    )
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_every_answer_is_found_behind_a_greeting(greeting_host, tmp_path):
    facts = ask(HOST, here=frozenset(), question=["127.0.0.1:1", HOST])
    assert facts["python"] == sys.version.split()[0]
    run_id = f"greeting-{tmp_path.name}"
    (remote_results.make_folder(run_id) / "rank-0.log").write_bytes(b"\x00\xff last words")
    archive = remote.ask(
        HOST, remote.python("runners.processes.remote_results", run_id, "--end"), timeout_s=30
    )
    assert remote_results.unpack(archive) == {"rank-0.log": b"\x00\xff last words"}


TALKER = """
import atexit, os
from workloads.digits import Digits

print("imported", flush=True)
if "RINGSIDE_ANSWER_MARK" in os.environ:
    atexit.register(os.write, 1, b"bye")

class Talker(Digits):
    def require_data(self):
        print("looking at the data", flush=True)
        super().require_data()
"""


@pytest.mark.costly
def test_what_a_users_code_prints_is_no_answer(greeting_host, tmp_path):
    (tmp_path / "talker.py").write_text(TALKER)
    reference = f"{tmp_path / 'talker.py'}:Talker"
    plan = tiny(workload=reference)
    require_data_on([HOST], plan, resolve_workload(reference, {}))
    assert facts_of(plan, host=HOST).sample_unit == "images"


def test_a_shell_that_runs_something_else_is_told(tmp_path, monkeypatch):
    """It ends well, as after ``exec fish`` in ~/.bashrc."""
    made_ssh(tmp_path, monkeypatch, 'echo "$line" >/dev/null; echo "choose a project:"')
    reason = ask(HOST, here=frozenset(), question=["127.0.0.1:1", HOST])
    assert "all it printed is 'choose a project:'; try: ssh" in reason
    assert "it needs ssh without a password, and the same checkout at the same path" in reason


def test_a_shell_that_reads_what_is_sent_leaves_no_host_without_its_key(tmp_path, monkeypatch):
    made_ssh(tmp_path, monkeypatch, 'cat >/dev/null; exec sh -c "$line"')
    with (
        pytest.raises(LaunchError, match=f"host '{HOST}': its shell reads standard input"),
        shared_key([HOST]),
    ):
        pass


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS.keys())
def test_a_mark_is_no_frame_by_itself(greeting):
    mark = "0123456789abcdef"
    output = greeting + f"env {MARK}={mark} python".encode()
    assert taken(output + framed(b"cut off", mark)[:-3], mark) is None
    assert taken(output + framed(b"one", mark) + greeting + framed(b"two\n", mark), mark) == b"one"
