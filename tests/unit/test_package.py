"""The package's card: what a wheel of Ringside holds, and that everything it imports is
declared."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions

import pytest

from tests.conftest import REPOSITORY
from tests.kit.commands import run_python
from tests.unit.test_rooms import imported_modules

ROOMS = ("backends", "install", "measurement", "reports", "runners", "workloads")
ONLY_IN_THE_REPOSITORY = ("benchmarks", "tests")
README_PICTURE = "reports/example.png"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def normalised(requirement):
    """The name of a distribution as PyPI compares names: "PyYAML>=6" is "pyyaml"."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def declared(*, dev):
    extras = PROJECT["optional-dependencies"]
    lists = [
        PROJECT["dependencies"],
        *(wanted for name, wanted in extras.items() if dev or name != "dev"),
    ]
    return {normalised(requirement) for wanted in lists for requirement in wanted}


def imported(folder):
    """Every third-party module that a folder imports, and a file that does."""
    paths = {}
    for path in (REPOSITORY / folder).rglob("*.py"):
        # scripts import what lies beside them
        beside = {file.stem for file in path.parent.glob("*.py")}
        names = {name.partition(".")[0] for name in imported_modules(path)}
        paths |= dict.fromkeys(names - beside, path)
    ours = {*sys.stdlib_module_names, *ROOMS, *ONLY_IN_THE_REPOSITORY}
    return {module: path for module, path in paths.items() if module not in ours}


@pytest.mark.slow
@pytest.mark.parametrize("folder", [*ROOMS, *ONLY_IN_THE_REPOSITORY])
def test_every_imported_package_is_declared(folder):
    distributions = packages_distributions()
    allowed = declared(dev=folder in ONLY_IN_THE_REPOSITORY)
    undeclared = {
        module: path
        for module, path in imported(folder).items()
        if not allowed & {normalised(name) for name in distributions.get(module, [module])}
    }
    assert not undeclared, (
        "add them to pyproject.toml's dependencies or to an extra, or do not import them"
    )


def test_everything_declared_is_pinned():
    """`make setup` installs what install/constraints.txt says."""
    pins = (REPOSITORY / "install" / "constraints.txt").read_text().splitlines()
    pinned = {normalised(line) for line in pins if line and not line.startswith("#")}
    assert declared(dev=True) - pinned <= {"ringside"}


@pytest.mark.process
def test_a_wheel_holds_every_file_of_every_room(tmp_path):
    """Templates, styles, scripts, data and type markers as well: an editable install would not
    notice a missing one."""
    copy = tmp_path / "source"
    folders = (*ROOMS, "plans")
    for folder in folders:
        shutil.copytree(
            REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    files = {
        str(path.relative_to(copy))
        for folder in folders
        for path in (copy / folder).rglob("*")
        if path.is_file()
    }
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = run_python(build, str(tmp_path), cwd=copy)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {f"{room}/py.typed" for room in ROOMS} <= held
    assert held == files - {README_PICTURE}
