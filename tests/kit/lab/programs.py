"""The programs a lab is made with: whether they are here, and running them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping

from runners.processes.local import find_program
from tests.kit.lab.state import LabError

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "umount": "mount",
}
"""Program to Debian package."""
TIMEOUT_S = 20.0


def require_root() -> None:
    """Refuse to go on as anybody but root, with a ``LabError``."""
    if os.geteuid() != 0:
        raise LabError(
            f"a lab is made of namespaces, which only root may make; this is user {os.geteuid()}; "
            f"try: sudo {sys.executable} -m tests.kit.lab ..."
        )


def require_programs(more: Mapping[str, str] | None = None) -> None:
    """Refuse to go on where a program, or the right to make namespaces, is missing.

    ``more``: programs besides, to their packages.

    Raises:
        LabError: with all that is missing, and the packages that bring it.
    """
    needed = {**PACKAGES, **(more or {})}
    if missing := [name for name in needed if find_program(name) is None]:
        packages = " ".join(sorted({needed[name] for name in missing}))
        raise LabError(
            f"a lab needs {', '.join(missing)}, not found on this machine; Debian, Ubuntu: apt-get install {packages}"
        )
    try:
        run("unshare", "--net", "--mount", "--pid", "--fork", "true")
    except LabError as error:
        raise LabError(
            f"this root may not make namespaces ({error}); in a container: docker run --privileged"
        ) from None


def program(name: str) -> str:
    """The full path of a program; also where sbin is not on PATH."""
    return find_program(name) or name


def run(name: str, *arguments: str, stdin: str = "") -> str:
    """Run a program to its end.

    Returns:
        Its standard output.

    Raises:
        LabError: it failed, or did not end in time.
    """
    argv = [program(name), *arguments]
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{shlex.join(argv)}: {error}") from error
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(f"{shlex.join(argv)}: {message}")
    return done.stdout
