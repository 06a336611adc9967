"""The driver with many ranks: the benchmark, small."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.costly


def test_sixty_four_idle_ranks_are_driven_to_a_report():
    """Two of each arm's ranks have real supervisors; the benchmark refuses arms that are not ok."""
    argv = [
        sys.executable,
        "-P",
        "benchmarks/control_plane.py",
        "--alone",
        "--ranks",
        "64",
        "--blocks",
        "2",
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    calls = {name: len(seconds) for name, seconds in found["cpu_s"].items()}
    assert (
        calls["block"],
        calls[". replies"],
        calls["gate"],
        calls["record"],
        calls["report"],
    ) == (4, 4, 2, 2, 1)
