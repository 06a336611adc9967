"""The agent of a rank, ours or a user's: its connection to the driver, over which it obeys commands
and reports errors, and how its process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Mapping, NoReturn, Optional

from .place import World
from .reporting import STARTED, at_exit, call_safely, leave, run_at_exit, say
from .settings import Settings
from .supervision import frames
from .supervision.rank_supervisor import THIS_FILE as SUPERVISOR
from .users_lines import describe, error_reply

COMMAND_S = 5.0
"""How long an error that comes before the first command waits for that command, to answer it."""
END_TIMEOUT_S = 5.0
"""Time limit for a script's ``finally`` clauses and ``atexit`` functions."""
PR_SET_CHILD_SUBREAPER = 36
FINISH = "finish"
"""The last command: the rank reports, and ends."""

Handler = Callable[[Dict[str, Any]], Optional[str]]
"""Carries out a command and returns the reply, which is JSON. None: the process goes on, and
replies later."""


def obey(
    handlers: Mapping[str, Handler], receive: Callable[[], bytes], reply: Callable[[str], Any]
) -> bool:
    """Carry out one command after another, from whoever gives them; returns whether ``finish`` was
    answered.

    ``handlers``: by the command's name (``do``). What one raises passes through.
    """
    name = ""
    while name != FINISH:
        command = json.loads(receive())
        name = command["do"]
        if name not in handlers:
            raise ValueError(f"this rank has no '{name}'; it can {', '.join(handlers)}")
        answer = handlers[name](command)
        if answer is None:
            return False
        reply(answer)
    return True


class Agent:
    """One rank's end of the conversation with the driver.

    Commands come one after another, each with one reply.
    """

    def __init__(self, channel: Channel) -> None:
        """``channel``: to the driver."""
        self.channel = channel
        self.is_over = False
        """Whether nothing more is sent to the driver."""

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        """Obey until a handler lets the process go on, or ``finish`` was answered.

        What a handler raises passes through.

        ``handlers``: see ``obey``. Without a connection to the driver, the process ends.
        """

        def receive() -> bytes:
            try:
                return self.channel.receive()
            except ConnectionError as error:
                self._end_alone(error)

        self.is_over = obey(handlers, receive, self.reply)

    def reply(self, text: str) -> None:
        """Answer the pending command. Without a connection to the driver, the process ends."""
        try:
            self.channel.reply(text)
        except OSError as error:
            self._end_alone(error)

    def tell_last(self, reply: Mapping[str, Any]) -> None:
        """Answer the pending command, or the first, which may not have been read yet.

        Nothing is sent after that.
        """
        if self.is_over:
            return
        self.is_over = True
        # no command came, or there is no connection to the driver
        with contextlib.suppress(OSError):
            if self.channel.outstanding is None:
                self.channel.receive(timeout_s=COMMAND_S)
            self.channel.reply(json.dumps(reply))

    def forget(self) -> None:
        """Stop being an agent, in a process that the rank forked."""
        self.is_over = True
        self.channel.close()

    def leave(self, code: int) -> NoReturn:
        """End this process at once, without Python's teardown, and the processes that it started by
        multiprocessing.
        """
        for child in multiprocessing.active_children():
            child.terminate()
        leave(code)

    def end_script(self) -> NoReturn:
        """Raise ``SystemExit`` in the middle of a script, so that its ``finally`` and ``atexit``
        run. The process ends after the last of them, or where they take too long.

        All ranks call it.
        """

        def cut_short() -> None:
            time.sleep(END_TIMEOUT_S)
            say(
                f"the script has not ended within {END_TIMEOUT_S:g} s of its last step, so its"
                " 'finally' and 'atexit' are cut short"
            )
            self.leave(0)

        at_exit.append(self.leave_in_order)
        if os.getpid() != STARTED:
            at_multiprocessing_end(run_at_exit, priority=-sys.maxsize)
        threading.Thread(target=cut_short, daemon=True).start()
        raise SystemExit(0)

    def leave_in_order(self) -> None:
        """Shut down Horovod and MPI, as their launchers expect, and leave the process.

        All ranks call it.
        """
        horovod: Any = sys.modules.get("horovod.torch")
        if horovod is not None and horovod.is_initialized():
            call_safely(horovod.shutdown)
        mpi: Any = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized():
            call_safely(mpi.Finalize)
        self.leave(0)

    def _end_alone(self, error: OSError) -> NoReturn:
        say(f"the connection to the driver is lost, so this rank ends: {error}")
        self.leave(1)


