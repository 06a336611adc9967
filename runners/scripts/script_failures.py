"""Explains why a script failed: by its processes, if no rank has reported, and by the exception in
its launcher's log; with what to do.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from measurement.agent.ringside_agent.settings import VARIABLE as AGENT
from measurement.agent.ringside_agent.users_lines import Described, at_line, place_in
from runners.launchers.command_lines import PYTHON_NAME
from runners.launchers.users_command import AGENT_FOLDER, PYTHONPATH
from runners.processes.local import run_processes_left
from runners.processes.supervisor_server import SupervisedRank

LIBRARIES = ("libtorch", "libtorch_cpu", "libtorch_python")
"""Names of mapped files of a process that has loaded torch."""
SLOW_START = "if its first steps take longer, raise start_timeout_s"
"""The remedy if a script's ranks run and have not finished their first steps in time."""
LAUNCHER_FILES = (
    "torchrun",
    "torch.distributed.run",
    "horovodrun",
    "mpirun",
    "runners.processes.local",
    "multiprocessing",
)
HINTS = (
    (
        re.compile(r"No module named '(apex|amp_C)"),
        (
            "instead of apex use torch.amp and torch.nn.parallel.DistributedDataParallel, which do"
            " the same"
        ),
    ),
    (
        re.compile(r"No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA"),
        "there is no GPU here: --cpu checks scripts for GPUs on machines without one",
    ),
    (
        re.compile(r"active drivers|libcuda\.so|No module named '(flash_attn|triton)"),
        (
            "this needs a GPU, and --cpu cannot stand in for it: leave it out by a flag of the"
            " script, if there is one"
        ),
    ),
    (
        re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE),
        (
            "a program of it other than Python serves at a fixed port, which only one process can"
            " have: end the process that has it, or set measurement.mode: sequential if it is"
            " another arm"
        ),
    ),
    (
        re.compile(r"No module named"),
        (
            "the Python that ran it lacks this module: activate the right environment, or name its"
            " Python by --python-a, --python-b, or --python for both"
        ),
    ),
)
"""Errors in a launcher's log, and what to do."""
OPEN_MPIS = re.compile(r"(?<=.)\[\d+,\d+\]<std(out|err)>:")
"""Inserted by Open MPI between pieces of a line that are written separately."""
PREFIX = re.compile(r"((\[[\d,]+\](<std(out|err)>:| ?)|\d+: )?(\[(rank|default)\d+\]: ?)*)")
"""Prefix of each line by horovodrun, mpirun --tag-output, srun --label, torchrun --tee and torch
itself."""
BEGINNING = "Traceback (most recent call last)"
LAUNCHERS_ERROR = re.compile(
    r"\S*(ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError|SignalException)\b"
    r"|RuntimeError: Horovod detected that one or more processes"
)
"""Exceptions of launchers whose process has failed."""
LAUNCHERS_LINE = re.compile(
    r"torch/distributed/(run|elastic/\S+)\.py:\d+\]|Horovod detected that one or more processes"
)
INSTALLED = re.compile(
    r'^\s*File "[^"]*/(site-packages|dist-packages|lib/python3[.\d]*)/.*$', re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class SeenPython:
    """The state of a process that may be a rank."""

    has_agent: bool
    """Whether its environment has the agent's variable."""
    has_torch: bool
    """Whether torch is loaded."""
    path: str | None = None
    """Its PYTHONPATH, if the agent is not in it."""


def look_at(run_id: str, launchers: Sequence[int]) -> list[SeenPython]:
    """Inspect the Pythons of a run on this host: those with its variable, and children of its
    launchers.
    """
    processes = {process.pid: process for process in run_processes_left(run_id)}
    for pid in launchers:
        with contextlib.suppress(psutil.Error):
            processes |= {
                process.pid: process for process in psutil.Process(pid).children(recursive=True)
            }
    seen = []
    for process in processes.values():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            if (
                words
                and PYTHON_NAME.fullmatch(Path(words[0]).name)
                and not any(file in " ".join(words) for file in LAUNCHER_FILES)
            ):
                maps = Path(f"/proc/{process.pid}/maps").read_text(
                    encoding="utf-8", errors="replace"
                )
                environment = process.environ()
                path = environment.get(PYTHONPATH, "")
                seen.append(
                    SeenPython(
                        has_agent=AGENT in environment,
                        has_torch=any(library in maps for library in LIBRARIES),
                        path=None if str(AGENT_FOLDER) in path.split(os.pathsep) else path,
                    )
                )
    return seen


def why_never(seen: Sequence[SeenPython]) -> str | None:
    """Say why no rank will ever report: a path without the agent; None if that is not certain.
    Pure.
    """
    with_torch = [python for python in seen if python.has_torch]
    if with_torch and all(python.has_agent and python.path is not None for python in with_torch):
        path = with_torch[0].path
        done, remedy = (
            ("replaces", f"write PYTHONPATH={path}:$PYTHONPATH")
            if path
            else ("unsets", "leave that out")
        )
        return f"the command {done} PYTHONPATH, which loads Ringside's agent; {remedy}"
    return None


def explain_no_ranks(seen: Sequence[SeenPython]) -> str:
    """Say why no rank reported, by its processes. Pure."""
    if seen and not any(python.has_agent for python in seen):
        return (
            f"the environment does not reach its ranks, which have no {AGENT}; pass PYTHONPATH,"
            f" {AGENT} and RINGSIDE_RUN on: mpirun -x NAME, srun --export=ALL, ssh host env"
            " NAME=VALUE, docker run -e NAME; no env -i"
        )
    if why := why_never(seen):
        return why
    if seen and not any(python.has_torch for python in seen):
        return "its processes do not import torch; is it the right script, and the right python?"
    if seen:
        return (
            f"torch is loaded, and no torch.optim optimizer has taken a step; {SLOW_START}; if it"
            " is started by python -E, -I or -S, which do not read PYTHONPATH, leave that flag out"
        )
    return "no Python of it was seen; is it the right command?"


def why_others(
    connected: Sequence[SupervisedRank], refused: Sequence[SupervisedRank]
) -> str | None:
    """Say how the connected processes contradict each other; None if they do not. Pure."""
    counts = sorted({process.world_size for process in (*connected, *refused)})
    if len(counts) > 1:
        return (
            f"its processes disagree on the number of ranks ({counts[0]} and {counts[-1]}), and"
            " only a part would be timed; start them all by one launcher, which tells each its"
            " rank"
        )
    if not refused:
        return None
    return (
        f"several processes of it each report as rank {refused[0].rank} of {refused[0].world_size},"
        " and only one would be timed; start them by a launcher that tells each its rank, such as"
        " torchrun, horovodrun or mpirun"
    )


def hint_of(log: str) -> str | None:
    """Return what to do about an error in a launcher's log, if that is known. Pure."""
    return next((remedy for pattern, remedy in HINTS if pattern.search(log)), None)


def first_traceback(log: str) -> list[str]:
    """Return the lines of the first Python traceback of the script; of a chain, the cause.

    Empty if there is none.
    """
    tracebacks: list[list[str]] = []
    open_in: dict[str, list[str]] = {}
    for prefix, line in _lines(log):
        if line.startswith(BEGINNING):
            open_in[prefix] = []
            tracebacks.append(open_in[prefix])
        elif prefix in open_in:
            open_in[prefix].append(line)
            if not line.startswith(" "):
                del open_in[prefix]
    of_script = [lines for lines in tracebacks if lines and not LAUNCHERS_ERROR.match(lines[-1])]
    # ranks that write at once cut each other's off
    return min(of_script, key=lambda lines: lines[-1].startswith(" "), default=[])


def scripts_exception(log: str) -> Described | None:
    """Return the script's exception, with its line and those around it; None if it raised
    nothing.
    """
    lines = first_traceback(log)
    if not lines:
        return None
    described = at_line(lines[-1], place_in(INSTALLED.sub("", "\n".join(lines))))
    return described if described.excerpt else Described(described.message, lines)


def lines_of_script(log: str) -> list[str]:
    """Return the lines of a log without launchers' messages about failed processes."""
    kept = []
    for _, line in _lines(log):
        if line.startswith(BEGINNING):
            break  # a launcher's, since the script has none
        kept += [line] if re.search(r"\w", line) and not LAUNCHERS_LINE.search(line) else []
    return kept


def _lines(log: str) -> list[tuple[str, str]]:
    """Each line as prefix and text."""
    texts = [OPEN_MPIS.sub("", line) for line in log.splitlines()]
    return [
        (match[0].strip(), text[match.end() :]) for text in texts if (match := PREFIX.match(text))
    ]
