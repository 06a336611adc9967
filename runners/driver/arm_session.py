"""One launch of one arm, seen from the driver: its commands and replies, its freeze and its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from measurement.errors import LaunchError
from runners.arm_processes import ArmProcesses
from runners.diagnosis import ArmFailed, Diagnosis
from runners.job import Command, Job, Reply, command_key, encode, job_key, reply_key
from runners.launch_job import as_record, launch_job
from runners.places import Placement
from runners.planning import ArmSetup
from runners.salvage import salvage
from runners.wardens import Wardens

POLL = timedelta(milliseconds=500)
SETTLE_S = 1.0
"""How long after a rank's death its launcher is given to say why."""
EXIT_TIMEOUT_S = 30.0
WARDEN_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the ranks of all arms find the driver."""

    store: Any
    """The ``TCPStore`` the driver serves."""
    store_address: str
    wardens: Wardens
    mark: str
    placement: Placement


class ArmSession:
    """Starts the ranks, speaks to them, and leaves nothing behind."""

    def __init__(self, setup: ArmSetup, *, launch: int, folder: Path, meeting: Meeting) -> None:
        self.setup = setup
        self.name = setup.name
        self.started_s = 0.0
        self._plan = plan = setup.plan
        self._launch = launch
        self._meeting = meeting
        self._number = 0
        self._frozen = False
        self._doomed: ArmFailed | None = None
        """What the arm has died of, though its last block could be saved."""
        mark = f"{meeting.mark}-{launch}-{setup.name}"
        placement = meeting.placement.of(plan.world_size)
        job = launch_job(setup, launch=launch, placement=placement, mark=mark, driver=self._addresses(), log_folder=folder)
        self.commands = setup.launcher.commands(job)
        self._processes = ArmProcesses(self.commands, mark=mark, folder=folder, placement=placement)
        self._diagnosis = Diagnosis(setup.name, launch, wardens=meeting.wardens, processes=self._processes, placement=placement)

    def _addresses(self) -> dict[str, str]:
        wardens = self._meeting.wardens
        return {"--driver": self._meeting.store_address, "--wardens": wardens.address, "--token": wardens.token}

    @property
    def exit_codes(self) -> list[int | None]:
        """Of the launchers; empty until the arm has been ended."""
        return self._processes.exit_codes

    def start(self, job: Job) -> None:
        """Start the launcher; returns at once.

        Raises:
            ArmFailed: it cannot be started.
        """
        self._meeting.store.set(job_key(self.name, self._launch), encode(job))
        self.started_s = time.monotonic()
        self.send(Command(do="start"))
        try:
            self._processes.start()
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error

    def send(self, command: Command) -> None:
        """Give every rank its next command; ``receive`` takes the replies."""
        if self._doomed is not None:
            raise self._doomed
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
        try:
            while not self._wait(keys):
                self._raise_if_dead(keys)
                if time.monotonic() > deadline:
                    raise self._timed_out(keys, timeout_s)
        except ArmFailed as failed:
            saved = salvage(self._processes.timings(), number=self._number - 1, world_size=len(ranks))
            if saved is None:
                raise
            self._doomed = failed
            return saved
        replies = [Reply.model_validate_json(self._meeting.store.get(key)) for key in keys]
        for key in keys:
            self._meeting.store.delete_key(key)
        _raise(self._diagnosis.of_errors(dict(enumerate(replies))))
        return replies

    def exchange(self, command: Command, *, timeout_s: float) -> tuple[list[Reply], float]:
        """The ranks' turn: thawed, given a command and, when all have answered, frozen.

        Returns:
            Every rank's reply, by rank, and the seconds from the command to the last of them.

        Raises:
            ArmFailed: see ``receive``.
        """
        self.thaw()
        began = time.monotonic()
        self.send(command)
        replies = self.receive(timeout_s=timeout_s)
        took_s = time.monotonic() - began
        self.freeze()
        return replies, took_s

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
                raise self._diagnosis.failed(f"the wardens of ranks {missing} have not reported", ranks=missing)
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
        if not self._diagnosis.looks_dead():
            return
        time.sleep(SETTLE_S)
        if not self._wait(keys):
            _raise(self._diagnosis.of_death(self._heard(keys)))

    def _timed_out(self, keys: Sequence[str], timeout_s: float) -> ArmFailed:
        silent = [rank for rank in range(self._plan.world_size) if rank not in self._heard(keys)]
        return self._diagnosis.of_silence(silent, timeout_s=timeout_s)

    def _heard(self, keys: Sequence[str]) -> dict[int, Reply]:
        store = self._meeting.store
        return {rank: Reply.model_validate_json(store.get(key)) for rank, key in enumerate(keys) if store.check([key])}

    def freeze(self) -> None:
        """Stop every rank; returns when all have stopped."""
        if self._plan.measurement.freeze and not self._frozen and self._doomed is None:
            self._frozen = True
            self._tell("stop")

    def thaw(self) -> None:
        """Let every rank go on.

        Raises:
            ArmFailed: none does, see ``receive``.
        """
        if self._doomed is not None:
            raise self._doomed
        if self._frozen:
            self._frozen = False
            self._tell("continue")

    def _tell(self, word: str) -> None:
        try:
            self._meeting.wardens.tell(self.name, self._launch, word)
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error

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
        self._processes.wait(timeout_s=EXIT_TIMEOUT_S)
        self.end()
        return replies

    def end(self) -> None:
        """Whatever still runs of this arm ends now; safe to call twice."""
        self._processes.end(kill_ranks=self._kill_ranks)
        self._meeting.wardens.release(self.name, self._launch)

    def _kill_ranks(self) -> None:
        with contextlib.suppress(LaunchError):
            self._meeting.wardens.tell(self.name, self._launch, "kill")

    def commands_as_run(self) -> list[dict[str, Any]]:
        """For the record: host, argv and environment, without the one-time token."""
        return [as_record(command, token=self._meeting.wardens.token) for command in self.commands]


def _raise(failed: ArmFailed | None) -> None:
    if failed is not None:
        raise failed
