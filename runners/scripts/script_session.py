"""One script in one launch: as any arm's session, but that it may come to its own end, and is then started anew."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measurement.errors import cut
from measurement.records.record import RankSteps
from runners.driver.arm_channel import ArmChannel, Expected, raise_if
from runners.driver.arm_processes import LAST_WORDS, LAUNCHER_LOG, ArmProcesses
from runners.driver.arm_session import EXIT_TIMEOUT_S, ArmSession, Exchange
from runners.driver.diagnosis import SETTLE_S, ArmFailed, Diagnosis
from runners.driver.endpoint import DriverEndpoint
from runners.planning.arms import LaunchedArm
from runners.probe.ringside_probe.settings import COMPARED_STEPS
from runners.protocol.messages import BlockCommand, BlockReply, Command, EndedReply, ErrorReply, Reply, StartCommand, StartedReply
from runners.scripts.arrival import first_traceback, hint_of, look_at, why_others, why_silent
from runners.scripts.script_setup import ScriptSetup, ScriptStart

MOST_LOG_CHARACTERS = 1 << 20
ENDING_S = 10.0
"""So long after one rank has come to its end the others are waited for."""


class ScriptEnded(Exception):  # noqa: N818 - what scripts do
    """The script came to its end before it had carried out a command."""

    def __init__(self, steps: int | None) -> None:
        """``steps``: that it took in all, where a rank said so."""
        super().__init__(steps)
        self.steps = steps


@dataclass(eq=False, kw_only=True)
class ScriptDiagnosis(Diagnosis):
    """Names the cause where the probe did not arrive, too."""

    ranks: int
    run_id: str
    has_reported: bool
    """Whether its ranks have, in this start or an earlier one."""

    def of_silence(self, silent: Sequence[int], *, timeout_s: float) -> ArmFailed:
        """Name ranks that do not answer; where none has ever reported, say why that may be."""
        if self.has_reported or len(silent) < self.ranks or self.supervisors.of(self.arm, self.launch):
            return super().of_silence(silent, timeout_s=timeout_s)
        why = why_silent(look_at(self.run_id, self.processes.pids))
        excerpt = self.processes.last_words([])
        failed = self.failed(f"no rank reported within {timeout_s:g} s: {why}", excerpt=excerpt)
        failed.status = "timeout"
        return failed

    def of_others(self) -> ArmFailed | None:
        """Name ranks that are others than the command was taken to start: waited for in vain, or left out of what is timed."""
        connected = [one for one in self.supervisors.of(self.arm, self.launch).values() if not one.is_gone]
        why = why_others(connected, self.supervisors.refused(self.arm, self.launch), ranks=self.ranks)
        return self.failed(why) if why else None

    def _suspects(self) -> list[str]:
        hint = hint_of("\n".join(self.processes.log_tails([]).values()))
        if hint is None and not self.has_reported and set(self.processes.codes) == {0}:
            hint = "it ended without a step that the probe saw; does it train, by torch.optim, and is its Python the right one?"
        return [hint] if hint else []

    def _launchers_words(self) -> list[str]:
        """The script's own exception, behind which launchers print much."""
        with contextlib.suppress(OSError), self.processes.launchers_log.open(encoding="utf-8", errors="replace") as file:
            if found := first_traceback(file.read(MOST_LOG_CHARACTERS)):
                return [cut(line) for line in found[-LAST_WORDS:]]
        return super()._launchers_words()

    def _hosts(self, ranks: Sequence[int]) -> list[str]:
        known = self.supervisors.of(self.arm, self.launch)
        return sorted({known[rank].host for rank in ranks if rank in known})


class ScriptChannel(ArmChannel):
    """Commands and replies of a script, which may end by itself: that raises ``ScriptEnded``."""

    def __init__(self, endpoint: DriverEndpoint, diagnosis: ScriptDiagnosis, processes: ArmProcesses, *, number: int) -> None:
        """``number``: of the next command; those of earlier starts have smaller ones."""
        super().__init__(endpoint.supervisors, diagnosis)
        self.number = number
        self._script, self._processes = diagnosis, processes
        self._ended_s: float | None = None
        """When the first rank was seen to have ended."""

    def _replies(self, *, timeout_s: float) -> list[Reply]:
        replies = super()._replies(timeout_s=timeout_s)
        if not any(isinstance(reply, ErrorReply) for reply in replies):
            raise_if(self._script.of_others())
            self._raise_if_ended(dict(enumerate(replies)))
        return replies

    def _raise_if_dead(self, missing: dict[str, int], heard: dict[int, Reply]) -> None:
        """A rank that ends takes its launcher with it, sooner or later: neither is a death."""
        raise_if(self._script.of_others())
        if any(isinstance(reply, EndedReply) for reply in heard.values()):
            self._ended_s = self._ended_s or time.monotonic()
            if time.monotonic() - self._ended_s > ENDING_S:
                self._raise_if_ended(heard)
        elif self._script.has_reported and self._processes.codes and set(self._processes.codes) == {0}:
            time.sleep(SETTLE_S)
            self._take_all(missing, heard)
            self._raise_if_ended(heard)
            raise ScriptEnded(None)
        else:
            super()._raise_if_dead(missing, heard)

    def _raise_if_ended(self, heard: Mapping[int, Reply]) -> None:
        ended = {rank: reply for rank, reply in heard.items() if isinstance(reply, EndedReply)}
        if not ended:
            return
        steps = max(reply.steps for reply in ended.values())
        bad = next((rank for rank, reply in ended.items() if reply.exit_code), None)
        if bad is not None:
            message = f"rank {bad} ended itself with code {ended[bad].exit_code} after {steps} steps"
            raise self._script.failed(message, ranks=[bad], excerpt=self._processes.last_words([]))
        raise ScriptEnded(steps)


