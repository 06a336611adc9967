"""Where a plan's ranks run: the hosts as planned and, after the preflight, what is needed to start ranks on them.

Commands say ranks and hosts by their launchers' own flags, so that a plan of commands need not.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from measurement.addresses import LOOPBACK, free_port
from measurement.errors import PlanError, about, quoted
from measurement.plans.plan import Plan
from runners.hosts.batch_jobs import JOB_IDS, SLURM, job_hosts
from runners.hosts.host_facts import FREE_PORT
from runners.hosts.hostfile import parse_hosts, place_ranks, read_hostfile
from runners.launchers.base import HERE, HostSlots
from runners.launchers.command_lines import TORCHRUN, CommandLine, hostfile_of, hosts_of, ranks_of, read_command
from runners.launchers.slurm_job import slurm_job
from runners.processes import remote

PORT_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Hosts with their ranks, as the preflight found them."""

    hosts: tuple[HostSlots, ...]
    """The hosts that take ranks, with as many slots as ranks."""
    cores: Mapping[str, int]
    """How many cores ranks may use, by host."""
    here: frozenset[str] = field(default=frozenset({HERE}))
    """Names of the machine that the driver runs on."""
    driver_address: str = LOOPBACK
    """Where all ranks reach the driver."""
    spare: tuple[HostSlots, ...] = ()
    """Hosts of which launches draw theirs, besides; empty unless the plan says ``nodes: draw``."""

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this machine and the plan does not name it."""
        return all(entry.host == HERE for entry in self.hosts)

    @property
    def remote(self) -> list[str]:
        """The hosts that are reached by ssh."""
        return [entry.host for entry in self.hosts if entry.host not in self.here]

    @property
    def everywhere(self) -> list[str]:
        """The hosts that are reached by ssh in any launch."""
        return [entry.host for entry in (*self.hosts, *self.spare) if entry.host not in self.here]

    def sample(self, rng: random.Random) -> Placement:
        """Draw the hosts of one launch. They stay in their order, and have the threads of the host with the fewest cores."""
        known = (*self.hosts, *self.spare)
        chosen = sorted(rng.sample(range(len(known)), k=len(self.hosts)))
        hosts = tuple(HostSlots(host=known[place].host, slots=own.slots) for place, own in zip(chosen, self.hosts, strict=True))
        return replace(self, hosts=hosts, spare=(), cores=dict.fromkeys(self.cores, min(self.cores.values())))

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return sum(entry.slots for entry in self.hosts)

    def free_ports(self, count: int) -> list[int]:
        """Return ports that are free on the first host, at which the others meet it.

        Raises:
            LaunchError: that host does not answer.
        """
        first = self.hosts[0].host
        if first in self.here:
            return [free_port() for _ in range(count)]
        asked = remote.python("runners.hosts.host_facts", FREE_PORT, str(count))
        return [int(port) for port in remote.ask(first, asked, timeout_s=PORT_TIMEOUT_S).split()]

    def host_of(self, rank: int) -> str:
        """Return the host of a rank, in the order in which every launcher fills hosts."""
        return next(host for host, ranks in place_ranks(self.hosts, self.world_size).items() if rank in ranks)

    def for_ranks(self, world_size: int) -> Placement:
        """Return the placement of an arm with all ranks or fewer, which fill the hosts in their order."""
        if world_size == self.world_size:
            return self
        placed = place_ranks(self.hosts, world_size)
        return replace(self, hosts=tuple(HostSlots(host=host, slots=len(ranks)) for host, ranks in placed.items() if ranks))

    @property
    def threads_per_rank(self) -> int:
        """The cores of a host divided by its ranks, on the host with the fewest; at least 1."""
        return max(1, min(self.cores[entry.host] // entry.slots for entry in self.hosts if entry.slots))

    @property
    def oversubscribed(self) -> bool:
        """Whether a host has more ranks than cores."""
        return any(entry.slots > self.cores[entry.host] for entry in self.hosts)


def with_hosts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's content with the hosts of its hostfile, and with ``world_size`` if only the slots say it."""
    content = dict(content)
    job = slurm_job(os.environ)
    if job is not None and len(job.hosts) > 1 and not content.get("hosts") and not content.get("points"):
        content["hosts"] = SLURM
    listed = content.get("hosts")
    if isinstance(listed, str) and "/" in listed:
        listed = content["hosts"] = ",".join(map(str, read_hostfile(Path(listed))))
    if isinstance(listed, list) and all(isinstance(part, str) for part in listed):
        listed = ",".join(listed)
    if has_commands(content):
        own = named_hosts(listed) if isinstance(listed, str) else hosts_of_commands(content)
        return with_world_size(content, hosts=own) | ({"hosts": listed or ",".join(map(str, own))} if own else {})
    if isinstance(listed, str) and "world_size" not in content:
        content["world_size"] = sum(entry.slots for entry in named_hosts(listed))
    return content


def named_hosts(listed: str) -> tuple[HostSlots, ...]:
    """The hosts of a plan: ``host1:2,host2:2``, or ``slurm``, ``pbs`` and the like, the nodes of the job that this runs in.

    Raises:
        HostfileError: the list, or the job's, is not accepted.
        PlanError: there is no job.
    """
    return job_hosts(listed, os.environ) if listed in JOB_IDS else parse_hosts(listed, source="hosts")


