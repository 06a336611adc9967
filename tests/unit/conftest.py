"""Unit tests compute on one thread: their models are small, and a second thread only waits for the first."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Where the tests of a module have imported torch; those that do not need it do not pay for it."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(before)
