"""Scripts of a user's, unmodified, as arms: real launchers, their ends, their failures, exit codes,
and how one goes on."""

from __future__ import annotations

import shlex
import signal

import pytest

from measurement.environment import KEEP_FREED_MEMORY
from runners.session.arm_processes import LAUNCHER_LOG
from tests.conftest import (
    ended_well,
    needs_horovod,
    no_process_stays,
    ringside_here,
    wait_until,
)
from tests.kit.commands import git, started
from tests.kit.script_comparisons import compare_in, write_script_plan
from tests.kit.scripts import SCRIPTS

HOROVODRUN = "horovodrun --gloo -np 2 -H localhost:2 python either.py --by horovod"
TORCHRUN = "torchrun --nproc-per-node 2 either.py --by ddp"
ALONE = "python either.py"
NAMES = "--name-a a --name-b b"
ONCE = f"{NAMES} --launches 1 --steps 4"
SHORT = "--set measurement.block_steps=4 --set measurement.control=false"
MAX_S = 600
"""For a comparison on a machine that others use."""


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """No command was tried before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def ab(first, second, flags, out, *, cwd=SCRIPTS, code=0, start_timeout_s=120, **variables):
    """The two commands are compared, and it ends with this exit code; nothing of it is left."""
    more = f"{flags} {SHORT} --set measurement.start_timeout_s={start_timeout_s}"
    return compare_in(cwd, "ab", first, second, *shlex.split(more), out=out, code=code, **variables)


@pytest.fixture(scope="module")
def compared(cache, tmp_path_factory):
    """Horovod against DDP, which comes to its end after 26 steps: what was typed, and what came of
    it."""
    flags = "--name-a hvd --name-b ddp --launches 1 --steps 12 --freed-memory keep"
    typed = (HOROVODRUN, f"{TORCHRUN} --steps 26", flags)
    return typed, ab(*typed, tmp_path_factory.mktemp("scripts") / "out", MY_OWN="1")


@needs_horovod
def test_horovod_and_ddp_are_compared_as_they_are_typed(compared):
    ran = compared[1]
    said, records, found = ran.done.stderr, ran.records, ran.report
    assert ran.statuses == {"hvd": "ok", "ddp": "ok"}
    for record in records.values():
        assert (record.backend, record.workload, record.world_size, record.sample_unit) == (
            "script",
            "script",
            2,
            "samples",
        )
        assert [rank.world_size for rank in record.ranks] == [2, 2]
        assert all(rank.environment.items() >= KEEP_FREED_MEMORY.items() for rank in record.ranks)
        assert sum(block.steps for block in record.blocks) == 12
        assert [len(script.steps) for script in record.scripts] == [5, 5]
        assert set(ran.folder.losses(record)["samples"]) == {8}
        assert record.exit_codes == [0]
    assert shlex.join(records["hvd"].commands[0]["argv"]) == HOROVODRUN, (
        "it carries its environment by itself"
    )
    assert shlex.join(records["ddp"].commands[0]["argv"]) == f"{TORCHRUN} --steps 26"
    assert found["equality"]["start"]["ddp"]["verdict"].startswith("equal")
    assert "library" in {one["field"] for one in found["differences"]}
    order = (
        "trial: starting hvd",
        "trial: starting ddp",
        "What the scripts do differently",
        "ddp trains like hvd",
        "launch 1 of 1: ",
    )
    assert sorted(order, key=said.index) == list(order)


@needs_horovod
def test_a_script_that_ends_is_restarted_and_that_is_shown_once(compared):
    ran = compared[1]
    record = ran.records["ddp"]
    assert record.script_starts > 1
    assert ran.done.stderr.count("ddp ends after 26 steps; restarting it as needed") == 1
    assert set(ran.folder.losses(record)["start"]) == set(range(record.script_starts))


@needs_horovod
@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        ("--assert-equal", 0, ""),
        ("--assert-not-slower 5%", 3, "ddp is not shown to be at most 5% slower: "),
    ],
)
def test_the_same_command_goes_on_and_its_code_says_what_was_asked(compared, asked, code, told):
    (*commands, flags), ran = compared
    before = ran.read("launch-000/ddp/record.json")
    said = ab(*commands, f"{flags} {asked}", ran.folder.root, code=code).done.stderr
    assert told in said
    assert "every launch is measured already" in said
    assert ran.read("launch-000/ddp/record.json") == before


@pytest.mark.costly
def test_a_changed_script_or_another_command_is_not_mixed_in(tmp_path):
    """All arms of a launch are padded alike, and told so."""
    script, out = tmp_path / "either.py", tmp_path / "out"
    telling = (
        'import os\n\nprint(len(os.environ["RINGSIDE_PADDING"]), "bytes of padding", flush=True)\n'
    )
    script.write_text(telling + (SCRIPTS / "either.py").read_text())
    commands, flags = (ALONE, f"{ALONE} --seed 2"), f"{NAMES} --launches 2 --steps 4"
    typed = shlex.split(f"{flags} {SHORT} --set measurement.start_timeout_s=120 -o out")
    with no_process_stays(), started("ab", *commands, *typed, cwd=tmp_path) as process:
        wait_until((out / "launch-001").exists, seconds=MAX_S)
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "one launch cannot tell" in shown
    again = shlex.join(["ringside", "ab", *commands, *typed])
    assert f"ringside: interrupted; go on with: {again}" in told

    def go_on(more="", code=2):
        return ab(*commands, f"{flags} {more}", out, cwd=tmp_path, code=code)

    go_on("--set measurement.block_s=1")
    script.write_text(script.read_text() + "# changed\n")
    assert "was measured in another environment (a/either.py: " in go_on().done.stderr
    ran = go_on("--resume-elsewhere", code=0)
    assert "trial: starting a" in ran.done.stderr, "the script is another one now"
    assert set(ran.launches) == {(launch, arm) for launch in (0, 1) for arm in "ab"}
    for (launch, arm), record in ran.launches.items():
        assert record.padding_bytes == ran.launches[launch, "a"].padding_bytes
        log = ran.folder.launch_folder(launch, arm) / LAUNCHER_LOG
        assert log.read_text().splitlines()[0] == f"{record.padding_bytes} bytes of padding"


@pytest.mark.costly
def test_what_goes_wrong_is_told_with_what_to_do(tmp_path):
    """One launch: each arm fails in a way of its own, and the baseline does not."""
    commands = {
        "well": f"{ALONE} --no-loader",
        "crashes": f"{ALONE} --crash-at 7",
        "short": f"{ALONE} --steps 8",
        "shorter": f"{ALONE} --steps 3",
        "spawns": "python agent_cases.py spawns",
        "twice": f"sh -c '{ALONE} & exec {ALONE}'",
        "unstarted": "env -i sh -c 'exit 3'",
        "replaces": f"sh -c 'export PYTHONPATH=src; exec {TORCHRUN}'",
    }
    arms = {name: {"directory": str(SCRIPTS), "command": text} for name, text in commands.items()}
    ran = compare_in(tmp_path, "compare", write_script_plan(tmp_path, arms), code=1)
    records = ran.records
    sizes = {name: record.world_size for name, record in records.items() if record.status == "ok"}
    assert sizes == {"well": 1, "spawns": 2} and "trial: spawns has 2 ranks" in ran.done.stderr, (
        "ranks say how many they are"
    )
    messages = {name: record.error.message for name, record in records.items() if record.error}
    assert messages.keys() == commands.keys() - {"well", "spawns"}
    assert "ValueError: the disk of the user is full, at either.py:" in messages["crashes"]
    assert (
        "the script ends after 8 steps; a block needs 6 after those that are compared"
        in messages["short"]
    )
    assert "ends after 3 steps, within the first 5 steps, which are compared" in messages["shorter"]
    assert messages["twice"].startswith(
        "several processes of it each report as rank 0 of 1, and only one would be timed"
    )
    assert records["twice"].blocks == [], "no part of a job is timed"
    assert "the launcher ended with code 3" in messages["unstarted"]
    assert messages["replaces"].endswith(
        "replaces PYTHONPATH, which loads Ringside's agent; write PYTHONPATH=src:$PYTHONPATH"
    )
    assert records["replaces"].status == "failed", "no time to start runs out"


@needs_horovod
@pytest.mark.costly
def test_ranks_whose_epochs_have_unlike_numbers_of_steps_time_out_with_a_hint(tmp_path):
    commands = [f"{command} --unlike-shards" for command in (HOROVODRUN, TORCHRUN)]
    flags = "--launches 1 --set measurement.block_timeout_s=10 --steps 40"
    for record in ab(*commands, flags, tmp_path / "out", code=1).records.values():
        assert record.error.message.startswith("no answer from rank 1 within")
        assert "do its ranks take different numbers of steps?" in record.error.message


@pytest.mark.costly
def test_where_the_trial_fails_no_launch_is_spent_and_nothing_is_said_of_what_was_not_measured(
    tmp_path,
):
    flags = f"{NAMES} --launches 2 --steps 4"
    ran = ab(f"{ALONE} --crash-at 3", ALONE, flags, tmp_path / "out", code=1)
    said = ran.done.stderr + ran.done.stdout
    assert "trial: a failed: rank 0: ValueError: the disk of the user is full" in said
    assert "no further launches: nothing is left to compare" in said
    assert "nothing differently" not in said and "same work: not known" in said
    assert ran.records["a"].status == "failed"
    assert all(record.ranks == [] for record in ran.records.values())


@pytest.mark.costly
def test_a_setting_of_the_other_is_tried_and_the_folder_goes_on_with_it(tmp_path):
    commands = [f"env OMP_NUM_THREADS={threads} {TORCHRUN}" for threads in (1, 2)]
    typed = (*commands, f"{NAMES} --explain --launches 1 --steps 12", tmp_path / "out")
    ran = ab(*typed)
    plan = ran.folder.read_plan()
    assert {name: arm.impose for name, arm in plan.arms.items()} == {
        "a": {},
        "b": {},
        "a+threads.torch": {"threads.torch": 2},
    }
    assert plan.asked_arms() == ["b"]
    assert [ran.done.stderr.count(f"trial: starting {name}\n") for name in plan.arms] == [1, 1, 1]
    # of one launch
    assert (
        "a with threads.torch 2, as in b: no share is told, since no difference" in ran.done.stdout
    )
    assert "every launch is measured already" in ab(*typed).done.stderr


@pytest.mark.costly
def test_two_commits_start_alike_where_they_are_asked_to(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    script = folder / "either.py"
    git(tmp_path, "init")
    for line in ("", "torch.nn.init.zeros_(model[0].bias)\n"):
        text = (SCRIPTS / "either.py").read_text()
        script.write_text(text.replace("optimizer = torch", f"{line}optimizer = torch", 1))
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", "a version")
    script.write_text("syntax error")  # not committed
    flags = "--commit-a HEAD~1 --commit-b HEAD --same-start --seed-flag --seed"
    command = f"{ALONE} --no-loader"
    ran = ab(command, command, f"{ONCE} {flags}", tmp_path / "out", cwd=folder)
    assert [record.commands[0]["argv"][-2:] for record in ran.records.values()] == [
        ["--seed", "1"]
    ] * 2
    assert {record.sample_unit for record in ran.records.values()} == {"iterations"}
    assert ran.report["equality"]["start"]["b"]["verdict"] == "equal"
    manifest = ran.folder.read_manifest()
    assert {"a/commit", "b/commit"} <= manifest.sources.keys()
    assert any("without the changes that are not committed" in note for note in manifest.notes)


@pytest.mark.parametrize(
    ("flag", "verdict", "first_difference"),
    [("--other-order", "equal up to rounding", None), ("--other-rate", "apart", 1)],
)
def test_rounding_that_a_training_multiplies_is_told_from_a_mistake(
    tmp_path, flag, verdict, first_difference
):
    line = "python amplifies_rounding.py"
    flags = f"{NAMES} --launches 1 --steps 8".split()
    ran = compare_in(SCRIPTS, "ab", line, f"{line} {flag}", *flags, out=tmp_path / "out")
    parameters = ran.report["equality"]["parameters"]
    assert (parameters["b"]["verdict"], parameters["b"]["first_difference_step"]) == (
        verdict,
        first_difference,
    )
    control = parameters["a-control"]
    assert (control["verdict"], control["judged_steps"]) == ("equal", 1)
    assert control["distances"][-1] > 0.1, "rounding alone takes it far from the baseline"


def test_a_setting_that_cannot_be_imposed_is_refused(tmp_path):
    arms = {"a": ALONE, "b": {"command": ALONE, "impose": {"loader.batch_size": 4}}}
    plan = write_script_plan(tmp_path, arms)
    refused = compare_in(SCRIPTS, "compare", plan, out=tmp_path / "out", code=2).done.stderr
    assert "arm 'b': unknown setting to impose 'loader.batch_size'" in refused
    assert "loader.workers" in refused


def test_check_tells_what_a_plan_of_commands_starts(tmp_path):
    plan = write_script_plan(tmp_path, {"a": {"command": TORCHRUN, "directory": str(SCRIPTS)}})
    done = ended_well(ringside_here("check", plan))
    assert done.stdout.startswith(f"a:\n  cd {SCRIPTS} && ") and done.stdout.endswith(
        "no problems found\n"
    )
