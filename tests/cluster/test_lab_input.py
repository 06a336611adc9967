"""What the lab refuses before anything is made; runs everywhere, without root."""

from __future__ import annotations

import os

import pytest

from tests.conftest import run_here
from tests.kit.lab import programs
from tests.kit.lab.__main__ import app
from tests.kit.lab.links import parse_delay, parse_rate, require_shaping
from tests.kit.lab.state import STATE, SUBNET, LabError, LabSettings


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [("1gbit", 10**9), ("2.5gbit", 2_500_000_000), ("100Mbit", 10**8), ("100kbit", 10**5), ("100gbit", 10**11)],
)
def test_rates(text, bits_per_s):
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize(
    "text", ["", "fast", "1", "1 gb", "0mbit", "-1gbit", "99kbit", "101gbit", "1e9bit", "1gbit; reboot", "٣gbit"]
)
def test_rates_that_are_refused(text):
    with pytest.raises(LabError, match="is not accepted; give 100kbit to 100gbit"):
        parse_rate(text)


def test_delays():
    assert [parse_delay(text) for text in ("1ms", "250us", "0.5s")] == [1000, 250, 500_000]
    for text in ("0ms", "11s", "1", "soon", "1m"):
        with pytest.raises(LabError, match="is not accepted; give 1us to 10s"):
            parse_delay(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "fast"], "ringside: --rate 'fast' is not accepted; give 100kbit to 100gbit"),
        (["--delay", "soon"], "ringside: --delay 'soon' is not accepted; give 1us to 10s"),
        (["--hosts", "0"], "ringside: --hosts 0 is not accepted; give 1 to 16"),
        (["--hosts", "17"], "ringside: --hosts 17 is not accepted"),
    ],
)
def test_bad_input_is_exit_code_2(arguments, message):
    before = STATE.exists()
    done = run_here(lambda: app(["up", *arguments]))
    assert done.returncode == 2
    assert message in done.stderr
    assert STATE.exists() == before


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


def test_a_kernel_without_the_queue(monkeypatch):
    def refuse(*argv, **_):
        raise LabError("Error: Specified qdisc kind is unknown.")

    monkeypatch.setattr("tests.kit.lab.links.run", refuse)
    require_shaping(LabSettings())
    with pytest.raises(LabError, match="--delay: it has no netem queue"):
        require_shaping(LabSettings(delay_us=1000))


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
