"""How bad input is refused: by one line, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from measurement.errors import RingsideError
from tests.conftest import ringside_here


def refusal(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The one line with which a function refuses these arguments."""
    with pytest.raises(RingsideError) as refused:
        function(*arguments, **named)
    (line,) = str(refused.value).splitlines()
    return line


def refused_command(*arguments: object) -> str:
    """What a command says that ends with exit code 2, prints nothing else and has no traceback."""
    done = ringside_here(*arguments)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False), done.stderr
    return done.stderr
