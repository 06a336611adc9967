"""Throughput by hand: all samples over the sum of the slowest rank's block times, the same wherever
it is shown."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from measurement.records.results import ResultsFolder
from reports import conclude
from reports.conclusions.blocks import throughput_interval, throughput_per_s
from reports.tables.arm_tables import verdict_table
from reports.wording.formatting import rate
from runners.standalone.tables import cases_table, throughput_table
from tests.kit import corpus
from tests.kit.results_factory import write_results


def blocks(*launches):
    """Blocks of (samples, seconds), launch by launch."""
    rows = [
        (launch, samples, seconds)
        for launch, launch_blocks in enumerate(launches)
        for samples, seconds in launch_blocks
    ]
    return pd.DataFrame(rows, columns=["launch", "samples", "block_s"])


def test_unequal_blocks_count_by_their_time():
    """100 samples in 1 s and 100 in 4 s are 200 in 5 s, not the middle of 100 and 25 per second."""
    table = blocks([(100, 1.0), (100, 4.0)])
    assert throughput_per_s(table) == 40.0
    assert throughput_interval(table, confidence=0.95).value == 40.0


def test_one_launch_has_no_interval_however_many_blocks_it_has():
    interval = throughput_interval(blocks([(10, 2.0), (10, 1.0)]), confidence=0.95)
    assert (interval.value, interval.bounds) == (20 / 3, None)


def test_equal_blocks_have_an_interval_without_width_whatever_their_lengths():
    interval = throughput_interval(blocks([(10, 2.0)] * 3, [(20, 4.0)]), confidence=0.95)
    assert (interval.ci_low, interval.value, interval.ci_high) == pytest.approx((5.0, 5.0, 5.0))


@pytest.mark.slow
@pytest.mark.parametrize("launches", [3, 8])
def test_the_interval_covers_the_ratio_of_sums(launches):
    """Blocks of unequal length in launches of unequal size; the truth is that of endless measuring:
    100 per second."""
    covered = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        drawn = []
        for size in (40, 25, 40, 25, 40, 25, 40, 25)[:launches]:
            samples = random.choice([100.0, 300.0], size=size)
            speed = np.exp(0.05 * random.standard_normal())
            drawn.append(
                list(
                    zip(
                        samples,
                        samples * random.gamma(4, 1 / 4, size=size) / (100 * speed),
                        strict=True,
                    )
                )
            )
        interval = throughput_interval(blocks(*drawn), confidence=0.95)
        covered += interval.ci_low <= 100 <= interval.ci_high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.slow
def test_the_standing_alone_table_and_the_report_show_the_same_number_for_the_same_record(tmp_path):
    folder = write_results(tmp_path, ratios={}, launches=1, rounds=4, local_every=0)
    record = next(record for record in folder.records() if record.arm == "ddp-gloo")
    arm = conclude(folder).arm("ddp-gloo")
    console = Console(record=True, width=120)
    console.print(throughput_table(record, folder.steps(record)))
    total = next(
        line for line in console.export_text().splitlines() if line.strip(" │").startswith("all")
    )
    assert f"{arm.throughput_per_s.value:,.1f}" in total.split()
    shown = {
        row.entries[0].text: row.entries[3].narrow for row in verdict_table(conclude(folder)).rows
    }
    assert shown["ddp-gloo"] == rate(arm.throughput_per_s)


@pytest.mark.slow
def test_the_standing_alone_table_of_cases_has_a_row_for_each(tmp_path):
    corpus.unpack(tmp_path)
    folder = ResultsFolder(tmp_path / "micro-benchmark")
    record = folder.records()[0]
    made = cases_table(record, folder.steps(record))
    assert made.row_count == len(record.cases) > 1
