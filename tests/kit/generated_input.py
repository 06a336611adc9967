"""Input that nobody means, made by hypothesis: for each reader a strategy, and what takes it.

Whatever comes, it is accepted, or refused by a ``RingsideError`` of one line that is not long,
soon. ``judge`` says what is wrong otherwise. Used by ``test_generated_input.py`` with a few hundred
inputs, and by ``benchmarks/bad_input.py`` with many.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torchvision.models  # noqa: F401 - which takes seconds, and not of the first plan
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from measurement.errors import RingsideError
from reports import conclude
from reports.formats.pages import HtmlReport, JunitReport, MarkdownReport
from runners.driver.run_comparison import point_plans
from runners.hosts.host_lists import parse_hosts, place_ranks, read_hostfile
from runners.planning.arms import resolve_arms
from runners.planning.plan_reading import read_plan
from runners.planning.workload import resolve_cases, resolve_workload
from tests.conftest import REPOSITORY, TINY
from tests.kit.results_factory import Truth, make_plan, write_results

MAX_CHARACTERS = 600
"""Of a message, without the path of the folder that the test lies in."""
MAX_S = 5.0
NEEDS_MORE = "hugging-face"
"""A plan that needs the user's own packages; what is wrong with a user's code is told with the
lines around it."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([-1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400]),
    st.floats(),
    st.sampled_from(
        [
            *[
                "\x00",
                "../..",
                "\x1b[2J",
                "NaN",
                "1e999",
                "ddp",
                "horovod",
                "mpi",
                "cuda",
                "\u202e",
            ],
            "a" * 3000,
        ]
    ),
    st.text(max_size=12),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)


class Target(NamedTuple):
    """A reader of input."""

    name: str
    inputs: SearchStrategy[Any]
    take: Callable[[Any, Path], object]
    """Reads an input, in a folder that it may write to."""
    cost: int = 1
    """How much slower than the others it is: it gets so much fewer inputs."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What became of an input."""

    refused: bool
    seconds: float
    """Of this process on its cores."""
    wrong: str | None = None
    """Why it should not have been so, and where."""


def judge(target, value, folder):
    """Hand an input to its reader."""
    began, refused, wrong = time.process_time(), False, None
    try:
        target.take(value, folder)
    except RingsideError as error:
        message, refused = str(error).replace(str(folder), ""), True
        if "\n" in message:
            wrong = f"a message of several lines: {message!r}"
        elif len(message) > MAX_CHARACTERS:
            wrong = f"a message of {len(message)} characters: {message}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        frames = traceback.extract_tb(error.__traceback__)[:-5:-1]
        places = " <- ".join(f"{Path(at.filename).name}:{at.lineno}" for at in frames)
        wrong = f"{type(error).__name__} at {places}: {str(error)[:200]}"
    seconds = time.process_time() - began
    return Judgement(
        refused=refused,
        seconds=seconds,
        wrong=wrong or (f"it took {seconds:.1f} s" if seconds > MAX_S else None),
    )


def edited(content):
    """The bytes with some of them replaced, left out, repeated or put in."""
    place = st.integers(0, len(content))
    edit = st.tuples(place, st.integers(0, 40), st.binary(max_size=12))

    def apply(edits, end):
        data = bytearray(content)
        for at, length, new in edits:
            data[at : at + length] = new
        return bytes(data[:end] if end < len(content) // 3 else data)

    return st.builds(apply, st.lists(edit, max_size=4), place)


REMOVED = "to be left out"


def altered(content):
    """Plain values with one to three of them replaced, left out or added."""
    places = st.sampled_from(list(_places(content)))
    beside = st.tuples(places, st.text(max_size=8)).map(lambda copied: (*copied[0][:-1], copied[1]))
    edits = st.lists(st.tuples(places | beside, VALUES | st.just(REMOVED)), min_size=1, max_size=3)

    def apply(edits):
        copied = copy.deepcopy(content)
        for path, value in edits:
            _edit(copied, path, value)
        return copied

    return edits.map(apply)


def _places(value, path=()):
    if isinstance(value, list):
        value = dict(enumerate(value[:2]))
    for key, part in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        yield from _places(part, (*path, key))


def _edit(content, path, value):
    """Edits before this one may have taken the place away."""
    *above, last = path
    with contextlib.suppress(KeyError, IndexError, TypeError):
        for part in above:
            content = content[part]
        if value is REMOVED:
            del content[last]
        else:
            content[last] = value


# Plans


def plan_texts():
    """Plans that are altered as values or as text, and any text."""
    paths = sorted((REPOSITORY / "plans").glob("*.yaml"))
    plans = [path.read_bytes() for path in paths if path.stem != NEEDS_MORE]
    contents = [TINY, *map(yaml.safe_load, plans)]
    values = st.one_of([altered(content) for content in contents]).map(_as_yaml)
    return st.one_of(
        values,
        values,
        *(edited(plan) for plan in plans),
        st.text(max_size=200).map(str.encode),
        st.binary(max_size=60),
    )


def _as_yaml(content):
    try:
        return yaml.safe_dump(content, sort_keys=False).encode("utf-8", "replace")
    except ValueError:  # a number of more digits than Python writes
        return b"{"


def take_plan(content, folder):
    """As ``ringside compare`` does before it looks at hosts and data."""
    path = folder / "plan.yaml"
    path.write_bytes(content)
    plan = read_plan(path)
    for each in point_plans(plan).values() if plan.points else [plan]:
        resolve_cases(
            each, resolve_workload(each.workload, each.workload_options), resolve_arms(each)
        )


def overrides():
    """What stands behind ``--set``."""
    keys = st.sampled_from(
        [*TINY, "measurement.launches", "arms.ddp.options", "arms.new.backend", "points.a", "hosts"]
    )
    values = VALUES.map(lambda value: _as_json(value).decode()) | st.text(max_size=30)
    return st.builds("{}={}".format, keys | st.text(max_size=20), values) | st.text(max_size=40)


def take_override(text, folder):
    """Beside a plan that is right."""
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(TINY))
    read_plan(path, overrides=[text])


