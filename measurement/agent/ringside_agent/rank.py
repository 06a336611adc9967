"""One rank of a script: it connects at its first step, reports after the first few, and then does
as the driver says: blocks of steps, or its end.

Commands are read at an iteration's end only, inside the optimizer's hook, where no collective is
under way.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import deque
from functools import partial
from time import perf_counter_ns
from typing import Any, Mapping, Sequence

from . import agent, machine, sandbox
from .meeting import Meeting
from .place import find_world
from .reading import configuration, libraries
from .reading.first_steps import FirstSteps
from .reading.values import losses_of, means, synchronize
from .recorder import Recorder, Row
from .reporting import call_safely, message_of, never_compile, say, uncompiled
from .settings import COMPARED_STEPS, RANK_VARIABLE, Settings
from .users_lines import Described, agent_lines, error_reply

GAP_TIMES = 10
"""× the usual forward phase: a longer one contains a pause."""
GAP_S = 0.05
"""No shorter one does."""


class Rank:
    """Connects a script to the driver at its first step, and has the handlers of a script's
    commands.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self.settings, self.recorder = settings, recorder
        self.agent: agent.Agent | None = None
        self.first = FirstSteps(settings, recorder)
        self.forwards_s: deque[float] = deque(maxlen=256)
        """Forward phases of the last timed steps, in seconds."""
        recorder.on_batch, recorder.on_loader = self.first.on_batch, self.first.on_loader
        recorder.unread = self.first.script.unread
        recorder.before_backward = partial(
            self.first.script.record_safely, self.first.before_backward
        )
        recorder.before_step, recorder.after_step = self._before_step, self._after_step
        recorder.failed = self.fail

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
        agent.show_stack_on_signal()
        settings = self.settings
        self.first.script.place = place = find_world(settings)
        os.environ[RANK_VARIABLE] = str(os.getpid())
        python = settings.python if os.access(settings.python, os.X_OK) else sys.executable
        self.agent = agent.Agent(agent.join(settings, place, python=python))
        agent.report_end(self._tell_last, lambda: self.recorder.iterations)
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
            self.recorder.at_boundary = uncompiled(self.agent.leave_in_order)
            self.agent.end_script()

    def _start(self, _: Mapping[str, Any]) -> str:
        script = {**self.first.report(), **Meeting(self.settings).asked()}
        report = configuration.rank_report(self.first.script)
        return json.dumps({"kind": "started", "can": ["block"], "report": report, "script": script})

    def _block(self, command: dict[str, Any]) -> None:
        Block(self, steps=int(command["steps"])).begin(int(command["warmup_steps"]))

    def end_block(self, steps: dict[str, Any]) -> None:
        """Reply to a ``block`` command, and obey the next ones."""
        assert self.agent is not None
        drift = configuration.drift(self.first.script)
        self.agent.reply(json.dumps({"kind": "block", "steps": steps, "drift": drift}))
        self._obey()

    def _finish(self, _: Mapping[str, Any]) -> str:
        script = self.first.script
        reply = {
            "kind": "finished",
            "report": configuration.rank_report(script),
            "drift": configuration.drift(script),
            "peak_memory_bytes": machine.peak_memory_bytes(script.device),
            "written_files": sandbox.written(),
        }
        return json.dumps(reply)

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


class Block:
    """Carries out one ``block`` command of a rank.

    A device is waited for where the timed steps begin and end, and never between.
    """

    def __init__(self, rank: Rank, *, steps: int) -> None:
        """``steps``: those that are timed."""
        self._rank, self._recorder, self._script = rank, rank.recorder, rank.first.script
        self._steps, self._first_step = steps, rank.recorder.iterations
        self._received = perf_counter_ns()

    def begin(self, warmup_steps: int) -> None:
        """Start counting steps; the hook of the last one replies."""
        self._recorder.at_boundary = uncompiled(self._time)
        self._recorder.begin(warmup_steps)  # what was counted before is no part of this block
        if not warmup_steps:
            self._time()

    def _time(self) -> None:
        recorder = self._recorder
        synchronize(self._script.device)
        self._warm, self._warm_losses = recorder.rows, losses_of(recorder)
        self._before = machine.read_core_use(machine.usable_cores())
        self._threads = machine.read_threads()
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._untimed_s = (perf_counter_ns() - self._received) / 1e9
        recorder.at_boundary = uncompiled(self._end)
        recorder.begin(self._steps)

    def _end(self) -> None:
        recorder, rank, warm = self._recorder, self._rank, self._warm
        began = recorder.start
        synchronize(self._script.device)
        rows = recorder.rows
        last = rows[-1]
        rows[-1] = last._replace(whole=last.whole + perf_counter_ns() - began)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults
        threads = machine.threads_between(self._threads, machine.read_threads())
        use = machine.core_use_between(self._before, machine.read_core_use(machine.usable_cores()))
        phases = [phases_of(row) for row in rows]
        samples = self._script.samples_of
        skipped = {number for number, row in enumerate(rows) if row.is_skipped}
        # rows in which a fused optimizer found that gradients had overflowed, and changed nothing
        skipped |= {row for row, overflow in recorder.overflows if row >= 0 and float(overflow)}
        steps = {
            "rank": self._script.place.rank,
            "start": rank.settings.start,
            "untimed_s": self._untimed_s + sum(row.left_out for row in rows) / 1e9,
            "samples": [samples(row.samples) for row in rows],
            "phases_s": phases,
            "skipped_steps": len(skipped),
            "first_step": self._first_step,
            "losses": means(warm, self._warm_losses) + means(rows, losses_of(recorder)),
            "loss_samples": [samples(row.samples) for row in [*warm, *rows]],
            "gaps": gaps_in([forward for _, forward, *_ in phases], rank.forwards_s),
            "core_use": use,
            "threads": threads,
            "page_faults": faults,
        }
        rank.end_block(steps)


def phases_of(row: Row) -> list[float]:
    """Seconds of waiting for data, forward, backward, optimizer and waiting for exchange, which sum
    to the step's.
    """
    others = row.wait + row.backward + row.optimizer + row.exchange
    forward = max(0, row.whole - row.left_out - others)
    phases = (row.wait, forward, row.backward, row.optimizer, row.exchange)
    return [time_ns / 1e9 for time_ns in phases]


def gaps_in(forward_s: Sequence[float], known_s: deque[float]) -> list[tuple[int, float]]:
    """Steps that contain a long pause, such as an evaluation, and its seconds.

    ``known_s``: forward phases of earlier blocks, so that a block of one step can be judged. This
    block's are added.
    """
    known_s.extend(forward_s)
    if not forward_s:
        return []
    usual = sorted(known_s)[len(known_s) // 2]
    return [
        (step, seconds)
        for step, seconds in enumerate(forward_s)
        if seconds > max(GAP_S, GAP_TIMES * usual)
    ]
