"""Records of scripts of known truth: a small training is computed for every rank, and what an agent
reports is read from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from measurement.plans.plan import Plan
from measurement.records.record import ComparedStep, LaunchRecord, ScriptReport
from measurement.records.results import ResultsFolder
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, empty_results, make_launch

SHAPES = {"conv.weight": 200, "conv.bias": 20, "fc.weight": 100, "fc.bias": 10}
BUFFER = "buffer:bn.running_mean"
STEPS, RANKS = 5, 2
CONFIGURATION = {
    "world_size": 2,
    "loader.batch_size": 32,
    "rank_local_batch": 32,
    "loader.length": 94,
    "epoch.steps": 94,
    "loader.samples": 6000,
    "loader.workers": 0,
    "loader.class": "DataLoader",
    "sampler.class": "DistributedSampler",
    "sampler.replicas": 2,
    "sampler.shuffle": True,
    "optimizer.0.class": "SGD",
    "optimizer.0.0.lr": 0.1,
    "optimizer.0.0.momentum": 0.0,
    "optimizer.0.parameters": 4,
    "accumulation": 1,
    "model.class": "Net",
    "model.parameters": 330,
    "model.buffers": 20,
    "model.dtypes": ["float32"],
    "autocast.enabled": False,
    "scaler.enabled": False,
    "device": "cpu",
    "threads.torch": 1,
    "library": "ddp",
    "transport": "gloo",
    "ddp.broadcast_buffers": True,
    "ddp.comm_hook": "none",
    "ddp.bucket_cap_mb": 25.0,
    "version.torch": "2.15.0",
}
HOROVOD = {
    "library": "horovod",
    "horovod.op": "Average",
    "horovod.compression": "none",
    "horovod.backward_passes_per_step": 1,
    "ddp.broadcast_buffers": None,
    "ddp.comm_hook": None,
    "ddp.bucket_cap_mb": None,
}
"""What a Horovod script's configuration has instead; None: not there."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is true of one script; by default two ranks of DDP that train as they should."""

    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Where it is another than ``CONFIGURATION``; None: not there."""
    start_seed: int = 1
    learning_rate: float = 0.1
    rate_at: Callable[[int], float] = lambda step: 1.0
    """Factor of the learning rate in a step, from 0."""
    gradient_factor: float = 1.0
    """2: summed over two ranks, not averaged."""
    rounding: float = 0.0
    """Relative noise of every gradient, alike on all ranks."""
    rounding_grows: float = 1.0
    """That noise is so many times as large in each next step."""
    perturbed: bool = False
    """Whether it says that its parameters were changed in their last place after step 1."""
    noise_seed: int = 0
    """Of ``rounding``."""
    not_exchanged: Sequence[str] = ()
    """Parameters of which each rank keeps its own gradient."""
    left_out: Sequence[str] = ()
    """Parameters that no optimizer has."""
    same_batches: bool = False
    """Whether all ranks read the same data."""
    data_seed: int = 0
    starts_apart: bool = False
    own_buffers: bool = False
    """Whether buffers differ between ranks."""
    seeds: Sequence[int] | None = None
    """By rank; None: 1 on all."""
    samples: int | None = 32
    samples_from: str | None = "loader"
    sharded: bool = False
    notes: Sequence[str] = ()

    def reports(self) -> list[ScriptReport]:
        """What its ranks report."""
        ranks, lost = range(RANKS), set(self.left_out)
        seeds = [
            np.random.default_rng(self.start_seed + rank * self.starts_apart) for rank in ranks
        ]
        weights = [
            {name: seed.normal(size=size) for name, size in SHAPES.items()} for seed in seeds
        ]
        started = [sketches(by_name) for by_name in weights]
        steps: list[list[ComparedStep]] = [[] for _ in ranks]
        for number in range(STEPS):
            batches = [
                self.data_seed * 1000 + number * 10 + rank * (not self.same_batches)
                for rank in ranks
            ]
            gradients = self._exchanged(
                [_gradients(mine, batch) for mine, batch in zip(weights, batches, strict=True)],
                number,
            )
            rate = self.learning_rate * self.rate_at(number)
            for rank, by_name in enumerate(gradients):
                weights[rank] = {
                    name: tensor - rate * by_name[name] * (name not in lost)
                    for name, tensor in weights[rank].items()
                }
                step = ComparedStep(
                    loss=1.0 / (number + 1),
                    learning_rates=[rate],
                    samples=self.samples,
                    batch=f"batch-{batches[rank]}",
                    gradients={} if number else sketches(by_name, self.left_out),
                    parameters=sketches(weights[rank], self.left_out),
                )
                steps[rank].append(step)
        return [self._report(rank, started[rank], steps[rank]) for rank in ranks]

    def _exchanged(
        self, gradients: list[dict[str, np.ndarray]], step: int
    ) -> list[dict[str, np.ndarray]]:
        random = np.random.default_rng([self.noise_seed, step])
        rounding, means = self.rounding * self.rounding_grows**step, {}
        for name, size in SHAPES.items():
            mean = np.mean([by_name[name] for by_name in gradients], axis=0) * self.gradient_factor
            means[name] = mean * (1 + rounding * random.normal(size=size))
        return [
            means | {name: by_name[name] for name in self.not_exchanged} for by_name in gradients
        ]

    def _report(
        self, rank: int, started: dict[str, list[float]], steps: list[ComparedStep]
    ) -> ScriptReport:
        rates = [step.learning_rates[0] for step in steps]
        settings = {
            **CONFIGURATION,
            "sampler.rank": rank,
            "optimizer.0.0.lr": rates[-1],
            "schedule.lr": rates,
            "seed.torch": self.seeds[rank] if self.seeds else 1,
            **self.configuration,
        }
        return ScriptReport(
            rank=rank,
            configuration={name: value for name, value in settings.items() if value is not None},
            started=started | {BUFFER: sketch(np.zeros(20))},
            sizes={**SHAPES, BUFFER: 20},
            steps=steps,
            perturbed=self.perturbed,
            buffers={BUFFER: sketch(np.full(20, 0.5 + 0.1 * rank * self.own_buffers))},
            sharded=self.sharded,
            without_optimizer=list(self.left_out),
            samples_from=self.samples_from,
            notes=list(self.notes),
        )


def _gradients(weights: Mapping[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng([7, batch])
    return {
        name: 0.3 * weight + random.normal(size=weight.size) for name, weight in weights.items()
    }


def sketches(
    tensors: Mapping[str, np.ndarray], without: Sequence[str] = ()
) -> dict[str, list[float]]:
    """A sketch of each tensor by its name."""
    return {name: sketch(tensor) for name, tensor in tensors.items() if name not in without}


def sketch(tensor: np.ndarray) -> list[float]:
    """A count sketch of 16 numbers, or the tensor itself where it is no longer."""
    if tensor.size <= 16:
        return tensor.tolist()
    random = np.random.default_rng(tensor.size)
    places, signs = random.integers(0, 16, tensor.size), random.choice([-1.0, 1.0], tensor.size)
    return np.bincount(places, weights=signs * tensor, minlength=16).tolist()


def script_plan(
    *names: str,
    scripts: Mapping[str, Any] | None = None,
    allow: Sequence[str] = (),
    **measurement: Any,
) -> Plan:
    """The arm ``old`` as the baseline, the named arms beside it; ``new`` where none is named."""
    arms = {
        name: {"command": f"torchrun --nproc-per-node 2 {name}.py"}
        for name in ("old", *(names or ("new",)))
    }
    return Plan.model_validate(
        {
            "name": "scripts",
            "world_size": 2,
            "baseline": "old",
            "arms": arms,
            "measurement": {"launches": 3, "rounds": 12, "block_steps": 5, **measurement},
            "scripts": scripts or {},
            "allow": list(allow),
        }
    )


def one_launch(plan: Plan, arms: Mapping[str, Script]) -> list[LaunchRecord]:
    """One launch of untimed scripts. The control is the baseline's unless it is named."""
    return script_records(
        plan, Truth(ratios={}), lambda launch, arm: arms.get(arm, arms["old"]), launches=1
    )


