"""Slurm, as users have it: a real controller with two nodes.

Runs that stand alone under srun, and comparisons in jobs."""

from __future__ import annotations

import re
import shlex

import psutil
import pytest

from measurement.records.results import ResultsFolder
from runners.launchers.slurm import pmix_environment
from tests import conftest
from tests.cluster.conftest import enter, nothing_stays, processes_of
from tests.conftest import REPOSITORY, drawn, ended_well, needs_horovod, wait_until
from tests.kit.comparisons import Compared

SHORT = "--workload digits --local-batch-size 16 --blocks 2 --block-steps 3 --warmup-steps 1"
HOROVOD_OVER = drawn(["mpi", "gloo"], number=1)
ARMS = {
    "spawn": {"backend": "ddp", "transport": "gloo", "launcher": "spawn"},
    "srun": {"backend": "ddp", "transport": "gloo", "launcher": "srun"},
    **{
        f"horovod-{name}": {"backend": "horovod", "transport": name, "launcher": "srun"}
        for name in HOROVOD_OVER
    },
}
TWO = ("--nodes", "2", "--set", "world_size=2")
ENDS_S = 180
LOOK_EVERY_S = 1.0
pytestmark = needs_horovod


@pytest.fixture(scope="module")
def nodes(slurm_lab):
    """Their processes before any job."""
    return {host: len(processes_of(host)) for host in ("host1", "host2")}


@pytest.fixture(autouse=True)
def nothing_left(nodes):
    """No job in the queue, no process on a node."""
    yield
    wait_until(lambda: not queued(), seconds=60, every_s=LOOK_EVERY_S)
    nothing_stays(nodes, seconds=30)


def queued(*which):
    """The states of jobs."""
    return enter("host1", "squeue", "-h", *which, "-o", "%T").stdout.strip()


def in_job(line, *, tasks=2):
    """A line of shell inside an allocation of both nodes, as ``salloc`` gives it."""
    return enter("host1", "salloc", "-Q", "-N2", f"--ntasks-per-node={tasks}", "bash", "-c", line)


def write_plan(folder, **changes):
    measurement = {"local_every": 0, **changes.pop("measurement", {})}
    usual = {"arms": ARMS, "world_size": None}
    return conftest.write_plan(folder, **usual | changes, measurement=measurement)


def job_of(plan, out, *more):
    """The job that ``ringside job`` prints."""
    words = ("ringside", "job", plan, "--for", "slurm", "-o", out, *more)
    (job := out.with_name("job.sh")).write_text(ended_well(enter("host1", *words)).stdout)
    return job


def submit(job):
    """Returns the job's number; its log lies beside it."""
    words = ("sbatch", "--parsable", "--output", job.with_name("%j.log"), job)
    return ended_well(enter("host1", *words)).stdout.strip()


def wait_for(job_id):
    which = ("-j", job_id, "-t", "all")
    wait_until(lambda: queued(*which) in ENDED, seconds=ENDS_S, every_s=LOOK_EVERY_S)


