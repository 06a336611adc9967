"""``python -m tests.kit.lab``: the command line of the cluster on one machine, for contributors."""

from __future__ import annotations

from typing import Annotated

import typer

from runners.processes.process_exit import run_command
from runners.results_commands import parse_rate

app = typer.Typer(
    no_args_is_help=True,
    help="A cluster on this machine: hosts in network namespaces, with sshd and shaped links.",
)


@app.command()
def up(
    hosts: Annotated[int, typer.Option(help="Number of hosts, up to 16: host1, host2, ...")] = 2,
    rate: Annotated[
        str | None, typer.Option(help="Rate of each link, each way: 1gbit, 100mbit. [not shaped]")
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Give them a Slurm: sbatch, salloc and srun in host1.")
    ] = False,
) -> None:
    """Make the hosts and join them by a switch. Needs root."""
    from tests.kit.lab.cluster import up as make
    from tests.kit.lab.state import LabSettings

    settings = LabSettings(
        hosts=hosts, rate_bits_per_s=parse_rate(rate) if rate else None, slurm=slurm
    )
    make(settings)
    print(
        f"{', '.join(settings.names)} are up; python -m tests.kit.lab run -- COMMAND; at the end: python -m tests.kit.lab down"
    )


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str], typer.Argument(help="Command, as typed in a host's shell, after --.")
    ],
    host: Annotated[str, typer.Option(help="Host to run it in.")] = "host1",
) -> None:
    """Run a command in a host: in this folder, with this environment; its exit code is passed
    on."""
    from tests.kit.lab.cluster import enter

    enter(host, command)


@app.command()
def down() -> None:
    """Remove the hosts, their processes, links and keys; also what an interrupted 'up' left."""
    from tests.kit.lab.cluster import down as remove

    print("the lab is removed" if remove() else "there is no lab")


if __name__ == "__main__":
    run_command(app)
