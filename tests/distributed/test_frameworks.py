"""Frameworks as they are installed: each starts its ranks as it does for users, and what is said of
its training is true."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys

import pytest
from torch.utils.data import BatchSampler, DataLoader

from measurement.agent.ringside_agent.reading import configuration
from tests.conftest import REPOSITORY, no_process_stays
from tests.kit.comparisons import compare
from tests.kit.script_comparisons import compare_in
from tests.kit.scripts import SCRIPTS

DDP = "torchrun --nproc-per-node 2 by_framework.py"
ACCELERATE = "accelerate launch --config_file accelerate.yaml by_framework.py"
IN_PARTS = "--batch 4 --accumulate 2"
MEASURED = {"launches": 1, "control": "false", "block_steps": 4, "start_timeout_s": 600}


FALSE = "no sampler shares|reads the same batches|one batch is global|the agent failed|could not be read"


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
    zeros = {f"zero-{stage}": {**zero, "options": {"stage": stage}} for stage in (1, 2, 3)}
    with no_process_stays():
        ran = compare(
            tmp_path,
            arms={"ddp": "ddp", **zeros},
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
    for stage, record in enumerate(stages, start=1):
        kept = record.ranks[0].kept_bytes
        assert kept["optimizer_state"] < 0.6 * whole.kept_bytes["optimizer_state"]
        assert (kept["parameters"] < 0.6 * whole.kept_bytes["parameters"]) == (stage == 3)


@pytest.mark.costly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("packages", "first", "second", "differ"),
    [
        (
            "accelerate",
            f"{DDP} --by ddp",
            f"{ACCELERATE} --by accelerate {IN_PARTS}",
            {"accumulation", "loader.batch_size", "sampler.class"},
        ),
        (
            "transformers accelerate",
            f"{DDP} --by trainer",
            f"{ACCELERATE} --by trainer {IN_PARTS} --evaluate-every 1000000",
            {"accumulation", "loader.batch_size"},
        ),
        (
            "lightning",
            "python by_lightning.py",
            "python by_lightning.py --strategy ddp_spawn",
            set(),
        ),
    ],
    ids=["accelerate", "trainer", "lightning"],
)
def test_a_framework_runs_at_the_first_try_and_what_is_said_of_it_is_true(
    tmp_path, packages, first, second, differ
):
    """Evaluations and logs lie between steps, and two batches of four are a step of eight."""
    for name in packages.split():
        needs(name)
    for file in ("by_framework.py", "by_lightning.py", "accelerate.yaml"):
        shutil.copy(SCRIPTS / file, tmp_path)
    settings = " ".join(f"--set measurement.{name}={value}" for name, value in MEASURED.items())
    flags = f"--name-a a --name-b b --steps 12 --allow all {settings}".split()
    before = {path.name for path in tmp_path.iterdir()}
    # Lightning begins mpi4py, if it is there
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OPAL_PREFIX": sys.prefix}
    ran = compare_in(tmp_path, "ab", first, second, *flags, **variables)
    assert ran.statuses == {"a": "ok", "b": "ok"}
    assert {path.name for path in tmp_path.iterdir()} - before == {"cache", "out"}
    for record in ran.records.values():
        assert (record.world_size, record.sample_unit) == (2, "samples")
        assert {step.samples for script in record.scripts for step in script.steps} == {8}
        assert set(ran.folder.losses(record)["samples"]) == {8}
    assert differ <= {one["field"] for one in ran.report["differences"]}
    assert ran.report["equality"]["start"]["b"]["verdict"].startswith("equal"), ran.done.stdout
    said = ran.done.stdout + ran.done.stderr
    assert not re.search(FALSE, said), said
