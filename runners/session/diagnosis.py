"""Finds out why an arm failed: which ranks died, hung, raised or never reported, on which hosts,
and the last lines of logs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from measurement.errors import LaunchError, cut
from measurement.records.record import Failure
from runners.hosts.placement import Placement
from runners.processes.sandbox import Sandbox
from runners.processes.supervisor_server import SupervisedArm, SupervisorServer
from runners.protocol import ErrorReply, Reply, mentions_lost_peer
from runners.scripts.script_failures import (
    SLOW_START,
    explain_no_ranks,
    hint_of,
    lines_of_script,
    look_at,
    scripts_exception,
    why_never,
    why_others,
)
from runners.session.arm_processes import LAST_WORDS, ArmProcesses

SETTLE_S = 1.0
"""How long the driver waits for the others' reports after a rank or launcher has ended."""
TRACE_S = 0.3
LOOK_S = 5.0
"""Seconds between two looks at a script's processes while its ranks have not connected."""
LOOKS = 3
"""How many looks must show the same, so that it is not by chance."""
MAX_LOG_CHARACTERS = 1 << 20

Status = Literal["failed", "wrong", "timeout"]


class ArmFailed(Exception):  # noqa: N818 - an outcome that the driver records, not an error of its own
    """The arm is not timed any further in this launch."""

    def __init__(
        self,
        message: str,
        *,
        status: Status = "failed",
        **details: Any,
    ) -> None:
        """``details``: the other fields of the ``Failure``."""
        super().__init__(message)
        self.failure = Failure(message=message, **details)
        self.status = status


