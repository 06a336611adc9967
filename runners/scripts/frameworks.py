"""Finds scripts that train by another framework than PyTorch, by what they import. Pure but for the files that it reads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from measurement.errors import PlanError

OTHERS = {
    "horovod.tensorflow": "TensorFlow",
    "horovod.keras": "Keras",
    "horovod.mxnet": "MXNet",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "flax": "JAX",
    "mxnet": "MXNet",
}
TORCH = re.compile(
    r"torch|lightning|transformers|accelerate|deepspeed|timm|composer|fastai|keras_core|KERAS_BACKEND", re.IGNORECASE
)
"""A word of any of these, anywhere, and a script may train by PyTorch."""
MAX_FILES = 100


def require_torch(script: Path, name: str) -> None:
    """Refuse a script that imports another framework, where neither it nor what it imports beside itself speaks of PyTorch.

    Raises:
        PlanError: it trains by that framework.
    """
    found, waiting, seen = "", [script], set[Path]()
    while waiting and len(seen) < MAX_FILES:
        file = waiting.pop()
        seen.add(file)
        try:
            text = file.read_text(encoding="utf-8")
            modules = _imported(ast.parse(text))
        except (OSError, ValueError, SyntaxError, RecursionError):
            return
        if TORCH.search(text):
            return
        found = found or next((one for one in modules for other in OTHERS if one == other or one.startswith(f"{other}.")), "")
        folders = {script.parent, file.parent}
        waiting += [path for module in modules for folder in folders for path in _files(module, folder) if path not in seen]
    if found:
        framework = next(framework for other, framework in OTHERS.items() if found.startswith(other))
        raise PlanError(f"'{name}' trains by {framework} (it imports {found}), and Ringside times scripts of PyTorch")


def _imported(tree: ast.AST) -> list[str]:
    """Whole names of all that is imported anywhere in a file; of ``from a import b`` both ``a`` and ``a.b``."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names)]
    return found


def _files(module: str, folder: Path) -> list[Path]:
    """The files of a module beside the script, its packages included."""
    parts, found = [part for part in module.split(".") if part], []
    for number in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:number])
        found += [path for path in (base.with_name(f"{base.name}.py"), base / "__init__.py") if path.is_file()]
    return found
