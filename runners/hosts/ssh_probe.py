"""Checks whether ranks can start on a host: its name resolves, ssh works without a prompt, folder
and Python exist.

All hosts are checked at once, by the user's own ssh: host keys are checked, nothing is added to
known_hosts. Host names come from ``hostfile``, which refuses what ssh or a shell could read as more
than a name; the remote command is one quoted word.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from measurement.errors import LaunchError
from runners.processes.answers import framed, new_mark, taken
from runners.processes.remote import host_command, last_line, on_each, printed

ANSWER_TIMEOUT_S = 20.0
"""From the start of ssh to the answer of the remote Python, which imports nothing large."""
PACKAGES = ("torch", "runners")
NO_FOLDER, NO_PYTHON, NO_PACKAGE = 71, 72, 73
PROBE_SCRIPT = (
    "import importlib.util as u, sys; mark, *names = sys.argv[1:]; missing = [n for n in names if"
    " u.find_spec(n) is None]; reply = ', '.join(missing) or '%d.%d.%d' % sys.version_info[:3];"
    f" print('{framed(b'%s', '%s').decode().strip()}' % (mark, reply, mark)); sys.exit({NO_PACKAGE}"
    " if missing else 0)"
)
"""It answers in the form of ``runners.processes.answers``, which the host may lack."""
STATUS_BY_EXIT_CODE: Mapping[int, str] = {
    0: "ok",
    NO_FOLDER: "no folder",
    NO_PYTHON: "no python",
    NO_PACKAGE: "no package",
}
SSH_ERRORS: Sequence[tuple[str, str]] = (
    ("Could not resolve hostname", "unresolved"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "changed key"),
    ("Host key verification failed", "unknown key"),
    ("Permission denied", "denied"),
    ("Connection refused", "refused"),
    ("timed out|No route to host|Network is unreachable", "unreachable"),
)
MESSAGES: Mapping[str, tuple[str, str]] = {
    "ok": ("Python {reply}", ""),
    "unresolved": (
        "its name cannot be resolved",
        (
            "correct it, or add it to DNS or /etc/hosts (an alias in ~/.ssh/config is not enough:"
            " ranks connect by the name)"
        ),
    ),
    "unreachable": ("it does not answer", "is it on, and does a firewall let port 22 through?"),
    "refused": (
        "connection refused: no sshd listens there",
        "start it there (Debian: apt-get install openssh-server)",
    ),
    "unknown key": (
        "its host key is not known here",
        "compare and accept it once: ssh {host} true",
    ),
    "changed key": (
        "its host key is another one than known_hosts holds",
        "if it was reinstalled: ssh-keygen -R {host}; ssh {host} true",
    ),
    "denied": (
        "ssh would ask for a password",
        "give it a key: ssh-keygen -t ed25519; ssh-copy-id {host}",
    ),
    "no folder": ("it has no folder {folder}", "put the same checkout there, at the same path"),
    "no python": ("it has no {python}", "set it up there, in the same folder: make setup"),
    "no package": ("its Python lacks {reply}", "set it up there, in the same folder: make setup"),
    "no answer": (
        "its shell did not run the command, and all it printed is {reply}",
        (
            "see what its start-up files (~/.bashrc, ~/.cshrc) start in the place of a command: ssh"
            " {host} true"
        ),
    ),
    "failed": ("{reply}", "find out why: ssh {host} true"),
}
"""By status: the message, and the remedy."""


@dataclass(frozen=True, kw_only=True)
class HostStatus:
    """Whether ranks can start on a host."""

    host: str
    status: str
    """A key of ``MESSAGES``."""
    detail: str
    """What answered, or what is wrong."""
    address: str = ""
    remedy: str = ""
    """What to do; empty only where the status is "ok"."""

    def __str__(self) -> str:
        return f"host '{self.host}': {self.detail}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a host must have."""

    folder: Path = field(default_factory=Path.cwd)
    """Where the ranks will run."""
    python: str = sys.executable
    """Full path of the Python that will run them."""

    def command(self, mark: str = "") -> str:
        """Return the host's command, one word for any shell. Each failure has its own exit code."""
        folder, python = shlex.quote(str(self.folder)), shlex.quote(self.python)
        look = shlex.join(["-c", PROBE_SCRIPT, mark, *PACKAGES])
        script = (
            f"cd -- {folder} || exit {NO_FOLDER}; test -x {python} || exit {NO_PYTHON}; exec"
            f" {python} {look}"
        )
        return shlex.join(["sh", "-c", script])

    def ask(self, host: str) -> HostStatus:
        """Check one host, over ssh unless it is this machine."""
        try:
            address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError):
            return self.status_of(host, "unresolved")
        mark = new_mark()
        command = self.command(mark)
        argv = ["sh", "-c", command] if is_here(address) else host_command(host, command)
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=ANSWER_TIMEOUT_S,
                check=False,
                env=environment,
            )
        except FileNotFoundError:
            return self.status_of(
                host,
                "failed",
                reply="there is no ssh here (Debian: apt-get install openssh-client)",
                address=address,
            )
        except subprocess.TimeoutExpired:
            return self.status_of(
                host, "failed", reply=f"no answer within {ANSWER_TIMEOUT_S:.0f} s", address=address
            )
        return self._read(host, done, mark=mark, address=address)

    def _read(
        self, host: str, done: subprocess.CompletedProcess[bytes], *, mark: str, address: str
    ) -> HostStatus:
        errors, answer = done.stderr.decode(errors="replace"), taken(done.stdout, mark)
        status = STATUS_BY_EXIT_CODE.get(done.returncode) or status_of_error(errors)
        if status == "ok" and answer is None:
            return self.status_of(host, "no answer", reply=printed(done.stdout), address=address)
        reply = (
            last_line(errors) if status == "failed" else (answer or b"").decode(errors="replace")
        )
        return self.status_of(
            host, status, reply=reply or f"exit code {done.returncode}", address=address
        )

    def status_of(
        self, host: str, status: str, *, reply: str = "", address: str = ""
    ) -> HostStatus:
        """Make a status with its words."""
        words = {"host": host, "reply": reply, "folder": str(self.folder), "python": self.python}
        detail, remedy = (text.format(**words) for text in MESSAGES[status])
        return HostStatus(host=host, status=status, detail=detail, address=address, remedy=remedy)


def probe_hosts(hosts: Sequence[str], *, probe: Probe | None = None) -> list[HostStatus]:
    """Check every host, all at the same time; by default they are asked for this folder and this
    Python.

    Returns:
        One status per host, in the order given, after at most about ``ANSWER_TIMEOUT_S``.
    """
    return on_each(hosts, (probe or Probe()).ask)


def require_reachable(statuses: Iterable[HostStatus]) -> None:
    """Refuse to start anything where a host cannot take ranks, with a ``LaunchError``."""
    if failures := [str(reach) for reach in statuses if reach.status != "ok"]:
        raise LaunchError("\n".join(failures))


def is_here(address: str) -> bool:
    """Whether an IP address is one of this machine's own."""
    own_addresses = {
        entry.address.partition("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    }
    return address.startswith("127.") or address.partition("%")[0] in own_addresses


def status_of_error(errors: str) -> str:
    """Return the status for ssh's error message."""
    return next((status for pattern, status in SSH_ERRORS if re.search(pattern, errors)), "failed")
