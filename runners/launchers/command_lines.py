"""What a user's own command starts: by which launchers, how many ranks, on which hosts.

Pure: a command is read, not run. It is split into words as a shell would, and what only a shell can
run is refused.

``srun -N 2 torchrun ...`` has two launchers, one inside the other. Words before the first (``env
K=V``, ``apptainer exec``) are skipped.
"""

from __future__ import annotations

import glob
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

from measurement.environment import looks_secret
from measurement.errors import PlanError, quoted

TORCHRUN, HOROVODRUN, MPIRUN, SRUN, PYTHON = "torchrun", "horovodrun", "mpirun", "srun", "python"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PROGRAMS = {
    **dict.fromkeys(_names("mpiexec orterun mpiexec.hydra mpirun.openmpi mpiexec.mpich"), MPIRUN),
    **{name: name for name in (TORCHRUN, HOROVODRUN, MPIRUN, SRUN)},
}
MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "horovod.runner": HOROVODRUN,
    "horovod.runner.launch": HOROVODRUN,
}
"""Launchers that ``python -m`` starts."""
PYTHON_NAME = re.compile(r"python(\d+(\.\d+)*t?)?")
PYTHON_FLAGS = re.compile(r"-[A-Za-z]*([mc])")
"""The flag behind which a Python's module or code comes, such as ``-m`` and ``-um``."""
JOINED = re.compile(r"(-[bBdEhiIOPqRsStuvVx]*m)(.+)")
"""The same in one word with the module: ``-mtorch.distributed.run``."""
CONTAINERS = ("apptainer", "singularity")
ENVIRONMENTS = _names(
    "apptainer singularity conda mamba micromamba uv poetry pdm hatch pipenv pixi rye"
)
"""Programs that start another one with programs from elsewhere than this PATH."""
PREFIXES = ENVIRONMENTS | _names(
    "env taskset numactl nice ionice chrt stdbuf nohup time timeout setsid xvfb-run strace nsys"
    " py-spy perf"
)
"""Programs that start another one, which is among their arguments."""
ONE_VALUE: Mapping[str, frozenset[str]] = {
    TORCHRUN: _names(
        "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts "
        "monitor-interval start-method event-log-handler role log-dir r redirects t tee "
        "log-line-prefix-template local-ranks-filter duplicate-stdout-filters "
        "duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs "
        "numa-binding signals-to-handle shutdown-timeout"
    ),
    HOROVODRUN: _names(
        "np num-proc start-timeout network-interfaces network-interface output-filename "
        "config-file p ssh-port i ssh-identity-file fusion-threshold-mb cycle-time-ms "
        "cache-capacity autotune-log-file autotune-warmup-samples autotune-steps-per-sample "
        "autotune-bayes-opt-max-samples autotune-gaussian-process-noise min-np min-num-proc "
        "max-np max-num-proc slots-per-host elastic-timeout reset-limit timeline-filename "
        "stall-check-warning-time-seconds stall-check-shutdown-time-seconds mpi-args binding-args "
        "num-nccl-streams thread-affinity gloo-timeout-seconds log-level H hosts hostfile "
        "host-discovery-script"
    ),
    MPIRUN: _names(
        "np n c H host hosts hostfile machinefile default-hostfile f N npernode ppn perhost "
        "npersocket x am tune map-by rank-by bind-to wdir wd path prefix rf rankfile slot-list "
        "cpu-set cpu-list cpus-per-proc cpus-per-rank output-filename stdin xml-file timeout "
        "report-uri report-pid ompi-server app preload-files personality iface launcher "
        "launcher-exec rmk genvlist envlist outfile-pattern errfile-pattern configfile membind "
        "order-nodes"
    ),
    SRUN: _names(
        "n ntasks N nodes ntasks-per-node ntasks-per-core ntasks-per-socket c cpus-per-task p "
        "partition A account t time J job-name w nodelist x exclude C constraint G gpus "
        "gpus-per-node gpus-per-task mem mem-per-cpu mem-per-gpu o output e error i input D chdir "
        "m distribution jobid export mpi cpu-bind gpu-bind mem-bind gres qos r relative "
        "reservation nodefile F gres-flags hint overcommit threads-per-core T threads open-mode K "
        "W wait container-image"
    ),
}
"""Flags of each launcher behind which a value follows."""
TWO_VALUES = _names("mca gmca omca pmca genv env blacklist-cooldown-range")
NO_FILE = {"m", "module", "no-python"}
"""Flags of torchrun with which it runs no file."""


