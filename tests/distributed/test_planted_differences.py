"""A script and its port with one planted difference: what a user reads before the timing names it,
and accuses nobody else.

RINGSIDE_DRAW=all pytest tests/distributed/test_planted_differences.py -rA
"""

from __future__ import annotations

import contextlib
import functools
import io
import re

import pytest
from rich.console import Console

from measurement.judging.ranks import describe_rank_difference
from reports.formats.terminal import differences_table
from reports.scripts.configuration import script_differences
from reports.scripts.equality import judge_equality
from runners.scripts.script_setup import lists_for_agent
from tests.conftest import needs_horovod, no_process_stays
from tests.kit.script_factory import reported, script_plan
from tests.kit.scripts import ScriptDriver, two_ranks

pytestmark = [needs_horovod, pytest.mark.costly]

STARTED_BY = {
    "horovod": "horovodrun --gloo -np 2 -H localhost:2 {} python plants.py horovod",
    "bound": "mpirun -np 2 {} python plants.py horovod",
}
PLANTED = {
    # what both do, and what the port does besides: what is said of it, and the fields in which it
    # is said
    ("", ""): (r"buffers differ between ranks of old", "buffers.by_rank"),
    ("", "rate"): (r"learning rate of new is 2 times as high", "optimizer.0.0.lr"),
    ("", "no_sampler"): (
        r"no sampler shares out the data of new|every rank of new reads the same batches",
        "batches sampler loader epoch",
    ),
    ("", "another_shard"): (
        r"every rank of new reads the same batches.*sampler.rank 0",
        "batches sampler",
    ),
    ("", "sums"): (
        r"gradients of new are 2 times as large.*number of ranks",
        "gradients.scale ddp.comm_hook",
    ),
    ("seeds_at_the_start", "no_broadcast"): (
        r"ranks of new start apart",
        "parameters.by_rank gradients",
    ),
    ("", "dropout"): (r"dropout.*0\.5", "model.dropout"),
    ("", "batch"): (
        r"each rank of new takes 16 samples, of old 8",
        "loader rank_local_batch epoch",
    ),
    ("", "fp16"): (r"new exchanges gradients in float16", "ddp.comm_hook"),
    ("", "bf16"): (r"new exchanges gradients in bfloat16", "ddp.comm_hook"),
    ("schedule", "schedule_by_epoch"): (
        r"learning rate of the first 5 steps: 0.05 to 0.0\d+ in old",
        "schedule.lr",
    ),
    ("", "optimizer_first"): (
        r"no step of new changes .*made before the model",
        "optimizer.left_out",
    ),
    ("", "head_alone"): (r"no step of new changes conv.*lacks them", "optimizer.left_out"),
    ("", "no_set_epoch"): (r"set_epoch", "sampler.set_epoch"),
    ("metrics", "sums_metrics"): (r"plants.py:\d+.*sum", "step.collectives"),
    ("", "clips"): (r"clip_grad_norm_ 0\.1", "step.clipping step.line"),
    ("", "group_norm"): (r"GroupNorm", "model.norms model.buffers"),
    ("", "inner_module"): (r"ranks of new.*\bmodule\b", "gradients.by_rank"),
    ("", "drops_last"): (r"drop_last", "loader epoch"),
    ("accumulates", "undivided"): (
        r"gradients of new are 3 times as large.*passes",
        "gradients.scale",
    ),
    ("accumulates", "divided_twice"): (
        r"gradients of old are 3 times as large.*passes",
        "gradients.scale",
    ),
    ("accumulates", "late_no_sync"): (r"exchanging_passes +1 +3", "step.exchanging_passes"),
    ("loads_weights", "loads_late"): (r"ranks of new start apart", "parameters.by_rank gradients"),
    ("sends_object", "keeps_own_object"): (
        r"learning rate.*by rank|lr.*by rank",
        "optimizer.0.0.lr parameters.by_rank schedule",
    ),
    ("scales clips", "clips_scaled"): (
        r"before unscale_\(\): clip_grad_norm_ 0.1",
        "step.clipping",
    ),
    ("spare decay", "find_unused_parameters"): (
        r"old has zeros as gradients of spare.*none: weight decay moves them",
        "gradients.zeros ddp.find_unused_parameters",
    ),
    ("accumulates", "always_exchanges"): (r"exchanging_passes +1 +3", "step.exchanging_passes"),
    ("resumes", "resumes_on_rank_0"): (
        r"ranks of new.*state",
        "parameters.by_rank optimizer.loaded",
    ),
    ("", "find_unused_parameters"): (r"find_unused_parameters", "ddp.find_unused_parameters"),
    ("", "small_buckets"): (r"bucket_cap_mb.*0.00", "ddp.bucket_cap_mb"),
    ("", "static_graph"): (r"static_graph", "ddp.static_graph"),
    ("", "gradient_as_bucket_view"): (r"gradient_as_bucket_view", "ddp.gradient_as_bucket_view"),
    ("workers", "persistent"): (r"persistent_workers", "loader.persistent_workers"),
    ("workers", "forks"): (r"multiprocessing_context.*Fork", "loader.multiprocessing_context"),
    ("workers", "timeout"): (r"loader.timeout.*60", "loader.timeout"),
    ("workers", "prefetches"): (r"loader.prefetch.*4", "loader.prefetch"),
    ("", "workers"): (r"loader.workers.*1", "loader.workers loader.prefetch"),
    ("", "pinned"): (r"loader.pin_memory", "loader.pin_memory"),
    ("", "compiles"): (r"torch.compile|model.compiled", "model.compiled"),
    ("", "channels_last"): (r"channels_last", "model.channels_last"),
    ("", "checkpoints"): (r"checkpoint", "step.checkpointed"),
    ("", "frozen_norm"): (r"frozen_norms|evaluation mode", "model.frozen_norms"),
    ("", "fused"): (r"fused", "optimizer.0.0.fused"),
    ("", "foreach"): (r"foreach", "optimizer.0.0.foreach"),
    ("", "decay"): (r"weight_decay", "optimizer.0.0.weight_decay"),
    ("", "adam"): (r"AdamW", "optimizer"),
    ("", "zeroes_in_place"): (r"set_to_none", "step.set_to_none"),
    ("", "never_zeroes"): (r"new never zeroes its gradients", "optimizer.keeps_gradients"),
    ("", "denormals"): (r"denormal", "denormals"),
    ("", "tf32"): (r"matmul_precision", "matmul_precision tf32"),
    ("", "autocast"): (r"autocast.enabled +off +on", "autocast"),
    ("", "threads"): (r"threads.*\b2\b", "threads"),
    ("", "alike_seeds"): (r"seeds are alike on all ranks of new", "seed"),
    ("", "smooths"): (r"new .*gradients", ""),
    ("", "a_part_more"): (r"model.parameters +276 +348", "model optimizer.0.parameters"),
    ("", "barriers"): (r"barrier at plants.py:\d+", "step.collectives step.line"),
    ("", "metrics"): (r"all_reduce of 4 B at plants.py:\d+", "step.collectives step.line"),
    ("", "saves"): (r"plants.py:\d+.*torch.save", "step.line"),
    ("", "prints"): (r"plants.py:\d+.*print", "step.line"),
}
OF_HOROVOD = {
    ("", "predivides"): (r"gradient_predivide_factor", "horovod.gradient_predivide_factor"),
    ("", "groups"): (r"horovod.groups +– +1", "horovod.groups"),
    ("", "sums"): (
        r"gradients of new are 2 times as large.*number of ranks",
        "gradients.scale horovod.op",
    ),
    ("clips", "clips_first"): (
        r"before the exchange: clip_grad_norm_ 0.1|clips gradients before",
        "step.clipping parameters.by_rank gradients.by_rank",
    ),
    ("seeds_at_the_start", "no_broadcast"): (
        r"ranks of new start apart",
        "parameters.by_rank gradients",
    ),
    ("", "bound"): (r"affinity.cores +\d+ +1", "affinity.cores threads.interop transport"),
    ("resumes", "loses_state"): (r"optimizer.loaded +6 +0", "optimizer.loaded"),
    ("", "--cycle-time-ms 20"): (
        r"HOROVOD_CYCLE_TIME|cycle_time",
        "horovod.cycle_time environment.HOROVOD_CYCLE_TIME",
    ),
    ("", "--fusion-threshold-mb 1"): (
        r"usion.threshold|FUSION_THRESHOLD",
        "horovod.fusion_threshold environment.HOROVOD_FUSION",
    ),
}
"""As ``PLANTED``: the new script is another one of Horovod, beside DDP's."""
ALIKE = {
    ("horovod", "ddp"): "",
    ("horovod accumulates", "ddp accumulates"): "",
    ("horovod metrics", "ddp metrics"): "",
    ("horovod clips", "ddp clips"): "",
    ("horovod schedule", "ddp schedule"): "",
    ("horovod", "ddp says_defaults"): "",
    ("horovod", "ddp own_buffers"): "",
    ("horovod", "ddp own_shares no_set_epoch"): "sampler loader.samples",
    ("horovod", "ddp ahead"): "",
    (
        "horovod even large",
        "ddp even halves",
    ): "accumulation loader rank_local_batch step.exchanging_passes",
    ("horovod workers", "ddp workers"): "",
    ("horovod resumes", "ddp resumes"): "",
    ("horovod broadcasts_new_state", "ddp"): "",
    ("horovod rate", "ddp rate"): "",
    ("horovod loads_weights", "ddp loads_weights"): "",
    ("horovod sends_object", "ddp sends_object"): "",
    ("horovod scales clips", "ddp scales clips"): "",
    ("horovod fp16", "ddp fp16"): "horovod.compression ddp.comm_hook",
    ("horovod sums", "ddp sums"): "horovod.op ddp.comm_hook",
    ("horovod predivides", "ddp"): "horovod.gradient_predivide_factor",
    ("horovod groups", "ddp"): "horovod.groups",
    ("horovod set", "ddp set"): "horovod.process_set",
    ("horovod", "ddp keeps_buffers"): "",
    ("horovod spare", "ddp spare find_unused_parameters"): "ddp.find_unused_parameters",
}
"""Two scripts that train alike, however they are written, and the fields in which they may be said
to differ."""
HARMLESS = "buffers.by_rank"
"""Horovod sends no buffers, which is said of each pair."""


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """What the ranks of a script report of its first steps; each is started once."""

    @functools.cache
    def take(script):
        library, *words = script.split(" ")
        flags = [one for one in words if one.startswith("-") or one.isdigit()]
        words = [one for one in words if one not in flags]
        if library == "ddp":
            command = two_ranks("plants.py", library, *words)
        else:
            start = STARTED_BY["bound" if "bound" in words else library]
            command = [*start.format(" ".join(flags)).split(), *words]
        folder = tmp_path_factory.mktemp(library)
        with (
            no_process_stays(),
            contextlib.closing(ScriptDriver(folder, ranks=2, **lists_for_agent())) as arm,
        ):
            arm.start(*command)
            found = [reply.script for reply in arm.receive()]
            arm.finish()
        return found

    return take


