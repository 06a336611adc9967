"""Ranks that do nothing, for the control plane alone: a launcher, and the processes that hold many ranks each.

They speak the real protocol: the driver's sealed store with a connection each, and the supervisor server. Replies are as large as
those of a rank that trains. The first ranks have a process and a real supervisor each, which really stops them. For the others a
thread of their process answers in the supervisor's place.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from measurement.addresses import split_port
from measurement.conditions.conditions import fingerprint
from measurement.records.record import CoreUse, RankReport, RankSteps, ThreadTimes
from measurement.world import RENDEZVOUS
from runners.launchers.base import HERE, HostCommand, Launcher, LaunchJob
from runners.probe.ringside_probe import rank_supervisor
from runners.protocol import messages
from runners.protocol.sealed_store import SealedStore

RANKS_PER_HOST = 8
RANKS_PER_PROCESS = 32
"""Torch takes half a second to connect a client of its store, and its process does nothing else meanwhile."""
REAL = 2
"""Ranks with a process and a supervisor of their own."""
TENSORS = 62
"""Parameters of a ResNet-18."""
SKETCH = [0.001 * place for place in range(64)]
CORES = 64
STEP_S = 0.02
SHARES = (0.02, 0.3, 0.6, 0.08)
LONGEST = timedelta(hours=1)


class IdleRanks(Launcher):
    """Starts ranks that do nothing, all on this machine. They say that they are on hosts of eight ranks."""

    executable = "python"

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One command, which makes the processes."""
        argv = (job.python, "-P", str(Path(__file__).resolve()), "--ranks", str(job.world_size), *job.arguments)
        return (HostCommand(host=HERE, argv=argv, environment=dict(job.environment) | {"PYTHONPATH": os.pathsep.join(sys.path)}),)

    def gives(self, transport: str | None) -> frozenset[str]:
        """All that DDP asks for: its ranks do not meet."""
        return frozenset({RENDEZVOUS})


def host_of(rank: int) -> str:
    """The host that a rank says it is on."""
    return f"host{rank // RANKS_PER_HOST:04d}"


class Rank:
    """One rank: a connection to the store, and answers to commands."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        from torch.distributed import TCPStore

        host, port = split_port(given.driver)
        bare = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=LONGEST)
        self._store = SealedStore(bare, key=Path(given.key_file).read_text(encoding="utf-8"))
        self._given, self._rank = given, rank

    def serve(self) -> None:
        """Answer commands until the last."""
        given = self._given
        number, done = 0, False
        while not done:
            place = messages.command_key(given.arm, given.launch, number)
            command = messages.COMMANDS.validate_json(self._store.get(place))
            self._store.set(messages.reply_key(given.arm, given.launch, number, self._rank), self._answer(command))
            number, done = number + 1, isinstance(command, messages.FinishCommand)

    def _answer(self, command: messages.Command) -> str:
        match command:
            case messages.BlockCommand():
                return messages.BlockReply(block=command.record(self._steps(command.steps))).model_dump_json()
            case messages.GateCommand():
                return self._given.gate.replace("SAMPLES", f"samples-of-{self._rank}")
            case messages.FinishCommand():
                return messages.FinishedReply(report=self._report(), peak_memory_bytes=1 << 30).model_dump_json()
        return messages.StartedReply(report=self._report()).model_dump_json()

    def _steps(self, steps: int) -> RankSteps:
        slower = 1 + 0.001 * ((self._rank * 7 + time.monotonic_ns() // 1000) % 50)
        use = {"wall_s": 0.3, "busy_s": 0.28, "steal_s": 0.0, "own_s": 0.27, "other_threads_s": 0.01}
        return RankSteps(
            rank=self._rank,
            untimed_s=0.04,
            samples=[32] * steps,
            phases_s=[[share * STEP_S * slower for share in SHARES] for _ in range(steps)],
            core_use=CoreUse(host=host_of(self._rank), cores=[self._rank % RANKS_PER_HOST], **use),
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


def gate_reply() -> str:
    """What each rank found in the gate, but for its samples: sketches of a ResNet-18's tensors."""
    sketches = {f"layer{number // 16}.{number % 16}.weight": SKETCH for number in range(TENSORS)}
    report = messages.ParityReport(
        **dict.fromkeys(("started", "wanted", "local", "synced", "ended"), sketches),
        sizes=dict.fromkeys(sketches, 180_000),
        samples="SAMPLES",
        gradient_scale=1.0,
        gradient_tolerance=1e-4,
        calls={"forward": 3, "backward": 3, "optimizer.step": 3},
    )
    return messages.GateReply(report=report).model_dump_json()


class StandInSupervisors:
    """Answers the driver in the place of the supervisors of many ranks."""

    def __init__(self, given: argparse.Namespace, ranks: Sequence[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._found = json.loads(rank_supervisor.read_counters().partition(" ")[2])
        key = Path(given.key_file).read_text(encoding="utf-8")
        for rank in ranks:
            who = [given.arm, str(given.launch), str(rank), host_of(rank), str(os.getpid())]
            connection = rank_supervisor.greet(split_port(given.supervisors), key, who)
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def serve(self) -> None:
        """Answer each word by itself, until the driver closes its connections: then the process ends."""
        while self._selector.get_map():
            for ready, _ in self._selector.select():
                received = ready.data.recv(4096)
                if not received:
                    os._exit(0)
                for word in received.decode().split():
                    ready.data.sendall(f"{self._counters() if word == rank_supervisor.COUNTERS else word}\n".encode())

    def _counters(self) -> str:
        """This machine's counters as they were, but for the clock and for as many busy cores as a large host has."""
        now = {"at_s": time.monotonic(), "core_busy_s": dict.fromkeys(range(CORES), 0.9 * time.monotonic())}
        return f"{rank_supervisor.COUNTERS} {json.dumps(self._found | now)}"


def hold(given: argparse.Namespace, ranks: Sequence[int], *, really: bool) -> None:
    """Be these ranks until they are told to end; ``really``: with a real supervisor, of one rank."""
    if really:
        supervisors, key_file = given.supervisors, given.key_file
        rank_supervisor.start(supervisors, key_file, given.arm, given.launch, ranks[0])
    else:
        threading.Thread(target=StandInSupervisors(given, ranks).serve, daemon=True).start()
    threads = [threading.Thread(target=Rank(given, rank).serve) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)


def main() -> None:
    """Make the processes, and wait for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--launch", type=int, required=True)
    for name in ("driver", "supervisors", "key-file", "arm"):
        parser.add_argument(f"--{name}", required=True)
    given, _ = parser.parse_known_args()
    import torch.distributed  # noqa: F401 - once, before the processes are made

    threading.stack_size(256 << 10)
    given.fingerprint, given.gate = fingerprint(), gate_reply()
    alone = [[rank] for rank in range(REAL)]
    others = [range(given.ranks)[first : first + RANKS_PER_PROCESS] for first in range(REAL, given.ranks, RANKS_PER_PROCESS)]
    children = []
    for ranks in [*alone, *others]:
        pid = os.fork()
        if not pid:
            hold(given, ranks, really=len(ranks) == 1 and ranks[0] < REAL)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
