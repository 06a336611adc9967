"""The parity gate: an arm's timing counts only when it computes what it should.

What must hold, each against a reference that the backend under test had no part in:

- after ``prepare`` every rank has rank 0's parameters and buffers (each rank starts from other weights, on purpose);
- after one step, unscaled and not yet clipped, every rank's gradient is ``gradient_scale`` × the float64 mean of all ranks'
  local gradients, which each rank computes on a bare model in the same precision;
- after k optimizer steps all ranks' parameters agree;
- no two ranks of an arm consumed the same samples, and all arms consumed the same ones in all;
- arms of as many ranks call as much in these steps (``runners.rank.call_counts``), and come to the same parameters, buffers
  and optimizer state. Batch statistics stay each rank's own: buffers of modules with ``running_mean`` are left out.

Ranks do not exchange tensors for this but sketches of them, in float64: count sketches (Charikar, Chen and Farach-Colton, ICALP
2002), in which each element goes with a random sign into one of 64 places. A sketch is linear, so the mean of sketches is the
sketch of the mean, and E|sketch(x)|² = |x|²; the size of an error is told within about 20%. Tensors of up to 64 elements are their
own. ``protocol.gate_verdict`` judges the reports of one arm, ``protocol.same_work`` those of two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from backends.base import EXACT, Prepared
from backends.rank_state import hyperparameters
from measurement.errors import PlanError
from measurement.step_timer import StepTimer
from runners.protocol.messages import DriftReport, ParityReport, Sketches
from runners.protocol.same_work import ROUNDING
from runners.rank.call_counts import CallCounter, SkippedParameters
from runners.rank.trainer import Trainer
from workloads.optimizers import as_one, members_of
from workloads.seeding import seed_generators
from workloads.tensors import digest_of, is_finite, stored_values

SKETCH_SIZE = 64
SAMPLES = 1 << 14
NUDGE = 1e-6
"""Relative; some roundings of float32, as two arms' parameters are apart after their first step."""
CHUNK = 1 << 18
SCALE = 2.0**8
"""Loss scale of fp16 in the gate: low, so that the first step is not skipped for an overflow."""


def run_gate(trainer: Trainer, *, steps: int) -> ParityReport:
    """Take ``steps`` real steps and report what this rank saw. Collective; leaves nothing built."""
    trainer.release()
    digest, trainer.batches = hashlib.sha256(), trainer.new_batches()
    model = trainer.build_bare(seed=trainer.seed + trainer.world.rank)
    wanted = sketch_tensors(_floating(model.state_dict()))
    counter = CallCounter()
    counter.watch_model(model)
    trainer.join(model, build_optimizer=counter.building(trainer.build_optimizer))
    joined = trainer.joined
    trainer.step_precision.start(initial_scale=SCALE)
    parameters = joined.full_parameters()
    started = sketch_tensors(_floating(parameters))
    tolerance = max(trainer.backend.gradient_tolerance, trainer.step_precision.gradient_error)
    local, rounding, missing = _own_step(trainer, parameters)
    counter.watch_prepared(joined)
    trainer.batches = _digested(trainer.new_batches(), digest)
    synced: Sketches = {}
    skipped = SkippedParameters(joined)
    timer = StepTimer(trainer.device)
    for step in range(steps):
        seed_generators(trainer.seed + trainer.world.rank)
        joined.keeps_gradients = step == 0
        with trainer.step_precision.unclipped() if step == 0 else nullcontext():
            trainer.step(timer)
        skipped.note()
        if step == 0:
            synced = sketch_tensors(joined.full_gradients().items())
    calls, ended = counter.counts(), joined.full_parameters()
    _require_convergence(ended, synced, steps=steps)
    try:
        optimizer_state = dict(_optimizer_state(joined, joined.full_optimizer_state()))
    except NotImplementedError:
        optimizer_state = {}
    if trainer.world.rank > 0:
        optimizer_state = {}
    report = ParityReport(
        started=started,
        wanted=wanted,
        local=local,
        synced=synced,
        ended=sketch_tensors((name, ended[name]) for name, _ in model.named_parameters()),
        buffers=sketch_tensors((name, ended[name]) for name in _common_buffers(model) if name in ended),
        optimizer_state=sketch_tensors(optimizer_state.items()),
        rounding=rounding,
        without_gradient=[*missing, *sorted(skipped.names - {*missing})],
        in_some_steps=sorted(skipped.some_steps),
        steps_zeros=skipped.steps_zeros,
        drift=DriftReport(hyperparameters=hyperparameters(joined.optimizer), parameters={}),
        calls=calls,
        is_exact=trainer.gradient_scale == 1.0 and trainer.backend.gradient_tolerance <= EXACT,
        sizes={name: tensor.numel() for name, tensor in [*_floating(parameters), *optimizer_state.items()]},
        samples=digest.hexdigest(),
        gradient_scale=trainer.gradient_scale,
        gradient_tolerance=tolerance,
    )
    trainer.batches = trainer.new_batches()
    trainer.release()
    trainer.step_precision.start()
    return report


