"""What a start at many ranks is made of, one at a time: ssh, imports, the clients of a store, a
supervisor's greeting, launchers.

    python benchmarks/launch_costs.py [--storms 8 16 32 64]

A real sshd with its default MaxStartups listens on loopback, with keys of its own, and so many
connections come at once. CPU seconds count both ends. Needs root, as sshd does. In a Slurm job a
step of it is asked for, too.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from measurement.addresses import LOOPBACK, free_port
from measurement.agent.ringside_agent.supervision.rank_supervisor import greet
from runners.processes.local import find_program
from runners.processes.supervisor_server import SupervisorServer

TIMES = 5
ANSWERS_S = 30.0
"""Within which a server or a connection must have answered."""
IMPORTS = ("", "import torch", "import runners.rank.engine, torch.distributed")


@contextmanager
def sshd() -> Iterator[list[str]]:
    """A server with its defaults; the argv that reaches it."""
    server, keygen = find_program("sshd"), shutil.which("ssh-keygen")
    if os.geteuid() or not server or not keygen:
        sys.exit("this needs root, sshd and ssh-keygen (Debian: apt-get install openssh-server)")
    Path("/run/sshd").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ringside-sshd-", dir="/run") as folder:
        key, port = Path(folder) / "key", free_port()
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        options = {
            "HostKey": key,
            "AuthorizedKeysFile": f"{key}.pub",
            "ListenAddress": LOOPBACK,
            "Port": port,
        }
        fixed = {
            "UsePAM": "no",
            "PidFile": "none",
            "StrictModes": "no",
            "PermitRootLogin": "prohibit-password",
        }
        config = Path(folder) / "config"
        config.write_text("".join(f"{name} {value}\n" for name, value in (options | fixed).items()))
        process = subprocess.Popen([server, "-D", "-f", config], stderr=subprocess.DEVNULL)
        try:
            unknown = [
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "LogLevel=ERROR",
            ]
            reach = [
                "ssh",
                "-F",
                "none",
                "-i",
                str(key),
                "-o",
                "BatchMode=yes",
                *unknown,
                "-p",
                str(port),
                LOOPBACK,
            ]
            deadline = time.monotonic() + ANSWERS_S
            while subprocess.run(
                [*reach, "true"], capture_output=True, check=False, timeout=ANSWERS_S
            ).returncode:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(
                        f"sshd ended with code {process.poll()}, or let nobody in within {ANSWERS_S:g} s"
                    )
                time.sleep(0.1)
            yield reach
        finally:
            process.terminate()
            process.wait(10)


def storm(reach: Sequence[str], number: int) -> int:
    """Connect so often at once; how many the server dropped, or left without an answer."""
    processes = [
        subprocess.Popen([*reach, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(number)
    ]
    deadline = time.monotonic() + 2 * ANSWERS_S
    return sum(not _is_in(process, deadline) for process in processes)


def _is_in(process: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        return process.wait(max(0.1, deadline - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


def show(what: str, act: Callable[[], object]) -> None:
    """Print the CPU and wall milliseconds of one act, the mean of some."""
    began, cpu = time.perf_counter(), cpu_s()
    for _ in range(TIMES):
        act()
    print(
        f"| {what} | {1e3 * (cpu_s() - cpu) / TIMES:.1f} | {1e3 * (time.perf_counter() - began) / TIMES:.0f} |",
        flush=True,
    )


def show_horovod() -> None:
    """Ask the server over which Horovod's ranks meet, where Horovod is installed."""
    try:
        from horovod.runner.http.http_client import put_data_into_kvstore, read_data_from_kvstore
        from horovod.runner.http.http_server import KVStoreServer
    except ImportError:
        return
    server = KVStoreServer(verbose=False)
    port = server.start_server()
    put_data_into_kvstore(LOOPBACK, port, "scope", "key", "value")
    show(
        "100 GETs from Horovod's HTTP server",
        lambda: [read_data_from_kvstore(LOOPBACK, port, "scope", "key") for _ in range(100)],
    )
    server.shutdown_server()


def cpu_s() -> float:
    """CPU seconds of this process and the children that it waited for."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Print a table of single costs, then the storms."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--storms", type=int, nargs="+", default=[8, 16, 32, 64])
    given = parser.parse_args()
    from torch.distributed import TCPStore

    store = TCPStore(
        LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
    )
    supervisors = SupervisorServer(address=LOOPBACK, key="k")
    host, _, port = supervisors.address.rpartition(":")
    clients, ranks = [], iter(range(TIMES))
    print("| once | CPU ms | wall ms |\n|---|---|---|")
    for line in IMPORTS:
        show(
            f"python, {line or 'nothing imported'}",
            lambda line=line: subprocess.run([sys.executable, "-c", line], check=True),
        )
    show(
        "a client of c10d's store",
        lambda: clients.append(
            TCPStore(LOOPBACK, store.port, is_master=False, wait_for_workers=False)
        ),
    )
    show(
        "a supervisor's greeting",
        lambda: clients.append(
            greet((host, int(port)), "k", ["a", "0", "0", str(next(ranks)), "9", "h", "1"])
        ),
    )
    store.set("key", "value")
    show("100 GETs from c10d's store", lambda: [clients[0].get("key") for _ in range(100)])
    show_horovod()
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "1",
        "--no-python",
        "true",
    ]
    show(
        "torchrun with its rendezvous, of one rank that does nothing",
        lambda: subprocess.run(torchrun, check=True),
    )
    if "SLURM_JOB_ID" in os.environ:
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet", "true"]
        show("a step of a Slurm job (the client's CPU)", lambda: subprocess.run(step, check=True))
    with sshd() as reach:
        show(
            "ssh HOST true (the client's CPU)", lambda: subprocess.run([*reach, "true"], check=True)
        )
        print("\n| connections at once to one sshd | dropped |\n|---|---|")
        for number in given.storms:
            print(f"| {number} | {storm(reach, number)} |", flush=True)


if __name__ == "__main__":
    main()
