"""Questions about a change since: other packages, other commits.

Wheels and repositories of a test's own, real uv, real git."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from measurement.errors import PlanError
from runners.scripts import environments
from tests.conftest import REPOSITORY, no_process_stays, ringside_here
from tests.kit.commands import git, run
from tests.kit.script_comparisons import compare_in, ringside_in

SHORT = ["--set", "measurement.block_steps=4", "--set", "measurement.start_timeout_s=240"]
SCRIPT = """\
import time, torch{imports}
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
while True:
    time.sleep({sleep})
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def wheel(folder, name, version, content, *, needs=""):
    """A wheel whose module has this content; beside it a file by which packages of the tests'
    environment are found."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    files = {
        f"{name}.py": content,
        f"{name}.pth": next(path for path in sys.path if path.endswith("site-packages")) + "\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path := folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for inside, text in {**files, f"{info}/RECORD": record}.items():
            file.writestr(inside, text)
    return path


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """The Python of a user whose pip finds wheels in a folder: tiny 1.0, what needs it, and a wheel
    from a file that is gone."""
    root = tmp_path_factory.mktemp("since")
    for version, sleep in (("1.0", 0.01), ("2.0", 0.02)):
        wheel(root / "wheels", "tiny", version, f"SLEEP_S = {sleep}\n")
        wheel(root / "wheels", "above", version, "", needs=f"tiny=={version}")
    gone = wheel(root / "elsewhere", "gone", "1.0", "")
    wheel(root / "wheels", "gone", "1.0", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.setenv("PIP_FIND_LINKS", str(root / "wheels"))
        patch.setenv("UV_NO_INDEX", "1")
        environments._uv("venv", str(root / "env"))
        python = str(root / "env" / "bin" / "python")
        install = ("pip", "install", "--python", python, "--find-links", str(root / "wheels"))
        environments._uv(*install, "tiny==1.0", "above", str(gone))
        gone.unlink()
        yield python


def test_an_environment_has_what_is_asked_for_and_what_must_change_with_it(users, capsys):
    """It is made once; a copy without a change is equal."""
    made = environments.with_packages(users, "tiny==2.0")
    assert [*Path(made).parent.parent.glob("lib/*/site-packages/__pycache__/tiny.*.pyc")]
    assert environments.installed(made) == {"tiny": "2.0", "above": "2.0", "gone": "1.0"}
    assert "with tiny==2.0: above 1.0 -> 2.0, tiny 1.0 -> 2.0" in capsys.readouterr().err
    copy = environments.with_packages(users, "")
    assert copy != made and environments.installed(copy) == environments.installed(users)
    environments.with_packages.cache_clear()
    capsys.readouterr()
    assert environments.with_packages(users, "tiny==2.0") == made
    assert "uv makes" not in capsys.readouterr().err


def test_what_cannot_be_resolved_is_told_in_uvs_words(users):
    with pytest.raises(PlanError, match=r"uv pip install failed:\n(.|\n)*tiny==9"):
        environments.with_packages(users, "tiny==9")


@pytest.mark.costly
def test_one_command_in_two_environments(users, tmp_path):
    """Both are made, with one change, and the commands start in them."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(imports=", tiny", rate=0.1, sleep="tiny.SLEEP_S"))
    flags = f"--python {users} --with-b tiny==2.0 --launches 1 --set measurement.rounds=2"
    ran = compare_in(tmp_path, "ab", f"python {script}", *flags.split(), *SHORT)
    pythons = {name: record.python for name, record in ran.records.items()}
    assert pythons["train"] == pythons["train-control"] != pythons["tiny2.0"]
    assert users not in pythons.values()
    assert ran.report["equality"]["unequal"] == []


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of a user's: its third commit is slower, its fourth trains otherwise."""
    root = tmp_path_factory.mktemp("repository")
    git(root, "init", "-q")
    for number, (sleep, rate) in enumerate(
        [(0.01, 0.1), (0.01, 0.1), (0.03, 0.1), (0.03, 0.2), (0.03, 0.2)]
    ):
        (root / "train.py").write_text(
            SCRIPT.format(imports="", rate=rate, sleep=sleep) + f"# {number}\n"
        )
        git(root, "add", "train.py")
        git(root, "commit", "-q", "-m", f"number {number}")
    return root, git(root, "rev-list", "--reverse", "HEAD").split()


def bisect(repository, flags, out, *, code=0):
    root, commits = repository
    typed = f"--good {commits[0]} --bad HEAD {flags} -o {out}".split()
    with no_process_stays():
        done = ringside_in(root, "bisect", "python train.py", *typed, *SHORT)
    assert code is None or done.returncode == code, done.stderr + done.stdout
    return done


@pytest.mark.costly
def test_the_first_commit_that_trains_otherwise_is_named_and_kept(repository, tmp_path):
    done = bisect(repository, "--for equality", tmp_path)
    said = done.stdout.splitlines()
    assert (
        said[0].startswith(f"First bad: {repository[1][3][:10]}, bad (")
        and "apart from step 1" in said[0]
    )
    assert f"before it: {repository[1][2][:10]}, good" in said[1]
    assert "number 3" in done.stdout and "train.py | 4 ++--" in done.stdout
    again = bisect(repository, "--for equality", tmp_path)
    assert again.stdout == done.stdout and "starting" not in again.stderr


