"""Per-rank and per-host figures, and bytes per link, by hand."""

from __future__ import annotations

import pytest

from reports.conclusions.machine import ring_bytes, share_sent, summarise_links
from tests.kit.results_factory import make_plan, write_results

GRADIENTS = 8_000_000


@pytest.mark.parametrize(
    ("hosts", "needed"),
    [
        ([1, 2], {1: 100, 2: 100}),
        ([1, 1, 2, 2], {1: 150, 2: 150}),
        ([1, 2, 1, 2], {1: 300, 2: 300}),
        ([1, 1, 1, 1], {1: 0}),
    ],
)
def test_what_a_ring_needs_by_hand(hosts, needed):
    assert ring_bytes(hosts, 100) == needed


@pytest.mark.parametrize(
    ("settings", "share"),
    [({"comm_hook": "fp16"}, 0.5), ({"compression": "fp16"}, 0.5), ({"op": "Sum"}, 1.0)],
)
def test_compression_halves_what_is_sent(settings, share):
    assert share_sent(settings) == share


@pytest.mark.slow
def test_bytes_per_step_are_what_blocks_with_exchange_send_more(tmp_path):
    """A block sends 5 MB beside its steps, of which two steps are not timed."""
    plan = make_plan([], launches=1, rounds=4, local_every=2)
    folder = write_results(tmp_path, plan=plan)
    (record,) = [record for record in folder.records() if record.arm == "ddp-gloo"]
    for rank in record.ranks:
        rank.model, rank.host = {"gradient_bytes": GRADIENTS}, f"host{rank.rank + 1}"
    for block in record.blocks:
        sent = 5_000_000 + (block.steps + 2) * GRADIENTS * (block.kind == "sync")
        # in the order in which hosts reported
        block.link_bytes = {"host2": (sent // 2, sent), "host1": (sent, sent // 2)}
    first, second = summarise_links(plan, [record])
    assert (first.host, first.needed_bytes) == ("host1", GRADIENTS)
    assert first.sent_bytes == pytest.approx(GRADIENTS)
    assert first.received_bytes == second.sent_bytes == pytest.approx(GRADIENTS / 2)
    record.blocks = [block for block in record.blocks if block.kind == "sync"]
    assert summarise_links(plan, [record]) == [], "without local blocks it is not known"
