"""Per-rank and per-host figures, and bytes per link, by hand."""

from __future__ import annotations

import pytest

from reports.conclusions.machine import ring_bytes, share_sent


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
