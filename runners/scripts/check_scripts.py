"""``ringside check`` of a plan of commands: what each would start."""

from __future__ import annotations

from measurement.plans.plan import Plan
from runners.planning.worktrees import find_revision
from runners.scripts.script_setup import resolve_scripts


def print_scripts(plan: Plan) -> None:
    """Print what the arms are, once all that can be checked without starting them was.

    Raises:
        PlanError: something of it is missing.
    """
    for name, setup in resolve_scripts(plan).items():
        if name not in plan.arms:
            continue
        at = f" at {find_revision(setup.arm.commit, setup.folder).commit[:12]}" if setup.arm.commit else ""
        ranks = f"{setup.plan.world_size} rank{'s' if setup.plan.world_size != 1 else ''}"
        print(f"  arm        {name}: {ranks} by {setup.launcher_reference}, in {setup.folder}{at}")
    print("nothing to mend")
