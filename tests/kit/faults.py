"""The fault matrix: what can go wrong, at each stage of a comparison, under each kind of arm.

``feasible`` lists the cells, ``plant`` runs a comparison in which some of them happen and judges
it. Cells of one arm share a comparison, each in an arm of its own beside one that is well; what
befalls the driver or its disk has a comparison to itself. All are judged alike:

- the comparison ends in bounded time;
- the failed arm's record names the cause: the rank, the launcher's exit code, the exception;
- the arm that is well finishes all its rounds;
- rounds measured before are on disk and counted; after a killed driver or a full disk, the same
  command goes on with them;
- nothing is left: no process, stopped or not, no file in /dev/shm or in the temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from measurement.records.results import ResultsFolder
from runners.launchers.base import RUN_ID
from tests.conftest import TINY

REPOSITORY = Path(__file__).parent.parent.parent
PLUGIN = Path(__file__).parent / "plugins" / "faulty.py"
STAGES = ("rehearsal", "start", "block", "finish", "gates", "waiting", "report")
ROUNDS = 4
MEASURED = 2
"""Rounds that are over when the third begins, in which faults of blocks happen."""
MEASUREMENT = {
    "launches": 1,
    "rounds": ROUNDS,
    "block_steps": 2,
    "local_every": 0,
    "floor": False,
    "control": False,
}
BLOCK_TIMEOUT_S = 8
START_TIMEOUT_S = 40
STOPPED_S = 4.0
ENDS_S = 105.0
EACH_ENDS_S = 15.0
"""Within these, the second for each arm that fails, a comparison ends, beside what its time-outs
allow."""
LEAVES_S = 15.0
MAX_RECORD_BYTES = 1 << 20
MARK = "RINGSIDE_FAULTS_RUN"
AT_EVERY_ROUND = "import runners.driver.launch as launch; launch.KEEP_EVERY_S = 0.0; from runners.cli import main; main()"


KINDS = {
    "ddp-gloo": ("FaultyDDP", "gloo", "spawn"),
    "ddp-mpi": ("FaultyDDP", "mpi", "mpirun"),
    "horovod-gloo": ("FaultyHorovod", "gloo", "horovodrun"),
    "horovod-mpi": ("FaultyHorovod", "mpi", "horovodrun"),
}
"""Backend, transport and launcher of each kind of arm."""
LAUNCHERS = {"exits-at-once": "ExitsAtOnce", "never-starts": "NeverStarts"}
IN_RANK = ("raise", "lock", "out-of-memory", "nan", "flood", "cut-off")
OF_DRIVER = ("kill-driver", "stop-driver", "disk-full", "read-only")
NEED_MOUNTS = ("disk-full", "read-only")
GOES_ON = ("kill-driver", *NEED_MOUNTS)
"""After these the same command is given again."""
STARTING = ("rehearsal", "start")
HUNG = ("stop-rank", "lock", "never-starts")
"""The driver has to wait for a time-out."""

FROM_OUTSIDE = ("kill-rank", "kill-launcher", "stop-rank")
FAULTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FROM_OUTSIDE, STAGES[:6]),
    # a waiting rank does nothing itself
    **dict.fromkeys(("raise", "lock", "out-of-memory", "flood", "cut-off"), STAGES[:5]),
    "nan": ("gates", "block"),
    "exits-at-once": ("start",),
    "never-starts": ("start",),
    **dict.fromkeys(OF_DRIVER, STAGES),
}
"""At which stages each can happen."""

CAUSES = {
    "kill-rank": ("failed", r"^rank 1 died without reporting an error"),
    "kill-launcher": ("failed", r"launcher ended with code (-9|137)"),
    "stop-rank": ("timeout", r"^no answer from ranks? .*1"),
    "raise": ("failed", r"^rank 1: ValueError: planted"),
    "lock": ("timeout", r"^no answer from ranks? .*1"),
    "out-of-memory": ("failed", r"^rank 1: MemoryError"),
    "flood": ("failed", r"^rank 1: ValueError: planted"),
    "nan": ("wrong|failed", r"(?i)nan|finite"),
    "cut-off": ("failed", r"^(rank 1|ranks 0, 1) died without reporting an error"),
    "exits-at-once": ("failed", r"^the ranks did not report; the launcher ended with code 0"),
    "never-starts": ("timeout", r"^no answer from ranks 0, 1 within"),
}
"""Status and message of the arm's record."""
HARMLESS = {("stop-rank", "waiting"), ("nan", "block")}
"""A waiting rank is stopped anyway, and goes on with its arm; steps take as long whatever their
loss is."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A fault at a stage of an arm."""

    fault: str
    stage: str
    kind: str

    def __str__(self):
        return f"{self.fault}.{self.stage}.{self.kind}"

    @property
    def is_alone(self):
        """Whether it needs a comparison to itself."""
        return self.fault in OF_DRIVER

    @property
    def group(self):
        """Cells of one comparison agree in it: whether arms are rehearsed, and whether the time-out
        of a start counts."""
        return self.stage == "rehearsal", self.fault in HUNG and self.stage in STARTING

    @property
    def blocks(self):
        """How many blocks its arm can have measured."""
        if (self.fault, self.stage) in HARMLESS or self.stage in ("finish", "gates", "report"):
            return {ROUNDS}
        if self.stage == "waiting":
            return {MEASURED, MEASURED + 1}
        before = MEASURED if self.stage == "block" else 0
        # its ranks may end their block first
        return {before, before + 1} if self.fault == "kill-launcher" else {before}


