"""The processes of one arm in one launch, on however many hosts: started, watched, ended, and what they leave in logs."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen

from measurement.errors import LaunchError
from runners import processes, remote, spool
from runners.launchers import HostCommand
from runners.marked import end_marked
from runners.places import Placement

LOG_LINES = 30
SPOOL_TIMEOUT_S = 15.0
LAUNCHER_LOG = "launcher.log"


class ArmProcesses:
    """Launchers here and over ssh, and whatever they started."""

    def __init__(self, commands: Sequence[HostCommand], *, mark: str, folder: Path, placement: Placement) -> None:
        self.commands = commands
        self.exit_codes: list[int | None] = []
        """Of the launchers; empty until all has been ended."""
        self.unreachable: dict[str, str] = {}
        """Hosts that no longer answered, with what ssh said."""
        self._mark = mark
        self._folder = folder
        self._placement = placement
        self._launchers: list[Popen[bytes]] = []
        self._fetched: Mapping[str, bytes] = {}
        self._is_over = False

    def start(self) -> None:
        """Start the launchers; returns at once.

        Raises:
            LaunchError: one cannot be started.
        """
        for command in self.commands:
            starter = processes.start if command.host in self._placement.here else remote.start
            try:
                self._launchers.append(starter(command, mark=self._mark, log=self._folder / LAUNCHER_LOG))
            except OSError as error:
                raise LaunchError(f"'{command.argv[0]}' cannot be started: {error}") from error

    def has_ended(self) -> bool:
        """Whether any launcher has."""
        return any(process.poll() is not None for process in self._launchers)

    def wait(self, *, timeout_s: float) -> None:
        """Until every launcher has ended by itself, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self._launchers) and time.monotonic() < deadline:
            time.sleep(0.02)

    def fate(self) -> str:
        """What became of the launchers."""
        several = len(self.commands) > 1
        codes = [
            f"{process.poll()}{f' on {command.host}' if several else ''}"
            for command, process in zip(self.commands, self._launchers, strict=False)
            if process.poll() is not None
        ]
        return f"the launcher ended with code {', '.join(codes)}" if codes else "the launcher still runs"

    def end(self, *, kill_ranks: Callable[[], None]) -> None:
        """Whatever still runs ends now, on every host that answers; safe to call twice.

        Args:
            kill_ranks: tells the wardens to, which is quicker than a launcher; called where a launcher still runs.
        """
        if self._is_over:
            return
        if not self.exit_codes:
            self.exit_codes = [process.poll() for process in self._launchers]
        if any(process.poll() is None for process in self._launchers):
            kill_ranks()
        for process in self._launchers:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            processes.end(process)
        if self._placement.is_local:
            end_marked(self._mark)
        else:
            self._keep_logs(self._fetch(end=True))
        self._is_over = True

    def log_tails(self, ranks: Iterable[int]) -> dict[str, str]:
        """The last lines of some ranks' logs and of the launchers', by log name; what cannot be had is left out."""
        if not self._placement.is_local and not self.exit_codes:
            self._fetched = self._fetch(end=False)
            self._keep_logs(self._fetched)
        names = [*map(spool.log_name, ranks), LAUNCHER_LOG]
        tails = {name: _tail(self._folder / name) for name in names}
        return {name: text for name, text in tails.items() if text}

    def timings(self) -> Mapping[str, bytes]:
        """What the ranks wrote of their blocks, fetched with the last ``log_tails``; nothing where all ranks are here."""
        return self._fetched

    def _fetch(self, *, end: bool) -> dict[str, bytes]:
        """The files of all hosts that answer, all asked at once."""
        hosts = [host for host in self._placement.remote if host not in self.unreachable]
        with ThreadPoolExecutor(max_workers=64) as pool:
            archives = list(pool.map(lambda host: self._fetch_from(host, end=end), hosts))
        if len(self._placement.here) > 1 or end:
            archives.append(spool.pack(self._mark, end=end))
        return {name: content for archive in archives for name, content in spool.unpack(archive).items()}

    def _fetch_from(self, host: str, *, end: bool) -> bytes:
        argv = remote.python("runners.spool", self._mark, *(["--end"] if end else []))
        try:
            return remote.run(host, argv, timeout_s=SPOOL_TIMEOUT_S)
        except LaunchError as error:
            self.unreachable[host] = str(error)
            return b""

    def _keep_logs(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            if re.fullmatch(r"rank-\d+\.log", name):
                self._folder.mkdir(parents=True, exist_ok=True)
                (self._folder / name).write_bytes(content)


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES:])
