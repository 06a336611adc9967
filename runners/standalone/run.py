"""One rank of a standalone run: from its flags to a plan whose single arm are these ranks, and from
their meeting to the commands of rank 0, which acts as the driver.

Launchers end only the ranks of their own host, and a rank that waits for a peer in a library
notices nothing for minutes. So each rank reports an error at its start in the store where they met.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import HashStore, PrefixStore, TCPStore

from backends import Backend, backend_class, make_backend
from backends.base import Store
from backends.mpi.library import load_mpi, open_store
from measurement.addresses import with_port
from measurement.agent.ringside_agent.agent import obey
from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS, World
from measurement.agent.ringside_agent.reporting import leave
from measurement.environment import describe_variables, disturbances
from measurement.errors import LaunchError, ParityError, PlanError, RingsideError, printable
from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan
from measurement.plans.sections import Arm
from measurement.records.results import ResultsFolder, default_folder, folder_name
from runners.flags import FlagValues, command, values_of
from runners.launchers import meeting_place, read_own_world
from runners.planning.arm_specs import libraries_of
from runners.planning.arms import choose_transport, job_of, require_given, require_gpu
from runners.planning.standalone_flags import FLAGS, MODULES, RunOptions, plan_content, settings
from runners.processes.process_exit import say_once
from runners.protocol import CAUSE_FIRST_S, Job, mentions_lost_peer
from runners.rank.engine import Engine, start_engine
from runners.rank.resources import take_resources, threads_of
from runners.rank.worker import EngineRank, describe_error
from workloads import REGISTRY

NOTHING = b" "
"""A broadcast has at least one byte."""
TRY_S = 0.2
FAILED = "failed-to-start"
LOOK_S = 0.5
TELL_S = 4 * LOOK_S
"""How long a rank that failed keeps its host's launcher, which may serve the store, so that others
can read the error."""


def command_line(backend: str) -> Callable[..., None]:
    """Return the command for typer."""
    text = (
        "Measure the throughput of one workload on the ranks this was started on, or train it with"
        " --epochs."
    )
    return command(partial(measure, backend), FLAGS, text=text)


def epilog(backend: str) -> str:
    """The text of ``--help`` below the flags: the known workloads, and the options of this
    backend.
    """
    fields = backend_class(backend).Options.model_fields
    options = ", ".join(
        f"{name}={field.get_default(call_default_factory=True)}" for name, field in fields.items()
    )
    workloads = ", ".join(sorted(REGISTRY.names()))
    return (
        f"--workload: {workloads}; a torchvision model, such as resnet50; yours by"
        " package.module:Class or path/to/file.py:Class, which 'ringside check' tries.\n\n--option"
        f" of {backend}, with defaults: {options or 'none'}."
    )


def measure(backend: str, flags: FlagValues) -> None:
    """Run what the flags ask for, as one of the ranks. Collective."""
    content, options = plan_content(flags), RunOptions(**values_of(flags, RunOptions))
    world = read_own_world()
    _require_launcher_in_pod(world, MODULES[backend])
    threads = content["threads"] = threads_of(
        world, asked=content.get("threads"), environment=os.environ
    )
    plan = resolve_plan(options.backend or backend, content, values_of(flags, Arm), world)
    folder = ResultsFolder(
        options.output or default_folder(f"{plan.baseline}-{folder_name(plan.workload)}")
    )
    if world.rank == 0 and (folder.plan_path.exists() or any(folder.root.glob("launch-*"))):
        raise PlanError(
            f"'{folder.root}' holds a run already; give another folder with -o, one for each run,"
            " or remove it"
        )
    take_resources(
        world,
        threads=threads,
        device=plan.device,
        affinity=plan.affinity,
        freed_memory=plan.freed_memory,
    )
    StandaloneRun(plan=plan, world=world, options=options, folder=folder).run()


def _require_launcher_in_pod(world: World, module: str) -> None:
    """Refuse a plain ``python -m module`` in a pod of a Kubernetes job, with a ``LaunchError`` that
    has the command to use.
    """
    if world.launcher != World().launcher:
        return
    says = "and python alone is a world of 1, without the other pods; start the ranks with:"
    if os.environ.get("K_MPI_JOB_ROLE") == "launcher":
        raise LaunchError(f"this is the launcher of an MPIJob, {says} mpirun python -m {module}")
    if "PET_NNODES" in os.environ:
        raise LaunchError(f"this is a pod of a TrainJob, {says} torchrun -m {module}")


def resolve_plan(
    backend: str, content: Mapping[str, Any], arm: Mapping[str, Any], world: World
) -> Plan:
    """Make a plan with these ranks as its single arm, and refuse what cannot work.

    Raises:
        PlanError: the launcher does not give what the backend needs, or the backend cannot do what
            is asked.
    """
    name, options = folder_name(backend), settings(arm.get("options"), "--option")
    arms = {name: {**arm, "backend": backend, "options": options}}
    ranks = {"name": name, "world_size": world.world_size, "baseline": name, "arms": arms}
    plan = check_plan({**content, **ranks}, source="command line")
    planned = plan.arms[name]
    # or refuse; None leaves it to the library
    choose_transport(backend, planned.transport, device=plan.device)
    chosen = make_backend(
        backend, transport=planned.transport, options=options, micro_steps=plan.micro_steps
    )
    if chosen.transport is None and world.launcher == "srun" and HOROVOD in chosen.needs():
        # Horovod would look for variables of horovodrun's or mpirun's
        chosen.transport = "mpi" if MPI in world.gives else "gloo"
        plan = plan.model_copy(
            update={"arms": {name: planned.model_copy(update={"transport": chosen.transport})}}
        )
    if world.world_size > 1:
        require_given(world.gives, chosen, launcher=world.launcher, reference=backend)
    require_gpu(plan.device, chosen.transport, is_here=True)
    if world.rank == 0:
        variables = disturbances(os.environ, chosen.steered_by | libraries_of(plan.device))
        for warning in describe_variables(
            {name: [variable for variable in variables if not variable.variable.is_refused]}
        ):
            print(f"warning: {warning}", file=sys.stderr, flush=True)
    chosen.check(world_size=plan.world_size)
    return plan


@dataclass(kw_only=True)
class StandaloneRun:
    """The run on one rank. Its methods are collective."""

    plan: Plan
    """These ranks are its single arm."""
    world: World
    """As the launcher says."""
    options: RunOptions
    folder: ResultsFolder
    store: Store | None = field(default=None, init=False)
    """The store of the rendezvous. Rank 0 may serve it, so it lasts as long as the run: others may
    still be starting."""

    def run(self) -> None:
        """Run from start to end.

        An exception that is no ``RingsideError`` ends this process at once, without the other
        ranks, which may wait elsewhere.

        Raises:
            ParityError: on every rank, when gradients, or the results of operations, are wrong.
        """
        try:
            self._run()
        except RingsideError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge of a rank without a driver
            self._say_why(error)
            leave(1)

    def _run(self) -> None:
        began = time.monotonic()
        # imported before the engine is built: later, garbage collection in steps would scan it
        if self.world.rank == 0:
            importlib.import_module("runners.standalone.leading_rank")
            if self.options.tensorboard is not None:
                importlib.import_module("tensorboard.summary.writer.event_file_writer")
        engine = self._start()
        rank = EngineRank(start=lambda: engine, log=Path(os.devnull))
        try:
            if engine.runner.world.rank == 0:
                self._lead(engine, rank, began=began)
            else:
                _follow(rank, engine.backend)
        except RingsideError as error:
            self._say_why(error)
            engine.backend.teardown()
            raise
        engine.backend.teardown()

    def _start(self) -> Engine:
        """Connect to the other ranks and build the engine. Before a training the workload is
        tried.
        """
        arm, timeout = self.plan.arms[self.plan.baseline], timedelta(seconds=self.options.timeout)
        job = job_of(self.plan, self.plan.baseline, arm, transport=arm.transport)
        job = job.model_copy(update={"tries": job.training.epochs if job.training else None})
        self.store = rendezvous_store(job, self.world, timeout=timeout)
        with joint_start(self.store, self.world, say=self._say_why):
            engine = start_engine(job, self.world, store=self.store, timeout=timeout)
        if self.world.rank == 0:
            for note in engine.notes:
                # the output goes to a launcher, which may not be a terminal
                print(f"note: {note}", flush=True)
        return engine

    def _lead(self, engine: Engine, rank: EngineRank, *, began: float) -> None:
        from runners.standalone.leading_rank import CollectiveSession, lead

        session = CollectiveSession(
            self.plan.baseline,
            rank=rank,
            backend=engine.backend,
            folder=self.folder.root,
            started_s=began,
        )
        try:
            lead(
                session,
                engine,
                plan=self.plan,
                folder=self.folder,
                tensorboard=self.options.tensorboard,
            )
        except RingsideError as error:
            self._say_why(error)
            session.part(error)
            raise
        session.part()

    def _say_why(self, error: Exception) -> None:
        """Print once why this rank ends.

        A rank that lost a peer waits, so that the cause is printed first.
        """
        if getattr(error, "was_reported", False):
            return
        if mentions_lost_peer(str(error)):
            time.sleep(CAUSE_FIRST_S)
        if isinstance(error, RingsideError):
            say_once(error)
            return
        who = _who(self.world) if self.world.world_size > 1 else "the rank"
        described = describe_error(error)
        path = self.folder.root / f"rank-{self.world.rank}-traceback.txt"
        text = "".join(traceback.format_exception(error))
        where = f"full traceback: {path}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError:
            where = text
        lines = [f"ringside: {who}: {described.message}", *described.excerpt, where]
        print("\n".join(lines), file=sys.stderr)
        error.was_reported = True  # type: ignore[attr-defined]


def _follow(rank: EngineRank, backend: Backend) -> None:
    """Carry out rank 0's commands, which come over the backend's collectives, and wait until it has
    written the record.

    Raises:
        ParityError: the error with which rank 0 ends.
    """
    obey(
        rank.handlers,
        lambda: backend.broadcast_bytes(NOTHING),
        lambda reply: backend.all_gather_bytes(reply.encode()),
    )
    if error := backend.broadcast_bytes(NOTHING).strip():
        raise ParityError(error.decode())


def rendezvous_store(
    job: Job, world: World, *, timeout: timedelta = Backend.timeout
) -> Store | None:
    """Open the store of the ranks' rendezvous and wait for all; None if the backend has its own
    rendezvous. Collective.

    Raises:
        LaunchError: with the ranks that came, or why there is no store.
    """
    needs = make_backend(job.backend, transport=job.transport, options=job.options).needs()
    if RENDEZVOUS not in needs and job.transport != "gloo":
        return None
    if world.world_size == 1:
        return HashStore()
    place = meeting_place(os.environ)
    if "MASTER_ADDR" in place:
        if RENDEZVOUS not in needs and RENDEZVOUS not in world.gives:
            return None
        store = _served_store(world, {**os.environ, **place}, timeout)
        _await_all(store, world, timeout)
        return store
    return open_store(load_mpi().COMM_WORLD, timeout=timeout) if MPI in world.gives else None


def _served_store(world: World, environment: Mapping[str, str], timeout: timedelta) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT, which torchrun serves, or else rank 0."""
    host, text = environment["MASTER_ADDR"], environment.get("MASTER_PORT", "")
    if not text.isdigit():
        raise LaunchError(
            f"MASTER_ADDR is '{host}' and MASTER_PORT {text!r}; set a free port of that host, the"
            " same for all ranks"
        )
    port, agent_serves = int(text), environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = world.rank == 0 and not agent_serves
    if not serves and not _is_reached(host, port, timeout):
        raise LaunchError(
            f"rank {world.rank} on {socket.gethostname()} did not reach rank 0 at"
            f" {with_port(host, port)} within {timeout.total_seconds():g} s: start all ranks with"
            " the same address, see that no firewall is between, or wait longer with --timeout"
        )
    try:
        store = TCPStore(host, port, is_master=serves, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:
        raise LaunchError(
            f"rank {world.rank} has no store at {with_port(host, port)}:"
            f" {str(error).splitlines()[0]}; if the port is in use, give another one to all ranks"
        ) from error
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0") if agent_serves else "0"
    return PrefixStore(f"ringside/{attempt}", store)


def _is_reached(host: str, port: int, timeout: timedelta) -> bool:
    """Whether a server is reached in time. c10d is not asked, since it prints pages if there is
    none.
    """
    until = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=TRY_S):
            return True
        time.sleep(TRY_S)
    return False


