"""The agent's parts that need no rank: what it may import, its lists, batches, sketches, steps and
phases, and how it is begun."""

from __future__ import annotations

import ast
import base64
import importlib
import importlib.util
import json
import math
import os
import sys
import threading
import time
from collections import UserDict, deque
from dataclasses import dataclass

import pytest
import torch

from measurement.agent.ringside_agent import (
    after_import,
    machine,
    place,
    rank,
    settings,
    users_lines,
    watching,
)
from measurement.agent.ringside_agent.reading import (
    batches,
    configuration,
    libraries,
    script,
    values,
)
from measurement.agent.ringside_agent.reading.first_steps import FirstSteps
from measurement.agent.ringside_agent.recorder import FOREIGN_STEPS, WITHOUT_BACKWARD, Recorder
from measurement.conditions import conditions
from measurement.environment import recorded_environment
from runners.scripts.script_setup import lists_for_agent
from tests.conftest import REPOSITORY
from tests.kit.commands import run_python

AGENT = REPOSITORY / "measurement" / "agent"
SOURCES = sorted(AGENT.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_is_python_3_8_and_imports_nothing_but_the_standard_library(path):
    """torch is taken from sys.modules: to import it would change when a script imports it."""
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        others = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
        late = {"measurement.host_counters"} if path.stem == "rank_supervisor" else set()
        assert others <= late


def test_it_records_the_variables_that_ringside_does_and_no_secrets(monkeypatch):
    recorded = {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "x.so"}
    others = {"HOROVOD_RANK": "1", "NCCL_SECRET": "s", "OTHER": "o"}
    for name, value in (recorded | others).items():
        monkeypatch.setenv(name, value)
    found = machine.steering(settings.decode(encoded(**lists_for_agent())))
    assert found == recorded_environment(os.environ)
    assert found.items() >= recorded.items() and not found.keys() & others.keys()
    assert machine.steering(settings.decode(encoded())) == {}


def test_what_pip_installed_for_a_user_is_not_the_users_own_code(tmp_path):
    own = tmp_path / "train.py"
    installed = tmp_path / ".local/lib/python3.11/site-packages/torch/serialization.py"
    installed.parent.mkdir(parents=True)
    for file in (own, installed):
        file.touch()
    assert [users_lines.is_users(file) for file in (own, installed)] == [True, False]


def test_the_facts_of_a_host_are_those_that_conditions_name():
    elsewhere = {"mpirun"}  # the preflight's
    assert {condition.field for condition in conditions() if condition.source == "host"} == set(
        machine.fingerprint()
    ) | elsewhere


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            },
            place.World(2, 4, 0, 2, 1, "srun"),
        ),
        ({"SLURM_PROCID": "0"}, place.World()),  # a batch script
    ],
)
def test_a_process_without_a_library_is_known_by_its_launchers_variables(variables, expected):
    assert place.world_of_variables(variables, lists_for_agent()["rank_variables"]) == expected


def test_the_larger_world_of_two_libraries_counts(monkeypatch):
    monkeypatch.setattr(place, "_of_torch", lambda: (0, 1))
    monkeypatch.setattr(place, "_of_horovod", lambda: (1, 2, 1, 2))
    assert place.find_world(settings.decode(encoded())) == place.World(1, 2, 1, 2, 0, "none")


def encoded(**changes):
    whole = {
        "driver": "d:1",
        "supervisors": "s:2",
        "key_file": "k",
        "arm": "a",
        "launch": 0,
        **changes,
    }
    return base64.urlsafe_b64encode(json.dumps(whole).encode()).decode()


def test_settings_are_read_and_what_is_not_known_is_left_out():
    decoded = settings.decode(encoded(launch=2, later="x", **lists_for_agent()))
    assert decoded.launch == 2 and settings.decode(settings.encode(decoded)) == decoded


def test_what_a_rank_has_started_does_nothing(monkeypatch):
    monkeypatch.setenv(settings.VARIABLE, encoded())
    for process, does_something in ((str(os.getpid()), True), ("1", False)):
        monkeypatch.setenv(settings.RANK_VARIABLE, process)
        assert bool(settings.read()) is does_something


