"""What a user's own command starts: by which launchers, how many ranks, on which hosts. Pure: a command is read, not run.

``srun -N 2 torchrun ...`` has two launchers, one inside the other. What stands before the first (``env K=V``, ``apptainer exec``)
is passed over.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from measurement.errors import PlanError
from runners.launchers.shell_words import shell_words

TORCHRUN, HOROVODRUN, MPIRUN, SRUN, PYTHON = "torchrun", "horovodrun", "mpirun", "srun", "python"
PROGRAMS = {"mpiexec": MPIRUN, "orterun": MPIRUN, "mpiexec.hydra": MPIRUN, "mpirun.openmpi": MPIRUN, "mpiexec.mpich": MPIRUN}
PROGRAMS |= {name: name for name in (TORCHRUN, HOROVODRUN, MPIRUN, SRUN)}
MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "horovod.runner": HOROVODRUN,
    "horovod.runner.launch": HOROVODRUN,
}
"""Launchers that are started by ``python -m``."""
PYTHON_NAME = re.compile(r"python(\d+(\.\d+)*t?)?")
JOINED = re.compile(r"(-[bBdEhiIOPqRsStuvVx]*)m(.*)")
"""``-mMODULE`` and ``-um`` of a Python."""
CONTAINERS = ("apptainer", "singularity")
ENVIRONMENTS = (*CONTAINERS, "conda", "mamba", "micromamba", "uv", "poetry", "pdm", "hatch", "pipenv", "pixi", "rye")
"""Programs that start another one where it finds other programs than those of this PATH."""
PREFIXES = frozenset(
    (
        *(*ENVIRONMENTS, "env", "taskset", "numactl", "nice", "ionice", "chrt", "stdbuf", "nohup", "time", "timeout", "setsid"),
        *("xvfb-run", "strace", "nsys", "py-spy", "perf"),
    )
)
"""Programs that start another one, which stands among their arguments."""
WITHOUT_AGENT = "ISE"
"""Flags of Python with which it imports no ``sitecustomize`` from PYTHONPATH."""


def _flags(**arities: str) -> dict[str, int]:
    """Names of flags by how many values follow them."""
    return {name: int(arity[1:]) for arity, names in arities.items() for name in names.split()}


VALUES: Mapping[str, Mapping[str, int]] = {
    TORCHRUN: _flags(
        n1="nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method "
        "event-log-handler role log-dir r redirects t tee log-line-prefix-template local-ranks-filter duplicate-stdout-filters "
        "duplicate-stderr-filters node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle "
        "shutdown-timeout"
    ),
    HOROVODRUN: _flags(
        n1="np num-proc start-timeout network-interfaces network-interface output-filename config-file p ssh-port i "
        "ssh-identity-file fusion-threshold-mb cycle-time-ms cache-capacity autotune-log-file autotune-warmup-samples "
        "autotune-steps-per-sample autotune-bayes-opt-max-samples autotune-gaussian-process-noise min-np min-num-proc max-np "
        "max-num-proc slots-per-host elastic-timeout reset-limit timeline-filename stall-check-warning-time-seconds "
        "stall-check-shutdown-time-seconds mpi-args binding-args num-nccl-streams thread-affinity gloo-timeout-seconds log-level "
        "H hosts hostfile host-discovery-script",
        n2="blacklist-cooldown-range",
    ),
    MPIRUN: _flags(
        n1="np n c H host hosts hostfile machinefile default-hostfile f N npernode ppn perhost npersocket x am tune map-by rank-by "
        "bind-to wdir wd path prefix rf rankfile slot-list cpu-set cpu-list cpus-per-proc cpus-per-rank output-filename stdin "
        "xml-file timeout report-uri report-pid ompi-server app preload-files personality iface launcher launcher-exec rmk "
        "genvlist envlist outfile-pattern errfile-pattern configfile membind order-nodes",
        n2="mca gmca omca pmca genv env",
    ),
    SRUN: _flags(
        n1="n ntasks N nodes ntasks-per-node ntasks-per-core ntasks-per-socket c cpus-per-task p partition A account t time J "
        "job-name w nodelist x exclude C constraint G gpus gpus-per-node gpus-per-task mem mem-per-cpu mem-per-gpu o output e "
        "error i input D chdir m distribution jobid export mpi cpu-bind gpu-bind mem-bind gres qos r relative reservation "
        "nodefile F gres-flags hint overcommit threads-per-core T threads open-mode K kill-on-bad-exit W wait container-image"
    ),
}
LONG_ONLY_WITH_EQUALS = frozenset({"kill-on-bad-exit"})
"""Flags whose value is optional: only ``--flag=VALUE`` gives one."""


@dataclass(frozen=True, kw_only=True)
class ParsedLauncher:
    """One launcher in a command."""

    kind: str
    named: int
    """Index of the program that is started: its own, or the Python that has it as a module."""
    at: int
    """Index of the word behind its name: where its flags begin."""
    program: int
    """Index of the word that it starts."""
    flags: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """By name without dashes: the index of its word, and its value; an empty one where it has none. The last one counts."""

    def value(self, *names: str) -> str | None:
        """Return the value of the first of these flags that is there."""
        return next((self.flags[name][1] for name in names if name in self.flags), None)

    def number(self, *names: str) -> int | None:
        """Return that value where it is a whole number above 0."""
        found = self.value(*names)
        return int(found) if found is not None and re.fullmatch(r"0*[1-9][0-9]{0,5}", found) else None


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command and the launchers in it, the outermost first."""

    words: tuple[str, ...]
    launchers: tuple[ParsedLauncher, ...] = ()
    python: int | None = None
    """Index of the Python that ranks run, where the command names one."""

    @property
    def kind(self) -> str | None:
        """The outermost launcher; ``python`` where there is none but Python, None where it is not known what is started."""
        return self.launchers[0].kind if self.launchers else None if self.python is None else PYTHON

    def find(self, kind: str) -> ParsedLauncher | None:
        """Return the launcher of a kind, if it has one."""
        return next((one for one in self.launchers if one.kind == kind), None)

    @property
    def programs(self) -> list[str]:
        """Those that it starts from this PATH or by their files: none of another environment's, such as ``conda run``'s."""
        starts = sorted({0, *(one.named for one in self.launchers), *([] if self.python is None else [self.python])})
        inside = next((at for at in range(starts[-1] + 1) if PurePath(self.words[at]).name in ENVIRONMENTS), None)
        own = starts if inside is None else [*(at for at in starts if at < inside), inside]
        return list(dict.fromkeys(self.words[at] for at in own))

    @property
    def file(self) -> str | None:
        """The script that ranks run, as it is named; None where they run a module, or nobody knows what."""
        words, torchrun = self.words, self.find(TORCHRUN)
        if torchrun and not {"m", "module", "no-python"} & torchrun.flags.keys():
            at = torchrun.program
        elif torchrun or self.python is None or words[(at := _after_flags(list(words), self.python)) - 1] in ("-m", "-c"):
            return None
        return words[at] if at < len(words) and words[at].endswith(".py") else None