@dataclass(frozen=True, kw_only=True)
class ParsedLauncher:
    """One launcher in a command."""

    kind: str
    program_at: int
    """Index of the program that starts: the launcher, or the Python that runs it as a module."""
    flags_at: int
    """Index of the word behind its name, where its flags begin."""
    command_at: int
    """Index of the first word of the command that it starts."""
    flags: Mapping[str, tuple[int, str]]
    """By name without dashes: the index of the flag's word, and its value, empty if there is none.
    The last one counts."""

    def value(self, *names: str) -> str | None:
        """Return the value of the first of these flags that is given."""
        return next((self.flags[name][1] for name in names if name in self.flags), None)

    def number(self, *names: str) -> int | None:
        """Return that value if it is a whole number above 0."""
        text = self.value(*names)
        return int(text) if text is not None and re.fullmatch(r"0*[1-9][0-9]{0,5}", text) else None


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command and the launchers in it, the outermost first."""

    words: tuple[str, ...]
    launchers: tuple[ParsedLauncher, ...]
    python: int | None
    """Index of the Python that ranks run, where the command names one."""

    @property
    def kind(self) -> str | None:
        """The outermost launcher; ``python`` if Python runs without one; None if it is not known
        what starts.
        """
        return self.launchers[0].kind if self.launchers else None if self.python is None else PYTHON

    def find(self, kind: str) -> ParsedLauncher | None:
        """Return the launcher of a kind, if it has one."""
        return next((launcher for launcher in self.launchers if launcher.kind == kind), None)

    @property
    def programs(self) -> list[str]:
        """Programs that it starts from this PATH or by their files; none of another environment
        such as ``conda run``'s.
        """
        starts = {0, *(launcher.program_at for launcher in self.launchers), self.python or 0}
        names = [PurePath(word).name for word in self.words[: max(starts) + 1]]
        last = next((at for at, name in enumerate(names) if name in ENVIRONMENTS), max(starts))
        from_path = sorted(at for at in {*starts, last} if at <= last)
        return list(dict.fromkeys(self.words[at] for at in from_path))

    @property
    def file(self) -> str | None:
        """The script that ranks run, as it is named; None if they run a module, or it is not
        known.
        """
        torchrun = self.find(TORCHRUN)
        if torchrun:
            at, kind = torchrun.command_at, "m" if NO_FILE & torchrun.flags.keys() else ""
        elif self.python is not None:
            at, kind = _target(list(self.words), self.python)
        else:
            return None
        word = self.words[at] if at < len(self.words) else ""
        return word if word.endswith(".py") and not kind else None


def read_command(text: str) -> CommandLine:
    """Read a command as typed, with variables of this process filled in.

    Raises:
        PlanError: it is empty, a quote is open, or it needs a shell.
    """
    words = shell_words(text, os.environ)
    if not words:
        raise PlanError(
            "command is empty; give what starts your script, such as 'torchrun --nproc-per-node 2"
            " train.py'"
        )
    return command_of(["env", *words] if re.match(r"[A-Za-z_]\w*=", words[0]) else words)


def command_of(command: Iterable[str]) -> CommandLine:
    """Find the launchers in the words of a command."""
    words = list(command)
    launchers: list[ParsedLauncher] = []
    start, python = 0, None
    while (following := _next_start(words, start)) is not None:
        if isinstance(following, int):
            python = following
            break
        launchers.append(following)
        start = following.command_at
    return CommandLine(words=tuple(words), launchers=tuple(launchers), python=python)


def _next_start(words: list[str], start: int) -> ParsedLauncher | int | None:
    """Return the next launcher, or the index of a Python; None if there is neither."""
    if start >= len(words):
        return None
    last = len(words) if PurePath(words[start]).name in PREFIXES else start + 1
    for index in range(start, last):
        name = PurePath(words[index]).name
        if name in PROGRAMS:
            return _parse_launcher(PROGRAMS[name], words, index + 1, program_at=index)
        if PYTHON_NAME.fullmatch(name):
            module_at, kind = _target(words, index)
            module = words[module_at] if kind == "m" and module_at < len(words) else ""
            if module in MODULES:
                return _parse_launcher(MODULES[module], words, module_at + 1, program_at=index)
            return index
    return None


def _target(words: list[str], python: int) -> tuple[int, str]:
    """Return the index of what a Python runs, and its kind: ``m`` a module, ``c`` code, or empty
    for a file. A module joined to its flag becomes a word of its own.
    """
    index = python + 1
    while index < len(words) and words[index].startswith("-"):
        if joined := JOINED.fullmatch(words[index]):
            words[index : index + 1] = joined.groups()
        if flags := PYTHON_FLAGS.fullmatch(words[index]):
            return index + 1, flags[1]
        index += 2 if words[index] in ("-X", "-W") else 1
    return index, ""


def _parse_launcher(
    kind: str, words: list[str], flags_at: int, *, program_at: int
) -> ParsedLauncher:
    one_value, flags, index = ONE_VALUE[kind], {}, flags_at
    while index < len(words) and words[index].startswith("-") and words[index] not in ("--", "-"):
        name, equals, value = words[index].lstrip("-").partition("=")
        name = name.replace("_", "-") if kind == TORCHRUN else name
        arity = 0 if equals else 2 if name in TWO_VALUES else int(name in one_value)
        attached = re.fullmatch(r"-([a-zA-Z])(\d.*)", words[index]) if kind == SRUN else None
        if attached and attached[1] in one_value:
            name, value, arity = attached[1], attached[2], 0
        elif arity:
            value = " ".join(words[index + 1 : index + 1 + arity])
        flags[name] = (index, value)
        index += 1 + arity
    if words[index : index + 1] == ["--"]:
        index += 1
    command_at = min(index, len(words))
    return ParsedLauncher(
        kind=kind, program_at=program_at, flags_at=flags_at, command_at=command_at, flags=flags
    )


def ranks_of(line: CommandLine, *, hosts: int = 1) -> int | None:
    """Return how many ranks a command starts; None if its flags do not say.

    ``hosts``: number of hosts in the plan.
    """
    if line.kind is None:
        return None
    counts = [
        _ranks(launcher, hosts=hosts if number == 0 else 1)
        for number, launcher in enumerate(line.launchers)
    ]
    stated = [count for count in counts if count is not None]
    outer_srun = [launcher.kind for launcher in line.launchers] == [SRUN, TORCHRUN]
    if outer_srun and line.launchers[1].number("nnodes") not in (None, 1):
        return counts[1]  # its --nnodes counts the tasks of srun
    return math.prod(stated) if len(stated) == len(counts) else None


def _ranks(launcher: ParsedLauncher, *, hosts: int) -> int | None:
    if launcher.kind == TORCHRUN:
        local = launcher.number("nproc-per-node") if "nproc-per-node" in launcher.flags else 1
        nodes = launcher.number("nnodes") if "nnodes" in launcher.flags else hosts
        return local * nodes if local and nodes else None
    if launcher.kind == SRUN:
        nodes, each = launcher.number("N", "nodes"), launcher.number("ntasks-per-node")
        return launcher.number("n", "ntasks") or (nodes * (each or 1) if nodes else None)
    each = launcher.number("N", "npernode", "ppn", "perhost")
    return launcher.number("np", "num-proc", "n", "c") or (
        each * len(listed) if each and (listed := hosts_of(launcher)) else _slots(launcher)
    )


def hosts_of(launcher: ParsedLauncher) -> list[str]:
    """Return the hosts that a launcher's flags list, each as written (``host1:2``)."""
    listed = launcher.value("H", "host", "hosts") or ""
    return [entry for entry in listed.split(",") if entry]


