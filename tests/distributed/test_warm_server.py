"""What the tests' own launcher starts is as if Python had started it: output, exit code, environment, end."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import started_processes, wait_until
from tests.kit.commands import run, warm

pytestmark = pytest.mark.usefixtures("no_processes_left")
TELLS = """
import os, sys, pathlib
shown = pathlib.Path("/proc/self/environ").read_bytes().split(b"\\0")
print(os.getcwd(), os.environ["COLOUR"], b"COLOUR=dark blue" in shown, "torch" in sys.modules, sys.argv[1:])
print("said", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("variables", [{}, {"PYTHONMALLOC": "malloc"}], ids=["warm", "what a fork cannot have"])
def test_it_is_as_if_python_had_started_it(tmp_path, variables):
    (tmp_path / "tells.py").write_text(TELLS)
    done = run(*warm("-m", "tells"), "a b", "-x", cwd=tmp_path, COLOUR="dark blue", **variables)
    is_fork = not variables
    assert done.stdout == f"{tmp_path} dark blue True {is_fork} ['a b', '-x']\n", done.stderr
    assert (done.stderr, done.returncode) == ("said\n", 7)


def test_it_ends_with_who_asked_for_it(tmp_path):
    (tmp_path / "waits.py").write_text("import pathlib, time; pathlib.Path('begun').touch(); time.sleep(300)")
    with subprocess.Popen(warm("-m", "waits"), cwd=tmp_path, env=dict(os.environ)) as process:
        wait_until((tmp_path / "begun").exists, seconds=120)
        assert len(started_processes()) == 2
        process.kill()
    wait_until(lambda: not started_processes())
