"""The far end of a launcher started over ssh: ``python -m runners.processes.ssh_guard COMMAND ARGUMENTS``.

The environment names the run (``RUN_ID``).

Killing ssh does not end the process on the other host, and a killed launcher may leave its ranks behind. So the driver holds this
process's standard input open: when it closes, whatever the reason, all processes of the run on this host are killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from measurement.agent.ringside_agent.supervision.rank_supervisor import open_pidfd
from runners.processes.run_processes import RUN_ID, end_run

CANNOT_START = 127


def main(argv: Sequence[str]) -> int:
    """Run the command until it or the driver ends, then end the run here. Returns its exit code as a shell does."""
    signal.signal(signal.SIGTERM, lambda *_: os.close(sys.stdin.fileno()))
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"ringside: '{argv[0]}' cannot be started on {socket.gethostname()}: {error}", file=sys.stderr)
        return CANNOT_START
    try:
        wait(process)
    finally:
        end_run(os.environ[RUN_ID])
    code = process.wait()
    return code if code >= 0 else 128 - code


def wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended or standard input is closed; nothing is sent over it."""
    ended = open_pidfd(process.pid)
    while process.poll() is None:
        try:
            listening = [sys.stdin.fileno(), *([] if ended is None else [ended])]
            ready, _, _ = select.select(listening, [], [], 0.5 if ended is None else None)
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
                return
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
