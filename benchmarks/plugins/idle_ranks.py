"""Ranks that do nothing, for the control plane alone: a launcher, and the processes that hold many
ranks each.

They speak the real protocol. Replies are as large as those of a rank that trains. The first ranks
have a process and a real supervisor each, which really stops them. The others are hosts of eight
ranks, for which their process answers in the place of the host's first supervisor.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurement.addresses import split_port
from measurement.agent.ringside_agent.agent import join
from measurement.agent.ringside_agent.machine import fingerprint
from measurement.agent.ringside_agent.place import RENDEZVOUS, World
from measurement.agent.ringside_agent.settings import Settings, read
from measurement.agent.ringside_agent.supervision import rank_supervisor
from measurement.agent.ringside_agent.supervision.frames import (
    AT_ONCE,
    SAY,
    Frames,
    command_key,
    messages_in,
    pack,
    pack_all,
    reply_key,
    seal,
    unseal,
)
from measurement.records.block import CoreUse, RankSteps, ThreadTimes
from measurement.records.record import RankReport
from runners import protocol
from runners.launchers.base import HERE, HostCommand, Launcher, LaunchRequest
from runners.protocol import COMMANDS, FinishCommand

RANKS_PER_HOST = 8
RANKS_PER_PROCESS = 64
REAL = 2
"""Ranks with a process and a supervisor of their own."""
TENSORS = 62
"""Parameters of a ResNet-18."""
SKETCH = [0.001 * place for place in range(64)]
CORES = 64
STEP_S = 0.02
SHARES = (0.02, 0.3, 0.6, 0.08, 0.0)


class IdleRanks(Launcher):
    """Starts ranks that do nothing, all on this machine.

    They say that they are on hosts of eight ranks.
    """

    executable = "python"

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One command, which makes the processes."""
        argv = (request.python, "-P", str(Path(__file__).resolve()), str(request.world_size))
        return (
            HostCommand(
                host=HERE,
                argv=argv,
                environment=dict(request.environment) | {"PYTHONPATH": os.pathsep.join(sys.path)},
            ),
        )

    def gives(self, transport: str | None) -> frozenset[str]:
        """All that DDP asks for: its ranks do not meet."""
        return frozenset({RENDEZVOUS})


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a process of idle ranks is told, and what all its ranks reply alike."""

    settings: Settings
    ranks: int
    fingerprint: dict[str, Any]
    gate: list[str]
    """Of any rank, and of the first."""


def host_of(rank: int) -> str:
    """The host that a rank says it is on."""
    return f"host{rank // RANKS_PER_HOST:04d}"


class Rank:
    """One rank: its answers to commands."""

    def __init__(self, given: Given, rank: int) -> None:
        self._given, self._rank = given, rank

    def serve(self) -> None:
        """Be a rank with a real supervisor, until the last command."""
        channel = join(self._given.settings, World(self._rank, self._given.ranks))
        done = False
        while not done:
            command = COMMANDS.validate_json(channel.receive())
            channel.reply(self.answer(command))
            done = isinstance(command, FinishCommand)

    def place(self, number: int) -> str:
        """Where its reply to a command goes."""
        return reply_key(self._given.settings.arm, self._given.settings.launch, number, self._rank)

    def answer(self, command: protocol.Command) -> str:
        """Its reply to a command."""
        match command:
            case protocol.BlockCommand():
                return protocol.BlockReply(steps=self._steps(command.steps)).model_dump_json()
            case protocol.GateCommand():
                return self._given.gate[self._rank == 0].replace(
                    "SAMPLES", f"samples-of-{self._rank}"
                )
            case FinishCommand():
                return protocol.FinishedReply(
                    report=self._report(), peak_memory_bytes=1 << 30
                ).model_dump_json()
        return protocol.StartedReply(
            report=self._report(), can=["block", "gate", "steps_apart"]
        ).model_dump_json()

    def _steps(self, steps: int) -> RankSteps:
        slower = 1 + 0.001 * ((self._rank * 7 + time.monotonic_ns() // 1000) % 50)
        use = {
            "wall_s": 0.3,
            "busy_s": 0.28,
            "steal_s": 0.0,
            "own_s": 0.27,
            "other_threads_s": 0.01,
        }
        return RankSteps(
            rank=self._rank,
            untimed_s=0.04,
            samples=[32] * steps,
            phases_s=[[share * STEP_S * slower for share in SHARES] for _ in range(steps)],
            core_use=CoreUse(
                machine=host_of(self._rank), cores=[self._rank % RANKS_PER_HOST], **use
            ),
            threads=ThreadTimes(running_s=0.25, runnable_s=0.01, library_s=0.01, others_s=0.0),
            page_faults=12,
        )

    def _report(self) -> RankReport:
        rank = self._rank
        return RankReport(
            rank=rank,
            local_rank=rank % RANKS_PER_HOST,
            node_rank=rank // RANKS_PER_HOST,
            world_size=self._given.ranks,
            local_world_size=RANKS_PER_HOST,
            launcher="torchrun",
            host=host_of(rank),
            pid=os.getpid(),
            device="cpu",
            threads=1,
            affinity=[rank % RANKS_PER_HOST],
            seed=1,
            local_batch_size=32,
            micro_steps=1,
            fingerprint=self._given.fingerprint,
        )


def gate_reply(*, is_first: bool) -> str:
    """What a rank found in the gate, but for its samples: sketches of a ResNet-18's tensors.

    ``is_first``: of rank 0.
    """
    sketches = {f"layer{number // 16}.{number % 16}.weight": SKETCH for number in range(TENSORS)}
    report = protocol.ParityReport(
        **dict.fromkeys(("started", "local", "synced", "ended"), sketches),
        wanted=sketches if is_first else {},
        sizes=dict.fromkeys(sketches, 180_000),
        samples="SAMPLES",
        gradient_scale=1.0,
    )
    return protocol.GateReply(report=report).model_dump_json()


class StandInHost:
    """Answers the driver in the place of a host's first supervisor, and of the ranks there."""

    found = json.loads(rank_supervisor.read_counters(0).partition(" ")[2])

    def __init__(self, given: Given, ranks: Sequence[int]) -> None:
        self._given, self._ranks = given, [Rank(given, rank) for rank in ranks]
        told = given.settings
        self._key = Path(told.key_file).read_text(encoding="utf-8")
        self._frames, self._number = Frames(), 0
        pid = str(os.getpid())
        who = [
            told.arm,
            str(told.launch),
            "0",
            str(ranks[0]),
            str(given.ranks),
            host_of(ranks[0]),
            pid,
        ]
        self.connection = rank_supervisor.greet(split_port(told.driver), self._key, who)
        for rank in ranks[1:]:
            self.connection.sendall(
                pack(f"{rank_supervisor.JOINED} {rank} {given.ranks} {pid} {time.time()}")
            )

    def hear(self) -> None:
        """Do as the driver says. When it closes the connection, the process ends."""
        received = self.connection.recv(AT_ONCE)
        if not received:
            os._exit(0)
        answers = b""
        for line, message in self._frames.add(received):
            if line.startswith(f"{SAY} "):
                for place, sealed in messages_in(line, message):
                    self._reply(place, sealed)
            else:
                answers += pack(self._counters() if line == rank_supervisor.COUNTERS else line)
        if answers:
            self.connection.sendall(answers)

    def _reply(self, place: str, message: bytes) -> None:
        """Send the replies of all ranks, together."""
        if place != command_key(
            self._given.settings.arm, self._given.settings.launch, self._number
        ):
            return
        command = COMMANDS.validate_json(unseal(self._key, place, message))
        places = {rank.place(self._number): rank.answer(command) for rank in self._ranks}
        sealed = {place: seal(self._key, place, text) for place, text in places.items()}
        self.connection.sendall(
            pack_all(
                [(f"{SAY} {place} {len(message)}", message) for place, message in sealed.items()]
            )
        )
        self._number += 1

    def _counters(self) -> str:
        """This machine's counters as they were, but for the clock and for as many busy cores as a
        large host has.
        """
        now = {"at_s": time.monotonic(), "core_busy_s": [0.9 * time.monotonic()] * CORES}
        return f"{rank_supervisor.COUNTERS} {json.dumps(self.found | now)}"


