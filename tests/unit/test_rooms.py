"""The house rules, read from the source: which room may import which, and what may not be in a name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

ROOMS = {
    "measurement": set(),
    "workloads": {"measurement"},
    "backends": {"measurement"},
    "runners": {"measurement", "workloads", "backends", "reports", "install"},
    "reports": {"measurement"},
    "install": set(),
}
DEPENDENCIES = {"torch", "torchvision", "horovod", "mpi4py", "yaml", "pandas", "numpy", "scipy", "plotly", "jinja2", "rich"}
BANNED = {"utils", "helpers", "common", "misc"}


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    paths = sorted((REPOSITORY / room).rglob("*.py"))
    assert paths
    for path in paths:
        assert imported_rooms(path) <= ROOMS[room] | {room}, path


def test_no_module_is_named_after_a_dependency_or_after_nothing():
    for room in ROOMS:
        for path in (REPOSITORY / room).rglob("*.py"):
            assert path.stem not in DEPENDENCIES | BANNED, path


def test_only_one_module_reads_rank_variables():
    """spawn.py and horovod_meeting.py write them, fingerprint.py leaves them out of records."""
    names = {"LOCAL_RANK", "WORLD_SIZE", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}
    for room in ROOMS:
        for path in (REPOSITORY / room).rglob("*.py"):
            if path.name in ("rank_environment.py", "spawn.py", "horovod_meeting.py", "fingerprint.py"):
                continue
            text = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
            assert not names & text, path
