"""The first process of a lab's host, and PID 1 in it: gives it a name, cores and places of its own,
starts sshd, reaps orphans.

Run by its path, in new namespaces, as ``python -I -S host_init.py NAME CORES ETC DAEMONS SSHD
ARGUMENTS...``; standard library only. Says "ready" on its standard output once sshd takes
connections and the daemons (a JSON list of commands) are started, and lives until it is killed,
which kills all else in the host.
"""

import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import time
from pathlib import Path

START_S = 15.0


def main() -> None:
    """Set the host up, then wait for ever."""
    name, cores, etc, daemons, *sshd = sys.argv[1:]
    os.sched_setaffinity(0, map(int, cores.split(",")))
    socket.sethostname(name)
    make_own_places(Path(etc))
    server = subprocess.Popen(sshd, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    wait_until_listening(server)
    for command in json.loads(daemons):
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print("ready", flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reap_for_ever()


def make_own_places(etc: Path) -> None:
    """Shared memory, run-time files and interfaces of the host's own, and its files of /etc over
    the machine's."""
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    mount("-t", "sysfs", "sysfs", "/sys")
    for folder in ("sshd", "lock", "munge"):
        Path("/run", folder).mkdir()
    # whose settings would go before the lab's
    if (users := Path(pwd.getpwuid(0).pw_dir, ".ssh")).is_dir():
        mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs", str(users))
    for file in etc.rglob("*"):
        if file.is_file():
            mount("--bind", str(file), str(Path("/etc") / file.relative_to(etc)))


def mount(*arguments: str) -> None:
    """Mount something in this host's view of the files, which no one else sees."""
    subprocess.run(["mount", *arguments], check=True)


def wait_until_listening(server: subprocess.Popen[bytes]) -> None:
    """Until sshd takes connections."""
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 22), timeout=1):
            return
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("sshd does not listen on port 22")
        time.sleep(0.02)


def reap_for_ever() -> None:
    """Take leave of every process that has no other parent left; where sshd itself ends, the host
    lives on without."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
