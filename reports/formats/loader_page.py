"""io.html: what the loaders alone deliver, one file that opens offline, the answer first. io.json: the record behind it."""

from __future__ import annotations

from pathlib import Path

from measurement.records.loader_record import LoaderRecord
from measurement.records.results import write_result
from reports.charts.loaders import loading_chart
from reports.conclusions.loaders import LoaderDemand
from reports.formats.html import render_page
from reports.tables.loader_table import loader_table, storage_table
from reports.wording.loaders import loader_sentences


def write_loading(record: LoaderRecord, need: LoaderDemand | None, folder: Path) -> None:
    """Write ``io.json``, raw, and ``io.html``."""
    write_result(folder / "io.json", record.model_dump_json(indent=1))
    write_result(folder / "io.html", loading_page(record, need))


def loading_page(record: LoaderRecord, need: LoaderDemand | None) -> bytes:
    """UTF-8 HTML, see ``render_page``."""
    return render_page(
        "io.html.j2",
        figures={"loading": loading_chart(record, need)},
        r=record,
        findings=loader_sentences(record, need),
        table=loader_table(record, need),
        storage=storage_table(record),
        seconds=min(turn.seconds for turn in record.turns),
        rounds=1 + max(turn.round for turn in record.turns),
        needed=need,
    )
