"""``ringside submit`` where no Slurm is needed: the script, and what is refused. With Slurm: ``tests/cluster/test_slurm.py``."""

from __future__ import annotations

import subprocess

import pytest

from measurement.errors import PlanError
from measurement.plans.plan_file import check_plan
from measurement.records.results import ResultsFolder
from runners.driver.comparison_folder import require_same_plan
from runners.submission.job_request import JobRequest, minutes_of, require_fit, require_hosts, time_warnings
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
        (("--resume", "docs"), "holds no submit.sh; give the folder that 'ringside submit PLAN -o FOLDER' wrote"),
        ((PLAN, *TWO, "--time", "soon"), "--time 'soon' is no time that sbatch takes; give such as 2:00:00"),
        ((PLAN, *TWO, "--set", "world_size=4"), "does not fit into 2 nodes with 1 tasks each; give --ntasks-per-node 2"),
        ((PLAN, "--nodes", "64", "--ntasks-per-node", "8"), "world_size 2 needs 2 tasks, and 64 nodes with 8 tasks each are asked"),
        ((PLAN, *TWO, "--sbatch", "exclusive"), "give an option in one word, such as --directive=--exclusive"),
        ((PLAN, *TWO, "--prologue", "module load a\nrm -rf x"), "cannot stand in a batch script"),
        ((PLAN, *TWO, "--scheduler", "pbs", "--qos", "high"), "--qos is Slurm's, and PBS has nothing alike"),
        ((PLAN, *TWO, "--scheduler", "cobalt"), "--scheduler 'cobalt' is not known; use slurm, pbs or lsf"),
        ((PLAN, "--nodes", "1,2,2"), "--nodes '1,2,2': give a number of nodes, or different ones divided by commas"),
        (("plans/scaling.yaml", "--nodes", "1,2"), "makes the points of a study, and the plan has points or hosts of its own"),
        ((PLAN, *TWO, "-p", "a\nrm -rf x"), "cannot stand in a batch script"),
    ],
)
def test_what_cannot_be_submitted_is_one_line(arguments, told):
    done = ringside_here("submit", *arguments, *(["--print"] if PLAN in arguments else []))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line


def planned(**changes):
    """A plan of two ranks of DDP."""
    arms = {"ddp": {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"}}
    content = {"name": "p", "workload": "digits", "world_size": 2, "baseline": "ddp", "arms": arms}
    return check_plan({**content, **changes}, source="p")


def asked(nodes, tasks, time="1:00:00", gpus=None):
    return JobRequest(nodes=nodes, tasks_per_node=tasks, time=time, gpus_per_node=gpus)


POINTS = {"points": {"two": {"world_size": 2}, "eight": {"world_size": 8}, "four": {"world_size": 4}}}
GPUS = {"device": "cuda", "world_size": 8}


@pytest.mark.parametrize(
    ("changes", "request_", "told"),
    [
        ({}, asked(64, 8), "needs 2 tasks, and 64 nodes with 8 tasks each are asked for: the others would be idle; give --nodes 1"),
        ({}, asked(1, 8), "one node with 8 tasks are asked for: the others would be idle; give --nodes 1 --ntasks-per-node 2"),
        ({"world_size": 9}, asked(2, 4), "does not fit into 2 nodes with 4 tasks each; give --ntasks-per-node 5, or more --nodes"),
        (POINTS, asked(2, 1), "world_size 8 (of the largest point) does not fit into 2 nodes with 1 tasks each"),
        (POINTS, asked(4, 8), "world_size 8 (of the largest point) needs 8 tasks"),
        (GPUS, asked(2, 4, gpus=2), "puts 4 ranks on each node, and --gpus-per-node 2 has one for 2 of them"),
    ],
)
def test_a_job_that_does_not_fit_the_plan_is_refused(changes, request_, told):
    with pytest.raises(PlanError) as refused:
        require_fit(planned(**changes), request_)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "request_"),
    [({}, asked(2, 1)), ({}, asked(1, 2)), ({"world_size": 3}, asked(2, 2)), (POINTS, asked(2, 4)), (GPUS, asked(2, 4, gpus=4))],
)
def test_a_job_that_fits_is_not(changes, request_):
    require_fit(planned(**changes), request_)


def test_points_without_hosts_in_a_job_of_several_nodes_are_refused():
    with pytest.raises(
        PlanError, match=r"point 'two' names no hosts, so it would run on the first of 2 nodes alone; write 'hosts: "
    ):
        require_hosts(planned(**POINTS), None, nodes=2)
    require_hosts(planned(**POINTS), "slurm", nodes=2)
    require_hosts(planned(**POINTS), None, nodes=1)


def test_a_time_limit_that_ends_the_plan_is_told_and_one_that_ends_its_first_launch_refused():
    measurement = {"launches": 5, "seconds_per_launch": 120}
    (told,) = time_warnings(planned(measurement=measurement), asked(1, 2, time="8"))
    assert told == "--time 8 is shorter than the plan's blocks alone (10 minutes, 5 launches)"
    assert not [*time_warnings(planned(measurement=measurement), asked(1, 2, time="0:20:00"))]
    assert "15 launches" in next(time_warnings(planned(measurement=measurement, **POINTS), asked(1, 2, time="0:20:00")))
    assert not [*time_warnings(planned(measurement={"steps_per_launch": 60}), asked(1, 2, time="1"))]
    with pytest.raises(PlanError, match=r"--time 1 is shorter than one launch: 120 s of blocks"):
        [*time_warnings(planned(measurement=measurement), asked(1, 2, time="1"))]


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("90", 90), ("90:30", 90.5), ("1:30:00", 90), ("1-12", 2160), ("1-0:30", 1470), ("1-0:0:30", 1440.5), ("0", None)],
)
def test_times_as_sbatch_takes_them(time, minutes):
    assert minutes_of(time) == minutes


