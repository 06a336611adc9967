"""Commands from the driver to all ranks of an arm, and their replies, through the driver's store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from measurement.errors import LaunchError
from runners.driver.diagnosis import SETTLE_S, ArmFailed, Diagnosis
from runners.driver.endpoint import MessageStore
from runners.processes.remote_results import kept_replies
from runners.protocol.messages import REPLIES, Command, ErrorReply, Job, Message, Reply, command_key, job_key, reply_key

POLL = timedelta(milliseconds=500)
AT_ONCE = 64
"""Replies that are read by one request. A gate's have a megabyte each, so that those of all ranks would fill the memory."""
Expected = TypeVar("Expected", bound=Message)


class ArmChannel:
    """Commands and replies of one arm in one launch. ``receive`` raises where a rank fails."""

    number = 0
    """Number of the next command."""

    def __init__(self, store: MessageStore, diagnosis: Diagnosis) -> None:
        self.failure: ArmFailed | None = None
        """Raised by the next command: the arm has died, but the replies to its last command could be saved."""
        self._store, self._diagnosis = store, diagnosis
        self._arm, self._launch, self._world_size = diagnosis.arm, diagnosis.launch, diagnosis.placement.world_size

    def give(self, job: Job) -> None:
        """Put the arm's job where its ranks look for it."""
        self._store.set(job_key(self._arm, self._launch), job.model_dump_json())

    def send(self, command: Command) -> None:
        """Give every rank its next command; ``receive`` takes the replies."""
        raise_if(self.failure)
        self._store.set(command_key(self._arm, self._launch, self.number), command.model_dump_json())
        self.number += 1

    def receive(self, expected: type[Expected], *, timeout_s: float) -> list[Expected]:
        """Every rank's reply to the last command, by rank; raises ``ArmFailed`` where one raised, died or is too late."""
        replies = self._replies(timeout_s=timeout_s)
        raise_if(self._diagnosis.of_errors({rank: reply for rank, reply in enumerate(replies) if isinstance(reply, ErrorReply)}))
        answers: list[Expected] = [reply for reply in replies if isinstance(reply, expected)]
        assert len(answers) == len(replies), f"{expected.__name__} expected, {replies} received"
        return answers

    def _replies(self, *, timeout_s: float) -> list[Reply]:
        """Wait for all ranks; a block whose replies were lost on the way is taken from what the ranks kept of it."""
        deadline = time.monotonic() + timeout_s
        number = self.number - 1
        keys = [reply_key(self._arm, self._launch, number, rank) for rank in range(self._world_size)]
        try:
            while not self._store.wait(keys, POLL):
                self._raise_if_dead(keys)
                if time.monotonic() > deadline:
                    heard = self._heard(keys)
                    silent = [rank for rank in range(self._world_size) if rank not in heard]
                    raise self._diagnosis.of_silence(silent, timeout_s=timeout_s)
        except ArmFailed as failed:
            kept = kept_replies(self._diagnosis.processes.timings(), number=number, world_size=self._world_size)
            if kept is None:
                raise
            self.failure = failed
            return [REPLIES.validate_json(reply) for reply in kept]
        return [reply for first in range(0, len(keys), AT_ONCE) for reply in self._take(keys[first : first + AT_ONCE])]

    def _take(self, keys: Sequence[str]) -> list[Reply]:
        """Read replies that are there, and remove them."""
        try:
            replies = [REPLIES.validate_json(text) for text in self._store.get_all(keys)]
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error
        for key in keys:
            self._store.remove(key)
        return replies

    def _raise_if_dead(self, keys: Sequence[str]) -> None:
        """An error that a rank reports says more than its exit code, so give it time to arrive."""
        if self._diagnosis.looks_dead():
            time.sleep(SETTLE_S)
            if not self._store.wait(keys, POLL):
                raise_if(self._diagnosis.of_death(self._heard(keys)))

    def _heard(self, keys: Sequence[str]) -> dict[int, Reply]:
        return {rank: self._read(key) for rank, key in enumerate(keys) if self._store.has(key)}

    def _read(self, key: str) -> Reply:
        try:
            return REPLIES.validate_json(self._store.get(key))
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error


def raise_if(failure: ArmFailed | None) -> None:
    """Raise the failure, where there is one."""
    if failure is not None:
        raise failure
