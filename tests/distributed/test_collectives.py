"""The micro-benchmark on real ranks: every operation through both libraries, what one lacks, wrong
values, a group, alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import HOROVOD, ended_well, needs_horovod
from tests.kit.commands import HOROVODRUN, run
from tests.kit.comparisons import compare
from workloads.operations import OPERATIONS

pytestmark = pytest.mark.usefixtures("no_processes_left")
WRONG = Path(__file__).parent / "plugins" / "wrong_sums.py"
REASON = "not offered by Horovod"


def compare_operations(tmp_path, arms, options, *, rounds=2, **changes):
    what = {"workload": "collectives", "workload_options": options, "arms": {"ddp": "ddp", **arms}}
    return compare(tmp_path, **what, measurement={"rounds": rounds, "warmup_steps": 0}, **changes)


EVERYTHING = {
    "operations": "all",
    "sizes": ["3 KiB"],
    "dtype": ["float32", "bfloat16"],
    "op": ["sum", "max", "avg"],
    "root": 1,
}
NOT_IN_HOROVOD = ["reduce", "gather", "scatter", "send_recv", "send_recv_last"]
"""https://horovod.readthedocs.io/en/stable/api.html#module-horovod.torch: collectives only, and no
reduction to one rank."""


def lacks(library, case):
    """Whether a library's documentation says that it does not have a case."""
    name, *more = case.operation.split()
    return library != "ddp" and (
        name in NOT_IN_HOROVOD or "bfloat16" in more or (name == "reduce_scatter" and "max" in more)
    )


@needs_horovod
@pytest.mark.costly
def test_all_that_the_libraries_document_works_and_nothing_else_is_left_out(tmp_path):
    arms = {
        "ddp-mpi": {"backend": "ddp", "transport": "mpi", "launcher": "mpirun"},
        "horovod": HOROVOD,
    }
    ran = compare_operations(tmp_path, arms, EVERYTHING, world_size=3, rounds=1)
    records = ran.records
    for record in records.values():
        assert record.status == "ok" and record.parity.passed, record.error
        missing = {case.name for case in record.cases if lacks(record.backend, case)}
        assert set(record.not_offered) == missing, record.arm
        offered = {case.name: case for case in record.cases if case.name not in missing}
        assert {block.case for block in record.blocks} == offered.keys()
        steps = ran.folder.steps(record)
        sent = steps[steps["rank"] == 0].groupby("case")["samples"].unique().explode().to_dict()
        assert sent == {name: one.message_bytes * one.messages for name, one in offered.items()}
    notes = {
        result["case"]: result["note"]
        for result in ran.report["results"]
        if result["candidate"] == "horovod"
    }
    assert records["horovod"].not_offered.items() <= notes.items()
    assert {case.operation.split()[0] for case in records["ddp"].cases} == set(OPERATIONS)
    # two of the three ranks: a group of torch's, a process set of Horovod's
    for name in ("ddp", "horovod"):
        steps = ran.folder.steps(records[name])
        of_groups = steps[steps["case"].str.startswith("group_all_reduce")]
        seconds = of_groups.groupby("rank")["step_s"].sum()
        assert seconds[2] < min(seconds[0], seconds[1])


def test_a_wrong_value_makes_the_arm_wrong_before_its_time_counts(tmp_path):
    arms = {name.lower(): f"{WRONG}:{name}" for name in ("Wrong", "WrongLater")}
    options = {"operations": ["all_reduce"], "sizes": ["1 KiB", "4 KiB"]}
    ran = compare_operations(tmp_path, arms, options, code=1)
    records = ran.records
    assert records["ddp"].status == "ok"
    assert "all_reduce/1KiB gives 8 where 7 is right" in records["wrong"].error.message
    assert records["wronglater"].parity.passed and not records["wrong"].parity.passed
    assert "KiB gives 8 where 7 is right" in records["wronglater"].error.message
    for arm in ("wrong", "wronglater"):
        assert (records[arm].status, records[arm].blocks) == ("wrong", [])
    assert all(result["throughput_ratio"] is None for result in ran.report["results"])


@needs_horovod
@pytest.mark.costly
def test_standing_alone_it_prints_latencies_and_what_is_not_offered(tmp_path):
    options = ["operations=[all_reduce, send_recv]", "sizes=[1KiB]"]
    options = [word for option in options for word in ("--workload-option", option)]
    arguments = f"--workload collectives --blocks 2 --block-steps 5 -o {tmp_path}".split()
    done = ended_well(
        run("horovodrun", "--gloo", *HOROVODRUN, "-m", "runners.hvd", *options, *arguments)
    )
    assert ", bus " in done.stdout and "B/s" in done.stdout and REASON in done.stdout
    (record,) = ResultsFolder(tmp_path).records()
    assert [block.case for block in record.blocks] == ["all_reduce/1KiB"] * 2
    assert record.not_offered == {"send_recv/1KiB": REASON}
