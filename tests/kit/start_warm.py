"""``python -I -S start_warm.py SOCKET -m MODULE ARGUMENTS``: run a module in a fork of the warm
server.

Where there is none, or this process differs from it in what a fork cannot change, Python starts as
it would.

Whoever starts this sees one process with the module's output and exit code. When it is killed, the
server ends the module.
"""

import array
import json
import os
import signal
import socket
import sys

READ_AT_START = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONMALLOC",
    "PYTHONUTF8",
    "LD_",
    "LC_",
    "TORCH_",
    "TORCHDYNAMO_",
    "PYTORCH_",
)
"""How variables begin that count when a process starts: where one is unlike the server's, a fork is
not what was asked for."""
NAMESPACES = ("net", "mnt", "uts", "pid")


def place():
    """What a fork shares with the server, and cannot change."""
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES]  # noqa: PTH115 - this starts in milliseconds, without pathlib
    variables = sorted([*pair] for pair in os.environ.items() if pair[0].startswith(READ_AT_START))
    return [*spaces, os.getuid(), sys.version, variables]


def main(path, *arguments):
    """Hand it to the server, and end as the module does."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError:
            start_cold(arguments)
        asked = {
            "place": place(),
            "arguments": arguments,
            "environment": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109
            "cores": sorted(os.sched_getaffinity(0)),
        }
        streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        connection.sendmsg([b"+"], streams)
        connection.sendall(json.dumps(asked).encode() + b"\n")
        answer = connection.makefile().readline()
    if answer == "elsewhere\n":
        start_cold(arguments)
    code = int(answer or 1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.stdout.flush()
    os._exit(code)


def start_cold(arguments):
    """As it would be without a server."""
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