def read_command(text: str) -> CommandLine:
    """Read a command as it is typed, with the variables of this process in their places.

    Raises:
        PlanError: it is empty, a quote is open, or it needs a shell.
    """
    words = shell_words(text, os.environ)
    if not words:
        raise PlanError("command is empty; give what starts your script, such as 'torchrun --nproc-per-node 2 train.py'")
    return command_of(["env", *words] if re.match(r"[A-Za-z_]\w*=", words[0]) else words)


def command_of(given: Iterable[str]) -> CommandLine:
    """Find the launchers in the words of a command."""
    words = list(given)
    launchers: list[ParsedLauncher] = []
    start, python = 0, None
    while (found := _next(words, start)) is not None:
        if isinstance(found, int):
            python = found
            break
        launchers.append(found)
        start = found.program
    return CommandLine(words=tuple(words), launchers=tuple(launchers), python=python)


def _next(words: list[str], start: int) -> ParsedLauncher | int | None:
    """Return the launcher that comes next, or the index of a Python; None where there is neither."""
    if start >= len(words):
        return None
    last = len(words) if PurePath(words[start]).name in PREFIXES else start + 1
    for index in range(start, last):
        name = PurePath(words[index]).name
        if name in PROGRAMS:
            return _launched(PROGRAMS[name], words, index + 1, named=index)
        if PYTHON_NAME.fullmatch(name):
            module = _module(words, index)
            return _launched(MODULES[words[module]], words, module + 1, named=index) if module else index
    return None


def _module(words: list[str], python: int) -> int | None:
    """Return the index of the launcher's module that a Python is to run, if it is one."""
    index = _after_flags(words, python)
    is_module = index < len(words) and words[index - 1] == "-m" and words[index] in MODULES
    return index if is_module else None


