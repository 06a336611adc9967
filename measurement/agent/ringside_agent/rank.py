"""One rank of a script: it connects at its first step, reports after the first few, and then does
as the driver says.

Commands are read at an iteration's end only, inside the optimizer's hook, where no collective is
under way.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from functools import partial
from typing import Any, Mapping

from . import blocks, endings, sandbox
from .agent import Agent
from .channel import join
from .machine.host import peak_memory_bytes
from .meeting import Meeting
from .place import World, find_world
from .reading import libraries, reports
from .reading.first_steps import FirstSteps
from .recorder import Recorder
from .reporting import call_safely, message_of, never_compile, say, uncompiled
from .settings import COMPARED_STEPS, RANK_VARIABLE, Settings
from .users_lines import Described, agent_lines, error_reply


class Rank:
    """Connects a script to the driver at its first step, and has the handlers of a script's
    commands.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.settings, self.recorder = settings, recorder
        self.place = World()
        self.agent: Agent | None = None
        self.first = FirstSteps(settings, recorder)
        self._forwards_s: deque[float] = deque(maxlen=256)
        recorder.on_batch, recorder.on_loader = self.first.on_batch, self.first.on_loader
        recorder.unread = self.first.script.unread
        recorder.before_backward = partial(
            self.first.script.record_safely, self.first.before_backward
        )
        recorder.before_step, recorder.after_step, recorder.failed = (
            self._before_step,
            self._after_step,
            self.fail,
        )

    def forget_after_fork(self) -> None:
        """Stop being a rank, in a process that a rank forked."""
        if self.agent is not None:
            self.recorder.off = True
            self.agent.forget()

    def _before_step(self, optimizer: Any, is_nested: bool) -> None:
        if self.agent is None:
            self._claim()
        self.first.script.record_safely(self.first.before_step, optimizer, is_nested)

    def _after_step(self, optimizer: Any) -> None:
        if self.agent is None:
            self._claim()
        self.first.script.record_safely(
            self.first.after_step, optimizer, self.recorder.will_end(optimizer)
        )

    def _claim(self) -> None:
        """Become a rank: start the supervisor, connect, and count the steps that are compared."""
        never_compile(*self.recorder.hot)
        endings.show_stack_on_signal()
        settings, place = self.settings, find_world(self.settings)
        self.place, self.first.script.world_size = place, place.world_size
        os.environ[RANK_VARIABLE] = str(os.getpid())
        python = settings.python if os.access(settings.python, os.X_OK) else sys.executable
        self.agent = Agent(join(settings, place, python=python))
        endings.watch(self._tell_last, lambda: self.recorder.iterations)
        call_safely(libraries.watch_exchange, self.recorder)
        self.recorder.left, self.recorder.at_boundary = COMPARED_STEPS, uncompiled(self._end_first)

    def _end_first(self) -> None:
        """The compared steps are over: go on as the driver says."""
        recorder = self.recorder
        recorder.before_step = recorder.after_step = recorder.before_backward = (
            recorder.on_batch
        ) = recorder.on_loader = None
        self.first.stop_autocast()
        self._obey()

    def _obey(self) -> None:
        """Carry out commands until one lets the script go on, or is the last."""
        assert self.agent is not None
        self.agent.serve({"start": self._start, "block": self._block, "finish": self._finish})
        if self.agent.is_over:  # a script that catches its end ends at its next step
            self.recorder.left = 1
            self.recorder.at_boundary = uncompiled(
                partial(endings.leave_in_order, self.agent.leave)
            )
            endings.end_script(self.agent.leave)

    def _start(self, _: Mapping[str, Any]) -> str:
        places = Meeting(self.settings).asked()
        script = {
            **self.first.report(self.place.rank),
            "ports": places["ports"],
            "store_files": places["store_files"],
        }
        report = reports.rank_report(self.first.script, self.place)
        return json.dumps({"kind": "started", "can": ["block"], "report": report, "script": script})

    def _block(self, command: dict[str, Any]) -> None:
        rank_fields = {"rank": self.place.rank, "start": self.settings.start}
        script = self.first.script
        block = blocks.Block(
            command,
            recorder=self.recorder,
            script=script,
            forwards_s=self._forwards_s,
            rank_fields=rank_fields,
        )
        block.begin(self._end_block)

    def _end_block(self, reply: dict[str, Any]) -> None:
        assert self.agent is not None
        self.agent.reply(json.dumps(reply))
        self._obey()

    def _finish(self, _: Mapping[str, Any]) -> str:
        script = self.first.script
        report, drift = reports.rank_report(script, self.place), reports.drift(script)
        figures = {
            "peak_memory_bytes": peak_memory_bytes(script.device),
            "drift": drift,
            "written_files": sandbox.written(),
        }
        return json.dumps({"kind": "finished", "report": report, **figures})

    def _tell_last(self, message: Mapping[str, Any]) -> None:
        self.recorder.off = True
        if self.agent is not None:
            self.agent.tell_last(message)

    def fail(self, error: BaseException) -> None:
        """Report an error of the agent itself to the driver, and let the script go on without the
        agent.
        """
        self.first.lines.end()
        message = f"the agent failed: {message_of(error)}"
        say(message)
        self._tell_last(error_reply(Described(message, agent_lines(error))))
