"""Python imports this by itself where its folder is on PYTHONPATH.

It begins Ringside's agent, then runs the user's own module.

Nothing happens unless RINGSIDE_AGENT is set. Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    if not os.environ.get("RINGSIDE_AGENT"):
        return
    try:
        importlib.import_module("ringside_agent").begin()
    except Exception as error:  # noqa: BLE001 - the script must run, whatever is wrong with the agent
        print(
            f"ringside: the agent could not begin: {type(error).__name__}: {error}", file=sys.stderr
        )


def _chain() -> None:
    """Run the ``sitecustomize`` that Python would have imported without this one.

    Its errors are raised.
    """
    others = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_begin()
_chain()
