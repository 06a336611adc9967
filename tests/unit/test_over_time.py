"""bencher.json and otava.csv: what the tools read that follow figures over time."""

from __future__ import annotations

import csv
import json

import pytest

from reports import make_report
from tests.kit.results_factory import concluded


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    statuses = {("horovod-mpi", launch): "failed" for launch in range(3)}
    return concluded(tmp_path_factory.mktemp("results") / "one", statuses=statuses)


def bencher(summary):
    """What Bencher's schema (https://bencher.dev/docs/reference/bencher-metric-format) allows, and
    nothing else."""
    figures = json.loads(make_report("bencher").render(summary))
    for benchmark, measures in figures.items():
        assert 0 < len(benchmark) <= 1024
        for measure, metric in measures.items():
            assert 0 < len(measure) <= 64
            assert "value" in metric and metric.keys() <= {"value", "lower_value", "upper_value"}
            assert all(isinstance(value, float) for value in metric.values())
    return figures


def otava(summary):
    rows = make_report("otava").render(summary).decode().splitlines()
    header, row = csv.reader(rows)
    assert len(set(header)) == len(header) == len(row)
    return dict(zip(header, row, strict=True))


def test_bencher_has_each_figure_with_its_interval(comparison):
    figures, result = bencher(comparison), comparison.result("horovod-gloo")
    baseline, candidate, failed = (
        figures[f"{comparison.name}/{arm}"] for arm in ("ddp-gloo", "horovod-gloo", "horovod-mpi")
    )
    assert len(figures) == 3
    assert candidate["throughput-ratio"] == {
        "value": result.throughput_ratio,
        "lower_value": result.ci_low,
        "upper_value": result.ci_high,
    }
    speed = comparison.arm("ddp-gloo").throughput_per_s.value
    assert (baseline["throughput"]["value"], failed) == (speed, {})


@pytest.mark.slow
def test_otava_has_one_row_whose_columns_do_not_depend_on_what_failed(comparison, tmp_path):
    row, ratio = otava(comparison), comparison.result("horovod-gloo").throughput_ratio
    assert (row["time"], row["comparison"]) == (comparison.created_at, comparison.comparison_id)
    assert float(row["horovod-gloo/throughput-ratio"]) == ratio
    assert (row["horovod-mpi/throughput"], row["horovod-mpi/throughput-ratio"]) == ("", "")
    whole = otava(concluded(tmp_path / "whole"))
    assert list(whole) == list(row) and all(whole.values())