class ScriptSession(ArmSession):
    """Starts the ranks of a script and talks to them."""

    def __init__(
        self,
        setup: ScriptSetup,
        *,
        launch: int,
        folder: Path,
        endpoint: DriverEndpoint,
        state: dict[str, str],
        say: Callable[[str], None],
        padding_bytes: int = 0,
    ) -> None:
        """``state``: see ``ScriptStart``; ``say`` tells the user."""
        self._setup, self._endpoint, self._state, self._say = setup, endpoint, state, say
        self.counts_iterations = False
        """Whether a step counts as one, since samples cannot be counted in every arm."""
        super().__init__(setup, launch=launch, folder=folder, endpoint=endpoint, padding_bytes=padding_bytes)

    def _begin(self, setup: LaunchedArm, endpoint: DriverEndpoint) -> None:
        number = self._channel.number if self.starts > 1 else 0
        place = self._endpoint.placement.keeping_hosts(self._world_size)
        run_id = f"{endpoint.run_id}-{self._launch}-{self.name}-{self.starts}"
        start = ScriptStart(
            launch=self._launch,
            start=self.starts - 1,
            run_id=run_id,
            endpoint=endpoint,
            placement=place,
            state=self._state | ({"state": "load"} if self._state and self.starts > 1 else {}),
            padding_bytes=self._padding_bytes,
        )
        self.commands = self._setup.commands(start)
        self._processes = ArmProcesses(self.commands, run_id=run_id, folder=self._folder, placement=place)
        diagnosis = ScriptDiagnosis(
            self.name,
            self._launch,
            supervisors=endpoint.supervisors,
            processes=self._processes,
            placement=place,
            ranks=self._world_size,
            run_id=run_id,
            has_reported=self.starts > 1,
        )
        self._diagnosis = self._script = diagnosis
        self._channel = ScriptChannel(self._endpoint, diagnosis, self._processes, number=number)

    def log_of(self, rank: int) -> Path:
        """All ranks print through their launcher."""
        return self._folder / LAUNCHER_LOG

    def await_ready(self) -> list[StartedReply]:
        """Wait until all ranks have taken the steps that are compared."""
        try:
            replies = super().await_ready()
        except ScriptEnded as ended:
            raise self._diagnosis.failed(
                f"the script ends {_after(ended)}, within the first {COMPARED_STEPS} steps, which are compared; give it more steps",
                excerpt=self._processes.last_words([]),
            ) from ended
        self._script.has_reported = True
        return replies

    def exchange(self, command: Command, expected: type[Expected], *, timeout_s: float) -> Exchange[Expected]:
        """Exchange a command for replies; a script that ends is started anew, once, and given the command again."""
        try:
            done = self._exchanged(command, expected, timeout_s=timeout_s)
        except ScriptEnded as ended:
            began = time.monotonic()
            self._start_anew(ended)
            self.restarting_s += time.monotonic() - began
            try:
                done = self._exchanged(command, expected, timeout_s=timeout_s)
            except ScriptEnded as again:
                raise self._diagnosis.failed(_too_short(again, command)) from again
        return done

    def _exchanged(self, command: Command, expected: type[Expected], *, timeout_s: float) -> Exchange[Expected]:
        done = super().exchange(command, expected, timeout_s=timeout_s)
        if self.counts_iterations:
            for reply in done.replies:
                if isinstance(reply, BlockReply):
                    _count_iterations(reply.steps)
        return done

    def _start_anew(self, ended: ScriptEnded) -> None:
        """End what is left of the script, and bring a new start of it to where the first one was."""
        if self.starts == 1:
            self._say(f"{self.name} ends {_after(ended)}; it is started anew, as often as needed")
        self._processes.wait(timeout_s=EXIT_TIMEOUT_S)
        self.end()
        self._supervisors.restart(self.name, self._launch, self.starts)
        self.starts += 1
        self._begin(self._setup, self._endpoint)
        self._frozen = False
        self.started_s = time.monotonic()
        self._channel.send(StartCommand())
        with self._failing_alone():
            self._processes.start()
        self.await_ready()
        self.freeze()


def _after(ended: ScriptEnded) -> str:
    return "by itself" if ended.steps is None else f"after {ended.steps} step{'s' if ended.steps != 1 else ''}"


def _too_short(ended: ScriptEnded, command: Command) -> str:
    needed = command.warmup_steps + command.steps if isinstance(command, BlockCommand) else 0
    return (
        f"the script ends {_after(ended)}; a block needs {needed} behind those that are compared: give it more epochs, or set "
        "measurement.block_steps"
    )


def _count_iterations(steps: RankSteps) -> None:
    """Let a step count as one, on rank 0."""
    steps.samples = [int(steps.rank == 0)] * len(steps.samples)
