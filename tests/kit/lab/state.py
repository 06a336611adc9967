"""What a lab is made of, and the one folder that holds all that must be removed with it.

The folder is there as long as anything of a lab may be: it is made first and removed last, so that
a lab whose making was interrupted can be removed too. It lies outside /run, of which every host has
its own, and is seen at the same path from all hosts.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measurement.errors import RingsideError
from measurement.files import write_whole


class LabError(RingsideError):
    """The cluster on one machine cannot be made, entered or read."""


STATE = Path("/var/lib/ringside-lab")
NETWORKS = STATE / "networks"
"""One file per network namespace: the namespace itself, by a bind mount."""
SSH = STATE / "ssh"
ETC = STATE / "etc"
"""Files that the hosts see in place of the machine's, at the same name in /etc."""
LOGS = STATE / "logs"
SLURM = STATE / "slurm"
SETTINGS = STATE / "lab.json"
"""Written last: where it is missing, the making was interrupted."""

INTERFACE = "eth0"
SWITCH = "switch"
SUBNET = ipaddress.IPv4Network("10.77.0.0/24")
MAX_HOSTS = 16

NOT_UP = "no lab is up, or not a whole one; make it again: python -m tests.kit.lab down, then python -m tests.kit.lab up"


@dataclass(frozen=True, kw_only=True)
class LabSettings:
    """What ``python -m tests.kit.lab up`` was asked for."""

    hosts: int = 2
    rate_bits_per_s: int | None = None
    """Rate of each link, in each direction; None: as fast as the kernel copies."""
    slurm: bool = False
    """Whether its hosts are nodes of a Slurm of its own."""

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise LabError(f"--hosts {self.hosts} is not accepted; give 1 to {MAX_HOSTS}")

    @property
    def names(self) -> tuple[str, ...]:
        """``host1``, ``host2``, ..."""
        return tuple(f"host{number}" for number in range(1, self.hosts + 1))

    def cores(self, name: str, usable: Sequence[int]) -> list[int]:
        """The share of a host in the machine's cores: an equal part for each, or one in turn where
        there are more hosts than cores.

        So hosts are as separate as on a network: threads of one, and what it counts as its cores,
        are not those of another.
        """
        number, each = self.names.index(name), len(usable) // self.hosts
        return (
            list(usable[number * each : (number + 1) * each])
            if each
            else [usable[number % len(usable)]]
        )

    def address(self, name: str) -> str:
        """The address of a host, known inside the lab only."""
        return str(SUBNET[self.names.index(name) + 1])

    def save(self) -> None:
        """Say that the lab is whole."""
        write_whole(SETTINGS, json.dumps(asdict(self), indent=1))


def load_settings() -> LabSettings:
    """The lab that is up.

    Raises:
        LabError: there is none, or its making was interrupted.
    """
    if not SETTINGS.exists():
        raise LabError(NOT_UP)
    return LabSettings(**json.loads(SETTINGS.read_text(encoding="utf-8")))