def hostfile_of(launcher: ParsedLauncher) -> str | None:
    """Return the hostfile that a launcher's flags name."""
    return launcher.value("hostfile", "machinefile", "f")


def _slots(launcher: ParsedLauncher) -> int | None:
    """Return the sum of slots of all listed hosts; a host without a number has one."""
    slots = [entry.rpartition(":")[2] if ":" in entry else "1" for entry in hosts_of(launcher)]
    return sum(map(int, slots)) if slots and all(slot.isdecimal() for slot in slots) else None


SHELL_PIECE = re.compile(
    r"""(?P<single>'[^']*')
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | (?P<escaped>\\.)
    | (?P<pattern>(?<!\S)[^\s'"\\$`|;&<>(){}]*[*?[][^\s'"\\$`|;&<>(){}]*(?!\S))
    | (?P<home>(?<!\S)(?:[A-Za-z_]\w*=)?~[\w.-]*(?=[/\s]|$))
    | \$(?P<name>[A-Za-z_]\w*|\{[A-Za-z_]\w*\})
    | (?P<needs_shell>\$[({0-9?$!@*\#'"-] | ` | [<>]\( | &&|\|\||2>&1|>>|<<|[|;&<>]
        | \{[^\s{}'"]*(?:,|\.\.)[^\s{}'"]*\})""",
    re.VERBOSE | re.DOTALL,
)
IN_DOUBLE_QUOTES = re.compile(
    r"(?P<escaped>\\.) | \$(?P<name>[A-Za-z_]\w*|\{[A-Za-z_]\w*\}) |"
    r" (?P<needs_shell>\$[({0-9?$!@*\#-] | `)",
    re.VERBOSE | re.DOTALL,
)
"""What a shell reads between double quotes."""


