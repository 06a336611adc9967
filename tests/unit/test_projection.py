"""Projection: what the file's reader says, what is refused, what the interval holds, and what is printed."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from measurement.errors import PlanError, RecordError
from measurement.records.results import ResultsFolder
from reports.compose_study import conclude_study
from reports.projection.growth_model import fit_growth
from reports.projection.project import Projection, project
from reports.projection.projection_tables import notes, projection_csv, refusals
from reports.projection.series import Series, has_hosts, read_series, series_of
from reports.schema import HostFigures
from runners.project_command import project as command
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


def write(tmp_path, text, name="mine.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_columns_may_come_in_any_order_and_sizes_too(tmp_path):
    path = write(
        tmp_path, "source,samples_per_s, ranks ,series,ranks_per_host\nx, 5099.42,16,b,8\nx,2721.98,8,b,8\nx,1e3,8,a,8\n\n"
    )
    assert read_series(path) == [
        Series(name="b", ranks_per_host=8, samples_per_s={8: 2721.98, 16: 5099.42}),
        Series(name="a", ranks_per_host=8, samples_per_s={8: 1000.0}),
    ]
    assert has_hosts(path)
    plain = write(tmp_path, "\ufeffranks,samples_per_s\n2,100\n", name="plain.csv")
    assert read_series(plain) == [Series(name="plain", ranks_per_host=1, samples_per_s={2: 100.0})]
    assert not has_hosts(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ranks,throughput\n8,100\n", r"no column 'samples_per_s' \(it has 'ranks, throughput'\)"),
        ("rank,samples_per_s\n8,100\n", "no column 'ranks'; rename 'rank'?"),
        ("ranks;samples_per_s\n8;100\n", "divided by commas"),
        ("", "no column 'ranks'"),
        ("ranks,samples_per_s\n", "holds no line below its header"),
        ("ranks,samples_per_s\n8,-100\n", "line 2: samples_per_s is '-100'; give a number above 0"),
        ("ranks,samples_per_s\n8,nan\n", "samples_per_s is 'nan'"),
        ("ranks,samples_per_s\n8\n", "samples_per_s is ''"),
        ("ranks,samples_per_s\n8,872 img/s\n", "samples_per_s is '872 img/s'; .* without a unit or commas"),
        ('ranks,samples_per_s\n8,"1,449"\n', "samples_per_s is '1,449'"),
        ("ranks,samples_per_s\n8.5,100\n", "line 2: ranks is '8.5'; give a whole number from 1"),
        (f"ranks,samples_per_s\n{'9' * 5000},100\n", "ranks is '9999"),
        ("ranks,samples_per_s\n8,1e300\n", "samples_per_s is '1e300'"),
        (f"ranks,samples_per_s\n{'8' * 200_000},1\n", "cannot be read: field larger than"),
        ("ranks,samples_per_s,ranks_per_host\n8,100,0\n", "ranks_per_host is '0'"),
        ("ranks,samples_per_s\n8,100\n16,190\n8,101\n", "line 4: series 'mine' has 8 ranks twice"),
        ("ranks,samples_per_s,ranks_per_host\n8,100,8\n16,190,4\n", "ranks_per_host is 4, and 8 in other lines of series 'mine'"),
        ("ranks,samples_per_s\n8,310\n16,307\n32,306\n", "as if it were that of one rank"),
    ],
)
def test_what_the_reader_refuses(tmp_path, text, message):
    with pytest.raises(PlanError, match=message):
        read_series(write(tmp_path, text))


def test_a_file_that_is_not_there_is_told_with_an_example(tmp_path):
    with pytest.raises(PlanError, match=r"cannot be read.*\n.*ranks,samples_per_s"):
        read_series(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("times", "per_host", "to", "message"),
    [
        ({1: 1.0, 4: 1.02, 8: 1.05}, 8, [32], r"\(1, 4, 8 ranks\) lie within one host of 8.*measure 16 and 32 ranks"),
        ({1: 1.0}, 1, [4], "measure 2 and 4 ranks"),
        ({4: 1.0, 16: 1.1}, 8, [32], "only size of several hosts is 16 ranks; measure 32 ranks, too, or 8"),
        ({1: 1.0, 2: 1.1}, 1, [4], "only size of several hosts is 2 ranks; measure 4 ranks, too$"),
        ({8: 1.0, 12: 1.1, 16: 1.1}, 8, [32], "12 ranks do not fill hosts of 8; leave that size out"),
        (RING, 8, [64], "64 ranks are not more than its largest size, 64; .* --fit-up-to"),
        (RING, 8, [100], "100 ranks do not fill hosts of 8; ask for a multiple"),
    ],
)
def test_sizes_that_say_too_little_are_refused_with_what_to_measure(times, per_host, to, message):
    told = only(times, to, per_host=per_host)
    assert not told.predictions
    (said,) = refusals(project([series(times, per_host=per_host)], to, source="test"))
    assert re.search(message, said), said


def test_no_size_is_left():
    assert "no size is left" in only(RING, [32], fit_up_to=4).refusal


def test_what_the_smaller_sizes_do_not_foretell_is_not_projected():
    told = only({8: 1.0, 16: 1.02, 32: 1.04, 64: 2.0}, [128])
    assert not told.predictions
    assert told.check is not None and not told.check.holds
    assert "8, 16, 32 ranks) foretell" in told.refusal and "measure 64 ranks again, and 128" in told.refusal


@pytest.mark.parametrize(
    "time",
    [lambda h: 1.0, lambda h: 1 + 0.3 * (h - 1) / h, lambda h: 1 + 0.05 * math.log2(h)],
    ids=["linear", "ring", "tree"],
)
def test_a_perfect_series_is_continued(time):
    told = only({8 * hosts: time(hosts) for hosts in (1, 2, 4, 8)}, [128])
    (found,) = told.predictions
    assert told.check is not None and told.check.holds
    assert found.samples_per_s.value == pytest.approx(128 / time(16), rel=0.03)
    assert found.samples_per_s.ci_low < 128 / time(16) < found.samples_per_s.ci_high
    assert found.samples_per_s.ci_high / found.samples_per_s.ci_low < 1.2


def test_yardsticks_and_efficiency_by_hand():
    (found,) = only(RING, [32], fit_up_to=16).predictions
    assert (found.ranks, found.hosts) == (32, 4)
    assert found.hold == pytest.approx(32 / 1.1)
    assert found.ring == pytest.approx(32 / 1.15)
    assert found.measured == pytest.approx(32 / 1.15)
    assert found.efficiency.value == pytest.approx(found.samples_per_s.value / 32)
    assert found.samples_per_s.ci_low < found.measured < found.samples_per_s.ci_high


def test_parts_of_a_host_change_nothing():
    one, other = (only({**part, **RING}, [128]) for part in ({}, {1: 0.3, 2: 0.5, 4: 0.9}))
    assert one.predictions[0].samples_per_s == other.predictions[0].samples_per_s
    assert one.used == other.used == list(RING)
    assert (one.efficiency_of, other.efficiency_of) == (8, 1)


@pytest.mark.slow
def test_the_interval_grows_with_the_distance_and_with_unsure_figures():
    near, far = only(RING, [128, 1024]).predictions
    widths = [math.log(one.samples_per_s.ci_high / one.samples_per_s.ci_low) for one in (near, far)]
    assert widths[0] < widths[1]
    unsure = project([series(RING, errors=dict.fromkeys(RING, 0.05))], [128], source="test").series[0].predictions[0]
    assert math.log(unsure.samples_per_s.ci_high / unsure.samples_per_s.ci_low) > widths[0]


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


def test_the_ratio_of_two_series():
    fast, slow = series(RING, name="fast"), series({ranks: 1.25 * time for ranks, time in RING.items()}, name="slow")
    found = project([fast, slow], [128], source="test", pairs=[("fast", "slow"), ("fast", "refused")])
    (one,) = found.ratios
    assert (one.candidate, one.baseline, one.ranks) == ("fast", "slow", 128)
    assert one.ratio.value == pytest.approx(1.25, rel=0.01)
    assert one.ratio.ci_low < 1.25 < one.ratio.ci_high


def test_csv_has_its_columns_and_a_line_for_each_prediction():
    found = project([series(RING, name="a, b"), series({8: 1.0}, name="alone")], [128, 256], source="test")
    header, *lines = projection_csv(found).splitlines()
    assert header == "series,ranks,samples_per_s,low,high,hold,ring"
    assert [line.rsplit(",", 6)[:2] for line in lines] == [['"a, b"', "128"], ['"a, b"', "256"]]
    told = found.series[0].predictions
    figures = [[one.samples_per_s.value, *one.samples_per_s.bounds, one.hold, one.ring] for one in told]
    assert [[float(word) for word in line.split(",")[3:]] for line in lines] == [pytest.approx(row, rel=1e-5) for row in figures]


def test_the_command_prints_what_it_can_and_says_what_it_cannot(tmp_path, capsys):
    lines = "".join(f"good,{ranks},{ranks / time},8\n" for ranks, time in RING.items())
    path = write(tmp_path, f"series,ranks,samples_per_s,ranks_per_host\n{lines}alone,4,3.9,8\nalone,8,7.6,8\n")
    command(path, to="128", form="csv")
    said = capsys.readouterr()
    assert [line.split(",")[:2] for line in said.out.splitlines()[1:]] == [["good", "128"]]
    assert "series 'alone' is not projected: all its sizes (4, 8 ranks) lie within one host" in said.err
    with pytest.raises(PlanError, match=r"series 'good' is not projected: .*; series 'alone' is not projected"):
        command(path, to="32")
    for wrong in ("", "32,", "-1", "many", "9" * 5000):
        with pytest.raises(PlanError, match="--to is"):
            command(path, to=wrong)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two ranks a host; the candidate loses a little with each size."""
    hosts = {count: ",".join(f"host{n}:2" for n in range(1, count + 1)) for count in (2, 4)}
    points = {f"n{count}": {"world_size": 2 * count, "hosts": listed} for count, listed in hosts.items()}
    study = study_of({"n1": {"world_size": 2}, **points})
    ratios = {"n1": 1.0, "n2": 0.97, "n4": 0.95}
    truths = {
        name: Truth(ratios={"horovod-gloo": ratio}, noise=0.005, drift=0.0, step_s=0.02 * time)
        for (name, ratio), time in zip(ratios.items(), (1.0, 1.1, 1.15), strict=True)
    }
    return write_points(tmp_path_factory.mktemp("study"), study, truths)