def planned_hosts(plan: Plan) -> tuple[HostSlots, ...]:
    """Return the hosts that take ranks, with as many slots as ranks; for commands all, with their slots.

    Raises:
        HostfileError: they cannot be read, or have fewer slots than the plan has ranks.
        PlanError: the plan names this machine in a way by which other hosts cannot find it.
    """
    if plan.hosts is None:
        return (HostSlots(host=HERE, slots=plan.world_size),)
    hosts = named_hosts(plan.hosts)
    if not plan.are_scripts:  # whose launchers choose among them
        placed = place_ranks(hosts, plan.world_size)
        hosts = tuple(HostSlots(host=host, slots=len(ranks)) for host, ranks in placed.items() if ranks)
    local = [entry.host for entry in hosts if entry.host.lower() == HERE or entry.host.startswith("127.")]
    if local and len(hosts) > 1:
        raise PlanError(f"hosts names '{local[0]}' beside others, which do not find this machine by that; give its name or address")
    return (HostSlots(host=HERE, slots=plan.world_size),) if local else hosts


def spare_hosts(plan: Plan, taken: Sequence[HostSlots]) -> tuple[HostSlots, ...]:
    """Return the hosts that are not ``taken`` by the first launch, where launches draw theirs (``nodes: draw``); else none.

    Raises:
        PlanError: there is nothing to draw, or launches would be unlike.
    """
    if plan.nodes == "first" or plan.hosts is None:
        return ()
    listed, names = named_hosts(plan.hosts), {entry.host for entry in taken}
    if len({entry.slots for entry in listed}) > 1:
        raise PlanError(f"nodes: draw, but hosts have unlike numbers of slots ({', '.join(map(str, listed))}); give all as many")
    spare = tuple(entry for entry in listed if entry.host not in names)
    if not spare:
        raise PlanError(f"nodes: draw, but {plan.world_size} ranks need all of {len(listed)} hosts; name more, or leave it out")
    return spare


def has_commands(content: Mapping[str, Any]) -> bool:
    """Whether a plan's plain values have arms by command."""
    return bool(_commands(content))


def with_world_size(content: Mapping[str, Any], *, hosts: Sequence[HostSlots]) -> dict[str, Any]:
    """Return a plan's unchecked content with as many ranks as its largest command starts by its flags; 1 where none says.

    How many there are in truth, the ranks say when they have started.

    Raises:
        PlanError: a command cannot be read, or another number is given.
    """
    most = ranks_by_flags(content, hosts=len(hosts) or 1)
    given = content.get("world_size", most or 1)
    if most and given != most:
        raise PlanError(f"world_size {quoted(given)} is not what the commands start, which is {most}; leave it out")
    return {**content, "world_size": given}


def ranks_by_flags(content: Mapping[str, Any], *, hosts: int = 1) -> int | None:
    """Return how many ranks the largest command of a plan starts, as its launchers' flags say; None where none says."""
    counts = (ranks_of(_read(name, arm), hosts=hosts) for name, arm in _commands(content).items())
    return max((count for count in counts if count), default=None)


def _commands(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    arms = content.get("arms")
    found = arms.items() if isinstance(arms, Mapping) else ()
    return {name: arm for name, arm in found if isinstance(arm, Mapping) and isinstance(arm.get("command"), str)}  # type: ignore[misc]


def _read(name: str, arm: Mapping[str, Any]) -> CommandLine:
    with about(f"arm '{name}'"):
        return read_command(arm["command"])


def hosts_of_commands(content: Mapping[str, Any]) -> tuple[HostSlots, ...]:
    """Return the hosts that the commands of a plan list for themselves, together; none where all ranks are on this machine.

    Raises:
        HostfileError: a list, or a file, is not accepted.
        PlanError: a command cannot be read.
    """
    most: dict[str, int] = {}
    for name, arm in _commands(content).items():
        line = _read(name, arm)
        if not line.launchers or line.kind == TORCHRUN:
            continue
        listed = _listed(line, Path(arm.get("directory") or "."))
        lack = (ranks_of(line) or 0) - sum(entry.slots for entry in listed)
        for number, entry in enumerate(listed):
            more = lack if number == 0 and lack > 0 else 0  # ranks that share cores, as its own flags allow
            most[entry.host] = max(most.get(entry.host, 0), entry.slots + more)
    if all(_is_here(host) for host in most):
        return ()
    return tuple(HostSlots(host=host, slots=slots) for host, slots in most.items())


def _listed(line: CommandLine, folder: Path) -> tuple[HostSlots, ...]:
    first = line.launchers[0]
    named, file = hosts_of(first), hostfile_of(first)
    if named:
        return parse_hosts(",".join(named), source=f"-H of '{line.words[0]}'")
    return read_hostfile(folder / file) if file else ()


def _is_here(host: str) -> bool:
    return host.lower() in (HERE, socket.gethostname().lower()) or host.startswith("127.")