ENDED = {"", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"}


@pytest.mark.costly
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"srun -n 3 python -m runners.ddp --transport gloo {SHORT}", ("ddp", "gloo")),
        (f"srun --mpi=pmix -n 2 python -m runners.hvd {SHORT}", ("horovod", "mpi")),
        (f"srun -n 2 python -m runners.hvd {SHORT}", ("horovod", "gloo")),
        (
            f"mpirun --bind-to none -np 2 --map-by node python -m runners.hvd {SHORT}",
            ("horovod", "mpi"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ranks_that_stand_alone_are_one_world(tmp_path, command, expected):
    done = ended_well(in_job(f"{command} -o {shlex.quote(str(tmp_path / 'run'))}"))
    ranks = 3 if " -n 3 " in command else 2
    assert f"{ranks} ranks on 2 hosts" in done.stdout
    (record,) = ResultsFolder(tmp_path / "run").records()
    assert (record.backend, record.transport, record.world_size) == (*expected, ranks)
    assert [place.host for place in record.ranks] == ["host1"] * (ranks - 1) + ["host2"]


@pytest.mark.costly
def test_the_doctor_and_the_hosts_of_a_job():
    told = in_job("ringside doctor; ringside hosts").stdout
    assert re.search(r"slurm +job +ok +\d+: host1:2,host2:2", told)
    assert "for horovodrun and mpirun: -H host1:2,host2:2" in told


def test_the_printed_job_is_submitted_and_measured_without_ssh(tmp_path):
    for host in ("host1", "host2"):  # sites forbid it
        for pid in processes_of(host):
            if psutil.Process(pid).name() == "sshd":
                psutil.Process(pid).kill()
    out = tmp_path / "out"
    job_id = submit(job_of(write_plan(tmp_path), out, *TWO))
    wait_for(job_id)
    log = (tmp_path / f"{job_id}.log").read_text()
    ran = Compared(None, ResultsFolder(out))
    assert ran.statuses == dict.fromkeys(ARMS, "ok"), log
    assert all(record.hosts == ["host1", "host2"] for record in ran.records.values())
    assert [result["candidate"] for result in ran.report["results"]] == list(ARMS)[1:]


@pytest.mark.costly
def test_a_job_that_is_stopped_keeps_what_it_measured_and_is_gone_on_with(tmp_path):
    """As at its time limit, before which Slurm sends the same signal; the nodes have unlike numbers
    of ranks."""
    arms, hosts = {name: ARMS[name] for name in ("spawn", "srun")}, "host1:2,host2:1"
    measurement, out = {"launches": 2, "rounds": 5}, tmp_path / "out"
    job = job_of(write_plan(tmp_path, arms=arms, hosts=hosts, measurement=measurement), out)
    job_id = submit(job)

    def has_measured():
        return any(record.complete for record in ResultsFolder(out).records())

    wait_until(has_measured, seconds=ENDS_S, every_s=0.2)
    enter("host1", "scancel", "--batch", "--signal=TERM", job_id)
    wait_for(job_id)
    assert "interrupted; go on with: ringside compare" in (tmp_path / f"{job_id}.log").read_text()
    assert (out / "report.md").exists()
    wait_for(submit(job))
    records = ResultsFolder(out).records()
    assert sorted((record.launch, record.arm, record.complete) for record in records) == [
        (launch, arm, True) for launch in (0, 1) for arm in ("spawn", "srun")
    ]
    for record in records:
        assert [place.host for place in record.ranks] == ["host1", "host1", "host2"]


@pytest.mark.costly
def test_scripts_are_compared_in_a_job(tmp_path):
    """Steps share the job's cores, carry the agent's variables and reach both nodes; nothing of
    them stays."""
    script = REPOSITORY / "tests" / "outside" / "scripts" / "either.py"
    pmix = ",".join(f"{name}={value}" for name, value in pmix_environment().items())
    each = "srun -N 2 --ntasks-per-node=1 --cpu-bind=none"
    horovod = f"{each} --mpi=pmix --export=PATH,HOME,{pmix} python {script} --by horovod"
    torchrun = "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d"
    ddp = f"{each} --mpi=none {torchrun} --rdzv-endpoint host1:29500 {script} --by ddp"
    short = "--launches 1 --steps 8 --set measurement.block_steps=4 --set measurement.control=false"
    typed = f"{shlex.join([horovod, ddp])} --name-a hvd --name-b ddp {short}"
    done = ended_well(
        in_job(f"ringside ab {typed} -o {shlex.quote(str(tmp_path / 'out'))}", tasks=1)
    )
    ran = Compared(done, ResultsFolder(tmp_path / "out"))
    assert ran.statuses == {"hvd": "ok", "ddp": "ok"}
    assert all(record.hosts == ["host1", "host2"] for record in ran.records.values())
    assert ran.records["hvd"].ranks[0].backend["library"] == "horovod"
