"""The table of what if: each arm in each scenario that the terms can tell of."""

from __future__ import annotations

from collections.abc import Sequence

from reports.schema import WhatIf, WhatIfArm
from reports.tables.table import Row, Table, columns, row
from reports.wording.formatting import NONE, rate, rate_interval, ratio, with_interval

TITLES = {
    "scenario": "with",
    "arm": "arm",
    "throughput": "throughput",
    "interval": "interval",
    "gain": "times measured",
    "fastest": "fastest there",
}


def what_if_table(found: Sequence[WhatIf]) -> Table:
    """One row for each scenario and arm; scenarios left out of which nothing is known."""
    rows = [_row(one, arm) for one in found if not one.is_unknown for arm in one.arms]
    return Table(columns=columns(TITLES, numeric=("throughput", "interval", "gain"), wraps=("scenario", "arm")), rows=rows)


def _row(one: WhatIf, arm: WhatIfArm) -> Row:
    leads = NONE if arm.arm not in one.fastest else "yes" if len(one.fastest) == 1 else "not told apart"
    entries = {
        "scenario": one.scenario,
        "arm": arm.arm,
        "throughput": rate(arm.throughput_per_s),
        "interval": rate_interval(arm.throughput_per_s),
        "gain": with_interval(arm.gain, ratio),
        "fastest": f"not known: {arm.unknown}" if arm.unknown else leads,
    }
    return row(entries, group=one.scenario)


def what_if_caption(found: Sequence[WhatIf]) -> str:
    """What each scenario assumes."""
    said = [f"{one.scenario[0].upper()}{one.scenario[1:]}: {one.assumes}" for one in found if not one.is_unknown]
    return ". ".join(["Worked out from the terms of this comparison, not measured", *said])