def run(code, *, path, **variables):
    return run_python(code, PYTHONPATH=os.pathsep.join(map(str, path)), **variables)


@pytest.mark.process
@pytest.mark.parametrize("variable", [None, encoded(), "nonsense"], ids=["off", "on", "broken"])
def test_the_users_own_sitecustomize_runs_and_so_does_the_script(tmp_path, variable):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = __name__\n")
    done = run(
        "import sitecustomize; print(mine, sitecustomize.__file__)",
        path=[AGENT, tmp_path],
        **({settings.VARIABLE: variable} if variable else {}),
    )
    assert done.stdout.split() == ["sitecustomize", str(tmp_path / "sitecustomize.py")]
    assert ("the agent could not begin" in done.stderr) == (variable == "nonsense")


@pytest.mark.process
def test_sockets_meet_where_the_start_serves_and_others_are_reached_where_they_are(tmp_path):
    """Horovod's own servers are left alone, whose clients are not Python's."""
    code = f"""if True:
    import socket
    from ringside_agent import meeting, settings
    serve, here = socket.create_server, "127.0.0.1"
    others = serve((here, 0))
    asked = others.getsockname()[1]
    with serve((here, 0)) as one, serve((here, 0)) as two:
        free, horovods = one.getsockname()[1], two.getsockname()[1]
    own = settings.Settings(driver="", key_file={str(tmp_path / "key")!r}, arm="a", launch=0, ports={{asked: free, horovods: 1}})
    places = meeting.Meeting(own)
    places.watch_sockets()
    reached = lambda: socket.create_connection((here, asked)).getpeername()[1]
    print(reached() == asked)
    served = serve((here, asked))
    print(served.getsockname()[1] == reached() == free)
    started = {{"__name__": "horovod.runner.util.network", "serve": serve}}
    exec("def start(port): return serve(('', port))", started)
    print(started["start"](horovods).getsockname()[1] == horovods)
    chosen = serve((here, 0)).getsockname()[1]
    places.note(meeting.UNMAPPED, chosen)  # by whoever serves there next
    print(places.asked() == {{"ports": [asked], "store_files": []}})
    """
    done = run(code, path=[AGENT])
    assert done.stdout.splitlines() == ["True"] * 4, done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "variables"),
    [
        ("[name for name in sys.modules if 'ringside' in name], len(sys.meta_path)", {}),
        (
            "sorted({'linecache', 'sysconfig', 'tokenize', 'traceback'} & set(sys.modules))",
            {settings.VARIABLE: encoded()},
        ),
    ],
    ids=["off", "on"],
)
def test_a_process_without_torch_imports_nothing_of_it_or_little_where_it_is_asked_for(
    tmp_path, code, variables
):
    """Every Python of a script's tree begins it, launchers and loaders too."""
    code = f"import sys; print({code})"
    bare, begun = run(code, path=[tmp_path]), run(code, path=[AGENT], **variables)
    assert bare.stdout == begun.stdout != "", begun.stderr


def test_a_module_that_is_missing_or_only_looked_for_is_waited_for(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    after_import({name: lambda name=name: seen.append(name) for name in ("comes_later", "json")})
    assert seen == ["json"], "which is there already"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("comes_later")
    (tmp_path / "comes_later.py").write_text("")
    importlib.invalidate_caches()
    assert importlib.util.find_spec("comes_later"), "as libraries ask whether torch is there"
    assert seen == ["json"]
    importlib.import_module("comes_later")
    assert seen == ["json", "comes_later"]


@dataclass
class Held:
    image: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ((["a", "b"], [{"ids": torch.zeros(5)}, torch.zeros(4)]), 5),
        (UserDict(ids=torch.zeros(5), mask=torch.zeros(7)), 5),
        (Held(torch.zeros(5, 1)), 5),
        (["a", 1, None], 0),
    ],
    ids=["nested", "mapping", "object", "no tensor"],
)
def test_samples_are_those_of_the_first_tensor(batch, samples):
    assert batches.size_of(batch) == samples
    assert (batches.digest_of(batch) is None) == (samples == 0)