def hold(given: Given, ranks: Sequence[int]) -> None:
    """Be the ranks of some hosts until the driver closes the connections."""
    selector = selectors.DefaultSelector()
    by_host = itertools.groupby(ranks, host_of)
    for host in [StandInHost(given, list(those)) for _, those in by_host]:
        selector.register(host.connection, selectors.EVENT_READ, host)
    while True:
        for ready, _ in selector.select():
            ready.data.hear()


def main() -> None:
    """Make the processes, and wait for them."""
    told = read()
    assert told is not None
    gate = [gate_reply(is_first=False), gate_reply(is_first=True)]
    given = Given(settings=told, ranks=int(sys.argv[1]), fingerprint=fingerprint(), gate=gate)
    # the driver has its core for itself
    if others := set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0):
        os.sched_setaffinity(0, others)
    alone = [[rank] for rank in range(REAL)]
    first_ones = range(0, given.ranks, RANKS_PER_PROCESS)
    others = [
        range(max(first, REAL), min(first + RANKS_PER_PROCESS, given.ranks)) for first in first_ones
    ]
    children = []
    for ranks in [*alone, *others]:
        pid = os.fork()
        if not pid:
            if len(ranks) == 1:
                Rank(given, ranks[0]).serve()
                os._exit(0)
            hold(given, ranks)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
