"""What a trial finds in workloads as people write them: each mistake with its line and its
remedy."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from backends import make_backend
from measurement.errors import PlanError
from measurement.users_code import importing
from runners.planning.workload import resolve_workload
from runners.planning.workload_check import check_workload
from runners.protocol.messages import Job
from tests.conftest import documented_files, write_plan
from tests.kit.refusals import refusal, refused_command
from tests.outside import mistakes
from workloads.tensors import digest_of

IDIOMS = Path(__file__).parent.parent / "outside" / "idioms.py"
MISTAKES = IDIOMS.with_name("mistakes.py")


def check(name, *, file=IDIOMS, backend="single", transport=None, options=None, **more):
    """The notes of a trial as rank 0 of two; a ``PlanError`` with what cannot work."""
    setup = resolve_workload(f"{file}:{name}", options or {})
    job = Job(
        arm="a",
        backend=backend,
        workload=setup.reference,
        local_batch_size=2,
        world_size=2,
        seed=1,
        **more,
    )
    return check_workload(
        setup,
        job,
        rank=0,
        device=torch.device("cpu"),
        backend=make_backend(backend, transport=transport, options={}),
    )


def error_of(name, **more):
    with pytest.raises(PlanError) as caught:
        check(name, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (
            "NoOptimizerClass",
            [
                "build_optimizer() gave LambdaLR; return a torch.optim.Optimizer, or a list of them",
            ],
        ),
        (
            "TupleLoss",
            ["compute_loss() gave a tuple; return one loss alone"],
        ),
        (
            "LossPerSample",
            [
                "compute_loss() gave a Tensor of shape [2, 1]; return one loss alone, the mean",
            ],
        ),
        (
            "OwnBackward",
            ["compute_loss() ran backward() by itself; add the losses up"],
        ),
        ("NanLoss", ["the loss of the first batch is nan"]),
        ("NoBatches", ["batches() gave none to rank 0 of 2"]),
        (
            "CountsTensors",
            [
                "count_samples() gave torch.Size([2, 10]); return how many samples the batch holds",
            ],
        ),
        (
            "RaisesInLoss",
            [
                "compute_loss raised KeyError: 'mae', at ",
                'weights["mae"] * nn.functional',
            ],
        ),
        (
            "SparseUnderAdam",
            [
                "the optimizer's step raised RuntimeError: Adam does not support sparse gradients",
            ],
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_its_remedy(name, messages):
    error = error_of(name)
    assert error.startswith(f"workload '{IDIOMS}:{name}': ")
    assert all(message in error for message in [*messages, "idioms.py:"]), error


BROKEN = """
from torch import nn, optim
from workloads.base import Workload

class Net(Workload):
    def build_model(self): return nn.Linear(2, 1)
    def build_optimizer(self, model): return optim.SGD(model.parameters())
    def batches(self, *, rank, world_size, device): return []
    def compute_loss(self, model, batch): return model(batch)
    def count_samples(self, batch): return 1
    def {method}(self, *_, **__): raise OSError("planted")