def _own_step(trainer: Trainer, parameters: Mapping[str, Tensor]) -> tuple[Sketches, dict[str, float], list[str]]:
    """Try the first step on a bare model with these parameters and this rank's batch, without the other ranks.

    Returns:
        Its gradients, and how much rounding changes the step, relative to it, by parameter and optimizer state; this on rank 0
        alone. For it the gradients are computed again with parameters that are off by ``NUDGE``: where they are nothing but
        rounding, as for a bias before a batch norm, they are others then, and an optimizer that divides by their size, as Adam
        does, makes whole steps of them. And the parameters to be trained that got no gradient.
    """
    trainer.batches = trainer.new_batches()
    batches = [trainer.next_batch() for _ in range(trainer.micro_steps)]
    begun = _samples(parameters.items())
    alone = _with_gradients(trainer, parameters, batches)
    missing = [name for name, parameter in alone.bare.named_parameters() if parameter.requires_grad and parameter.grad is None]
    gradients = sketch_tensors(alone.full_gradients().items())
    if trainer.world.rank > 0:
        return gradients, {}, missing
    exact = _after_step(alone)
    del alone
    generator = torch.Generator().manual_seed(0)
    alone = _with_gradients(trainer, {name: _nudged(tensor, NUDGE, generator) for name, tensor in parameters.items()}, batches)
    alone.bare.load_state_dict(parameters)
    for parameter in alone.bare.parameters():
        if parameter.grad is not None:
            parameter.grad = _nudged(parameter.grad, ROUNDING * EXACT, generator)
    rounded = _after_step(alone)
    return (
        gradients,
        {
            name: _relative(rounded[name] - values, values - begun[name] if name in begun else values)
            for name, values in exact.items()
        },
        missing,
    )


def _with_gradients(trainer: Trainer, parameters: Mapping[str, Tensor], batches: Sequence[Any]) -> Prepared:
    """Return a bare model with these parameters, this rank's own gradients of a step, and a new optimizer.

    Raises:
        PlanError: the loss or a gradient is not finite, which no backend can have brought about.
    """
    workload = trainer.another_workload()
    bare = trainer.build_bare(workload=workload)
    bare.load_state_dict(parameters)
    alone = Prepared(bare, as_one(workload.build_optimizer(bare)))
    seed_generators(trainer.seed + trainer.world.rank)
    step_precision = trainer.step_precision
    weighed = batches if workload.weighs_micro_batches else []
    for batch in batches:
        with step_precision.forward():
            loss = workload.compute_loss(bare, batch)
        require_finite(loss, "the loss", step=1, rank=trainer.world.rank)
        step_precision.backward(alone, loss * trainer.share_of(batch, weighed))
    scale = step_precision.scaler.get_scale()
    for name, parameter in bare.named_parameters():
        if parameter.grad is not None:
            parameter.grad /= scale
            if not step_precision.scaler.is_enabled():  # which skips steps whose gradients overflow
                require_finite(parameter.grad, f"the gradient of '{name}'", step=1, rank=trainer.world.rank)
    return alone


def _require_convergence(ended: Mapping[str, Tensor], synced: Sketches, *, steps: int) -> None:
    """Refuse a training whose first gradients were finite and whose parameters no longer are; ``judge_parity`` tells of the first.

    Raises:
        PlanError: with the first such parameter.
    """
    if not all(math.isfinite(value) for values in synced.values() for value in values):
        return
    for name, tensor in ended.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise PlanError(
                f"'{name}' is not finite after {steps} steps, though the first step's gradients were: the training diverges; lower "
                "the learning rate, or clip gradients with max_gradient_norm"
            )


def require_finite(tensor: Tensor, what: str, *, step: int, rank: int) -> None:
    """Refuse a tensor that holds NaN or infinity, where gradients have not been exchanged yet.

    Raises:
        PlanError: with what to look at.
    """
    if is_finite(tensor):
        return
    seen = "nan" if bool(stored_values(tensor).isnan().any()) else "infinite"
    raise PlanError(
        f"{what} is {seen} on rank {rank} in step {step}, before anything was exchanged: look at the loss and the batches there "
        "(torch.autograd.set_detect_anomaly(True) names the operation), or lower the learning rate"
    )


