"""One arm in one launch, seen from the driver: start it, send commands, receive replies, freeze, thaw, end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from measurement.errors import LaunchError
from measurement.records.host_use import HostCounters, HostUse
from runners.driver.arm_processes import ArmProcesses
from runners.driver.build_launch_job import as_record, build_launch_job
from runners.driver.diagnosis import SETTLE_S, ArmFailed, Diagnosis
from runners.driver.endpoint import DriverEndpoint
from runners.planning.arms import ArmSetup
from runners.planning.left_variables import disturbances_of
from runners.processes.remote_results import kept_replies, log_name
from runners.protocol.messages import (
    Command,
    ErrorReply,
    FinishCommand,
    FinishedReply,
    Job,
    Message,
    Reply,
    StartCommand,
    StartedReply,
    command_key,
    decode_reply,
    encode,
    job_key,
    reply_key,
)

POLL = timedelta(milliseconds=500)
EXIT_TIMEOUT_S = 30.0
SUPERVISOR_TIMEOUT_S = 10.0
Expected = TypeVar("Expected", bound=Message)


@dataclass(frozen=True, kw_only=True)
class Exchange(Generic[Expected]):
    """What came of a command."""

    replies: list[Expected]
    """Every rank's, by rank."""
    took_s: float
    """From the command to the last reply."""
    hosts: dict[str, HostUse]
    """What the hosts did meanwhile; those are missing that cannot be read."""


