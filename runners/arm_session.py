"""One launch of one arm, seen from the driver: its processes, its commands and replies, its freeze and its end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any

from measurement.errors import LaunchError
from measurement.plan import Plan
from measurement.record import Failure
from runners import processes
from runners.job import Command, Job, Reply, command_key, encode, job_key, reply_key
from runners.launchers import HostCommand, HostSlots, LaunchJob
from runners.planning import ArmSetup, cores, threads_per_rank
from runners.wardens import Wardens

POLL = timedelta(milliseconds=500)
SETTLE_S = 1.0
"""How long after a rank's death its launcher is given to say why."""
TRACE_S = 0.3
LOG_LINES = 30
EXIT_TIMEOUT_S = 30.0
WARDEN_TIMEOUT_S = 10.0


class ArmFailed(Exception):  # noqa: N818 - an outcome that the driver records, not an error of its own
    """The arm has no (further) timing in this launch."""

    def __init__(self, failure: Failure, *, status: str) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the ranks of all arms find the driver."""

    store: Any
    """The ``TCPStore`` the driver serves."""
    store_address: str
    wardens: Wardens
    mark: str


class ArmSession:
    """Starts the ranks, speaks to them, and leaves nothing behind."""

    def __init__(self, setup: ArmSetup, plan: Plan, *, launch: int, folder: Path, meeting: Meeting) -> None:
        self.setup = setup
        self.name = setup.name
        self.exit_codes: list[int | None] = []
        self.started_s = 0.0
        self._plan = plan
        self._launch = launch
        self._folder = folder
        self._meeting = meeting
        self._number = 0
        self._frozen = False
        self._mark = f"{meeting.mark}-{launch}-{setup.name}"
        self._launchers: list[Popen[bytes]] = []
        self.commands = setup.launcher.commands(self._launch_job())

    def _launch_job(self) -> LaunchJob:
        plan, meeting = self._plan, self._meeting
        threads = str(threads_per_rank(plan))
        arguments = {
            "--driver": meeting.store_address,
            "--wardens": meeting.wardens.address,
            "--token": meeting.wardens.token,
            "--arm": self.name,
            "--launch": str(self._launch),
            "--log-folder": str(self._folder.resolve()),
            "--threads": threads,
            "--affinity": plan.affinity,
        }
        return LaunchJob(
            world_size=plan.world_size,
            hosts=(HostSlots(host="localhost", slots=plan.world_size),),
            module="runners.worker",
            arguments=tuple(part for pair in arguments.items() for part in pair),
            environment={"OMP_NUM_THREADS": threads} | plan.environment | self.setup.environment,
            transport=self.setup.transport,
            python=sys.executable,
            as_root=_is_root(),
            oversubscribed=plan.world_size > cores(),
        )

    def start(self, job: Job) -> None:
        """Start the launcher; returns at once.

        Raises:
            ArmFailed: it cannot be started.
        """
        self._meeting.store.set(job_key(self.name, self._launch), encode(job))
        self.started_s = time.monotonic()
        self.send(Command(do="start"))
        for command in self.commands:
            try:
                self._launchers.append(processes.start(command, mark=self._mark, log=self._launcher_log))
            except OSError as error:
                raise self._failed(f"'{command.argv[0]}' cannot be started: {error}") from error

    def send(self, command: Command) -> None:
        """Give every rank its next command; ``receive`` takes the replies."""
        self._meeting.store.set(command_key(self.name, self._launch, self._number), encode(command))
        self._number += 1

    def receive(self, *, timeout_s: float) -> list[Reply]:
        """Every rank's reply to the last command, by rank.

        Raises:
            ArmFailed: a rank raised, died, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        ranks = range(self._plan.world_size)
        keys = [reply_key(self.name, self._launch, self._number - 1, rank) for rank in ranks]
        while not self._wait(keys):
            self._raise_if_dead(keys)
            if time.monotonic() > deadline:
                raise self._timed_out(keys, timeout_s)
        replies = [Reply.model_validate_json(self._meeting.store.get(key)) for key in keys]
        for key in keys:
            self._meeting.store.delete_key(key)
        self._raise_errors(dict(enumerate(replies)))
        return replies

    def await_ready(self) -> list[Reply]:
        """Every rank's first report, when all have connected and built their model.

        Raises:
            ArmFailed: see ``receive``; or a rank's warden has not reported.
        """
        replies = self.receive(timeout_s=self._plan.measurement.start_timeout_s)
        deadline = time.monotonic() + WARDEN_TIMEOUT_S
        while len(known := self._meeting.wardens.of(self.name, self._launch)) < self._plan.world_size:
            if time.monotonic() > deadline:
                missing = [rank for rank in range(self._plan.world_size) if rank not in known]
                raise self._failed(f"the wardens of ranks {missing} have not reported", ranks=missing)
            time.sleep(0.01)
        return replies

    def _wait(self, keys: Sequence[str]) -> bool:
        from torch.distributed import DistStoreError

        try:
            self._meeting.store.wait(list(keys), POLL)
        except DistStoreError:
            return False
        return True

    def _raise_if_dead(self, keys: Sequence[str]) -> None:
        """A rank's own words are better than its exit: look for those first."""
        gone = self._meeting.wardens.gone(self.name, self._launch)
        ended = [process for process in self._launchers if process.poll() is not None]
        if not gone and not ended:
            return
        time.sleep(SETTLE_S)
        if self._wait(keys):
            return
        heard = self._heard(keys)
        silent = [rank for rank in self._meeting.wardens.gone(self.name, self._launch) if rank not in heard]
        if silent:
            who = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
            raise self._failed(f"{who} died without a word; {self._launchers_fate()}", ranks=silent)
        self._raise_errors(heard)
        if ended:
            raise self._failed(f"the ranks did not report; {self._launchers_fate()}")

    def _launchers_fate(self) -> str:
        codes = [str(process.poll()) for process in self._launchers if process.poll() is not None]
        return f"the launcher ended with code {', '.join(codes)}" if codes else "the launcher still runs"

    def _timed_out(self, keys: Sequence[str], timeout_s: float) -> ArmFailed:
        silent = [rank for rank in range(self._plan.world_size) if rank not in self._heard(keys)]
        with contextlib.suppress(LaunchError):
            self._meeting.wardens.tell(self.name, self._launch, "trace")
            time.sleep(TRACE_S)
        ranks = ", ".join(map(str, silent))
        message = f"no answer from rank{'s' if len(silent) > 1 else ''} {ranks} within {timeout_s:g} s"
        failed = self._failed(message, ranks=silent)
        failed.status = "timeout"
        return failed

    def _heard(self, keys: Sequence[str]) -> dict[int, Reply]:
        store = self._meeting.store
        return {rank: Reply.model_validate_json(store.get(key)) for rank, key in enumerate(keys) if store.check([key])}

    def _raise_errors(self, replies: Mapping[int, Reply]) -> None:
        """The first to raise is the cause: its peers fail next, when their connection to it closes."""
        told = {rank: reply for rank, reply in replies.items() if reply.error}
        if told:
            first = min(told, key=lambda rank: told[rank].error_at_s)
            raise self._failed(f"rank {first}: {told[first].error}", ranks=[first])

    def _failed(self, message: str, *, ranks: Sequence[int] = ()) -> ArmFailed:
        hosts = {ward.host for rank, ward in self._meeting.wardens.of(self.name, self._launch).items() if rank in ranks}
        logs = [f"rank-{rank}.log" for rank in ranks] + [self._launcher_log.name]
        tails = {name: _tail(self._folder / name) for name in logs}
        failure = Failure(
            message=message,
            ranks=list(ranks),
            hosts=sorted(hosts),
            log_tail={name: text for name, text in tails.items() if text},
        )
        return ArmFailed(failure, status="failed")

    @property
    def _launcher_log(self) -> Path:
        return self._folder / "launcher.log"

    def freeze(self) -> None:
        """Stop every rank; returns when all have stopped."""
        if self._plan.measurement.freeze and not self._frozen:
            self._frozen = True
            self._tell("stop")

    def thaw(self) -> None:
        """Let every rank go on."""
        if self._frozen:
            self._frozen = False
            self._tell("continue")

    def _tell(self, word: str) -> None:
        try:
            self._meeting.wardens.tell(self.name, self._launch, word)
        except LaunchError as error:
            raise self._failed(str(error)) from error

    def ask_to_finish(self) -> None:
        """Have the ranks report a last time and end by themselves; ``finish`` waits for it."""
        self.thaw()
        self.send(Command(do="finish"))

    def finish(self) -> list[Reply]:
        """The last reports, when the ranks have ended.

        Raises:
            ArmFailed: they do not answer.
        """
        replies = self.receive(timeout_s=self._plan.measurement.block_timeout_s)
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while any(process.poll() is None for process in self._launchers) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.end()
        return replies

    def end(self) -> None:
        """Whatever still runs of this arm ends now; safe to call twice."""
        if not self.exit_codes:
            self.exit_codes = [process.poll() for process in self._launchers]
        with contextlib.suppress(LaunchError):
            if any(process.poll() is None for process in self._launchers):
                self._meeting.wardens.tell(self.name, self._launch, "kill")
        for process in self._launchers:
            processes.end(process)
        self._meeting.wardens.release(self.name, self._launch)
        processes.end_marked(self._mark)

    def commands_as_run(self) -> list[dict[str, Any]]:
        """For the record: host, argv and environment, without the one-time token."""
        token = self._meeting.wardens.token
        return [_as_record(command, token) for command in self.commands]


def _as_record(command: HostCommand, token: str) -> dict[str, Any]:
    argv = ["<token>" if part == token else part for part in command.argv]
    return {"host": command.host, "argv": argv, "environment": dict(command.environment)}


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES:])
