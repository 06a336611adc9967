"""One arm in one launch, seen from the driver: start it, exchange commands for replies, freeze,
thaw, end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measurement.agent.ringside_agent.meeting import TAKEN, Meeting, read_notes
from measurement.agent.ringside_agent.settings import COMPARED_STEPS, Settings
from measurement.errors import LaunchError
from measurement.records.block import HostCounters
from runners.hosts.placement import Placement
from runners.planning.arm_specs import ArmSpec, ArmStart
from runners.processes import remote
from runners.processes.remote_results import log_name
from runners.processes.sandbox import Sandbox
from runners.protocol import (
    BlockCommand,
    Command,
    FinishCommand,
    FinishedReply,
    Job,
    StartCommand,
    StartedReply,
)
from runners.session.arm_processes import ArmProcesses
from runners.session.arm_run import Exchange, Expected, Say
from runners.session.diagnosis import ArmFailed, Diagnosis
from runners.session.endpoint import ArmChannel, ArmEnded, DriverEndpoint, raise_if

EXIT_TIMEOUT_S = 30.0
NOTES_TIMEOUT_S = 20.0
MIN_WAIT_S = 1.0
"""For the ready ranks of an arm that was waited for after others, whose time to start is over as
well."""


class ArmSession:
    """Starts the ranks of an arm and exchanges messages with them.

    A script that ends is restarted; ``end`` ends everything.
    """

    _channel: ArmChannel

    def __init__(
        self,
        setup: ArmSpec,
        *,
        launch: int,
        folder: Path,
        endpoint: DriverEndpoint,
        say: Say,
        state: Mapping[str, str] | None = None,
        padding_bytes: int = 0,
        is_trial: bool = False,
    ) -> None:
        """``say`` tells the user; ``state``, ``is_trial``: see ``ArmStart``."""
        self.name = setup.name
        self.started_s = 0.0
        self.starts = 0
        self.restarting_s = 0.0
        self._setup, self._endpoint, self._say, self._state = (
            setup,
            endpoint,
            say,
            dict(state or {}),
        )
        self._launch = launch
        self._folder = folder
        self._padding_bytes = padding_bytes
        self._is_trial = is_trial
        self._moves = 0
        """How often it was started elsewhere, since a port was taken."""
        self._taken: set[int] = set()
        self._supervisors = endpoint.supervisors
        self._begin()

    def _begin(self) -> None:
        """Prepare the next start: its commands, processes, diagnosis and channel."""
        setup, endpoint, number = self._setup, self._endpoint, self.starts + self._moves
        run_id = f"{endpoint.run_id}-{self._launch}-{setup.name}-{number}"
        placement = setup.placement(endpoint.placement)
        self._sandbox = self._new_sandbox(placement) if setup.may_end else None
        start = ArmStart(
            launch=self._launch,
            number=number,
            run_id=run_id,
            placement=placement,
            log_folder=self._folder,
            supervisors=endpoint.supervisors.address,
            store=endpoint.store_address,
            key_file=endpoint.key_file,
            state=self._state | ({"state": "load"} if self._state and self.starts else {}),
            taken_ports=self._taken,
            padding_bytes=self._padding_bytes,
            sandbox=self._sandbox,
            is_trial=self._is_trial,
        )
        self.commands = setup.commands(start)
        self._processes = ArmProcesses(
            self.commands, run_id=run_id, folder=self._folder, placement=placement
        )
        self._diagnosis = Diagnosis(
            setup.name,
            self._launch,
            supervisors=self._supervisors,
            processes=self._processes,
            placement=placement,
            run_id=run_id,
            may_end=setup.may_end,
            sandbox=self._sandbox,
            has_reported=self.starts > 0,
        )
        self._channel = ArmChannel(
            self._supervisors, self._diagnosis, number=self._channel.number if number else 0
        )
        settings = Settings(
            driver="",
            key_file=str(endpoint.key_file),
            arm=setup.name,
            launch=self._launch,
            start=number,
        )
        self._meeting, self._store_files = Meeting(settings), set[str]()
        self._remote = placement.remote if setup.may_end else []
        self.starts += 1

    def _new_sandbox(self, placement: Placement) -> Sandbox:
        """The folder in which the next start of a script works."""
        scripts, folder = self._setup.plan.scripts, self._folder.resolve()
        return Sandbox(
            root=folder / f"files-{self.starts + self._moves}",
            users=self._setup.place.folder.resolve(),
            left_out=folder.parents[1],
            hosts=placement.remote,
            are_offline=scripts.trackers == "offline",
            is_kept=scripts.keep_files and not self._is_trial,
        )

    def log_of(self, rank: int) -> Path:
        """The path of a rank's log once it was fetched from its host; of the launcher's log if the
        rank wrote none.
        """
        log = self._folder / log_name(rank)
        return log if log.is_file() else self._processes.launchers_log

    @property
    def exit_codes(self) -> list[int | None]:
        """Those of the launchers; empty until ``end`` was called."""
        return self._processes.exit_codes

    @contextmanager
    def _failing_alone(self) -> Iterator[None]:
        """A context that makes a ``LaunchError`` this arm's failure, so that the other arms go
        on.
        """
        try:
            yield
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error

    def start(self, job: Job) -> None:
        """Start the launcher; returns at once."""
        self._channel.give(job)
        self._start()

    def _start(self) -> None:
        self.started_s = time.monotonic()
        self._channel.send(StartCommand())
        with self._failing_alone():
            if self._sandbox:
                self._sandbox.make()
            self._processes.start()

    def await_ready(self) -> list[StartedReply]:
        """Wait until all ranks have connected and built their models; freeze; return the first
        reports.
        """
        limit_s = self._setup.start_limit_s
        left_s = self.started_s + limit_s - time.monotonic()
        try:
            replies = self._channel.receive(
                StartedReply, timeout_s=max(left_s, MIN_WAIT_S), of_s=limit_s
            )
        except ArmFailed:
            if not self._finds_ports_taken():
                raise
            return self.await_ready()
        except ArmEnded as ended:
            raise self._diagnosis.failed(
                f"the script ends {ended.when}, within the first {COMPARED_STEPS} steps, which are"
                " compared; give it more steps",
                excerpt=self._processes.last_words([]),
            ) from ended
        self._store_files = {
            file for reply in replies if reply.script for file in reply.script.store_files
        }
        self._diagnosis.has_reported = True
        self._tell("stop")
        return replies

    def _finds_ports_taken(self) -> bool:
        """Whether another process has a port that this arm asked for.

        Then the arm is restarted with another port.
        """
        taken = self._ports_taken() - self._taken
        if not taken:
            return False
        self.end()
        self._processes.launchers_log.unlink(missing_ok=True)  # it would report the same port again
        self._taken |= taken
        self._moves, self.starts = self._moves + 1, self.starts - 1
        self._supervisors.restart(self.name, self._launch, self.starts + self._moves)
        self._begin()
        self._start()
        return True

    def _ports_taken(self) -> set[int]:
        """The ports of this start that other processes have, on any of its hosts."""
        argv, notes = ["sh", "-c", 'cat "$1"; true', "sh", self._meeting.notes], list[bytes]()
        with contextlib.suppress(LaunchError):  # a lost host is reported anyway
            notes = remote.run_on(self._remote, argv, timeout_s=NOTES_TIMEOUT_S)
        with contextlib.suppress(OSError):
            notes.append(Path(self._meeting.notes).read_bytes())
        return {
            int(port)
            for port in read_notes(b"\n".join(notes).decode(errors="replace"))[TAKEN]
            if port.isdigit()
        }

    def exchange(
        self, command: Command, expected: type[Expected], *, timeout_s: float
    ) -> Exchange[Expected]:
        """Thaw the ranks, give them a command, wait for all replies and freeze them again; see
        ``ArmChannel.receive``.

        An arm that ends by itself is restarted once and given the command again.
        """
        try:
            return self._exchange(command, expected, timeout_s=timeout_s)
        except ArmEnded as ended:
            began = time.monotonic()
            self._restart(ended)
            self.restarting_s += time.monotonic() - began
        try:
            return self._exchange(command, expected, timeout_s=timeout_s)
        except ArmEnded as again:
            steps = command.warmup_steps + command.steps if isinstance(command, BlockCommand) else 0
            raise self._diagnosis.failed(
                f"the script ends {again.when}; a block needs {steps} after those that are"
                " compared: give it more epochs, or set measurement.block_steps"
            ) from again

    def _restart(self, ended: ArmEnded) -> None:
        """End what is left of the arm, start it again and wait until it is ready."""
        if self.starts == 1:
            self._say(f"{self.name} ends {ended.when}; restarting it as needed")
        self._processes.wait(timeout_s=EXIT_TIMEOUT_S)
        self.end()
        self._supervisors.restart(self.name, self._launch, self.starts)
        with self._failing_alone():
            self._begin()
        self._start()
        self.await_ready()

    def _exchange(
        self, command: Command, expected: type[Expected], *, timeout_s: float
    ) -> Exchange[Expected]:
        raise_if(self._diagnosis.for_lost_launcher())
        before = self._tell("counters", "continue")
        began = time.monotonic()
        self._channel.send(command)
        replies = self._channel.receive(expected, timeout_s=timeout_s)
        took_s = time.monotonic() - began
        after = self._tell("stop", "counters")  # counted while ranks wait
        hosts = {host: now.since(before[host]) for host, now in after.items() if host in before}
        return Exchange(replies=replies, took_s=took_s, hosts=hosts)

    def _tell(self, *words: str) -> dict[str, HostCounters]:
        """Have every supervisor carry out these commands; returns the counters of every host."""
        with self._failing_alone():
            return self._supervisors.tell(self.name, self._launch, *words)

    def ask_to_finish(self) -> None:
        """Ask the ranks for a last report, after which they end by themselves; ``finish`` waits for
        both.
        """
        raise_if(self._diagnosis.for_lost_launcher())
        self._tell("continue")
        self._channel.send(FinishCommand())

    def finish(self) -> list[FinishedReply]:
        """Wait for the last reports and for the ranks to end."""
        timeout_s = self._setup.plan.measurement.block_timeout_s
        replies = self._channel.receive(FinishedReply, timeout_s=timeout_s)
        self._processes.wait(timeout_s=EXIT_TIMEOUT_S)
        self.end()
        return replies

    def end(self) -> None:
        """End whatever still runs of this arm. Calling it twice is harmless."""

        def kill_ranks() -> None:
            with contextlib.suppress(LaunchError):
                self._supervisors.tell(self.name, self._launch, "kill")

        self._processes.end(kill_ranks=kill_ranks)
        if self._sandbox:
            self._sandbox.remove()
        self._supervisors.release(self.name, self._launch)
        self._meeting.remove_files(self._store_files)

    def command(self, seed: int) -> str:
        """See ``ArmSpec.command``."""
        return self._setup.command(self._endpoint.placement, seed)

    def commands_as_run(self) -> list[dict[str, Any]]:
        """Host and argv of each command, for the record."""
        return [{"host": command.host, "argv": list(command.argv)} for command in self.commands]
