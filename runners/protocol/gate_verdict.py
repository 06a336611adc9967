"""The parity gate: an arm's timing counts only when it computes what it should.

What must hold, each against a reference that the backend under test had no part in:

- after ``prepare`` every rank has rank 0's parameters and buffers (each rank starts from other weights, on purpose);
- after one step, unscaled and not yet clipped, every rank's gradient is ``gradient_scale`` × the float64 mean of all ranks'
  local gradients, which each rank computes on a bare model in the same precision;
- after k optimizer steps all ranks' parameters agree;
- no two ranks of an arm consumed the same samples, and all arms consumed the same ones in all.

Ranks do not exchange tensors for this but sketches of them: a few projections on random ±1 vectors, in float64. A sketch is
linear, so the mean of sketches is the sketch of the mean, and E|sketch(x)|² = |x|² (Johnson and Lindenstrauss, Contemp. Math.
26, 1984; ±1 entries: Achlioptas, J. Comput. Syst. Sci. 66, 2003). With 16 projections the size of an error is told within
about 20%; that there is one is told with certainty, up to rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from measurement.record import ParityResult
from measurement.step_timer import StepTimer
from runners.job import ParityReport, Sketches
from runners.trainer import Trainer

NUM_PROJECTIONS = 16
CHUNK = 1 << 18
START_TOLERANCE = 1e-6
SPREAD_TOLERANCE = 1e-4
FLOOR = 1e-3
"""A tensor's error is also allowed to be this × tolerance of what a tensor of its size typically holds: a bias before a batch
norm has a gradient of pure rounding noise, and no relative error to speak of."""
MAX_FAILURES = 8
SCALE = 2.0**8
"""Of fp16's losses in the gate, whose first step must not be skipped for an overflow."""


def run_gate(trainer: Trainer, *, steps: int) -> ParityReport:
    """Take ``steps`` real steps and report what this rank saw. Collective; leaves nothing built."""
    trainer.release()
    digest, trainer.batches = hashlib.sha256(), trainer.new_batches()
    model = trainer.build_bare(seed=trainer.seed + trainer.world.rank)
    wanted = sketch_tensors(_state(model))
    trainer.join(model)
    trainer.arithmetic.start(initial_scale=SCALE)
    started = sketch_tensors(_state(model))
    local = _local_gradients(trainer, model)
    trainer.batches = _digested(trainer.new_batches(), digest)
    synced: Sketches = {}
    timer = StepTimer(trainer.device)
    for step in range(steps):
        torch.manual_seed(trainer.seed + trainer.world.rank)
        with trainer.arithmetic.unclipped() if step == 0 else nullcontext():
            trainer.step(timer)
        if step == 0:
            synced = sketch_tensors(_gradients(model))
    report = ParityReport(
        started=started,
        wanted=wanted,
        local=local,
        synced=synced,
        ended=sketch_tensors(model.named_parameters()),
        sizes={name: tensor.numel() for name, tensor in _state(model)},
        samples=digest.hexdigest(),
        gradient_scale=trainer.backend.gradient_scale,
        gradient_tolerance=max(trainer.backend.gradient_tolerance, trainer.arithmetic.gradient_error),
    )
    trainer.batches = trainer.new_batches()
    trainer.release()
    return report


def _local_gradients(trainer: Trainer, model: nn.Module) -> Sketches:
    """This rank's own gradient of the first step, on a bare copy of ``model``."""
    bare = trainer.build_bare()
    bare.load_state_dict(model.state_dict())
    batches = trainer.new_batches()
    torch.manual_seed(trainer.seed + trainer.world.rank)
    arithmetic = trainer.arithmetic
    for _ in range(trainer.micro_steps):
        with arithmetic.forward():
            loss = trainer.workload.compute_loss(bare, next(batches)) / trainer.micro_steps
        arithmetic.backward(loss)
    scale = arithmetic.scaler.get_scale()
    return sketch_tensors((name, gradient / scale) for name, gradient in _gradients(bare))


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in model.state_dict().items() if tensor.is_floating_point())


def _gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A parameter without gradient counts as zero: Horovod fills it in, DDP leaves it out."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def sketch_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Sketches:
    """Each tensor's projections on ±1 vectors that depend on nothing but the tensor's size: float64 [NUM_PROJECTIONS]."""
    return {name: sketch(tensor) for name, tensor in tensors}