def test_digests_tell_values_shapes_and_types_apart():
    first = torch.arange(6.0)
    unlike = [first, first.flip(0), first.reshape(2, 3), first.reshape(2, 3).T, first.double()]
    assert len(set(map(batches.digest_of, unlike))) == len(unlike)
    assert batches.digest_of([first]) == batches.digest_of({"x": first.clone()})


@pytest.mark.parametrize(
    ("drawn", "passes", "used"),
    [
        ("0 1 2", 1, "0 1 2"),
        ("01 2 3", 1, "0 1 2"),  # one batch ahead
        ("012 34 5", 2, "01 23 45"),  # that, and several batches in a step
        ("a0 1 2", 1, "0 1 2"),  # only looked at, by an iterator of its own
        ("abcd0 1 abcd2", 1, "0 1 2"),  # an evaluation with gradients
    ],
)
def test_batches_that_a_step_used_are_digested_whenever_they_were_drawn(drawn, passes, used):
    training, other, yielded = Iterator(), Iterator(), batches.BatchLog()
    for step in drawn.split():
        for name in step:
            yielded.keep(training if name.isdigit() else other, batch_of(name))
        yielded.steps.append([])
    wanted = [
        batches.combined([batches.digest_of(batch_of(name)) for name in step])
        for step in used.split()
    ]
    assert yielded.used([passes] * 3, reads_ahead=False) == wanted
    assert yielded.loader == training._ringside.settings


def batch_of(name):
    return torch.tensor([ord(name)])


class Iterator:
    """A loader's, as the agent has marked it."""

    def __init__(self):
        self._ringside = batches.Source()
        self._ringside.settings = {"loader.length": id(self)}


def test_what_cannot_be_read_of_a_script_is_left_out_and_noted_once():
    script = FirstSteps(settings.decode(encoded()), Recorder()).script
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.param_groups[0]["unreadable"] = torch.empty(1, device="meta")
    script.stepped.append(lambda: optimizer)
    for _ in range(2):
        report = configuration.rank_report(script)
        assert (report["optimizer"], report["model"]["parameters"]) == ({}, 2)
    (note,) = script.notes
    assert "could not read all of the first steps (optimizer report)" in note


def test_exchange_within_exchange_counts_once_and_that_of_another_thread_does_not():
    """With real ranks: ``test_ways``."""
    recorder, seen = Recorder(), []
    recorder.thread = threading.get_ident()
    within = libraries.timed(lambda: seen.append(recorder.exchange), recorder)
    other = threading.Thread(target=within)
    other.start()
    other.join()
    libraries.timed(lambda: (within(), within()), recorder)()
    assert seen == [0, 0, 0] and recorder.exchange > 0


def test_small_tensors_are_their_own_sketches():
    """Of every kind: ``test_parity``."""
    assert values.sketch(torch.arange(4.0).bfloat16()) == [0.0, 1.0, 2.0, 3.0]