@dataclass(kw_only=True)
class Trial:
    """A comparison and what became of its cells."""

    cells: Sequence[Cell]
    folder: Path
    broken: dict[Cell, list[str]] = field(default_factory=dict)
    """By cell: the invariants that did not hold."""
    seconds: float = 0.0

    def find(self, cell, what):
        """Write down that an invariant is broken, of a cell or of all."""
        for each in [cell] if cell else self.cells:
            self.broken.setdefault(each, []).append(what)


def feasible(kinds=tuple(KINDS)):
    """Every cell there can be."""
    return [
        Cell(fault=fault, stage=stage, kind=kind)
        for fault, stages in FAULTS.items()
        for kind in kinds
        for stage in stages
    ]


def plant(cells, folder):
    """Run a comparison in which these cells happen, and judge it. ``folder`` is made again."""
    trial = Trial(cells=list(cells), folder=folder)
    began = time.monotonic()
    with _surroundings(trial) as environment:
        code, output = _run(trial, environment)
        _judge(trial, code, output)
        if not trial.broken and trial.cells[0].fault in GOES_ON:
            _go_on(trial, environment)
    trial.seconds = time.monotonic() - began
    return trial


# --- the comparison


def _plan(trial):
    """One arm for each cell, and one that is well; in it a rank is held where a fault befalls
    waiting arms, or the driver."""
    cells = trial.cells
    stages = {cell.stage for cell in cells}
    arms = {"well": arm_of(trial, held_at="block" if "waiting" in stages else "none")}
    # where no candidate passes it, nothing is measured
    if cells[0].stage == "rehearsal" and not cells[0].is_alone:
        arms["well-too"] = arm_of(trial)
    for cell in cells:
        arms[str(cell)] = arm_of(trial, cell)
    hangs = any(cell.group[1] for cell in cells)
    measurement = {
        **MEASUREMENT,
        "block_timeout_s": BLOCK_TIMEOUT_S,
        "start_timeout_s": START_TIMEOUT_S if hangs else 4 * START_TIMEOUT_S,
        "rehearsal": "always" if "rehearsal" in stages else "never",
    }
    plan = {**TINY, "baseline": "well", "arms": arms, "measurement": measurement}
    if "report" in stages:
        plan["reports"] = ["markdown", f"{PLUGIN}:HoldsTheReports"]
    return plan


def arm_of(trial, cell=None, *, held_at="none"):
    """The arm of a cell, or one that is well.

    Faults from outside are planted while a rank is held at the stage."""
    backend, transport, launcher = KINDS[cell.kind if cell else "ddp-gloo"]
    in_rank = "hold"
    if cell:
        held_at = {"waiting": "none", "rehearsal": "start"}.get(cell.stage, cell.stage)
        in_rank = cell.fault if cell.fault in IN_RANK else "hold"
        if cell.fault in LAUNCHERS:
            launcher = f"{PLUGIN}:{launcher.capitalize()}{LAUNCHERS[cell.fault]}"
    place = str(control(trial, cell))
    environment = {"RINGSIDE_FAULT": f"{in_rank}.{held_at}", "RINGSIDE_FAULTS": place}
    arm = {"backend": f"{PLUGIN}:{backend}", "transport": transport, "launcher": launcher}
    return {**arm, "environment": environment}


def control(trial, cell):
    """The folder in which rank and planter leave messages for each other."""
    return trial.folder / "control" / (str(cell) if cell else "well")


def results(trial):
    return trial.folder / "disk" / "out"


