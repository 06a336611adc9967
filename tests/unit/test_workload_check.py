"""What ``ringside check`` finds in workloads as people write them: each mistake with its line and its remedy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from backends import make_backend
from measurement.errors import PlanError
from measurement.plans.plan_file import check_plan
from runners.planning.check_process import ASKED_OF_PLAN, Asked
from runners.planning.workload import resolve_workload
from runners.planning.workload_check import check_workload
from tests.conftest import TINY, documented_files, ringside_here
from tests.outside import mistakes
from workloads.tensors import digest_of

IDIOMS = Path(__file__).parent.parent / "outside" / "idioms.py"
MISTAKES = IDIOMS.with_name("mistakes.py")


def facts_of(name, *, file=IDIOMS, options=None, **more):
    setup = resolve_workload(f"{file}:{name}", options or {})
    return check_workload(setup, local_batch_size=16, seed=1, world_size=2, device=torch.device("cpu"), **more)


@pytest.mark.parametrize("name", ["Plain", "Scheduled", "TwoOptimizers", "Recommender", "Tied", "Checkpointed", "Uneven"])
def test_ordinary_idioms_have_nothing_to_mend(name):
    facts = facts_of(name)
    assert facts.errors == []
    assert set(facts.found) == {"model", "optimizer", "batch", "step", "held out"}


@pytest.mark.parametrize(
    "name",
    [
        "Augmented",
        "Shuffled",
        "OwnGenerators",
        "Distilled",
        "ChangesItsBatch",
        "KeepsHidden",
        "KeepsHiddenInModel",
        "Masked",
        "Odd",
        "Complex",
    ],
)
def test_draws_and_kept_state_have_nothing_to_mend(name):
    assert facts_of(name, file=IDIOMS.with_name("everyday.py")).errors == []


@pytest.mark.parametrize(
    ("name", "changed"),
    [("KeepsHiddenInClass", "KeepsHiddenInClass.hidden"), ("DrawsFromTheModule", "RNG")],
)
def test_a_loss_that_is_not_repeatable_is_told_with_what_changed(name, changed):
    (error,) = facts_of(name, file=IDIOMS.with_name("everyday.py")).errors
    assert error.startswith("the workload's loss is not repeatable: compute_loss() gave ")
    assert f"from the same weights, batch and seeds ({changed} changed meanwhile); draw from the generators" in error
    assert "everyday.py:" in error


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("NoOptimizerClass", ["build_optimizer() gave LambdaLR; return a torch.optim.Optimizer, or a list of them", "idioms.py:"]),
        ("TupleLoss", ["compute_loss() gave a tuple of Tensor, dict; return the loss alone", "idioms.py:"]),
        ("LossPerSample", ["compute_loss() gave a tensor of shape [2, 1]; return the mean over the batch", "idioms.py:"]),
        ("OwnBackward", ["compute_loss() ran backward() by itself; add the losses up", "idioms.py:"]),
        ("NanLoss", ["the loss of the first batch is nan", "idioms.py:"]),
        ("Unseeded", ["batches() gave ranks 0 and 1 the same samples", "idioms.py:"]),
        ("SameShard", ["batches() gave ranks 0 and 1 the same samples", "idioms.py:"]),
        ("NoBatches", ["batches() gave none to rank 0 of 2", "idioms.py:"]),
        ("ElsewhereBatches", ["batches() gave batch[1] on meta, and its argument device is cpu; move it there", "idioms.py:"]),
        ("CountsTensors", ["count_samples() gave torch.Size([2, 10]); return how many samples the batch holds", "idioms.py:"]),
        ("RaisesInLoss", ["compute_loss raised KeyError: 'mae', at ", "idioms.py:", 'weights["mae"] * nn.functional']),
        ("SparseUnderAdam", ["the optimizer's step raised RuntimeError: Adam does not support sparse gradients", "idioms.py:"]),
    ],
)
def test_a_mistake_is_told_with_its_line_and_its_remedy(name, messages):
    (error,) = facts_of(name).errors
    assert all(message in error for message in messages), error


def test_a_hugging_face_model_has_nothing_to_mend():
    pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed; it is the user's own")
    done = ringside_here("check", "plans/hugging-face.yaml")
    assert done.returncode == 0, done.stderr
    assert "GPT2LMHeadModel" in done.stdout


@pytest.mark.slow
def test_readmes_whole_model_has_nothing_to_mend(tmp_path):
    (tmp_path / "spirals.py").write_text(documented_files()["spirals.py"])
    facts = facts_of("Spirals", file=tmp_path / "spirals.py", options={"hidden": 32})
    assert facts.errors == []
    assert "1,218 parameters; gradients of 6 tensors" in " ".join(facts.found.values())


def test_what_works_and_should_be_known_is_told():
    assert any("begun anew each time" in note for note in facts_of("Finite").notes) is False, "it has more than is tried"
    assert facts_of("Recommender").sparse == ["rows.weight"]
    facts = facts_of("Unused")
    assert facts.without_gradient == ["0.spare.weight", "0.spare.bias"]
    assert "no gradient from the first batch: '0.spare.weight', '0.spare.bias'" in facts.notes


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("Lazy", ["build_model() gave a lazy module, whose 'weight', 'bias' has no shape yet; do a forward pass there"]),
        ("Meta", ["build_model() gave '0.weight', '0.bias', '2.weight' and 1 more on the device 'meta'"]),
        ("OwnLoss", ["compute_loss() uses model.loss", "call model(...)", "DDP exchanges only what passes its forward"]),
        ("InnerModule", ["calls the model that build_model() returned outside of the model's own forward()", "model(...)"]),
        ("PartAlone", ["compute_loss() calls model.body outside of the model's own forward()", "nn.functional.mse_loss(net.head"]),
        ("KeptModel", ["calls the model that build_model() returned outside", "self.net(batch[0])"]),
        ("NeverCalled", ["compute_loss() does not call the model that it is given; call model(...)"]),
        ("Ending", ["the schedule ends after 200 steps", "ValueError: Tried to step 201 times", "self.schedule.step()"]),
        ("EndingTable", ["the schedule ends after 50 steps", "IndexError"]),
        ("EndingHook", ["the schedule ends after 100 steps", "lambda *_: schedule.step()"]),
        ("Exits", ["build_model raised SystemExit: no GPU"]),
        ("NeedsClosure", ["build_optimizer() gave LBFGS, whose step() needs a closure, which is not supported; take another"]),
    ],
)
def test_what_libraries_would_fail_on_later_is_told_at_once(name, messages):
    (error,) = facts_of(name, file=MISTAKES).errors
    assert all(message in error for message in [*messages, "mistakes.py:"]), error


def test_a_schedule_may_end_with_the_training():
    assert facts_of("Endless", file=MISTAKES).notes == []
    assert facts_of("Ending", file=MISTAKES, steps_of=lambda _: 200).errors == []
    late = facts_of("EndingLate", file=MISTAKES)
    assert late.errors == []
    assert late.notes[0].startswith("the schedule ends after 3000 steps")
    assert facts_of("EndingLate", file=MISTAKES, steps_of=lambda _: 4000).errors


@pytest.mark.parametrize("name", ["Checkpointed", "Scripted"])
def test_what_only_looks_like_going_around_forward_is_none(name):
    assert facts_of(name, file=MISTAKES).errors == []


@pytest.mark.parametrize("kind", sorted(mistakes.KINDS))
def test_batches_hold_what_people_put_there(monkeypatch, kind):
    monkeypatch.setattr(mistakes.Batches, "kind", kind)
    facts = facts_of("Batches", file=mistakes.__name__)
    assert (facts.errors, facts.notes) == ([], [])
    given = [mistakes.Batches(local_batch_size=4, seed=1).batches(rank=rank, world_size=2, device=None) for rank in (0, 0, 1)]
    digests = [hashlib.sha256() for _ in given]
    for batches, digest in zip(given, digests, strict=True):
        digest_of(digest, next(batches))
    first, again, other = [digest.hexdigest() for digest in digests]
    assert first == again != other


def check_model(backend, model, *, transport, options, optimizer=None, missing=(), sparse=()):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    asked = make_backend(backend, transport=transport, options=options)
    return asked.check_model(model, optimizer, missing=list(missing), sparse=list(sparse))


def holding(*, parameter=None, buffer=None, trained=False):
    model = nn.Linear(2, 1)
    if parameter is not None:
        model.held = nn.Parameter(parameter, requires_grad=trained)
    if buffer is not None:
        model.register_buffer("held", buffer)
    return model


@pytest.mark.parametrize(
    ("backend", "transport", "model", "message"),
    [
        ("horovod", "gloo", lambda: nn.Linear(2, 1).bfloat16(), "reduces no bfloat16 gradients, which 'weight' has"),
        ("horovod", "mpi", lambda: nn.Linear(2, 1).to(torch.complex64), "reduces no complex64 gradients, which 'weight' has"),
        (
            "horovod",
            "gloo",
            lambda: holding(buffer=torch.eye(2).to_sparse()),
            "'held' to the other ranks: its layout is sparse_coo",
        ),
        ("ddp", "gloo", lambda: holding(buffer=torch.eye(2).to_sparse_csr()), "its layout is sparse_csr; keep it as a plain"),
        ("ddp", "gloo", lambda: holding(buffer=torch.ones(1).expand(4)), "'held' to the other ranks: its elements share memory"),
        ("ddp", "gloo", lambda: holding(parameter=torch.ones(4, dtype=torch.int16)), "its dtype is int16"),
        ("naive", "gloo", lambda: holding(buffer=torch.eye(2).to_sparse()), "its layout is sparse_coo"),
        ("fsdp2", "gloo", lambda: holding(buffer=torch.ones(4, dtype=torch.int16)), "its dtype is int16"),
        ("fsdp2", "gloo", lambda: holding(parameter=torch.tensor(1.0), trained=True), "takes no parameter without dimensions"),
        ("fsdp2", "gloo", lambda: holding(parameter=torch.ones(2, 3).t(), trained=True), "takes no parameter whose memory is in"),
        ("fsdp2", "gloo", lambda: holding(parameter=torch.ones(2).bfloat16(), trained=True), "takes parameters of one dtype in a"),
    ],
)
def test_tensors_that_a_library_cannot_carry_are_refused_by_name(backend, transport, model, message):
    with pytest.raises(PlanError) as caught:
        check_model(backend, model(), transport=transport, options={})
    assert message in str(caught.value)
    assert "held" in str(caught.value) or "weight" in str(caught.value)


@pytest.mark.parametrize("backend", ["ddp", "naive", "fsdp2", "horovod"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.bfloat16, torch.complex64])
def test_what_is_not_trained_may_be_of_any_ordinary_dtype(backend, dtype):
    for model in (holding(parameter=torch.ones(4).to(dtype)), holding(buffer=torch.ones(4).to(dtype))):
        assert check_model(backend, model, transport="gloo", options={}) == []


class NoDefault(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr)


class Around(torch.optim.Optimizer):
    """Steps another optimizer, as Lookahead does."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)

    def step(self, closure=None):
        return self.inner.step(closure)


