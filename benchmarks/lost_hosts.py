"""The cells of the fault matrix that need two hosts: ssh is lost, a host is gone, or the port at
which ranks meet is taken.

Hosts are lost while a rank there is held at a stage. Every arm has a rank on the lost host, so that
all fail. Each cell makes a lab of its own, since the host does not come back.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import yaml

from measurement.records.results import ResultsFolder
from runners.session.endpoint import KEY_PREFIX
from tests.kit.faults import (
    AT_EVERY_ROUND,
    ENDS_S,
    KINDS,
    LEAVES_S,
    MARK,
    MEASURED,
    MEASUREMENT,
    REPOSITORY,
    ROUNDS,
    Cell,
    Trial,
    arm_of,
    control,
    judge_steps,
    processes_of,
    results,
)
from tests.kit.lab import namespaces

LOST = "host2"
PORT_TAKEN = Path(__file__).parent / "plugins" / "port_taken.py"
NOTICED_S = 30.0
"""Within which a lost host is told of."""
FAULTS = {"ssh-lost": ("gates", "block"), "host-gone": ("gates", "block"), "port-taken": ("start",)}
"""At which stages each can happen; another arm waits at each but the start."""


def feasible(kinds: Iterable[str] = tuple(KINDS)) -> list[Cell]:
    """Every cell there can be.

    Of our launchers only those of ``ddp-gloo`` are given a port to meet at.
    """
    cells = [
        Cell(fault=fault, stage=stage, kind=kind)
        for fault, stages in FAULTS.items()
        for stage in stages
        for kind in kinds
    ]
    return [cell for cell in cells if cell.fault != "port-taken" or cell.kind == "ddp-gloo"]


def plant(cell: Cell, folder: Path) -> Trial:
    """Run a comparison over two hosts, in which this happens, and judge it."""
    trial = Trial(cells=[cell], folder=folder)
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    for one in (None, cell):
        control(trial, one).mkdir(parents=True)
    arms = {"well": arm_of(trial), str(cell): arm_of(trial, cell)}
    if cell.fault == "port-taken":
        arms[str(cell)] |= {
            "launcher": f"{PORT_TAKEN}:PortTaken",
            "environment": arms["well"]["environment"],
        }
    measurement = MEASUREMENT | {"rehearsal": "never"}
    plan = {
        "name": "lost",
        "workload": "digits",
        "local_batch_size": 16,
        "hosts": ["host1:1", f"{LOST}:1"],
        "baseline": "well",
    }
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
    subprocess.run(
        [sys.executable, "-m", "tests.kit.lab", *arguments],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )


def _run(trial: Trial) -> None:
    before, spools = _processes("host1"), _spools()
    environment = {**os.environ, MARK: secrets.token_hex(8)}
    driver = [
        sys.executable,
        "-c",
        AT_EVERY_ROUND,
        "compare",
        str(trial.folder / "plan.yaml"),
        "-o",
        str(results(trial)),
    ]
    log, cell = trial.folder / "driver.log", trial.cells[0]
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.kit.lab", "run", "--", *driver]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output
        )
    deadline, lost_s, noticed_s = time.monotonic() + ENDS_S, 0.0, 0.0
    while process.poll() is None and time.monotonic() < deadline:
        held = cell.fault != "port-taken" and (control(trial, cell) / "reached").exists()
        if held and not (control(trial, cell) / "planted").exists():
            _lose_host() if cell.fault == "host-gone" else _lose_ssh()
            (control(trial, cell) / "planted").touch()
            lost_s = time.monotonic()
            deadline = lost_s + ENDS_S
        if lost_s and not noticed_s and b" failed: " in log.read_bytes():
            noticed_s = time.monotonic()
        time.sleep(0.02)
    if noticed_s - lost_s > NOTICED_S:
        trial.find(None, f"told of after {noticed_s - lost_s:.0f} s")
    if process.poll() is None:
        trial.find(None, f"did not end within {ENDS_S:g} s")
        process.kill()
    code, said = process.wait(), log.read_text(errors="replace")
    if cell.fault == "port-taken":
        _judge_port(trial, code, said)
    else:
        _judge(trial, code, said)
    deadline = time.monotonic() + LEAVES_S
    while (
        left := [*processes_of(environment[MARK]), *(_processes("host1") - before)]
    ) and time.monotonic() < deadline:
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
        if (
            record.status != "failed"
            or told is None
            or told.hosts != [LOST]
            or f"host '{LOST}'" not in told.message
        ):
            trial.find(
                None,
                f"{record.arm} is {record.status}: {told and (told.message[:200], told.hosts)}",
            )
        if len(record.blocks) < (ROUNDS if trial.cells[0].stage == "gates" else MEASURED):
            trial.find(None, f"{record.arm}: {len(record.blocks)} blocks are on disk")
        judge_steps(trial, None, record)


def _judge_port(trial: Trial, code: int, said: str) -> None:
    """The arm fails with the library's words or the launcher's; the other one is as good as
    ever.
    """
    records = {record.arm: record for record in ResultsFolder(results(trial)).records()}
    well, taken = records.get("well"), records.get(str(trial.cells[0]))
    if (
        code != 1
        or "Traceback" in said
        or well is None
        or well.status != "ok"
        or len(well.blocks) != ROUNDS
    ):
        trial.find(None, f"exit code {code}, {well and (well.status, well.error)}: {said[-300:]}")
    in_use = "EADDRINUSE|address already in use|port [0-9]+ of host1 is in use"
    if (
        taken is None
        or taken.error is None
        or not re.search(in_use, str(taken.error), re.IGNORECASE)
    ):
        trial.find(None, f"named as {taken and (taken.status, taken.error)}")


def _processes(host: str) -> set[int]:
    return set(namespaces.processes_in([namespaces.networks()[host]]))


def _spools() -> set[Path]:
    return {
        path
        for path in Path(tempfile.gettempdir()).glob("ringside-*")
        if not path.name.startswith(KEY_PREFIX)
    }