def test_where_there_is_no_slurm_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = ringside_here("submit", PLAN, *TWO, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "there is no sbatch here; go to a login node of the cluster, or load its module" in done.stderr
    done = ringside_here("status", tmp_path / "none")
    assert done.returncode == 2 and "there is no folder" in done.stderr


def test_one_node_is_the_plans_own_machine(tmp_path):
    done = ringside_here("submit", write_plan(tmp_path), "--print")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=1" in done.stdout and "#SBATCH --ntasks-per-node=2" in done.stdout


OPTIONS = {
    "slurm": [
        "#SBATCH --account=lab",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=1:30:00",
        "#SBATCH --nodes=2",
        "#SBATCH --exclusive",
    ],
    "pbs": [
        "#PBS -l select=2:ncpus=4:mpiprocs=1:ngpus=2",
        "#PBS -l place=scatter",
        "#PBS -l walltime=1:30:00",
        "#PBS -q gpu",
        "#PBS -A lab",
        "#PBS -j oe",
        "#PBS --exclusive",
    ],
    "lsf": [
        "#BSUB -n 2",
        "#BSUB -R 'span[ptile=1] affinity[core(4)]'",
        "#BSUB -W 90",
        "#BSUB -q gpu",
        "#BSUB -P lab",
        "#BSUB -gpu num=2",
        "#BSUB --exclusive",
    ],
}
NUMBERS = {"slurm": "41;cluster", "pbs": "41.server", "lsf": "Job <41> is submitted to queue <gpu>."}
LISTS = {"slurm": "41 RUNNING 1:00 of 1:30:00 node1", "pbs": "41.server   ringside  me  0 R gpu", "lsf": "41 RUN 60 second(s)"}
LOGS = {"slurm": "slurm-41.log", "pbs": "pbs.log", "lsf": "lsf-41.log"}
PROGRAMS = {"slurm": ("sbatch", "squeue"), "pbs": ("qsub", "qstat"), "lsf": ("bsub", "bjobs")}


@pytest.fixture(params=OPTIONS)
def site(request, tmp_path, monkeypatch):
    """A login node of a batch system, whose programs answer as theirs do."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, answer in zip(PROGRAMS[request.param], (NUMBERS, LISTS), strict=True):
        (programs / name).write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer[request.param]}'\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return request.param


def test_each_batch_system_is_asked_for_the_same(site, tmp_path):
    options = ("--scheduler", site, "-A", "lab", "-q", "gpu", "--time", "1:30:00", "-c", "4", "--gpus-per-node", "2")
    done = ringside_here("submit", PLAN, *TWO, *options, "--directive=--exclusive", "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"job 41; see how it stands: ringside status {tmp_path}/out\n"), done.stderr
    lines = (tmp_path / "out" / "submit.sh").read_text().splitlines()
    assert set(OPTIONS[site]) <= set(lines)
    assert lines[-1].startswith("exec timeout --foreground --signal=TERM 5340s " if site != "slurm" else "exec /")
    assert lines[-1].endswith(f" --set hosts={site}" if site != "slurm" else "/out")
    assert "has ended" not in ringside_here("status", tmp_path / "out").stdout
    assert ringside_here("submit", "--resume", tmp_path / "out").stdout.startswith("job 41; ")
    (tmp_path / "out" / LOGS[site]).touch()
    require_same_plan(ResultsFolder(tmp_path / "out"), planned())  # the job finds its folder as the submission left it


def test_a_series_is_a_job_for_each_number_of_nodes(site, tmp_path):
    done = ringside_here("submit", PLAN, "--scheduler", site, "--nodes", "4,1,2", "--ntasks-per-node", "2", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("jobs 41, 41, 41; ") and f"ringside report {tmp_path}/out" in done.stdout
    study = ResultsFolder(tmp_path / "out").read_plan()
    assert {name: point.world_size for name, point in study.points.items()} == {"nodes-1": 2, "nodes-2": 4, "nodes-4": 8}
    last = (tmp_path / "out" / "points" / "nodes-4" / "submit.sh").read_text().splitlines()[-1]
    assert "--set name=slurm.nodes-4 --set world_size=8" in last and f"-o {tmp_path}/out/points/nodes-4" in last
    told = ringside_here("status", tmp_path / "out").stdout
    assert "nodes-4: job 41: " in told and "has ended" not in told and "nodes-4: nothing is measured yet" in told
    again = ringside_here("submit", PLAN, "--nodes", "1,2", "-o", tmp_path / "out", "--scheduler", site)
    assert again.returncode == 2 and "holds measurements; go on with --resume" in again.stderr


@pytest.mark.parametrize("fails", [False, True])
def test_the_prologue_is_run_first_and_must_work(tmp_path, fails):
    lines = ["module() { test $2 = cuda; }  # as a site has it", "module load cuda", "export LOADED=yes"]
    lines += ["module load nothing"] if fails else []
    words = [word for line in lines for word in ("--prologue", line)]
    text = ringside_here("submit", PLAN, *TWO, *words, "-o", tmp_path, "--print").stdout
    ran = subprocess.run(["bash", "-c", text.replace("exec ", "exec echo $LOADED ")], capture_output=True, text=True, check=False)
    if fails:
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.strip() == (
            "ringside: the prologue's line 'module load nothing' failed, so nothing is measured; try it on a node of the job"
        )
    else:
        assert ran.returncode == 0 and ran.stdout.startswith("yes /"), ran.stderr
