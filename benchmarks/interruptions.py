"""Is anything lost when a comparison is interrupted or killed, at whatever moment? Real
comparisons, signalled at random moments.

Sent are SIGINT, SIGTERM and SIGHUP, once and twice, and SIGKILL (to the driver alone), each at
``--moments`` moments spread over what an uninterrupted comparison takes: start, gates, blocks,
rebuilding, reports. Held is a moment if

- an interrupted comparison ends within 10 s, by the signal's exit code, without a traceback, and
  leaves no process;
- every block that was on disk is still there, and every record can be read;
- after SIGKILL, the same command completes, and its report has the arms, launches and columns of an
  uninterrupted one.

    python benchmarks/interruptions.py --output FOLDER [--moments 30] [--only SIGTERM-twice ...]
        [--seed 1]

Printed: a line for each moment that did not hold, then a table. The exit code is 1 if any did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import yaml

from measurement.records.results import ResultsFolder
from tests.kit.faults import AT_EVERY_ROUND, MARK, processes_of

MAX_S = 10.0
ENDS_S = 60.0
MAX_PAUSE_S = 2.0
"""Between two signals."""
KINDS = {
    f"{name}-{times}": (signal.Signals[name], times == "twice")
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    for times in ("once", "twice")
}
KINDS["SIGKILL"] = (signal.SIGKILL, False)
PLAN = {
    "name": "interrupted",
    "workload": "digits",
    "local_batch_size": 16,
    "world_size": 2,
    "baseline": "ddp",
    "arms": {
        name: {"backend": name, "transport": "gloo", "launcher": "spawn"}
        for name in ("ddp", "naive")
    },
    "measurement": {
        "rehearsal": "never",
        "launches": 2,
        "rounds": 8,
        "block_steps": 3,
        "control": False,
        "floor": False,
        "local_every": 0,
    },
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one moment."""

    at_s: float
    took_s: float
    """From the signal to the end of the driver."""
    faults: list[str]


def start(plan: Path, out: Path, *, mark: str) -> subprocess.Popen[str]:
    """A comparison that writes what it measured after every round."""
    command = [sys.executable, "-c", AT_EVERY_ROUND, "compare", str(plan), "-o", str(out)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {MARK: mark},
    )


def whole(plan: Path, out: Path) -> tuple[float, str]:
    """Run a comparison to its end: seconds, and what it said.

    Raises:
        RuntimeError: it did not complete.
    """
    began = time.monotonic()
    with start(plan, out, mark=secrets.token_hex(8)) as process:
        said, _ = process.communicate(timeout=300)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {said}")
    return time.monotonic() - began, said


def try_moment(
    kind: str, plan: Path, out: Path, *, at_s: float, again_s: float = 0.0, like: Path
) -> Outcome:
    """Signal a comparison after ``at_s`` seconds and look at what is left.

    Args:
        kind: of ``KINDS``.
        plan: its file.
        out: the results folder, which is not there yet.
        at_s: seconds after its start.
        again_s: of a signal that is sent twice: seconds between them.
        like: the results folder of the same plan, uninterrupted.
    """
    sent, is_twice = KINDS[kind]
    mark = secrets.token_hex(8)
    process = start(plan, out, mark=mark)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(at_s)
        has_begun, before, has_ended = out.exists(), blocks(out), process.poll() is not None
        began = time.monotonic()
        process.send_signal(sent)
        if is_twice:
            time.sleep(again_s)
            process.send_signal(sent)
        said, _ = process.communicate(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        return Outcome(at_s=at_s, took_s=ENDS_S, faults=[f"it did not end within {ENDS_S:g} s"])
    finally:
        process.kill()
    took_s = time.monotonic() - began
    # while Python imports, a signal ends it as it ends any program
    is_early = not has_begun and process.returncode == -sent
    faults = (
        []
        if sent == signal.SIGKILL or has_ended or is_early
        else faults_of_end(process.returncode, said, sent, took_s=took_s)
    )
    faults += [f"process {pid} is left" for pid in left(mark)]
    after = blocks(out)
    faults += [
        f"{name} had {count} blocks, now {after.get(name, 0)}"
        for name, count in before.items()
        if after.get(name, 0) < count
    ]
    if sent == signal.SIGKILL:
        try:
            whole(plan, out)
        except RuntimeError as error:
            faults.append(f"it does not go on: {error}")
        else:
            faults += (
                []
                if shape(out) == shape(like)
                else [f"the report has {shape(out)}, not {shape(like)}"]
            )
    return Outcome(at_s=at_s, took_s=took_s, faults=faults)


def faults_of_end(code: int, said: str, sent: signal.Signals, *, took_s: float) -> list[str]:
    """What was wrong with the end of an interrupted comparison."""
    found = [] if code in (0, 128 + sent) else [f"exit code {code}"]
    if "Traceback" in said:
        found.append(f"a traceback: {said[-2000:]}")
    return found + ([f"it took {took_s:.1f} s to end"] if took_s > MAX_S else [])


def blocks(out: Path) -> dict[str, int]:
    """How many blocks are on disk, by launch and arm.

    Raises:
        RecordError: a record is damaged.
    """
    folder = ResultsFolder(out)
    return {
        f"{record.launch}/{record.arm}": folder.steps(record)["turn"].nunique()
        for record in folder.records()
    }


def shape(out: Path) -> tuple[object, ...]:
    """The structure of a report: its arms, launches, columns and status."""
    found = json.loads((out / "comparison.json").read_text())
    arms = [(arm["name"], arm["status"]) for arm in found["arms"]]
    return sorted(found), arms, blocks(out), list(pd.read_csv(out / "report.csv").columns)


def left(mark: str) -> list[int]:
    """Processes that still live 10 s after; killed, and told."""
    _, alive = psutil.wait_procs(processes_of(mark), timeout=MAX_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return [process.pid for process in alive]


def main() -> int:
    """Try all moments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    # a shell has those that it starts in the background ignore SIGINT, and nohup SIGHUP
    for (
        sent,
        _,
    ) in KINDS.values():
        if sent != signal.SIGKILL:
            signal.signal(sent, signal.SIG_DFL)
    chosen.output.mkdir(parents=True)
    plan, like = chosen.output / "plan.yaml", chosen.output / "whole"
    plan.write_text(yaml.safe_dump(PLAN))
    length_s, _ = whole(plan, like)
    print(f"an uninterrupted comparison takes {length_s:.1f} s", flush=True)
    rng = random.Random(chosen.seed)
    rows = []
    for kind in chosen.only:
        outcomes = []
        for _ in range(chosen.moments):
            out = chosen.output / "out"
            at_s, again_s = rng.uniform(0.0, length_s), rng.uniform(0.0, MAX_PAUSE_S)
            outcomes.append(try_moment(kind, plan, out, at_s=at_s, again_s=again_s, like=like))
            for fault in outcomes[-1].faults:
                print(f"{kind} at {outcomes[-1].at_s:.2f} s: {fault}", flush=True)
            shutil.rmtree(out, ignore_errors=True)
        held = sum(not outcome.faults for outcome in outcomes)
        rows.append(
            {
                "signal": kind,
                "moments": len(outcomes),
                "held": held,
                "slowest_end_s": max(o.took_s for o in outcomes),
            }
        )
        print(rows[-1], flush=True)
    print(pd.DataFrame(rows).round(1).to_string(index=False))
    return int(any(row["held"] < row["moments"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
