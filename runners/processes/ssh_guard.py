"""The far end of a launcher started over ssh: ``python -m runners.leash COMMAND ARGUMENTS``, the run's mark in its environment.

ssh that is killed ends nothing where it led to, and a launcher that is killed may leave its ranks, frozen ones above all. So the
driver holds this process's standard input open: when that closes, however it came, all that carries the run's mark here is killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from runners.marked import MARK, end_marked

CANNOT_START = 127


def main(argv: Sequence[str]) -> int:
    """Run the command until it, or the driver, ends; nothing of the run stays. Returns its exit code, as a shell has it."""
    signal.signal(signal.SIGTERM, lambda *_: os.close(sys.stdin.fileno()))
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"ringside: '{argv[0]}' cannot be started on {socket.gethostname()}: {error}", file=sys.stderr)
        return CANNOT_START
    try:
        wait(process)
    finally:
        end_marked(os.environ[MARK])
    code = process.wait()
    return code if code >= 0 else 128 - code


def wait(process: subprocess.Popen[bytes]) -> None:
    """Until the process has ended or standard input is closed; nothing is ever sent over it."""
    ended = os.pidfd_open(process.pid)
    ready: list[int] = []
    while ended not in ready:
        try:
            ready, _, _ = select.select([ended, sys.stdin.fileno()], [], [])
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
                return
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
