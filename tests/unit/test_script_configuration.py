"""What scripts do differently: each usual mistake of a porting is named first, in a short sentence;
other settings are sorted."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from measurement.conditions.differences import unlike_work
from measurement.rank_agreement import agreement, describe_rank_difference
from reports.formats.terminal import differences_table
from reports.scripts.configuration import script_differences
from reports.scripts.script_arms import OF_LOADER
from reports.wording.causes import work_note
from tests.kit.script_factory import CONFIGURATION, HOROVOD, Script, one_launch, script_plan

SOUND = Script()
NO_SAMPLER = {
    "sampler.class": "RandomSampler",
    "sampler.replicas": None,
    "sampler.rank": None,
    "loader.length": 188,
    "epoch.steps": 188,
}
GLOBAL_BATCH = {"loader.batch_size": 64, "loader.length": 47, "epoch.steps": 47}
MISTAKES = {
    "learning rate not scaled": (
        Script(learning_rate=0.2),
        SOUND,
        "optimizer.0.0.lr",
        "rate of old is 2 times that of new .* the number of ranks: old may scale it once more",
    ),
    "no sampler": (
        SOUND,
        Script(configuration=NO_SAMPLER),
        "sampler.class",
        "no sampler shares out the data of new",
    ),
    "no sampler, and the same order": (
        SOUND,
        Script(configuration=NO_SAMPLER, same_batches=True),
        "batches.by_rank",
        r"every rank of new reads the same batches \(sampler.class RandomSampler",
    ),
    "op=Sum": (
        SOUND,
        Script(configuration={**HOROVOD, "horovod.op": "Sum"}, gradient_factor=2.0),
        "gradients.scale",
        "gradients of new are 2 times .* new sums where old averages",
    ),
    "passes in a step not divided by": (
        Script(configuration={"accumulation": 3}),
        Script(configuration={"accumulation": 3}, gradient_factor=3.0),
        "gradients.scale",
        "the number of passes in a step: new sums where old averages",
    ),
    "one parameter not averaged": (
        SOUND,
        Script(not_exchanged=["fc.bias"]),
        "gradients.by_rank",
        "gradients of fc.bias differ between the ranks of new .*not averaged",
    ),
    "ranks start apart": (
        SOUND,
        Script(starts_apart=True),
        "parameters.by_rank",
        "the ranks of new start apart: .*conv.weight",
    ),
    "dropout seeded alike": (
        Script(seeds=[1, 2]),
        SOUND,
        "seed.torch",
        "seeds are alike on all ranks of new.* dropout",
    ),
    "batch global instead of per rank": (
        SOUND,
        Script(samples=64, configuration={"rank_local_batch": 64, **GLOBAL_BATCH}),
        "rank_local_batch",
        "each rank of new takes 64 samples, of old 32, a factor of the number of ranks",
    ),
    "fp16 compression": (
        Script(configuration=HOROVOD),
        Script(configuration={"ddp.comm_hook": "fp16_compress_hook"}),
        "ddp.comm_hook",
        "new exchanges gradients in float16",
    ),
    "buffers not broadcast": (
        SOUND,
        Script(configuration={"ddp.broadcast_buffers": False}, own_buffers=True),
        "ddp.broadcast_buffers",
        "new does not broadcast buffers",
    ),
    "schedule stepped per epoch": (
        Script(rate_at=lambda step: 1 - step / 10, configuration={"schedule.class": "LambdaLR"}),
        Script(configuration={"schedule.class": "LambdaLR"}),
        "schedule.lr",
        r"of the first 5 steps: 0.1 to 0.06 in old \(LambdaLR\) and 0.1 in new \(LambdaLR\)",
    ),
    "schedule stepped per epoch, constant so far": (
        Script(configuration={"schedule.class": "StepLR", "schedule.steps": 5}),
        Script(configuration={"schedule.class": "StepLR", "schedule.steps": 0}),
        "schedule.lr",
        r"in old \(StepLR, stepped 5 times\) and 0.1 in new \(StepLR, stepped 0 times\)",
    ),
    "optimizer made before the model moved": (
        SOUND,
        Script(left_out=["conv.weight", "conv.bias", "fc.weight", "fc.bias"]),
        "optimizer.left_out",
        "no step of new changes conv.weight, .* and 1 more: .* before the model was moved",
    ),
    "gradients never zeroed": (
        Script(configuration={"optimizer.keeps_gradients": False}),
        Script(configuration={"optimizer.keeps_gradients": True}),
        "optimizer.keeps_gradients",
        r"new never zeroes its gradients.* zero_grad\(\)",
    ),
}


def differences(old, new, allow=()):
    return script_differences(one_launch(script_plan(), {"old": old, "new": new}), allow=allow)


def preview(rows, *, width=120):
    """What a terminal of this width shows before the timing."""
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(differences_table(rows))
    return console.file.getvalue()


STREAM = {
    "sampler.class": "_InfiniteConstantSampler",
    "sampler.replicas": None,
    "sampler.rank": None,
    "loader.length": None,
    "epoch.steps": None,
    "loader.samples": None,
}
UNSEEN = {name: None for name in CONFIGURATION if name.startswith(OF_LOADER)} | {
    "sampler.rank": None
}


@pytest.mark.parametrize(
    "shares",
    [
        STREAM,
        NO_SAMPLER | {"sampler.class": "SamplerOfOnesOwn"},
        NO_SAMPLER | {"loader.samples": 12000},
        UNSEEN,
    ],
    ids=[
        "stream",
        "sampler of one's own",
        "a share of a larger set",
        "no loader seen",
    ],
)
def test_data_that_may_share_themselves_out_are_not_said_to_be_read_whole_by_each_rank(shares):
    for old, new in ((SOUND, Script(configuration=shares)), (Script(configuration=shares), SOUND)):
        assert "mistake" not in {row.severity for row in differences(old, new)}


def test_a_loader_that_was_not_seen_is_said_once_and_has_no_settings():
    (row,) = differences(SOUND, Script(configuration=UNSEEN))
    assert row.sentence == "loader.class: DataLoader in old, not seen on every rank in new"


@pytest.mark.parametrize(("old", "new", "field", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_each_planted_mistake_is_named_first_and_in_few_words_whichever_script_has_it(
    old, new, field, sentence
):
    first = differences(old, new)[0]
    assert (first.field, first.severity, set(first.values)) == (field, "mistake", {"old", "new"})
    assert re.search(sentence, first.sentence), first.sentence
    assert len(first.sentence.split()) <= 25
    assert differences(new, old)[0].field in (field, "horovod.compression")


def test_ranks_that_start_apart_by_an_empty_step_are_told_and_measured():
    """Horovod's ImageNet example that goes on from a checkpoint, which rank 0 alone has loaded."""
    record = ranks_of(Script(starts_apart=True))
    assert agreement(record.scripts).is_wrong
    for report in record.scripts:
        report.configuration["optimizer.empty_steps"] = report.rank
    assert not agreement(record.scripts).is_wrong
    assert "the step without gradients" in describe_rank_difference(record)


