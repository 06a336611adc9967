"""Scripts that write files: each start finds what the user has, and leaves it as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from measurement.records.results import ResultsFolder
from runners.session.arm_processes import LAUNCHER_LOG
from tests.kit.script_comparisons import compare_in, write_script_plan
from tests.kit.scripts import SCRIPTS
from tests.unit.test_sandbox import digests

SCRIPT = SCRIPTS / "writes_files.py"
LAUNCHES = 2


@pytest.fixture
def project(tmp_path):
    """A user's folder with the script and a checkpoint of over a mebibyte, in which an earlier
    start has left off."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "train.py")
    code = "import torch; torch.save({'model': torch.nn.Linear(600, 600).state_dict(), 'step': 40}, 'checkpoint.pt')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=300)
    return folder


def compare(project, ways, *flags, **scripts):
    """Compare ways of writing in the project: two launches, to the end.

    The user's files are what they were."""
    arms = {name: f"python train.py {words}" for name, words in ways.items()}
    plan = write_script_plan(
        project.parent, arms, measurement={"launches": LAUNCHES}, scripts=scripts
    )
    before = digests(project)
    ran = compare_in(project, "compare", plan, *flags, out="results/now")
    shutil.copytree(ran.folder.root, project.parent / "kept", symlinks=True)
    shutil.rmtree(project / "results")
    assert digests(project) == before, "what a script writes does not reach the user's files"
    ran.folder = ResultsFolder(project.parent / "kept")
    return ran


def begins(ran, arm):
    """What the starts of an arm in launches found."""
    logs = (ran.folder.launch_folder(launch, arm) / LAUNCHER_LOG for launch in range(LAUNCHES))
    return [
        line for log in logs for line in log.read_text().splitlines() if line.startswith("begins")
    ]


@pytest.mark.costly
def test_every_start_begins_alike_and_the_users_files_stay_as_they_are(project):
    ways = {name: name for name in ("resume", "new-folder", "lock", "cache", "trackers")}
    ran = compare(project, ways)
    assert ran.statuses == dict.fromkeys(ways, "ok")
    files = "['checkpoint.pt', 'results', 'train.py']"
    assert begins(ran, "resume") == [f"begins at step 40 with {files} 0"] * LAUNCHES
    files = "['checkpoint.pt', 'out', 'results', 'train.py']"
    assert begins(ran, "new-folder") == [f"begins at step 0 with {files} 0"] * LAUNCHES
    assert {line.rpartition(" ")[2] for line in begins(ran, "cache")} == {"1000"}, (
        "no torn cache is read"
    )
    assert not list(ran.folder.root.rglob("files-*")), "what was written is removed"
    assert "Written outside" not in ran.done.stderr


@pytest.mark.costly
def test_absolute_paths_are_told_before_the_timing_and_can_differ_by_start(project):
    elsewhere = project.parent / "elsewhere"
    (elsewhere / "one").mkdir(parents=True)
    ways = {
        "one": f"absolute {elsewhere}/one",
        "each": f"new-folder {elsewhere}/{{arm}}-{{launch}}-{{seed}}",
        "end": f"late {elsewhere}",
    }
    ran = compare(project, ways, keep_files=True, trackers="on")
    # lines are broken where they are full
    said = "".join(ran.done.stderr.split())
    early, late = (
        f"{elsewhere}/each-trial-1(each);{elsewhere}/one/log.txt(one)",
        f"{elsewhere}/late.pt(end)",
    )
    assert said.count(early) == said.count(late) == 1
    assert said.index(early) < said.index("measuringblocks") < said.index(late), (
        "each is told as soon as it is known"
    )
    written = {path.name for path in elsewhere.iterdir()}
    assert written == {"one", "each-trial-1", "each-0-1", "each-1-2", "late.pt"}
    for launch in range(LAUNCHES):
        kept = ran.folder.launch_folder(launch, "each") / "files-0"
        assert (kept / project.relative_to("/") / "train.py").is_file()
