"""How a script ends, and how that is reported: by an exception, by ``sys.exit``, at its last line,
or by our command.
"""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Mapping, NoReturn

from .reporting import STARTED, at_exit, call_safely, run_at_exit, say
from .users_lines import describe, error_reply

END_TIMEOUT_S = 5.0
"""Time limit for a script's ``finally`` clauses and ``atexit`` functions."""

Tell = Callable[[Mapping[str, Any]], None]


def watch(tell: Tell, steps: Callable[[], int]) -> None:
    """Report to the driver when this process ends by itself.

    ``tell`` sends the last reply; ``steps`` counts the steps taken.
    """
    ending: dict[str, Any] = {"code": None}
    shown, leave_by = sys.excepthook, sys.exit

    def tell_error(error: BaseException) -> None:
        if not isinstance(error, SystemExit):
            tell(error_reply(describe(error)))

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        call_safely(tell_error, error)
        shown(kind, error, trace)

    def ended_by(status: Any = None, *more: Any) -> NoReturn:
        ending["code"] = status if isinstance(status, int) else 0 if status is None else 1
        ending["error"] = sys.exc_info()[1]
        leave_by(status, *more)

    def at_end() -> None:
        for error in (sys.exc_info()[1], ending.get("error") if ending["code"] else None):
            if isinstance(error, Exception):
                call_safely(tell_error, error)
        call_safely(tell, {"kind": "ended", "steps": steps(), "exit_code": ending["code"]})

    sys.excepthook = excepthook
    sys.exit = ended_by
    atexit.register(at_end)
    at_multiprocessing_end(at_end, priority=100)


def at_multiprocessing_end(act: Callable[[], None], *, priority: int) -> None:
    """Call a function when a process of multiprocessing ends, which may happen without atexit."""
    if multiprocessing.current_process().name != "MainProcess":
        from multiprocessing.util import Finalize

        Finalize(None, act, exitpriority=priority)


def show_stack_on_signal() -> None:
    """Print all stacks on SIGUSR1, which the driver sends to a rank that hangs, unless the script
    handles that signal.
    """
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR1, file=2)


def end_script(leave: Callable[[int], Any]) -> NoReturn:
    """Raise ``SystemExit`` in the middle of a script, so that its ``finally`` and ``atexit`` run.

    All ranks call it.

    ``leave`` ends the process: after the script's last ``atexit`` function, or where these take too
    long.
    """

    def cut_short() -> None:
        time.sleep(END_TIMEOUT_S)
        say(
            f"the script has not ended within {END_TIMEOUT_S:g} s of its last step, so its"
            " 'finally' and 'atexit' are cut short"
        )
        leave(0)

    at_exit.append(lambda: leave_in_order(leave))
    if os.getpid() != STARTED:
        at_multiprocessing_end(run_at_exit, priority=-sys.maxsize)
    threading.Thread(target=cut_short, daemon=True).start()
    raise SystemExit(0)


def leave_in_order(leave: Callable[[int], Any]) -> None:
    """Shut down Horovod and MPI, as their launchers expect, and leave the process.

    All ranks call it.
    """
    horovod: Any = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        call_safely(horovod.shutdown)
    mpi: Any = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", None)
    if mpi is not None and mpi():
        call_safely(sys.modules["mpi4py.MPI"].Finalize)
    leave(0)
