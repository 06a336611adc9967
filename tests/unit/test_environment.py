"""What a process's environment lacks to work: who runs, and where temporary files go."""

import pwd
import tempfile
from unittest.mock import Mock

import pytest

from measurement.environment import MAX_TMPDIR, NO_HOME, own_identity, temporary_folder


@pytest.fixture
def nameless(monkeypatch):
    """A user whom the system does not know."""
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    monkeypatch.setattr("os.getuid", lambda: 12345)


def test_who_runs_is_said_where_neither_variables_nor_the_system_say_it(nameless):
    assert own_identity({}) == {"HOME": NO_HOME, "USER": "12345", "LOGNAME": "12345"}
    assert own_identity({"HOME": "/home/me", "USER": ""}) == {"USER": "12345", "LOGNAME": "12345"}
    assert own_identity({"HOME": "/home/me", "USER": "me", "LOGNAME": "me"}) == {}


@pytest.fixture
def temporary(monkeypatch):
    """Python asks again where temporary files go."""

    def ask(given):
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv("TMPDIR", str(given))
        return temporary_folder({"TMPDIR": str(given)})

    return ask


def test_temporary_files_go_where_they_can(tmp_path, temporary):
    with tempfile.TemporaryDirectory(prefix="with blanks ") as short:
        assert temporary(short) == {}
    long = tmp_path / ("x" * MAX_TMPDIR)
    long.mkdir()
    assert temporary(long) == {"TMPDIR": "/tmp"}
    assert temporary(tmp_path / "nowhere") != {}
