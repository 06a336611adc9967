"""Plug-ins from outside of the tree: the documents', followed to the letter, and all four kinds
from an installed distribution."""

from __future__ import annotations

import json
import os
import shutil
import sys
from xml.etree import ElementTree

import pytest
import yaml

from measurement.records.results import ResultsFolder
from tests.conftest import FORKED, REPOSITORY, TINY, documented_files, ended_well
from tests.kit.commands import run
from tests.kit.comparisons import Compared

SHORT = {**TINY["measurement"], "control": False}
SET_SHORT = [
    part
    for name, value in SHORT.items()
    for part in ("--set", f"measurement.{name}={json.dumps(value)}")
]
ENTRY_POINTS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "somebodys-plug-ins"
version = "1.2"

[project.entry-points."ringside.workloads"]
regression = "regression:Regression"

[project.entry-points."ringside.backends"]
engine = "engine:EngineBackend"

[project.entry-points."ringside.launchers"]
siterun = "site_run:SiteRun"

[project.entry-points."ringside.reports"]
one-line = "one_line:OneLine"

[tool.setuptools]
py-modules = ["regression", "engine", "site_run", "one_line"]
"""


def write_readme_files(folder):
    """The documents' examples, as a reader would copy them."""
    for name, text in documented_files().items():
        (folder / name).write_text(text)


def python(*arguments, cwd, path=()):
    return run(
        sys.executable,
        *arguments,
        cwd=cwd,
        PYTHONPATH=os.pathsep.join([*map(str, path), str(REPOSITORY)]),
    )


def ringside(*arguments, **options):
    return python("-m", "runners.cli", *arguments, **options)


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """A comparison of README's plan, but for its length."""
    folder = tmp_path_factory.mktemp("readme")
    write_readme_files(folder)
    done = ended_well(ringside("compare", "mine.yaml", "-o", "out", *SET_SHORT, cwd=folder))
    return Compared(done, ResultsFolder(folder / "out"))


@pytest.mark.costly("plug-ins")
def test_readmes_plug_ins_are_compared(readme):
    records = readme.records
    assert set(readme.statuses.values()) == {"ok"}
    assert records["flat"].parity.gradient_error < 1e-5
    assert records["flat"].launcher == "site_run.py:SiteRun"
    assert records["flat"].commands[0]["argv"][1:3] == ["-m", "torch.distributed.run"]
    assert {block.kind for block in records["flat"].blocks} == {"sync", "local"}, (
        "it leaves the exchange out where it is asked to"
    )


@pytest.mark.costly("plug-ins")
def test_the_reports_that_the_plan_names_are_written_and_no_others(readme):
    written = {path.name for path in readme.folder.root.glob("[!.]*.*")}
    assert written - {"plan.yaml", "manifest.json"} == {
        "comparison.json",
        "report.html",
        "junit.xml",
        "one-line.txt",
    }
    assert readme.read("one-line.txt") == f"{readme.report['headline']}\n"
    (case,) = ElementTree.fromstring(readme.read("junit.xml")).iter("testcase")
    assert (case.get("classname"), case.get("name")) == ("mine", "flat")


@pytest.mark.costly
def test_all_four_kinds_are_found_by_their_entry_points(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    write_readme_files(source)
    shutil.copy(REPOSITORY / "tests" / "outside" / "engine.py", source)
    (source / "pyproject.toml").write_text(ENTRY_POINTS)
    pip = "-m pip install --quiet --no-deps --no-build-isolation --no-index --target"
    ended_well(python(*pip.split(), site, source, cwd=tmp_path))
    engine = {"backend": "engine", "transport": "gloo", "launcher": "siterun"}
    arms = {"ddp": {"backend": "ddp", "launcher": FORKED}, "engine": engine}
    content = {
        "name": "p",
        "workload": "regression",
        "world_size": 2,
        "baseline": "ddp",
        "arms": arms,
        "measurement": SHORT,
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({**content, "reports": ["one-line"]}))
    done = ended_well(ringside("compare", "plan.yaml", "-o", "out", cwd=tmp_path, path=[site]))
    ran = Compared(done, ResultsFolder(tmp_path / "out"))
    assert ran.statuses == {"ddp": "ok", "engine": "ok"}
    assert ran.records["engine"].parity.gradient_error < 1e-5, (
        "read though the engine drops its gradients"
    )
    assert (tmp_path / "out" / "one-line.txt").is_file()
