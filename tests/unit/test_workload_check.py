"""What ``ringside check`` finds in workloads as people write them: each mistake with its line and its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends import backend_class
from measurement.errors import PlanError
from runners.planning.workload import resolve_workload
from runners.planning.workload_check import check_workload
from tests.conftest import documented_files, ringside_here

IDIOMS = Path(__file__).parent.parent / "outside" / "idioms.py"


def facts_of(name, *, file=IDIOMS, **options):
    setup = resolve_workload(f"{file}:{name}", options)
    return check_workload(setup, local_batch_size=16, seed=1, world_size=2, device=torch.device("cpu"))


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


def test_readmes_whole_model_has_nothing_to_mend(tmp_path):
    (tmp_path / "spirals.py").write_text(documented_files()["spirals.py"])
    done = ringside_here("check", f"{tmp_path / 'spirals.py'}:Spirals", "--workload-option", "hidden=32")
    assert done.returncode == 0, done.stderr
    assert "1,218 parameters; gradients of 6 tensors" in done.stdout


def test_what_works_and_should_be_known_is_told():
    assert any("begun anew each time" in note for note in facts_of("Finite").notes) is False, "it has more than is tried"
    assert facts_of("Recommender").sparse == ["rows.weight"]
    facts = facts_of("Unused")
    assert facts.without_gradient == ["0.spare.weight", "0.spare.bias"]
    assert "no gradient from the first batch: '0.spare.weight', '0.spare.bias'" in facts.notes


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
    cls = backend_class(backend)
    try:
        said = cls.check_gradients(transport=transport, options=cls.Options(**options), missing=["spare.weight"], sparse=[])
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
    cls = backend_class(backend)
    with pytest.raises(PlanError, match="sparse") as caught:
        cls.check_gradients(transport=transport, options=cls.Options(**options), missing=[], sparse=["rows.weight"])
    assert message in str(caught.value)


def test_the_command_prints_what_it_found_and_refuses_what_cannot_work(tmp_path):
    good = ringside_here("check", f"{IDIOMS}:Scheduled")
    assert (good.returncode, good.stderr) == (0, "")
    assert "Sequential, 193 parameters; gradients of 4 tensors" in good.stdout
    assert good.stdout.splitlines()[-1] == "nothing to mend"
    bad = ringside_here("check", f"{IDIOMS}:TupleLoss")
    assert bad.returncode == 2
    assert bad.stderr.startswith(f"ringside: workload '{IDIOMS}:TupleLoss': compute_loss() gave a tuple")
    unfinished = ringside_here("check", f"{IDIOMS}:Unfinished")
    assert unfinished.returncode == 2
    assert (
        "has yet to define batches(rank, world_size, device), build_optimizer(model), compute_loss(model, batch), "
        in unfinished.stderr
    )
    assert "count_samples(batch)" in unfinished.stderr
    collectives = ringside_here("check", "collectives")
    assert collectives.returncode == 2
    assert "is a micro-benchmark" in collectives.stderr


PLAN = """
name: p
workload: {workload}
world_size: 2
baseline: ddp
arms:
  ddp: {{backend: ddp, transport: gloo}}
  horovod: {{backend: horovod, transport: gloo}}
"""


def test_clipping_of_sparse_gradients_is_refused(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.format(workload=f"{IDIOMS}:Recommender") + "max_gradient_norm: 1.0\n")
    done = ringside_here("check", path)
    assert done.returncode == 2
    assert "max_gradient_norm = 1, but PyTorch clips no sparse gradients, which 'rows.weight' have; leave it out" in done.stderr


def test_a_plans_arms_are_asked_too(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.format(workload=f"{IDIOMS}:Unused"))
    done = ringside_here("check", path)
    assert done.returncode == 2
    assert done.stderr.startswith("ringside: arm 'ddp': DDP waits for the gradients of all parameters, and '0.spare.weight'")


BESIDE = """
from gpt_model_beside import make
from plain_beside import Plain


class Mine(Plain):
    def build_model(self):
        return make()
"""


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
        ("import torch\nVOCABULARY = undefined_size\n", ["NameError: name 'undefined_size'", ":2", "VOCABULARY = undefined_size"]),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_with_its_line(tmp_path, text, messages):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(PlanError, match="cannot be loaded") as caught:
        resolve_workload(f"{path}:Mine", {})
    assert all(message in str(caught.value) for message in messages), str(caught.value)
