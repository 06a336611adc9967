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

from measurement.rank_agreement import describe_rank_difference
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


def rows(text):
    """The cells of a table in which ``-`` is nothing; the last may hold bars."""
    number = text.strip().splitlines()[0].count(" | ")
    for line in text.strip().splitlines():
        yield ["" if cell == "-" else cell for cell in line.split(" | ", number)]


def planted(text):
    """By what both scripts do and what the new one does besides: what is said of it, and the fields
    in which it is said."""
    return {(both, new): (said, fields) for both, new, fields, said in rows(text)}


PLANTED = planted(r"""
- | - | buffers.by_rank | buffers differ between ranks of old
- | rate | optimizer.0.0.lr | learning rate of new is 2 times that
- | no_sampler | batches sampler loader epoch | no sampler shares out the data of new|every rank of new reads the same batches
- | another_shard | batches sampler | every rank of new reads the same batches.*sampler.rank 0
- | sums | gradients.scale ddp.comm_hook | gradients of new are 2 times as large.*number of ranks
seeds_at_the_start | no_broadcast | parameters.by_rank gradients | ranks of new start apart
- | dropout | model.dropout | dropout.*0\.5
- | batch | loader rank_local_batch epoch | each rank of new takes 16 samples, of old 8
- | fp16 | ddp.comm_hook | new exchanges gradients in float16
- | bf16 | ddp.comm_hook | new exchanges gradients in bfloat16
schedule | schedule_by_epoch | schedule.lr | learning rate of the first 5 steps: 0.05 to 0.0\d+ in old
- | optimizer_first | optimizer.left_out | no step of new changes .*made before the model
- | head_alone | optimizer.left_out | no step of new changes conv.*lacks them
- | no_set_epoch | sampler.set_epoch | set_epoch
metrics | sums_metrics | step.collectives | plants.py:\d+.*sum
- | clips | step.clipping step.line | clip_grad_norm_ 0\.1
- | group_norm | model.norms model.buffers | GroupNorm
- | inner_module | gradients.by_rank | ranks of new.*\bmodule\b
- | drops_last | loader epoch | drop_last
accumulates | undivided | gradients.scale | gradients of new are 3 times as large.*passes
accumulates | divided_twice | gradients.scale | gradients of old are 3 times as large.*passes
accumulates | late_no_sync | step.exchanging_passes | exchanging_passes +1 +3
loads_weights | loads_late | parameters.by_rank gradients | ranks of new start apart
sends_object | keeps_own_object | optimizer.0.0.lr parameters.by_rank schedule | learning rate.*by rank|lr.*by rank
scales clips | clips_scaled | step.clipping | before unscale_\(\): clip_grad_norm_ 0.1
spare decay | find_unused_parameters | gradients.zeros ddp.find_unused_parameters | old has zeros as gradients of spare.*none: weight decay moves them
accumulates | always_exchanges | step.exchanging_passes | exchanging_passes +1 +3
resumes | resumes_on_rank_0 | parameters.by_rank optimizer.loaded | ranks of new.*state
- | find_unused_parameters | ddp.find_unused_parameters | find_unused_parameters
- | small_buckets | ddp.bucket_cap_mb | bucket_cap_mb.*0.00
- | static_graph | ddp.static_graph | static_graph
- | gradient_as_bucket_view | ddp.gradient_as_bucket_view | gradient_as_bucket_view
workers | forks | loader.multiprocessing_context | multiprocessing_context.*Fork
- | workers | loader.workers loader.prefetch | loader.workers.*1
- | compiles | model.compiled | torch.compile|model.compiled
- | channels_last | model.channels_last | channels_last
- | checkpoints | step.checkpointed | checkpoint
- | frozen_norm | model.frozen_norms | frozen_norms|evaluation mode
- | decay | optimizer.0.0.weight_decay | weight_decay
- | adam | optimizer | AdamW
- | zeroes_in_place | step.set_to_none | set_to_none
- | never_zeroes | optimizer.keeps_gradients | new never zeroes its gradients
- | denormals | denormals | denormal
- | tf32 | matmul_precision tf32 | matmul_precision
- | autocast | autocast | autocast.enabled +off +on
- | threads | threads | threads.*\b2\b
- | alike_seeds | seed | seeds are alike on all ranks of new
- | smooths | - | new .*gradients
- | a_part_more | model optimizer.0.parameters | model.parameters +276 +348
- | barriers | step.collectives step.line | barrier at plants.py:\d+
- | metrics | step.collectives step.line | all_reduce of 4 B at plants.py:\d+
- | saves | step.line | plants.py:\d+.*torch.save
- | prints | step.line | plants.py:\d+.*print
""")
OF_HOROVOD = planted(r"""
- | predivides | horovod.gradient_predivide_factor | gradient_predivide_factor
- | groups | horovod.groups | horovod.groups +– +1
- | sums | gradients.scale horovod.op | gradients of new are 2 times as large.*number of ranks
clips | clips_first | step.clipping parameters.by_rank gradients.by_rank | before the exchange: clip_grad_norm_ 0.1|clips gradients before
seeds_at_the_start | no_broadcast | parameters.by_rank gradients | ranks of new start apart
- | bound | affinity.cores threads.interop transport | affinity.cores +\d+ +1
resumes | loses_state | optimizer.loaded | optimizer.loaded +6 +0
- | --cycle-time-ms 20 | horovod.cycle_time environment.HOROVOD_CYCLE_TIME | HOROVOD_CYCLE_TIME|cycle_time
- | --fusion-threshold-mb 1 | horovod.fusion_threshold environment.HOROVOD_FUSION | usion.threshold|FUSION_THRESHOLD
""")
"""As ``PLANTED``: the new script is another one of Horovod, beside DDP's."""
ALIKE = {
    (old, new): fields
    for old, new, fields in rows("""
horovod | ddp | -
horovod accumulates | ddp accumulates | -
horovod metrics | ddp metrics | -
horovod clips | ddp clips | -
horovod schedule | ddp schedule | -
horovod | ddp says_defaults | -
horovod | ddp own_buffers | -
horovod | ddp own_shares no_set_epoch | sampler loader.samples
horovod | ddp ahead | -
horovod even large | ddp even halves | accumulation loader rank_local_batch step.exchanging_passes
horovod workers | ddp workers | -
horovod resumes | ddp resumes | -
horovod broadcasts_new_state | ddp | -
horovod rate | ddp rate | -
horovod loads_weights | ddp loads_weights | -
horovod sends_object | ddp sends_object | -
horovod scales clips | ddp scales clips | -
horovod fp16 | ddp fp16 | horovod.compression ddp.comm_hook
horovod sums | ddp sums | horovod.op ddp.comm_hook
horovod predivides | ddp | horovod.gradient_predivide_factor
horovod groups | ddp | horovod.groups
horovod set | ddp set | horovod.process_set
horovod | ddp keeps_buffers | -
horovod spare | ddp spare find_unused_parameters | ddp.find_unused_parameters
""")
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
