"""What a user's own command says, and what it is started as, by equality."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
import subprocess
import sys

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from measurement.agent.ringside_agent.settings import decode
from measurement.errors import HostfileError, PlanError
from runners.hosts.placement import Placement, with_hosts
from runners.launchers import HERE, HostSlots, LaunchRequest
from runners.launchers.command_lines import ONE_VALUE, ranks_of, read_command
from runners.launchers.users_command import (
    AGENT_FOLDER,
    for_each_host,
    with_agent_path,
    with_seed,
    with_variables,
)
from runners.planning.arm_specs import ArmStart, TrialFacts
from runners.planning.plan_reading import read_plan
from runners.processes.supervisor_server import SupervisedRank
from runners.scripts.ab_command import names_for
from runners.scripts.environments import image_programs
from runners.scripts.script_failures import (
    SeenPython,
    explain_no_ranks,
    first_traceback,
    hint_of,
    lines_of_script,
    look_at,
    scripts_exception,
    why_never,
    why_others,
)
from runners.scripts.script_setup import named_ports, resolve_scripts
from tests.conftest import BIN, needs_horovod
from tests.kit.changed import changed
from tests.kit.refusals import refusal, refused_command

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
READ = {
    "torchrun --nnodes=2 --nproc_per_node=4 --standalone train.py": ("torchrun", 8, "train.py"),
    "torchrun --nproc-per-node gpu train.py": ("torchrun", None, "train.py"),
    "/envs/a/bin/python3.12 -X dev -u -m torch.distributed.launch --nproc_per_node=2 t.py": (
        "torchrun",
        2,
        "t.py",
    ),
    "python -umhorovod.runner -np 4 python -m package.train": ("horovodrun", 4, None),
    "python -u train.py -m torch.distributed.run --nproc-per-node 2": ("python", 1, "train.py"),
    "horovodrun -np 2 -H localhost:2 python train.py -np 9": ("horovodrun", 2, "train.py"),
    "horovodrun --verbose --num-proc 4 --mpi-args='-x A -np 7' python train.py": (
        "horovodrun",
        4,
        "train.py",
    ),
    "horovodrun -H host1:2,host2:3 python train.py": ("horovodrun", 5, "train.py"),
    "mpirun -np 4 --mca btl tcp -x A=b -bind-to none python -u train.py -np 9": (
        "mpirun",
        4,
        "train.py",
    ),
    "mpiexec -n 2 -genv A 1 ./train": ("mpirun", 2, None),
    "mpirun -H a,b:2 python train.py": ("mpirun", 3, "train.py"),
    "mpirun -N 2 -H a,b python train.py": ("mpirun", 4, "train.py"),
    "srun -n4 --mpi=pmix python train.py --ntasks 9": ("srun", 4, "train.py"),
    "srun -N 2 --ntasks-per-node 3 --kill-on-bad-exit python train.py": ("srun", 6, "train.py"),
    "srun python train.py": ("srun", None, "train.py"),
    "srun -N2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc-per-node 4 train.py": (
        "srun",
        8,
        "train.py",
    ),
    "srun -n 2 torchrun --nproc-per-node 4 train.py": ("srun", 8, "train.py"),
    "env A=1 B=2 taskset -c 0 torchrun --nproc-per-node 2 train.py": ("torchrun", 2, "train.py"),
    "torchrun --nproc-per-node 2 -m pkg.train --config=pkg/config.py": ("torchrun", 2, None),
    "python -m pkg.train config.py": ("python", 1, None),
    "bash -c 'cd x && torchrun --nproc-per-node 2 train.py'": (None, None, None),
    "./train.sh torchrun --nproc-per-node 2": (None, None, None),
}


@pytest.mark.parametrize("command", READ)
def test_a_command_is_read(command):
    line = read_command(command)
    assert (line.kind, ranks_of(line), line.file) == READ[command]


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("env A=1 taskset -c 0 torchrun --nproc-per-node 2 train.py", ["env", "torchrun"]),
        ("conda run -n old torchrun --nproc-per-node 2 train.py", ["conda"]),
        ("srun -n 2 apptainer exec image.sif python train.py", ["srun", "apptainer"]),
        ("make train", ["make"]),
    ],
)
def test_what_another_environment_has_is_not_looked_for_on_this_path(command, programs):
    assert read_command(command).programs == programs


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("x $DATA ${DATA}s --data=$DATA", ["x", "a", "b", "a", "bs", "--data=a", "b"]),
        (
            'x "$DATA/y" "\\$DATA" \\$DATA \'$DATA ~ `id`\' a=$',
            ["x", "a b/y", "$DATA", "$DATA", "$DATA ~ `id`", "a=$"],
        ),
        (
            "A=~/x ~ ~/y --out=~/z a~ '~'",
            ["env", "A=/home/u/x", "/home/u", "/home/u/y", "--out=~/z", "a~", "~"],
        ),
        ("x 'a && b' \";|\" lr=[1,2] none*.py", ["x", "a && b", ";|", "lr=[1,2]", "none*.py"]),
    ],
)
def test_words_are_those_of_the_shell_that_it_was_typed_for(monkeypatch, typed, words):
    monkeypatch.setenv("DATA", "a b")
    monkeypatch.setenv("HOME", "/home/u")
    assert list(read_command(typed).words) == words
    shown = ["bash", "-c", f"x() {{ printf '%s\\n' x \"$@\"; }}; {typed}"]
    assert (
        words[0] != "x"
        or subprocess.check_output(shown, text=True, timeout=60).splitlines() == words
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "command is empty"),
        ("torchrun 'train.py", "No closing quotation"),
        (
            "cd x && torchrun train.py",
            "has '&&', and no shell runs it; put it into a file, or bash -c '...'",
        ),
        ("torchrun --nproc-per-node $(nproc) train.py", "has '$(', and no shell runs it"),
        ("torchrun train.py /etc/passw*", "has '/etc/passw*'"),
        (
            "torchrun train.py --data $NOWHERE",
            "has $NOWHERE, which is not set; set it, or write its value",
        ),
        (
            "torchrun train.py --key '$A_TOKEN' --key $A_TOKEN",
            "has $A_TOKEN, which looks like a secret",
        ),
    ],
)
def test_what_is_no_command_is_refused(command, message):
    assert message in refusal(read_command, command)


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (
            "horovodrun -np 2 python train_hvd.py",
            "torchrun train_ddp.py",
            ("train_hvd", "train_ddp"),
        ),
        ("torchrun -m pkg.old --lr 1", "torchrun -m pkg.new --lr 1", ("old", "new")),
        ("torchrun t.py", "torchrun t.py --fused", ("t", "fused")),
        (
            "torchrun t.py lr=1 model=x",
            "torchrun t.py lr=2 model=y",
            ("lr1-model-x", "lr2-model-y"),
        ),
        (
            "torchrun t.py -v /data:/data nvcr.io/nvidia/pytorch:25.10-py3",
            "torchrun t.py -v /data:/data nvcr.io/nvidia/pytorch:25.11-py3",
            ("pytorch-25.10-py3", "pytorch-25.11-py3"),
        ),
        ("torchrun t.py -x \u00e9", "torchrun t.py -x \u00fc", ("a", "b")),
    ],
)
def test_arms_are_named_by_what_differs(first, second, names):
    assert names_for(read_command(first), read_command(second)) == names


TYPED = (
    "torchrun srun mpirun python env -m -n -np --x=1 x= -- - A=1 'q t.py 2 torch.distributed.run"
)
WORDS = st.sampled_from(TYPED.split())


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(WORDS | st.text("-=:'\" aé1", min_size=1, max_size=4), min_size=1, max_size=8))
def test_any_words_are_read_and_none_gets_lost(words):
    try:
        line = read_command(shlex.join(words))
    except PlanError:
        return
    assert line.words[-len(words) :] == tuple(words)
    assert all(
        0 < launcher.flags_at <= launcher.command_at <= len(line.words)
        for launcher in line.launchers
    )
    assert len(with_variables(with_agent_path(line), ["RINGSIDE_RUN"])) >= len(line.words)


@needs_horovod
def test_horovodruns_flags_are_those_that_it_has(monkeypatch):
    from horovod.runner import launch

    typed = "horovodrun --blacklist-cooldown-range 1 2 -np 2 --log-level INFO python"
    monkeypatch.setattr(sys, "argv", typed.split())
    parsed, line = launch.parse_args(), read_command(typed)
    assert ranks_of(line) == parsed.num_proc
    assert list(line.words[line.launchers[0].command_at :]) == parsed.command


def test_torchruns_flags_are_those_that_it_has():
    from torch.distributed.run import get_args_parser

    takes_a_value = [
        max(action.option_strings, key=len).lstrip("-").replace("_", "-")
        for action in get_args_parser()._actions
        if action.option_strings and action.nargs is None
    ]
    assert set(takes_a_value) - {"print-completion"} <= ONE_VALUE["torchrun"]


NAMES = ("PYTHONPATH", "RINGSIDE_AGENT", "RINGSIDE_RUN")
X = "-x PYTHONPATH -x RINGSIDE_AGENT -x RINGSIDE_RUN"
CARRIED = {
    "mpirun -np 2 python t.py": f"mpirun {X} -np 2 python t.py",
    "mpirun -x PYTHONPATH=/a -np 2 python t.py": (
        f"mpirun -x RINGSIDE_AGENT -x RINGSIDE_RUN -x PYTHONPATH={AGENT_FOLDER}:/a -np 2 python t.py"
    ),
    "srun -n 2 python t.py": "srun -n 2 python t.py",
    "srun --export=ALL,A=b -n 2 python t.py": "srun --export=ALL,A=b -n 2 python t.py",
    "srun --export NONE -n 2 python t.py": "srun --export PYTHONPATH,RINGSIDE_AGENT,RINGSIDE_RUN -n 2 python t.py",
    "srun --export=PATH -n 2 torchrun t.py": "srun --export=PATH,PYTHONPATH,RINGSIDE_AGENT,RINGSIDE_RUN -n 2 torchrun t.py",
}


@pytest.mark.parametrize("command", CARRIED)
def test_launchers_get_what_the_probe_needs_and_nothing_else(command):
    assert (
        shlex.join(with_variables(with_agent_path(read_command(command)), NAMES))
        == CARRIED[command]
    )


def test_mpichs_launcher_passes_all_variables_on_by_itself():
    line = read_command("mpiexec -n 2 python t.py")
    assert with_variables(line, NAMES, is_open_mpi=False) == line.words


def test_torchrun_is_started_on_every_host():
    def started(typed):
        lines = for_each_host(read_command(typed), ["h1", "h2"])
        return [(host, shlex.join(line.words)) for host, line in lines]

    assert started("torchrun --nproc-per-node 2 t.py") == [
        (host, f"torchrun --nnodes 2 --node-rank {node} --master-addr h1 --nproc-per-node 2 t.py")
        for node, host in enumerate(("h1", "h2"))
    ]
    elastic = "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h1:29400 t.py"
    assert started(elastic) == [("h1", elastic), ("h2", elastic)]


@pytest.mark.parametrize(
    ("command", "as_run"),
    [
        ("torchrun t.py --lr 1", "torchrun t.py --lr 1 --seed 7"),
        ("horovodrun -np 2 python t.py --seed=3", "horovodrun -np 2 python t.py --seed=7"),
    ],
)
def test_a_script_gets_the_seed_of_its_launch(command, as_run):
    assert shlex.join(with_seed(read_command(command), "--seed", 7).words) == as_run


BOUND = "--mount=type=bind,source={0},target={0}"
IN_IMAGES = {
    "docker": ("docker run --rm --network=host --pid=host --ipc=host --user=0:0", BOUND),
    "apptainer": ("apptainer exec", "--bind={}"),
    "enroot": ("enroot start", "--mount={0}:{0}"),
}
"""How each program starts a command, and shows a folder."""


@pytest.mark.parametrize("program", IN_IMAGES)
def test_a_command_in_an_image_has_its_folders_and_variables(monkeypatch, program):
    """Folders are at the same paths, and variables arrive."""
    for identity in ("geteuid", "getegid"):
        monkeypatch.setattr(os, identity, lambda: 0)
    started, shown = IN_IMAGES[program]
    known = image_programs()[program]
    image = dataclasses.replace(
        known, start=(program, *known.start), words=("-v", "/data:/data", "i:1")
    )
    request = LaunchRequest(
        world_size=2, hosts=(), module="", folder="/r/f/u", folders=("/r/f", "/u", "/u")
    )
    folders = " ".join(shown.format(folder) for folder in (AGENT_FOLDER, "/r/f/u", "/r/f", "/u"))
    inside = """sh -c 'cd -- "$0" && exec env "$@"' /r/f/u 'A=1 2' torchrun t.py"""
    words = image.around(("torchrun", "t.py"), environment={"A": "1 2"}, request=request)
    assert shlex.join(words) == f"{started} {folders} -v /data:/data i:1 {inside}"


def plan_of(folder, *, measurement=None, **commands):
    arms = {
        name: {"directory": str(folder)} | (arm if isinstance(arm, dict) else {"command": arm})
        for name, arm in commands.items()
    }
    content = {"name": "n", "baseline": min(arms), "arms": arms, "measurement": measurement or {}}
    (folder / "plan.yaml").write_text(yaml.safe_dump(content))
    return read_plan(folder / "plan.yaml")


def test_ranks_and_world_size_come_from_the_commands(tmp_path):
    assert plan_of(tmp_path, a="bash run.sh").world_size == 1, "its ranks say how many they are"
    plan = plan_of(tmp_path, a="torchrun --nproc-per-node 2 t.py", b="bash run.sh")
    assert (plan.world_size, plan.hosts, plan.workload) == (2, None, "script")


def test_hosts_come_from_the_commands():
    def hosts(*commands, **plan):
        arms = {str(number): {"command": command} for number, command in enumerate(commands)}
        return with_hosts({"arms": arms, **plan})

    torchrun, horovodrun = "torchrun --nproc-per-node 2 t.py", "horovodrun -np 2 -H {} python t.py"
    mpirun = "mpirun -np 4 -H host2:2,host3 python t.py"
    named = hosts(horovodrun.format("host1:1,host2:1"), mpirun)
    assert named["hosts"] == "host1:1,host2:3,host3:1"
    assert "hosts" not in hosts(horovodrun.format("localhost:2"), torchrun)
    assert hosts(torchrun, hosts="host1:2,host2:2")["world_size"] == 4
    with pytest.raises(HostfileError, match="-H of 'horovodrun' host 1"):
        hosts(horovodrun.format("a:b:c"))


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"backend": "ddp"}, "backend 'ddp' and a command are both given"),
        ({"command": "no-such-launcher t.py"}, "'no-such-launcher' is not on PATH; activate its"),
        ({"command": f"{sys.executable} none.py"}, "'none.py' is not in"),
        ({"image": "i", "python": "python3"}, "python means nothing in an image"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(tmp_path, arm, message):
    (tmp_path / "t.py").touch()
    with pytest.raises(PlanError) as refused:
        resolve_scripts(plan_of(tmp_path, a={"command": "torchrun t.py", **arm}))
    assert message in str(refused.value)


@pytest.mark.process
def test_minutes_mean_nothing_where_only_first_steps_are_taken():
    """It spoke of a plan and of launches, which nobody had given."""
    said = refused_command("ab", "python t.py", "python t.py --a", "--small", "--minutes", 1)
    assert "--minutes 1 has no effect: --small" in said and "leave out --minutes" in said


def test_a_script_starts_in_its_own_environment(tmp_path, monkeypatch):
    """Where alone its program is, or that of its python."""
    (tmp_path / "t.py").touch()
    for name, value in {"PATH": "/usr/bin:/bin", "MY_OWN": "kept", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    its_python = {"command": "python t.py", "python": sys.executable}
    for setup in resolve_scripts(plan_of(tmp_path, a="torchrun t.py", b=its_python)).values():
        inherited = setup.launcher.inherited
        assert inherited["PATH"].startswith(f"{BIN}{os.pathsep}")
        assert inherited["VIRTUAL_ENV"] == str(BIN.parent)
        assert inherited["MY_OWN"] == "kept" and "RANK" not in inherited


def start_of(folder, **changes):
    """The first start of an arm, on this host."""
    place = Placement(
        hosts=(HostSlots(host=HERE, slots=2),), cores={HERE: 2}, here=frozenset({HERE})
    )
    driver = {"supervisors": "h:2", "store": "", "key_file": folder / "k", "log_folder": folder}
    return ArmStart(launch=0, number=0, run_id="r", placement=place, state={}, **driver, **changes)


NAMED = {
    "torchrun --master_port=1234 t.py": [1234],
    "torchrun --rdzv-backend c10d --rdzv_endpoint=[::1]:1234 t.py 99": [1234],
    "accelerate launch --main_process_port 1234 t.py": [1234],
    "env MASTER_PORT=1234 mpirun -np 2 python t.py": [1234],
    "bash -c 'MASTER_PORT=1234 python t.py --init tcp://localhost:2345'": [1234, 2345],
    "python t.py --port 1234": [],
}


@pytest.mark.parametrize("command", NAMED)
def test_ports_at_which_ranks_meet_are_read_from_their_command(command):
    assert sorted(named_ports([command])) == NAMED[command]


def test_each_start_of_an_arm_has_ports_of_its_own(tmp_path, monkeypatch):
    """Those that it names in a script or a variable, that its trial has learned, and that were
    found taken."""
    (tmp_path / "t.py").write_text('os.environ["MASTER_PORT"] = "8888"\n')
    monkeypatch.setenv("MASTER_PORT", "2222")
    arm = resolve_scripts(plan_of(tmp_path, a="python t.py"))["a"]
    arm = dataclasses.replace(arm, trial=TrialFacts(ranks=2, first_steps_s=1.0, ports=(8000,)))
    start = start_of(tmp_path, taken_ports={9000})
    agents = [decode(arm.commands(start)[0].environment["RINGSIDE_AGENT"]) for _ in range(2)]
    asked = {2222, 8000, 8888, 9000, 29400, 29500}
    assert [set(map(int, agent.ports)) for agent in agents] == [asked] * 2
    given = [port for agent in agents for port in (*agent.ports.values(), *agent.spare_ports)]
    assert len({*asked, *given}) == len(asked) + len(given)


@pytest.mark.parametrize(("alone_s", "limit_s"), [(None, 100.0), (20.0, 100.0), (90.0, 270.0)])
def test_what_is_slow_to_start_alone_gets_more_time_beside_others(tmp_path, alone_s, limit_s):
    (tmp_path / "t.py").touch()
    plan = plan_of(tmp_path, a="python t.py", b="python t.py")
    measurement = plan.measurement.model_copy(update={"start_timeout_s": 100.0})
    arm = resolve_scripts(plan.model_copy(update={"measurement": measurement}))["a"]
    trial = TrialFacts(ranks=1, first_steps_s=alone_s) if alone_s else None
    assert dataclasses.replace(arm, trial=trial).start_limit_s == limit_s


def test_all_that_a_start_adds_reaches_ranks_on_other_hosts(tmp_path, monkeypatch):
    """Those of mpirun had neither a plan's variables and threads, nor the timeouts of a rank that
    is stopped."""
    (tmp_path / "t.py").touch()
    monkeypatch.delenv("MASTER_PORT", raising=False)
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")
    monkeypatch.setenv("MYLAB_A", "1")
    plan = plan_of(
        tmp_path, a={"command": "mpirun -np 2 python t.py", "environment": {"COLOUR": "blue"}}
    )
    plan = changed(plan, threads=2, forward_environment=["MYLAB_*"])
    (command,) = resolve_scripts(plan)["a"].commands(start_of(tmp_path, padding_bytes=9))
    names = {name for before, name in itertools.pairwise(command.argv) if before == "-x"}
    added = "COLOUR MYLAB_A OMP_NUM_THREADS HOROVOD_GLOO_TIMEOUT_SECONDS PYTHONPATH RINGSIDE_AGENT"
    assert names >= set(added.split())
    assert names == {
        name for name in command.environment if not name.startswith(("OMPI_ALLOW_", "SLURM_"))
    }
    assert {"COLOUR", "RINGSIDE_RUN"} <= set(command.environment["SLURM_EXPORT_ENV"].split(","))


def python(**changes):
    return SeenPython(**{"has_agent": True, "has_torch": True, **changes})


@pytest.mark.parametrize(
    ("seen", "is_sure", "message"),
    [
        ([], False, "no Python of it was seen"),
        ([python()], False, "no torch.optim optimizer has taken a step"),
        ([python()], False, "by python -E, -I or -S, which do not read PYTHONPATH"),
        ([python(has_agent=False)], False, "the environment does not reach its ranks"),
        ([python(path="src")], True, "write PYTHONPATH=src:$PYTHONPATH"),
        ([python(has_torch=False)], False, "do not import torch"),
        ([python(path="src", has_torch=False)], False, ""),
        ([python(path="src"), python()], False, ""),
    ],
)
def test_why_no_rank_reports_is_told_by_its_processes_and_at_once_where_it_is_sure(
    seen, is_sure, message
):
    """A helper may have another PYTHONPATH, and a TensorBoard import TensorFlow."""
    assert message in explain_no_ranks(seen)
    assert (why_never(seen) is not None) == is_sure


@pytest.mark.process
def test_processes_of_a_run_are_looked_at(tmp_path, no_processes_left):
    variables = {**os.environ, "RINGSIDE_RUN": "look", "RINGSIDE_AGENT": "p", "PYTHONPATH": "src"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env=variables, cwd=tmp_path, **PIPES) as process:
        process.stdout.readline()
        (seen,) = look_at("look", [])
        process.communicate("", timeout=20)
    assert seen == python(has_torch=False, path="src")


def test_ranks_that_count_otherwise_are_told():
    def ranks(*sizes):
        return [
            SupervisedRank(rank=rank, world_size=size, host="h", pid=rank, clock_behind_s=0.0)
            for rank, size in enumerate(sizes)
        ]

    assert why_others(ranks(2, 2), []) is None
    assert "disagree on the number of ranks" in why_others(ranks(1, 2), [])
    assert "several processes of it each report as rank 0" in why_others(ranks(1), ranks(1))


def test_what_a_launcher_says_has_a_remedy():
    assert "measurement.mode: sequential" in hint_of("... EADDRINUSE: address already in use")
    assert "name its Python by --python-a" in hint_of("ModuleNotFoundError: No module named 'its'")
    assert "--cpu checks scripts" in hint_of("RuntimeError: Found no NVIDIA driver on your system.")
    assert hint_of("all is well") is None


def test_of_tracebacks_that_ranks_write_at_once_one_with_its_exception_is_taken():
    """The message was a line of a traceback that the other rank's had cut off."""
    log = """\
Traceback (most recent call last):
  File "/u/train.py", line 84, in <module>
    init_process_group(backend=backend)
  File "/e/site-packages/torch/distributed/c10d_logger.py", line 81, in wrapper
Traceback (most recent call last):
  File "/u/train.py", line 84, in <module>
    init_process_group(backend=backend)
    return func(*args, **kwargs)
ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!
ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!
"""
    assert first_traceback(log)[-1].startswith("ValueError: ProcessGroupNCCL is only supported")


