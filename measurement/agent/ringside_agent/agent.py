"""The agent of a rank, ours or a user's: it obeys the driver's commands, reports errors, and ends
the process.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from typing import Any, Callable, Dict, Mapping, NoReturn, Optional

from .channel import Channel
from .reporting import leave, say

COMMAND_S = 5.0
"""How long an error that comes before the first command waits for that command, to answer it."""
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

    def _end_alone(self, error: OSError) -> NoReturn:
        say(f"the connection to the driver is lost, so this rank ends: {error}")
        self.leave(1)