class Sealed(Around):
    param_groups = property(lambda self: self.inner.param_groups)

    def __init__(self, inner):
        self.inner = inner


def test_what_becomes_of_optimizers_that_groups_alone_do_not_make():
    model, horovod, ddp = nn.Linear(2, 1), "horovod", "ddp"
    given = {"transport": "gloo", "options": {}}
    for optimizer in (NoDefault(model.parameters(), 0.1), Around(torch.optim.SGD(model.parameters(), lr=0.1))):
        notes = check_model(horovod, model, optimizer=optimizer, **given)
        assert (
            type(optimizer).__name__ == "Around"
            or "calls the optimizer's class 'NoDefault' with parameter groups alone" in notes[0]
        )
        assert check_model(ddp, model, optimizer=optimizer, **given) == []
    sealed = Sealed(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(PlanError, match=r"which optimizer class 'Sealed' does not allow .AttributeError"):
        check_model(horovod, model, optimizer=sealed, **given)
    around = Around(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(PlanError, match=r"ZeroRedundancyOptimizer makes the optimizer anew .* class 'Around' does not allow"):
        check_model(ddp, model, optimizer=around, transport="gloo", options={"zero_redundancy_optimizer": True})


@pytest.mark.parametrize(
    ("backend", "transport", "options", "found"),
    [
        ("ddp", "gloo", {}, "give the arm options: {find_unused_parameters: true}"),
        ("ddp", "gloo", {"find_unused_parameters": True}, []),
        ("horovod", "gloo", {}, "Horovod exchanges zeros for 'spare.weight', which get no gradient"),
        ("fsdp2", "gloo", {}, []),
        ("naive", "gloo", {}, []),
    ],
)
def test_what_a_backend_makes_of_parameters_without_gradient(backend, transport, options, found):
    try:
        said = check_model(backend, nn.Linear(2, 1), transport=transport, options=options, missing=["spare.weight"])
    except PlanError as error:
        said = [str(error)]
    assert said == found if isinstance(found, list) else found in " ".join(said)


@pytest.mark.parametrize(
    ("backend", "transport", "options", "message"),
    [
        ("ddp", "gloo", {"comm_hook": "fp16"}, "not with comm_hook 'fp16'"),
        ("ddp", "mpi", {}, "not with transport 'mpi'"),
        ("fsdp2", "gloo", {}, "build the embedding with sparse=False"),
        ("horovod", "mpi", {"op": "Adasum"}, "use op 'Average'"),
    ],
)
def test_sparse_gradients_are_refused_where_they_cannot_be_exchanged(backend, transport, options, message):
    with pytest.raises(PlanError, match="sparse") as caught:
        check_model(backend, nn.Linear(2, 1), transport=transport, options=options, sparse=["rows.weight"])
    assert message in str(caught.value)


@pytest.mark.slow
def test_the_command_prints_what_it_found_and_refuses_what_cannot_work(tmp_path):
    good = ringside_here("check", f"{IDIOMS}:Scheduled")
    assert (good.returncode, good.stderr) == (0, "")
    assert "Sequential, 193 parameters; gradients of 4 tensors" in good.stdout
    assert good.stdout.splitlines()[-1] == "nothing to mend"
    unfinished = ringside_here("check", f"{IDIOMS}:Unfinished")
    assert unfinished.returncode == 2
    assert (
        "has yet to define batches(rank, world_size, device), build_optimizer(model), compute_loss(model, batch), "
        in unfinished.stderr
    )
    assert "count_samples(batch)" in unfinished.stderr


def test_a_micro_benchmark_is_no_model():
    asked = check_plan({**TINY, "workload": "collectives"}, source="test").model_dump(mode="json", include=set(ASKED_OF_PLAN))
    with pytest.raises(PlanError, match="'collectives' is a micro-benchmark"):
        Asked(plan=asked, arms=[]).facts()


PLAN = """
name: p
workload: {workload}
world_size: 2
max_gradient_norm: 1.0
baseline: ddp
arms:
  ddp: {{backend: ddp, transport: gloo, options: {{comm_hook: fp16}}}}
  horovod: {{backend: horovod, transport: gloo}}
"""


@pytest.mark.process
def test_clipping_of_sparse_gradients_is_refused_and_a_plans_arms_are_asked_too(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.format(workload=f"{IDIOMS}:Recommender"))
    done = ringside_here("check", path)
    assert done.returncode == 2
    clipping, arm = done.stderr.splitlines()[:2]
    assert clipping.startswith(f"ringside: workload '{IDIOMS}:Recommender': max_gradient_norm = 1, but PyTorch clips no sparse ")
    assert "gradients, which 'rows.weight' have; leave it out" in clipping
    assert "arm 'ddp': " in arm and "not with comm_hook 'fp16'" in arm


@pytest.mark.process
def test_a_process_that_dies_in_the_trial_is_told_with_the_users_line(tmp_path):
    done = ringside_here("check", f"{MISTAKES}:Crashes")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "ended in the middle (signal SIGSEGV; at " in done.stderr
    assert "mistakes.py:" in done.stderr


BESIDE = """
from gpt_model_beside import make
from plain_beside import Plain


class Mine(Plain):
    def build_model(self):
        return make()
"""


@pytest.mark.process
def test_what_lies_beside_a_workloads_file_is_found(tmp_path):
    (tmp_path / "gpt_model_beside.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(10, 1)\n")
    (tmp_path / "plain_beside.py").write_text(IDIOMS.read_text())
    (tmp_path / "mine_beside.py").write_text(BESIDE)
    done = ringside_here("check", f"{tmp_path / 'mine_beside.py'}:Mine")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("from .model import Net\n", ["attempted relative import", "name it as 'package.module:Class'", ":1"]),
        ("import gpt_model_missing\n", ["No module named 'gpt_model_missing'; install 'gpt_model_missing', or put it beside"]),
        ("import torch\n\nclass Mine(\n", ["SyntaxError", ":3"]),
        (
            "import argparse\nargs = argparse.ArgumentParser().parse_args()\n",
            ["calls parse_args() when imported", ":2", "__main__"],
        ),
        ("import argparse\nargs, _ = argparse.ArgumentParser().parse_known_args()\n", ["calls parse_args() when imported"]),
        (
            "import sys\nif len(sys.argv) < 9:\n    sys.exit('usage')\n",
            ["ends the program when imported, by sys.exit('usage')", ":3"],
        ),
        ("import os\nos._exit(3)\n", ["calls os._exit(3) when imported", ":2"]),
        ("import sys\nRATE = float(sys.argv[1])\n", ["IndexError", "the command line is ringside's", ":2"]),
        ("import torch\nVOCABULARY = undefined_size\n", ["NameError: name 'undefined_size'", ":2", "VOCABULARY = undefined_size"]),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_with_its_line(tmp_path, text, messages):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(PlanError, match="cannot be loaded") as caught:
        resolve_workload(f"{path}:Mine", {})
    assert all(message in str(caught.value) for message in messages), str(caught.value)
