"""Where the commands begin: under a name that is none of our packages', which a folder on PYTHONPATH may hide."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def main() -> None:
    """Be ``ringside``."""
    _import_runners()
    from runners.cli import main

    main()


def ddp() -> None:
    """Be ``ringside-ddp``: ``python -m runners.ddp``."""
    _import_runners()
    from runners.standalone import serve

    serve("ddp")


def hvd() -> None:
    """Be ``ringside-hvd``: ``python -m runners.hvd``."""
    _import_runners()
    from runners.standalone import serve

    serve("horovod")


def _import_runners() -> None:
    """Import ``runners`` from beside this file. That pins the names of the other packages."""
    spec = PathFinder.find_spec("runners", [str(Path(__file__).resolve().parent)])
    assert spec is not None and spec.loader is not None
    sys.modules["runners"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["runners"])
