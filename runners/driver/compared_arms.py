"""The arms of a comparison: their names resolved, and the checks before anything is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from measurement.agent.ringside_agent.machine import gpu_names
from measurement.host import crowded_warning, shared_gpus_warning
from measurement.plans.plan import Plan
from measurement.records.record import Case
from measurement.registry import sources_of_all
from runners.hosts.host_facts import CARDS
from runners.hosts.preflight import Preflight, inspect
from runners.launchers import HERE
from runners.planning.arm_checks import (
    require_executables,
    require_findable,
    require_gpus,
    require_undisturbed,
)
from runners.planning.arm_specs import ArmSpec, TrialFacts, computes_on_gpu
from runners.planning.arms import floor_beside, resolve_arm, resolve_arms
from runners.planning.check_process import OwnFindings, facts_of, require_data_on, require_own_work
from runners.planning.command_place import has_changes
from runners.planning.workload import WorkloadSetup, resolve_cases, resolve_workload
from runners.planning.workload_check import require_data, require_epochs
from runners.scripts.script_setup import resolve_scripts


class ComparedArms:
    """The arms of a plan, which train its workload or are scripts. Making it starts nothing."""

    inspection: Preflight
    """What was found on the hosts; known after ``check``."""
    workload: WorkloadSetup | None = None
    """What all arms train; None: they are scripts."""
    floor: ArmSpec | None = None

    def __init__(self, plan: Plan, *, say: Callable[[str], None]) -> None:
        """Resolve the names in the plan; raises a ``PlanError`` or ``HostfileError`` for an unknown
        one.
        """
        self.plan, self._say = plan, say
        self.cases: list[Case] = []
        self.own_work = OwnFindings()
        """Results of the check of arms with their own workload or commit."""
        self._shell_warnings: list[str] = []
        """Warnings of variables in the shell."""
        arms = self.arms = resolve_scripts(plan) if plan.are_scripts else resolve_arms(plan)
        """All compared arms by name, including the control."""
        if plan.are_scripts:
            return
        usual = next(
            (arm for arm in arms.values() if not arm.arm.has_own_work), arms[plan.baseline]
        )
        self.workload = resolve_workload(
            usual.place.workload_here(usual.plan.workload), usual.plan.workload_options
        )
        self.cases = resolve_cases(plan, self.workload, arms)
        self.floor = (
            floor_beside(arms[plan.baseline]) if plan.has_floor and not self.cases else None
        )
        require_epochs(plan, self.workload)

    @property
    def without_control(self) -> list[ArmSpec]:
        """All arms except the control, whose command is the baseline's."""
        return [setup for name, setup in self.arms.items() if self.plan.role(name) != "control"]

    def fit(self, batches: Mapping[str, int]) -> None:
        """Give arms the local batch sizes that the search has found."""
        arms = {
            name: self.plan.arms[name].model_copy(update={"local_batch_size": size})
            for name, size in batches.items()
        }
        self.plan = self.plan.model_copy(update={"arms": self.plan.arms | arms})
        for name, arm in self.plan.compared_arms().items():
            if arm.fit:
                fitted = resolve_arm(name, arm, self.plan)
                recorded = {**self.arms[name].recorded, **fitted.recorded}
                self.arms[name] = dataclasses.replace(fitted, recorded=recorded)

    def learn(self, learned: dict[str, TrialFacts]) -> None:
        """Keep the results of trials by arm name, for later starts."""
        baseline = learned.get(self.plan.baseline)
        trials = learned | (
            {self.plan.control_name: baseline} if baseline and self.plan.measurement.control else {}
        )
        for name, trial in trials.items():
            plan = self.plan.model_copy(update={"world_size": trial.ranks})
            self.arms[name] = dataclasses.replace(self.arms[name], trial=trial, plan=plan)

    @property
    def has_ranks_here(self) -> bool:
        """Whether a rank runs on this host. After ``check``."""
        placement = self.inspection.placement
        return any(entry.host in placement.here for entry in placement.hosts)

    @property
    def are_on_gpus(self) -> bool:
        """Whether ranks compute on GPUs. After ``check``."""
        return self.plan.device != "cpu" and (
            any(self._gpus.values()) or computes_on_gpu(self.plan.device)
        )

    @property
    def _gpus(self) -> dict[str, int]:
        """How many GPUs each host has."""
        facts = self.inspection.facts
        return {host: len(host_facts.get(CARDS, [])) for host, host_facts in facts.items()} or {
            HERE: len(gpu_names())
        }

    def check(self) -> list[str]:
        """Check the hosts, and that each arm can start on them.

        Returns:
            Notes for readers of the report.

        Raises:
            PlanError, LaunchError: what cannot work, and what can.
        """
        workers = list(self.arms.values()) if self.workload is not None else []
        self._shell_warnings = require_undisturbed(workers)
        require_executables(workers)
        self.inspection = inspect(self.plan)
        for arm in workers:
            require_findable(
                self.inspection.unfindable,
                arm.backend,
                network_interface=self.plan.network_interface,
            )
        require_gpus(self.inspection.facts, workers)
        self._find_own_work()
        return [
            f"{setup.name} runs {setup.arm.commit}, without the changes that are not committed"
            for setup in self.without_control
            if setup.place.repository and has_changes(setup.place.repository)
        ]

    def _find_own_work(self) -> None:
        """Try each arm with its own workload or commit once; raises a ``PlanError`` if one cannot
        run.
        """
        if not self.plan.has_own_work:
            return
        self._say("checking arms that have their own workload or commit")
        host = None if self.has_ranks_here else self.inspection.placement.hosts[0].host
        self.own_work = require_own_work(
            self.arms.values(), host=host, micro_benchmark=bool(self.cases)
        )
        for name, unit in self.own_work.sample_units.items():
            arm = self.arms[name]
            self.arms[name] = dataclasses.replace(
                arm, recorded={**arm.recorded, "sample_unit": unit}
            )

    def sources(self) -> dict[str, Path]:
        """The user's source files that are measured, by name."""
        arms = self.arms.values()
        classes = [*(type(arm.backend) for arm in arms), *(type(arm.launcher) for arm in arms)]
        classes = [self.workload.workload, *classes] if self.workload else classes
        return sources_of_all(dict.fromkeys(classes)) | {
            name: path for arm in self.without_control for name, path in arm.sources.items()
        }

    def revisions(self) -> dict[str, str]:
        """Revisions, versions and digests of files of arms that have their own workload, commit or
        image.
        """
        return {
            f"{name}/{field}": arm.recorded[field]
            for name, arm in self.arms.items()
            for field in ("commit", "image")
            if arm.recorded.get(field)
        } | self.own_work.sources

    def require_data(self) -> None:
        """Read a workload's data once on every host that ranks run on. Scripts load their own data.

        Raises:
            PlanError: it is missing or damaged.
        """
        if self.cases or self.workload is None:
            return
        if self.has_ranks_here and self.plan.container:
            facts_of(self.plan)
        elif self.has_ranks_here:
            require_data(
                self.workload, local_batch_size=self.plan.local_batch_size, seed=self.plan.seed
            )
        require_data_on(self.inspection.placement.remote, self.plan, self.workload)

    def warnings(self) -> list[str]:
        """What may disturb the measurement: shell variables, hosts, ranks that share cores or GPUs.

        After ``check``.
        """
        return [
            *self._shell_warnings,
            *self.inspection.warnings,
            *(self._crowded() if self.workload is not None else []),
        ]

    def _crowded(self) -> list[str]:
        """Warnings of hosts on which ranks share cores, or GPUs if they compute on GPUs."""
        placement, gpus = self.inspection.placement, self._gpus
        by_host = {
            entry.host: shared_gpus_warning(entry.slots, gpus.get(entry.host, 0))
            if self.are_on_gpus
            else crowded_warning(entry.slots, placement.cores.get(entry.host))
            for entry in placement.hosts
        }
        return [
            warning if host == HERE else f"host '{host}': {warning}"
            for host, warning in by_host.items()
            if warning
        ]
