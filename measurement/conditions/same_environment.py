"""Whether a comparison resumes in the environment it was measured in: the same plan, versions,
machines and source files.

An environment is flat: ``torch``, ``cpu``, ``cores`` and the like, ``ringside``, and ``source
NAME`` with a digest. Where a plan names hosts, `` on HOST`` follows the field's name, or `` on node
1`` in a Slurm job. A field that an older Ringside did not record is not compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from measurement.conditions import MAY_CHANGE_IN_A_PLAN, conditions
from measurement.conditions.differences import differing
from measurement.errors import quoted
from measurement.plans.plan import ONLY_ACROSS_HOSTS, Plan
from measurement.records.record import LaunchRecord, Manifest, OtherEnvironment

SOURCE = "source "
DIGITS = 8
"""Digits of a digest that a message shows."""

Environment = dict[str, Any]
Values = dict[str, Any]
"""The value of a field ``then`` and ``now``."""


def plan_digest(plan: Plan) -> str:
    """A fingerprint of what a plan measures, which identifies the results folders of a plan.

    A field counts only where it differs from its default, so that a new field leaves the digests of
    older folders as they are.
    """
    exclude: dict[str, Any] = dict.fromkeys(MAY_CHANGE_IN_A_PLAN, True)
    exclude["measurement"] = dict.fromkeys(MAY_CHANGE_IN_A_PLAN, True)
    exclude |= {} if plan.hosts else dict.fromkeys(ONLY_ACROSS_HOSTS, True)
    exclude |= {} if plan.points else {"points": True, "scaling": True}
    content = plan.model_dump(exclude=exclude, exclude_defaults=True)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def environment_of(manifest: Manifest) -> Environment:
    """The environment that a manifest records."""
    environment: Environment = {"ringside": manifest.ringside_version}
    for number, (host, facts) in enumerate(
        (manifest.hosts or {"": manifest.driver}).items(), start=1
    ):
        if manifest.slurm_job:  # which nodes of a kind Slurm gives does not matter
            environment |= _fields(
                {name: fact for name, fact in facts.items() if name != "host"}, f"node {number}"
            )
        else:
            environment |= _fields(facts, host)
    return environment | {f"{SOURCE}{name}": digest for name, digest in manifest.sources.items()}


def changes_since(
    manifest: Manifest | None, records: Iterable[LaunchRecord], now: Manifest
) -> dict[str, Values]:
    """What has changed since a comparison began: each field with its values then and now.

    ``manifest`` and ``records`` are the folder's; None where a driver was killed before it wrote
    one. ``now`` is the manifest of this session.
    """
    present = environment_of(now)
    changes, elsewhere = dict[str, Values](), set[int]()
    if manifest:
        changes = _changes(environment_of(manifest), present)
        elsewhere = {launch for other in manifest.elsewhere for launch in other.launches}
    for record in records:
        if record.launch not in elsewhere:
            for field, change in _changes(_of_ranks(record, now), present).items():
                changes.setdefault(field, change)
    return changes


def find_environment(others: Iterable[OtherEnvironment], now: Manifest) -> OtherEnvironment | None:
    """The environment in which a user resumed before that equals the present one; None if it is
    new.
    """
    present = environment_of(now)
    return next((other for other in others if not _changes(other.environment, present)), None)


def format_changes(changes: Mapping[str, Values]) -> list[str]:
    """Each change in a few words, ``torch: 2.14.0 -> 2.15.0``."""
    return [
        f"{field.removeprefix(SOURCE)}: {_value(field, values['then'])} ->"
        f" {_value(field, values['now'])}"
        for field, values in changes.items()
    ]


def _changes(then: Environment, now: Environment) -> dict[str, Values]:
    return differing({"then": then, "now": now}, shared=True)


def _fields(facts: Mapping[str, Any], host: str, *, of_a_rank: bool = False) -> Environment:
    suffix = f" on {host}" if host else ""
    compared = [
        condition.field
        for condition in conditions()
        if condition.sessions == "ranks" or (condition.sessions and not of_a_rank)
    ]
    return {f"{name}{suffix}": facts[name] for name in compared if name in facts}


def _of_ranks(record: LaunchRecord, now: Manifest) -> Environment:
    """The environment that the ranks of a launch reported.

    Hosts of a plan are matched by their own names.

    Sources of an arm that has its own begin with its name.
    """
    names = {facts.get("host"): host for host, facts in now.hosts.items()}
    environment: Environment = {}
    owner = (
        f"{record.arm}/" if any(name.startswith(f"{record.arm}/") for name in now.sources) else ""
    )
    for rank in record.ranks:
        host = names.get(rank.fingerprint.get("host")) if names else ""
        if host is not None and record.python is None:  # else its versions are among the sources
            environment |= _fields(rank.fingerprint, host, of_a_rank=True)
        environment |= {f"{SOURCE}{owner}{name}": digest for name, digest in rank.sources.items()}
    return environment


def _value(field: str, value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else quoted(value)
    return text[:DIGITS] if field.startswith(SOURCE) else quoted(text).strip("'\"")
