"""Where a plan's ranks run: the planned hosts and, after the preflight, what is needed to start
ranks on them.

Commands give ranks and hosts by their launchers' flags, so a plan of commands need not.
"""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from measurement.addresses import LOOPBACK, free_port
from measurement.errors import PlanError, about, quoted
from measurement.plans.plan import Plan
from runners.hosts.host_facts import FREE_PORT
from runners.hosts.host_lists import (
    JOBS,
    SLURM,
    job_hosts,
    parse_hosts,
    place_ranks,
    read_hostfile,
)
from runners.launchers.base import HERE, HostSlots
from runners.launchers.command_lines import (
    TORCHRUN,
    CommandLine,
    hostfile_of,
    hosts_of,
    ranks_of,
    read_command,
)
from runners.launchers.slurm import slurm_hosts
from runners.processes import remote

PORT_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Hosts with their ranks, cores and addresses, after the preflight."""

    hosts: tuple[HostSlots, ...]
    """The hosts that take ranks, with as many slots as ranks."""
    cores: Mapping[str, int]
    """How many cores ranks may use, by host."""
    here: frozenset[str] = field(default=frozenset({HERE}))
    """Names of the driver's machine."""
    driver_address: str = LOOPBACK
    """Address at which all ranks reach the driver."""
    spare: tuple[HostSlots, ...] = ()
    """Further hosts from which launches draw theirs; empty unless the plan says ``nodes: draw``."""

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this machine, and the plan does not name it."""
        return all(entry.host == HERE for entry in self.hosts)

    @property
    def remote(self) -> list[str]:
        """The hosts reached by ssh, spare ones too."""
        return [entry.host for entry in (*self.hosts, *self.spare) if entry.host not in self.here]

    def sample(self, rng: random.Random) -> Placement:
        """Draw the hosts of one launch.

        They keep their order, and all get the threads of the host with the fewest cores.
        """
        candidates = (*self.hosts, *self.spare)
        indices = sorted(rng.sample(range(len(candidates)), k=len(self.hosts)))
        places = zip(indices, self.hosts, strict=True)
        hosts = tuple(replace(candidates[index], slots=entry.slots) for index, entry in places)
        return replace(
            self, hosts=hosts, spare=(), cores=dict.fromkeys(self.cores, min(self.cores.values()))
        )

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return sum(entry.slots for entry in self.hosts)

    def free_ports(self, count: int) -> list[int]:
        """Return free ports of the first host, where the others meet.

        Raises:
            LaunchError: that host does not answer.
        """
        first = self.hosts[0].host
        if first in self.here:
            return [free_port() for _ in range(count)]
        command = remote.python("runners.hosts.host_facts", FREE_PORT, str(count))
        return [int(port) for port in remote.ask(first, command, timeout_s=PORT_TIMEOUT_S).split()]

    def host_of(self, rank: int) -> str:
        """Return the host of a rank. Every launcher fills hosts in this order."""
        return [entry.host for entry in self.hosts for _ in range(entry.slots)][rank]

    def for_ranks(self, world_size: int) -> Placement:
        """Return the placement of an arm with all ranks or fewer. They fill the hosts in order."""
        return replace(self, hosts=filled_hosts(self.hosts, world_size))

    @property
    def threads_per_rank(self) -> int:
        """The cores of a host divided by its ranks, on the host with the fewest; at least 1."""
        return max(
            1, min(self.cores[entry.host] // entry.slots for entry in self.hosts if entry.slots)
        )

    @property
    def oversubscribed(self) -> bool:
        """Whether a host has more ranks than cores."""
        return any(entry.slots > self.cores[entry.host] for entry in self.hosts)


def with_hosts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's content with the hosts of its hostfile, and with ``world_size`` from the
    slots if it has none.
    """
    content = dict(content)
    if not content.get("hosts") and not content.get("points") and len(slurm_hosts(os.environ)) > 1:
        content["hosts"] = SLURM
    listed = content.get("hosts")
    if isinstance(listed, str) and "/" in listed:
        listed = content["hosts"] = ",".join(map(str, read_hostfile(Path(listed))))
    if isinstance(listed, list) and all(isinstance(part, str) for part in listed):
        listed = ",".join(listed)
    if commands_of(content):
        hosts = named_hosts(listed) if isinstance(listed, str) else hosts_of_commands(content)
        content["world_size"] = _world_size_of_commands(content, hosts=len(hosts) or 1)
        return content | ({"hosts": listed or ",".join(map(str, hosts))} if hosts else {})
    if isinstance(listed, str) and "world_size" not in content:
        content["world_size"] = sum(entry.slots for entry in named_hosts(listed))
    return content


def named_hosts(listed: str) -> tuple[HostSlots, ...]:
    """The hosts of a plan: ``host1:2,host2:2``, or by ``slurm``, ``pbs`` and the like the nodes of
    the current job.

    Raises:
        HostfileError: the list, or that of the job, is not accepted.
        PlanError: there is no job.
    """
    return job_hosts(listed, os.environ) if listed in JOBS else parse_hosts(listed, source="hosts")


