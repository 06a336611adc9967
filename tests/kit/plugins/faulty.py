"""Backends, launchers and a report that go wrong at a stage that their plan names.

Named by path in plans of ``faults.py``.

``hold`` only waits there, until whoever planted something from outside writes ``planted`` into the
arm's folder.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import resource
import socket
import threading
import time
from pathlib import Path

import psutil
import torch

from backends.ddp import DDP
from backends.horovod.backend import Horovod
from measurement.agent.ringside_agent.supervision.rank_supervisor import is_supervisor
from reports.base import Report
from runners.launchers.mpirun import Horovodrun, Mpirun
from runners.launchers.torchrun import Spawn

THIRD_ROUND = 4
"""Which block it is: the trial that sets the blocks' length comes first."""
GATES = 2
"""Which ``prepare`` it is: the first builds what is measured."""
HOLD_S = 60.0
PIDFD_GETFD = 438
"""The number of the system call pidfd_getfd(2)."""
MEMORY_BYTES = 256 << 20
FLOOD_BYTES = 32 << 20


def hold(folder):
    """Say that the stage is reached, and wait until the fault is planted."""
    (folder / "reached").touch()
    deadline = time.monotonic() + HOLD_S
    while not (folder / "planted").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def take_all_memory():
    """Until the limit of the process is reached.

    What was taken stays: the exception's traceback keeps it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    kept = []
    for size in (1 << 24, 1 << 20, 1 << 16):
        try:
            while True:
                kept.append(bytearray(size))
        except MemoryError:
            continue
    kept.append(bytearray(1 << 24))


def spin_in_a_lock():
    """Wait for ever for a lock that this thread holds."""
    lock = threading.Lock()
    with lock, lock:
        pass


def flood():
    """Print without line ends what is not UTF-8, and raise: at the start, the traceback leaves room
    for it among the last lines."""
    for _ in range(FLOOD_BYTES >> 20):
        os.write(1, b"\xff\xfe" * (1 << 19))
    raise ValueError("planted")


def fail():
    """An exception of the user's."""
    raise ValueError("planted")


def cut_off():
    """End the connections of this rank's supervisor, as a firewall between it and the driver
    does."""
    libc = ctypes.CDLL(None, use_errno=True)
    for child in filter(lambda child: is_supervisor(child.pid), psutil.Process().children()):
        process = os.pidfd_open(child.pid)
        for descriptor in Path(f"/proc/{child.pid}/fd").iterdir():
            if str(descriptor.readlink()).startswith("socket:"):
                with socket.socket(
                    fileno=libc.syscall(PIDFD_GETFD, process, int(descriptor.name), 0)
                ) as cut:
                    cut.shutdown(socket.SHUT_RDWR)


IN_RANK = {
    "raise": fail,
    "lock": spin_in_a_lock,
    "out-of-memory": take_all_memory,
    "flood": flood,
    "cut-off": cut_off,
}


class Faults:
    """What the backends below share: rank 1 counts what it is asked for, and at one stage its fault
    happens, once."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.fault, self.stage = os.environ.get("RINGSIDE_FAULT", "none.none").split(".")
        self.folder = Path(os.environ.get("RINGSIDE_FAULTS", "."))
        self.rank, self.built, self.blocks, self.described = 0, 0, 0, 0
        self.is_done = False

    def come_to(self, stage):
        if self.rank != 1 or self.is_done or stage != self.stage:
            return
        self.is_done = True
        if self.fault == "hold":
            hold(self.folder)
        elif self.fault in IN_RANK:
            print(f"last words at {stage}", flush=True)
            IN_RANK[self.fault]()

    def setup(self, world, *, device, store=None):
        self.rank = world.rank
        (self.folder / f"rank-{world.rank}.pid").write_text(str(os.getpid()))
        self.come_to("start")
        return super().setup(world, device=device, store=store)

    def prepare(self, model, build_optimizer):
        self.built += 1
        self.prepared = super().prepare(model, build_optimizer)
        if self.built == GATES:
            self.fail_at("gates")
        return self.prepared

    def barrier(self):
        """All ranks call it before the timed steps of each block."""
        self.blocks += 1
        super().barrier()
        if self.blocks == THIRD_ROUND:
            self.fail_at("block")

    def fail_at(self, stage):
        if stage != self.stage:
            return
        if self.fault == "nan":
            self.prepared.model.register_forward_hook(
                lambda _module, _inputs, output: output * torch.nan
            )
        elif stage == "gates":
            self.come_to(stage)
        else:
            self.prepared.model.register_forward_pre_hook(lambda *_: self.come_to(stage))

    def describe(self):
        self.described += 1
        # the first is the report of the start, this one comes when all blocks are over
        if self.described == 2:
            self.come_to("finish")
        return super().describe()


class FaultyDDP(Faults, DDP):
    """DDP."""


class FaultyHorovod(Faults, Horovod):
    """Horovod."""


def starting(launcher, *argv):
    """A launcher that runs this in place of ranks."""

    class Instead(launcher):
        def commands(self, request):
            return tuple(
                dataclasses.replace(command, argv=argv) for command in super().commands(request)
            )

    return Instead


SpawnExitsAtOnce, MpirunExitsAtOnce, HorovodrunExitsAtOnce = (
    starting(child, "true") for child in (Spawn, Mpirun, Horovodrun)
)
SpawnNeverStarts, MpirunNeverStarts, HorovodrunNeverStarts = (
    starting(child, "sleep", "3600") for child in (Spawn, Mpirun, Horovodrun)
)


class HoldsTheReports(Report):
    """Holds the driver while it writes reports."""

    file_name = "held.txt"

    def render(self, comparison):
        hold(Path(os.environ["RINGSIDE_FAULTS"]))
        return b"held"
