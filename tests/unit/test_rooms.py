"""The house rules, read from the source: which room may import which, and what may not be in a
name."""

from __future__ import annotations

import ast

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
    "measurement/probes": {"agent", "records"},
    "measurement/judging": {"records"},
    "measurement/conditions": {"agent", "plans", "probes", "records"},
    "workloads/data": set(),
    "backends/mpi": set(),
    "backends/horovod": {"mpi"},
    "runners/protocol": set(),
    "runners/traces": {"protocol"},
    "runners/launchers": set(),
    "runners/processes": {"launchers", "protocol"},
    "runners/hosts": {"launchers", "processes"},
    "runners/planning": {"launchers", "hosts", "processes", "protocol"},
    "runners/rank": {"launchers", "planning", "processes", "protocol", "traces"},
    "runners/session": {"hosts", "launchers", "planning", "processes", "protocol", "scripts"},
    "runners/driver": {
        "hosts",
        "launchers",
        "planning",
        "protocol",
        "scripts",
        "session",
        "traces",
    },
    "runners/standalone": {
        "driver",
        "hosts",
        "launchers",
        "planning",
        "processes",
        "protocol",
        "rank",
        "session",
    },
    "runners/scripts": {"hosts", "launchers", "planning", "processes"},
    "runners/tuning": {"hosts", "planning"},
    "reports/statistics": set(),
    "reports/conclusions": {"statistics"},
    "reports/wording": {"conclusions", "statistics"},
    "reports/scripts": {"conclusions", "statistics", "wording"},
    "reports/tables": {"conclusions", "wording", "scripts"},
    "reports/charts": {"conclusions", "statistics", "wording", "tables"},
    "reports/formats": {"conclusions", "statistics", "wording", "scripts", "tables", "charts"},
    "reports/projection": {"conclusions", "statistics", "wording", "tables", "formats"},
}
"""What each room of a room may import of the others beside it: driver and rank know each other only
through messages."""
COMPOSING = {
    "cli",
    "compare_command",
    "report_command",
    "compose_comparison",
    "conclude",
    "write_reports",
}
"""Above these rooms: what a person types, and what puts a report together. No room may import
it."""
SHARED_BY_REPORTS = ("schema", "parts_schema", "estimate", "base", "reasons")
"""Modules of reports/ that stand above its rooms and that every room may import."""
MAX_MODULES = 14
DEPENDENCIES = {
    "torch",
    "torchvision",
    "horovod",
    "mpi4py",
    "yaml",
    "pandas",
    "numpy",
    "scipy",
    "jinja2",
    "rich",
}
BANNED = {"utils", "helpers", "common", "core", "misc"}


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


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    paths = sorted((REPOSITORY / room).rglob("*.py"))
    assert paths
    for path in paths:
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
    folders = {path.parent for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")}
    for folder in folders:
        modules = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(modules) <= MAX_MODULES, folder


@pytest.mark.process
def test_launchers_and_hosts_import_no_torch():
    modules = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for room in ("launchers", "hosts")
        for path in sorted((REPOSITORY / "runners" / room).glob("*.py"))
    ]
    script = f"import sys, importlib\nfor name in {modules}: importlib.import_module(name)\nsys.exit('torch' in sys.modules)"
    assert run_python(script).returncode == 0


@pytest.mark.process
@pytest.mark.slow
def test_ranks_import_nothing_that_only_reports_need():
    script = "import sys, runners.rank.engine, runners.standalone.command\nprint(*sys.modules)"
    names = run_python(script).stdout.split()
    assert "torch" in names and not {
        "pandas",
        "scipy",
        "tensorboard",
        "rich",
        "jinja2",
        "plotly",
    } & set(names)


@pytest.mark.process
@pytest.mark.slow
def test_a_rank_of_a_comparison_imports_what_it_uses():
    """Ten ranks start at once, on two cores: what each of them imports is paid five times over."""
    imported = {
        "measurement.plans.plan",
        "runners.planning.arms",
        "runners.hosts.placement",
        "runners.launchers.command_lines",
        "reports",
    }
    others = {
        "pandas",
        "pyarrow",
        "scipy",
        "yaml",
        "typer",
        "rich",
        "jinja2",
        "torchvision",
        "tensorboard",
        "torch._inductor",
    }
    workloads = "workloads.digits, workloads.mnist, workloads.cifar10, workloads.imagenet, workloads.language_model"
    script = f"import sys, runners.rank.worker, runners.rank.engine, backends.ddp, {workloads}\nprint(*sys.modules)"
    names = run_python(script).stdout.split()
    assert "torch" in names and not (imported | others) & set(names)


def modules_of(*rooms):
    """Files by dotted name; a package by that of its folder."""
    paths = sorted(path for room in rooms for path in (REPOSITORY / room).rglob("*.py"))
    return {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


@pytest.mark.parametrize("name", SHARED_BY_REPORTS)
def test_what_all_rooms_of_reports_share_imports_none_of_them(name):
    imported = imported_modules(REPOSITORY / "reports" / f"{name}.py") & set(modules_of("reports"))
    assert imported <= {f"reports.{shared}" for shared in SHARED_BY_REPORTS}


def test_no_module_imports_itself_by_way_of_others():
    modules = modules_of(*ROOMS)
    imports = {
        name: (imported_modules(path) & set(modules)) - {name} for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name, way):
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for other in sorted(imports[name]):
                visit(other, (*way, name))
            done.add(name)

    for name in modules:
        visit(name, ())


def test_no_module_is_named_after_a_dependency_or_after_nothing():
    for room in ROOMS:
        for path in (REPOSITORY / room).rglob("*.py"):
            assert path.stem not in DEPENDENCIES | BANNED, path


def test_only_launchers_know_rank_variables():
    """backends/horovod/rendezvous.py writes Horovod's in the place of its launcher, environment.py
    leaves them out of records."""
    names = {"LOCAL_RANK", "WORLD_SIZE", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}
    for room in ROOMS:
        for path in (REPOSITORY / room).rglob("*.py"):
            if "launchers" in path.parts or path.name in ("rendezvous.py", "environment.py"):
                continue
            text = {n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant)}
            assert not names & text, path
