"""The smallest plan with changes: checked as it is given, or read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan
from runners.planning.plan_reading import read_plan
from tests.conftest import TINY


def tiny(**changes: Any) -> Plan:
    """``TINY`` with these keys, of which those that are None are left out; the first of other arms
    is the baseline."""
    return check_plan(_content(changes), source="test")


def read_tiny(folder: Path, **changes: Any) -> Plan:
    """The same from a file in a folder."""
    (folder / "plan.yaml").write_text(yaml.safe_dump(_content(changes), sort_keys=False))
    return read_plan(folder / "plan.yaml")


def written_again(plan: Plan) -> Plan:
    """What a plan's own YAML is read as."""
    return check_plan(yaml.safe_load(plan.to_yaml()), source="again")


def _content(changes: dict[str, Any]) -> dict[str, Any]:
    content = {**TINY, "baseline": next(iter(changes.get("arms", {})), "ddp"), **changes}
    return {key: value for key, value in content.items() if value is not None}
