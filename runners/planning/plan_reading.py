"""Reads the plan that a user names: a file, or one of Ringside's own by its name, such as ``local``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from measurement.errors import TWO_SCRIPTS, PlanError, about, closest
from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan, read_content
from measurement.plans.references import placed_beside
from runners.hosts.placement import with_hosts
from runners.planning.option_arms import with_input_arms, with_option_arms
from workloads import workload_class

PLANS = Path(__file__).resolve().parents[2] / "plans"
"""In a checkout and in an installed package alike."""
DEFAULT = "local"
TEMPLATE = Path(__file__).with_name("template.yaml")


def plan_names() -> list[str]:
    """Return the names of the plans that Ringside has."""
    return sorted(path.stem for path in PLANS.glob("*.yaml"))


def require_named(plan: Path | None) -> Path:
    """Refuse a command without a plan, with a ``PlanError``."""
    if plan is None:
        raise PlanError(
            f"name a plan, such as 'ringside compare {DEFAULT}' (plans/{DEFAULT}.yaml: two ranks on this machine); there are "
            f"{', '.join(plan_names())}; 'ringside init' writes one of your own"
        )
    return plan


def find_plan(given: Path) -> Path:
    """Return the file of a plan: the one named; where there is none, Ringside's own of that name (``local``, ``local.yaml``).

    Raises:
        PlanError: there is neither.
    """
    if given.suffix == ".py":
        raise PlanError(
            f"'{given}' is a script and no plan; {TWO_SCRIPTS}; to compare back ends on a workload in it, write a plan that names "
            f"it (ringside init): 'workload: {given}:CLASS'"
        )
    own = PLANS / f"{given.stem if given.suffix in ('.yaml', '.yml') else given.name}.yaml"
    if given.is_file() or (given.exists() and not own.is_file()):
        return given
    if given.parent in (Path(), Path("plans")) and own.is_file():
        return own
    close = closest(given.stem, plan_names())
    hint = f"did you mean '{close}'? (known: {', '.join(plan_names())})" if close else "or the name of a plan, such as local"
    raise PlanError(f"plan '{given}' does not exist; give a YAML file such as plans/local.yaml; {hint}")


def is_plan(reference: str) -> bool:
    """Whether a name is that of a plan: a YAML file, or one of Ringside's plans and no workload."""
    if reference in plan_names():
        try:
            workload_class(reference)
        except PlanError:
            return True
    return reference.endswith((".yaml", ".yml"))


def read_plan(given: Path, *, overrides: Iterable[str] = ()) -> Plan:
    """Read and check a plan. Hosts may be given by a hostfile and world sizes by slots, in the plan and at each point.

    Raises:
        PlanError, HostfileError: what it says is not accepted.
    """
    path = find_plan(given)
    folder = path.parent if path is given else PLANS.parent  # Ringside's own plans name files from there
    content = with_option_arms(placed_beside(read_content(path, overrides=overrides), folder), source=str(given))
    content = with_input_arms(content, source=str(given))
    points = content.get("points")
    if isinstance(points, dict):
        content["points"] = {name: _placed(name, point) for name, point in points.items()}
    return check_plan(with_hosts(content), source=str(given), elsewhere=lambda: _workload_options(content))


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
        raise PlanError(f"'{path}' exists and stays as it is; name another file: ringside init FILE") from error
    except OSError as error:
        raise PlanError(f"'{path}' cannot be written: {error}") from error
