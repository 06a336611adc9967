"""Scripts of a user's over two hosts that share no name, network or processes: each launcher
reaches them in its own way."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import pytest

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import beside, enter, inside
from tests.cluster.test_compare_across_hosts import driver_of
from tests.conftest import REPOSITORY, ended_well, needs_horovod, wait_until
from tests.kit.comparisons import Compared
from tests.kit.script_comparisons import write_script_plan

pytestmark = needs_horovod
EITHER = REPOSITORY / "tests" / "outside" / "scripts" / "either.py"
MEETS = EITHER.with_name("meets.py")
HOROVODRUN = f"horovodrun --gloo -np 2 -H host1:1,host2:1 python {EITHER} --by horovod"
MPIRUN = f"mpirun -np 2 -H host1:1,host2:1 --bind-to none python {EITHER} --by horovod"
TORCHRUN = f"torchrun --nproc-per-node 1 {EITHER} --by ddp"
MEASUREMENT = {"rounds": 2, "start_timeout_s": 300}


def compared_in_lab(*words, out):
    """What a user types in the first host."""
    done = ended_well(inside("host1", "ringside", *words, "-o", out, timeout=600))
    return Compared(done, ResultsFolder(out))


@pytest.mark.costly
def test_each_launcher_reaches_both_hosts(nothing_left, tmp_path):
    """mpirun and horovodrun carry their own hosts, torchrun is started on each host of the plan."""
    arms = {"torchrun": TORCHRUN, "horovodrun": HOROVODRUN, "mpirun": MPIRUN}
    more = {"hosts": "host1:1,host2:1", "scripts": {"same_start": True}}
    plan = write_script_plan(tmp_path, arms, measurement=MEASUREMENT, **more)
    ran = compared_in_lab("compare", plan, out=tmp_path / "out")
    records = ran.records
    assert ran.statuses == dict.fromkeys(arms, "ok")
    assert all(record.hosts == ["host1", "host2"] for record in records.values())
    for node, command in enumerate(records["torchrun"].commands):
        assert command["host"] == f"host{node + 1}"
        told = f"--nnodes 2 --node-rank {node} --master-addr host1"
        assert told in shlex.join(command["argv"])
    assert "-x RINGSIDE_AGENT" in shlex.join(records["mpirun"].commands[0]["argv"])
    assert shlex.join(records["horovodrun"].commands[0]["argv"]) == HOROVODRUN
    start = ran.report["equality"]["start"]
    assert [start[arm]["verdict"] for arm in ("horovodrun", "mpirun")] == ["equal", "equal"]


@pytest.mark.costly
def test_a_killed_driver_leaves_no_rank_that_horovodrun_has_started_on_the_other_host(
    nothing_left, tmp_path
):
    """Its ranks have no supervisor yet, and the ssh that started them has gone. The fixture
    looks."""
    script = tmp_path / "waits.py"
    script.write_text(
        f"import os, time; open('{tmp_path}/' + os.uname().nodename, 'w').close(); time.sleep(600)"
    )
    arms = {"waits": f"horovodrun --gloo -np 2 -H host1:1,host2:1 python {script}"}
    plan = write_script_plan(tmp_path, arms, measurement={**MEASUREMENT, "control": True})
    up = [tmp_path / "host1", tmp_path / "host2"]
    with beside("host1", "ringside", "compare", plan, "-o", tmp_path / "out") as process:
        wait_until(lambda: all(one.exists() for one in up), seconds=240)
        driver_of(process).kill()


@pytest.mark.costly
def test_each_start_has_its_own_folder_and_meeting_places_on_hosts_that_share_no_files(
    nothing_left, tmp_path
):
    """A stranger serves on the second host at the port that a rank there wants, and on the first
    where torchruns would meet."""
    project, port = tmp_path / "project", 9127
    project.mkdir()
    shutil.copy(MEETS, project)
    enter("host2", "mount", "-t", "tmpfs", "tmpfs", project)
    enter("host2", "cp", MEETS, project)
    enter("host2", "touch", project / "own-figures")
    torchrun = f"PLACE={port} torchrun --nproc-per-node 1"
    c10d = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint host1:29400 meets.py train"
    arms = {
        "serves": f"{torchrun} meets.py serves_from_the_last host2",
        "c10d": f"{torchrun} {c10d}",
    }
    more = {"hosts": "host1:1,host2:1", "allow": ["all"]}
    write_script_plan(project, arms, measurement=MEASUREMENT, **more)
    serve = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); print('up', flush=True); time.sleep(900)"
    strangers = [
        beside(host, sys.executable, "-c", serve, one, stdout=subprocess.PIPE)
        for host, one in (("host1", 29400), ("host2", port))
    ]
    try:
        for one in strangers:
            assert one.stdout.readline() == b"up\n"
        command = ("ringside", "compare", "plan.yaml", "-o", "results/one")
        done = enter("host1", "env", "-C", project, *command, timeout=900)
        ran = Compared(done, ResultsFolder(project / "results" / "one"))
        assert ran.statuses == dict.fromkeys(arms, "ok"), done.stderr
        assert {record.script_starts for record in ran.records.values()} == {1}
        assert enter("host2", "ls", project).stdout.split() == ["meets.py", "own-figures"], (
            "nothing of it stays on another host"
        )
    finally:
        for one in strangers:
            one.kill()
            one.communicate()
        enter("host2", "umount", project)