@pytest.mark.parametrize(("decay", "severity"), [(0.01, "training"), (0.0, "note")])
def test_the_empty_step_of_horovods_broadcast_is_told_where_weight_decay_acts_in_it(
    decay, severity
):
    old, new = (
        Script(configuration={"optimizer.empty_steps": steps, "optimizer.0.0.weight_decay": decay})
        for steps in (1, 0)
    )
    (row,) = (row for row in differences(old, new) if "empty" in row.field)
    assert row.severity == severity


@pytest.mark.parametrize("script", [SOUND, Script(seeds=[1, 2])])
def test_equal_scripts_differ_in_nothing(script):
    assert differences(script, script) == []


def test_a_port_that_is_right_has_only_notes_which_the_preview_shows():
    rows = differences(SOUND, Script(configuration=HOROVOD))
    assert {row.severity for row in rows} == {"note"}
    assert [row.field for row in rows if row.is_asked] == ["library"], "it has a row on the page"
    assert not any(row.changes_work for row in rows)
    assert all(row.field in preview(rows) for row in rows)


def test_horovod_does_not_broadcast_buffers_and_ddp_does_which_is_no_mistake():
    # behind a forward pass, the ranks of DDP have their own, too
    row = differences(Script(configuration=HOROVOD, own_buffers=True), Script(own_buffers=True))[0]
    assert (row.field, row.severity) == ("buffers.by_rank", "training")
    assert "new gets rank 0's before each forward pass" in row.sentence
    assert row.is_default and row.allowed, "nobody asked for it"


