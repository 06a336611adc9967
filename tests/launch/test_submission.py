"""``ringside submit`` where no Slurm is needed: the script, and what is refused. With Slurm: ``tests/cluster/test_slurm.py``."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import ringside_here, write_plan

PLAN = "plans/slurm.yaml"
TWO = ("--nodes", "2", "--ntasks-per-node", "1")


def test_the_script_can_be_read_and_becomes_the_comparison(tmp_path):
    settings = ("--set", "seed=7", "--time", "2:00:00", "-p", "gpu", "--sbatch=--exclusive", "-o", tmp_path / "my results")
    done = ringside_here("submit", PLAN, *TWO, *settings, "--print")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for option in ("--nodes=2", "--ntasks-per-node=1", "--time=2:00:00", "--partition=gpu", "--signal=B:TERM@60", "--exclusive"):
        assert f"#SBATCH {option}" in lines
    assert f"#SBATCH '--output={tmp_path}/my results/slurm-%j.log'" in lines
    assert lines[-1].startswith("exec ") and f"-o '{tmp_path}/my results' --set seed=7" in lines[-1]
    assert not (tmp_path / "my results").exists()
    (tmp_path / "script").write_text(done.stdout)
    assert subprocess.run(["bash", "-n", tmp_path / "script"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give a plan, or --resume with the folder of an earlier job, and not both"),
        ((PLAN, "--resume", "x"), "give a plan, or --resume"),
        (("--resume", "tests"), "holds no submit.sh; give the folder that 'ringside submit PLAN -o FOLDER' wrote"),
        ((PLAN, *TWO, "--time", "soon"), "--time 'soon' is no time that sbatch takes; give such as 2:00:00"),
        ((PLAN, *TWO, "--set", "world_size=4"), "does not fit into 2 nodes with 1 tasks each; give --ntasks-per-node 2"),
        ((PLAN, *TWO, "--sbatch", "exclusive"), "give an option of sbatch as one word, such as --sbatch=--exclusive"),
        ((PLAN, *TWO, "-p", "a\nrm -rf x"), "cannot stand in a batch script"),
    ],
)
def test_what_cannot_be_submitted_is_one_line(arguments, told):
    done = ringside_here("submit", *arguments, *(["--print"] if PLAN in arguments else []))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line


def test_where_there_is_no_slurm_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = ringside_here("submit", PLAN, *TWO, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "there is no sbatch here; go to a login node of the cluster, or load its module" in done.stderr
    done = ringside_here("status", tmp_path / "out")
    assert done.returncode == 2 and "holds no slurm-jobs" in done.stderr


def test_one_node_is_the_plans_own_machine(tmp_path):
    done = ringside_here("submit", write_plan(tmp_path), "--print")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=1" in done.stdout and "#SBATCH --ntasks-per-node=2" in done.stdout
