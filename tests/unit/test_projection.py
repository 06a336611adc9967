"""Projection: what is refused, what the interval holds, and what is printed."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from measurement.errors import PlanError
from measurement.records.results import ResultsFolder
from reports import conclude
from reports.projection import Projection, Series, project, refusals, series_of
from reports.statistics.growth_model import fit_growth
from runners.results_commands import project as command
from tests.kit.changed import changed
from tests.kit.results_factory import Truth
from tests.unit.test_study import study_of, write_points

RING = {8: 1.0, 16: 1.1, 32: 1.15, 64: 1.175}
"""A rank's time for a sample with 1, 2, 4, 8 hosts: 1 + 0.2 (hosts - 1) / hosts."""


def series(times, *, per_host=8, name="mine", errors=None):
    figures = {ranks: ranks / time for ranks, time in times.items()}
    return Series(name=name, ranks_per_host=per_host, samples_per_s=figures, errors=errors or {})


def only(times, to, *, per_host=8, **given):
    return project([series(times, per_host=per_host)], to, source="test", **given).series[0]


@pytest.mark.parametrize(
    ("times", "per_host", "to", "message"),
    [
        ({1: 1.0, 4: 1.02, 8: 1.05}, 8, 32, r"too little .* hosts of 8; measure 16 and 32 ranks"),
        ({1: 1.0, 2: 1.1}, 1, 4, "measure 2 and 4 ranks"),
        ({8: 1.0, 12: 1.1, 16: 1.1}, 8, 32, "12 ranks do not fill hosts of 8; leave that size out"),
        (RING, 8, 64, r"\(64 ranks\) is above its largest, 64, .* --fit-up-to"),
        (RING, 8, 100, r"\(100 ranks\) is above its largest, 64, and fills hosts of 8"),
    ],
)
def test_sizes_that_say_too_little_are_refused_with_what_to_measure(times, per_host, to, message):
    projected = project([series(times, per_host=per_host)], [to], source="test")
    assert not projected.series[0].predictions
    (refusal,) = refusals(projected)
    assert re.search(message, refusal), refusal


def test_a_series_whose_largest_size_is_far_from_its_prediction_is_refused():
    projected = only({8: 1.0, 16: 1.02, 32: 1.04, 64: 2.0}, [128])
    assert not projected.predictions
    assert not projected.check.holds
    assert "measure 64 ranks again, and 128" in projected.refusal


@pytest.mark.parametrize(
    "time",
    [lambda h: 1.0, lambda h: 1 + 0.3 * (h - 1) / h, lambda h: 1 + 0.05 * math.log2(h)],
    ids=["linear", "ring", "tree"],
)
def test_a_perfect_series_is_continued(time):
    projected = only({8 * hosts: time(hosts) for hosts in (1, 2, 4, 8)}, [128])
    assert projected.check.holds
    speed, truth = projected.predictions[0].samples_per_s, 128 / time(16)
    assert speed.value == pytest.approx(truth, rel=0.03)
    assert speed.ci_low < truth < speed.ci_high < 1.2 * speed.ci_low


def test_yardsticks_and_efficiency_are_those_by_hand():
    (prediction,) = only(RING, [32], fit_up_to=16).predictions
    assert (prediction.ranks, prediction.hosts) == (32, 4)
    assert prediction.measured == pytest.approx(32 / 1.15)
    assert prediction.efficiency.value == pytest.approx(prediction.samples_per_s.value / 32)


def test_parts_of_a_host_change_nothing():
    whole, other = (only({**part, **RING}, [128]) for part in ({}, {1: 0.3, 2: 0.5, 4: 0.9}))
    assert whole.predictions[0].samples_per_s == other.predictions[0].samples_per_s
    assert (whole.efficiency_of, other.efficiency_of) == (8, 1)


@pytest.mark.slow
def test_the_interval_holds_its_share_of_synthetic_truths():
    inside = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        exchange, hosts = random.uniform(0, 0.5), np.array([1.0, 2.0, 4.0, 16.0])
        noise = 0.006 * (1 + 0.3 * np.log2(hosts)) * random.standard_normal(4)
        logs = np.log(1 + exchange * (hosts - 1) / hosts) + noise
        growth = fit_growth(hosts[:3], np.exp(logs[:3]))
        inside.append(growth.quantile(16, 0.05) <= logs[3] <= growth.quantile(16, 0.95))
    assert np.mean(inside) >= 0.8


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two ranks a host; the candidate loses a little with each size."""
    loses, takes = {1: 1.0, 2: 0.97, 4: 0.95}, {1: 1.0, 2: 1.1, 4: 1.15}
    hosts = {n: {"hosts": ",".join(f"host{host}:2" for host in range(1, n + 1))} for n in loses}
    points = {f"n{n}": {"world_size": 2 * n} | (hosts[n] if n > 1 else {}) for n in loses}
    truths = {
        f"n{n}": Truth(
            ratios={"horovod-gloo": loses[n]}, noise=0.005, drift=0.0, step_s=0.02 * takes[n]
        )
        for n in loses
    }
    study = study_of(points)
    folder = write_points(tmp_path_factory.mktemp("study"), study, truths)
    for point in folder.measured_points(study).values():
        for record in point.records():
            for rank in record.ranks:
                rank.host = f"host{rank.rank // 2 + 1}"
            point.write_record(record)
    return folder


@pytest.fixture(scope="module")
def concluded(measured):
    return conclude(ResultsFolder(measured.root))


@pytest.mark.slow
def test_a_study_is_projected_with_its_ratio(measured, capsys):
    command(measured.root, to="16,32")
    assert "horovod-gloo / ddp-gloo" in capsys.readouterr().out
    projection = Projection.model_validate_json((measured.root / "projection.json").read_text())
    assert [(row.series, row.ranks_per_host, row.used) for row in projection.series] == [
        (name, 2, [2, 4, 8]) for name in ("ddp-gloo", "horovod-gloo")
    ]
    assert [row.ranks for row in projection.ratios] == [16, 32]
    assert all(row.ratio.ci_low < 0.95 < row.ratio.ci_high for row in projection.ratios)


@pytest.mark.slow
def test_the_report_of_runs_is_projected_from_the_hosts_that_were_seen(tmp_path, concluded, capsys):
    points = [changed(point, asked_hosts=None) for point in concluded.points]
    (tmp_path / "comparison.json").write_text(changed(concluded, points=points).model_dump_json())
    command(tmp_path, to="16", form="json")
    assert [row["ranks_per_host"] for row in json.loads(capsys.readouterr().out)["series"]] == [
        2,
        2,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_study", "of_point", "message"),
    [
        ({"scaling": "strong"}, {}, "strong scaling"),
        ({}, {"local_batch_size": 4}, r"points have \[4, 32\] samples"),
        ({}, {"world_size": 2}, r"\[2, 2, 8\] ranks"),
    ],
)
def test_points_that_differ_in_more_than_ranks_are_refused(concluded, of_study, of_point, message):
    first, second, third = concluded.points
    points = [first, changed(second, **of_point), third]
    with pytest.raises(PlanError, match=message):
        series_of(changed(concluded, points=points, **of_study))
