"""Throughput by hand: all samples over the sum of the slowest rank's block times, the same wherever
it is shown."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from reports import conclude
from reports.conclusions.steps import throughput_interval, throughput_per_s
from runners.standalone.tables import throughput_table
from tests.kit.results_factory import write_results


def blocks(*launches):
    """Blocks of (samples, seconds), launch by launch."""
    rows = [(launch, *block) for launch, listed in enumerate(launches) for block in listed]
    return pd.DataFrame(rows, columns=["launch", "samples", "block_s"])


def test_unequal_blocks_count_by_their_time():
    """100 samples in 1 s and 100 in 4 s are 200 in 5 s, not the middle of 100 and 25 per second."""
    table = blocks([(100, 1.0), (100, 4.0)])
    interval = throughput_interval(table, confidence=0.95)
    assert throughput_per_s(table) == interval.value == 40.0
    assert interval.bounds is None, "one launch has no interval however many blocks it has"


@pytest.mark.slow
def test_the_interval_covers_the_ratio_of_sums():
    """Blocks of unequal length in launches of unequal size; the truth is that of endless measuring:
    100 per second."""
    covered = 0
    for seed in range(400):
        random, launches = np.random.default_rng(seed), []
        for size in (40, 25, 40):
            samples = random.choice([100.0, 300.0], size=size)
            rate = 100 * np.exp(0.05 * random.standard_normal())
            seconds = samples * random.gamma(4, 1 / 4, size=size) / rate
            launches.append(list(zip(samples, seconds, strict=True)))
        interval = throughput_interval(blocks(*launches), confidence=0.95)
        covered += interval.ci_low <= 100 <= interval.ci_high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.slow
def test_the_standing_alone_table_and_the_report_show_the_same_number_for_the_same_record(tmp_path):
    folder = write_results(tmp_path, ratios={}, launches=1, rounds=4, local_every=0)
    record = next(record for record in folder.records() if record.arm == "ddp-gloo")
    console = Console(record=True, width=120)
    console.print(throughput_table(record, folder.steps(record)))
    *_, total = (line for line in console.export_text().splitlines() if " all " in line)
    assert f"{conclude(folder).arm('ddp-gloo').throughput_per_s.value:,.1f}" in total.split()
