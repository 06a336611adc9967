"""Links, anchors, paths and snippets of the documents lead somewhere, sentences are short, and
generated pages are current."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex

import pytest
import yaml
from pydantic import BaseModel

from backends import REGISTRY as BACKENDS
from backends import backend_class
from measurement.plans.plan import Plan, Point
from measurement.plans.plan_file import check_plan
from measurement.plans.sections import Arm, Measurement, ScriptSettings
from measurement.plans.settings import SpeedSettings, TrainingSettings
from tests.conftest import REPOSITORY
from tests.distributed.test_planted_differences import ALIKE, OF_HOROVOD, PLANTED
from workloads import REGISTRY as WORKLOADS
from workloads import workload_class

PAGES = sorted(
    page.relative_to(REPOSITORY)
    for pattern in ("*.md", "docs/**/*.md", ".github/**/*.md")
    for page in REPOSITORY.glob(pattern)
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


@pytest.fixture(params=PAGES, ids=str)
def page(request):
    return REPOSITORY / request.param


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


def test_links_and_anchors_lead_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        target_path = (page.parent / target).resolve() if target else page
        assert target_path.exists(), f"{link}: there is no {target_path}"
        if anchor:
            assert anchor in anchors(target_path), f"{link}: {target_path.name} has no such heading"


def test_paths_that_are_named_exist(page):
    codes = CODE.findall(FENCE.sub("", page.read_text()))
    named = {
        path
        for code in codes
        if not code.startswith(MADE_WHILE_RUNNING)
        for path in PATH.findall(code)
    }
    assert [path for path in named if not list(REPOSITORY.glob(f"{path.rstrip('/')}*"))] == []


MODULES = sorted(
    module.relative_to(REPOSITORY)
    for room in ROOMS.split("|")
    for module in (REPOSITORY / room).rglob("*.py")
)
QUALIFIED = re.compile(rf"``((?:{ROOMS})(?!\.py`)(?:\.\w+)+)``")


def test_names_that_docstrings_refer_to_exist():
    """A docstring named a module that had moved."""
    missing = [
        f"{module}: {name}"
        for module in MODULES
        for name in QUALIFIED.findall((REPOSITORY / module).read_text())
        if not is_defined(name.split("."))
    ]
    assert missing == []


def is_defined(parts):
    """Whether it is a module or room, or a name in one."""
    place = REPOSITORY
    while parts and (place / parts[0]).is_dir():
        place, parts = place / parts[0], parts[1:]
    module = place / "__init__.py"
    if parts and (place / f"{parts[0]}.py").is_file():
        module, parts = place / f"{parts[0]}.py", parts[1:]
    words = set(re.findall(r"\w+", module.read_text())) if parts else set()
    return words.issuperset(parts)


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
    least = {"name": "n", "workload": "digits", "baseline": "a", "arms": {"a": {"backend": "ddp"}}}
    place = {} if "hosts" in content else {"hosts": "host1:2"}
    whole = {"world_size": 2} if "arms" in content else {"world_size": 2, **least, **place}
    check_plan(whole | content, source="snippet")


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


def test_sentences_are_short(page):
    counts = sentence_lengths(page.read_text())
    assert not counts or (max(counts) <= 30 and sum(counts) / len(counts) <= 14), (
        max(counts),
        sum(counts) / len(counts),
    )


@pytest.mark.parametrize(("name", "size"), [("README.md", 8192), ("CONTRIBUTING.md", 4096)])
def test_what_everybody_reads_fits_on_a_page(name, size):
    assert (REPOSITORY / name).stat().st_size <= size


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


def test_every_decision_is_in_the_index_under_a_number_of_its_own():
    folder = REPOSITORY / "docs" / "decisions"
    index = (folder / "index.md").read_text()
    decisions = [path.name for path in folder.glob("*.md") if path.name != "index.md"]
    assert len({name[:4] for name in decisions}) == len(decisions)
    assert [name for name in decisions if f"({name})" not in index] == []


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
