"""Names, addresses and cores of a lab's hosts; runs everywhere, without root."""

from __future__ import annotations

from tests.kit.lab.state import SUBNET, LabSettings


def test_every_host_has_a_name_and_an_address():
    settings = LabSettings(hosts=16)
    addresses = [settings.address(name) for name in settings.names]
    assert addresses[0] == "10.77.0.1"
    assert len(set(addresses)) == 16
    assert settings.names[-1] == "host16"
    assert all(address in map(str, SUBNET.hosts()) for address in addresses)


def test_cores_are_shared_out_and_where_there_are_too_few_taken_in_turn():
    three = LabSettings(hosts=3)
    assert [three.cores(name, [0, 1, 4, 5, 6, 7, 9]) for name in three.names] == [[0, 1], [4, 5], [6, 7]]
    assert [three.cores(name, [2, 3]) for name in three.names] == [[2], [3], [2]]
