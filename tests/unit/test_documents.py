"""Links, anchors, paths and snippets of the documents lead somewhere, sentences are short, and
generated pages are current."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex

import pytest
import yaml
from pydantic import BaseModel

from backends import REGISTRY as BACKENDS
from backends import backend_class
from measurement.plans.arm import Arm
from measurement.plans.measuring import Measurement, ScriptSettings
from measurement.plans.plan import Plan, Point
from measurement.plans.plan_file import check_plan
from measurement.plans.settings import SpeedSettings, TrainingSettings
from tests.conftest import REPOSITORY, parsed
from tests.distributed.test_planted_differences import ALIKE, OF_HOROVOD, PLANTED
from workloads import REGISTRY as WORKLOADS
from workloads import workload_class

PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / ".github").rglob("*.md"),
    ],
    key=lambda path: path.relative_to(REPOSITORY).as_posix(),
)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.S)
CODE = re.compile(r"`([^`\n]+)`")
ROOMS = (
    "backends|benchmarks|docs|hostfiles|install|measurement|plans|reports|runners|tests|workloads"
)
PATH = re.compile(rf"(?:{ROOMS})/[\w./-]*")
MADE_WHILE_RUNNING = ("results/", "runs/")
OPTIONS = {name: backend_class(name).Options for name in BACKENDS.table}
OPTIONS |= {f"workload {name}": workload_class(name)[0].Options for name in WORKLOADS.table}
MODELS = {
    model.__name__: model
    for model in (Arm, Measurement, Plan, Point, ScriptSettings, SpeedSettings, TrainingSettings)
} | OPTIONS

ROOMS = ("backends", "install", "measurement", "reports", "runners", "workloads")

pages = pytest.mark.parametrize(
    "page", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix()
)


def generator():
    spec = importlib.util.spec_from_file_location(
        "docs_generate", REPOSITORY / "docs" / "generate.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page):
    """As mkdocs and code hosts make them of headings."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def sentence_lengths(text):
    """Words of each sentence; a colon, a blank line and a list item end one, tables and code have
    none."""
    kept = [
        line
        for line in FENCE.sub("", text).splitlines()
        if not line.lstrip().startswith(("|", "#", "!", "<"))
    ]
    parts = re.split(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+", "\n".join(kept))
    counts = [len(re.findall(r"[A-Za-z0-9][\w'.-]*", part)) for part in parts]
    return [count for count in counts if count >= 3]


@pages
def test_links_and_anchors_lead_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        target_path = (page.parent / target).resolve() if target else page
        assert target_path.exists(), f"{link}: there is no {target_path}"
        if anchor:
            assert anchor in anchors(target_path), f"{link}: {target_path.name} has no such heading"


@pages
def test_paths_that_are_named_exist(page):
    text = FENCE.sub("", page.read_text())
    named = {
        path
        for code in CODE.findall(text)
        for path in PATH.findall(code)
        if not code.startswith(MADE_WHILE_RUNNING)
    }
    missing = [
        path
        for path in named
        if not (REPOSITORY / path).exists() and not list(REPOSITORY.glob(f"{path}*"))
    ]
    assert missing == []


@pages
def test_snippets_are_whole(page):
    """Python parses, YAML is known to a plan, and commands name modules, plans and flags that there
    are."""
    for language, code in FENCE.findall(page.read_text()):
        if language == "python":
            ast.parse(code)
        elif language == "yaml":
            check_yaml(yaml.safe_load(code))
        elif not language:
            for module in re.findall(r"-m (runners[.\w]*)", code):
                assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file(), module
            for path in re.findall(r"(?:plans|hostfiles)/[\w./-]+", code):
                assert (REPOSITORY / path).exists(), path


def check_yaml(content):
    if content is None:
        return
    if "arms" in content:
        check_plan({"world_size": 2, **content}, source="snippet")
        return
    least = {
        "name": "n",
        "workload": "digits",
        "world_size": 2,
        "baseline": "a",
        "arms": {"a": {"backend": "ddp"}},
    }
    check_plan(
        {**least, **({} if "hosts" in content else {"hosts": "host1:2"}), **content},
        source="snippet",
    )


@pages
def test_commands_and_their_flags_are_known(page):
    known = (REPOSITORY / "docs" / "cli.md").read_text()
    commands = "\n".join(code for language, code in FENCE.findall(page.read_text()) if not language)
    for line in commands.replace("\\\n", " ").splitlines():
        if typed := re.match(r"(?:sudo \S+/)?ringside (\w+)(.*)|.*-m runners\.\S+(.*)", line):
            heading = f"ringside {typed[1]}`" if typed[1] else "python -m runners.ddp"
            section = known.partition(f"### `{heading}")[2].partition("\n### ")[0]
            words = shlex.split((typed[2] or typed[3] or "").partition(" -- ")[0], comments=True)
            flags = [word for word in words if word.startswith("-")]
            assert section, line
            assert [
                flag for flag in flags if not re.search(rf"{re.escape(flag)}[,` /]", section)
            ] == [], line


@pages
def test_sentences_are_short(page):
    counts = sentence_lengths(page.read_text())
    assert not counts or (max(counts) <= 30 and sum(counts) / len(counts) <= 14), (
        max(counts),
        sum(counts) / len(counts),
    )


def test_readme_and_contributing_fit_on_a_page():
    assert (REPOSITORY / "README.md").stat().st_size <= 8192
    assert (REPOSITORY / "CONTRIBUTING.md").stat().st_size <= 4096
    assert (REPOSITORY / "CHANGELOG.md").read_text().partition("## [0.1.0]")[2].partition("\n## ")[
        0
    ].count("\n") <= 80


def test_generated_pages_are_current():
    stale = [
        name
        for name, text in generator().pages().items()
        if (REPOSITORY / "docs" / name).read_text() != text
    ]
    assert stale == [], "run: python docs/generate.py"


@pytest.mark.parametrize("name", MODELS)
def test_every_key_says_what_it_means_and_can_be_read_alone(name):
    model: type[BaseModel] = MODELS[name]
    texts = {key: field.description or "" for key, field in model.model_fields.items()}
    unreadable = re.compile(r"^(The same|Of |By which|In which|None:|$)")
    assert [key for key, text in texts.items() if unreadable.match(text)] == []


def test_every_flag_says_what_it_means_and_can_be_read_alone():
    rows = re.findall(
        r"^\| `([^`]+)` \| (.*) \|$", (REPOSITORY / "docs" / "cli.md").read_text(), re.M
    )
    assert len(rows) > 80
    assert [
        row for row in rows if re.match(r"(The same|Of |As of|And |Where\.|May be|\[|$)", row[1])
    ] == []


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_can_be_read_alone(room):
    """An editor shows a docstring without the lines above it; that of a field or a constant,
    too."""
    texts = {
        f"{path.relative_to(REPOSITORY)}:{node.lineno}": node.value.value
        for path in (REPOSITORY / room).rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    assert len(texts) > 10
    assert [
        place for place, text in texts.items() if re.match(r"(The same|Of )\b", text.strip())
    ] == []


def test_the_editors_schema_accepts_every_plan_and_refuses_unknown_keys():
    schema = json.loads((REPOSITORY / "docs" / "plan.schema.json").read_text())
    for path in (REPOSITORY / "plans").glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        assert content.keys() <= schema["properties"].keys(), path.name
        assert set(schema["required"]) <= content.keys(), path.name
    assert schema["additionalProperties"] is False


def test_every_decision_is_in_the_index_and_has_its_three_parts():
    folder = REPOSITORY / "docs" / "decisions"
    index = (folder / "index.md").read_text()
    decisions = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    assert len({path.name[:4] for path in decisions}) == len(decisions), (
        "a number that went is not given again"
    )
    for path in decisions:
        assert f"({path.name})" in index
        assert re.findall(r"^## (.*)$", path.read_text(), re.M) == [
            "Context",
            "Decision",
            "Consequence",
        ]


def test_each_row_of_the_guide_for_leaving_horovod_is_tested_or_says_why_not():
    """By plants of ``plants.py``: a pair that trains alike, and a mistake that is named."""
    alike = {script.partition(" ")[2] or "plain" for pair in ALIKE for script in pair}
    named = {new or "plain" for _, new in (*PLANTED, *OF_HOROVOD)}
    rows = re.findall(
        r"^\|.*\| ([^|]+) \|$", (REPOSITORY / "docs" / "leaving-horovod.md").read_text(), re.M
    )
    rows = [row for row in rows if row != "tested"]
    assert len(rows) > 25
    for row in rows:
        tested = {
            kind: set(CODE.findall(cell))
            for kind, cell in re.findall(r"(same|mistake)s?: ([^;]+)", row)
        }
        assert "not tested, because " in row or tested.keys() == {"same", "mistake"}, row
        files = {name for name in tested.get("same", ()) if (REPOSITORY / name).is_file()}
        assert (
            tested.get("same", set()) - files <= alike and tested.get("mistake", set()) <= named
        ), row


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]
    listed = {
        page
        for entry in nav
        for page in ([entry] if isinstance(entry, str) else next(iter(entry.values())))
    }
    there = {
        path.relative_to(REPOSITORY / "docs").as_posix()
        for path in (REPOSITORY / "docs").glob("*.md")
    }
    assert there | {"decisions/index.md"} == listed
