"""One rank of a script: it connects at its first step, reports after the first few, and then does as the driver says.

Commands are read at an iteration's end only, inside the optimizer's hook, where no collective is under way.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from typing import Any

from . import blocks, endings
from .channel import Channel, join
from .place import Place, find_place
from .reading import reports
from .reading.first_steps import FirstSteps
from .recorder import Recorder
from .reporting import message_of, never_compile, say, uncompiled
from .settings import COMPARED_STEPS, RANK_VARIABLE, Settings


class Rank:
    """Holds the script's end of the conversation with the driver."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.settings, self.recorder = settings, recorder
        self.place = Place()
        self.channel: Channel | None = None
        self.first = FirstSteps(settings, recorder)
        self._forwards_s: deque[float] = deque(maxlen=256)
        self._block: blocks.Block | None = None
        recorder.on_batch = self.first.on_batch
        recorder.before_backward = self._before_backward
        recorder.before_step, recorder.after_step, recorder.failed = self._before_step, self._after_step, self.fail

    def forget_after_fork(self) -> None:
        """In a process that a rank has forked: be none."""
        if self.channel is not None:
            self.recorder.off = self.channel.is_over = True
            self.channel.close()

    def _before_step(self, optimizer: Any, is_nested: bool) -> None:
        if self.channel is None:
            self._claim()
        self.first.noted(self.first.before_step, optimizer, is_nested)

    def _before_backward(self) -> None:
        self.first.noted(self.first.before_backward)

    def _after_step(self, optimizer: Any) -> None:
        if self.channel is None:
            self._claim()
        self.first.noted(self.first.after_step, optimizer, self.recorder.will_end(optimizer))

    def _claim(self) -> None:
        """Become a rank: start the supervisor, connect, and count the steps that are compared."""
        never_compile(*self.recorder.hot)
        endings.show_stack_on_signal()
        settings, place = self.settings, find_place(self.settings)
        self.place, self.first.script.world_size = place, place.world_size
        os.environ[RANK_VARIABLE] = str(os.getpid())
        python = settings.python if os.access(settings.python, os.X_OK) else sys.executable
        self.channel = join(
            settings.driver,
            settings.key_file,
            settings.arm,
            settings.launch,
            place.rank,
            world_size=place.world_size,
            start=settings.start,
            python=python,
        )
        endings.watch(self.channel, self.recorder)
        self.recorder.left, self.recorder.at_boundary = COMPARED_STEPS, uncompiled(self._start)

    def _start(self) -> None:
        """Report after the compared steps, and go on as the driver says."""
        recorder = self.recorder
        recorder.before_step = recorder.after_step = recorder.before_backward = recorder.on_batch = None
        self.first.stop_autocast()
        report = reports.rank_report(self.first.script, self.place)
        self._obey({"kind": "started", "report": report, "script": self.first.report(self.place.rank)})

    def _obey(self, started: dict[str, Any]) -> None:
        """Carry out commands until one lets the script go on. Where the driver has gone, the process ends."""
        channel = self.channel
        assert channel is not None
        while True:
            try:
                command = json.loads(channel.receive())
            except ConnectionError:
                endings.leave(1)
            if command["do"] == "start":
                self._reply(started)
            elif command["do"] == "block":
                self._block = self._new_block(command)
                self._block.begin(self._end_block)
                return
            elif command["do"] == "finish":
                self._finish()
            else:
                self._reply(endings.error_reply(f"a script has no '{command['do']}'"))

    def _new_block(self, command: dict[str, Any]) -> blocks.Block:
        told = {"rank": self.place.rank, "start": self.settings.start}
        script = self.first.script
        return blocks.Block(command, recorder=self.recorder, script=script, forwards_s=self._forwards_s, told=told)

    def _end_block(self, reply: dict[str, Any]) -> None:
        self._reply(reply)
        self._obey({})

    def _finish(self) -> None:
        """Report a last time and end, in the middle of the script."""
        script = self.first.script
        report, drift = reports.rank_report(script, self.place), reports.drift(script)
        self._reply({"kind": "finished", "report": report, "peak_memory_bytes": reports.peak_memory_bytes(script), "drift": drift})
        assert self.channel is not None
        self.channel.is_over = True
        endings.leave(0)

    def _reply(self, message: dict[str, Any]) -> None:
        assert self.channel is not None
        try:
            self.channel.reply(json.dumps(message))
        except OSError:
            endings.leave(1)

    def fail(self, error: BaseException) -> None:
        """Something went wrong in the agent: tell the driver, and let the script go on without it."""
        self.recorder.off = True
        message = f"the agent failed: {message_of(error)}"
        say(message)
        if self.channel is not None:
            endings.tell(self.channel, self.recorder, endings.error_reply(message, endings.agent_lines(error)))