def filled_hosts(hosts: Sequence[HostSlots], world_size: int) -> tuple[HostSlots, ...]:
    """Return the hosts that take ranks when hosts are filled in order, with as many slots as ranks.

    Raises:
        HostfileError: there are fewer slots than ranks.
    """
    return tuple(
        HostSlots(host=host, slots=len(ranks))
        for host, ranks in place_ranks(hosts, world_size).items()
        if ranks
    )


def planned_hosts(plan: Plan) -> tuple[HostSlots, ...]:
    """Return the hosts that take ranks, with as many slots as ranks; for commands all hosts, with
    their slots.

    Raises:
        HostfileError: they cannot be read, or have fewer slots than the plan has ranks.
        PlanError: the plan names this machine by a name that other hosts cannot resolve to it.
    """
    if plan.hosts is None:
        return (HostSlots(host=HERE, slots=plan.world_size),)
    hosts = named_hosts(plan.hosts)
    if not plan.are_scripts:  # launchers of scripts choose among all
        hosts = filled_hosts(hosts, plan.world_size)
    local = [
        entry.host for entry in hosts if entry.host.lower() == HERE or entry.host.startswith("127.")
    ]
    if local and len(hosts) > 1:
        raise PlanError(
            f"hosts names '{local[0]}' beside others, which do not find this machine by that; give"
            " its name or address"
        )
    return (HostSlots(host=HERE, slots=plan.world_size),) if local else hosts


def spare_hosts(plan: Plan, taken: Sequence[HostSlots]) -> tuple[HostSlots, ...]:
    """Return the hosts not ``taken`` by the first launch if launches draw theirs (``nodes: draw``);
    else none.

    Raises:
        PlanError: there are no hosts to draw, or launches would differ.
    """
    if plan.nodes == "first" or plan.hosts is None:
        return ()
    listed, names = named_hosts(plan.hosts), {entry.host for entry in taken}
    if len({entry.slots for entry in listed}) > 1:
        raise PlanError(
            "nodes: draw, but hosts have different numbers of slots"
            f" ({', '.join(map(str, listed))}); give all the same"
        )
    spare = tuple(entry for entry in listed if entry.host not in names)
    if not spare:
        raise PlanError(
            f"nodes: draw, but {plan.world_size} ranks need all of {len(listed)} hosts; name more,"
            " or leave it out"
        )
    return spare


def _world_size_of_commands(content: Mapping[str, Any], *, hosts: int) -> Any:
    """How many ranks the largest command of a plan's unchecked content starts by its flags; 1 if
    none says.

    The true number is known once the ranks have started.

    Raises:
        PlanError: a command cannot be read, or another number is given.
    """
    num_ranks = ranks_by_flags(content, hosts=hosts)
    world_size = content.get("world_size", num_ranks or 1)
    if num_ranks and world_size != num_ranks:
        raise PlanError(
            f"world_size {quoted(world_size)} is not what the commands start, which is {num_ranks};"
            " leave it out"
        )
    return world_size


def ranks_by_flags(content: Mapping[str, Any], *, hosts: int = 1) -> int | None:
    """Return how many ranks the largest command of a plan starts, from launchers' flags; None if no
    flag says.
    """
    counts = (
        ranks_of(_command_line(name, arm), hosts=hosts)
        for name, arm in commands_of(content).items()
    )
    return max((count for count in counts if count), default=None)


def commands_of(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the arms by command of a plan's unchecked content."""
    arms = content.get("arms")
    items = arms.items() if isinstance(arms, Mapping) else ()
    return {
        name: arm
        for name, arm in items
        if isinstance(arm, Mapping) and isinstance(arm.get("command"), str)
    }


def _command_line(name: str, arm: Mapping[str, Any]) -> CommandLine:
    with about(f"arm '{name}'"):
        return read_command(arm["command"])


def hosts_of_commands(content: Mapping[str, Any]) -> tuple[HostSlots, ...]:
    """Return all hosts that the commands of a plan list; none if all ranks are on this machine.

    Raises:
        HostfileError: a list, or a file, is not accepted.
        PlanError: a command cannot be read.
    """
    slots_of = Counter[str]()
    for name, arm in commands_of(content).items():
        line = _command_line(name, arm)
        if not line.launchers or line.kind == TORCHRUN:
            continue
        listed = _hosts_in_flags(line, Path(arm.get("directory") or "."))
        slots = Counter({entry.host: entry.slots for entry in listed})
        lack = (ranks_of(line) or 0) - slots.total()
        if listed and lack > 0:  # ranks that share cores, if its flags allow it
            slots[listed[0].host] += lack
        slots_of |= slots  # of each host the most
    here = (HERE, socket.gethostname().lower())
    if all(host.lower() in here or host.startswith("127.") for host in slots_of):
        return ()
    return tuple(HostSlots(host=host, slots=slots) for host, slots in slots_of.items())


def _hosts_in_flags(line: CommandLine, folder: Path) -> tuple[HostSlots, ...]:
    launcher = line.launchers[0]
    listed, file = hosts_of(launcher), hostfile_of(launcher)
    if listed:
        return parse_hosts(",".join(listed), source=f"-H of '{line.words[0]}'")
    return read_hostfile(folder / file) if file else ()
