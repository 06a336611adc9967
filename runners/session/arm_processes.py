"""Starts, watches and ends the processes of one arm in one launch, on all its hosts, and fetches
their logs.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import Popen

from measurement.errors import LaunchError, cut
from measurement.files import write_whole
from runners.hosts.placement import Placement
from runners.launchers import HostCommand
from runners.processes import local, remote, remote_results
from runners.processes.local import end_run, remove_open_mpi_files

LOG_LINES = 40
LINE_CHARACTERS = 2000
LAST_WORDS = 8
NOISE = re.compile(r"^\W*$|\[0x[0-9a-f]+\]\s*$|torch/distributed/run\.py:\d+\]")
"""Lines of a log that name no cause: without a word, a native stack's, and torchrun's remark on
OMP_NUM_THREADS."""
MAX_LOG_BYTES = 64 << 10
"""How much of a log's end is read at most: a rank that floods its log must not flood the record."""
SPOOL_TIMEOUT_S = 15.0
LAUNCHER_LOG = "launcher.log"


class ArmProcesses:
    """The launchers, here and over ssh, and everything that they started."""

    def __init__(
        self, commands: Sequence[HostCommand], *, run_id: str, folder: Path, placement: Placement
    ) -> None:
        self.commands = commands
        self.exit_codes: list[int | None] = []
        """Those of the launchers; empty until ``end`` was called."""
        self.unreachable: dict[str, str] = {}
        """Hosts that no longer answered, with what ssh said."""
        self._run_id = run_id
        self._folder = folder
        self._placement = placement
        self._launchers: list[Popen[bytes]] = []
        self._is_over = False

    def start(self) -> None:
        """Start the launchers; returns at once. Raises a ``LaunchError`` if one cannot be
        started.
        """
        for command in self.commands:
            starter = local.start if command.host in self._placement.here else remote.start
            try:
                self._launchers.append(
                    starter(command, run_id=self._run_id, log=self._folder / LAUNCHER_LOG)
                )
            except OSError as error:
                raise LaunchError(f"'{command.argv[0]}' cannot be started: {error}") from error

    def has_ended(self) -> bool:
        """Whether any launcher has ended."""
        return any(code is not None for code in self.codes)

    @property
    def codes(self) -> list[int | None]:
        """Exit codes of the launchers so far; None of one that runs."""
        return [process.poll() for process in self._launchers]

    @property
    def pids(self) -> list[int]:
        """Processes of the launchers."""
        return [process.pid for process in self._launchers]

    def wait(self, *, timeout_s: float) -> None:
        """Wait until every launcher has ended by itself, at most ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while None in self.codes and time.monotonic() < deadline:
            time.sleep(0.02)

    def exit_summary(self) -> str:
        """Which launchers ended with which exit code, or that they still run, in words."""
        codes = [str(code) for code in self.codes if code is not None]
        return (
            f"the launcher ended with code {', '.join(codes)}"
            if codes
            else "the launcher still runs"
        )

    def end(self, *, kill_ranks: Callable[[], None]) -> None:
        """End whatever still runs, on every host that answers; first by ``kill_ranks``, the
        quickest way. Can be called again.
        """
        if self._is_over:
            return
        if not self.exit_codes:
            self.exit_codes = self.codes
        if None in self.codes:
            kill_ranks()
        for process in self._launchers:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            local.end(process)
        if self._placement.is_local:
            end_run(self._run_id)
        else:
            self._fetch(end=True)
        remove_open_mpi_files(process.pid for process in self._launchers)
        self._is_over = True

    def log_tails(self, ranks: Iterable[int]) -> dict[str, str]:
        """Return the last lines of these ranks' logs and of the launchers', by log name, without
        those that cannot be fetched.
        """
        if not self._placement.is_local and not self.exit_codes:
            self._fetch(end=False)
        return self._tails(ranks)

    @property
    def launchers_log(self) -> Path:
        """What the launchers print, on this host."""
        return self._folder / LAUNCHER_LOG

    def last_words(self, ranks: Iterable[int]) -> list[str]:
        """Return the last lines that ranks have logged, those of the launchers if they have none.

        See ``log_tails``.
        """
        tails = self._tails(ranks).values()
        lines = ([line for line in tail.splitlines() if not NOISE.search(line)] for tail in tails)
        return [cut(line) for line in next(filter(None, lines), [])[-LAST_WORDS:]]

    def _tails(self, ranks: Iterable[int]) -> dict[str, str]:
        tails = {
            name: _tail(self._folder / name)
            for name in [*map(remote_results.log_name, ranks), LAUNCHER_LOG]
        }
        return {name: text for name, text in tails.items() if text}

    def _fetch(self, *, end: bool) -> None:
        """Copy the logs of all hosts that answer here. They are asked at the same time."""
        hosts = [host for host in self._placement.remote if host not in self.unreachable]
        archives = remote.on_each(hosts, lambda host: self._fetch_from(host, end=end))
        if len(self._placement.here) > 1 or end:
            archives.append(remote_results.pack(self._run_id, end=end))
        for archive in archives:
            for name, content in remote_results.unpack(archive).items():
                write_whole(self._folder / name, content)  # replaces a link and does not follow it

    def _fetch_from(self, host: str, *, end: bool) -> bytes:
        argv = remote.python(
            "runners.processes.remote_results", self._run_id, *(["--end"] if end else [])
        )
        try:
            return remote.ask(host, argv, timeout_s=SPOOL_TIMEOUT_S)
        except LaunchError as error:
            self.unreachable[host] = str(error)
            return b""


def _tail(path: Path) -> str:
    """The last lines of a log, which may have any size and lines of any length."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
            lines = file.read(MAX_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    half = LINE_CHARACTERS // 2
    return "\n".join(
        line if len(line) <= LINE_CHARACTERS else f"{line[:half]}...{line[-half:]}"
        for line in lines[-LOG_LINES:]
    )
