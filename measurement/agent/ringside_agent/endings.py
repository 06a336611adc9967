"""How a script ends, and how the driver hears of it: by an exception, by ``sys.exit`` or at its last line; or by our command."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from typing import Any, NoReturn, Sequence

from .channel import Channel
from .recorder import Recorder
from .reporting import guarded, message_of, say
from .users_lines import place_of

COMMAND_S = 5.0
"""Within which a command that waits for this rank must have come, where the script has ended before its first report."""


def watch(channel: Channel, recorder: Recorder) -> None:
    """Have the driver told when this process ends by itself."""
    known: dict[str, Any] = {"code": None}
    shown, leave_by = sys.excepthook, sys.exit

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        guarded(tell_error, channel, recorder, error)
        shown(kind, error, trace)

    def ended_by(status: Any = None, *more: Any) -> NoReturn:
        known["code"] = status if isinstance(status, int) else 0 if status is None else 1
        known["error"] = sys.exc_info()[1]
        leave_by(status, *more)

    def at_end() -> None:
        for error in (sys.exc_info()[1], known.get("error") if known["code"] else None):
            if isinstance(error, Exception):
                guarded(tell_error, channel, recorder, error)
        guarded(tell, channel, recorder, {"kind": "ended", "steps": recorder.iterations, "exit_code": known["code"]})

    sys.excepthook = excepthook
    sys.exit = ended_by
    atexit.register(at_end)
    if multiprocessing.current_process().name != "MainProcess":  # which ends without atexit
        from multiprocessing.util import Finalize

        Finalize(None, at_end, exitpriority=100)


def show_stack_on_signal() -> None:
    """Have SIGUSR1, which the driver sends to a rank that hangs, print all stacks, unless the script uses it."""
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR1, file=2)


def tell_error(channel: Channel, recorder: Recorder, error: BaseException) -> None:
    """Report an exception of the script's."""
    if isinstance(error, SystemExit):
        return
    place = place_of(error)
    where, excerpt = (f", at {place}", [f"  {line}" for line in place.excerpt()]) if place else ("", [])
    tell(channel, recorder, error_reply(message_of(error) + where, excerpt))


def tell(channel: Channel, recorder: Recorder, message: dict[str, Any]) -> None:
    """Answer the command that is out, or the first, which may not have been read yet."""
    if channel.is_over:
        return
    channel.is_over = recorder.off = True
    with contextlib.suppress(OSError):  # no command came, or the driver has gone
        if channel.outstanding is None:
            channel.receive(timeout_s=COMMAND_S)
        channel.reply(json.dumps(message))


def error_reply(message: str, excerpt: Sequence[str] = ()) -> dict[str, Any]:
    """What the driver hears of an exception."""
    return {"kind": "error", "cause": "exception", "message": message, "excerpt": list(excerpt), "at_s": time.time()}


def agent_lines(error: BaseException) -> list[str]:
    """Where in the agent an exception arose."""
    return [f"  {os.path.basename(one.filename)}:{one.lineno}, {one.name}" for one in traceback.extract_tb(error.__traceback__)]


def leave(code: int) -> NoReturn:
    """End this process in the middle of the script, with what its launcher asks for: libraries are shut down where all ranks are.

    Nothing of the script's own runs any more, such as saving a model.
    """
    for child in multiprocessing.active_children():
        child.terminate()
    if code == 0:
        horovod: Any = sys.modules.get("horovod.torch")
        if horovod is not None and horovod.is_initialized():
            guarded(horovod.shutdown)
        mpi: Any = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", None)
        if mpi is not None and mpi():
            guarded(sys.modules["mpi4py.MPI"].Finalize)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
            stream.flush()
    if code:
        say("the driver has gone, so this rank ends")
    os._exit(code)