@torch.no_grad()
def sketch(tensor: Tensor) -> list[float]:
    """float64 [NUM_PROJECTIONS] with E|sketch|² = |tensor|²."""
    flat = tensor.detach().reshape(-1)
    generator = torch.Generator().manual_seed(flat.numel())
    total = torch.zeros(NUM_PROJECTIONS, dtype=torch.float64, device=flat.device)
    for begin in range(0, flat.numel(), CHUNK):
        part = flat[begin : begin + CHUNK].double()
        signs = torch.randint(2, (NUM_PROJECTIONS, len(part)), generator=generator, dtype=torch.int8).to(flat.device)
        total += (signs.double() * 2 - 1) @ part
    values: list[float] = (total / NUM_PROJECTIONS**0.5).tolist()
    return values


def _digested(batches: Iterator[Any], digest: Any) -> Iterator[Any]:
    for batch in batches:
        for tensor in _tensors(batch):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        yield batch


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from _tensors(value)


def judge(reports: list[ParityReport], *, steps: int) -> ParityResult:
    """What the reports of all ranks of an arm, by rank, say of it. Pure."""
    first = reports[0]
    failures = _same_samples(reports)
    start = _compare(
        [report.started for report in reports],
        first.wanted,
        sizes=first.sizes,
        tolerance=START_TOLERANCE,
    )
    failures += [f"rank {r}: '{name}' differs from rank 0's by {e:.2g} (relative) after prepare()" for r, name, e in start[1]]
    notes = []
    gradient_error: float | None = None
    if first.gradient_scale is None:
        notes.append("gradients not compared: this option does not compute the mean of the ranks' gradients")
    else:
        gradient_error, wrong = _gradient_errors(reports, scale=first.gradient_scale)
        failures += [
            f"rank {r}: gradient of '{name}' is off by {e:.2g} (relative L2, tolerance {first.gradient_tolerance:g})"
            for r, name, e in wrong
        ]
        if first.gradient_scale != 1.0:
            notes.append(f"gradients are {first.gradient_scale:g} x the mean, as the options ask")
    spread, apart = _compare([report.ended for report in reports], first.ended, sizes=first.sizes, tolerance=SPREAD_TOLERANCE)
    failures += [f"rank {r}: '{name}' is {e:.2g} (relative) from rank 0's after {steps} steps" for r, name, e in apart]
    shown = failures[:MAX_FAILURES] + ([f"and {len(failures) - MAX_FAILURES} more"] if len(failures) > MAX_FAILURES else [])
    return ParityResult(
        passed=not failures,
        failures=shown,
        gradient_error=gradient_error,
        parameter_spread=spread,
        tolerance=first.gradient_tolerance,
        notes=notes,
        samples_digest=hashlib.sha256("".join(report.samples for report in reports).encode()).hexdigest()[:16],
    )


def _same_samples(reports: list[ParityReport]) -> list[str]:
    seen: dict[str, int] = {}
    failures = []
    for rank, report in enumerate(reports):
        if report.samples in seen:
            failures.append(f"ranks {seen[report.samples]} and {rank} consumed the same samples: the shards are not apart")
        seen.setdefault(report.samples, rank)
    return failures


def _gradient_errors(reports: list[ParityReport], *, scale: float) -> tuple[float, list[tuple[int, str, float]]]:
    """Largest relative error, and the tensors past the tolerance, of the synchronised gradients against the scaled mean."""
    local = {name: np.array([report.local[name] for report in reports]) for name in reports[0].local}
    mean = {name: (scale * values.mean(axis=0)).tolist() for name, values in local.items()}
    usual = {name: scale * float(np.mean(np.linalg.norm(values, axis=1))) for name, values in local.items()}
    return _compare(
        [report.synced for report in reports],
        mean,
        sizes=reports[0].sizes,
        tolerance=reports[0].gradient_tolerance,
        usual=usual,
    )


def _compare(
    found: list[Sketches],
    wanted: Sketches,
    *,
    sizes: dict[str, int],
    tolerance: float,
    usual: dict[str, float] | None = None,
) -> tuple[float, list[tuple[int, str, float]]]:
    """Relative L2 error of every rank's tensors: the largest, and (rank, tensor, error) of those past the tolerance."""
    norms = {name: float(np.linalg.norm(values)) for name, values in wanted.items()}
    elements = sum(sizes[name] for name in wanted)
    rms = (sum(norm**2 for norm in norms.values()) / max(elements, 1)) ** 0.5
    worst, wrong = 0.0, []
    for rank, sketches in enumerate(found):
        for name, values in wanted.items():
            distance = float(np.linalg.norm(np.subtract(sketches[name], values)))
            size = max(norms[name], (usual or {}).get(name, 0.0), FLOOR * rms * sizes[name] ** 0.5)
            error = 0.0 if distance == 0 else distance / size if size > 0 else float("inf")
            worst = max(worst, error)
            if not error <= tolerance:
                wrong.append((rank, name, error))
    return worst, sorted(wrong, key=lambda entry: -entry[2] if entry[2] == entry[2] else -float("inf"))
