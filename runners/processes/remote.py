"""Runs commands on other hosts, over the user's own ssh or by steps of a Slurm job, and takes the
answers of our own modules there.

ssh never asks, and checks host keys as usual. Every word is quoted. Answers are framed on standard
output, so that a shell's greeting and other output can be skipped. The caller gives the process a
new mark in its environment each time. The frame is more than the mark, since shells may print the
command line.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from measurement.environment import steering_environment
from measurement.errors import LaunchError, printable, quoted
from runners.launchers import HostCommand
from runners.launchers.base import RUN_ID
from runners.launchers.slurm import slurm_hosts, step_command
from runners.processes.local import base_environment

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5
AT_ONCE = 64
"""Hosts that are reached side by side."""
NOTICE_LOSS = ("-o", "ServerAliveInterval=8", "-o", "ServerAliveCountMax=2")
"""Ends the connection three intervals, 24 s, after the host stopped answering."""
UNATTENDED = (
    *("-T", "-x", "-o", "BatchMode=yes", "-o", "ControlMaster=no"),
    *("-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no"),
)
"""ssh asks nothing, and uses the user's configuration to reach the host, but no terminals,
forwarded ports or commands. It uses a shared connection but makes none, which would keep our pipes
open."""
NEEDED = (
    "PATH",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "PYTHONUNBUFFERED",
    "PYTHONIOENCODING",
    "PYTHONSAFEPATH",
    "TMPDIR",
)
PER_HOST = ("CUDA_VISIBLE_DEVICES",)
MAX_SAID = 4096
MARK = "RINGSIDE_ANSWER_MARK"
STDOUT = 1


def forwarded_environment(inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that ranks on other hosts need to run as those here do.

    None: of the driver's environment.
    """
    environment = base_environment() if inherited is None else inherited
    needed = {name: environment[name] for name in NEEDED if name in environment}
    return needed | {
        name: value
        for name, value in steering_environment(environment).items()
        if name not in PER_HOST
    }


def command_line(argv: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> str:
    """Return the line that runs a command on a host in any login shell."""
    words = ["env", *(f"{name}={value}" for name, value in environment.items()), *argv]
    return shlex.join(["sh", "-c", f"cd -- {shlex.quote(str(folder))} && exec {shlex.join(words)}"])


def python(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs one of our modules on a host with the same Python."""
    return [sys.executable, "-P", "-m", module, *arguments]


def start(command: HostCommand, *, run_id: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a launcher on its host.

    Its output goes to ``log`` here; it ends when the ssh process here ends.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = (
        forwarded_environment(command.inherited) | dict(command.environment) | {RUN_ID: run_id}
    )
    line = command_line(
        python("runners.processes.local", *command.argv),
        folder=command.folder or Path.cwd(),
        environment=environment,
    )
    argv, start_environment = _reached(command.host, line)
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env=start_environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def ask(
    host: str | None,
    argv: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> bytes:
    """Run one of our modules on a host, or here for None, to its end; returns its answer
    (``give``).

    ``environment``: for a process here. ``folder``: its working folder; None: this process's.

    Raises:
        LaunchError: see ``run``; or it ended without an answer.
    """
    mark = secrets.token_hex(16)
    output = run(host, argv, timeout_s=timeout_s, mark=mark, environment=environment, folder=folder)
    answer = taken(output, mark)
    if answer is None:
        printed = quoted(last_line(output[-MAX_SAID:].decode(errors="replace")))
        raise LaunchError(
            f"{_named(host)} gave no answer, and all it printed is {printed}{_remedy(host)}"
        )
    return answer


def run(
    host: str | None,
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes = b"",
    mark: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> bytes:
    """Run a command on a host, or here for None, to its end, with this standard input.

    ``mark``, ``environment``, ``folder``: see ``ask``.

    Returns:
        All of its standard output, including the greeting of the user's shell.

    Raises:
        LaunchError: with the host, the error and what to try.
    """
    command: Sequence[str] = argv
    start_environment: Mapping[str, str] | None = {**(environment or {}), MARK: mark}
    if host is not None:
        forwarded = forwarded_environment() | {MARK: mark}
        line = command_line(argv, folder=folder or Path.cwd(), environment=forwarded)
        command, start_environment = _reached(host, line)
    try:
        done = subprocess.run(
            command,
            env=start_environment,
            cwd=folder if host is None else None,
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"{_named(host)} cannot be started: {error}") from error
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{_named(host)} did not answer within {timeout_s:g} s{_remedy(host)}"
        ) from None
    if done.returncode and not (mark and taken(done.stdout, mark) is not None):
        reason = last_line(done.stderr.decode(errors="replace")) or f"exit code {done.returncode}"
        raise LaunchError(f"{_named(host)}: {reason}{_remedy(host)}")
    return done.stdout


def _named(host: str | None) -> str:
    return f"host '{host}'" if host else "its process"


def _remedy(host: str | None) -> str:
    """The command that shows whether a host is reached, for messages."""
    if host is None:
        return ""
    command = f"srun --overlap -N1 -n1 -w {host}" if _is_by_step(host) else f"ssh {host}"
    return f"; try: {command} true"


def run_on(
    hosts: Sequence[str], argv: Sequence[str], *, timeout_s: float, stdin: bytes = b""
) -> list[bytes]:
    """Run a command on hosts side by side; returns what each printed.

    Raises a ``LaunchError`` if one fails; see ``run``.
    """
    return on_each(hosts, lambda host: run(host, argv, timeout_s=timeout_s, stdin=stdin))


def on_each(hosts: Sequence[str], act: Callable[[str], T]) -> list[T]:
    """Call a function with each host, side by side. An exception is raised when all have ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(act, hosts))


def _reached(host: str, line: str) -> tuple[list[str], dict[str, str] | None]:
    """The argv that runs a line of shell on a host, by a step of the job or ssh, and the
    environment to start it with; None: this process's. It never asks the user.
    """
    if _is_by_step(host):  # srun passes its environment on
        return step_command(host, line), base_environment()
    options = (*NOTICE_LOSS, *UNATTENDED, "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}")
    return ["ssh", *options, "--", host, line], None


def _is_by_step(host: str) -> bool:
    """Whether a host is reached by a step of the Slurm job that this process runs in."""
    return any(entry.host == host for entry in slurm_hosts(os.environ))


def last_line(text: str) -> str:
    """Return the last line that is not blank, or an empty text."""
    return printable(text).strip().rpartition("\n")[2].strip()


def give(answer: str | bytes) -> None:
    """Write an answer to standard output; without a frame if there is no mark, as when a person
    runs the command.
    """
    content = answer.encode() if isinstance(answer, str) else answer
    mark = os.environ.get(MARK)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    # a user's module may have replaced sys.stdout
    with open(STDOUT, "wb", closefd=False) as output:
        output.write(framed(content, mark) if mark else content + b"\n")


def framed(content: bytes, mark: str) -> bytes:
    """Return an answer in its frame. Pure."""
    return f"<{mark}>".encode() + content + f"</{mark}>\n".encode()


def taken(output: bytes, mark: str) -> bytes | None:
    """Return the first answer in some output; None if there is no whole one. Pure."""
    begin, end = f"<{mark}>".encode(), f"</{mark}>\n".encode()
    answer, ended, _ = output.partition(begin)[2].partition(end)
    return answer if ended else None