def _after_flags(words: list[str], python: int) -> int:
    """Return the index of what a Python runs: a file, or the name of a module, which becomes a word of its own."""
    index = python + 1
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-m", "-") and words[index][:2] != "-c":
        if joined := JOINED.fullmatch(words[index]):
            words[index : index + 1] = filter(None, (joined[1].rstrip("-"), "-m", joined[2]))
        else:
            index += 2 if words[index] in ("-X", "-W") else 1
    return index + 1 if index < len(words) and words[index] in ("-m", "-c") else index


def blocking_flag(line: CommandLine) -> str | None:
    """Return the flag of Python by which no agent arrives, such as ``-I``; None where there is none."""
    if line.python is None:
        return None
    end = _after_flags(list(line.words), line.python)
    short = (word for word in line.words[line.python + 1 : end] if re.fullmatch(r"-[A-Za-z]+", word))
    return next((word for word in short if set(word) & set(WITHOUT_AGENT)), None)


def _launched(kind: str, words: list[str], at: int, *, named: int) -> ParsedLauncher:
    values, flags, index = VALUES[kind], {}, at
    while index < len(words) and words[index].startswith("-") and words[index] not in ("--", "-"):
        name, equals, value = words[index].lstrip("-").partition("=")
        name = name.replace("_", "-") if kind == TORCHRUN else name
        arity = 0 if equals or name in LONG_ONLY_WITH_EQUALS else values.get(name, 0)
        attached = re.fullmatch(r"-([a-zA-Z])(\d.*)", words[index]) if kind == SRUN else None
        if attached and attached[1] in values:
            name, value, arity = attached[1], attached[2], 0
        elif arity:
            value = " ".join(words[index + 1 : index + 1 + arity])
        flags[name] = (index, value)
        index += 1 + arity
    program = index + 1 if index < len(words) and words[index] == "--" else index
    return ParsedLauncher(kind=kind, named=named, at=at, program=min(program, len(words)), flags=flags)


def set_flag(words: list[str], one: ParsedLauncher, name: str, value: str) -> None:
    """Replace the value of a flag that a launcher has among the words of its command."""
    index = one.flags[name][0]
    flag, equals, _ = words[index].partition("=")
    if equals:
        words[index] = f"{flag}={value}"
    else:
        words[index + 1] = value


def ranks_of(line: CommandLine, *, hosts: int = 1) -> int | None:
    """Return how many ranks a command starts; None where its flags do not say. ``hosts``: that a plan names."""
    if line.kind is None:
        return None
    counts = [_ranks(one, hosts=hosts if number == 0 else 1) for number, one in enumerate(line.launchers)]
    known = [count for count in counts if count is not None]
    outer_srun = [one.kind for one in line.launchers] == [SRUN, TORCHRUN]
    if outer_srun and line.launchers[1].number("nnodes") not in (None, 1):
        return counts[1]  # its --nnodes counts what srun has started
    return math.prod(known) if len(known) == len(counts) else None


def _ranks(one: ParsedLauncher, *, hosts: int) -> int | None:
    if one.kind == TORCHRUN:
        local = one.number("nproc-per-node") if "nproc-per-node" in one.flags else 1
        nodes = one.number("nnodes") if "nnodes" in one.flags else hosts
        return local * nodes if local and nodes else None
    if one.kind == SRUN:
        nodes, each = one.number("N", "nodes"), one.number("ntasks-per-node")
        return one.number("n", "ntasks") or (nodes * (each or 1) if nodes else None)
    if one.kind == HOROVODRUN:
        return one.number("np", "num-proc") or _slots(one)
    each = one.number("N", "npernode", "ppn", "perhost")
    return one.number("np", "n", "c") or (each * len(listed) if each and (listed := hosts_of(one)) else _slots(one))


def hosts_of(one: ParsedLauncher) -> list[str]:
    """Return the hosts that a launcher's flags list, each as it is written (``host1:2``); none where they list none."""
    names = {HOROVODRUN: ("H", "hosts"), MPIRUN: ("H", "host", "hosts")}.get(one.kind, ())
    return [entry for entry in (one.value(*names) or "").split(",") if entry]


def hostfile_of(one: ParsedLauncher) -> str | None:
    """Return the hostfile that a launcher's flags name."""
    names = {HOROVODRUN: ("hostfile",), MPIRUN: ("hostfile", "machinefile", "f")}.get(one.kind, ())
    return one.value(*names)


def _slots(one: ParsedLauncher) -> int | None:
    """Return the slots of all hosts that are listed; one that gives no number has one."""
    slots = [entry.rpartition(":")[2] if ":" in entry else "1" for entry in hosts_of(one)]
    return sum(map(int, slots)) if slots and all(slot.isdecimal() for slot in slots) else None
