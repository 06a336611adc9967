"""``python -m runners.io``: how many samples per second the loaders alone deliver, under whatever launcher started the ranks.

It tells whether the input pipeline can keep up with training: per rank, per host and in all, for several numbers of workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from backends import Backend, backend_class
from measurement.errors import PlanError, WorldSizeMismatchError
from measurement.fingerprint import usable_cores
from measurement.loading import LoaderTurn, LoadingRecord
from measurement.plan import ARM_NAME
from measurement.world import World
from runners.cli import PIPED_WIDTH, run_command
from runners.interfaces import use_interface
from runners.io_turns import Loaders, require_loader
from runners.job import Job
from runners.meeting import meeting_store
from runners.planning import WorkloadSetup, resolve_workload
from runners.rank_environment import read_world
from runners.standalone import set_threads, settings
from runners.trainer import resolve_device

OPTION = "--workload-option"


def measure(
    workload: Annotated[str, typer.Option(help="A workload that reads data, or your own module:Class.")] = "mnist",
    workload_option: Annotated[list[str] | None, typer.Option(OPTION, metavar="KEY=VALUE", help="May be repeated.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Short for --workload-option data_dir=DIR.")] = None,
    workers: Annotated[str, typer.Option(help="Loader workers per rank to try, such as 0,1,2,4.")] = "0,1,2,4",
    seconds: Annotated[float, typer.Option(min=0.01, help="Of every turn.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each number of workers.")] = 3,
    local_batch_size: Annotated[int, typer.Option(min=1, help="Samples per rank and batch.")] = 32,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    device: Annotated[str, typer.Option(help="Where batches end: auto, cpu or cuda.")] = "auto",
    network_interface: Annotated[str | None, typer.Option(help="Of every host, such as eth0; default: each library's.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="A results folder of the same workload: say whether the loader is enough for that training.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write. [results/io-WORKLOAD-TIME]")] = None,
) -> None:
    """Measure the loaders of one workload, without a model, on the ranks this was started on."""
    counts = worker_counts(workers)
    use_interface(network_interface)
    world = read_world(os.environ)
    sys.path.insert(0, str(Path.cwd()))
    options = settings(workload_option, OPTION) | ({"data_dir": str(data_dir)} if data_dir else {})
    options.pop("loader_workers", None)  # every turn has its own
    setup = resolve_workload(workload, options)
    require_loader(setup)
    needed = training_need(against, workload) if world.rank == 0 else None
    job = meeting_job(workload, options, world, local_batch_size=local_batch_size, seed=seed, device=device)
    record = gather(job, setup, world, counts, rounds=rounds, seconds=seconds)
    if record:
        show(record, needed, output or default_folder(workload))


def worker_counts(text: str) -> list[int]:
    """The numbers in ``--workers``.

    Raises:
        PlanError: it is no list of numbers, or names one twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise PlanError(f"--workers {text!r} is no list of different whole numbers from 0 on; write it as 0,1,2,4")
    return [int(part) for part in parts]


def training_need(against: Path | None, workload: str) -> Any:
    """What the training recorded in a results folder takes of its loaders; read before anything is measured."""
    from reports.training_need import read_need

    return read_need(against, workload) if against else None


def meeting_job(workload: str, options: dict[str, Any], world: World, *, local_batch_size: int, seed: int, device: str) -> Job:
    """Ranks meet by Gloo in ``torch.distributed``, but for those of ``horovodrun`` without MPI, which only Horovod brings together.

    Raises:
        PlanError: no such device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise PlanError(f"--device {device!r} is not known; use auto, cpu or cuda")
    return Job(
        arm="io",
        backend="horovod" if world.launcher == "horovodrun" and "MASTER_ADDR" not in os.environ else "ddp",
        transport="gloo",
        workload=workload,
        workload_options=options,
        local_batch_size=local_batch_size,
        world_size=world.world_size,
        seed=seed,
        device=device,
    )


def gather(job: Job, setup: WorkloadSetup, world: World, counts: list[int], *, rounds: int, seconds: float) -> LoadingRecord | None:
    """All ranks' turns, on rank 0. Collective."""
    set_threads(None, world)
    device = resolve_device(job.device, local_rank=world.local_rank)
    cls = backend_class(job.backend)
    backend: Backend = cls(transport=job.transport)
    trained = setup.training(local_batch_size=job.local_batch_size, seed=job.seed)
    counted = backend.setup(world, device=device, store=meeting_store(job, world))
    try:
        if counted.world_size != world.world_size:
            raise WorldSizeMismatchError(f"{counted.world_size} ranks met where {world.world_size} were started; use one launcher")
        turns = Loaders(trained, backend=backend, world=world, device=device).measure(counts, rounds=rounds, seconds=seconds)
        everyone = backend.all_gather_object((turns, len(usable_cores())))
        backend.barrier()
    finally:
        backend.teardown()
    return loading_record(job, trained.sample_unit, world, device.type, everyone) if world.rank == 0 else None


def loading_record(
    job: Job, unit: str, world: World, device: str, everyone: Sequence[tuple[list[LoaderTurn], int]]
) -> LoadingRecord:
    """What is written, from what every rank reported: its turns and the cores it may use."""
    return LoadingRecord(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=job.workload,
        workload_options=job.workload_options,
        sample_unit=unit,
        local_batch_size=job.local_batch_size,
        launcher=world.launcher,
        world_size=world.world_size,
        device=device,
        cores={turns[0].host: cores for turns, cores in everyone},
        turns=[turn for turns_of_all in zip(*(turns for turns, _ in everyone), strict=True) for turn in turns_of_all],
    )


def show(record: LoadingRecord, needed: Any, folder: Path) -> None:
    """Print the table and its conclusions, write ``io.json`` and ``io.html``."""
    from rich.console import Console

    from reports.io import conclusions, loading_table, write_loading

    write_loading(record, needed, folder)
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(loading_table(record, needed))
    for line in conclusions(record, needed):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"page: {folder / 'io.html'}", markup=False, highlight=False, soft_wrap=True)


def default_folder(workload: str) -> Path:
    """Under ``results``, named by workload and time."""
    name = workload if ARM_NAME.fullmatch(workload) else workload.rpartition(":")[2]
    return Path("results") / f"io-{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


if __name__ == "__main__":
    run_command(lambda: typer.run(measure))
