"""A user's command with what its launchers need so that variables reach every rank, and so that arms do not meet each other. Pure.

Nothing else of a command is changed. Arms are up at the same time, so each needs a port of its own to meet at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from measurement.addresses import with_port
from runners.launchers.command_lines import MPIRUN, SRUN, TORCHRUN, CommandLine, Launched, command_of

PATH = "PYTHONPATH"
PORT_VARIABLE = re.compile(r"\bMASTER_PORT=[0-9]+")


def carrying(line: CommandLine, variables: Mapping[str, str], *, port: int, is_open_mpi: bool = True) -> tuple[str, ...]:
    """Return the words of a command that hands variables on to its ranks.

    PYTHONPATH goes before one that the command sets itself. ``port``: at which its ranks may meet, in the place of one that the
    command names or has by default. ``is_open_mpi``: whether its ``mpirun`` is Open MPI's, not MPICH's.
    """
    ahead, names = f"{PATH}={variables.get(PATH, '')}".partition(":")[0], list(variables)
    words = [PORT_VARIABLE.sub(f"MASTER_PORT={port}", word) for word in line.words]
    words = [f"{ahead}:{word.partition('=')[2]}" if word.startswith(f"{PATH}=") else word for word in words]
    for one in reversed(line.launchers):
        if one.kind == SRUN:
            _export(words, one, names)
        elif one.kind == MPIRUN and is_open_mpi:
            has = {word.partition("=")[0] for before, word in itertools.pairwise(words) if before == "-x"}
            words[one.at : one.at] = [part for name in names if name not in has for part in ("-x", name)]
        elif one.kind == MPIRUN:
            _list_for_hydra(words, one, names)
        elif one.kind == TORCHRUN:
            _meet(words, one, port=port)
    return tuple(words)


def on_hosts(line: CommandLine, hosts: Sequence[str]) -> list[tuple[str, CommandLine]]:
    """Return the command of each host, for a torchrun that several hosts start: each has its number, and meets at the first."""
    one = line.launchers[0]
    is_static = one.value("rdzv-backend") in (None, "static")
    found = []
    for node, host in enumerate(hosts):
        wanted = {"nnodes": str(len(hosts))}
        wanted |= {"node-rank": str(node), "master-addr": hosts[0]} if is_static else {}
        added = [word for name, value in wanted.items() if name not in one.flags for word in (f"--{name}", value)]
        found.append((host, command_of([*line.words[: one.at], *added, *line.words[one.at :]])))
    return found


def seeded(line: CommandLine, flag: str, seed: int) -> CommandLine:
    """Return the command whose script is given a seed by a flag: in the place of one that it has, or behind all else."""
    words = list(line.words)
    first = line.launchers[-1].program if line.launchers else 0
    for index in range(first, len(words)):
        if words[index] == flag and index + 1 < len(words):
            words[index + 1] = str(seed)
            break
        if words[index].startswith(f"{flag}="):
            words[index] = f"{flag}={seed}"
            break
    else:
        words += [flag, str(seed)]
    return command_of(words)


def _meet(words: list[str], one: Launched, *, port: int) -> None:
    """Give a torchrun this port, unless it chooses one itself (``--standalone``)."""
    endpoint = one.value("rdzv-endpoint")
    if "standalone" in one.flags:
        return
    if endpoint is not None:
        _set(words, one, "rdzv-endpoint", with_port(endpoint.rpartition(":")[0].strip("[]") or endpoint, port))
    elif one.value("rdzv-backend") not in (None, "static"):
        words[one.at : one.at] = ["--rdzv-endpoint", f"localhost:{port}"]
    elif "master-port" in one.flags:
        _set(words, one, "master-port", str(port))
    else:
        words[one.at : one.at] = ["--master-port", str(port)]


def _set(words: list[str], one: Launched, name: str, value: str) -> None:
    """Replace the value of a flag that is there."""
    index = one.flags[name][0]
    flag, equals, _ = words[index].partition("=")
    if equals:
        words[index] = f"{flag}={value}"
    else:
        words[index + 1] = value


def _export(words: list[str], one: Launched, names: Sequence[str]) -> None:
    """An srun carries its environment unless ``--export`` says what."""
    given = one.value("export")
    if given is None or "ALL" in given.split(","):
        return
    kept = [] if given == "NONE" else [given]
    _set(words, one, "export", ",".join([*kept, *names]))


def _list_for_hydra(words: list[str], one: Launched, names: Sequence[str]) -> None:
    """MPICH's carries its environment unless a list says what."""
    for flag in ("genvlist", "envlist"):
        if flag in one.flags:
            _set(words, one, flag, ",".join([one.flags[flag][1], *names]))
            return
    if "genvnone" in one.flags or "envnone" in one.flags:
        words[one.at : one.at] = ["-genvlist", ",".join(names)]
