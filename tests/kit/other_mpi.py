"""Environments that have another MPI than the one that runs the tests, and everything else of
it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

INSTALL_TIMEOUT_S = 120


def environment_with(requirement, folder):
    """Make a virtual environment with an MPI's wheel, and return its Python.

    It imports all else from the one that runs this."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run(
        [*uv, "venv", "--python", sys.executable, folder], check=True, timeout=INSTALL_TIMEOUT_S
    )
    python = folder / "bin" / "python"
    command = [*uv, "pip", "install", "--no-deps", "--python", python, requirement]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode:
        pytest.skip(
            f"{requirement} cannot be installed here: {done.stderr.strip().rpartition(chr(10))[2]}"
        )
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "others.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    return python


def variables_of(python):
    """Environment variables in which its MPI is the first one, for Horovod's library, too, which
    was built against another."""
    path = os.pathsep.join(
        [str(python.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    return {**os.environ, "PATH": path, "LD_LIBRARY_PATH": str(python.parent.parent / "lib")}