def test_the_first_traceback_is_found_behind_what_horovodrun_puts_before_its_lines():
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    main()",
        "ValueError: no such flag",
    ]
    of_ranks = "".join(f"[{rank}]<stderr>:{line}\n" for line in lines for rank in (0, 1))
    launchers = 'Traceback (most recent call last):\n  File "horovodrun", line 8\nRuntimeError: Horovod detected that one or more processes exited\n'
    assert first_traceback(f"note\n{of_ranks}{launchers}") == lines[1:]
    assert first_traceback("all is well") == []
    missing = "[1]<stderr>:python: can't open file 'train.py': [Errno 2] No such file\n"
    assert first_traceback(missing + launchers) == [], "a script that is missing on another host"


BROKEN = """Traceback (most recent call last):
  File "{file}", line 2, in worker
    raise ValueError("broken")
ValueError: broken
"""
LAUNCHERS = """W1129 14:07:26.2 28609 torch/distributed/run.py:982] Setting OMP_NUM_THREADS
{}
E1129 14:07:40.4 28609 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)
Traceback (most recent call last):
  File "/envs/a/bin/torchrun", line 10, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
  traceback : Traceback (most recent call last):
"""  # noqa: W291
SPAWNED = """Traceback (most recent call last):
  File "/envs/a/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 220, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException: 

-- Process 1 terminated with the following error:
"""  # noqa: W291
LATER = 'Traceback (most recent call last):\n  File "x.py", line 9\n    1/0\nZeroDivisionError: division by zero\n\n'


