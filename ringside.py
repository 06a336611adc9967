"""Where the commands begin: under a name that is none of our packages', which a folder on
PYTHONPATH may hide.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

# at import: loader processes by spawn import the script of a command, but do not run it
if "runners" not in sys.modules:
    _spec = PathFinder.find_spec("runners", [str(Path(__file__).resolve().parent)])
    assert _spec is not None and _spec.loader is not None
    sys.modules["runners"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["runners"])  # which pins the names of the other packages


def main() -> None:
    """Be ``ringside``."""
    from runners.cli import main

    main()


def ddp() -> None:
    """Be ``ringside-ddp``: ``python -m runners.ddp``."""
    from runners.standalone import serve

    serve("ddp")


def hvd() -> None:
    """Be ``ringside-hvd``: ``python -m runners.hvd``."""
    from runners.standalone import serve

    serve("horovod")
