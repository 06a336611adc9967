"""Resolves the workload of a plan: its class and options, a micro-benchmark's cases, the epochs of
a training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel

from backends import Backend
from measurement.errors import PlanError
from measurement.plans.settings import TrainingSettings, checked
from measurement.records.record import Case
from workloads import REGISTRY, MicroBenchmark, Workload, workload_class
from workloads.optimizers import seed_generators

if TYPE_CHECKING:  # ranks resolve their workload here, and need no plan
    from measurement.plans.plan import Plan
    from runners.planning.arm_specs import ArmSpec


USERS_MODELS = ("synthetic",)
"""Our workloads that train a model of the user's."""


@dataclass(frozen=True, kw_only=True)
class WorkloadSetup:
    """A workload's class, and its options after checking."""

    reference: str
    workload: type[Workload] | type[MicroBenchmark]
    options: BaseModel

    @property
    def is_users_model(self) -> bool:
        """Whether it trains a model that our tests do not check."""
        return issubclass(self.workload, Workload) and (
            self.reference in USERS_MODELS or self.reference not in REGISTRY.table
        )

    def gate_comes_first(self, training: TrainingSettings | None) -> bool:
        """Whether the parity gate is taken before what is measured, see
        ``runners.driver.gates``.
        """
        return training is not None or issubclass(self.workload, MicroBenchmark)

    def build(self, *, local_batch_size: int, seed: int) -> Workload:
        """Make the workload. Random numbers in its constructor follow from the seed."""
        assert issubclass(self.workload, Workload)
        seed_generators(seed)
        return self.workload(local_batch_size=local_batch_size, seed=seed, options=self.options)

    def build_micro_benchmark(self, *, local_batch_size: int, seed: int) -> MicroBenchmark | None:
        """Make the micro-benchmark; None if the workload is trained."""
        if not issubclass(self.workload, MicroBenchmark):
            return None
        return self.workload(local_batch_size=local_batch_size, seed=seed, options=self.options)


def resolve_workload(reference: str, values: dict[str, object]) -> WorkloadSetup:
    """Resolve a workload and check its options.

    Raises:
        PlanError: unknown workload or option.
    """
    workload, implied = workload_class(reference)
    options = checked(
        workload.Options, implied | values, source=f"workload_options of '{reference}'"
    )
    return WorkloadSetup(reference=reference, workload=workload, options=options)


def require_model(setup: WorkloadSetup) -> None:
    """Refuse a micro-benchmark, where a model is wanted, with a ``PlanError``."""
    if not issubclass(setup.workload, Workload):
        raise PlanError(
            f"workload '{setup.reference}' is a micro-benchmark, which checks its results in every"
            " run; check a model"
        )


def resolve_cases(plan: Plan, workload: WorkloadSetup, arms: dict[str, ArmSpec]) -> list[Case]:
    """Return the cases of a micro-benchmark; none if the workload is trained.

    Raises:
        PlanError: it cannot run among so few ranks, or an arm's backend has no operations to
            repeat; or the plan asks for what only models have.
    """
    benchmark = workload.build_micro_benchmark(
        local_batch_size=plan.local_batch_size, seed=plan.seed
    )
    if benchmark is None:
        return []
    asked = {
        "training": plan.training,
        "trace": plan.trace,
        "the arms' local_batch_size and fit": plan.batches,
    }
    if unfit := [name for name, value in asked.items() if value]:
        raise PlanError(
            f"workload '{plan.workload}' is a micro-benchmark, not a model; leave"
            f" {' and '.join(unfit)} out"
        )
    for setup in arms.values():
        if type(setup.backend).communicator is Backend.communicator:
            raise PlanError(
                f"arm '{setup.name}': backend '{setup.arm.backend}' offers no collectives, which"
                f" workload '{plan.workload}' repeats; use one that does, such as 'ddp' or"
                " 'horovod'"
            )
    return list(benchmark.cases(plan.world_size))


def steps_per_epoch(
    workload: Workload, *, reference: str, world_size: int, micro_steps: int
) -> int:
    """Return the optimizer steps of an epoch, the same on every rank. Not collective.

    Raises:
        PlanError: the workload has no epochs, or too few samples for one step.
    """
    batches = workload.batches_per_epoch(world_size=world_size)
    if batches is None:
        raise PlanError(
            f"workload '{reference}' has no epochs, so it cannot be trained to the end; use one"
            " with real data"
        )
    if batches < micro_steps:
        raise PlanError(
            f"micro_steps {micro_steps} is more than the {batches} batches that each of"
            f" {world_size} ranks has in an epoch; use fewer micro_steps, or a smaller"
            " local_batch_size"
        )
    return batches // micro_steps