def shown(log):
    return LAUNCHERS.format(
        "".join(f"[rank0]: {line}\n" if line else "\n" for line in log.splitlines())
    )


@pytest.mark.parametrize(
    "log",
    [
        SPAWNED + BROKEN,
        shown(BROKEN),
        shown(
            f"{BROKEN}The above exception was the direct cause of the following exception:\n\n{LATER}"
        ),
        "".join(
            f"[1,0]<stderr>:{line.replace('raise', '[1,0]<stderr>:raise')}\n"
            for line in BROKEN.splitlines()
        ),
        f"Process Process-1:\n{BROKEN}Process Process-2:\n{BROKEN}",
    ],
    ids=["mp.spawn", "torchrun", "chained", "Open MPI", "Process"],
)
def test_the_scripts_own_exception_is_told_with_its_line(tmp_path, log):
    script = tmp_path / "train.py"
    script.write_text("def worker():\n    raise ValueError('broken')\n")
    raised = scripts_exception(log.replace("{file}", str(script)))
    assert raised.message == f"ValueError: broken, at {script}:2, in worker"
    assert any(line.startswith("  >    2 |") for line in raised.excerpt)


def test_for_a_script_that_raised_nothing_its_own_lines_are_shown():
    log = LAUNCHERS.format(
        "usage: train.py [--bs BS]\ntrain.py: error: unrecognized arguments: --local-rank=0"
    )
    assert scripts_exception(log) is None
    assert lines_of_script(log) == [
        "usage: train.py [--bs BS]",
        "train.py: error: unrecognized arguments: --local-rank=0",
    ]


@needs_horovod
@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("horovodrun -np 2 --autotune python t.py", "HOROVOD_AUTOTUNE=1"),
        ("HOROVOD_TIMELINE=x.json horovodrun -np 2 python t.py", "HOROVOD_TIMELINE=x.json"),
    ],
)
def test_what_disturbs_horovod_is_refused_in_a_command_too(tmp_path, command, named):
    (tmp_path / "t.py").touch()
    assert named in refusal(resolve_scripts, plan_of(tmp_path, a=command))
