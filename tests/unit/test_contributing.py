"""CONTRIBUTING's path of a run leads past modules that exist."""

from __future__ import annotations

import re

from tests.conftest import REPOSITORY

MODULE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*/[a-z_]+\.py)`")


def test_every_module_that_is_named_exists():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    named = MODULE.findall(text)
    assert len(named) > 30
    assert [module for module in named if not (REPOSITORY / module).is_file()] == []
