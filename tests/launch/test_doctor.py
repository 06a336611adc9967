"""The doctor, on the machine that runs the tests: real findings, nothing replaced."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from install import build_horovod
from runners import doctor
from runners.doctor import Finding, diagnose, print_findings
from runners.processes import local


@pytest.fixture(scope="module")
def findings():
    return diagnose()


def named(findings, topic, name):
    """The one finding of a name."""
    (finding,) = [finding for finding in findings[topic] if finding.name == name]
    return finding


def of_all_topics(findings):
    return [finding for of_topic in findings.values() for finding in of_topic]


def test_every_gap_has_a_remedy_and_nothing_else_has(findings):
    of_all = of_all_topics(findings)
    assert [finding for finding in of_all if (finding.status == "ok") == bool(finding.remedy)] == []
    assert all(finding.detail for finding in of_all)


def test_horovod_tells_its_controllers_or_why_it_is_missing(findings):
    horovod = named(findings, "horovod", "horovod")
    assert horovod.detail
    if horovod.status == "ok":
        assert named(findings, "horovod", "controllers").detail == "MPI, Gloo"


def test_a_build_that_failed_is_told_with_its_reason_and_log(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    state = build_horovod.BuildState(
        status="missing", key="k", reason="no C++ compiler\nmore", log="kept/build.log"
    )
    build_horovod.write_state(state)
    finding = doctor.missing_horovod("ModuleNotFoundError: No module named 'horovod'")
    assert finding.status == "missing"
    assert finding.detail == "not built: no C++ compiler; build log: kept/build.log"
    assert finding.remedy.endswith("then: python -m install.build_horovod")


def test_a_broken_installation_is_a_finding_and_no_crash():
    assert doctor.probe("raise ImportError('libmpi.so.40')") == "ImportError: libmpi.so.40"
    assert doctor.probe("import os; os._exit(3)") == "exit code 3"
    assert doctor.probe("print('hello'); print('{\"a\": 1}')") == {"a": 1}


def test_programs_are_found_without_an_activated_environment(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert local.find_program("torchrun") == str(Path(sys.executable).parent / "torchrun")
    assert local.find_program("no-such-program") is None


def test_importing_the_doctor_does_not_import_torch():
    script = (
        "import sys, runners.doctor; sys.exit('torch' in sys.modules or 'horovod' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_table_shows_each_finding_and_the_remedies(findings):
    text = io.StringIO()
    gap = Finding(name="lamp", detail="no [lamp]", remedy="buy a [lamp]", gap="missing")
    print_findings({**findings, "tests": [gap]}, Console(file=text, width=200))
    assert "tests / lamp: buy a [lamp]" in text.getvalue()
    assert all(finding.name in text.getvalue() for finding in of_all_topics(findings))


JOB = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"SLURM_GPUS_PER_TASK": "1"}, ["GPUs per task"]),
        ({"SLURM_TASKS_PER_NODE": "2"}, ["job"]),
        ({}, []),
    ],
)
def test_what_a_job_lacks_is_told_with_its_remedy(changes, names):
    gaps = [finding for finding in doctor.slurm_findings(JOB | changes) if finding.status != "ok"]
    assert [finding.name for finding in gaps] == names
    assert all(finding.remedy for finding in gaps)
