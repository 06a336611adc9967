"""What the commands of a plan say of ranks and hosts, so that the plan need not: their launchers' own flags."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measurement.errors import PlanError, about, quoted
from runners.hosts.hostfile import parse_hosts, read_hostfile
from runners.launchers.base import HERE, HostSlots
from runners.launchers.command_lines import TORCHRUN, CommandLine, hostfile_of, hosts_of, ranks_of, read_command


def has_commands(content: Mapping[str, Any]) -> bool:
    """Whether a plan's plain values have arms by command."""
    return bool(_commands(content))


def with_ranks(content: Mapping[str, Any], *, hosts: Sequence[HostSlots]) -> dict[str, Any]:
    """Return a plan's unchecked content with the ranks of each command, and the largest number of them as its ``world_size``.

    Raises:
        PlanError: a command does not say how many ranks it starts, and nobody else does.
    """
    arms = {name: _counted(name, arm, hosts=len(hosts) or 1) for name, arm in _commands(content).items()}
    most = max(arm["ranks"] for arm in arms.values())
    given = content.get("world_size", most)
    if given != most:
        raise PlanError(f"world_size {quoted(given)} is not what the commands start, which is {most}; leave it out")
    return {**content, "arms": {**content["arms"], **arms}, "world_size": most}


def _commands(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    arms = content.get("arms")
    found = arms.items() if isinstance(arms, Mapping) else ()
    return {name: arm for name, arm in found if isinstance(arm, Mapping) and isinstance(arm.get("command"), str)}  # type: ignore[misc]


def _counted(name: str, arm: Mapping[str, Any], *, hosts: int) -> dict[str, Any]:
    line = _read(name, arm)
    counted = ranks_of(line, hosts=hosts)
    ranks = arm.get("ranks") or counted
    if ranks is None:
        why = "is no launcher that Ringside knows" if line.kind is None else "gives no number of ranks by its flags"
        raise PlanError(
            f"arm '{name}': '{line.words[0]}' {why}, so how many ranks it starts must be said: ranks: 2 in the arm, or --ranks 2"
        )
    if not isinstance(ranks, int) or ranks < 1:
        raise PlanError(f"arm '{name}': ranks = {quoted(ranks)}: a whole number of at least 1 is expected")
    return {**arm, "ranks": ranks}


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
        lack = int(arm.get("ranks") or ranks_of(line) or 0) - sum(entry.slots for entry in listed)
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