class Wrapped(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def test_wrappers_have_no_part_in_names():
    bare = torch.nn.Sequential(torch.nn.Linear(2, 2), Wrapped(torch.nn.BatchNorm1d(2)))
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    compiled = torch.nn.Module()
    compiled._orig_mod = Wrapped(bare)
    for root in (bare, Wrapped(bare), compiled):
        assert [name for name, _ in script.named_tensors(root, "_parameters")] == names
        assert script.unwrapped(root) is bare
    assert "buffer:1.running_mean" in script.state_of([bare])


def test_models_are_found_by_their_tops():
    inner, other = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    outer, lends = Wrapped(Wrapped(inner)), torch.nn.Sequential(inner)
    roots = {id(root) for root in script.find_roots()}
    assert {id(outer), id(other)} <= roots and id(inner) not in roots
    trained = {id(model) for model in inner.parameters()}
    assert script.trained_first([other, outer], trained) == [outer, other]
    called = script.trained_first([lends, outer, other], trained, called=outer)
    assert called == [outer, other]
    named = script.prefixes([outer, other, torch.nn.Linear(1, 1)])
    assert [prefix for prefix, _ in named] == ["", "Linear.", "Linear#2."]


class Steps:
    """A recorder hooked to single optimizers, and not to all that other tests have."""

    def __init__(self, ends=None):
        self.recorder = Recorder(ends)
        self.recorder.failed = self.fail

    @staticmethod
    def fail(error):
        raise AssertionError from error

    def optimizer(self, kind=torch.optim.SGD, **options):
        made = kind([torch.nn.Parameter(torch.ones(2))], lr=0.1, **options)
        made.register_step_pre_hook(self.recorder.pre_hook)
        made.register_step_post_hook(self.recorder.post_hook)
        return made

    def backward(self, optimizer):
        loss = (optimizer.param_groups[0]["params"][0] ** 2).sum()
        loss.backward()
        self.recorder.note_backward(loss)
        return loss

    def step(self, *optimizers):
        for optimizer in optimizers:
            self.backward(optimizer)
            optimizer.step()

    @property
    def rows(self):
        return len(self.recorder.rows)


@pytest.mark.parametrize(
    ("ends", "passes"),
    [(None, [1, 3, 3]), ("Adam", [2, 1, 2, 1, 2, 1]), (2, [2, 2, 2, 2])],
)
def test_an_iteration_ends_with_the_first_optimizers_step_or_where_the_plan_says(ends, passes):
    steps = Steps(ends)
    first, other = steps.optimizer(), steps.optimizer(torch.optim.Adam)
    for _ in range(3):
        steps.step(first, other, other)
    assert [row.losses for row in steps.recorder.rows] == passes


def test_another_optimizer_ends_iterations_once_the_first_no_longer_steps():
    steps = Steps()
    first, other = steps.optimizer(), steps.optimizer()
    steps.step(first, *[other] * (FOREIGN_STEPS + 3))
    assert steps.rows == 4


def test_an_optimizer_that_is_gone_is_followed_by_another():
    steps = Steps()
    steps.step(steps.optimizer())
    steps.step(*[steps.optimizer()] * 3)
    assert steps.rows == 4


def test_steps_within_a_step_are_one():
    class Nested(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    steps = Steps()
    steps.step(*[steps.optimizer(Nested)] * 2)
    assert steps.rows == 2


def test_a_step_that_raises_is_none():
    steps = Steps()
    optimizer = steps.optimizer()

    def fails():
        raise KeyError

    steps.step(optimizer)
    for _ in range(2):
        with pytest.raises(KeyError):
            optimizer.step(fails)
    steps.step(optimizer)
    assert (steps.rows, steps.recorder.depth) == (2, 0)


def test_steps_before_any_backward_pass_are_passed_over():
    steps = Steps()
    optimizer = steps.optimizer()
    optimizer.step()
    steps.step(optimizer)
    assert steps.rows == 1
    by_hand = Steps()
    optimizer = by_hand.optimizer()
    for _ in range(WITHOUT_BACKWARD + 4):
        optimizer.step()
    assert by_hand.rows == 4


@pytest.mark.parametrize(
    ("epoch", "samples"),
    [
        ("DBDBS DBDBS", [16, 16]),
        ("DDBBS DDBBS DBS", [16, 16, 8]),  # all batches of a step first
        ("DDBS DBS BS", [8, 8, 8]),  # one batch ahead
        ("DDDBBS DDBBS DBBS", [16, 16, 16]),  # both
        ("DBBBS DBBBS", [8, 8]),  # a batch in parts, or several losses
        ("DBS BS BS", [8, 8, 8]),  # the same batch again
        ("DBS DDDDDBS DBS", [8, 8, 8]),  # an evaluation with gradients
    ],
)
def test_samples_are_those_of_all_batches_that_a_step_uses_whenever_they_are_drawn(epoch, samples):
    """In each of two epochs: D draws a batch, B is a backward pass, S a step."""
    assert samples_of(Steps(), epoch * 2) == samples * 2


def samples_of(steps, doings):
    """Of each step of these."""
    optimizer = steps.optimizer()
    does = {
        "D": lambda: steps.recorder.drawn.append(8),
        "B": lambda: steps.backward(optimizer),
        "S": optimizer.step,
    }
    for doing in doings.replace(" ", ""):
        does[doing]()
    return [row.samples for row in steps.recorder.rows]


def test_a_batch_that_is_drawn_ahead_is_not_one_of_several_backward_passes_where_that_is_known():
    steps = Steps()
    steps.recorder.reads_ahead = True
    assert samples_of(steps, "DDBBS DBBS BBS" * 2) == [8] * 6


def test_losses_are_means_by_step_and_those_that_were_changed_since_are_unknown():
    steps = Steps()
    optimizer = steps.optimizer()
    steps.backward(optimizer)
    steps.step(optimizer)
    optimizer.step()
    steps.backward(optimizer).detach().mul_(2)
    optimizer.step()
    means = values.means(steps.recorder.rows, values.losses_of(steps.recorder))
    assert means == pytest.approx([2.0, math.nan, math.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("steps", "before", "gaps"),
    [
        ([0.01] * 9 + [0.2], [], [(9, 0.2)]),
        ([0.001] * 9 + [0.04], [], []),  # not long
        ([0.1] * 9 + [0.9], [], []),  # not unusual
        ([0.2], [0.01] * 5, [(0, 0.2)]),  # in a block of one step, too
    ],
)
def test_gaps_are_long_and_unusual(steps, before, gaps):
    assert rank.gaps_in(steps, deque(before)) == gaps


def test_a_block_without_warmup_has_its_own_losses_only(monkeypatch):
    """It also had those of the block before, under its own steps' numbers."""
    blocks = []
    this_rank = rank.Rank(settings.decode(encoded()), Recorder())
    monkeypatch.setattr(this_rank, "end_block", blocks.append)
    for _ in range(2):
        rank.Block(this_rank, steps=1).begin(0)
        this_rank.recorder.end_iteration(time.perf_counter_ns())
    assert [(block["first_step"], len(block["losses"])) for block in blocks] == [(0, 1), (1, 1)]


def test_what_an_evaluation_waits_for_its_loader_is_no_wait_of_a_training():
    recorder = Recorder()
    take = watching.timed_next(lambda _: torch.zeros(4), recorder)
    with torch.no_grad():
        take(None)
    assert recorder.wait == 0 and recorder.drawn == []
    take(None)
    assert recorder.wait > 0 and recorder.drawn == [4]


@pytest.mark.parametrize("is_trained_so", [False, True])
def test_batches_that_are_drawn_in_evaluation_mode_are_no_samples_of_a_step(is_trained_so):
    """The Trainer draws them with gradients enabled.

    A model that is always in this mode is trained all the same."""
    recorder, model = Recorder(), torch.nn.Linear(2, 1).train(not is_trained_so)
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    FirstSteps(settings.decode(encoded()), recorder).before_step(optimizer, is_nested=False)
    model.eval()
    recorder.on_batch = None
    watching.timed_next(lambda _: torch.zeros(4), recorder)(None)
    assert recorder.drawn == ([4] if is_trained_so else [])


@pytest.mark.parametrize(("zeroes_every", "kept"), [(1, False), (3, True)])
def test_gradients_that_no_step_zeroes_are_seen_before_the_next_backward_pass(zeroes_every, kept):
    """With two backward passes a step, of which the second finds the first one's, as accumulation
    wants."""
    steps = Steps()
    first = FirstSteps(settings.decode(encoded()), steps.recorder)
    optimizer = steps.optimizer()
    for step in range(3):
        if step % zeroes_every == 0:
            optimizer.zero_grad()
        for _ in range(2):
            first.before_backward()
            steps.backward(optimizer)
        steps.recorder.backwards_then = steps.recorder.backwards
        optimizer.step()
        first.after_step(optimizer, ends=True)
    assert first.script.keeps_gradients is kept


@pytest.mark.parametrize("by", ["train", "attribute"])
def test_an_evaluation_ends_where_the_model_trains_again(monkeypatch, by):
    """Lightning restores the attribute of each module.

    A part without parameters may train meanwhile."""
    for name in ("train", "__setattr__"):
        monkeypatch.setattr(torch.nn.Module, name, getattr(torch.nn.Module, name))
    assign, recorder = torch.nn.Module.__setattr__, Recorder()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    watching.watch_evaluation(torch.nn.Module, recorder)
    model.eval()
    model[1].train()
    assert recorder.is_evaluating and recorder.left_out == 0
    if by == "train":
        model.train()
    else:
        for module in model.modules():
            module.training = True
    assert not recorder.is_evaluating and recorder.left_out > 0
    assert torch.nn.Module.__setattr__ is assign
