"""Commands as users type them, with the launchers that they start ranks by."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from tests.conftest import BIN, REPOSITORY, ended_well
from tests.kit.warm_server import socket_path, warm_command


def environment():
    """A user's who may start ranks as root, with our programs first."""
    mpi_as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **mpi_as_root, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}


def run(*command, timeout=200, cwd=REPOSITORY, **variables):
    """Run it, with these environment variables, too; what it said and its exit code."""
    words, env = list(map(str, command)), environment() | variables
    return subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=env, check=False
    )


@contextlib.contextmanager
def started(*arguments, cwd=REPOSITORY):
    """What a user types as ``ringside ARGUMENTS``, in a process of its own; it is killed if it still
    runs afterwards."""
    with subprocess.Popen(
        [sys.executable, "-m", "runners.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_python(code, *arguments, **more):
    """Run code in a Python of its own, as ``run`` does."""
    return run(sys.executable, "-c", code, *arguments, **more)


def warm(*arguments):
    """What a user types as ``python ARGUMENTS``, started from what has imported torch: for tests in
    which that is not the point."""
    return warm_command(socket_path(), *arguments)


def forked(ranks, module, *arguments):
    """Run a module of ``tests.distributed.ranks`` on ranks forked from what has imported torch,
    which is most of what they take."""
    return run(
        *warm("-m", "runners.spawn"),
        "--nproc-per-node",
        ranks,
        "-m",
        module.__name__,
        *arguments,
    )


def under_mpirun(module, *arguments):
    """Run a module of ``tests.distributed.ranks`` on two ranks of ``mpirun``'s, forked as well."""
    return run("mpirun", "-np", "2", "--oversubscribe", *warm("-m", module.__name__), *arguments)


def seen_by_ranks(start, folder, *arguments):
    """What ranks left in a folder that ``ranks.leave_what_is_seen`` writes into: by name, what each
    of them saw."""
    ended_well(start(folder, *arguments))
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


HOROVODRUN = ["-np", "2", "-H", "localhost:2", "python"]
MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "python"]
TORCHRUN_DDP = (["torchrun", "--standalone", "--nproc-per-node", "2"], "ddp")
HOROVODRUN_HVD = (["horovodrun", "--gloo", *HOROVODRUN], "hvd")
SHORT = ["--local-batch-size", "16", "--blocks", "4", "--block-steps", "3", "--warmup-steps", "1"]
"""Arguments of a runner that is over in seconds."""
NO_LOCAL = ["--set", "measurement.local_every=0"]
"""No blocks without exchange: a runner is over sooner."""


def git(folder, *arguments):
    """What git says of a folder, as somebody who may commit there."""
    named = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *named, *arguments], check=True, capture_output=True, text=True
    ).stdout