def _after_step(alone: Prepared) -> dict[str, Tensor]:
    """Samples of parameters and optimizer state after a step, without the workload's hooks."""
    for member in members_of(alone.optimizer):
        member._optimizer_step_pre_hooks.clear()
        member._optimizer_step_post_hooks.clear()
    alone.step()
    trained = [(name, parameter) for name, parameter in alone.bare.named_parameters() if parameter.requires_grad]
    return _samples([*trained, *_optimizer_state(alone, alone.optimizer.state_dict())])


@torch.no_grad()
def _samples(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """float64 [at most SAMPLES]: some elements of each tensor, of equal sizes the same ones; a sketch costs more."""
    found = {}
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        if len(flat) > SAMPLES:
            generator = torch.Generator().manual_seed(len(flat))
            flat = flat[torch.randint(len(flat), (SAMPLES,), generator=generator).to(flat.device)]
        found[name] = flat.to("cpu", torch.float64, copy=True)
    return found


def _nudged(tensor: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """A copy that is off by so much of the root mean square element; itself if it holds no floats."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    if tensor.is_sparse:
        whole = tensor.coalesce()
        return torch.sparse_coo_tensor(whole.indices(), _nudged(whole.values(), by, generator), whole.shape)
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return tensor.detach() + by * tensor.detach().square().mean().sqrt() * noise


def _relative(difference: Tensor, size: Tensor) -> float:
    norm = size.norm().item()
    return difference.norm().item() / norm if norm > 0 else 0.0


def _common_buffers(model: nn.Module) -> list[str]:
    """Names of the floating buffers that no rank makes of its own batches: all but those of modules with ``running_mean``."""
    return [
        f"{place}.{name}" if place else name
        for place, module in model.named_modules()
        if not hasattr(module, "running_mean")
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.is_floating_point()
    ]


def _optimizer_state(prepared: Prepared, state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an optimizer's ``state_dict()``, named by what they are and the parameter they belong to."""
    names = {id(parameter): name for name, parameter in prepared.bare.named_parameters()}
    parameters: Sequence[Tensor] = [p for group in prepared.optimizer.param_groups for p in group["params"]]
    for number, values in state.get("state", {}).items():
        name = names.get(id(parameters[number]), str(number))
        for kind, value in (values or {}).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                yield f"{kind} of {name}", value


def _floating(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in tensors.items() if tensor.is_floating_point())


def sketch_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Sketches:
    """Each tensor's sketch, which is linear and depends on nothing but its values and its size: float64 [SKETCH_SIZE]."""
    return {name: sketch(tensor) for name, tensor in tensors}


@torch.no_grad()
def sketch(tensor: Tensor) -> list[float]:
    """float64 [SKETCH_SIZE] with E|sketch|² = |tensor|². One random number for each element, at any size of the sketch."""
    if tensor.is_sparse:
        return _sketch_of_rows(tensor.detach().coalesce())
    flat = tensor.detach().reshape(-1)
    if flat.numel() <= SKETCH_SIZE:
        return [*flat.double().tolist(), *[0.0] * (SKETCH_SIZE - flat.numel())]
    total = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=flat.device)
    for begin, drawn in _drawn(flat.numel(), flat.device):
        total += _summed(flat[begin : begin + len(drawn)], drawn)
    values: list[float] = total.tolist()
    return values


def _drawn(elements: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield the random numbers of a tensor's elements, chunk by chunk, each with the number of its first element."""
    generator = torch.Generator().manual_seed(elements)
    for begin in range(0, elements, CHUNK):
        yield begin, torch.randint(2 * SKETCH_SIZE, (min(CHUNK, elements - begin),), generator=generator).to(device)


def _summed(elements: Tensor, drawn: Tensor) -> Tensor:
    """float64 [SKETCH_SIZE]: each element with its sign in its place."""
    return torch.bincount(drawn >> 1, weights=elements.double() * (1 - 2 * (drawn & 1)), minlength=SKETCH_SIZE)


def _sketch_of_rows(tensor: Tensor) -> list[float]:
    """The same of a sparse gradient [rows, ...], coalesced, by its rows that are there; the whole may not fit into memory."""
    row = tensor.shape[1:].numel()
    if tensor.numel() <= SKETCH_SIZE or tensor.sparse_dim() != 1:
        return sketch(tensor.to_dense())
    places = (tensor.indices()[0][:, None] * row + torch.arange(row, device=tensor.device)).reshape(-1)
    values = tensor.values().reshape(-1)
    total = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=tensor.device)
    for begin, drawn in _drawn(tensor.numel(), tensor.device):
        bounds = torch.tensor([begin, begin + len(drawn)], device=tensor.device)
        first, last = torch.searchsorted(places, bounds).tolist()
        total += _summed(values[first:last], drawn[places[first:last] - begin])
    found: list[float] = total.tolist()
    return found


def _digested(batches: Iterator[Any], digest: Any) -> Iterator[Any]:
    for batch in batches:
        digest_of(digest, batch)
        yield batch