class ArmSession:
    """Starts the ranks of an arm and talks to them; ``end`` leaves nothing behind."""

    def __init__(self, setup: ArmSetup, *, launch: int, folder: Path, endpoint: DriverEndpoint) -> None:
        self.setup = setup
        self.name = setup.name
        self.started_s = 0.0
        self._plan = plan = setup.plan
        self._launch = launch
        self._folder = folder
        self._endpoint = endpoint
        self._number = 0
        self._frozen = False
        self._doomed: ArmFailed | None = None
        """The failure to report with the next command: the arm has died, but its last block could be saved."""
        run_id = f"{endpoint.run_id}-{launch}-{setup.name}"
        placement = endpoint.placement.of(plan.world_size)
        job = build_launch_job(
            setup, launch=launch, placement=placement, run_id=run_id, driver=self._addresses(), log_folder=folder
        )
        self.commands = setup.launcher.commands(job)
        self._processes = ArmProcesses(self.commands, run_id=run_id, folder=folder, placement=placement)
        self._diagnosis = Diagnosis(
            setup.name,
            launch,
            supervisors=endpoint.supervisors,
            processes=self._processes,
            placement=placement,
            variables=disturbances_of(setup),
        )

    def _addresses(self) -> dict[str, str]:
        endpoint = self._endpoint
        return {
            "--driver": endpoint.store_address,
            "--supervisors": endpoint.supervisors.address,
            "--key-file": str(endpoint.key_file),
        }

    def log_of(self, rank: int) -> Path:
        """Where a rank's log lies, or will lie once it was fetched from its host."""
        return self._folder / log_name(rank)

    @property
    def exit_codes(self) -> list[int | None]:
        """Of the launchers; empty until ``end`` was called."""
        return self._processes.exit_codes

    def start(self, job: Job) -> None:
        """Start the launcher; returns at once.

        Raises:
            ArmFailed: it cannot be started.
        """
        self._endpoint.store.set(job_key(self.name, self._launch), encode(job))
        self.started_s = time.monotonic()
        self.send(StartCommand())
        try:
            self._processes.start()
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error

    def send(self, command: Command) -> None:
        """Give every rank its next command; ``receive`` takes the replies."""
        if self._doomed is not None:
            raise self._doomed
        self._endpoint.store.set(command_key(self.name, self._launch, self._number), encode(command))
        self._number += 1

    def receive(self, expected: type[Expected], *, timeout_s: float) -> list[Expected]:
        """Every rank's reply to the last command, by rank.

        Args:
            expected: the kind of reply that the command asks for.
            timeout_s: for the slowest rank.

        Raises:
            ArmFailed: a rank raised, died, or did not answer in time.
        """
        replies = self._replies(timeout_s=timeout_s)
        _raise(self._diagnosis.of_errors({rank: reply for rank, reply in enumerate(replies) if isinstance(reply, ErrorReply)}))
        answers: list[Expected] = [reply for reply in replies if isinstance(reply, expected)]
        assert len(answers) == len(replies), f"{expected.__name__} expected, {replies} received"
        return answers

    def _replies(self, *, timeout_s: float) -> list[Reply]:
        """Wait for all ranks; a block whose replies were lost on the way is taken from what the ranks kept of it."""
        deadline = time.monotonic() + timeout_s
        ranks = range(self._plan.world_size)
        keys = [reply_key(self.name, self._launch, self._number - 1, rank) for rank in ranks]
        try:
            while not self._wait(keys):
                self._raise_if_dead(keys)
                if time.monotonic() > deadline:
                    raise self._timed_out(keys, timeout_s)
        except ArmFailed as failed:
            kept = kept_replies(self._processes.timings(), number=self._number - 1, world_size=len(ranks))
            if kept is None:
                raise
            self._doomed = failed
            return [decode_reply(reply) for reply in kept]
        replies = [self._read(key) for key in keys]
        for key in keys:
            self._endpoint.store.remove(key)
        return replies

    def _read(self, key: str) -> Reply:
        """Read a rank's reply.

        Raises:
            ArmFailed: it is no rank's.
        """
        try:
            return decode_reply(self._endpoint.store.get(key))
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error

    def exchange(self, command: Command, expected: type[Expected], *, timeout_s: float) -> Exchange[Expected]:
        """Thaw the ranks, give them a command, wait for all replies and freeze them again.

        Raises:
            ArmFailed: see ``receive``.
        """
        before = self._counters()
        self.thaw()
        began = time.monotonic()
        self.send(command)
        replies = self.receive(expected, timeout_s=timeout_s)
        took_s = time.monotonic() - began
        self.freeze()
        hosts = {host: after.since(before[host]) for host, after in self._counters().items() if host in before}
        return Exchange(replies=replies, took_s=took_s, hosts=hosts)

    def _counters(self) -> dict[str, HostCounters]:
        """Of every host of the arm, read outside its ranks while they wait."""
        if self._doomed is not None:
            return {}
        try:
            return self._endpoint.supervisors.counters(self.name, self._launch)
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error

    def await_ready(self) -> list[StartedReply]:
        """Wait until all ranks have connected and built their model; return their first reports.

        Raises:
            ArmFailed: see ``receive``; or a rank's supervisor has not reported.
        """
        replies = self.receive(StartedReply, timeout_s=self._plan.measurement.start_timeout_s)
        deadline = time.monotonic() + SUPERVISOR_TIMEOUT_S
        while len(known := self._endpoint.supervisors.of(self.name, self._launch)) < self._plan.world_size:
            if time.monotonic() > deadline:
                missing = [rank for rank in range(self._plan.world_size) if rank not in known]
                raise self._diagnosis.failed(f"the supervisors of ranks {missing} have not reported", ranks=missing)
            time.sleep(0.01)
        return replies

    def _wait(self, keys: Sequence[str]) -> bool:
        return self._endpoint.store.wait(keys, POLL)

    def _raise_if_dead(self, keys: Sequence[str]) -> None:
        """An error that a rank reports says more than its exit code, so give it time to arrive."""
        if not self._diagnosis.looks_dead():
            return
        time.sleep(SETTLE_S)
        if not self._wait(keys):
            _raise(self._diagnosis.of_death(self._heard(keys)))

    def _timed_out(self, keys: Sequence[str], timeout_s: float) -> ArmFailed:
        silent = [rank for rank in range(self._plan.world_size) if rank not in self._heard(keys)]
        return self._diagnosis.of_silence(silent, timeout_s=timeout_s)

    def _heard(self, keys: Sequence[str]) -> dict[int, Reply]:
        return {rank: self._read(key) for rank, key in enumerate(keys) if self._endpoint.store.has(key)}

    def freeze(self) -> None:
        """Stop every rank; returns when all have stopped."""
        if self._plan.measurement.freeze and not self._frozen and self._doomed is None:
            self._frozen = True
            self._tell("stop")

    def thaw(self) -> None:
        """Let every rank go on.

        Raises:
            ArmFailed: none does, see ``receive``; or their launcher has ended.
        """
        if self._doomed is not None:
            raise self._doomed
        _raise(self._diagnosis.of_lost_launcher())
        if self._frozen:
            self._frozen = False
            self._tell("continue")

    def _tell(self, word: str) -> None:
        try:
            self._endpoint.supervisors.tell(self.name, self._launch, word)
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error

    def ask_to_finish(self) -> None:
        """Ask the ranks for a last report, after which they end by themselves; ``finish`` waits for both."""
        self.thaw()
        self.send(FinishCommand())

    def finish(self) -> list[FinishedReply]:
        """Wait for the last reports and for the ranks to end.

        Raises:
            ArmFailed: they do not answer.
        """
        replies = self.receive(FinishedReply, timeout_s=self._plan.measurement.block_timeout_s)
        self._processes.wait(timeout_s=EXIT_TIMEOUT_S)
        self.end()
        return replies

    def end(self) -> None:
        """End whatever still runs of this arm. Calling it twice is harmless."""
        self._processes.end(kill_ranks=self._kill_ranks)
        self._endpoint.supervisors.release(self.name, self._launch)

    def _kill_ranks(self) -> None:
        with contextlib.suppress(LaunchError):
            self._endpoint.supervisors.tell(self.name, self._launch, "kill")

    def commands_as_run(self) -> list[dict[str, Any]]:
        """Return host, argv and environment of each command for the record."""
        return [as_record(command) for command in self.commands]


def _raise(failed: ArmFailed | None) -> None:
    if failed is not None:
        raise failed
