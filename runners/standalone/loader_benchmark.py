"""``python -m runners.io``: measures how many samples per second the loaders deliver without a model, under any launcher.

It tells whether the input pipeline keeps up with training: per rank, per host and in all, for several numbers of workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from backends import make_backend
from measurement.errors import PlanError, WorldSizeMismatchError
from measurement.plans.plan import Plan
from measurement.plans.settings import Section
from measurement.probes.fingerprint import usable_cores
from measurement.records.loader_record import LoaderRecord, LoaderTurn, StorageReads
from measurement.records.results import default_folder, folder_name
from measurement.registry import search_beside
from measurement.world import RENDEZVOUS, World
from runners.flags import Flag, Given, command, serve_command, values_of
from runners.hosts.names import use_interface
from runners.launchers import read_own_world
from runners.planning.workload import WorkloadSetup, resolve_workload
from runners.processes.process_exit import run_command
from runners.protocol.messages import Job
from runners.rank.resources import take_resources, threads_of
from runners.rank.trainer import resolve_device
from runners.standalone import flags
from runners.standalone.loader_turns import Loaders, read_files, require_loader
from runners.standalone.rendezvous import rendezvous_store


class LoaderOptions(Section):
    """How the loaders are measured."""

    workers: str = "0,1,2,4"
    """Loader workers per rank to try, such as 0,1,2,4."""
    seconds: float = Field(default=3.0, ge=0.01)
    """Seconds of every turn."""
    rounds: int = Field(default=3, ge=1)
    """Turns of each number of workers."""
    against: Path | None = None
    """A results folder of the same workload: say whether the loader is enough for that training."""
    output: Path | None = None
    """Folder to write. [results/io-WORKLOAD-TIME]"""


_loaders = partial(Flag, flags.MEASURING, LoaderOptions)
FLAGS = (
    *(replace(flags.WORKLOAD, default="mnist"), flags.WORKLOAD_OPTION, flags.DATA_DIR, flags.SEED),
    *map(_loaders, ("workers", "seconds", "rounds", "against")),
    _loaders("output", ("-o", "--output")),
    *(flags.LOCAL_BATCH_SIZE, flags.DEVICE, flags.NETWORK_INTERFACE),
)


class RankLoading(NamedTuple):
    """What a rank reports."""

    turns: list[LoaderTurn]
    cores: list[int]
    """Cores that the rank and its loaders may use."""
    storage: StorageReads | None
    """Read by one rank of each host, where there are files to read."""


def command_line() -> Callable[..., None]:
    """Return the function whose arguments are the flags on the command line."""
    return command(measure, FLAGS, text="Measure the loaders of one workload, without a model, on the ranks this was started on.")


def measure(given: Given) -> None:
    """Carry out what the flags say, as one of the ranks. Collective."""
    asked, how = values_of(given, Plan), LoaderOptions(**values_of(given, LoaderOptions))
    counts = worker_counts(how.workers)
    use_interface(asked.pop("network_interface", None))
    world = read_own_world()
    search_beside(Path.cwd())
    asked["workload_options"] = flags.workload_options(given)
    asked["workload_options"].pop("loader_workers", None)  # every turn has its own
    setup = resolve_workload(asked["workload"], asked["workload_options"])
    require_loader(setup)
    needed = None
    if world.rank == 0 and how.against is not None:
        from reports.conclusions.loaders import read_demand  # with scipy, which no other rank needs

        needed = read_demand(how.against, setup.reference)
    backend = "ddp" if world.world_size == 1 or RENDEZVOUS in world.gives else "horovod"  # which needs no address
    job = Job(arm="io", backend=backend, transport="gloo", world_size=world.world_size, **asked)
    record = gather(job, setup, world, counts, how)
    if record:
        show(record, needed, how.output or default_folder(f"io-{folder_name(setup.reference)}"))


def worker_counts(text: str) -> list[int]:
    """Read the numbers of ``--workers``.

    Raises:
        PlanError: it is no list of numbers, or names one twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise PlanError(f"--workers {text!r} is no list of different whole numbers from 0 on; write it as 0,1,2,4")
    return [int(part) for part in parts]


def gather(job: Job, setup: WorkloadSetup, world: World, counts: Sequence[int], how: LoaderOptions) -> LoaderRecord | None:
    """Measure on all ranks and return the record on rank 0. Collective."""
    take_resources(world, threads=threads_of(world, asked=None, environment=os.environ), device=job.device)
    device = resolve_device(job.device, local_rank=world.local_rank)
    backend = make_backend(job.backend, transport=job.transport, options=job.options)
    trained = setup.build(local_batch_size=job.local_batch_size, seed=job.seed)
    counted = backend.setup(world, device=device, store=rendezvous_store(job, world))
    try:
        if counted.world_size != world.world_size:
            raise WorldSizeMismatchError(f"{counted.world_size} ranks met where {world.world_size} were started; use one launcher")
        files = trained.sample_files() if world.local_rank == 0 else ()
        readers = max(*counts, 1) * world.local_world_size
        storage = read_files(files, readers=readers, seconds=how.seconds, seed=job.seed) if files else None
        loaders = Loaders(workload=trained, backend=backend, world=world, device=device)
        turns = loaders.measure(counts, rounds=how.rounds, seconds=how.seconds)
        everyone = backend.all_gather_object(RankLoading(turns, usable_cores(), storage), RankLoading)
        backend.barrier()
    finally:
        backend.teardown()
    return loading_record(job, trained.sample_unit, world, device.type, everyone) if world.rank == 0 else None


def loading_record(job: Job, unit: str, world: World, device: str, everyone: Sequence[RankLoading]) -> LoaderRecord:
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
    from reports.formats.console import new_console
    from reports.formats.loader_page import write_loading
    from reports.formats.terminal import loading_table, rich_table
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
    """Be ``python -m runners.io``; ends this process."""
    run_command(lambda: serve_command(command_line()))
