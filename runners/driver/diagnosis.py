"""Why an arm has no (further) timing: which ranks died, hung or raised, on which hosts, and the last lines of their logs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

from measurement.errors import LaunchError, PlanError
from measurement.record import Failure
from runners.arm_processes import ArmProcesses
from runners.job import Reply
from runners.places import Placement
from runners.wardens import Wardens

TRACE_S = 0.3


class ArmFailed(Exception):  # noqa: N818 - an outcome that the driver records, not an error of its own
    """The arm has no (further) timing in this launch."""

    def __init__(self, failure: Failure, *, status: str) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.status = status


class Diagnosis:
    """Finds the words for one launch of one arm."""

    def __init__(self, arm: str, launch: int, *, wardens: Wardens, processes: ArmProcesses, placement: Placement) -> None:
        self._arm, self._launch = arm, launch
        self._wardens = wardens
        self._processes = processes
        self._placement = placement

    def looks_dead(self) -> bool:
        """Whether any rank or launcher has ended. Does not wait."""
        return bool(self._wardens.gone(self._arm, self._launch)) or self._processes.has_ended()

    def of_death(self, heard: Mapping[int, Reply]) -> ArmFailed | None:
        """Of an arm that looks dead, when those that could speak have: the silent before the loud, who lost a peer.

        Unless one met bad input, such as a damaged file: no lost peer brings that about, and the launcher then ends the others
        before they can speak.
        """
        gone = self._wardens.gone(self._arm, self._launch)
        silent = {rank: at_s for rank, at_s in gone.items() if rank not in heard}
        if silent and not any(is_input_error(reply) for reply in heard.values()):
            return self._died(silent)
        raised = self.of_errors(heard)
        if raised is None and self._processes.has_ended():
            return self.failed(f"the ranks did not report; {self._processes.fate()}")
        return raised

    def of_errors(self, heard: Mapping[int, Reply]) -> ArmFailed | None:
        """Bad input is the cause, else the first to raise: its peers fail next, when their connection to it closes."""
        told = {rank: reply for rank, reply in heard.items() if reply.error}
        told = {rank: reply for rank, reply in told.items() if is_input_error(reply)} or told
        if not told:
            return None
        first = min(told, key=lambda rank: told[rank].error_at_s)
        return self.failed(f"{self._who([first])}: {told[first].error}", ranks=[first])

    def of_silence(self, silent: Sequence[int], *, timeout_s: float) -> ArmFailed:
        """Of ranks that live and do not answer; their logs then hold where they hang."""
        with contextlib.suppress(LaunchError):
            self._wardens.tell(self._arm, self._launch, "trace")
            time.sleep(TRACE_S)
        failed = self.failed(f"no answer from {self._who(silent)} within {timeout_s:g} s", ranks=silent)
        failed.status = "timeout"
        return failed

    def failed(self, message: str, *, ranks: Sequence[int] = ()) -> ArmFailed:
        """With the hosts and logs of some ranks, and what is known of hosts that no longer answer."""
        tails = self._processes.log_tails(ranks)
        message = "; ".join([message, *self._processes.unreachable.values()])
        return self._outcome(message, ranks=ranks, tails=tails)

    def _died(self, silent: Mapping[int, float]) -> ArmFailed:
        """Of ranks and when they went: the first is the cause, the launcher may have ended the others before they could speak.

        A host that is gone takes its ranks with it, and is the cause then.
        """
        tails = self._processes.log_tails(list(silent))
        gone = self._processes.unreachable
        lost = [rank for rank in range(self._placement.world_size) if gone and self._placement.host_of(rank) in gone]
        first = [rank for rank, at_s in silent.items() if at_s == min(silent.values())]
        later = [rank for rank in silent if rank not in first]
        what = f"{self._who(lost)} lost with the host" if lost else f"{self._who(first)} died without a word"
        if later and not lost:
            what += f", then {self._who(later)}"
        return self._outcome("; ".join([what, *gone.values(), self._processes.fate()]), ranks=lost or first, tails=tails)

    def _outcome(self, message: str, *, ranks: Sequence[int], tails: Mapping[str, str]) -> ArmFailed:
        failure = Failure(message=message, ranks=list(ranks), hosts=self._hosts(ranks), log_tail=dict(tails))
        return ArmFailed(failure, status="failed")

    def _hosts(self, ranks: Sequence[int]) -> list[str]:
        if self._placement.is_local:
            return sorted({ward.host for rank, ward in self._wardens.of(self._arm, self._launch).items() if rank in ranks})
        return sorted({self._placement.host_of(rank) for rank in ranks})

    def _who(self, ranks: Sequence[int]) -> str:
        """``rank 1``, or ``ranks 2, 3 on host2``."""
        where = "" if self._placement.is_local else f" on {', '.join(self._hosts(ranks))}"
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}{where}"


def is_input_error(reply: Reply) -> bool:
    """Whether the rank met something that is wrong with the plan or the data."""
    return (reply.error or "").startswith(f"{PlanError.__name__}: ")
