"""What is left in the shell that changes what ranks do (``conditions.disturbing_variables``), arm by arm, before any starts."""

from __future__ import annotations

import os
from collections.abc import Iterable

from measurement.conditions.disturbing_variables import Disturbance, Library, disturbances, told
from measurement.environment import forwarded_by_name
from measurement.errors import PlanError
from runners.planning.arms import ArmSetup, computes_on_gpu
from runners.processes.local import base_environment


def rank_environment(setup: ArmSetup) -> dict[str, str]:
    """What an arm's ranks find of the shell's variables and of the plan's."""
    plan = setup.plan
    named = forwarded_by_name(os.environ, plan.forward_environment)
    return base_environment() | named | plan.environment | setup.environment


def libraries_of(device: str) -> frozenset[Library]:
    """Those that ranks use for a device, whatever their backend."""
    return frozenset({"cuda"}) if computes_on_gpu(device) else frozenset()


def disturbances_of(setup: ArmSetup) -> list[Disturbance]:
    """Those of an arm's ranks, whether the shell or the plan sets them."""
    return disturbances(rank_environment(setup), setup.backend.steered_by | libraries_of(setup.plan.device))


def require_undisturbed(arms: Iterable[ArmSetup]) -> list[str]:
    """Refuse variables with which an arm would not be measured truly.

    Returns:
        What readers should know of the others that the shell has, a sentence each.

    Raises:
        PlanError: the first of them.
    """
    found: dict[str, list[Disturbance]] = {}
    for setup in arms:
        refused = setup.backend.refused_environment(rank_environment(setup))
        if refused:
            raise PlanError(f"arm '{setup.name}': {refused} (in the environment of 'ringside' or in the plan's)")
        chosen = setup.plan.environment | setup.environment
        found[setup.name] = [one for one in disturbances_of(setup) if one.name not in chosen]
    return told(found)
