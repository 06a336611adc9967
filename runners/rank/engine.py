"""One rank, ready to run: makes backend, device and trainer (or micro-benchmark) from a job.

Used by the worker under a driver and by standalone runs. A micro-benchmark times repeated
operations instead of training steps, and checks their results.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch

from backends import Backend, make_backend
from measurement.agent.ringside_agent import machine
from measurement.agent.ringside_agent.machine import own_threads, rank_facts, usable_cores
from measurement.agent.ringside_agent.place import World
from measurement.environment import recorded_environment
from measurement.errors import PlanError, WorldSizeMismatchError
from measurement.host import gpu_number, pci_address
from measurement.records.block import CoreUse, RankSteps
from measurement.records.record import RankReport
from measurement.registry import digests, sources_of
from measurement.step_timer import StepTimer
from runners.planning.workload import WorkloadSetup, resolve_workload
from runners.protocol import (
    BlockCommand,
    Can,
    CheckReport,
    EpochCommand,
    EpochReport,
    Job,
    ParityReport,
)
from runners.rank.epochs import EpochRunner
from runners.rank.parity import run_gate
from runners.rank.precision import StepPrecision, check_precision
from runners.rank.reference_step import rank_flops
from runners.rank.resources import make_forks_safe
from runners.rank.trainer import BACKWARD, Trainer, synchronize_ranks
from workloads import MicroBenchmark, Workload
from workloads.micro_benchmark import Repetition


@dataclass(kw_only=True)
class Engine:
    """One rank that is connected to the others."""

    job: Job
    setup: WorkloadSetup
    """What the job's workload is."""
    world: World
    """This rank's place by the launcher's variables."""
    backend: Backend
    runner: Trainer | MicroBenchmarkRunner
    """Runs the timed steps."""
    epochs: EpochRunner | None = None
    """Trains epoch by epoch; None unless the job trains to the end."""
    notes: Sequence[str] = ()
    """Notes from its trial of the workload."""

    @property
    def trainer(self) -> Trainer:
        """The runner, of a workload that is trained."""
        assert isinstance(self.runner, Trainer)
        return self.runner

    @property
    def can(self) -> list[Can]:
        """The commands that this rank supports."""
        if isinstance(self.runner, MicroBenchmarkRunner):
            return ["block", "gate"]
        commands: list[Can] = ["block", "gate", "trace"] if self.backend.exchanges else []
        if self.backend.has_local_steps and not self.job.speed.sync_batchnorm:
            commands.append("steps_apart")
        if self.epochs:
            commands.append("epoch")
        return commands

    def report(self) -> RankReport:
        """Report this rank's actual device, threads, cores, versions and optimizer."""
        runner, device = self.runner, self.runner.device
        is_gpu = device.type != "cpu"
        return RankReport(
            **rank_facts(replace(self.world, world_size=runner.world.world_size)),
            device=torch.cuda.get_device_name(device) if is_gpu else str(device),
            gpu=pci_address(device.index) if is_gpu else None,
            backend=self.backend.describe(),
            environment=recorded_environment(os.environ),
            sources=digests(sources_of(type(runner.workload))),
            **runner.describe(),
        )

    def run_block(self, command: BlockCommand) -> RankSteps:
        """Run and time one block; returns this rank's steps. Collective."""
        counts = {"steps": command.steps, "warmup_steps": command.warmup_steps}
        cores = usable_cores()
        before = machine.read_core_use(cores)
        if isinstance(self.runner, MicroBenchmarkRunner):
            assert command.case is not None
            steps = self.runner.run_block(
                case=command.case, repetitions=command.repetitions, **counts
            )
        else:
            steps = self.runner.run_block(local=command.kind == "local", **counts)
        use = machine.core_use_between(before, machine.read_core_use(cores))
        steps.core_use = CoreUse(**use) if use else None
        return steps

    def run_gate(self, *, counts_flops: bool = False) -> ParityReport | CheckReport:
        """Take the gate: ``GATE_STEPS`` optimizer steps, or every case once.

        Rank 0 then counts FLOPs, if asked. Collective.
        """
        if isinstance(self.runner, MicroBenchmarkRunner):
            return self.runner.run_gate()
        report = run_gate(self.runner, local_batch_size=self.job.gate_batch_size)
        report.flops = rank_flops(self.runner) if counts_flops and self.world.rank == 0 else None
        return report

    def run_epoch(self, command: EpochCommand) -> EpochReport:
        """Train one epoch, then evaluate; the first builds the model. Collective."""
        assert self.epochs is not None, "the job has no training"
        return self.epochs.run(command.epoch)