class Channel:
    """Receives commands and sends replies."""

    def __init__(
        self, connection: socket.socket, *, key: str, arm: str, launch: int, rank: int
    ) -> None:
        """``connection``: to the supervisor, see ``join``."""
        connection.settimeout(None)  # a script may have set another default
        self.outstanding: int | None = None
        """Number of the command that has no reply yet."""
        self._connection, self._key = connection, key
        self._arm, self._launch, self._rank = arm, launch, rank
        self._frames = frames.Frames()
        self._read: dict[str, bytes] = {}
        """Messages received before they were asked for, by place."""

    def job(self) -> bytes:
        """Wait for the arm's job.

        Raises:
            ConnectionError: its HMAC is wrong, or the supervisor has ended.
        """
        place = frames.job_key(self._arm, self._launch)
        while place not in self._read:
            self._listen(None)
        return frames.unseal(self._key, place, self._read.pop(place))

    def receive(self, *, timeout_s: float | None = None) -> bytes:
        """Wait for the next command.

        Raises:
            ConnectionError: its HMAC is wrong, or the supervisor has ended.
            TimeoutError: none came in time.
        """
        beginning = frames.commands(self._arm, self._launch)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (commands := [place for place in self._read if place.startswith(beginning)]):
            self._listen(None if deadline is None else deadline - time.monotonic())
        first = commands[0]
        text = frames.unseal(self._key, first, self._read.pop(first))
        self.outstanding = int(first[len(beginning) :])
        return text

    def reply(self, text: str) -> None:
        """Answer the last command.

        A second answer is not sent. Raises an ``OSError`` where the connection is lost.
        """
        if self.outstanding is not None:
            place = frames.reply_key(self._arm, self._launch, self.outstanding, self._rank)
            self.outstanding = None
            self._connection.sendall(frames.say(place, frames.seal(self._key, place, text)))

    def close(self) -> None:
        """Close this process's end."""
        self._connection.close()

    def _listen(self, timeout_s: float | None) -> None:
        if (
            timeout_s is not None
            and not select.select([self._connection], [], [], max(0.0, timeout_s))[0]
        ):
            raise TimeoutError("no command came")
        received = self._connection.recv(frames.AT_ONCE)
        if not received:
            raise ConnectionError("the supervisor of this rank has ended")
        for line, message in self._frames.add(received):
            if line.startswith(frames.SAY):
                self._read.update(frames.messages_in(line, message))


def join(settings: Settings, place: World, *, python: str = sys.executable) -> Channel:
    """Start this rank's supervisor, which connects to the driver; returns the channel.

    ``python`` runs it. It reads the host's counters where that Python has Ringside's packages.
    """
    keep_orphans()
    ours, theirs = socket.socketpair()
    end, held = os.pipe()
    die_when_closed(end)
    who = [
        settings.arm,
        str(settings.launch),
        str(settings.start),
        str(place.rank),
        str(place.world_size),
        socket.gethostname(),
        str(os.getpid()),
    ]
    driver = [settings.driver, settings.key_file, str(theirs.fileno())]
    subprocess.Popen(
        [python, "-I", "-S", SUPERVISOR, *driver, *who],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[held, theirs.fileno()],
    )
    os.close(held)
    theirs.close()
    with open(settings.key_file, encoding="utf-8") as file:
        return Channel(
            ours, key=file.read(), arm=settings.arm, launch=settings.launch, rank=place.rank
        )


def die_when_closed(end: int) -> None:
    """Have the kernel kill this process, stopped or not, once no process holds the other end of a
    pipe.
    """
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | fcntl.FASYNC)


def keep_orphans() -> None:
    """Make this process the parent of its orphaned descendants, so that daemons, too, are found in
    its process tree.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def report_end(tell: Callable[[Mapping[str, Any]], None], steps: Callable[[], int]) -> None:
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