@pytest.mark.costly
@pytest.mark.timeout(600)
def test_the_first_slower_commit_is_named(repository, tmp_path):
    """Or it is said to be undecided, where others take the cores; no other commit is named."""
    done = bisect(repository, "--minutes 3 --slower 30%", tmp_path, code=None)
    named = f"First bad: {repository[1][2][:10]}, bad (throughput " in done.stdout
    assert named == (done.returncode == 0) == ("First bad" in done.stdout)
    assert named or "not decided" in done.stdout


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("", "give a command in quotes, --good and --bad"),
        ("--good HEAD --bad HEAD~1", "'HEAD' does not come before 'HEAD~1'"),
        ("--good tiny --bad HEAD", "commit 'tiny' is not a revision"),
        ("--package tiny --good 1.0 --bad 3.0", "'3.0' is no version of tiny"),
        ("--good HEAD~1 --bad HEAD --minutes 0", "Invalid value for '--minutes'"),
    ],
)
def test_a_search_that_cannot_begin_says_why(repository, users, flags, told):
    done = ringside_in(repository[0], "bisect", "python train.py", *flags.split())
    assert done.returncode == 2 and told in done.stderr


def test_another_search_is_not_mixed_in(repository, tmp_path):
    (tmp_path / "bisect.json").write_text('{"asked": ["python other.py", "a", "b"]}')
    done = bisect(repository, "", tmp_path, code=2)
    assert "has another search (python other.py a b)" in done.stderr


@pytest.mark.costly
@pytest.mark.timeout(900)
def test_the_steps_of_the_ci_templates_hold_a_pull_request_against_its_base(repository, tmp_path):
    """In a clone whose base is the first commit: three times as slow does not pass.

    The next run knows what this runner takes."""
    root, commits = repository
    git(root, "branch", "-f", "base", commits[0])
    git(tmp_path, "clone", "-q", str(root), "clone")
    action = yaml.safe_load((REPOSITORY / "examples" / "ci" / "action.yml").read_text())
    (step,) = (one for one in action["runs"]["steps"] if one.get("name") == "Gate")
    ci = yaml.safe_load((REPOSITORY / "examples" / "ci" / "gitlab.yml").read_text())["gate"]
    line = step["run"].splitlines()[1]
    assert ci["script"][1].replace("$CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "$BASE") == line, (
        "both ask for the same"
    )
    own = {
        "PYTHONPATH": REPOSITORY,
        "XDG_CACHE_HOME": tmp_path / "cache",
        "COMMAND": "python train.py",
        "BASE": "base",
        "SLOWER": "5%",
    }
    ringside = f'ringside() {{ "{sys.executable}" -m runners.cli "$@" {" ".join(SHORT)}; }}'

    def run_step(script):
        variables = {name: str(value) for name, value in own.items()}
        with no_process_stays():
            return run(
                *("bash", "-e", "-c", f"{ringside}\n{script}"),
                cwd=tmp_path / "clone",
                timeout=900,
                **variables,
            )

    done = run_step(step["run"].rstrip() + " --minutes 1")
    assert done.returncode == 3, done.stderr + done.stdout
    assert (
        "this run may not detect the loss" in done.stderr
        and "here is not shown to be at most 5% slower" in done.stderr
    )
    reports = {path.name for path in (tmp_path / "clone" / "results" / "gate").iterdir()}
    assert reports >= {"pull-request.md", "junit.xml", "bencher.json", "report.html"}
    again = run_step(line.replace("results/gate", "results/again") + " --minutes 0.1")
    assert (
        again.returncode == 2
        and "by the last 1 runs of this command on this runner" in again.stderr
    )


@pytest.mark.costly
def test_a_golden_result_is_held_against_without_running_it_again(repository, tmp_path):
    """Stored from the first commit: a slower one trains alike, and one with another rate does
    not."""
    root, commits = repository
    golden = tmp_path / "golden.json"

    def ab(commit, flag, *, code):
        typed = ("--commit-a", commit, flag, golden, *SHORT[2:])
        out = tmp_path / f"{commit[:6]}-{code}"
        return compare_in(root, "ab", "python train.py", *typed, out=out, code=code).done

    ab(commits[0], "--write-golden", code=0)
    alike = ab(commits[2], "--golden", code=0)
    assert "train trains like golden: equal start, and equal over the first 5 steps" in alike.stdout
    other = ab(commits[3], "--golden", code=3)
    assert "not shown to train as" in other.stderr and "then is apart from step 1" in other.stderr
    stored = json.loads(golden.read_text())
    stored["scripts"][0]["configuration"]["version.torch"] = "0.1"
    golden.write_text(json.dumps(stored))
    assert "version.torch was 0.1, and is " in ab(commits[1], "--golden", code=0).stdout


def test_a_golden_result_that_is_none_is_refused(tmp_path):
    (tmp_path / "golden.json").write_text("{}")
    for name in ("golden.json", "nothing.json"):
        done = ringside_here("ab", "python train.py", "--golden", tmp_path / name)
        assert done.returncode == 2
        assert (
            "is no golden result; write one by 'ringside ab COMMAND --write-golden" in done.stderr
        )


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["ab", "python train.py", "--with-b", '"'], "No closing quotation"),
        (["gate", "python train.py", "--slower", "much"], "--slower 'much' is no share"),
        (["gate"], "give a command in quotes: ringside gate"),
    ],
)
def test_what_is_not_accepted_is_told_before_anything_is_made(repository, typed, told):
    done = ringside_in(repository[0], *typed)
    assert done.returncode == 2 and told in done.stderr
    assert "uv makes" not in done.stderr and "nothing is known" not in done.stderr
