"""``python -m tests.kit.lab``: the command line of the cluster on one machine, for contributors."""

from __future__ import annotations

from typing import Annotated

import typer

from runners.processes.process_exit import begin_in_utf8, run_command

app = typer.Typer(no_args_is_help=True, help="A cluster on this machine: hosts in network namespaces, with sshd and shaped links.")

EXIT_FAILED = 1


@app.command()
def up(
    hosts: Annotated[int, typer.Option(help="Number of hosts, up to 16: host1, host2, ...")] = 2,
    rate: Annotated[str | None, typer.Option(help="Rate of each link, each way: 1gbit, 100mbit. [not shaped]")] = None,
    delay: Annotated[str | None, typer.Option(help="Delay from each host to the switch: 1ms. [none]")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Give them a Slurm: sbatch, salloc and srun in host1.")] = False,
) -> None:
    """Make the hosts and join them by a switch. Needs root."""
    from tests.kit.lab.cluster import up as make
    from tests.kit.lab.links import parse_delay, parse_rate
    from tests.kit.lab.state import LabSettings

    settings = LabSettings(
        hosts=hosts,
        rate_bits_per_s=None if rate is None else parse_rate(rate),
        delay_us=None if delay is None else parse_delay(delay),
        slurm=slurm,
    )
    make(settings)
    print(f"{', '.join(settings.names)} are up; python -m tests.kit.lab run -- COMMAND; at the end: python -m tests.kit.lab down")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="Command, as typed in a host's shell, after --.")],
    host: Annotated[str, typer.Option(help="Host to run it in.")] = "host1",
) -> None:
    """Run a command in a host: in this folder, with this environment; its exit code is passed on."""
    from tests.kit.lab.cluster import enter

    enter(host, command)


@app.command()
def status() -> None:
    """Show the hosts, whether they live, and the bytes on their links; exit code 1 where one is dead or takes no ssh."""
    from rich.console import Console
    from rich.table import Table

    from tests.kit.lab.cluster import status as look

    found = look()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("host", "address", "processes", "ssh", "sent bytes", "received bytes"):
        table.add_column(column, justify="left" if column in ("host", "address", "ssh") else "right")
    for host in found:
        ssh = "yes" if host.takes_ssh else "no"
        table.add_row(host.name, host.address, str(host.processes), ssh, f"{host.link.tx_bytes:,}", f"{host.link.rx_bytes:,}")
    Console().print(table)
    if not all(host.takes_ssh for host in found):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def down() -> None:
    """Remove the hosts, their processes, links and keys; also what an interrupted 'up' left."""
    from tests.kit.lab.cluster import down as remove

    print("the lab is removed" if remove() else "there is no lab")


if __name__ == "__main__":
    begin_in_utf8()
    run_command(app)
