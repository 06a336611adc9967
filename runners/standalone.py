"""A rank that measures without a driver: warm up, check, measure, print a throughput table on rank 0, write the record.

``python -m runners.ddp`` and ``python -m runners.hvd`` are this with their backend, under whatever launcher started them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from backends.base import Store
from measurement.errors import ParityError, PlanError
from measurement.fingerprint import allowed_environment
from measurement.plan import ARM_NAME, parse_yaml
from measurement.record import BlockRecord, LaunchRecord
from measurement.results import ResultsFolder, steps_table
from measurement.world import World
from runners.arm_launch import block_rows
from runners.cli import run_command
from runners.engine import Engine, start_engine
from runners.job import BlockReport, Job
from runners.parity import judge, run_gate
from runners.planning import cores, resolve_workload
from runners.rank_environment import read_world
from runners.tables import throughput_table

DIGEST = "standalone"


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
        output: Annotated[
            Path | None, typer.Option("-o", "--output", help="Results folder. [results/BACKEND-WORKLOAD-TIME]")
        ] = None,
    ) -> None:
        """Measure the throughput of one workload on the ranks this was started on."""
        if device not in ("auto", "cpu", "cuda"):
            raise PlanError(f"--device {device!r} is not known; use auto, cpu or cuda")
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
        ParityError: on every rank, when the gate finds the gradients wrong.
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
        if engine.trainer.world.rank == 0:
            _write_and_print(record, rows, output or _default_folder(job))
        engine.trainer.release()
        engine.backend.barrier()
    finally:
        engine.backend.teardown()


def meeting_store(job: Job, world: World) -> Store | None:
    """Where ranks meet when no launcher says: MPI's launchers set no address, so rank 0 tells its own over MPI."""
    if job.backend != "ddp" or "MASTER_ADDR" in os.environ:
        return None
    import torch.distributed as dist

    if world.world_size == 1:
        return dist.HashStore()
    if world.launcher not in ("openmpi", "mpich"):
        raise PlanError(
            f"MASTER_ADDR is not set and launcher '{world.launcher}' gives DDP's ranks no address to meet at; "
            "start with torchrun or mpirun, or set MASTER_ADDR and MASTER_PORT"
        )
    from mpi4py import MPI

    store = None
    if world.rank == 0:
        address = "127.0.0.1" if world.local_world_size == world.world_size else socket.gethostname()
        store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        MPI.COMM_WORLD.bcast((address, store.port))
        return store
    host, port = MPI.COMM_WORLD.bcast(None)
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False)


def _record(engine: Engine, lengths: Lengths) -> LaunchRecord:
    """The record in the making, the gate passed."""
    job = engine.job
    parity = None
    if lengths.parity_steps:
        reports = engine.backend.all_gather_object(run_gate(engine.trainer, steps=lengths.parity_steps))
        parity = judge(list(reports), steps=lengths.parity_steps)
        if not parity.passed:
            raise ParityError(f"backend '{job.backend}' computes wrongly, nothing was timed: " + "; ".join(parity.failures))
    return LaunchRecord(
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
        sample_unit=engine.trainer.workload.sample_unit,
        world_size=job.world_size,
        status="ok",
        parity=parity,
    )


def _measure(engine: Engine, record: LaunchRecord, lengths: Lengths) -> list[dict[str, Any]]:
    """All ranks' raw steps, on every rank; the model is built once, as in a user's run. Collective."""
    began = time.monotonic()
    mine = []
    for number in range(lengths.blocks):
        started = time.monotonic()
        block = engine.trainer.run_block(
            steps=lengths.block_steps,
            warmup_steps=lengths.warmup_steps if number == 0 else 0,
            local=False,
            rebuild=number == 0,
        )
        record.blocks.append(
            BlockRecord(
                turn=number,
                round=number,
                block=number,
                kind="sync",
                steps=lengths.block_steps,
                started_s=started - began,
                wall_s=time.monotonic() - started,
                untimed_s=block.untimed_s,
            )
        )
        mine.append(
            BlockReport(
                rank=engine.world.rank,
                untimed_s=block.untimed_s,
                samples=block.samples,
                phases_s=block.phases_s.tolist(),
            )
        )
    record.measuring_s = time.monotonic() - began
    everyone = engine.backend.all_gather_object(mine)
    return [
        row
        for reports in everyone
        for block, report in zip(record.blocks, reports, strict=True)
        for row in block_rows(block, report)
    ]


def _write_and_print(record: LaunchRecord, rows: list[dict[str, Any]], root: Path) -> None:
    from rich.console import Console

    folder = ResultsFolder(root)
    record.comparison_id = root.name
    steps = steps_table(rows)
    folder.write_launch(record, steps)
    console = Console()
    console.print(throughput_table(record, steps))
    where = folder.launch_folder(record.launch, record.arm) / "record.json"
    console.print(f"record: {where}", markup=False, highlight=False, soft_wrap=True)


def _default_folder(job: Job) -> Path:
    workload = job.workload if ARM_NAME.fullmatch(job.workload) else job.workload.rpartition(":")[2]
    return Path("results") / f"{job.backend}-{workload}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
