"""A comparison on one host, while another scans its ports, says garbage to all that listens, and
replays what it heard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import beside, enter
from tests.conftest import write_plan

NEIGHBOUR = Path(__file__).parent / "plugins" / "neighbour.py"
ROUNDS = 8
ARMS = {
    name: {"backend": name, "transport": "gloo", "launcher": "spawn"} for name in ("ddp", "naive")
}


@pytest.mark.costly
def test_a_neighbour_who_scans_and_talks_garbage_changes_nothing(lab, tmp_path):
    measurement = {"rounds": ROUNDS, "block_steps": 8, "local_every": 0}
    plan = write_plan(
        tmp_path, hosts="host1:2", network_interface="eth0", arms=ARMS, measurement=measurement
    )
    with beside(
        "host2",
        sys.executable,
        NEIGHBOUR,
        "host1",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as neighbour:
        done = enter("host1", "ringside", "compare", plan, "-o", tmp_path / "out")
        heard = json.loads(neighbour.communicate(timeout=60)[0])
    assert done.returncode == 0, done.stderr
    records = ResultsFolder(tmp_path / "out").records()
    assert [(record.arm, record.status, len(record.blocks)) for record in records] == [
        ("ddp", "ok", ROUNDS),
        ("naive", "ok", ROUNDS),
    ]
    assert any(len(line.strip()) == 32 for line in heard.values()), "it found the supervisors' port"
