"""Ends our commands and ranks with the right exit code, and without the interpreter's teardown.

In that teardown Gloo may abort after correct results, libraries wait for lost peers, and some print
what they leaked.
"""

import atexit
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from measurement.agent.ringside_agent.reporting import leave
from measurement.environment import own_identity, temporary_folder
from measurement.errors import PlanError, RingsideError, printable
from measurement.registry import require_own_runners

EXIT_BAD_INPUT = 2


def leave_in_order(code: int) -> NoReturn:
    """Run the functions registered with ``atexit``, finalize MPI if the code is 0, and end.

    mpi4py finalizes MPI in the interpreter's teardown, which is skipped here. ``mpirun`` counts
    ranks that did not finalize as failed.
    """
    atexit._run_exitfuncs()
    if code == 0 and "mpi4py.MPI" in sys.modules:
        from backends.mpi.library import finalize

        finalize()
    leave(code)


def run_command(command: Callable[[], Any]) -> NoReturn:
    """Run a command line and end this process with its exit code; SIGTERM and SIGHUP interrupt it
    as Ctrl-C does.
    """
    # c10d reports each wait that times out, and the driver waits in turns
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) is not signal.SIG_IGN:  # nohup sets it
            signal.signal(name, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # as on stderr: the terminal's encoding must not raise
        sys.stdout.reconfigure(errors="backslashreplace")
    code = exit_code_of(partial(_run_in_order, command))
    leave_in_order(interrupted_code() if _interruptions else code)  # typer handles only Ctrl-C


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run a command line; ``RingsideError`` becomes one message on stderr and exit code 2."""
    try:
        command()
    except RingsideError as error:
        say_once(error)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return interrupted_code()
    except SystemExit as end:
        if isinstance(end.code, str):  # as the interpreter does
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


def _run_in_order(command: Callable[[], Any]) -> None:
    """Run a command line once the current folder can be read and variables are set."""
    try:
        Path.cwd()
    except OSError as error:
        raise PlanError(
            f"the current folder cannot be read: {error.strerror}; cd to one that exists"
        ) from error
    require_own_runners(os.environ)
    os.environ.update(own_identity(os.environ))
    os.environ.update(temporary_folder(os.environ))
    command()


def say_once(error: RingsideError) -> None:
    """Print an error on stderr, unless it was before."""
    if not error.was_reported:
        print(f"ringside: {printable(str(error))}", file=sys.stderr, flush=True)
    error.was_reported = True


PATIENCE_S = 10.0
"""How long after an interruption others are ignored, while measurements are written."""
_interruptions: list[tuple[float, int]] = []


def interrupted_code() -> int:
    """The exit code after an interruption: 128 and the signal's number."""
    return 128 + (_interruptions[0][1] if _interruptions else signal.SIGINT)


def _interrupt(number: int, _: object) -> None:
    """Interrupt, once: processes are ended and measurements kept."""
    now = time.monotonic()
    if _interruptions and now - _interruptions[-1][0] < PATIENCE_S:
        os.write(2, b"ringside: already stopping: ending processes and writing what was measured\n")
        return
    _interruptions.append((now, number))
    raise KeyboardInterrupt
