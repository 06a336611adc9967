"""The files and the terminal, and the console on which commands print.

The console is apart from tables, so that commands without figures start without pandas and scipy.
"""

from __future__ import annotations

import sys

from rich.console import Console

PIPED_WIDTH = 100
"""Columns; with 80 the notes would be too narrow."""


def new_console(*, plain: bool = False) -> Console:
    """For standard output; wide enough where no terminal says its own width.

    ``plain``: without colours even on a terminal.
    """
    if plain:
        return Console(width=PIPED_WIDTH, force_terminal=False)
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