def test_buffers_that_differ_between_the_ranks_of_one_script_are_named():
    row = differences(SOUND, Script(own_buffers=True))[0]
    assert (row.field, row.severity, row.allowed) == ("buffers.by_rank", "training", False)
    assert row.sentence.startswith("buffers differ between ranks of new (bn.running_mean)")


def test_a_port_that_keeps_buffers_as_horovod_does_makes_no_mistake():
    kept = Script(configuration={"ddp.broadcast_buffers": False}, own_buffers=True)
    rows = differences(Script(configuration=HOROVOD, own_buffers=True), kept)
    assert "mistake" not in {row.severity for row in rows}


def test_work_that_differs_withholds_the_verdict_unless_it_is_allowed():
    settings = {"model.parameters": 400, "accumulation": 2, "loader.workers": 4}
    new = Script(configuration=settings, samples=96)
    rows = differences(SOUND, new)
    assert [row.field for row in rows if row.withholds] == ["accumulation", "model.parameters"]
    assert [row.field for row in rows if row.severity == "speed"] == ["loader.workers"]
    unlike = unlike_work(rows, baseline="old")
    assert "accumulation, model.parameters" in work_note(unlike["new"])
    allowed = differences(SOUND, new, allow=["accumulation"])
    assert [row.field for row in allowed if row.withholds] == ["model.parameters"]
    assert unlike_work(differences(SOUND, new, allow=["all"]), baseline="old") == {}


def test_a_step_of_several_small_batches_is_compared_where_it_has_as_many_samples():
    small = {"loader.batch_size": 16, "rank_local_batch": 16, "accumulation": 2}

    def withheld_by(**changes):
        script = Script(configuration=small | changes.pop("configuration", {}), **changes)
        return {row.field for row in differences(SOUND, script) if row.withholds}

    assert withheld_by() == set()
    assert withheld_by(samples=24) >= small.keys()
    assert withheld_by(configuration={"epoch.steps": 80}) != set()


def test_gradients_that_are_clipped_in_one_are_not_said_to_be_summed():
    clipped = Script(configuration={"step.clipping": "clip_grad_norm_ 1.0"}, gradient_factor=0.5)
    assert [
        row.field for row in differences(Script(configuration={"step.clipping": "none"}), clipped)
    ] == ["step.clipping"]


def test_settings_are_said_in_words_and_the_most_telling_come_first():
    new = {"threads.torch": 2, "version.torch": "2.9.1", "optimizer.0.0.weight_decay": 0.01}
    rows = differences(SOUND, Script(configuration=new))
    assert [row.field for row in rows] == [
        "optimizer.0.0.weight_decay",
        "threads.torch",
        "version.torch",
    ]
    assert rows[1].sentence == "threads of a rank: 1 in old, 2 in new"


@pytest.mark.parametrize(
    ("used", "severity"), [({}, "note"), ({"transport": "nccl", "threads.torch": 4}, "speed")]
)
def test_variables_that_steer_nothing_here_are_notes(used, severity):
    """As horovodrun and torchrun set them."""
    named = {"environment.NCCL_SOCKET_IFNAME": "lo", "environment.OMP_NUM_THREADS": "1"}
    new = Script(configuration={**used, **named, "threads.torch": 1})
    assert {row.severity for row in differences(Script(configuration=used), new)} == {severity}


def ranks_of(script):
    """The record of an arm that runs this script."""
    return one_launch(script_plan(), {"old": SOUND, "new": script})[-1]


@pytest.mark.parametrize(
    "change", [{}, {"sharded": True, "starts_apart": True}, {"own_buffers": True}]
)
def test_ranks_that_agree_in_what_all_have_are_not_said_to_be_apart(change):
    assert describe_rank_difference(ranks_of(Script(**change))) is None


def test_ranks_that_come_apart_are_told_with_the_step():
    record = ranks_of(SOUND)
    for step in record.scripts[1].steps[2:]:
        step.parameters["fc.bias"] = [value + 0.1 for value in step.parameters["fc.bias"]]
    apart = "the ranks of new start alike and are apart from step 3 on: fc.bias"
    assert describe_rank_difference(record) == apart


def test_the_preview_fits_on_80_columns_and_in_15_rows():
    settings = {f"environment.VARIABLE_{number}": "x" * 200 for number in range(30)}
    text = preview(differences(SOUND, Script(configuration=settings, learning_rate=0.2)), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert len(re.findall(r"environment", text)) == 15
    assert "and 16 more, in the report" in text
    assert "number of ranks" in " ".join(text.split())