@contextlib.contextmanager
def _surroundings(trial):
    """Folders, a disk of its own for what needs one, and a temporary folder; judged and removed
    afterwards."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    for cell in (None, *trial.cells):
        control(trial, cell).mkdir(parents=True)
    (trial.folder / "disk").mkdir()
    temporary = Path(tempfile.mkdtemp(prefix="rf"))  # short: Open MPI makes sockets in it
    (trial.folder / "plan.yaml").write_text(yaml.safe_dump(_plan(trial), sort_keys=False))
    held = {"TMPDIR": str(temporary), "RINGSIDE_FAULTS": str(control(trial, trial.cells[0]))}
    environment = {**os.environ, **held, MARK: secrets.token_hex(8)}
    shared = _shared_memory()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        if trial.cells[0].fault == "disk-full":
            small = ["-t", "tmpfs", "-o", "size=48m", "tmpfs"]
            stack.enter_context(mounted(*small, trial.folder / "disk"))
        stack.callback(_unmount, results(trial))
        yield environment
        _find_what_is_left(trial, environment, temporary, shared)


@contextlib.contextmanager
def mounted(*arguments):
    """What ``mount`` does of these arguments, for a while."""
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", arguments[-1]], check=True)


def _unmount(folder):
    # os.path.ismount does not know one that is bound to itself
    if f" {folder} " in Path("/proc/self/mounts").read_text():
        subprocess.run(["umount", "--lazy", folder], check=True)


def can_mount():
    """Whether this user may mount, which a full disk and a read-only one need."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted("-t", "tmpfs", "tmpfs", folder):
                return True
        except subprocess.CalledProcessError:
            return False


