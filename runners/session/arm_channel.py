"""Commands from the driver to all ranks of an arm, and their replies.

A script may end by itself at any time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeVar

from measurement.agent.ringside_agent.supervision.frames import command_key, job_key, reply_key
from measurement.errors import LaunchError
from runners.processes.supervisor_server import SupervisorServer
from runners.protocol.messages import (
    REPLIES,
    Command,
    EndedReply,
    Job,
    Message,
    Reply,
    read_message,
)
from runners.session.diagnosis import SETTLE_S, ArmFailed, Diagnosis

POLL = timedelta(milliseconds=500)
Expected = TypeVar("Expected", bound=Message)
ENDING_S = 10.0
"""How long after the end of one rank the others are waited for."""


class ArmEnded(Exception):  # noqa: N818 - what scripts do
    """The arm ended by itself before it had carried out a command."""

    def __init__(self, steps: int | None) -> None:
        """``steps``: that it took in all; None: no rank reported them."""
        super().__init__(steps)
        self.steps = steps

    @property
    def when(self) -> str:
        """``by itself``, or after how many steps."""
        return (
            "by itself"
            if self.steps is None
            else f"after {self.steps} step{'s' if self.steps != 1 else ''}"
        )


class ArmChannel:
    """Commands and replies of one arm in one launch.

    ``receive`` raises if a rank fails or the arm ends by itself.
    """

    def __init__(
        self, messages: SupervisorServer, diagnosis: Diagnosis, *, number: int = 0
    ) -> None:
        """``number``: of the next command; those of earlier starts have smaller ones."""
        self.number = number
        self._messages, self._diagnosis = messages, diagnosis
        self._ended_s: float | None = None
        """When the first rank was seen to have ended by itself."""
        self._arm, self._launch = diagnosis.arm, diagnosis.launch

    def give(self, job: Job) -> None:
        """Send the arm's job to its ranks."""
        self._messages.set(
            self._arm, self._launch, job_key(self._arm, self._launch), job.model_dump_json()
        )

    def send(self, command: Command) -> None:
        """Give every rank its next command; ``receive`` takes the replies."""
        self._messages.set(
            self._arm,
            self._launch,
            command_key(self._arm, self._launch, self.number),
            command.model_dump_json(),
        )
        self.number += 1

    def receive(
        self, expected: type[Expected], *, timeout_s: float, of_s: float | None = None
    ) -> list[Expected]:
        """Every rank's reply to the last command, by rank.

        ``of_s``: the whole time limit, if it began earlier.

        Raises:
            ArmFailed: a rank raised, died or is too late.
            ArmEnded: the arm ended by itself.
        """
        deadline, number = time.monotonic() + timeout_s, self.number - 1
        world_size, missing = None, dict[str, int]()
        heard: dict[int, Reply] = {}
        while missing or world_size is None:
            if world_size is None and (world_size := self._diagnosis.world_size) is not None:
                missing = {
                    reply_key(self._arm, self._launch, number, rank): rank
                    for rank in range(world_size)
                }
            if not self._take(missing, heard, POLL):
                self._raise_if_dead(missing, heard)
            if (missing or world_size is None) and time.monotonic() > deadline:
                silent = sorted(missing.values())
                raise self._diagnosis.for_timeout(silent, timeout_s=of_s or timeout_s)
        raise_if(self._diagnosis.for_errors(heard))
        raise_if(self._diagnosis.for_others())
        self._raise_if_ended(heard)
        replies = [heard[rank] for rank in range(world_size)]
        answers: list[Expected] = [reply for reply in replies if isinstance(reply, expected)]
        assert len(answers) == len(replies), f"{expected.__name__} expected, {replies} received"
        return answers

    def _take(self, missing: dict[str, int], heard: dict[int, Reply], timeout: timedelta) -> bool:
        """Wait for missing replies and move them to ``heard``; returns whether any came.

        Each is parsed as it comes: the gate's have a megabyte each and would fill the memory.
        """
        try:
            arrived = self._messages.take(self._arm, self._launch, missing, timeout)
            replies = {place: read_message(REPLIES, text) for place, text in arrived.items()}
        except LaunchError as error:
            raise self._diagnosis.failed(str(error)) from error
        for place, reply in replies.items():
            heard[missing.pop(place)] = reply
        return bool(arrived)

    def _raise_if_dead(self, missing: dict[str, int], heard: dict[int, Reply]) -> None:
        """Raise if a rank or launcher has failed.

        An error that a rank reports says more than its exit code, so it gets time to arrive. A rank
        that ends by itself ends its launcher, too: neither is a failure.
        """
        raise_if(self._diagnosis.for_others())
        raise_if(self._diagnosis.for_lost_agent())
        if any(isinstance(reply, EndedReply) for reply in heard.values()):
            self._ended_s = self._ended_s or time.monotonic()
            if time.monotonic() - self._ended_s > ENDING_S:
                self._raise_if_ended(heard)
        elif (has_ended_well := self._diagnosis.has_ended_well()) or self._diagnosis.looks_dead():
            time.sleep(SETTLE_S)
            while missing and self._take(missing, heard, timedelta()):
                pass
            if has_ended_well:
                self._raise_if_ended(heard)
                raise ArmEnded(None)
            if missing or not heard:
                raise_if(self._diagnosis.for_exit(heard))

    def _raise_if_ended(self, heard: Mapping[int, Reply]) -> None:
        ended = {rank: reply for rank, reply in heard.items() if isinstance(reply, EndedReply)}
        for rank, reply in ended.items():
            if reply.exit_code:
                raise self._diagnosis.failed(
                    f"rank {rank} ended itself with code {reply.exit_code} after {reply.steps}"
                    " steps",
                    ranks=[rank],
                    excerpt=self._diagnosis.processes.last_words([]),
                )
        if ended:
            raise ArmEnded(max(reply.steps for reply in ended.values()))


def raise_if(failure: ArmFailed | None) -> None:
    """Raise the failure, if there is one."""
    if failure is not None:
        raise failure
