"""Reads the plan that a user names: a file, or one of Ringside's own by its name, such as
``local``.

Lists make arms: ``options: {fusion_threshold_mb: [8, 64]}`` in a plan's file gives one arm for each
value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backends import backend_class
from measurement.errors import TWO_SCRIPTS, PlanError, about, unknown_name
from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan, placed_beside, read_content
from runners.hosts.placement import with_hosts
from workloads import workload_class

PLANS = Path(__file__).resolve().parents[2] / "plans"
"""In a checkout and in an installed package alike."""
DEFAULT = "local"
TEMPLATE = Path(__file__).with_name("template.yaml")
MAX_ARMS = 16
"""Limit for plans whose option lists make arms: each arm has its own processes, and takes time in
every launch."""


def plan_names() -> list[str]:
    """Return the names of the plans that Ringside has."""
    return sorted(path.stem for path in PLANS.glob("*.yaml"))


def require_named(plan: Path | None) -> Path:
    """Refuse a command without a plan, with a ``PlanError``."""
    if plan is None:
        raise PlanError(
            f"name a plan, such as '{DEFAULT}'; there are"
            f" {', '.join(plan_names())}; 'ringside init' writes one of your own"
        )
    return plan


def find_plan(plan: Path) -> Path:
    """Return the file of a plan: the file named, else Ringside's own plan of that name (``local``,
    ``local.yaml``).

    Raises:
        PlanError: neither exists.
    """
    if plan.suffix == ".py":
        raise PlanError(
            f"'{plan}' is a script, not a plan; {TWO_SCRIPTS}; to compare backends on a workload"
            f" in it, write a plan that names it (ringside init): 'workload: {plan}:CLASS'"
        )
    shipped = PLANS / f"{plan.stem if plan.suffix in ('.yaml', '.yml') else plan.name}.yaml"
    if plan.is_file() or (plan.exists() and not shipped.is_file()):
        return plan
    if plan.parent in (Path(), Path("plans")) and shipped.is_file():
        return shipped
    raise PlanError(
        unknown_name("plan", str(plan), plan_names(), remedy="or give a YAML file that exists")
    )


def is_plan(reference: str) -> bool:
    """Whether a name is that of a plan: a YAML file, or one of Ringside's plans and no workload."""
    if reference in plan_names():
        try:
            workload_class(reference)
        except PlanError:
            return True
    return reference.endswith((".yaml", ".yml"))


def read_plan(plan: Path, *, overrides: Iterable[str] = ()) -> Plan:
    """Read and check a plan.

    Hosts may be given by a hostfile and world sizes by slots, in the plan and at each point.

    Raises:
        PlanError, HostfileError: the plan or its hosts are not accepted.
    """
    path = find_plan(plan)
    # Ringside's own plans name files from there
    folder = path.parent if path is plan else PLANS.parent
    content = with_option_arms(
        placed_beside(read_content(path, overrides=overrides), folder), source=str(plan)
    )
    points = content.get("points")
    if isinstance(points, dict):
        content["points"] = {name: _placed(name, point) for name, point in points.items()}
    return check_plan(
        with_hosts(content), source=str(plan), elsewhere=lambda: _workload_options(content)
    )


def _workload_options(content: Mapping[str, Any]) -> dict[str, str]:
    """The options of a plan's workload, if it can be found."""
    with suppress(PlanError):
        cls, _ = workload_class(str(content.get("workload")))
        return dict.fromkeys(cls.Options.model_fields, "under 'workload_options'")
    return {}


def _placed(name: object, point: Any) -> Any:
    with about(f"point '{name}'"):
        return with_hosts(point) if isinstance(point, Mapping) else point


def write_template(path: Path) -> None:
    """Write a commented plan that runs as it is.

    Raises:
        PlanError: the file exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"'{path}' cannot be written, and stays as it is: {error}") from error


def with_option_arms(content: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return a plan's plain values with one arm for each value of an option list; of several lists,
    for each combination.

    The arm ``hvd`` becomes ``hvd-cycle_time_ms-1``, ``hvd-cycle_time_ms-5``. An option that is
    itself a list stays as it is.

    Raises:
        PlanError: two arms would have one name, or there would be too many.
    """
    arms = content.get("arms")
    if not isinstance(arms, Mapping):
        return dict(content)
    joined: dict[Any, Any] = {}
    for name, arm in arms.items():
        for new, made in _arms_by_option(name, arm):
            if new in joined:
                raise PlanError(
                    f"plan '{source}': two arms would be called '{new}'; rename one, or give each"
                    " value of a list once"
                )
            joined[new] = made
    if len(joined) > max(MAX_ARMS, len(arms)):
        raise PlanError(
            f"plan '{source}': its lists make {len(joined)} arms of {len(arms)}, and at most"
            f" {MAX_ARMS} are allowed; try fewer values at once, or make plans of them"
        )
    return {**content, "arms": joined}


def _arms_by_option(name: Any, arm: Any) -> Iterator[tuple[Any, Any]]:
    """An arm for each value of its option lists, with its name; without a list, the arm itself."""
    given = arm.get("options") if isinstance(arm, Mapping) else None
    options = given if isinstance(given, Mapping) else {}
    lists = {
        option: value
        for option, value in options.items()
        if isinstance(value, list) and value and not _takes(arm.get("backend"), option, value)
    }
    if not lists:
        yield name, arm
        return
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        labels = [f"{option}-{_text(value)}" for option, value in chosen.items()]
        yield "-".join([str(name), *labels]), {**arm, "options": {**options, **chosen}}


def _takes(backend: Any, option: Any, value: list[Any]) -> bool:
    """Whether an option of a backend is itself a list."""
    with suppress(PlanError, ValidationError):
        backend_class(backend).Options.model_validate({option: value})
        return True
    return False


def _text(value: Any) -> str:
    """A value as a part of an arm's name."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text)
