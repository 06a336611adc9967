"""The faults of the matrix that need two hosts: ssh is lost, or a host is gone, while a rank there is held at a stage.

Every arm has a rank on the lost host, so that all fail. Each cell makes a lab of its own, since the host does not come back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import yaml

from measurement.results import ResultsFolder
from runners.lab import namespaces
from runners.processes.key_file import PREFIX
from tests.reliability.faults import (
    AT_EVERY_ROUND,
    ENDS_S,
    KINDS,
    LEAVES_S,
    MARK,
    MEASURED,
    REPOSITORY,
    ROUNDS,
    Cell,
    Trial,
    control,
    judge_steps,
    processes_of,
    results,
)

LOST = "host2"
STAGES = ("gates", "block", "rebuild")
FAULTS = ("ssh-lost", "host-gone")


def feasible(kinds: Sequence[str] = tuple(KINDS)) -> list[Cell]:
    """Every cell there can be; another arm waits at each stage but the start."""
    return [Cell(fault=fault, stage=stage, kind=kind) for fault in FAULTS for stage in STAGES for kind in kinds]


def plant(cell: Cell, folder: Path) -> Trial:
    """Run a comparison over two hosts, of which one is lost, and judge it."""
    trial = Trial(cells=[cell], folder=folder)
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    for one in (None, cell):
        control(trial, one).mkdir(parents=True)
    arms = {"well": KINDS["ddp-gloo"].arm("none", "none", control(trial, None))}
    arms[str(cell)] = KINDS[cell.kind].arm("hold", cell.stage, control(trial, cell))
    measurement = {"launches": 1, "rounds": ROUNDS, "block_steps": 2, "local_every": 0, "floor": False, "control": False}
    plan = {"name": "lost", "workload": "digits", "local_batch_size": 16, "hosts": ["host1:1", f"{LOST}:1"], "baseline": "well"}
    plan |= {"network_interface": "eth0", "arms": arms, "measurement": measurement}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    _lab("up", "--hosts", "2", "--rate", "1gbit")
    try:
        _run(trial)
    finally:
        _lab("down")
    trial.seconds = time.monotonic() - began
    return trial


def _lab(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "runners.cli", "lab", *arguments], cwd=REPOSITORY, check=True, capture_output=True)


def _run(trial: Trial) -> None:
    before, spools = _processes("host1"), _spools()
    environment = {**os.environ, MARK: secrets.token_hex(8)}
    driver = [sys.executable, "-c", AT_EVERY_ROUND, "compare", str(trial.folder / "plan.yaml"), "-o", str(results(trial))]
    log, cell = trial.folder / "driver.log", trial.cells[0]
    with log.open("wb") as output:
        command = [sys.executable, "-m", "runners.cli", "lab", "run", "--", *driver]
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output)
    deadline = time.monotonic() + ENDS_S
    while process.poll() is None and time.monotonic() < deadline:
        if (control(trial, cell) / "reached").exists() and not (control(trial, cell) / "planted").exists():
            _lose_host() if cell.fault == "host-gone" else _lose_ssh()
            (control(trial, cell) / "planted").touch()
            deadline = time.monotonic() + ENDS_S
        time.sleep(0.02)
    if process.poll() is None:
        trial.find(None, f"did not end within {ENDS_S:g} s")
        process.kill()
    _judge(trial, process.wait(), log.read_text(errors="replace"))
    deadline = time.monotonic() + LEAVES_S
    while (left := [*processes_of(environment[MARK]), *(_processes("host1") - before)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        trial.find(None, f"left: {left}")
    for spool in _spools() - spools:  # of the lost host: nobody can remove it
        shutil.rmtree(spool)


def _lose_host() -> None:
    os.kill(namespaces.init_of(LOST), signal.SIGKILL)


def _lose_ssh() -> None:
    """With all that it serves."""
    for pid in _processes(LOST):
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).name().startswith("sshd"):
                psutil.Process(pid).kill()


def _judge(trial: Trial, code: int, said: str) -> None:
    """Every arm fails, with the host and what ssh says of it; what was measured before is there."""
    records = {record.arm: record for record in ResultsFolder(results(trial)).records()}
    if code != 1 or "Traceback" in said or set(records) != {"well", str(trial.cells[0])}:
        trial.find(None, f"exit code {code}, records of {sorted(records)}: {said[-300:]}")
    for record in records.values():
        told = record.error
        if record.status != "failed" or told is None or told.hosts != [LOST] or f"host '{LOST}'" not in told.message:
            trial.find(None, f"{record.arm} is {record.status}: {told and (told.message[:200], told.hosts)}")
        if len(record.blocks) < (0 if trial.cells[0].stage == "gates" else MEASURED):
            trial.find(None, f"{record.arm}: {len(record.blocks)} blocks are on disk")
        judge_steps(trial, None, record)


def _processes(host: str) -> set[int]:
    return set(namespaces.processes_in([namespaces.networks()[host]]))


def _spools() -> set[Path]:
    return {path for path in Path(tempfile.gettempdir()).glob("ringside-*") if not path.name.startswith(PREFIX)}
