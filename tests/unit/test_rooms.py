"""The house rules, read from the source: which room may import which."""

from __future__ import annotations

import ast
import collections
import graphlib

import pytest

from tests.conftest import REPOSITORY, parsed
from tests.kit.commands import run_python

ROOMS = {
    "measurement": set(),
    "workloads": {"measurement"},
    "backends": {"measurement"},
    "runners": {"measurement", "workloads", "backends", "reports", "install"},
    "reports": {"measurement"},
    "install": set(),
}
INNER_ROOMS = {
    "measurement/plans": set(),
    "measurement/records": {"plans"},
    "measurement/conditions": {"plans", "records"},
    "workloads/data": set(),
    "backends/mpi": set(),
    "backends/horovod": {"mpi"},
    "runners/launchers": set(),
    "runners/processes": {"launchers"},
    "runners/hosts": {"launchers", "processes"},
    "runners/planning": {"launchers", "hosts", "processes"},
    "runners/rank": {"launchers", "planning", "processes"},
    "runners/session": {"hosts", "launchers", "planning", "processes", "scripts"},
    "runners/driver": {
        "hosts",
        "launchers",
        "planning",
        "scripts",
        "session",
    },
    "runners/standalone": {
        "driver",
        "hosts",
        "launchers",
        "planning",
        "processes",
        "rank",
        "session",
    },
    "runners/scripts": {"hosts", "launchers", "planning", "processes"},
    "reports/statistics": set(),
    "reports/conclusions": {"statistics"},
    "reports/wording": {"conclusions", "statistics"},
    "reports/scripts": {"conclusions", "statistics", "wording"},
    "reports/tables": {"conclusions", "wording", "scripts"},
    "reports/formats": {"conclusions", "statistics", "wording", "scripts", "tables"},
}
"""What each room of a room may import of the others beside it: driver and rank know each other only
through messages."""
COMPOSING = {
    "cli",
    "compare_command",
    "results_commands",
    "tune_command",
    "compose_comparison",
    "conclude",
    "write_reports",
}
"""Above these rooms: what a person types, and what puts a report together. No room may import
it."""
MAX_MODULES = 14


def imported_modules(path):
    """Everything that a file imports anywhere in it, by its full name; ``from a import b`` counts
    as a.b, too."""
    names, package = set(), path.relative_to(REPOSITORY).parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            names |= {
                *([module] if node.module else []),
                *(f"{module}.{alias.name}" for alias in node.names),
            }
    return names


def files_of(*rooms):
    """Every file of ours in these rooms."""
    return [path for room in rooms for path in sorted((REPOSITORY / room).rglob("*.py"))]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    for path in files_of(room):
        rooms = {name.partition(".")[0] for name in imported_modules(path)} & set(ROOMS)
        assert rooms <= ROOMS[room] | {room}, path


@pytest.mark.parametrize("room", INNER_ROOMS)
def test_a_room_of_a_room_imports_only_what_it_may(room):
    house, _, inner = room.partition("/")
    beside = {path.name for path in (REPOSITORY / house).iterdir() if path.is_dir()} | COMPOSING
    paths = sorted((REPOSITORY / room).glob("*.py"))
    assert paths
    for path in paths:
        names = [name.split(".") for name in imported_modules(path) if name.startswith(f"{house}.")]
        rooms = {parts[1] for parts in names} & beside
        assert rooms <= INNER_ROOMS[room] | {inner}, path


def test_every_room_of_a_room_has_its_rule():
    rooms = [path.parent for house in ROOMS for path in (REPOSITORY / house).glob("*/__init__.py")]
    assert {str(folder.relative_to(REPOSITORY)) for folder in rooms} == set(INNER_ROOMS)


def test_no_room_is_a_maze():
    modules = [path for path in files_of(*ROOMS) if path.stem != "__init__"]
    crowded = collections.Counter(path.parent for path in modules)
    assert max(crowded.values()) <= MAX_MODULES, crowded.most_common(1)


@pytest.mark.process
def test_launchers_and_hosts_import_no_torch():
    modules = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for path in files_of("runners/launchers", "runners/hosts")
    ]
    script = f"import sys, importlib\nfor name in {modules}: importlib.import_module(name)\nsys.exit('torch' in sys.modules)"
    assert run_python(script).returncode == 0


@pytest.mark.process
@pytest.mark.slow
def test_a_rank_of_a_comparison_imports_what_it_uses():
    """Ten ranks start at once, on two cores: what each of them imports is paid five times over."""
    unused = (
        "measurement.plans.plan runners.planning.arms runners.hosts.placement reports"
        " runners.launchers.command_lines pandas pyarrow scipy yaml typer rich jinja2 torchvision"
        " tensorboard torch._inductor"
    )
    workloads = ["digits", "classifiers", "language_model"]
    imported = ["runners.rank.worker", "runners.rank.engine", "backends.ddp"]
    imported += [f"workloads.{name}" for name in workloads]
    names = run_python(f"import sys, {', '.join(imported)}\nprint(*sys.modules)").stdout.split()
    assert "torch" in names and not {*unused.split()} & set(names)


def test_no_module_imports_itself_by_way_of_others():
    modules = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files_of(*ROOMS)
    }
    imports = {
        name: (imported_modules(path) & set(modules)) - {name} for name, path in modules.items()
    }
    assert [*graphlib.TopologicalSorter(imports).static_order()]


def test_only_launchers_know_rank_variables():
    """backends/horovod/rendezvous.py writes Horovod's in the place of its launcher, environment.py
    leaves them out of records."""
    names = {"LOCAL_RANK", "WORLD_SIZE", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}
    for path in files_of(*ROOMS):
        if "launchers" not in path.parts and path.name not in ("rendezvous.py", "environment.py"):
            text = {n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant)}
            assert not names & text, path
