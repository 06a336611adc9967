"""``python -m runners.io``: measures how many samples per second the loaders deliver without a model, under any launcher.

It tells whether the input pipeline keeps up with training: per rank, per host and in all, for several numbers of workers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from backends import make_backend
from measurement.errors import PlanError, WorldSizeMismatchError
from measurement.probes.fingerprint import usable_cores
from measurement.records.loader_record import LoaderRecord, LoaderTurn, StorageReads
from measurement.records.results import default_folder, folder_name
from measurement.registry import search_beside
from measurement.world import RENDEZVOUS, World
from runners.hosts.network import use_interface
from runners.launchers import read_own_world
from runners.planning.workload import WorkloadSetup, resolve_workload
from runners.processes.process_exit import run_command
from runners.protocol.messages import Job
from runners.rank.resources import take_resources, threads_of
from runners.rank.trainer import resolve_device
from runners.standalone import flags
from runners.standalone.command import DEVICES
from runners.standalone.loader_turns import Loaders, require_loader
from runners.standalone.rendezvous import rendezvous_store
from runners.standalone.storage import read_files


class OfRank(NamedTuple):
    """What a rank reports."""

    turns: list[LoaderTurn]
    cores: list[int]
    """That it and its loaders may use."""
    storage: StorageReads | None
    """Read by one rank of each host, where there are files to read."""


def measure(
    workload: flags.WorkloadName = "mnist",
    workload_option: flags.WorkloadOption = None,
    data_dir: flags.DataDir = None,
    workers: Annotated[str, typer.Option(help="Loader workers per rank to try, such as 0,1,2,4.")] = "0,1,2,4",
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds of every turn.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each number of workers.")] = 3,
    local_batch_size: flags.LocalBatchSize = 32,
    seed: flags.Seed = 1,
    device: flags.Device = "auto",
    network_interface: flags.Interface = None,
    against: Annotated[
        Path | None, typer.Option(help="A results folder of the same workload: say whether the loader is enough for that training.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write. [results/io-WORKLOAD-TIME]")] = None,
) -> None:
    """Measure the loaders of one workload, without a model, on the ranks this was started on."""
    counts = worker_counts(workers)
    use_interface(network_interface)
    world = read_own_world()
    search_beside(Path.cwd())
    options = flags.settings(workload_option, "--workload-option") | ({"data_dir": data_dir} if data_dir else {})
    options.pop("loader_workers", None)  # every turn has its own
    setup = resolve_workload(workload, options)
    require_loader(setup)
    needed = loader_demand(against, workload) if world.rank == 0 else None
    job = rendezvous_job(workload, options, world, local_batch_size=local_batch_size, seed=seed, device=device)
    record = gather(job, setup, world, counts, rounds=rounds, seconds=seconds)
    if record:
        show(record, needed, output or default_folder(f"io-{folder_name(workload)}"))


def worker_counts(text: str) -> list[int]:
    """Read the numbers of ``--workers``.

    Raises:
        PlanError: it is no list of numbers, or names one twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise PlanError(f"--workers {text!r} is no list of different whole numbers from 0 on; write it as 0,1,2,4")
    return [int(part) for part in parts]


def loader_demand(against: Path | None, workload: str) -> Any:
    """Read from a results folder how many samples per second its training needs. None: nothing to compare with."""
    from reports.conclusions.loaders import read_demand

    return read_demand(against, workload) if against else None


def rendezvous_job(workload: str, options: dict[str, Any], world: World, *, local_batch_size: int, seed: int, device: str) -> Job:
    """Make the job by which the ranks meet: Gloo in ``torch.distributed`` or, if the launcher gives no address, Horovod.

    Raises:
        PlanError: no such device.
    """
    flags.require_one_of("--device", device, DEVICES)
    return Job(
        arm="io",
        backend="ddp" if world.world_size == 1 or RENDEZVOUS in world.gives else "horovod",
        transport="gloo",
        workload=workload,
        workload_options=options,
        local_batch_size=local_batch_size,
        world_size=world.world_size,
        seed=seed,
        device=device,
    )


def gather(job: Job, setup: WorkloadSetup, world: World, counts: list[int], *, rounds: int, seconds: float) -> LoaderRecord | None:
    """Measure on all ranks and return the record on rank 0. Collective."""
    take_resources(world, threads=threads_of(world, asked=None, environment=os.environ))
    device = resolve_device(job.device, local_rank=world.local_rank)
    backend = make_backend(job.backend, transport=job.transport, options=job.options)
    trained = setup.build(local_batch_size=job.local_batch_size, seed=job.seed)
    counted = backend.setup(world, device=device, store=rendezvous_store(job, world))
    try:
        if counted.world_size != world.world_size:
            raise WorldSizeMismatchError(f"{counted.world_size} ranks met where {world.world_size} were started; use one launcher")
        files = trained.sample_files() if world.local_rank == 0 else ()
        readers = max(*counts, 1) * world.local_world_size
        storage = read_files(files, readers=readers, seconds=seconds, seed=job.seed) if files else None
        turns = Loaders(trained, backend=backend, world=world, device=device).measure(counts, rounds=rounds, seconds=seconds)
        everyone = backend.all_gather_object(OfRank(turns, usable_cores(), storage), OfRank)
        backend.barrier()
    finally:
        backend.teardown()
    return loading_record(job, trained.sample_unit, world, device.type, everyone) if world.rank == 0 else None


def loading_record(job: Job, unit: str, world: World, device: str, everyone: Sequence[OfRank]) -> LoaderRecord:
    """Make the record of what every rank reported."""
    cores: dict[str, set[int]] = {}
    for one in everyone:
        cores.setdefault(one.turns[0].host, set()).update(one.cores)
    return LoaderRecord(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=job.workload,
        workload_options=job.workload_options,
        sample_unit=unit,
        local_batch_size=job.local_batch_size,
        launcher=world.launcher,
        world_size=world.world_size,
        device=device,
        cores={host: len(numbers) for host, numbers in cores.items()},
        storage={one.turns[0].host: one.storage for one in everyone if one.storage},
        turns=[turn for turns_of_all in zip(*(one.turns for one in everyone), strict=True) for turn in turns_of_all],
    )


def show(record: LoaderRecord, needed: Any, folder: Path) -> None:
    """Print the table and its conclusions, write ``io.json`` and ``io.html``."""
    from reports.formats.loader_page import write_loading
    from reports.formats.terminal import loading_table, new_console, rich_table
    from reports.tables.loader_table import storage_table
    from reports.wording.loaders import loader_sentences

    write_loading(record, needed, folder)
    console = new_console()
    console.print(loading_table(record, needed))
    if record.storage:
        console.print(rich_table(storage_table(record)))
    for line in loader_sentences(record, needed):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"page: {folder / 'io.html'}", markup=False, highlight=False, soft_wrap=True)


def serve() -> None:
    """The command line of ``python -m runners.io``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(measure)
    run_command(app)
