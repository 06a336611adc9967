"""Runs a Dockerfile's own steps in roots made by debootstrap, since there may be no engine and no registry of images.

The base image is Debian's. FROM, ARG, ENV, RUN, COPY, WORKDIR and USER are understood, as this repository uses them. Caches and
certificates of this machine are lent to the roots by links and variables, so that nothing is downloaded or compiled anew.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import REPOSITORY

STEP_TIMEOUT_S = 1200
LENT = "/root/.lent"
NAMESPACE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")


@dataclass(kw_only=True)
class Root:
    """One stage, as far as it is built."""

    path: Path
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "root"

    is_built: bool = False
    """Whether it needs no network any more but loopback."""

    def run(self, command: str, *, timeout: int = STEP_TIMEOUT_S, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell inside as the stage's user: with its own processes, /proc, /dev and shared memory."""
        at = shlex.quote(str(self.path))
        as_user = f"setpriv --reuid {self.user} --regid {self.user} --clear-groups" if self.user != "root" else ""
        home = "/root" if self.user == "root" else f"/home/{self.user}"
        network = "ip link set lo up && " if self.is_built else ""
        mounts = f"mount --rbind /dev {at}/dev && mount -t proc proc {at}/proc && mount -t tmpfs tmpfs {at}/dev/shm"
        inside = f"exec {as_user} env -C {self.folder} sh -c {shlex.quote(command)}"
        line = f"{network}{mounts} && exec chroot {at} sh -c {shlex.quote(inside)}"
        usual = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "LANG": "C.UTF-8"}
        return subprocess.run(
            [*NAMESPACE, *(["--net"] if self.is_built else []), "sh", "-c", line],
            env={**usual, **self.variables, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def steps_of(dockerfile: str) -> list[tuple[str, str]]:
    """Instructions and what stands behind them, in order; continued lines are joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", dockerfile))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def base_root(folder: Path) -> Path:
    """Make a Debian of the smallest kind."""
    made = folder / "base"
    command = ["debootstrap", "--variant=minbase", "bookworm", str(made), "http://deb.debian.org/debian"]
    subprocess.run(command, check=True, capture_output=True, timeout=STEP_TIMEOUT_S)
    return made


def lend(root: Path) -> dict[str, str]:
    """Put this machine's certificates, names and caches into a root; returns the variables by which its programs find them."""
    lent = root / LENT.lstrip("/")
    lent.mkdir(parents=True)
    certificates = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    shutil.copy(certificates, lent / "certificates.crt")
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc", name), root / "etc" / name)
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    for name in ("uv", "ringside"):
        if (caches / name).is_dir():
            subprocess.run(["cp", "-al", caches / name, lent / name], check=True, timeout=STEP_TIMEOUT_S)
    file = f"{LENT}/certificates.crt"
    return {"SSL_CERT_FILE": file, "PIP_CERT": file, "REQUESTS_CA_BUNDLE": file, "XDG_CACHE_HOME": LENT}


def build(dockerfile: str, folder: Path) -> Root:
    """Take every step of a Dockerfile; returns the last stage.

    Raises:
        AssertionError: a step failed; with what it said.
    """
    base, stages, arguments, root = base_root(folder), {}, {}, None
    for number, (name, rest) in enumerate(steps_of(dockerfile)):
        if name == "FROM":
            path = folder / f"stage-{number}"
            subprocess.run(["cp", "-a", base, path], check=True, timeout=STEP_TIMEOUT_S)
            root = Root(path=path)
            lent = lend(path)
            stages[rest.rpartition(" AS ")[2]] = root
        elif name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        else:
            take(root, name, rest, stages=stages, variables={**arguments, **lent})
    shutil.rmtree(root.path / LENT.lstrip("/"))
    root.is_built = True
    return root


def take(root: Root, name: str, rest: str, *, stages: dict[str, Root], variables: dict[str, str]) -> None:
    """Take one step in a stage."""
    if name == "RUN":
        done = root.run(rest, **variables)
        assert done.returncode == 0, f"RUN {rest}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    elif name == "COPY":
        copy(root, shlex.split(rest), stages)
    elif name == "ENV":
        root.variables |= dict(word.split("=", 1) for word in shlex.split(rest))
    elif name == "WORKDIR":
        root.folder = rest
    elif name == "USER":
        root.user = rest
    else:
        raise AssertionError(f"{name} is not known here")


def copy(root: Root, words: list[str], stages: dict[str, Root]) -> None:
    """From the checkout, what git knows of it; from another stage, by links."""
    *options, source, target = words
    place = root.path / target.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not options:
        place.mkdir()
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
        packed = subprocess.run(
            ["tar", "--null", "-cT", "-"], cwd=REPOSITORY, input=listed, capture_output=True, check=True, timeout=STEP_TIMEOUT_S
        )
        subprocess.run(["tar", "-x", "-C", place], input=packed.stdout, check=True, timeout=STEP_TIMEOUT_S)
        return
    stage = stages[options[0].partition("=")[2]]
    command = ["cp", "-al", stage.path / source.lstrip("/"), place]
    subprocess.run(command, check=True, timeout=STEP_TIMEOUT_S)