def _run(trial, environment):
    """Run it, plant what comes from outside, and return the exit code (None: it did not end) and
    what it said."""
    log = trial.folder / "driver.log"
    waits = sum(
        BLOCK_TIMEOUT_S if cell.stage not in STARTING else START_TIMEOUT_S
        for cell in trial.cells
        if cell.fault in HUNG
    )
    limit_s = ENDS_S + EACH_ENDS_S * len(trial.cells) + waits
    deadline = time.monotonic() + limit_s
    compare = ["compare", trial.folder / "plan.yaml", "-o", results(trial)]
    with log.open("ab") as output:
        driver = subprocess.Popen(
            [sys.executable, "-c", AT_EVERY_ROUND, *compare],
            cwd=REPOSITORY,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while driver.poll() is None and time.monotonic() < deadline:
            _plant_where_held(trial, psutil.Process(driver.pid))
            time.sleep(0.02)
        if driver.poll() is None:
            trial.find(None, f"did not end within {limit_s:g} s")
    finally:
        driver.kill()
        code = driver.wait()
    return code, log.read_text(errors="replace")


def _plant_where_held(trial, driver):
    """At each stage that a rank or the driver is held at: do what comes from outside, then let it
    go on."""
    for cell in (None, *trial.cells):
        folder = control(trial, cell)
        if not (folder / "reached").exists() or (folder / "planted").exists():
            continue
        for each in [cell] if cell else [each for each in trial.cells if each.stage == "waiting"]:
            with contextlib.suppress(psutil.NoSuchProcess):
                _plant(trial, each, driver)
        (folder / "planted").touch()


def _plant(trial, cell, driver):
    """What comes from outside."""
    if cell.fault in ("kill-rank", "stop-rank"):
        rank = psutil.Process(int((control(trial, cell) / "rank-1.pid").read_text()))
        rank.kill() if cell.fault == "kill-rank" else rank.suspend()
    elif cell.fault == "kill-launcher":
        for child in driver.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # another arm's, which has just ended
                if f"-{cell}-" in child.environ().get(RUN_ID, ""):
                    child.kill()
    elif cell.fault == "kill-driver":
        driver.kill()
    elif cell.fault == "stop-driver":
        driver.suspend()
        time.sleep(STOPPED_S)
        driver.resume()
    elif cell.fault == "disk-full":
        with (
            contextlib.suppress(OSError),
            (trial.folder / "disk" / "full").open("wb", buffering=0) as file,
        ):
            while file.write(bytes(4096)):
                pass
    else:  # of a mount that is written to it cannot be said that it is read-only; so the folder is mounted over itself
        for options in (["--bind", results(trial)], ["-o", "remount,bind,ro"]):
            subprocess.run(["mount", *options, results(trial)], check=True)


# --- the judgement


def _judge(trial, code, output):
    if trial.broken:  # it did not end
        return
    if trial.cells[0].is_alone:
        _judge_driver(trial, trial.cells[0], code, output)
        return
    records = {record.arm: record for record in ResultsFolder(results(trial)).records()}
    harmless = all((cell.fault, cell.stage) in HARMLESS for cell in trial.cells)
    if code != (0 if harmless else 1):
        trial.find(None, f"exit code {code}: {output[-300:]}")
    if not (results(trial) / "comparison.json").exists():
        trial.find(None, "there is no report")
        return
    report = json.loads((results(trial) / "comparison.json").read_text())
    reported = {arm["name"]: arm for arm in report["arms"]}
    for cell in trial.cells:
        if str(cell) not in records or str(cell) not in reported:
            trial.find(cell, "no record, or not in the report")
        else:
            _judge_arm(trial, cell, records[str(cell)], reported[str(cell)])
    well = records.get("well")
    if well is None or well.status != "ok" or not well.complete or len(well.blocks) != ROUNDS:
        how = well and (well.status, well.error, len(well.blocks))
        trial.find(None, f"the arm that is well did not finish: {how}")
    else:
        judge_steps(trial, None, well)


def _judge_arm(trial, cell, record, reported):
    """A failed arm: its record names the cause, and what it measured before is there."""
    if record.status != reported["status"]:
        trial.find(cell, f"the record says {record.status}, the report {reported['status']}")
    at_the_end = cell.fault == "kill-launcher" and cell.stage == "finish" and record.status == "ok"
    if at_the_end and record.exit_codes == [-signal.SIGKILL]:
        pass  # its ranks, which had measured everything, were done before they could be missed
    elif (cell.fault, cell.stage) in HARMLESS:
        if record.status != "ok":
            trial.find(cell, f"failed: {record.error}")
    else:
        status, message = CAUSES[cell.fault]
        error = record.error.message if record.error else ""
        if not re.fullmatch(status, record.status) or not re.search(message, error):
            trial.find(cell, f"named as {record.status}: {error[:300]}")
    if len(record.blocks) not in cell.blocks:
        trial.find(cell, f"{len(record.blocks)} blocks are on disk, not {cell.blocks}")
    judge_steps(trial, cell, record)
    launch = ResultsFolder(results(trial)).launch_folder(0, record.arm)
    size = (launch / "record.json").stat().st_size
    if size > MAX_RECORD_BYTES:
        trial.find(cell, f"record.json has {size} bytes")


def judge_steps(trial, cell, record):
    turns = ResultsFolder(results(trial)).steps(record)["turn"].nunique()
    if turns != len(record.blocks):
        told = f"the record tells of {len(record.blocks)}"
        trial.find(cell, f"{record.arm}: steps of {turns} blocks are on disk, {told}")


def _judge_driver(trial, cell, code, output):
    """What befalls the driver or its disk: it ends as it should, and goes on with what is on
    disk."""
    expected = {"kill-driver": -signal.SIGKILL, "stop-driver": 0}.get(cell.fault, 2)
    lines = [line for line in output.splitlines() if line.startswith("ringside: ")]
    if code != expected or "Traceback" in output or len(lines) != (1 if expected == 2 else 0):
        trial.find(cell, f"exit code {code}, {lines}, not {expected}: {output[-400:]}")
    if (
        cell.fault == "disk-full"
        and "cannot be written: No space left on device; earlier files are complete" not in output
    ):
        trial.find(cell, f"the line says nothing of the disk: {lines}")
    (trial.folder / "disk" / "full").unlink(missing_ok=True)
    _unmount(results(trial))
    kept = [record for record in ResultsFolder(results(trial)).records() if record.status == "ok"]
    least = min(len(record.blocks) for record in kept) if len(kept) == 2 else 0
    before = {"rehearsal": 0, "start": 0, "waiting": MEASURED, "block": MEASURED}
    wanted = before.get(cell.stage, ROUNDS) if expected else ROUNDS
    if least < wanted:
        arms = [record.arm for record in kept]
        trial.find(cell, f"{least} rounds of {arms} are on disk, not {wanted}")
    for record in kept:
        judge_steps(trial, cell, record)


def _go_on(trial, environment):
    """The same command again, when the fault is over: it comes to a good end."""
    (trial.folder / "driver.log").rename(trial.folder / "driver-before.log")
    code, output = _run(trial, environment)
    records = ResultsFolder(results(trial)).records()
    rounds = [len(record.blocks) for record in records if record.complete]
    if code != 0 or rounds != [ROUNDS, ROUNDS]:
        told = f"exit code {code}, rounds of arms that are complete: {rounds}: {output[-400:]}"
        trial.find(None, f"the same command does not go on: {told}")


def _find_what_is_left(trial, environment, temporary, shared):
    """Processes, and files where processes leave them.

    What is left is ended, so that the next trial is not blamed for it."""
    deadline = time.monotonic() + LEAVES_S
    while (left := processes_of(environment[MARK])) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        trial.find(None, f"left: {left}")
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    files = [
        *temporary.glob("ringside-*"),
        *(one for one in temporary.rglob("*") if not one.is_dir()),
    ]
    if files:
        trial.find(None, f"left in the temporary folder: {files[:8]}")
    new = _shared_memory() - shared
    if new and (unused := new - _mapped_by_anybody(new)):
        trial.find(None, f"left in /dev/shm: {sorted(unused)[:8]}")


def processes_of(mark):
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def _shared_memory():
    """Without semaphores of ``multiprocessing``: nothing says whose they are, and other tests, run
    beside these, leave some."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.mp-")}


def _mapped_by_anybody(names):
    """Which files of /dev/shm a live process uses, ours or another's."""
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text()
            mapped |= {name for name in names if f"/dev/shm/{name}" in text}
    return mapped
