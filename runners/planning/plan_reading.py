"""Reads the plan that a user names: a file, or one of Ringside's own by its name, such as
``local``.

Lists make arms: ``options: {fusion_threshold_mb: [8, 64]}`` in a plan's file gives one arm for each
value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_origin

from backends import backend_class
from measurement.errors import TWO_SCRIPTS, PlanError, about, closest, quoted
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
            f"name a plan, such as 'ringside compare {DEFAULT}' (plans/{DEFAULT}.yaml: two ranks on"
            f" this machine); there are {', '.join(plan_names())}; 'ringside init' writes one of"
            " your own"
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
    close = closest(plan.stem, plan_names())
    hint = (
        f"did you mean '{close}'? (known: {', '.join(plan_names())})"
        if close
        else "or the name of a plan, such as local"
    )
    raise PlanError(
        f"plan '{plan}' does not exist; give a YAML file such as plans/local.yaml; {hint}"
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
        cls, _ = workload_class(content.get("workload", ""))
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
    except FileExistsError as error:
        raise PlanError(
            f"'{path}' exists and stays as it is; name another file: ringside init FILE"
        ) from error
    except OSError as error:
        raise PlanError(f"'{path}' cannot be written: {error}") from error


def with_option_arms(content: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return a plan's plain values with one arm for each value of an option list; of several lists,
    for each combination.

    The arm ``hvd`` becomes ``hvd-cycle_time_ms-1``, ``hvd-cycle_time_ms-5``. An option that is
    itself a list stays as it is.

    Raises:
        PlanError: a list is empty or names a value twice; there would be too many arms; or another
            key names the arm that became several.
    """
    arms = content.get("arms")
    if not isinstance(arms, Mapping):
        return dict(content)
    arms_of = {name: _arms_by_option(str(name), arm, source) for name, arm in arms.items()}
    if not any(arms_of.values()):
        return dict(content)
    joined: dict[Any, Any] = {}
    for name, several in arms_of.items():
        for new, arm in (several or {name: arms[name]}).items():
            if new in joined:
                raise PlanError(f"plan '{source}': two arms would be called '{new}'; rename one")
            joined[new] = arm
    if len(joined) > max(MAX_ARMS, len(arms_of)):
        raise PlanError(
            f"plan '{source}': its lists make {len(joined)} arms of {len(arms_of)}, and at most"
            f" {MAX_ARMS} are allowed; try fewer values at once, or make plans of them"
        )
    for key in ("baseline", "question"):
        several = arms_of.get(content.get(key)) if isinstance(content.get(key), str) else None
        if several:
            raise PlanError(
                f"plan '{source}': {key} '{content[key]}' is made into several arms; name one:"
                f" {', '.join(several)}"
            )
    return {**content, "arms": joined}


def _arms_by_option(name: str, arm: Any, source: str) -> dict[str, Any] | None:
    """An arm for each value of its option lists, by name; None if it has no list."""
    options = arm.get("options") if isinstance(arm, Mapping) else None
    if not isinstance(options, Mapping):
        return None
    lists = {option: value for option, value in options.items() if isinstance(value, list)}
    for option in lists.keys() & _list_options(arm.get("backend")):
        del lists[option]
    for option, values in lists.items():
        _require_values(values, f"plan '{source}': arms.{name}.options.{option}")
    if not lists:
        return None
    return {
        "-".join([name, *(f"{option}-{_text(value)}" for option, value in combination.items())]): {
            **arm,
            "options": {**options, **combination},
        }
        for combination in (
            dict(zip(lists, values, strict=True)) for values in product(*lists.values())
        )
    }


def _require_values(values: Sequence[Any], where: str) -> None:
    if not values:
        raise PlanError(f"{where} is an empty list; give the values to compare, or leave it out")
    texts = [_text(value) for value in values]
    twice = next(
        (value for value, text in zip(values, texts, strict=True) if texts.count(text) > 1), None
    )
    if len(set(texts)) < len(texts):
        raise PlanError(
            f"{where} has {quoted(twice)} twice, or two values with one name; give each value once"
        )


def _text(value: Any) -> str:
    """A value as a part of an arm's name."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text)


def _list_options(backend: Any) -> Set[str]:
    """The options of a backend that are lists themselves; none for an unknown backend, which is
    refused elsewhere.
    """
    with suppress(PlanError):
        return {
            name
            for name, field in backend_class(backend).Options.model_fields.items()
            if _takes_lists(field.annotation)
        }
    return set()


def _takes_lists(annotation: Any) -> bool:
    origin = get_origin(annotation) or annotation
    if (
        isinstance(origin, type)
        and issubclass(origin, list | tuple | set | frozenset | Sequence)
        and not issubclass(origin, str)
    ):
        return True
    return any(_takes_lists(part) for part in get_args(annotation))
