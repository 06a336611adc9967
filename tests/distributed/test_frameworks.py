"""Frameworks as they are installed: each starts its ranks as it does for users, and what is said of
its training is true."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import pytest
from torch.utils.data import BatchSampler, DataLoader

from measurement.agent.ringside_agent.reading import configuration
from tests.conftest import REPOSITORY, no_process_stays
from tests.kit.comparisons import compare
from tests.kit.script_comparisons import compare_in
from tests.kit.scripts import SCRIPTS

DDP = "torchrun --nproc-per-node 2 by_framework.py --by ddp"
ACCELERATE = "accelerate launch --config_file accelerate.yaml by_framework.py"
MEASURED = {"launches": 1, "control": "false", "block_steps": 4, "start_timeout_s": 600}


def needs(name):
    """A package; where CI's machine must have it, the test fails without."""
    if importlib.util.find_spec(name) is None:
        (pytest.fail if name in os.environ.get("RINGSIDE_REQUIRE", "") else pytest.skip)(
            f"{name} is not installed: {'pip install deepspeed' if name == 'deepspeed' else 'make frameworks'}"
        )


def test_batches_that_accelerate_shares_out_are_read_as_shared_out():
    needs("accelerate")
    from accelerate.data_loader import BatchSamplerShard

    shards = [
        BatchSamplerShard(BatchSampler(range(32), 4, drop_last=False), 2, rank) for rank in range(2)
    ]
    read = [configuration.of_loader(DataLoader(range(32), batch_sampler=one)) for one in shards]
    assert [
        (one["sampler.replicas"], one["sampler.rank"], one["loader.length"]) for one in read
    ] == [(2, 0, 4), (2, 1, 4)]


@pytest.mark.costly
@pytest.mark.timeout(1800)
def test_deepspeeds_zero_comes_to_ddps_parameters_in_each_stage(tmp_path):
    """It clips gradients by default, which the example turns off."""
    needs("deepspeed")
    zero = {"backend": f"{REPOSITORY / 'examples' / 'deepspeed_zero.py'}:Zero", "transport": "gloo"}
    arms = {
        "ddp": "ddp",
        **{f"zero-{stage}": {**zero, "options": {"stage": stage}} for stage in (1, 2, 3)},
    }
    with no_process_stays():
        ran = compare(
            tmp_path,
            arms=arms,
            workload="digits",
            micro_steps=2,
            local_batch_size=8,
            measurement=MEASURED,
        )
    assert set(ran.statuses.values()) == {"ok"}, ran.done.stdout
    stages = [ran.records[f"zero-{stage}"] for stage in (1, 2, 3)]
    assert all(record.parity.state_distance is not None for record in stages), (
        "parameters were compared"
    )
    whole = ran.records["ddp"].ranks[0]
    assert {record.ranks[0].model["parameters"] for record in stages} == {whole.model["parameters"]}
    kept = [record.ranks[0].kept_bytes for record in stages]
    assert all(one["optimizer_state"] < 0.6 * whole.kept_bytes["optimizer_state"] for one in kept)
    assert [one["parameters"] < 0.6 * whole.kept_bytes["parameters"] for one in kept] == [
        False,
        False,
        True,
    ]


@pytest.mark.costly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("packages", "first", "second", "samples", "differ"),
    [
        pytest.param(
            ["accelerate"],
            DDP,
            f"{ACCELERATE} --by accelerate --batch 4 --accumulate 2",
            8,
            {"accumulation", "loader.batch_size", "sampler.class"},
            id="accelerate",
        ),
        pytest.param(
            ["transformers", "accelerate"],
            "torchrun --nproc-per-node 2 by_framework.py --by trainer",
            f"{ACCELERATE} --by trainer --batch 4 --accumulate 2 --evaluate-every 1000000",
            8,
            {"accumulation", "loader.batch_size"},
            id="trainer",
        ),
        pytest.param(
            ["lightning"],
            "python by_lightning.py",
            "python by_lightning.py --strategy ddp_spawn",
            8,
            set(),
            id="lightning",
        ),
    ],
)
def test_a_framework_runs_at_the_first_try_and_what_is_said_of_it_is_true(
    tmp_path, packages, first, second, samples, differ
):
    """Evaluations and logs lie between steps, and two batches of four are a step of eight."""
    for name in packages:
        needs(name)
    for file in ("by_framework.py", "by_lightning.py", "accelerate.yaml"):
        shutil.copy(SCRIPTS / file, tmp_path)
    settings = [
        word
        for name, value in MEASURED.items()
        for word in ("--set", f"measurement.{name}={value}")
    ]
    typed = [
        "ab",
        first,
        second,
        "--name-a",
        "a",
        "--name-b",
        "b",
        "--steps",
        "12",
        "--allow",
        "all",
        *settings,
    ]
    before = {path.name for path in tmp_path.iterdir()}
    # Lightning begins mpi4py, if it is there
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OPAL_PREFIX": sys.prefix}
    ran = compare_in(tmp_path, *typed, **variables)
    assert ran.statuses == {"a": "ok", "b": "ok"}
    assert {path.name for path in tmp_path.iterdir()} - before == {"cache", "out"}
    for record in ran.records.values():
        assert (record.world_size, record.sample_unit) == (2, "samples")
        assert {step.samples for script in record.scripts for step in script.steps} == {samples}
        assert set(ran.folder.losses(record)["samples"]) == {samples}
    assert differ <= {one["field"] for one in ran.report["differences"]}
    assert ran.report["equality"]["start"]["b"]["verdict"].startswith("equal"), ran.done.stdout
    for false in (
        "no sampler shares",
        "reads the same batches",
        "one batch is global",
        "the agent failed",
        "could not be read",
    ):
        assert false not in ran.done.stdout + ran.done.stderr
