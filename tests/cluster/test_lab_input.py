"""What the lab refuses before anything is made; runs everywhere, without root."""

from __future__ import annotations

import os

import pytest

from tests.kit.lab import programs
from tests.kit.lab.state import SUBNET, LabError, LabSettings


def test_nobody_but_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"only root may make; this is user 1000; try: sudo /.*/python.* -m tests.kit.lab"):
        programs.require_root()


def test_missing_programs_are_told_with_their_packages(monkeypatch):
    monkeypatch.setattr(programs, "find_program", lambda name: None if name in ("sshd", "tc", "ip") else f"/bin/{name}")
    with pytest.raises(LabError, match=r"needs ip, tc, sshd, not found .* apt-get install iproute2 openssh-server$"):
        programs.require_programs()


def test_a_root_that_may_not(monkeypatch):
    monkeypatch.setattr(programs, "find_program", lambda name: "/bin/false")
    with pytest.raises(LabError, match=r"may not make namespaces .*docker run --privileged"):
        programs.require_programs()


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
