"""Ends our commands and ranks with the right exit code, and without the interpreter's own teardown.

In that teardown Gloo may abort after correct results, libraries wait for peers that have gone, and some print what they leaked.
"""

import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from measurement.errors import RingsideError
from measurement.text import printable

EXIT_BAD_INPUT = 2


def leave(code: int) -> NoReturn:
    """End at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def leave_in_order(code: int) -> NoReturn:
    """Run the functions registered with ``atexit``, finalize MPI if the code is 0, and end.

    mpi4py finalizes MPI in the interpreter's teardown, which is skipped here; ``mpirun`` counts a rank that did not as failed.
    """
    atexit._run_exitfuncs()
    if code == 0 and "mpi4py.MPI" in sys.modules:
        from backends.mpi_library import finalize

        finalize()
    leave(code)


def run_command(command: Callable[[], Any]) -> NoReturn:
    """Run a command line and end this process with its exit code; SIGTERM and SIGHUP interrupt it as Ctrl-C does."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # c10d reports each wait that times out, and the driver waits in turns
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(name, _interrupt)
    code = exit_code_of(command)
    leave_in_order(interrupted_code() if _interruptions else code)  # typer knows of Ctrl-C only


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run a command line; ``RingsideError`` becomes one message on stderr and exit code 2."""
    try:
        command()
    except RingsideError as error:
        say_once(error)
        return EXIT_BAD_INPUT
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def say_once(error: RingsideError) -> None:
    """Print an error on stderr, unless it was before."""
    if not error.is_said:
        print(f"ringside: {printable(str(error))}", file=sys.stderr, flush=True)
    error.is_said = True


PATIENCE_S = 10.0
"""After an interruption others are ignored for so long: what was measured is being written."""
_interruptions: list[tuple[float, int]] = []


def interrupted_code() -> int:
    """The exit code after an interruption: 128 and the signal's number."""
    return 128 + (_interruptions[0][1] if _interruptions else signal.SIGINT)


def _interrupt(number: int, _: object) -> None:
    """Interrupt, once: processes are ended and measurements kept."""
    now = time.monotonic()
    if _interruptions and now - _interruptions[-1][0] < PATIENCE_S:
        os.write(2, b"ringside: being interrupted: ending processes and keeping what was measured\n")
        return
    _interruptions.append((now, number))
    raise KeyboardInterrupt
