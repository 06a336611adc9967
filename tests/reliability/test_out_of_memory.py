"""A rank that has no memory left says so, although saying it takes memory."""

from __future__ import annotations

from tests.conftest import ended_well
from tests.kit.commands import run_python

CODE = """
from measurement.agent.ringside_agent.users_lines import describe
from tests.kit.plugins.faulty import take_all_memory
try:
    take_all_memory()
except MemoryError as error:
    print(describe(error).message)
"""


def test_memory_that_was_taken_is_freed_before_the_error_is_described():
    done = ended_well(run_python(CODE))
    assert done.stdout.startswith("MemoryError, at tests/kit/plugins/faulty.py:")