"""


@pytest.mark.parametrize(
    ("method", "what", "training"),
    [
        ("__init__", "constructor", None),
        ("__init__", "constructor", {"epochs": 1}),
        ("require_data", "require_data", None),
        ("batches_per_epoch", "batches_per_epoch", {"epochs": 1}),
    ],
)
def test_what_raises_before_ranks_start_is_one_message(tmp_path, method, what, training):
    """It was a traceback, and exit code 1."""
    (tmp_path / "own.py").write_text(BROKEN.format(method=method))
    plan = write_plan(
        tmp_path,
        workload=f"{tmp_path}/own.py:Net",
        arms=["ddp", "fsdp2"],
        training=training,
        measurement={"local_every": 0, "control": False},
    )
    error = refused_command("compare", plan, "-o", tmp_path / "out")
    assert f"{what} raised OSError: planted, at " in error and "11 |     def" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_readmes_whole_model_has_nothing_to_mend(tmp_path):
    (tmp_path / "spirals.py").write_text(documented_files()["spirals.py"])
    assert check("Spirals", file=tmp_path / "spirals.py", options={"hidden": 32}) == []


def test_what_works_and_should_be_known_is_told():
    assert check("Recommender") == []
    assert check("Unused") == ["no gradient from the first batch: '0.spare.weight', '0.spare.bias'"]
    assert (
        "'0.spare.weight', '0.spare.bias' got none from a batch; give the arm options"
        in error_of("Unused", backend="ddp", transport="gloo")
    )


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (
            "OwnLoss",
            [
                "compute_loss raised AttributeError: the wrapped model of DDP has no attribute loss",
                "call model(...)",
                "DDP exchanges only what passes its forward",
            ],
        ),
        *(
            (name, ["compute_loss() does not call the model that it is given; call model(...)"])
            for name in ("InnerModule", "PartAlone", "KeptModel")
        ),
        (
            "NeverCalled",
            ["compute_loss() does not call the model that it is given; call model(...)"],
        ),
        ("Exits", ["build_model raised SystemExit: no GPU"]),
    ],
)
def test_what_libraries_would_fail_on_later_is_told_at_once(name, messages):
    error = error_of(name, file=MISTAKES)
    assert all(message in error for message in [*messages, "mistakes.py:"]), error


class Evaluated(mistakes.Plain):
    def batches_per_epoch(self, *, world_size):
        return 1000

    def evaluation_batches(self, **place):
        return self.batches(**place)

    def evaluation_sums(self, model, batch):
        return 0.5


def test_what_evaluates_is_tried_before_a_training():
    assert check("Evaluated", file=__name__) == []
    assert "evaluation_sums raised AttributeError: 'float' object" in error_of(
        "Evaluated", file=__name__, tries=3
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(
            (IDIOMS, name)
            for name in (
                "Plain",
                "Scheduled",
                "TwoOptimizers",
                "Tied",
                "Checkpointed",
                "Uneven",
                "Finite",
            )
        ),
        *((MISTAKES, name) for name in ("Checkpointed", "Scripted")),
    ],
)
def test_ordinary_idioms_and_what_only_looks_like_a_mistake_have_nothing_to_mend(file, name):
    assert check(name, file=file) == []


@pytest.mark.parametrize("kind", sorted(mistakes.KINDS))
def test_batches_hold_what_people_put_there(monkeypatch, kind):
    monkeypatch.setattr(mistakes.Batches, "kind", kind)
    assert check("Batches", file=mistakes.__name__) == []
    given = [
        mistakes.Batches(local_batch_size=4, seed=1).batches(rank=rank, world_size=2, device=None)
        for rank in (0, 0, 1)
    ]
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
        (
            "horovod",
            "gloo",
            lambda: nn.Linear(2, 1).bfloat16(),
            "reduces no bfloat16 gradients, which 'weight' has",
        ),
        (
            "horovod",
            "mpi",
            lambda: nn.Linear(2, 1).to(torch.complex64),
            "reduces no complex64 gradients, which 'weight' has",
        ),
    ],
)
def test_tensors_that_a_library_cannot_carry_are_refused_by_name(
    backend, transport, model, message
):
    error = refusal(check_model, backend, model(), transport=transport, options={})
    assert message in error and re.search("held|weight", error)


@pytest.mark.parametrize("backend", ["ddp", "naive", "fsdp2", "horovod"])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.uint8, torch.bfloat16, torch.complex64]
)
def test_what_is_not_trained_may_be_of_any_ordinary_dtype(backend, dtype):
    for model in (
        holding(parameter=torch.ones(4).to(dtype)),
        holding(buffer=torch.ones(4).to(dtype)),
    ):
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
    for optimizer in (
        NoDefault(model.parameters(), 0.1),
        Around(torch.optim.SGD(model.parameters(), lr=0.1)),
    ):
        assert check_model(horovod, model, optimizer=optimizer, **given) == []
        assert check_model(ddp, model, optimizer=optimizer, **given) == []
    sealed = Sealed(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(
        PlanError, match=r"which optimizer class 'Sealed' does not allow .AttributeError"
    ):
        check_model(horovod, model, optimizer=sealed, **given)
    around = Around(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(
        PlanError,
        match=r"ZeroRedundancyOptimizer rebuilds the optimizer .* class 'Around' does not allow",
    ):
        check_model(
            ddp,
            model,
            optimizer=around,
            transport="gloo",
            options={"zero_redundancy_optimizer": True},
        )


def test_what_a_backend_makes_of_parameters_without_gradient():
    model, given = nn.Linear(2, 1), {"transport": "gloo", "missing": ["spare.weight"]}
    with pytest.raises(PlanError, match=r"give the arm options: \{find_unused_parameters: true\}"):
        check_model("ddp", model, options={}, **given)
    assert check_model("ddp", model, options={"find_unused_parameters": True}, **given) == []
    (note,) = check_model("horovod", model, options={}, **given)
    assert note.startswith("Horovod exchanges zeros for 'spare.weight', which get no gradient")
    assert (
        check_model("fsdp2", model, options={}, **given)
        == check_model("naive", model, options={}, **given)
        == []
    )


@pytest.mark.parametrize(
    ("backend", "transport", "options", "message"),
    [
        ("ddp", "gloo", {"comm_hook": "fp16"}, "without comm_hook only"),
        ("ddp", "mpi", {}, "over gloo or nccl"),
        ("fsdp2", "gloo", {}, "build the embedding with sparse=False"),
        ("horovod", "mpi", {"op": "Adasum"}, "use op 'Average'"),
    ],
)
def test_sparse_gradients_are_refused_where_they_cannot_be_exchanged(
    backend, transport, options, message
):
    with pytest.raises(PlanError, match="sparse") as caught:
        check_model(
            backend, nn.Linear(2, 1), transport=transport, options=options, sparse=["rows.weight"]
        )
    assert message in str(caught.value)


def test_what_is_no_model_is_refused_before_anything_starts():
    unfinished = refused_command("check", f"{IDIOMS}:Unfinished")
    wanted = "has yet to define batches, build_optimizer, compute_loss, count_samples, which every"
    assert wanted in unfinished
    assert "'collectives' is a micro-benchmark" in refused_command("check", "collectives")


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "import gpt_model_missing\n",
            ["No module named 'gpt_model_missing'; install 'gpt_model_missing', or put it beside"],
        ),
        ("import torch\n\nclass Mine(\n", ["SyntaxError", ":3"]),
        (
            "import argparse\nargs = argparse.ArgumentParser().parse_args()\n",
            ["calls parse_args() when imported", ":2", "__main__"],
        ),
        (
            "import sys\nif len(sys.argv) < 9:\n    sys.exit('usage')\n",
            ["ends the program when imported, by sys.exit('usage')", ":3"],
        ),
        (
            "import torch\nVOCABULARY = undefined_size\n",
            ["NameError: name 'undefined_size'", ":2", "VOCABULARY = undefined_size"],
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_with_its_line(tmp_path, text, messages):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(PlanError, match="cannot be loaded") as caught:
        resolve_workload(f"{path}:Mine", {})
    assert all(message in str(caught.value) for message in messages), str(caught.value)


def test_threads_that_import_at_once_leave_the_process_as_it_was():
    """Each host's command asks the launchers for their variables, in a thread of its own.

    The first to begin ends first."""
    before = sys.argv
    began, joined, ended = (threading.Event() for _ in range(3))

    def import_first():
        with importing():
            began.set()
            joined.wait(0.2)
        ended.set()

    def import_second():
        began.wait()
        with importing():
            joined.set()
            ended.wait(0.2)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(import_first), pool.submit(import_second)]:
            done.result()
    assert sys.argv == before
