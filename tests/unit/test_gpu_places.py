"""Cores for ranks: equal shares, near each rank's GPU, by what Linux and CUDA say of a machine.

No GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from measurement import host
from runners.rank import resources
from runners.rank.resources import share_out

FIRST, SECOND = frozenset(range(4)), frozenset(range(4, 8))
UNKNOWN = frozenset()


@pytest.fixture(autouse=True)
def a_machine_with_one_socket(monkeypatch, tmp_path):
    """Linux tells nothing of sockets and hardware threads there."""
    monkeypatch.setattr(resources, "TOPOLOGY", tmp_path / "none")


@pytest.mark.parametrize(
    ("near", "shares"),
    [
        ([SECOND, FIRST], [[4, 5, 6, 7], [0, 1, 2, 3]]),
        ([SECOND, SECOND], [[4, 5, 6, 7], [0, 1, 2, 3]]),
        ([FIRST, FIRST, SECOND], [[0, 1], [2, 3], [4, 5]]),
        ([FIRST] * 9, [list(range(8))] * 9),
    ],
)
def test_shares_are_equal_and_near_the_gpu_as_far_as_cores_are_left(near, shares):
    assert share_out(range(8), near) == shares


def test_hardware_threads_of_a_core_stay_with_one_rank(monkeypatch, tmp_path):
    """Two sockets of two cores of two threads, numbered as Linux does: every first thread before
    all second ones."""
    monkeypatch.setattr(resources, "TOPOLOGY", tmp_path)
    for number in range(8):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{number % 4 // 2}\n")
        (folder / "core_id").write_text(f"{number % 2}\n")
    assert share_out(range(8), [UNKNOWN] * 4) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert share_out(range(8), [UNKNOWN] * 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]


def machine(monkeypatch, tmp_path, *, seen):
    """As many GPUs as CUDA shows, each near four cores: the first near the last ones."""
    for bus, listed in (("1b", "4-7"), ("1c", "0-1,2,3")):
        folder = tmp_path / f"0000:{bus}:00.0"
        folder.mkdir()
        (folder / "local_cpulist").write_text(f"{listed}\n")
    cards = [
        SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x1B, 0x1C)
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    monkeypatch.setattr(host, "PCI_DEVICES", tmp_path)


@pytest.mark.parametrize(
    ("seen", "ranks", "near"),
    [
        (2, 4, [SECOND, FIRST, SECOND, FIRST]),
        (1, 1, [SECOND]),
        (1, 2, [UNKNOWN] * 2),
        (0, 2, [UNKNOWN] * 2),
    ],
)
def test_cores_near_gpus_are_those_of_each_ranks_card(monkeypatch, tmp_path, seen, ranks, near):
    """A rank that sees one card beside other ranks has it for itself: where theirs are, it cannot
    know."""
    machine(monkeypatch, tmp_path, seen=seen)
    assert host.cores_near_gpus(ranks) == near


def test_a_card_of_which_linux_tells_nothing_is_near_no_core(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, seen=2)
    assert host.cores_near("0000:99:00.0") == host.cores_near(None) == UNKNOWN
