"""The micro-benchmark on real ranks: every operation through both libraries, what one lacks, wrong values, a group, alone."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import FORKED, needs_horovod, ringside_here, write_plan
from tests.kit.commands import HOROVODRUN, run
from workloads.operations import OPERATIONS

pytestmark = pytest.mark.usefixtures("no_processes_left")
WRONG = Path(__file__).parent / "plugins" / "wrong_sums.py"
HOROVOD = {"backend": "horovod", "transport": "gloo"}
REASON = "not offered by Horovod"


def compare(tmp_path, *, arms, options, **changes):
    measurement = {"rounds": 2, "control": False, "warmup_steps": 0} | changes.pop("measurement", {})
    arms = {"ddp": {"backend": "ddp", "transport": "gloo", "launcher": FORKED}, **arms}
    plan = write_plan(tmp_path, workload="collectives", workload_options=options, arms=arms, measurement=measurement, **changes)
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    return done, {record.arm: record for record in ResultsFolder(tmp_path / "out").records()}


@pytest.mark.costly
@needs_horovod
def test_every_operation_is_checked_measured_and_reported(tmp_path):
    """Both sizes of all six operations; Horovod has nothing from rank to rank."""
    options = {"sizes": ["1 KiB", "64 KiB"]}
    done, records = compare(tmp_path, arms={"horovod": HOROVOD}, options=options)
    assert done.returncode == 0, done.stderr + done.stdout
    cases = [case.name for case in records["ddp"].cases]
    missing = {name for name in cases if name.startswith(("send_recv", "isend_irecv"))}
    assert (len(cases), len(missing)) == (12, 4)
    for arm, offered in (("ddp", set(cases)), ("horovod", set(cases) - missing)):
        record = records[arm]
        assert record.status == "ok" and record.parity.passed and record.exit_codes == [0], record.error
        assert record.not_offered == dict.fromkeys(set(cases) - offered, REASON)
        assert sorted(block.case for block in record.blocks) == sorted([*offered, *offered])
        assert {block.kind for block in record.blocks} == {"sync"}
        steps = ResultsFolder(tmp_path / "out").steps(record)
        assert (steps["backward_s"] == steps["step_s"]).all() and (steps["step_s"] > 0).all()
        sent = steps[steps["rank"] == 0].groupby("case")["samples"].unique().explode().to_dict()
        assert sent == {case.name: case.message_bytes * case.messages for case in record.cases if case.name in offered}
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    ratios = {(result["candidate"], result["case"]): result for result in found["results"]}
    assert set(ratios) == {("horovod", case) for case in cases}
    assert all(ratios["horovod", case]["note"] == REASON for case in missing)
    assert {ratios["horovod", case]["pairs"] for case in cases if case not in missing} == {2}
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "report.csv").read_text())))
    assert {row["case"] for row in rows if row["not_offered"] == REASON} == missing
    assert all(float(row["busbw_bytes_per_s"]) > 0 for row in rows if row["not_offered"] == "")
    assert any(line.endswith("not offered: 4") for line in found["findings"]) and REASON in done.stdout
    assert REASON in (tmp_path / "out" / "report.md").read_text()


EVERYTHING = {"operations": "all", "sizes": ["3 KiB"], "dtype": ["float32", "bfloat16"], "op": ["sum", "max", "avg"], "root": 1}
IN_PLACE_ONLY = ("all_reduce", "broadcast")
"""torch.distributed's are in place; https://docs.pytorch.org/docs/stable/distributed.html."""
NOT_IN_HOROVOD = ("reduce", "gather", "scatter", "send_recv", "send_recv_last", "isend_irecv", "isend_irecv_last", "root_isend")
"""https://horovod.readthedocs.io/en/stable/api.html#module-horovod.torch: collectives only, and no reduction to one rank."""


def lacks(library, case):
    """Whether a library's documentation says that it does not have a case."""
    name, *more = case.operation.split()
    if library == "ddp":
        return name in IN_PLACE_ONLY and "out-of-place" in more
    return name in NOT_IN_HOROVOD or "bfloat16" in more or "in-place" in more or (name == "reduce_scatter" and "max" in more)


@needs_horovod
@pytest.mark.costly
def test_all_that_the_libraries_document_works_and_nothing_else_is_left_out(tmp_path):
    arms = {
        "ddp-mpi": {"backend": "ddp", "transport": "mpi", "launcher": "mpirun"},
        "horovod": HOROVOD,
    }
    options = {**EVERYTHING, "in_place": "both"}
    done, records = compare(tmp_path, arms=arms, options=options, world_size=3, measurement={"rounds": 1})
    assert done.returncode == 0, done.stderr + done.stdout
    for record in records.values():
        assert record.status == "ok" and record.parity.passed, record.error
        missing = {case.name for case in record.cases if lacks(record.backend, case)}
        assert set(record.not_offered) == missing, record.arm
        assert {block.case for block in record.blocks} == {case.name for case in record.cases} - missing
    assert {case.operation.split()[0] for case in records["ddp"].cases} == set(OPERATIONS)
    for name in ("ddp", "horovod"):  # two of the three ranks: a group of torch's, a process set of Horovod's
        steps = ResultsFolder(tmp_path / "out").steps(records[name])
        seconds = steps[steps["case"].str.startswith("group_all_reduce")].groupby("rank")["step_s"].sum()
        assert seconds[2] < min(seconds[0], seconds[1])
    assert {case.busbw_factor for case in records["ddp"].cases if case.operation.startswith("group_all_reduce")} == {1.0}


@pytest.mark.costly
def test_a_wrong_value_makes_the_arm_wrong_before_its_time_counts(tmp_path):
    arms = {
        name.lower(): {"backend": f"{WRONG}:{name}", "transport": "gloo", "launcher": FORKED} for name in ("Wrong", "WrongLater")
    }
    options = {"operations": ["all_reduce"], "sizes": ["1 KiB", "4 KiB"]}
    done, records = compare(tmp_path, arms=arms, options=options)
    assert done.returncode == 1, done.stderr
    assert records["ddp"].status == "ok"
    assert "all_reduce/1KiB gives 8 where 7 is right" in records["wrong"].error.message
    assert not records["wrong"].parity.passed
    assert records["wronglater"].parity.passed
    assert "KiB gives 8 where 7 is right" in records["wronglater"].error.message
    for arm in ("wrong", "wronglater"):
        assert (records[arm].status, records[arm].blocks) == ("wrong", [])
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert all(result["throughput_ratio"] is None for result in found["results"])


@needs_horovod
@pytest.mark.costly
def test_standing_alone_it_prints_latencies_and_what_is_not_offered(tmp_path):
    options = ["--workload-option", "operations=[all_reduce, send_recv]", "--workload-option", "sizes=[1KiB]"]
    arguments = ["--workload", "collectives", *options, "--blocks", "2", "--block-steps", "5", "-o", tmp_path]
    done = run("horovodrun", "--gloo", *HOROVODRUN, "-m", "runners.hvd", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "busbw" in done.stdout and "B/s" in done.stdout and REASON in done.stdout
    (record,) = ResultsFolder(tmp_path).records()
    assert [block.case for block in record.blocks] == ["all_reduce/1KiB"] * 2
    assert record.not_offered == {"send_recv/1KiB": REASON}