def _await_all(store: Store, world: World, timeout: timedelta) -> None:
    """Register this rank and wait for the others."""
    keys = [f"came/{rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], socket.gethostname())
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        missing = ", ".join(str(rank) for rank, key in enumerate(keys) if not store.check([key]))
        raise LaunchError(
            f"of {world.world_size} ranks these did not come within {timeout.total_seconds():g} s:"
            f" {missing}; start every host's ranks with the same number of ranks in all and the"
            " same address, or wait longer with --timeout"
        ) from None


@contextmanager
def joint_start(
    store: Store | None, world: World, *, say: Callable[[Exception], None]
) -> Iterator[None]:
    """Report an error that the block raises to the other ranks, and end this rank at once when
    another reports one.

    Args:
        store: the store of the ranks' rendezvous; None: they have none, and nothing is watched.
        world: this rank's place.
        say: prints an error. It is called first: this rank's launcher may end it as soon as others
            have read the error.
    """
    if store is None or world.world_size == 1:
        yield
        return
    over, watching = threading.Event(), store.clone()
    threading.Thread(target=_watch, args=(watching, world, over), daemon=True).start()
    try:
        yield
    except Exception as error:
        say(error)
        over.set()
        says, *_ = printable(f"{type(error).__name__}: {error}").splitlines()
        with contextlib.suppress(RuntimeError):
            store.set(FAILED, f"{_who(world)}, which says: {says}")
            time.sleep(TELL_S)
        raise
    finally:
        over.set()


def _watch(store: Store, world: World, over: threading.Event) -> None:
    reason = None
    while not (reason or over.wait(LOOK_S)):
        try:
            reason = store.get(FAILED).decode(errors="replace") if store.check([FAILED]) else None
        except RuntimeError:  # the process that served it has ended
            reason = (
                "the store of the ranks' rendezvous, which is gone; see the messages of the other"
                " hosts"
            )
    if reason and not over.is_set():
        print(
            f"ringside: {_who(world)} ends, since it cannot start without {reason}", file=sys.stderr
        )
        leave(1)


def _who(world: World) -> str:
    return f"rank {world.rank} on {socket.gethostname()}"
