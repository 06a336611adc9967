"""Slurm in a lab: a controller on the first host, a daemon and munge on each, from Debian's
packages, for this lab alone.

Everything lies in the lab's folder; commands in its hosts find it by SLURM_CONF, and the machine's
own Slurm, if it has one, is not touched.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Mapping

from tests.kit.lab import namespaces
from tests.kit.lab.programs import program
from tests.kit.lab.state import LOGS, SLURM, LabError, LabSettings

PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
}
"""Program to Debian package; Slurm's PMIx needs libpmix-dev, too: it looks for a name that libpmix2
lacks."""
CONF = SLURM / "slurm.conf"
KEY = SLURM / "munge.key"
TASKS_PER_HOST = 8
"""That a job may have on a host, however few cores that has."""
START_S = 60.0
CONF_TEXT = """\
ClusterName=ringside-lab
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=20
KillWait=10
NodeName={names} CPUs={cpus}
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
OTHER_TEXTS = {
    "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
    "mpi.conf": "PMIxCliTmpDirBase=/run\n",
}


def write_files(settings: LabSettings) -> None:
    """Write the configuration and the key of munge."""
    (SLURM / "state").mkdir(parents=True)
    values = {
        "first": settings.names[0],
        "names": ",".join(settings.names),
        "cpus": TASKS_PER_HOST,
        "folder": SLURM,
    }
    CONF.write_text(CONF_TEXT.format_map(values), encoding="utf-8")
    for name, text in OTHER_TEXTS.items():
        (SLURM / name).write_text(text, encoding="utf-8")
    KEY.write_bytes(secrets.token_bytes(128))
    KEY.chmod(0o400)


def environment() -> dict[str, str]:
    """By what commands in the hosts find this Slurm."""
    return {"SLURM_CONF": str(CONF)}


def daemons(settings: LabSettings, name: str) -> list[list[str]]:
    """What runs on a host, in this order, each in the foreground."""
    munged = (
        f"munged --foreground --force --key-file={KEY} --socket=/run/munge/munge.socket.2"
        " --pid-file=/run/munge/munged.pid --seed-file=/run/munge/seed"
        " --log-file=/run/munge/munged.log"
    )
    controller = f"slurmctld -D -f {CONF} -L {LOGS}/slurmctld"
    daemon = f"slurmd -D -f {CONF} -N {name} -L {LOGS}/slurmd-{name}"
    lines = [munged, *([controller] if name == settings.names[0] else []), daemon]
    return [[program(first), *more] for first, *more in map(str.split, lines)]


def wait_until_idle(settings: LabSettings, inner: Mapping[str, str]) -> None:
    """Until every host takes jobs.

    Raises:
        LabError: one does not in time.
    """
    deadline = time.monotonic() + START_S
    pid = namespaces.init_of(settings.names[0])
    while True:
        nodes = _nodes(pid, inner) if pid is not None else {}
        if [nodes.get(name) for name in settings.names] == ["idle"] * settings.hosts:
            return
        if time.monotonic() > deadline:
            raise LabError(
                f"Slurm does not start within {START_S:.0f} s: its nodes are {nodes or 'unknown'}; see {LOGS}"
            )
        time.sleep(0.2)


def _nodes(pid: int, inner: Mapping[str, str]) -> dict[str, str]:
    """State by node; none where the controller does not answer."""
    argv = ["timeout", "5", program("sinfo"), "-h", "-N", "-o", "%N %T"]
    command = namespaces.enter_command(pid, folder=SLURM, argv=argv)
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, **inner},
        check=False,
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())