def start_engine(
    job: Job,
    world: World,
    *,
    store: Any = None,
    timeout: timedelta | None = None,
) -> Engine:
    """Connect this rank and build its first model, if it has one. Collective.

    ``store``: for the ranks' rendezvous, unless the backend has its own; ``timeout``: for waiting
    on other ranks, instead of the backend's.

    Raises:
        WorldSizeMismatchError: the library counts other ranks than the job asks for.
        PlanError: the job names something that does not exist here.
    """
    gc.freeze()  # imported objects are no garbage, and scanning all of torch takes long
    setup = resolve_workload(job.workload, job.workload_options)
    _check_benchmark(job, setup)
    device = _resolve_device(job.device, local_rank=world.local_rank)
    backend = _checked_backend(job, device)
    if timeout is not None:
        backend.timeout = timeout
    if job.speed.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    if job.precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    benchmark = setup.build_micro_benchmark(local_batch_size=job.local_batch_size, seed=job.seed)
    make_forks_safe()
    threads_before = frozenset(own_threads())  # the library has none yet
    backend.groups = benchmark.groups(job.world_size) if benchmark else ()
    notes: list[str] = []
    if job.tries is not None and setup.is_users_model:  # no library has started yet
        from runners.planning.workload_check import check_workload  # few ranks need it

        notes = check_workload(setup, job, rank=world.rank, device=device, backend=backend)
    counted = backend.setup(world, device=device, store=store)
    if counted.world_size != job.world_size:
        raise WorldSizeMismatchError(
            f"backend '{job.backend}' counts {counted.world_size} ranks where {job.world_size} were"
            f" asked for (rank variables seen: {world.launcher}); start it with"
            f" {' or '.join(backend.customary_launchers)}"
        )
    runner: Trainer | MicroBenchmarkRunner
    epochs = None
    if benchmark:
        runner = MicroBenchmarkRunner(
            workload=benchmark, backend=backend, world=counted, device=device
        )
    else:
        runner = trainer = Trainer(
            workload=setup.build(local_batch_size=job.local_batch_size, seed=job.seed),
            backend=backend,
            world=counted,
            device=device,
            seed=job.seed,
            step_precision=StepPrecision(
                precision=job.precision, max_gradient_norm=job.max_gradient_norm, device=device
            ),
            speed=job.speed,
            threads_before=threads_before,
        )
        if job.training:
            epochs = EpochRunner(
                trainer, job.training, reference=job.workload, scale=job.learning_rate_scale
            )
        trainer.build()
    # imported objects are frozen, so that garbage collection scans only what training makes
    gc.collect()
    gc.freeze()
    gc.enable()
    return Engine(
        job=job,
        setup=setup,
        world=world,
        backend=backend,
        runner=runner,
        epochs=epochs,
        notes=notes,
    )


def _resolve_device(wanted: str, *, local_rank: int) -> torch.device:
    """A rank's device: ``auto`` takes a GPU if there is one."""
    gpu = torch.cuda.is_available() if wanted == "auto" else wanted == "cuda"
    if not gpu:
        return torch.device("cpu")
    device = torch.device("cuda", gpu_number(local_rank) or 0)
    torch.cuda.set_device(device)
    return device


def _checked_backend(job: Job, device: torch.device) -> Backend:
    """Check what the job asks of the backend and of the device, and make the backend."""
    backend = make_backend(
        job.backend, transport=job.transport, options=job.options, micro_steps=job.micro_steps
    )
    if refused := backend.refused_environment(os.environ):
        raise PlanError(refused)
    check_precision(job.precision, device)
    backend.check_device(device.type)
    job.speed.check_device(device.type)
    return backend


def _check_benchmark(job: Job, chosen: WorkloadSetup) -> None:
    """Refuse training settings for a micro-benchmark, which has neither epochs nor gradients."""
    settings = job.model_dump(
        include={"training", "max_gradient_norm", "precision", "speed"}, exclude_defaults=True
    )
    if settings and not issubclass(chosen.workload, Workload):
        raise PlanError(
            f"workload '{job.workload}' is a micro-benchmark, for which {next(iter(settings))}"
            " means nothing; leave it out, or train a model"
        )


@dataclass(kw_only=True, eq=False)
class MicroBenchmarkRunner:
    """Repeats one rank's operations. Holds the tensors of one case at a time."""

    workload: MicroBenchmark
    backend: Backend
    world: World
    device: torch.device
    _made: Repetition | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.cases = {case.name: case for case in self.workload.cases(self.world.world_size)}
        self.communicator = self.backend.communicator()

    def describe(self) -> dict[str, Any]:
        """Describe this for the rank's report: there is no model and no batch."""
        return {"seed": self.workload.seed, "local_batch_size": 0, "micro_steps": 1}

    def drift(self) -> None:
        """Nothing: there are no parameters that ranks must have in common."""

    def run_gate(self) -> CheckReport:
        """Run every case once and check its result. Collective; releases all tensors."""
        not_offered = {
            name: reason
            for name, case in self.cases.items()
            if (reason := self.workload.unsupported_reason(case, self.communicator)) is not None
        }
        results = [self.build(name) for name in self.cases if name not in not_offered]
        self.release()
        return CheckReport(failures=list(filter(None, results)), not_offered=not_offered)

    def build(self, name: str) -> str | None:
        """Make new tensors for a case and run it once; returns the error of this rank's result, if
        there is one. Collective.
        """
        self.release()
        made = self.workload.repetition(self.cases[name], self.communicator, device=self.device)
        made.fill()
        made.run()
        wrong = made.check()
        made.clear()
        self._made = made
        return f"{name} gives {wrong}" if wrong else None

    def release(self) -> None:
        """Drop the tensors and collect garbage now, so that it is not collected inside a step."""
        self._made = None
        gc.collect()

    def run_block(self, *, case: str, steps: int, warmup_steps: int, repetitions: int) -> RankSteps:
        """Make and check new tensors, warm up, wait for all ranks, time ``steps`` steps of
        ``repetitions``. Collective.
        """
        began = time.perf_counter()
        wrong = self.build(case)
        assert self._made is not None
        run, timer = self._made.run, StepTimer(self.device)
        for _ in range(warmup_steps * repetitions):
            run()
        synchronize_ranks(self.backend, self.device)
        self._made.settle()
        untimed_s = time.perf_counter() - began
        timer.start()
        for _ in range(steps):
            for _ in range(repetitions):
                run()
            timer.mark(BACKWARD)
            timer.end_step()
        # rank 0 counts the size, so that samples of all ranks over time are the algbw
        timed = self.cases[case]
        samples = [timed.size * timed.messages * repetitions if self.world.rank == 0 else 0] * steps
        phases_s = timer.read()
        return RankSteps(
            rank=self.world.rank,
            untimed_s=untimed_s,
            samples=samples,
            phases_s=phases_s,
            wrong=wrong,
        )