# Hosts


def host_texts():
    """Words of hostfiles in any order, and any text."""
    right = st.sampled_from([b"host1 slots=4\nhost2\n", b"host1:4,host2:4", b"[fe80::1]:2"])
    near = right.flatmap(edited).map(lambda content: content.decode("latin-1"))
    words = ["host1", "slots=", "max-slots=4", "[fe80::1]", "::", "%eth0", "-o"]
    words = st.sampled_from([*words, *" :4,\n#@\r\x00", "9" * 5000]) | st.text(max_size=5)
    return near | st.lists(words, max_size=12).map("".join) | st.text(max_size=100)


def take_hostfile(text, folder):
    """A file and the ranks on its hosts, or the list behind ``-H``."""
    path = folder / "hostfile"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    place_ranks(parse_hosts(text) if len(text) % 2 else read_hostfile(path), 2)


# Results


@cache
def results(folder):
    """A small comparison, written once."""
    plan = make_plan(["horovod-mpi"], launches=1, rounds=2, block_steps=2, local_every=2)
    return write_results(
        folder / "results", plan=plan, truth=Truth(statuses={("horovod-mpi", 0): "failed"})
    )


@cache
def stored(name):
    """A file of such a comparison."""
    with tempfile.TemporaryDirectory() as folder:
        return (results(Path(folder)).root / name).read_bytes()


RECORD = "launch-000/ddp-gloo/record.json"
STEPS = "launch-000/ddp-gloo/steps.parquet"
MANIFEST = "manifest.json"


def json_files(name):
    """A file of JSON, altered as values or as text."""
    content = stored(name)
    values = altered(json.loads(content)).map(_as_json)
    return st.one_of(values, values, edited(content))


def _as_json(content):
    try:
        return json.dumps(content).encode("utf-8", "replace")
    except ValueError:
        return b'{"schema_version": ' + b"1" * 5000


def take_results(name):
    """As ``ringside report`` does, without writing."""

    def take(content, folder):
        comparison_folder = results(folder)
        path, before = comparison_folder.root / name, stored(name)
        path.write_bytes(content)
        try:
            comparison = conclude(comparison_folder)
            for report in (MarkdownReport(), JunitReport(), HtmlReport()):
                report.render(comparison)
            comparison.model_dump_json()
        finally:
            path.write_bytes(before)

    return take


def parquet_files():
    """A table of steps, altered as bytes or as a table."""
    content = stored(STEPS)
    table = pd.read_parquet(io.BytesIO(content))
    column = st.sampled_from(list(table.columns))
    numbers = [-1, 0, 2**31 - 1, 2**62, math.nan, math.inf, 1e300]
    cells = st.sampled_from([None, *numbers, "x", "", True, b"\xff"])

    def change(name, what, value, row):
        if what == "drop":
            changed = table.drop(columns=name)
        elif what == "repeat":
            changed = pd.concat([table.iloc[:row], table.iloc[: row + 1]])
        else:
            column = table[name].astype(object)
            column[slice(None) if what == "column" else row] = value
            changed = table.assign(**{name: column})
        written = io.BytesIO()
        try:
            changed.to_parquet(written, index=False)
        except Exception:  # noqa: BLE001 - what Arrow does not write, nobody reads
            return content
        return written.getvalue()

    kinds = st.sampled_from(["drop", "repeat", "cell", "cell", "column"])
    return st.builds(change, column, kinds, cells, st.integers(0, 9)) | edited(content)


def targets():
    """All readers."""
    return [
        Target("plan", plan_texts(), take_plan, cost=2),
        Target("set", overrides(), take_override),
        Target("hostfile", host_texts(), take_hostfile),
        Target("record", json_files(RECORD), take_results(RECORD), cost=20),
        Target("manifest", json_files(MANIFEST), take_results(MANIFEST), cost=20),
        Target("parquet", parquet_files(), take_results(STEPS), cost=20),
    ]
