"""``ringside history``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from measurement.errors import RecordError


def history(
    folders: Annotated[list[Path], typer.Argument(help="Results of one plan, by the folders that 'ringside compare' wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("history.html"),
) -> None:
    """Show one plan's results over time, and where the level of a figure changes: a table, and a page that links each report."""
    from measurement.records.results import ResultsFolder, write_result
    from reports import conclude
    from reports.formats.console import new_console
    from reports.formats.terminal import rich_table, shown
    from reports.regressions.history import history_of
    from reports.regressions.history_page import headline, history_page, history_table
    from reports.regressions.measured import Dated, Measured

    measured = [Measured.read(ResultsFolder(folder)) for folder in _results(folders)]
    found = history_of([Dated(measured=one, found=conclude(one.folder)) for one in measured])
    write_result(output, history_page(found, output))
    console = new_console()
    console.print(shown(headline(found)), soft_wrap=True)
    table = history_table(found)
    console.print(rich_table(table.without("changed")))
    for line in table.rows:
        if line.entries["changed"].text:
            console.print(shown(f"{line.entries['date'].text}: {line.entries['changed'].text}"), soft_wrap=True)
    console.print(f"page: {output}", markup=False, highlight=False, soft_wrap=True)


def _results(folders: list[Path]) -> Iterator[Path]:
    """Each folder once, as given; of a folder without results of its own those directly in it."""
    seen: set[Path] = set()
    for folder in folders:
        inside = [folder] if (folder / "plan.yaml").is_file() else sorted(plan.parent for plan in folder.glob("*/plan.yaml"))
        if not inside:
            raise RecordError(f"'{folder}' holds no results with a plan.yaml; give folders that 'ringside compare' wrote")
        for one in inside:
            if one.resolve() not in seen:
                seen.add(one.resolve())
                yield one
