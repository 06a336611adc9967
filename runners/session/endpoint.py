"""The driver's end of the connection to the ranks: where they find it, and an arm's commands and
replies.

Ranks of all arms find its store, its supervisor server and its key. By the key, driver, supervisors
and ranks authenticate each other. They read it from a file that only the user can read. It is never
in a command line or a shell's environment, which ``ps`` shows.

A script may end by itself at any time, before it has carried out a command.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from measurement.addresses import listen, with_port
from measurement.agent.ringside_agent.supervision.frames import command_key, job_key, reply_key
from measurement.errors import LaunchError
from runners.hosts.placement import Placement
from runners.processes import remote
from runners.processes.driver_watch import ended_with_driver
from runners.processes.local import remove_left_folders
from runners.processes.supervisor_server import SupervisorServer
from runners.protocol import (
    REPLIES,
    Command,
    EndedReply,
    Job,
    Reply,
    read_message,
)
from runners.session.arm_run import Expected
from runners.session.diagnosis import SETTLE_S, ArmFailed, Diagnosis

KEY_PREFIX = "ringside-key-"
PUT_KEY = (
    'umask 077 && mkdir -p -- "$1" && cat > "$1/key" && { test -s "$1/key" || { echo "its shell'
    ' reads standard input, see ~/.bashrc there" >&2; exit 1; }; }'
)
REMOVE_KEY = 'rm -rf -- "$1"'
KEY_TIMEOUT_S = 20.0
POLL = timedelta(milliseconds=500)
ENDING_S = 10.0
"""How long after the end of one rank the others are waited for."""


@dataclass(frozen=True, kw_only=True)
class DriverEndpoint:
    """Where the ranks of all arms find the driver."""

    store_address: str
    """The ``TCPStore`` of the libraries' process groups. Empty: the arms are scripts, which need
    none."""
    supervisors: SupervisorServer
    key_file: Path
    """The path of the comparison's key on every host."""
    run_id: str
    """With which the run id of each start begins, before a hyphen."""
    placement: Placement


@contextmanager
def open_endpoint(placement: Placement, *, has_store: bool) -> Iterator[DriverEndpoint]:
    """Serve the supervisors' connections, and a store if asked; on loopback if all ranks are on
    this host.

    What is started with its run id ends with this process.
    """
    address, run_id = placement.driver_address, secrets.token_hex(6)
    with shared_key(placement.remote) as key_file, ExitStack() as stack:
        stack.enter_context(ended_with_driver(run_id, placement.remote))
        supervisors = SupervisorServer(address=address, key=key_file.read_text(encoding="utf-8"))
        stack.callback(supervisors.close)
        yield DriverEndpoint(
            store_address=stack.enter_context(_serve_store(address)) if has_store else "",
            supervisors=supervisors,
            key_file=key_file,
            run_id=run_id,
            placement=placement,
        )


@contextmanager
def _serve_store(address: str) -> Iterator[str]:
    """Serve a ``TCPStore``; yields its address."""
    from torch.distributed import TCPStore

    listening = listen(address)
    port = listening.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=listening.detach(),
    )
    try:
        yield with_port(address, port)
    finally:
        del store  # it ends with its last reference


@contextmanager
def shared_key(hosts: Sequence[str]) -> Iterator[Path]:
    """Make a key and store it here and on other hosts while the context lasts, in a new folder with
    a random name; yields its path, the same on every host.

    It is 32 random bytes in hexadecimal digits.

    Keys that killed drivers have left are removed.

    Raises:
        LaunchError: a host cannot be reached.
    """
    remove_left_folders(Path(tempfile.gettempdir()), KEY_PREFIX)
    prefix = f"{KEY_PREFIX}{socket.gethostname()}-{os.getpid()}-"
    path, key = Path(tempfile.mkdtemp(prefix=prefix)) / "key", secrets.token_hex(32).encode()

    def everywhere(script: str) -> None:
        argv = ["sh", "-c", script, "sh", str(path.parent)]
        remote.run_on(hosts, argv, timeout_s=KEY_TIMEOUT_S, stdin=key)

    try:
        path.touch(mode=0o600)  # in a folder that is the user's alone
        path.write_bytes(key)
        everywhere(PUT_KEY)
        yield path
    finally:
        # a lost host keeps the key, which is of no use after the comparison
        with contextlib.suppress(LaunchError):
            everywhere(REMOVE_KEY)
        shutil.rmtree(path.parent, ignore_errors=True)


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
        self._place = diagnosis.arm, diagnosis.launch

    def give(self, job: Job) -> None:
        """Send the arm's job to its ranks."""
        self._messages.set(*self._place, job_key(*self._place), job.model_dump_json())

    def send(self, command: Command) -> None:
        """Give every rank its next command; ``receive`` takes the replies."""
        key = command_key(*self._place, self.number)
        self._messages.set(*self._place, key, command.model_dump_json())
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
                    reply_key(*self._place, number, rank): rank for rank in range(world_size)
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
            arrived = self._messages.take(*self._place, missing, timeout)
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
