"""Per-rank and per-host figures, and bytes per link, by hand."""

from __future__ import annotations

import pytest

from reports.conclusions.machine import ring_bytes, share_sent, summarise_links
from reports.formats.texts import sections
from tests.kit.changed import changed
from tests.kit.results_factory import concluded, make_plan, write_results

GRADIENTS = 8_000_000


def test_what_a_ring_needs_by_hand():
    assert ring_bytes(["host1", "host2"], 100) == {"host1": 100, "host2": 100}
    assert ring_bytes(["host1", "host1", "host2", "host2"], 100) == {"host1": 150, "host2": 150}
    assert ring_bytes(["host1", "host2", "host1", "host2"], 100) == {"host1": 300, "host2": 300}
    assert ring_bytes(["host1"] * 4, 100) == {"host1": 0}
    assert (
        share_sent({"comm_hook": "fp16"}),
        share_sent({"compression": "fp16"}),
        share_sent({"op": "Sum"}),
    ) == (0.5, 0.5, 1.0)


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
        block.link_bytes = {
            "host2": (sent // 2, sent),
            "host1": (sent, sent // 2),
        }
    first, two = summarise_links(plan, [record])
    assert (first.host, first.needed_bytes) == ("host1", GRADIENTS)
    assert first.sent_bytes == pytest.approx(GRADIENTS)
    assert first.received_bytes == two.sent_bytes == pytest.approx(GRADIENTS / 2)
    without_local = changed(
        record, blocks=[block for block in record.blocks if block.kind == "sync"]
    )
    assert summarise_links(plan, [without_local]) == []


@pytest.mark.slow
def test_of_very_many_ranks_the_slowest_are_shown(tmp_path):
    plan = changed(make_plan([], launches=1, rounds=2, local_every=2, floor=False), world_size=100)
    comparison = concluded(
        tmp_path, plan=plan, late_s={("ddp-gloo", 7): 0.016}, noise=0.0, drift=0.0
    )
    own_s = [rank.own_s for rank in comparison.arm("ddp-gloo").by_rank.ranks]
    assert own_s[7] == pytest.approx(2 * own_s[0], rel=0.05)
    shown = sections(comparison)["ranks"]
    ranks = [row.entries[1].text for row in shown.table.rows if row.entries[0].text == "ddp-gloo"]
    assert len(ranks) == 16 and "7" in ranks
    assert "Of 100 ranks the 16 that take longest" in shown.caption
