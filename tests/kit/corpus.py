"""The corpus: what Ringside concludes from stored results of real runs, compared with what it
concluded before.

``tests/data/corpus`` holds the records (``records.tar.xz``, made once by ``runs.sh`` and
``pack.py``) and what the commands below made of them (``expected.tar.xz``). Numbers are equal to
1e-12 of their size, all else letter for letter.

    python -m tests.kit.corpus                          says what differs; exit code 1 where
        anything does
    python -m tests.kit.corpus accept --why 'reason'    takes what differs as meant

``accept`` replaces ``expected.tar.xz`` and adds to ``differences.md`` the reason and, in short,
what differs. Accept once, in the last commit before you land. Where both files are in conflict,
take those of the branch that you rebase on, and accept again:

    git checkout BRANCH -- tests/data/corpus && python -m tests.kit.corpus accept --why 'reason' &&
        git add tests/data/corpus
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import difflib
import io
import itertools
import json
import math
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runners.cli import app
from runners.processes.process_exit import exit_code_of

DATA = Path(__file__).parents[1] / "data" / "corpus"
RECORDS, EXPECTED, ACCEPTED = (
    DATA / name for name in ("records.tar.xz", "expected.tar.xz", "differences.md")
)
CASES = {
    "three-arms": "report three-arms",
    "failed-arm": "report failed-arm",
    "scripts": "report scripts",
    "unlike-work": "report unlike-work",
    "study": "report study",
    "micro-benchmark": "report micro-benchmark",
    "training": "report training",
    "traced": "report traced",
    "lab-two-hosts": "report lab-two-hosts",
    "against": "report against --against three-arms",
    "tuning": "report tuning/confirm",
    "standalone-runs": "report standalone-runs -o made/standalone-runs",
    "named-runs": "report old=standalone-runs/ddp-1,standalone-runs/ddp-2 new=standalone-runs/ddp-3 -o made/named-runs",
    "what-if": "project lab-two-hosts --what-if --link 100mbit --format json",
    "projection": "project study --to 4,16",
}
"""What is asked of the records, by the words that a person types in their folder."""
PRINTED = "printed.txt"
"""What a command prints, and its exit code."""
SETTINGS = {
    "reports": "[markdown, csv, html, pull-request, junit, openmetrics]",
    "link": "https://reports.example.org/1",
}
"""Of every stored plan, so that all formats are made and none asks the environment."""
RELATIVE, ABSOLUTE = 1e-12, 1e-15
"""Numbers are equal within either; the second is for what a cancellation leaves."""
NAMES = ("name", "arm", "candidate", "case", "field")
"""Keys by whose values the elements of a list are known."""
ELEMENT = re.compile(r"\[[^\]]*\]")
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")
LONG = re.compile(r"(?<![\w.])-?\d+\.\d{11,}(?:e[-+]\d+)?")
"""Numbers of more digits than are stored: thirteen."""
FIGURES = re.compile(
    r'(?<=<script type="application/json" id="figures">).*?(?=</script>)', re.DOTALL
)
LIBRARY = re.compile(
    r'(?<=<script type="application/gzip" id="plotly">).*?(?=</script>)', re.DOTALL
)
MAX_SHOWN, MAX_LETTERS, FEW = 20, 120, 3
MAX_KEPT = 8
"""Lines of ``differences.md`` for what is accepted once."""

Files = Mapping[str, str]
"""Texts by the names of their files."""


NOTHING = type("Nothing", (), {"__repr__": lambda _: "nothing"})()
"""Stands for what is not there."""


class Difference(NamedTuple):
    """One place in one file."""

    path: str
    stored: Any
    rebuilt: Any

    @property
    def words(self) -> str:
        """The place with both values; of texts, from shortly before they differ."""
        texts = [text for text in self[1:] if isinstance(text, str)]
        shared = os.path.commonprefix(texts)  # noqa: RUF071
        begin = max(0, len(shared) - MAX_LETTERS // 4) if len(texts) == 2 else 0
        return f"{self.path}: stored {cut(self.stored, begin)}, rebuilt {cut(self.rebuilt, begin)}"

    @property
    def short(self) -> str:
        """The same for all places that differ alike: without numbers and names of elements."""
        if self.path.endswith(" line"):
            return NUMBER.sub("#", self.words)
        how = "came" if self.stored is NOTHING else "went" if self.rebuilt is NOTHING else "changed"
        return ELEMENT.sub("[*]", self.path) + " " + how


def cut(value: Any, begin: int) -> str:
    """A value in few letters."""
    if not isinstance(value, str):
        return repr(value)[:MAX_LETTERS]
    end = begin + MAX_LETTERS
    return "…" * (begin > 0) + repr(value[begin:end]) + "…" * (len(value) > end)


def unpack(root: Path) -> None:
    """Write the records below a folder."""
    with tarfile.open(RECORDS) as archive:
        archive.extractall(root, filter="data")
    for plan in root.glob("*/**/plan.yaml"):
        text = plan.read_text()
        for key, value in SETTINGS.items():
            text = re.sub(rf"^{key}: null$", f"{key}: {value}", text, flags=re.MULTILINE)
        plan.write_text(text)


def rebuild(case: str, root: Path) -> Files:
    """Run a case's command where the records were unpacked; returns what it writes and prints."""
    words = CASES[case].split()
    folder = root / (words[-1] if "-o" in words else words[1])
    for path in written(folder):
        path.unlink()
    out = io.StringIO()
    with contextlib.chdir(root), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = exit_code_of(lambda: app(words))
    made = {path.name: LIBRARY.sub("", path.read_text()) for path in written(folder)}
    texts = {**made, PRINTED: f"{out.getvalue()}exit code {code}\n"}
    return {
        name: LONG.sub(lambda number: f"{float(number.group()):.13g}", text)
        for name, text in texts.items()
    }


