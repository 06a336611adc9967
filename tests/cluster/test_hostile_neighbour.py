"""A comparison on one host, while another scans its ports, says garbage to all that listens, and replays what it heard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import enter
from tests.conftest import REPOSITORY, TINY

NEIGHBOUR = Path(__file__).parent / "plugins" / "neighbour.py"
ROUNDS = 8
ARMS = {name: {"backend": name, "transport": "gloo", "launcher": "spawn"} for name in ("ddp", "naive")}


@pytest.mark.costly
def test_a_neighbour_who_scans_and_talks_garbage_changes_nothing(lab, tmp_path):
    measurement = {
        "rehearsal": "never",
        "launches": 1,
        "rounds": ROUNDS,
        "block_steps": 8,
        "local_every": 0,
        "control": False,
        "floor": False,
    }
    plan = {**TINY, "hosts": "host1:2", "network_interface": "eth0", "arms": ARMS, "baseline": "ddp", "measurement": measurement}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    command = [sys.executable, "-m", "tests.kit.lab", "run", "--host", "host2", "--", sys.executable, NEIGHBOUR, "host1"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as neighbour:
        done = enter("host1", "ringside", "compare", tmp_path / "plan.yaml", "-o", tmp_path / "out")
        said = json.loads(neighbour.communicate(timeout=60)[0])
    assert done.returncode == 0, done.stderr
    records = ResultsFolder(tmp_path / "out").records()
    assert [(record.arm, record.status, len(record.blocks)) for record in records] == [
        ("ddp", "ok", ROUNDS),
        ("naive", "ok", ROUNDS),
    ]
    challenged = [port for port, line in said["heard"].items() if len(line.strip()) == 32]
    assert challenged, "it found the supervisors' port"
