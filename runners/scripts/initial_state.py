"""The parameters with which all scripts of a comparison start, if the plan asks for that
(``scripts.same_start``).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from measurement.errors import LaunchError
from measurement.files import write_whole
from measurement.records.record import RankReport
from runners.hosts.placement import Placement
from runners.processes import remote

FIRST_STATE = "first-state.pt"
"""In the results folder."""
COPY_TIMEOUT_S = 120.0
PUT = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'


class SharedInitialState:
    """The file with which all scripts start, at one path on all hosts; the baseline's rank 0 writes
    it once.
    """

    def __init__(self, path: Path, placement: Placement) -> None:
        self.path = path.absolute()
        self._placement = placement

    @property
    def is_missing(self) -> bool:
        """Whether no baseline has saved it yet."""
        return not self.path.is_file()

    def agent_settings(self, *, is_baseline: bool) -> dict[str, str]:
        """Settings for an arm's agent: the file, and whether it saves or loads it."""
        return {
            "state_file": str(self.path),
            "state": "save" if is_baseline and self.is_missing else "load",
        }

    def share(self, ranks: Sequence[RankReport]) -> None:
        """Copy the file from rank 0's host to all hosts that do not share the folder.

        Raises:
            LaunchError: a host cannot be reached, or there is no file.
        """
        try:
            if self.is_missing:
                source = self._host_of(ranks[0].host)
                if source is not None:
                    write_whole(
                        self.path,
                        remote.run(source, ["cat", str(self.path)], timeout_s=COPY_TIMEOUT_S),
                    )
            content = self.path.read_bytes()
            argv = ["sh", "-c", PUT, "sh", str(self.path)]
            remote.run_on(self._placement.remote, argv, timeout_s=COPY_TIMEOUT_S, stdin=content)
        except (LaunchError, OSError) as error:
            raise LaunchError(
                f"its initial parameters cannot be copied to the other hosts: {error}"
            ) from error

    def _host_of(self, name: str) -> str | None:
        """Return the host as the plan names it; None if it is this one."""
        if name == socket.gethostname():
            return None
        return next(
            (
                host
                for host in self._placement.remote
                if host.partition(".")[0] == name.partition(".")[0]
            ),
            None,
        )
