"""Ends a comparison's processes on all its hosts after its driver was killed, since a killed driver
cannot.

Supervisors end their ranks. Launchers have no supervisor, nor have a script's ranks before their
first step.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from measurement.errors import LaunchError
from runners.processes import remote, remote_results
from runners.processes.local import base_environment, end_run

TIMEOUT_S = 20.0


@contextmanager
def ended_with_driver(run_id: str, hosts: Sequence[str]) -> Iterator[None]:
    """A context with a process that ends the run here and on other hosts if this process ends."""
    argv = remote.python(__name__, run_id, *hosts)
    # all variables: where podman keeps containers is in some
    environment = {**os.environ, **base_environment()}
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, start_new_session=True
    ) as watch:
        try:
            yield
        finally:
            watch.kill()


def main(run_id: str, *hosts: str) -> None:
    """Wait for the end of standard input, which the driver holds open, and end the run."""
    sys.stdin.read()
    while end_run(run_id):  # until nothing new was started
        pass
    command = remote.python(remote_results.__name__, run_id, "--end")
    with contextlib.suppress(LaunchError):  # of a host that does not answer
        remote.run_on(hosts, command, timeout_s=TIMEOUT_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
