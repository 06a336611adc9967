"""``ringside compare`` over two hosts that share no name, network or processes; and what happens
when one of them goes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest
import yaml

from measurement.records.results import ResultsFolder
from runners.session.endpoint import KEY_PREFIX
from tests import conftest
from tests.cluster.conftest import beside, enter, processes_of
from tests.conftest import REPOSITORY, drawn, ended_well, needs_horovod, wait_until
from tests.kit.comparisons import Compared
from tests.kit.dataset_files import write_data
from tests.kit.lab import namespaces

MUTE = Path(__file__).parent / "plugins" / "mute.py"
WRONG = REPOSITORY / "tests" / "distributed" / "plugins" / "wrong.py"
ENDS_S = 90
"""Within which a comparison ends that has lost a host."""
PAIR = {
    name: {"backend": name, "transport": "gloo", "launcher": "spawn"} for name in ("ddp", "naive")
}


@pytest.fixture
def no_file_left(nothing_left):
    """Nor do they keep a file of a run."""
    kept = spools()
    yield
    assert spools() - kept == set()


def spools():
    """Without keys and rehearsals, which commands of other tests have meanwhile."""
    return {
        path
        for path in Path(tempfile.gettempdir()).glob("ringside-*")
        if not path.name.startswith((KEY_PREFIX, "ringside-rehearsal-"))
    }


def write_plan(folder, **changes):
    usual = {"hosts": ["host1:1", "host2:1"], "network_interface": "eth0", "arms": PAIR}
    measurement = {"local_every": 0, **changes.pop("measurement", {})}
    return conftest.write_plan(folder, **usual | changes, measurement=measurement)


def compare(plan, folder, *more):
    return enter("host1", "ringside", "compare", plan, "-o", folder, *more)


@pytest.mark.costly
def test_data_that_one_host_lacks_is_refused_before_anything_starts(no_file_left, tmp_path):
    write_data("mnist", tmp_path / "data")
    only_here = f"/dev/shm/{tmp_path.name}"  # which each host has for itself
    enter("host1", "cp", "-r", tmp_path / "data", only_here)
    try:
        plan = write_plan(tmp_path, workload="mnist", workload_options={"data_dir": only_here})
        done = compare(plan, tmp_path / "out")
    finally:
        enter("host1", "rm", "-r", only_here)
    assert done.returncode == 2, done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert line.startswith("ringside: host 'host2': ")
    assert only_here in line
    assert not (tmp_path / "out").exists()


@needs_horovod
def test_arms_of_the_plan_for_two_hosts(no_file_left, tmp_path):
    """With one rank on each: ``test_users_commands`` and ``test_slurm`` have more.

    All arms where all cases are asked for."""
    content = yaml.safe_load((REPOSITORY / "plans" / "two-hosts.yaml").read_text())
    short = {**conftest.TINY["measurement"], "rounds": 2, "local_every": 2, "control": False}
    arms = {"ddp-gloo": content["arms"].pop("ddp-gloo")}
    arms |= drawn(content["arms"].items(), number=1)
    plan = tmp_path / "plan.yaml"
    fewer = {"world_size": 2, "hosts": ["host1:1", "host2:1"], "arms": arms, "measurement": short}
    plan.write_text(yaml.safe_dump({**content, **fewer}, sort_keys=False))
    done = ended_well(compare(plan, tmp_path / "out"))
    folder = ResultsFolder(tmp_path / "out")
    ran = Compared(done, folder)
    assert ran.statuses == dict.fromkeys(arms, "ok")
    for record in ran.records.values():
        assert record.parity.passed
        places = [(place.host, place.local_rank, place.node_rank) for place in record.ranks]
        assert places == [("host1", 0, 0), ("host2", 0, 1)]
        assert {place.environment["GLOO_SOCKET_IFNAME"] for place in record.ranks} == {"eth0"}
    manifest = folder.read_manifest()
    assert (list(manifest.hosts), manifest.warnings) == (["host1", "host2"], [])


@pytest.mark.costly
def test_a_rank_far_away_leaves_its_last_words_and_earlier_blocks(no_file_left, tmp_path):
    arms = {
        "naive": PAIR["naive"],
        "mute": {"backend": f"{MUTE}:Mute", "transport": "gloo", "launcher": "torchrun"},
    }
    done = compare(write_plan(tmp_path, arms=arms, baseline="naive"), tmp_path / "out")
    assert done.returncode == 1, done.stderr
    ran = Compared(done, ResultsFolder(tmp_path / "out"))
    assert ran.statuses == {"naive": "ok", "mute": "failed"}
    assert len(ran.records["naive"].blocks) == 3
    mute = ran.records["mute"]
    assert mute.error.message.startswith("rank 1 on host2 died without reporting an error; ")
    assert (mute.error.ranks, mute.error.hosts) == ([1], ["host2"])
    assert "last words of a mute rank" in mute.error.log_tail["rank-1.log"]
    assert [block.block for block in mute.blocks] == [0]
    assert len(ran.folder.steps(mute)) == 2 * 3


def begin(folder, *, gloo):
    """A comparison of Gloo under this launcher and MPI that would go on for long, when every arm
    has had a block."""
    arms = {
        name: {"backend": f"{WRONG}:SaysEachBlock", "transport": name} for name in ("gloo", "mpi")
    }
    arms["gloo"]["launcher"], arms["mpi"]["launcher"] = gloo, "mpirun"
    measurement = {"rounds": None, "seconds_per_launch": 200, "launches": 2}
    plan = write_plan(folder, arms=arms, baseline="gloo", measurement=measurement)
    command = ("ringside", "compare", plan, "-o", folder / "out")
    process = beside("host1", *command, stderr=subprocess.PIPE, text=True)

    def begun():
        return process.poll() is not None or all(blocks_begun(arm) >= 5 for arm in arms)

    wait_until(begun, seconds=120)
    assert process.poll() is None, process.stderr.read()
    return process


def blocks_begun(arm):
    """How many blocks the first rank of an arm has begun, the trial among them."""
    logs = Path(tempfile.gettempdir()).glob(f"ringside-*-0-{arm}-0/*/rank-0.log")
    return sum(log.read_text().count("block\n") for log in logs)


def driver_of(process):
    """The comparison itself, which the command that entered the host has become, or waits for."""
    entered = psutil.Process(process.pid)
    found = [entered, *entered.children(recursive=True)]
    return next(one for one in found if "compare" in one.cmdline()[:4])


@pytest.mark.costly
def test_a_killed_driver_leaves_nothing_on_either_host(no_file_left, tmp_path):
    """Not even frozen ranks, nor a torchrun on the other host. The fixture looks."""
    kept = spools()
    with begin(tmp_path, gloo="torchrun") as process:
        assert len(processes_of("host2")) > 6
        driver_of(process).kill()
        process.stderr.close()
    remove_spools(kept)


def remove_spools(kept):
    """Of hosts that could not be asked to: they keep the logs of their ranks."""
    for folder in spools() - kept:
        shutil.rmtree(folder)


def test_a_killed_host_is_named_and_the_other_is_left_clean(lab, tmp_path):
    """Last in this file: the host is not started again.

    At every stage, and lost ssh: benchmarks/fault_matrix.py --lab."""
    kept = spools()
    before = processes_of("host1")
    with begin(tmp_path, gloo="spawn") as process:
        os.kill(namespaces.init_of("host2"), signal.SIGKILL)
        _, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == 1, errors
    assert "no further launches: host 'host2': ssh: connect to host host2 port 22" in errors
    records = ResultsFolder(tmp_path / "out").records()
    assert {record.launch for record in records} == {0}
    for record in records:
        assert record.status == "failed"
        assert record.error.hosts == ["host2"]
        assert record.error.message.startswith("rank 1 on host2 lost with the host; host 'host2': ")
        assert record.blocks
    wait_until(lambda: processes_of("host1") <= before)
    remove_spools(kept)