def shell_words(text: str, environment: Mapping[str, str]) -> list[str]:
    """Split a command into words, with variables filled in from an environment.

    Raises:
        PlanError: a quote is open, a variable is not set or secret, or only a shell could run it.
    """
    expanded = SHELL_PIECE.sub(partial(_expand, text, environment), text)
    try:
        return shlex.split(expanded)
    except ValueError as error:
        raise PlanError(
            f"command {quoted(text)} cannot be read: {error}; quote it as for a shell"
        ) from error


def _expand(text: str, environment: Mapping[str, str], piece: re.Match[str]) -> str:
    """Return the replacement for a piece of a command, quoted so that it is split no further than a
    shell does.
    """
    names_files = piece["pattern"] and glob.glob(piece[0])  # noqa: PTH207 - as a shell reads it
    if piece["needs_shell"] or names_files:
        raise _needs_shell(text, piece[0])
    if piece["double"] is not None:
        return shlex.quote(
            IN_DOUBLE_QUOTES.sub(partial(_expand_inside, text, environment), piece["double"])
        )
    if piece["home"]:
        name, equals, path = piece[0].rpartition("=")
        return name + equals + shlex.quote(os.path.expanduser(path))  # noqa: PTH111 - an unknown user's ~ stays
    if piece["name"]:
        return " ".join(map(shlex.quote, _variable(text, piece["name"], environment).split()))
    return "" if piece[0] == "\\\n" else piece[0]


def _expand_inside(text: str, environment: Mapping[str, str], piece: re.Match[str]) -> str:
    if piece["needs_shell"]:
        raise _needs_shell(text, piece[0])
    if piece["name"]:
        return _variable(text, piece["name"], environment)
    return "" if piece[0] == "\\\n" else piece[0][1:] if piece[0][1] in '$`"\\' else piece[0]


def _variable(text: str, name: str, environment: Mapping[str, str]) -> str:
    name = name.strip("{}")
    if looks_secret(name):
        raise PlanError(
            f"command {quoted(text)} has ${name}, which looks like a secret, and reports show"
            " commands; have the script read it, or put it into bash -c '...', which is shown as"
            " it is typed"
        )
    if name not in environment:
        raise PlanError(
            f"command {quoted(text)} has ${name}, which is not set; set it, or write its value"
        )
    return environment[name]


def _needs_shell(text: str, piece: str) -> PlanError:
    return PlanError(
        f"command {quoted(text)} has '{piece}', and no shell runs it; put it into a file, or bash"
        " -c '...'"
    )
