"""The command that an arm stands for: what is pasted is what is measured."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from measurement.agent.ringside_agent.place import World
from measurement.plans.sections import Arm
from runners.flags import command, values_of
from runners.hosts.placement import Placement
from runners.launchers import HostSlots
from runners.planning.arms import job_of, resolve_arms
from runners.planning.command_place import CommandPlace
from runners.planning.standalone_flags import FLAGS, MODULES, RunOptions, plan_content
from runners.standalone.run import resolve_plan
from tests.conftest import ended_well, needs_horovod, ringside_here, write_plan
from tests.kit.plans import tiny

HERE = Placement(hosts=(HostSlots(host="localhost", slots=2),), cores={"localhost": 2})


def setup_of(arm, **changes):
    plan = tiny(arms={"a": arm}, **changes)
    return plan, resolve_arms(plan)["a"]


def pasted_job(line, setup):
    """The job of a rank that is started by this line."""
    words = shlex.split(line)
    at = max(words.index(module) for module in MODULES.values() if module in words)
    app, seen = typer.Typer(), []
    app.command()(command(seen.append, FLAGS, text=""))
    result = CliRunner().invoke(app, words[at + 1 :])
    assert result.exit_code == 0, result.output
    (given,) = seen
    backend = next(name for name, module in MODULES.items() if module == words[at])
    backend = values_of(given, RunOptions).get("backend") or backend
    ranks = setup.plan.world_size
    world = World(
        world_size=ranks, local_world_size=ranks, gives=setup.launcher.gives(setup.transport)
    )
    plan = resolve_plan(backend, plan_content(given), values_of(given, Arm), world)
    arm = plan.arms[plan.baseline]
    return job_of(plan, setup.name, arm, transport=arm.transport)


SPEED = {"channels_last": True, "compile": True}
TRAINING = {
    "epochs": 3,
    "target_accuracy": 0.9,
    "learning_rate_scaling": "linear",
    "warmup_epochs": 1.5,
}


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        (
            {
                "backend": "ddp",
                "launcher": "spawn",
                "options": {"bucket_cap_mb": 12.5, "static_graph": True},
            },
            {"seed": 7},
        ),
        pytest.param(
            {
                "backend": "horovod",
                "options": {"compression": "fp16", "fusion_threshold_mb": 8},
                "environment": {"A": "x y"},
            },
            {"precision": "amp-bf16", "max_gradient_norm": 1e-5, "micro_steps": 2},
            marks=needs_horovod,
        ),
        ({"backend": "fsdp2"}, {"speed": SPEED, "device": "cpu", "threads": 1, "affinity": "none"}),
        (
            {"backend": "single"},
            {"workload": "synthetic", "workload_options": {"image_size": 8}, "world_size": 1},
        ),
        ({"backend": "ddp"}, {"training": TRAINING, "measurement": {}}),
        ({"backend": "ddp"}, {"workload": "all_reduce", "workload_options": {"max_bytes": 64}}),
    ],
)
def test_what_is_pasted_is_what_is_measured(arm, changes):
    plan, setup = setup_of(arm, **changes)
    for launch in range(2):
        job = job_of(
            setup.plan,
            setup.name,
            setup.arm,
            transport=setup.transport,
            launch=launch,
            global_plan=plan,
        )
        assert pasted_job(setup.command(HERE, job.seed), setup) == job


def test_a_line_says_where_it_starts_and_what_it_needs_and_no_secret(monkeypatch):
    monkeypatch.setenv("PATH", "/venv/bin:/bin")
    place = CommandPlace(typed_in=Path("/x y"))
    line = place.shell_line(
        "run x", environment={"A": "b c", "PATH": "none"}, path="/own bin:/venv/bin", host="host1"
    )
    assert line == "cd '/x y' && PATH='/own bin':\"$PATH\" A='b c' run x  # on host1"
    arm = {"backend": "ddp", "environment": {"A": "b c"}}
    _, setup = setup_of(arm, workload_options={"api_token": "planted"})
    hosts = tuple(HostSlots(host=host, slots=1) for host in ("h1", "h2"))
    lines = setup.command(Placement(hosts=hosts, cores={"h1": 1, "h2": 1}), 1).splitlines()
    for node, line in enumerate(lines):
        place_of_node = f"--nnodes 2 --node-rank {node} --master-addr h1 --master-port 29500"
        assert f"A='b c' torchrun {place_of_node}" in line and line.endswith(f"# on h{node + 1}")
        assert "--workload-option 'api_token=***'" in line and "planted" not in line


def test_a_dry_run_shows_each_arms_command_and_starts_nothing(tmp_path):
    plan = write_plan(tmp_path, arms=["ddp", "fsdp2"])
    done = ended_well(ringside_here("compare", plan, "--dry-run", "-o", tmp_path / "out"))
    assert [line for line in done.stdout.splitlines() if line[0] != " "] == ["ddp:", "fsdp2:"]
    assert not (tmp_path / "out").exists()
