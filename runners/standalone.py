"""A rank that measures without a driver: warm up, check, measure, print a throughput table on rank 0, write the record.

``python -m runners.ddp`` and ``python -m runners.hvd`` are this with their backend, under whatever launcher started them.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.distributed import HashStore

from backends.base import Store
from backends.mpi_library import load_mpi
from backends.mpi_rendezvous import open_store
from backends.torch_distributed import CONNECT_TIMEOUT
from measurement.errors import ParityError, PlanError
from measurement.fingerprint import allowed_environment
from measurement.plan import ARM_NAME, parse_yaml
from measurement.record import LaunchRecord
from measurement.results import ResultsFolder, steps_table
from measurement.world import World
from runners.arm_launch import block_record, block_rows
from runners.cli import run_command
from runners.engine import Engine, start_engine
from runners.gates import judge_gate
from runners.interfaces import use_interface
from runners.job import Command, Job
from runners.planning import cores, resolve_workload
from runners.rank_environment import read_world
from runners.rounds import TRAINING
from runners.tables import cases_table, throughput_table

DIGEST = "standalone"
MPI_FAMILIES = ("openmpi", "mpich")
"""Of rank variables, see ``runners.rank_environment``: their launchers give no address to meet at."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long to measure."""

    warmup_steps: int
    blocks: int
    block_steps: int
    parity_steps: int


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
        seed: Annotated[int, typer.Option(min=0)] = 1,
        device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
        network_interface: Annotated[str | None, typer.Option(help="Of every host, such as eth0; default: each library's.")] = None,
        output: Annotated[
            Path | None, typer.Option("-o", "--output", help="Results folder. [results/BACKEND-WORKLOAD-TIME]")
        ] = None,
    ) -> None:
        """Measure the throughput of one workload on the ranks this was started on."""
        if device not in ("auto", "cpu", "cuda"):
            raise PlanError(f"--device {device!r} is not known; use auto, cpu or cuda")
        use_interface(network_interface)
        world = read_world(os.environ)
        job = Job(
            arm=backend,
            backend=backend,
            transport=transport,
            options=settings(option, "--option"),
            workload=workload,
            workload_options=settings(workload_option, "--workload-option"),
            local_batch_size=local_batch_size,
            micro_steps=micro_steps,
            world_size=world.world_size,
            seed=seed,
            device=device,
        )
        lengths = Lengths(warmup_steps=warmup_steps, blocks=blocks, block_steps=block_steps, parity_steps=parity_steps)
        set_threads(threads, world)
        run(job, world, lengths, output=output)

    run_command(lambda: typer.run(measure))


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


def run(job: Job, world: World, lengths: Lengths, *, output: Path | None) -> None:
    """One rank's whole run. Collective; rank 0 prints and writes.

    Raises:
        ParityError: on every rank, when gradients, or the results of operations, are wrong.
    """
    began = time.monotonic()
    sys.path.insert(0, str(Path.cwd()))
    resolve_workload(job.workload, job.workload_options)
    engine = start_engine(job, world, store=meeting_store(job, world))
    try:
        record = _record(engine, lengths)
        record.start_s = time.monotonic() - began
        rows = _measure(engine, record, lengths)
        reports = engine.backend.all_gather_object((engine.report(allowed_environment(os.environ)), engine.peak_memory_bytes()))
        record.ranks = [report for report, _ in reports]
        record.peak_memory_bytes = [peak for _, peak in reports]
        record.hosts = sorted({report.host for report in record.ranks})
        if engine.runner.world.rank == 0:
            _write_and_print(record, rows, output or _default_folder(job))
        engine.runner.release()
        engine.backend.barrier()
    finally:
        engine.backend.teardown()


def meeting_store(job: Job, world: World) -> Store | None:
    """Where ranks meet when no launcher says: MPI's launchers set no address, so rank 0 tells its own over MPI."""
    needs_store = job.backend == "ddp" or (job.transport == "gloo" and world.launcher in MPI_FAMILIES)
    if not needs_store or "MASTER_ADDR" in os.environ:
        return None
    if world.world_size == 1:
        return HashStore()
    if world.launcher not in MPI_FAMILIES:
        raise PlanError(
            f"MASTER_ADDR is not set and launcher '{world.launcher}' gives DDP's ranks no address to meet at; "
            "start with torchrun or mpirun, or set MASTER_ADDR and MASTER_PORT"
        )
    return open_store(load_mpi().COMM_WORLD, timeout=CONNECT_TIMEOUT)


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


def _measure(engine: Engine, record: LaunchRecord, lengths: Lengths) -> list[dict[str, Any]]:
    """All ranks' raw steps, on every rank; the model is built once, as in a user's run. Collective."""
    began = time.monotonic()
    mine = []
    for number, (case, block) in enumerate(itertools.product(_cases(record), range(lengths.blocks))):
        started = time.monotonic()
        command = Command(
            do="block",
            case=case,
            steps=lengths.block_steps,
            warmup_steps=lengths.warmup_steps if block == 0 else 0,
            rebuild=block == 0,
        )
        report = engine.run_block(command)
        done = block_record(
            command,
            turn=number,
            number=block,
            block=number,
            started_s=started - began,
            wall_s=time.monotonic() - started,
            untimed_s=report.untimed_s,
        )
        record.blocks.append(done)
        mine.append(report)
    record.measuring_s = time.monotonic() - began
    everyone = engine.backend.all_gather_object(mine)
    wrong = [f"rank {report.rank}: {report.wrong}" for reports in everyone for report in reports if report.wrong]
    if wrong:
        raise ParityError("; ".join(wrong))
    return [
        row
        for reports in everyone
        for block, report in zip(record.blocks, reports, strict=True)
        for row in block_rows(block, report)
    ]


def _cases(record: LaunchRecord) -> Sequence[str]:
    """Of a micro-benchmark, those that the backend offers; training has one without a name."""
    return [case.name for case in record.cases if case.name not in record.not_offered] if record.cases else TRAINING


def _write_and_print(record: LaunchRecord, rows: list[dict[str, Any]], root: Path) -> None:
    from rich.console import Console

    folder = ResultsFolder(root)
    record.comparison_id = root.name
    steps = steps_table(rows)
    folder.write_launch(record, steps)
    console = Console()
    console.print(cases_table(record, steps) if record.cases else throughput_table(record, steps))
    where = folder.launch_folder(record.launch, record.arm) / "record.json"
    console.print(f"record: {where}", markup=False, highlight=False, soft_wrap=True)


def _default_folder(job: Job) -> Path:
    workload = job.workload if ARM_NAME.fullmatch(job.workload) else job.workload.rpartition(":")[2]
    return Path("results") / f"{job.backend}-{workload}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