def written(folder: Path) -> list[Path]:
    """The files in a folder that are no records."""
    return [
        path
        for path in sorted(folder.glob("*.*"))
        if path.is_file() and path.name not in ("plan.yaml", "manifest.json")
    ]


def expected() -> dict[str, dict[str, str]]:
    """What is stored, by case and file."""
    files: dict[str, dict[str, str]] = {}
    if EXPECTED.exists():
        with tarfile.open(EXPECTED) as archive:
            for entry in archive:
                case, _, name = entry.name.partition("/")
                content = archive.extractfile(entry)
                assert content is not None
                files.setdefault(case, {})[name] = content.read().decode()
    return files


def write_expected(files: Mapping[str, Files]) -> None:
    """Replace what is stored: the same texts give the same bytes."""
    with tarfile.open(EXPECTED, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as archive:
        for name, case in sorted((name, case) for case, texts in files.items() for name in texts):
            content = files[case][name].encode()
            entry = tarfile.TarInfo(f"{case}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def compare(stored: Files, rebuilt: Files) -> list[Difference]:
    """All places at which the files of a case differ; the path begins with the file's name."""
    changes = []
    for name in sorted(stored.keys() | rebuilt.keys()):
        if name not in stored or name not in rebuilt:
            changes.append(Difference(name, stored.get(name, NOTHING), rebuilt.get(name, NOTHING)))
        elif stored[name] != rebuilt[name]:
            changes += [
                change._replace(path=f"{name}: {change.path}")
                for change in differences(name, stored[name], rebuilt[name])
            ]
    return changes


def differences(name: str, stored: str, rebuilt: str) -> Iterator[Difference]:
    """Where two texts of one file differ."""
    texts, path = (stored, rebuilt), ""
    if name.endswith(".json"):
        trees = [json.loads(text) for text in texts]
    elif name.endswith(".csv"):
        trees = [list(csv.DictReader(text.splitlines())) for text in texts]
    else:
        yield from of_lines(*(FIGURES.sub("", text).splitlines() for text in texts))
        found = map(FIGURES.search, texts)
        trees, path = [json.loads(one.group() if one else "{}") for one in found], "figures"
    before, after = (dict(leaves(tree, path)) for tree in trees)
    for place in dict.fromkeys([*before, *after]):
        values = before.get(place, NOTHING), after.get(place, NOTHING)
        if not is_same(*values):
            yield Difference(place, *values)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a value of JSON holds, by paths; elements by their names, where each has one."""
    parts = {}
    if isinstance(value, dict):
        for key, part in value.items():
            parts[f".{key}" if re.fullmatch(r"[a-z_0-9]+", key) else f"[{key}]"] = part
    elif isinstance(value, list):
        named = [
            [str(part.get(key)) for part in value if isinstance(part, dict) and key in part]
            for key in NAMES
        ]
        names = next((name for name in named if len(set(name)) == len(value)), range(len(value)))
        parts = {f"[{name}]": part for name, part in zip(names, value, strict=True)}
    if not parts and path:
        yield path, value
    for key, part in parts.items():
        yield from leaves(part, path + key)


def of_lines(stored: Sequence[str], rebuilt: Sequence[str]) -> Iterator[Difference]:
    """Compare two texts, line by line."""
    matcher = difflib.SequenceMatcher(None, stored, rebuilt, autojunk=False)
    for _, first, last, begin, end in matcher.get_opcodes():
        lines = stored[first:last], rebuilt[begin:end]
        for pair in itertools.zip_longest(*lines, fillvalue=NOTHING):
            if not is_same(*pair):
                yield Difference("line", *pair)


def is_same(stored: Any, rebuilt: Any) -> bool:
    """Whether two values are equal; texts where their words are, and their numbers within what is
    allowed."""
    if isinstance(stored, str) and isinstance(rebuilt, str):
        before, after = NUMBER.split(stored), NUMBER.split(rebuilt)
        return before[::2] == after[::2] and all(
            map(is_close, map(float, before[1::2]), map(float, after[1::2]))
        )
    if isinstance(stored, int | float) and isinstance(rebuilt, int | float):
        return isinstance(stored, bool) is isinstance(rebuilt, bool) and is_close(stored, rebuilt)
    return type(stored) is type(rebuilt) and stored == rebuilt


def is_close(stored: float, rebuilt: float) -> bool:
    """Whether two numbers are equal within what is allowed."""
    return math.isclose(stored, rebuilt, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (
        math.isnan(stored) and math.isnan(rebuilt)
    )


def lines_of(case: str, changes: Sequence[Difference]) -> list[str]:
    """A line for each difference, one for those that are alike, at most ``MAX_SHOWN``."""
    alike: dict[str, list[Difference]] = {}
    for change in changes:
        alike.setdefault(change.short, []).append(change)
    lines = [
        f"{case} {change.words}{f' (and {len(more)} like it)' if more else ''}"
        for change, *more in alike.values()
    ]
    return first_of(lines, MAX_SHOWN, f"{case}: ")


def first_of(lines: list[str], number: int, begin: str) -> list[str]:
    """So many of them, and how many more there are."""
    more = len(lines) - number
    return lines[:number] + [f"{begin}and {more} more"] * (more > 0)


def accept(why: str, stored: Mapping[str, Files], rebuilt: Mapping[str, Files]) -> None:
    """Store what was rebuilt, and write down why, and what differs."""
    short: dict[str, set[str]] = {}
    for case in rebuilt if stored else ():
        for change in compare(stored.get(case, {}), rebuilt[case]):
            short.setdefault(change.short, set()).add(case)
    changes = {
        what: ", ".join(sorted(cases)) if len(cases) <= FEW else f"{len(cases)} cases"
        for what, cases in short.items()
    }
    lines = [f"- {what} ({cases})" for what, cases in sorted(changes.items())]
    write_expected(rebuilt)
    with ACCEPTED.open("a") as file:
        file.write("\n".join(["", f"## {why}", "", *first_of(lines, MAX_KEPT, "- "), ""]))


def main() -> int:
    """Check, or accept."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.corpus")
    parser.add_argument("action", nargs="?", choices=["check", "accept"], default="check")
    parser.add_argument("--why", help="with accept: why the answers differ")
    given = parser.parse_args()
    if given.action == "accept" and not given.why:
        parser.error("accept needs --why 'reason': it stands in differences.md beside what differs")
    stored = expected()
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        rebuilt = {case: rebuild(case, Path(folder)) for case in CASES}
    changes = {case: compare(stored.get(case, {}), files) for case, files in rebuilt.items()}
    print(
        "\n".join(line for case, apart in changes.items() for line in lines_of(case, apart))
        or "nothing differs"
    )
    if given.action == "accept" and any(changes.values()):
        accept(given.why, stored, rebuilt)
        return 0
    return 1 if any(changes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