def beside(old, new):
    """What is said of two scripts: the fields that are named besides notes, and all that a user
    reads before the timing."""
    records = reported(old, new)
    found = script_differences(records)
    console = Console(width=200, file=io.StringIO(), force_terminal=False)
    console.print(differences_table(found))
    equality = judge_equality(script_plan(), records)
    text = "\n".join(
        [console.file.getvalue(), equality.sentence, describe_rank_difference(records[-1]) or ""]
    )
    return {one.field: one for one in found if not one.is_note}, text, equality


def script_of(library, *plants):
    return " ".join(filter(None, [library, *plants]))


CASES = [
    *((("horovod", "ddp"), plants, *wanted) for plants, wanted in PLANTED.items()),
    *((("ddp", "horovod"), plants, *wanted) for plants, wanted in OF_HOROVOD.items()),
]


@pytest.mark.parametrize(
    ("libraries", "plants", "pattern", "fields"),
    CASES,
    ids=lambda one: "-".join(one) if isinstance(one, tuple) else "",
)
def test_a_planted_difference_is_named_and_nothing_else_is(
    taken, libraries, plants, pattern, fields
):
    differences, text, _ = beside(
        taken(script_of(libraries[0], plants[0])), taken(script_of(libraries[1], *plants))
    )
    assert re.search(pattern, text), text
    assert not fields or any(one.startswith(tuple(fields.split())) for one in differences), (
        "it is no note"
    )
    assert [one for one in differences if not one.startswith((*fields.split(), HARMLESS))] == [], (
        text
    )


@pytest.mark.parametrize(("scripts", "fields"), ALIKE.items(), ids=str)
def test_scripts_that_train_alike_are_not_accused(taken, scripts, fields):
    differences, text, equality = beside(*map(taken, scripts))
    assert "mistake" not in {one.severity for one in differences.values()}, text
    assert [one for one in differences if not one.startswith((*fields.split(), HARMLESS))] == [], (
        text
    )
    assert equality.unequal == [] and not any(one.withholds for one in differences.values()), text