@dataclass(eq=False)
class Diagnosis:
    """Names the cause of a failure of one arm in one launch."""

    arm: str
    launch: int
    _: KW_ONLY
    supervisors: SupervisorServer
    processes: ArmProcesses
    placement: Placement
    run_id: str
    may_end: bool = False
    """Whether its ranks may end by themselves: a script's. Its agent may not start, and its
    launcher chooses hosts."""
    sandbox: Sandbox | None = None
    """In which its script works."""
    has_reported: bool = False
    """Whether all ranks have, in this start or an earlier one."""

    def __post_init__(self) -> None:
        self._next_look_s, self._lost_looks = 0.0, 0
        self._never: str | None = None

    @property
    def _supervised(self) -> SupervisedArm:
        """What its supervisors have reported."""
        return self.supervisors.heard(self.arm, self.launch)

    @property
    def world_size(self) -> int | None:
        """How many ranks there are.

        A script's ranks report it, and the first to connect counts; None: none has connected.
        """
        if not self.may_end:
            return self.placement.world_size
        return next((rank.world_size for rank in self._supervised.ranks.values()), None)

    def looks_dead(self) -> bool:
        """Whether any rank or launcher has ended. Does not wait."""
        return bool(self._supervised.gone) or self.processes.has_ended()

    def has_ended_well(self) -> bool:
        """Whether it is a script whose launchers all ended with code 0 once its ranks had reported.

        Does not wait.
        """
        return self.may_end and self.has_reported and set(self.processes.codes) == {0}

    def for_others(self) -> ArmFailed | None:
        """Name a script's ranks that disagree on the world size."""
        if not self.may_end:
            return None
        connected = [rank for rank in self._supervised.ranks.values() if not rank.is_gone]
        why = why_others(connected, self._supervised.refused)
        return self.failed(why) if why else None

    def for_lost_agent(self) -> ArmFailed | None:
        """Name what keeps a script's ranks from reporting, once several looks at its processes show
        it. Does not wait.
        """
        if not self.may_end or self.has_reported or self._supervised.ranks:
            return None
        if time.monotonic() < self._next_look_s:
            return None
        self._next_look_s = time.monotonic() + LOOK_S
        self._never = why_never(look_at(self.run_id, self.processes.pids))
        self._lost_looks = self._lost_looks + 1 if self._never else 0
        return self.failed(self._never) if self._never and self._lost_looks == LOOKS else None

    def for_exit(self, heard: Mapping[int, Reply]) -> ArmFailed | None:
        """Name the cause after a rank or launcher has ended and the other ranks had time to report.

        Ranks that died without a report cause errors about a lost peer, whichever was seen first: a
        busy host may learn of the death after the peer has. Any other error before the first death
        is a cause itself: for it the launcher ends the other ranks before they can report. So is
        bad input, such as a damaged file. The loss of a host comes before all others.
        """
        silent = {
            rank: self._at(rank, at_s)
            for rank, at_s in self._supervised.gone.items()
            if rank not in heard
        }
        errors = [(rank, reply) for rank, reply in heard.items() if isinstance(reply, ErrorReply)]
        if silent and not any(reply.cause == "bad input" for _, reply in errors):
            causes_s = [
                self._at(rank, reply.at_s)
                for rank, reply in errors
                if not mentions_lost_peer(reply.message)
            ]
            first_s = min(silent.values())
            if self._has_lost_host(silent) or min(causes_s, default=math.inf) >= first_s:
                return self._died(silent)
        raised = self.for_errors(heard)
        if raised is None and self.processes.has_ended():
            return self._unreported()
        return raised

    def for_lost_launcher(self) -> ArmFailed | None:
        """Name a launcher that has ended before its ranks, which may go on for a while; None if a
        rank has ended, too.
        """
        if not self.processes.has_ended():
            return None
        time.sleep(SETTLE_S)
        if self._supervised.gone:
            return None
        return self.failed(
            f"{self.processes.exit_summary()}, before its ranks",
            excerpt=self.processes.last_words([]),
        )

    def _at(self, rank: int, at_s: float) -> float:
        """A time of a rank's host by the driver's clock."""
        return (
            at_s
            if self.placement.is_local
            else self.supervisors.driver_time(self.arm, self.launch, rank, at_s)
        )

    def _has_lost_host(self, silent: Mapping[int, float]) -> bool:
        """Whether a supervisor was lost with its rank, or a host does not answer a request for its
        logs.
        """
        if self.placement.is_local:
            return False
        self.processes.log_tails(list(silent))
        return math.inf in silent.values() or bool(self.processes.unreachable)

    def for_errors(self, heard: Mapping[int, Reply]) -> ArmFailed | None:
        """Name the cause among reported errors: bad input, else the first error that is not about a
        lost peer.
        """
        errors = {rank: reply for rank, reply in heard.items() if isinstance(reply, ErrorReply)}
        if not errors:
            return None

        def order(rank: int) -> tuple[bool, bool, float]:
            reply = errors[rank]
            is_followed = mentions_lost_peer(reply.message)
            return reply.cause != "bad input", is_followed, self._at(rank, reply.at_s)

        first = min(errors, key=order)
        return self.failed(
            f"{self._who([first])}: {errors[first].message}",
            ranks=[first],
            excerpt=errors[first].excerpt,
        )

    def for_timeout(self, silent: Sequence[int], *, timeout_s: float) -> ArmFailed:
        """Name ranks that run but do not answer; if no rank of a script has ever reported, say what
        may be the reason.

        Ranks that do not answer first write stack traces to their logs.
        """
        if self.may_end and self.world_size is None and not self.has_reported:
            why = self._never or explain_no_ranks(look_at(self.run_id, self.processes.pids))
            return self.failed(
                f"no rank reported within {timeout_s:g} s: {why}",
                excerpt=self.processes.last_words([]),
                status="timeout",
            )
        with contextlib.suppress(LaunchError):
            self.supervisors.tell(self.arm, self.launch, "trace")
            time.sleep(TRACE_S)
        why = ""
        if self.may_end and not self.has_reported:
            why = "; " + SLOW_START
        elif self.may_end and len(silent) < (self.world_size or 0):
            why = "; do its ranks take different numbers of steps?"
        return self.failed(
            f"no answer from {self._who(silent)} within {timeout_s:g} s{why}",
            ranks=silent,
            status="timeout",
        )

    def failed(
        self,
        message: str,
        *,
        ranks: Sequence[int] = (),
        excerpt: Sequence[str] = (),
        status: Status = "failed",
    ) -> ArmFailed:
        """A failure with this message, the hosts and logs of these ranks, and hosts that no longer
        answer.
        """
        tails = self.processes.log_tails(ranks)
        message = "; ".join([message, *self.processes.unreachable.values()])
        return ArmFailed(
            self._as_users(message),
            status=status,
            excerpt=[*map(self._as_users, excerpt)],
            ranks=list(ranks),
            hosts=self._hosts(ranks),
            log_tail={name: self._as_users(tail) for name, tail in tails.items()},
        )

    def _died(self, silent: Mapping[int, float]) -> ArmFailed:
        """Name the rank that ended first, since the launcher may have ended the others.

        A lost host is always the cause.
        """
        unreachable = self.processes.unreachable.keys()
        lost = [
            rank
            for rank in range(self.world_size or 0)
            if not unreachable.isdisjoint(self._hosts([rank]))
        ]
        if lost:
            return self.failed(f"{self._who(lost)} lost with the host", ranks=lost)
        first = sorted(rank for rank, at_s in silent.items() if at_s == min(silent.values()))
        what = f"{self._who(first)} died without reporting an error"
        return self.failed(
            "; ".join([what, self.processes.exit_summary(), *self._suspects()]),
            ranks=first,
            excerpt=self.processes.last_words(first),
        )

    def _unreported(self) -> ArmFailed:
        """The failure of launchers whose ranks reported nothing; for a script, by its exception or
        the end of its log.
        """
        log = self._launchers_log() if self.may_end else ""
        raised = scripts_exception(log)
        reason = cut(raised.message) if raised else "the ranks did not report"
        words = (raised.excerpt if raised else lines_of_script(log)) or self.processes.last_words(
            []
        )
        message = "; ".join([reason, self.processes.exit_summary(), *self._suspects()])
        return self.failed(message, excerpt=[cut(line) for line in words[-LAST_WORDS:]])

    def _launchers_log(self) -> str:
        with (
            contextlib.suppress(OSError),
            self.processes.launchers_log.open(encoding="utf-8", errors="replace") as file,
        ):
            return self._as_users(file.read(MAX_LOG_CHARACTERS))
        return ""

    def _as_users(self, text: str) -> str:
        """A text with the user's paths, of files that are still there when the arm has ended."""
        return self.sandbox.as_users(text) if self.sandbox else text

    def _suspects(self) -> list[str]:
        """What may be why a script's ranks ended, and what to do."""
        if not self.may_end:
            return []
        hint = hint_of("\n".join([self._launchers_log(), *self.processes.log_tails([]).values()]))
        if hint is None and not self.has_reported and set(self.processes.codes) == {0}:
            hint = (
                self._never
                or "it ended without a step that the agent saw; does it train, by torch.optim, and"
                " is its Python the right one?"
            )
        return [hint] if hint else []

    def _hosts(self, ranks: Sequence[int]) -> list[str]:
        if self.placement.is_local or self.may_end:
            return sorted(
                {
                    supervised.host
                    for rank, supervised in self._supervised.ranks.items()
                    if rank in ranks
                }
            )
        return sorted({self.placement.host_of(rank) for rank in ranks})

    def _who(self, ranks: Sequence[int]) -> str:
        """``rank 1``, or ``ranks 2, 3 on host2``."""
        where = "" if self.placement.is_local else f" on {', '.join(self._hosts(ranks))}"
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}{where}"
