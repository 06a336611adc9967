"""What is installed, built and reachable on this machine, and the remedy for what is not.

Importable without torch and without Horovod. Looks at this host only; `ringside hosts` looks at the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runners.doctor import machine, software
from runners.doctor.software import Finding, Status

__all__ = ["Finding", "diagnose", "print_findings"]

TOPICS: tuple[Callable[[], Iterable[Finding]], ...] = (
    software.python_findings,
    software.torch_findings,
    software.horovod_findings,
    software.mpi_findings,
    machine.launcher_findings,
    machine.gpu_findings,
    machine.host_findings,
    machine.slurm_findings,
)
STYLES: Mapping[Status, str] = {"ok": "green", "warning": "yellow", "missing": "red"}


def diagnose() -> list[Finding]:
    """Look at this machine. Returns the findings by topic, in the order in which they are to be read."""
    with ThreadPoolExecutor() as pool:  # most of the time goes into other processes that import torch
        return [finding for found in pool.map(lambda topic: list(topic()), TOPICS) for finding in found]


def print_findings(found: Sequence[Finding], console: Console | None = None) -> None:
    """Print findings as a table, and after it the remedy for each that is not in order."""
    console = console or Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("topic", "what", "", "found"):
        table.add_column(column, overflow="fold")
    shown_topic = ""
    for finding in found:
        topic = finding.topic if finding.topic != shown_topic else ""
        style = STYLES[finding.status]
        table.add_row(topic, finding.name, f"[{style}]{finding.status}[/]", escape(finding.detail))
        shown_topic = finding.topic
    console.print(table)
    gaps = [finding for finding in found if finding.status != "ok"]
    console.print("\n[bold]Remedies[/]" if gaps else "\nNothing is missing.")
    for number, gap in enumerate(gaps, start=1):
        console.print(f"{number:2d}. {gap.topic} / {gap.name}: {escape(gap.remedy)}", soft_wrap=True)