def reported(old: Sequence[ScriptReport], new: Sequence[ScriptReport]) -> list[LaunchRecord]:
    """One launch of ``script_plan()`` in which ranks reported this."""
    scripts = {"old": old, "old-control": old, "new": new}
    records = one_launch(script_plan(), dict.fromkeys(scripts, Script()))
    return [changed(record, scripts=scripts[record.arm]) for record in records]


Losses = Callable[[int, str, int], float]
"""From launch, arm and step to the loss of all ranks."""


def script_records(
    plan: Plan,
    truth: Truth,
    script: Callable[[int, str], Script],
    *,
    launches: int | None = None,
    losses: Losses | None = None,
) -> list[LaunchRecord]:
    """Whole records of scripts.

    Args:
        plan: of ``script_plan``.
        truth: how fast the arms are.
        script: by launch and arm, what the script does.
        launches: None: the plan's.
        losses: None: none are seen in blocks.
    """
    records = []
    for launch in range(launches or plan.measurement.launches):
        for record in make_launch(plan, truth, launch, random=np.random.default_rng([1, launch])):
            told = {"scripts": script(launch, record.arm).reports(), "parity": None}
            for block in record.blocks if losses else []:
                first = STEPS + block.block * block.steps
                for rank in block.ranks:
                    rank.first_step, rank.loss_samples = first, [32] * block.steps
                    rank.losses = [
                        losses(launch, record.arm, first + step) for step in range(block.steps)
                    ]
            records.append(changed(record, **told, sample_unit="samples"))
    return records


def write_script_results(root: Path, plan: Plan, records: Sequence[LaunchRecord]) -> ResultsFolder:
    """A whole results folder without reports."""
    folder = empty_results(root, plan)
    for record in records:
        folder.write_launch(record)
    return folder
