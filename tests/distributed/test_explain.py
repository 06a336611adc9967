"""Settings that a script gets in place of its own.

``ab --explain``, which tries them: ``test_scripts``."""

from __future__ import annotations

import contextlib
import sys

from tests.conftest import no_process_stays, ringside_here
from tests.kit.scripts import SCRIPTS, ScriptDriver

IMPOSED = {
    "threads.torch": 2,
    "loader.workers": 1,
    "loader.persistent_workers": True,
    "ddp.bucket_cap_mb": 2,
    "optimizer.0.0.foreach": True,
    "environment.OMP_PROC_BIND": "false",
}
COMMAND = "torchrun --nproc-per-node 2 either.py --by ddp"


def test_what_is_imposed_is_in_force_in_every_rank_and_the_rest_is_the_scripts(tmp_path):
    with (
        no_process_stays(),
        contextlib.closing(
            ScriptDriver(tmp_path, recorded=["OMP_"], secret="TOKEN", impose=IMPOSED)
        ) as arm,
    ):
        arm.start(*COMMAND.split())
        found = [reply.script.configuration for reply in arm.receive()]
        arm.finish()
    for configuration in found:
        assert {name: configuration.get(name) for name in IMPOSED} == IMPOSED
        assert (configuration["loader.batch_size"], configuration["sampler.replicas"]) == (8, 2)


def test_a_setting_that_cannot_be_imposed_is_refused(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"name: n\nbaseline: a\narms:\n  a: {{command: '{sys.executable} {SCRIPTS}/either.py'}}\n"
        f"  b: {{command: '{sys.executable} {SCRIPTS}/either.py', impose: {{loader.batch_size: 4}}}}\n"
    )
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert (
        "arm 'b': unknown setting to impose 'loader.batch_size'" in done.stderr
        and "loader.workers" in done.stderr
    )
