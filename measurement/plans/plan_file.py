"""Reads plans from YAML and checks them, finds the files that they name, and makes the plans of a
study's points.

One message lists all that is wrong with a plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic.config import ExtraValues

from measurement.errors import PlanError, cut, quoted
from measurement.files import read_text
from measurement.plans.plan import Plan
from measurement.plans.sections import FIXED_LENGTH
from measurement.plans.settings import FOR_HOSTS, OptionsElsewhere, checked, fields_at


def read_content(path: Path, *, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The content of a plan's YAML file, unchecked, with overrides.

    Raises:
        PlanError: the file is missing, or not YAML (with line and column).
    """
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise PlanError(
            f"plan '{path}' does not exist; give a YAML file such as plans/local.yaml"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"plan '{path}' cannot be read: {error}") from error
    content = parse_yaml(text, source=str(path))
    if not isinstance(content, dict):
        raise PlanError(
            f"plan '{path}' holds {type(content).__name__}, not a mapping; see plans/local.yaml for"
            " the form"
        )
    return overridden(content, overrides)


def overridden(content: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a plan's plain values, changed by ``key.subkey=value`` settings.

    Raises:
        PlanError: a setting is not of that form.
    """
    overrides = list(overrides)
    given = {override.partition("=")[0].strip() for override in overrides}
    lengths = {f"measurement.{name}" for name in FIXED_LENGTH}
    measurement = content.get("measurement")
    if isinstance(measurement, dict):  # a budget replaces the file's length, a length its budget
        replaced = FIXED_LENGTH if "measurement.minutes" in given else ()
        for name in (*replaced, *(["minutes"] if given & lengths else [])):
            measurement.pop(name, None)
    for override in overrides:
        _override(content, override)
    return content


def parse_yaml(text: str, *, source: str) -> Any:
    """YAML to plain values; a syntax error is reported with line and column, a repeated key is
    refused.
    """
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _require_text_of_bounded_size(node)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown place"
        raise PlanError(
            f"plan '{source}' is not valid YAML at {where}:"
            f" {cut(str(error.problem or error.context))}"
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise PlanError(f"plan '{source}' is not valid YAML: {cut(str(error))}") from error


MAX_NODES = 100_000
"""Values of a document."""


def _require_text_of_bounded_size(root: yaml.Node) -> None:
    """Refuse what would take all memory, or be no text in a file or an environment.

    An alias counts in full: nine lines of aliases of aliases can be a thousand million values.
    """
    pending, number = [root], 0
    while pending:
        node, number = pending.pop(), number + 1
        if number > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES:,} values, with aliases counted in full")
        if isinstance(node, yaml.MappingNode):
            pending += itertools.chain.from_iterable(node.value)
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value
        elif b"\0" in node.value.encode():  # which refuses half a character
            raise ValueError("it holds the character \\0, which no text may have")


def check_plan(
    content: Mapping[str, Any],
    *,
    source: str,
    elsewhere: OptionsElsewhere = dict,
    extra: ExtraValues | None = None,
) -> Plan:
    """Validate plain values as a plan; one PlanError names every value that is not accepted.

    ``extra``: see ``checked``.
    """

    def places() -> Mapping[str, str]:
        inside = {
            name: f"under '{section}'"
            for section in Plan.model_fields
            for name in fields_at(Plan, [section])
        }
        return {**inside, **elsewhere()}

    return checked(Plan, content, source=f"plan '{source}'", elsewhere=places, extra=extra)


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise PlanError(
            f"--set {quoted(override)} is not of the form key=value, for instance --set threads=2"
        )
    *parents, last = key.strip().split(".")
    section = content
    for parent in parents:
        section = section.setdefault(parent, {})
        if not isinstance(section, dict):
            raise PlanError(
                f"--set {quoted(override)}: {quoted(parent)} is a value, not a section of the plan"
            )
    section[last] = parse_yaml(value, source=f"--set {cut(key)}")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a repeated key, which YAML forbids and PyYAML accepts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key}' is given twice", key_node.start_mark
                )
            seen.append(key)
        return super().construct_mapping(node, deep=deep)


KINDS = ("workload", "backend", "launcher", "report")
"""What is named by a reference: in keys of the plan and its arms, and among reports."""


def placed_beside(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A plan's plain values with the paths of its files: beside the plan, in ``folder``, else in
    the working directory.

    A plan in the working directory is unchanged. Otherwise a file beside the plan gets its absolute
    path, which ranks on other hosts find where they find the working directory.

    Raises:
        PlanError: a file is in neither folder.
    """
    placed = {key: _placed(value, key, folder) for key, value in content.items()}
    if isinstance(placed.get("arms"), Mapping):
        placed["arms"] = {
            name: placed_beside(arm, folder) if isinstance(arm, Mapping) else arm
            for name, arm in placed["arms"].items()
        }
    if isinstance(placed.get("reports"), list):
        placed["reports"] = [_placed(report, "report", folder) for report in placed["reports"]]
    return placed


def _placed(value: Any, key: str, folder: Path) -> Any:
    if key not in KINDS or not isinstance(value, str) or ":" not in value:
        return value
    module, _, name = value.rpartition(":")
    path = Path(module if module.endswith(".py") else f"{module}.py")
    if path.is_absolute() or folder.resolve() == Path.cwd():
        return value
    if (folder / path).is_file():
        return f"{(folder / path).resolve()}:{name}"
    if module.endswith(".py") and not path.is_file():
        raise PlanError(
            f"{key} file '{path}' does not exist, neither beside the plan ({folder.resolve()}) nor"
            f" in the working directory ({Path.cwd()}); give its path from one of them"
        )
    return value


def plan_at(study: Plan, name: str, *, without: Collection[str] = ()) -> Plan:
    """The comparison at one point of a study, without the arms that cannot run there.

    Raises:
        PlanError: the point does not give a valid plan.
    """
    point = study.points[name]
    if study.baseline in without:
        raise PlanError(
            f"point '{name}': the baseline '{study.baseline}' cannot run there; choose one that"
            " runs at every point"
        )
    changes = point.model_dump(exclude_none=True)
    if study.scaling == "strong":
        changes["local_batch_size"] = shared_batch(study, name)
    content = study.model_dump(exclude={"points", "scaling"}) | changes
    content["name"] = f"{study.name}.{name}"
    content["arms"] = {arm: value for arm, value in content["arms"].items() if arm not in without}
    if content["hosts"] is None:
        for field in FOR_HOSTS:
            del content[field]
    return check_plan(content, source=f"point '{name}'")


def world_size_at(study: Plan, name: str) -> int:
    """Ranks at a point."""
    return study.points[name].world_size or study.world_size


def shared_batch(study: Plan, name: str) -> int:
    """Samples of each rank and micro-step at a point, where all points share the first one's global
    batch.

    Raises:
        PlanError: it leaves a remainder.
    """
    first = next(iter(study.points))
    samples = (study.points[first].local_batch_size or study.local_batch_size) * world_size_at(
        study, first
    )
    ranks = world_size_at(study, name)
    if samples % ranks:
        raise PlanError(
            f"point '{name}': scaling: strong shares the first point's {samples} samples among"
            f" {ranks} ranks, which leaves a remainder; choose a local_batch_size with which"
            f" '{first}' has a multiple of {ranks} samples"
        )
    return samples // ranks