@pytest.fixture(scope="module")
def concluded(measured):
    return conclude_study(ResultsFolder(measured.root))


@pytest.mark.slow
def test_a_study_is_projected_with_its_ratio(measured, concluded, capsys):
    command(measured.root, to="16,32")
    said = capsys.readouterr().out
    assert "horovod-gloo / ddp-gloo" in said
    found = Projection.model_validate_json((measured.root / "projection.json").read_text())
    assert [(one.series, one.ranks_per_host, one.used) for one in found.series] == [
        (name, 2, [2, 4, 8]) for name in ("ddp-gloo", "horovod-gloo")
    ]
    assert [one.ranks for one in found.ratios] == [16, 32]
    assert all(one.ratio.ci_low < 0.95 < one.ratio.ci_high for one in found.ratios)
    assert len(notes(found)) == 3
    again, pairs = series_of(concluded)
    assert pairs == [("horovod-gloo", "ddp-gloo")]
    assert all(0 < error < 0.1 for one in again for error in one.errors.values())


@pytest.mark.slow
def test_the_report_of_runs_is_projected_from_the_hosts_that_were_seen(tmp_path, concluded, capsys):
    runs = concluded.model_copy(deep=True)
    for point in runs.points:
        listed = (point.hosts or "here:2").split(",")
        point.hosts = None
        for arm in point.arms:
            seen = [HostFigures(host=host, ranks=2, throughput_per_s=1.0) for host in listed]
            arm.by_rank = changed(arm.by_rank, hosts=seen)
    (tmp_path / "comparison.json").write_text(runs.model_dump_json())
    command(tmp_path, to="16", form="csv")
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["ddp-gloo", "horovod-gloo"]
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(RecordError, match="is no report of runs of several sizes"):
        command(tmp_path, to="16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scaling": "strong"}, "strong scaling"),
        ({"points.1.local_batch_size": 4}, "points 'n1' and 'n2' have"),
        ({"points.1.hosts": "host1:3,host2:1"}, "unlike numbers of ranks"),
        ({"points.1.world_size": 2}, "has 2 ranks, as another point has"),
    ],
)
def test_points_that_differ_in_more_than_ranks_are_refused(concluded, change, message):
    study = concluded.model_copy(deep=True)
    for key, value in change.items():
        target = study if "." not in key else study.points[int(key.split(".")[1])]
        setattr(target, key.split(".")[-1], value)
    with pytest.raises(PlanError, match=message):
        series_of(study)
