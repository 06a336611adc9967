"""A rank without a driver: check, then measure throughput, or train to the end; rank 0 prints, and writes the record.

``python -m runners.ddp`` and ``python -m runners.hvd`` are this with their backend, under whatever launcher started them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer

from measurement.errors import ParityError, PlanError
from measurement.fingerprint import allowed_environment
from measurement.plan import ARM_NAME
from measurement.plan_file import parse_yaml
from measurement.record import LaunchRecord
from measurement.results import ResultsFolder, steps_table
from measurement.training import Precision
from measurement.world import World
from runners.cli import run_command
from runners.engine import Engine, start_engine
from runners.event_log import EventLog
from runners.gates import judge_gate
from runners.interfaces import use_interface
from runners.job import Job
from runners.meeting import meeting_store
from runners.planning import cores, resolve_workload
from runners.rank_environment import read_world
from runners.tables import cases_table, throughput_table
from runners.throughput import Lengths, measure
from runners.training_flags import Keeping, read_keeping, read_training, workload_options
from runners.training_run import TrainingRun

DIGEST = "standalone"
DEVICES = ("auto", "cpu", "cuda")


def serve(backend: str) -> None:
    """The command line of ``python -m runners.<backend>``."""

    def measure(
        workload: Annotated[str, typer.Option(help="A workload, a torchvision model, or your own module:Class.")] = "digits",
        workload_option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="May be repeated.")] = None,
        local_batch_size: Annotated[int, typer.Option(min=1, help="Samples per rank and micro-step.")] = 32,
        micro_steps: Annotated[int, typer.Option(min=1, help="Backward passes per optimizer step.")] = 1,
        transport: Annotated[str | None, typer.Option(help="gloo, nccl or mpi; default: what was built for the device.")] = None,
        option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the backend.")] = None,
        blocks: Annotated[int, typer.Option(min=1, help="Measured blocks.")] = 10,
        block_steps: Annotated[int, typer.Option(min=1, help="Steps in each.")] = 20,
        warmup_steps: Annotated[int, typer.Option(min=0, help="Untimed steps before.")] = 10,
        parity_steps: Annotated[int, typer.Option(min=0, help="Steps of the parity gate; 0: no gate.")] = 3,
        threads: Annotated[int | None, typer.Option(min=1, help="Per rank; default: OMP_NUM_THREADS, or an equal share.")] = None,
        precision: Annotated[str, typer.Option(help="fp32, amp-fp16 or amp-bf16.")] = "fp32",
        max_gradient_norm: Annotated[float | None, typer.Option(help="Larger averaged gradients are clipped to it.")] = None,
        epochs: Annotated[int | None, typer.Option(help="Train for so many, instead of measuring blocks.")] = None,
        target_accuracy: Annotated[float | None, typer.Option(help="Held-out top-1 accuracy at which to stop.")] = None,
        learning_rate_scaling: Annotated[str | None, typer.Option(help="linear (by ranks and micro-steps) or none.")] = None,
        warmup_epochs: Annotated[float | None, typer.Option(help="Until the scaled learning rate is reached. [0]")] = None,
        decay_epochs: Annotated[int | None, typer.Option(help="The learning rate falls to a tenth after so many. [30]")] = None,
        data_dir: Annotated[str | None, typer.Option(help="Where the workload's data lies.")] = None,
        download: Annotated[bool, typer.Option("--download", help="Fetch what is missing of it.")] = False,
        pretrained: Annotated[str | None, typer.Option(help="A state dict to start from.")] = None,
        workers: Annotated[int | None, typer.Option(help="Processes that load batches, per rank.")] = None,
        checkpoint: Annotated[Path | None, typer.Option(help="Keep the training in this file, after every epoch.")] = None,
        checkpoint_steps: Annotated[int | None, typer.Option(min=1, help="And after every so many steps.")] = None,
        resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in the checkpoint.")] = False,
        tensorboard: Annotated[Path | None, typer.Option(help="Write TensorBoard's event files into this folder.")] = None,
        seed: Annotated[int, typer.Option(min=0)] = 1,
        device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
        network_interface: Annotated[str | None, typer.Option(help="Of every host, such as eth0; default: each library's.")] = None,
        output: Annotated[
            Path | None, typer.Option("-o", "--output", help="Results folder. [results/BACKEND-WORKLOAD-TIME]")
        ] = None,
    ) -> None:
        """Measure the throughput of one workload on the ranks this was started on, or train it with --epochs."""
        _require_one_of("--device", device, DEVICES)
        _require_one_of("--precision", precision, get_args(Precision))
        if max_gradient_norm is not None and not max_gradient_norm > 0:
            raise PlanError(f"--max-gradient-norm {max_gradient_norm:g} is not greater than 0; leave it out to clip nothing")
        training = read_training(
            epochs,
            {
                "--target-accuracy": target_accuracy,
                "--learning-rate-scaling": learning_rate_scaling,
                "--warmup-epochs": warmup_epochs,
                "--decay-epochs": decay_epochs,
                "--checkpoint": checkpoint,
                "--checkpoint-steps": checkpoint_steps,
                "--resume": resume,
            },
        )
        keeping = read_keeping(checkpoint, every_steps=checkpoint_steps, resume=resume)
        shorthands = {"--data-dir": data_dir, "--download": download, "--pretrained": pretrained, "--workers": workers}
        use_interface(network_interface)
        world = read_world(os.environ)
        job = Job(
            arm=backend,
            backend=backend,
            transport=transport,
            options=settings(option, "--option"),
            workload=workload,
            workload_options=workload_options(workload, settings(workload_option, "--workload-option"), shorthands),
            local_batch_size=local_batch_size,
            micro_steps=micro_steps,
            world_size=world.world_size,
            seed=seed,
            device=device,
            precision=precision,
            max_gradient_norm=max_gradient_norm,
            training=training,
        )
        lengths = Lengths(warmup_steps=warmup_steps, blocks=blocks, block_steps=block_steps, parity_steps=parity_steps)
        set_threads(threads, world)
        run(job, world, lengths, keeping=keeping, events=tensorboard, output=output)

    run_command(lambda: typer.run(measure))


def _require_one_of(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise PlanError(f"{flag} {value!r} is not known; use {', '.join(known[:-1])} or {known[-1]}")


def settings(given: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """``key=value`` pairs with values read as YAML."""
    pairs = [text.partition("=") for text in given or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise PlanError(f"{flag} {key + equals + value!r} is not of the form key=value")
    return {key: parse_yaml(value, source=f"{flag} {key}") for key, _, value in pairs}


def set_threads(asked: int | None, world: World) -> None:
    """Threads of this rank: torchrun sets OMP_NUM_THREADS=1, horovodrun nothing, and then each rank would take all cores."""
    if asked is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(asked or max(1, cores() // world.local_world_size))


def run(
    job: Job, world: World, lengths: Lengths, *, keeping: Keeping | None = None, events: Path | None = None, output: Path | None
) -> None:
    """One rank's whole run. Collective; rank 0 prints and writes.

    Raises:
        ParityError: on every rank, when gradients, or the results of operations, are wrong.
    """
    began = time.monotonic()
    sys.path.insert(0, str(Path.cwd()))
    resolve_workload(job.workload, job.workload_options)
    engine = start_engine(job, world, store=meeting_store(job, world))
    try:
        log = EventLog(events, sample_unit=engine.sample_unit) if events and engine.runner.world.rank == 0 else None
        training = TrainingRun(engine, job.training, keeping=keeping, say=_speaker(engine), events=log) if job.training else None
        record = _record(engine, lengths)
        record.start_s = time.monotonic() - began
        rows = training.run(record) if training else measure(engine, record, lengths)
        reports = engine.backend.all_gather_object((engine.report(allowed_environment(os.environ)), engine.peak_memory_bytes()))
        record.ranks = [report for report, _ in reports]
        record.peak_memory_bytes = [peak for _, peak in reports]
        record.hosts = sorted({report.host for report in record.ranks})
        if log is not None and training is None and not record.cases:
            log.rounds(rows)
        if log is not None:
            log.close()
        if engine.runner.world.rank == 0:
            _write_and_print(record, rows, output or _default_folder(job))
        engine.runner.release()
        engine.backend.barrier()
    finally:
        engine.backend.teardown()


def _record(engine: Engine, lengths: Lengths) -> LaunchRecord:
    """The record in the making, the gate passed."""
    job = engine.job
    record = LaunchRecord(
        comparison_id=DIGEST,
        plan_digest=DIGEST,
        launch=0,
        arm=job.arm,
        role="baseline",
        backend=job.backend,
        transport=str(engine.backend.describe().get("transport")),
        launcher=engine.world.launcher,
        options=job.options,
        workload=job.workload,
        sample_unit=engine.sample_unit,
        world_size=job.world_size,
        status="ok",
        cases=list(engine.cases.values()),
    )
    if lengths.parity_steps or record.cases:
        reports = engine.backend.all_gather_object(engine.run_gate(steps=lengths.parity_steps))
        record.parity, record.not_offered = judge_gate(reports, steps=lengths.parity_steps)
        if not record.parity.passed:
            raise ParityError(f"backend '{job.backend}' computes wrongly, nothing was timed: " + "; ".join(record.parity.failures))
    return record


def _speaker(engine: Engine) -> Callable[[str], None]:
    """Prints on rank 0, at once: output that goes to a launcher is buffered."""

    def say(text: str) -> None:
        if engine.runner.world.rank == 0:
            print(text, flush=True)

    return say


def _write_and_print(record: LaunchRecord, rows: list[dict[str, Any]], root: Path) -> None:
    from rich.console import Console

    folder = ResultsFolder(root)
    record.comparison_id = root.name
    steps = steps_table(rows)
    folder.write_launch(record, steps)
    console = Console()
    if not record.epochs:
        console.print(cases_table(record, steps) if record.cases else throughput_table(record, steps))
    where = folder.launch_folder(record.launch, record.arm) / "record.json"
    console.print(f"record: {where}", markup=False, highlight=False, soft_wrap=True)


def _default_folder(job: Job) -> Path:
    workload = job.workload if ARM_NAME.fullmatch(job.workload) else job.workload.rpartition(":")[2]
    return Path("results") / f"{job.backend}-{workload}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
