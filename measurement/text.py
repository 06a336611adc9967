"""Text of others: names, messages and logs may hold what a terminal or a page would obey."""

from __future__ import annotations

import re

SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor, the screen
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]"
)
UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)
"""Control characters but tab and line end, those that turn the direction of writing, and what no file in UTF-8 or XML may hold."""
LEFT = "\N{REPLACEMENT CHARACTER}"


MOST_SHOWN = 20_000
"""Characters of one text in a report: more than the last lines of a log have."""


def printable(text: str) -> str:
    """The text without what a terminal would obey: escape sequences are left out, other such characters replaced."""
    return UNSEEN.sub(LEFT, SEQUENCE.sub("", text.replace("\r\n", "\n")))


def in_report(text: str) -> str:
    """The same, cut where it is longer than anybody reads."""
    shown = printable(text[: 2 * MOST_SHOWN])
    return shown if len(text) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}… ({len(text):,} characters in all)"
