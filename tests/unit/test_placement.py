"""Plans for several hosts: what is accepted, where ranks lie, what commands over ssh look like, and
blocks made whole."""

from __future__ import annotations

import json
import random
import shlex
import subprocess

import pytest

from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError
from runners.hosts import preflight as inspection
from runners.hosts.placement import Placement, planned_hosts, spare_hosts
from runners.hosts.preflight import host_differences
from runners.launchers import HERE, HostSlots
from runners.planning.arms import resolve_arms
from runners.processes import remote, remote_results
from tests.kit.plans import read_tiny, tiny, written_again
from tests.kit.refusals import refusal


def as_text(hosts):
    return ",".join(map(str, hosts))


def test_slots_tell_the_world_size(tmp_path):
    plan = read_tiny(tmp_path, hosts=["host1:2", "host2:2"], world_size=None)
    assert plan.world_size == 4
    assert as_text(planned_hosts(plan)) == "host1:2,host2:2"
    assert written_again(plan) == plan


def test_a_hostfile_is_read_with_the_plan(tmp_path):
    (tmp_path / "hosts").write_text("host1 slots=2  # first\n\n[fe80::2]:4\n")
    plan = read_tiny(tmp_path, hosts=str(tmp_path / "hosts"), world_size=3)
    assert plan.hosts == "host1:2,[fe80::2]:4"
    assert as_text(planned_hosts(plan)) == "host1:2,[fe80::2]:1"


def test_without_hosts_all_ranks_are_here(tmp_path):
    plan = read_tiny(tmp_path)
    here = (HostSlots(host=HERE, slots=2),)
    assert planned_hosts(plan) == planned_hosts(read_tiny(tmp_path, hosts="localhost:8")) == here
    assert plan_digest(plan) == plan_digest(tiny())
    assert plan_digest(read_tiny(tmp_path, hosts="host1:2")) != plan_digest(plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": None}, "'world_size' is missing"),
        (
            {"hosts": "localhost:1,host2:1"},
            "hosts names 'localhost' beside others, which do not find this machine by that",
        ),
        (
            {"hosts": "host1:2", "network_interface": "eth0; reboot"},
            "network_interface = 'eth0; reboot'",
        ),
    ],
)
def test_hosts_that_cannot_be_are_refused_when_the_plan_is_read(tmp_path, changes, message):
    assert message in refusal(lambda: resolve_arms(read_tiny(tmp_path, **changes)))


def test_a_placement_knows_its_threads_and_ranks():
    hosts = (HostSlots(host="host1", slots=4), HostSlots(host="host2", slots=2))
    placement = Placement(hosts=hosts, cores={"host1": 16, "host2": 6}, here=frozenset({"host1"}))
    assert (placement.threads_per_rank, placement.oversubscribed) == (3, False)
    assert placement.remote == ["host2"]
    assert [placement.host_of(rank) for rank in (3, 4)] == ["host1", "host2"]
    assert Placement(hosts=hosts, cores={"host1": 16, "host2": 1}).oversubscribed


def test_launches_draw_as_many_hosts_as_the_ranks_need(tmp_path):
    plan = read_tiny(tmp_path, hosts="a:2,b:2,c:2", world_size=3, nodes="draw")
    hosts = planned_hosts(plan)
    spare = spare_hosts(plan, hosts)
    assert (as_text(hosts), as_text(spare)) == ("a:2,b:1", "c:2")
    known = Placement(hosts=hosts, spare=spare, cores={"a": 8, "b": 4, "c": 8})
    drawn = [known.sample(random.Random(launch)) for launch in range(40)]
    assert {as_text(placement.hosts) for placement in drawn} == {"a:2,b:1", "a:2,c:1", "b:2,c:1"}
    assert {placement.threads_per_rank for placement in drawn} == {2}, "all launches alike"


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("a:2,b:1", "different numbers of slots"),
        ("a:1,b:1", "2 ranks need all of 2 hosts"),
    ],
)
def test_hosts_that_cannot_be_drawn_are_refused(tmp_path, hosts, message):
    plan = read_tiny(tmp_path, hosts=hosts, world_size=2, nodes="draw")
    with pytest.raises(PlanError, match=message):
        spare_hosts(plan, planned_hosts(plan))


def test_nothing_escapes_the_quotes(tmp_path):
    """Through a shell, as sshd passes a command to the user's: words arrive as they were."""
    folder = tmp_path / "it's a; folder $(touch x)"
    folder.mkdir()
    words = ["a b", "$(touch x)", "'; touch x", "", "-n", "new\nline"]
    environment = {"VALUE": "$HOME `touch x` 'q'", "PATH": "/usr/bin:/bin"}
    script = (
        "import json, os, sys; print(json.dumps([os.getcwd(), os.environ['VALUE'], sys.argv[1:]]))"
    )
    line = remote.command_line(
        [remote.python("x")[0], "-c", script, *words], folder=folder, environment=environment
    )
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [str(folder), environment["VALUE"], words]
    assert len(shlex.split(line)) == 3
    assert list(folder.iterdir()) == []


def test_ranks_elsewhere_are_sent_no_secrets_and_no_rank_variables():
    kept_back = {"RANK": "3", "HOROVOD_SECRET_KEY": "x", "CUDA_VISIBLE_DEVICES": "1"}
    environment = remote.forwarded_environment({"NCCL_DEBUG": "INFO", **kept_back})
    assert environment == {"NCCL_DEBUG": "INFO"}


FACTS = {"python": "3.11.7", "torch": "2.15.0", "horovod": "0.28.1", "cpu": "A"}


def test_hosts_that_differ_are_named():
    errors, warnings = host_differences(
        {"host1": FACTS, "host2": FACTS | {"torch": "2.13.0", "horovod": None, "cpu": "B"}}
    )
    assert errors == [
        "hosts differ in torch: 2.15.0 on host1, 2.13.0 on host2",
        "hosts differ in horovod: 0.28.1 on host1, missing on host2",
    ]
    assert warnings == ["hosts differ in cpu: A on host1, B on host2"]
    assert host_differences({"host1": FACTS, "host2": FACTS}) == ([], [])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["A100"] * 4, ["A100"] * 2, []),
        (["A100"], ["H100"], ["'host1' has A100, 'host2' has H100"]),
        (["A100", "T4"], ["A100", "T4"], ["'host1' has A100 and T4, 'host2' has A100 and T4"]),
    ],
)
def test_gpus_of_several_kinds_are_told(first, second, message):
    _, warnings = host_differences({"host1": {"cards": first}, "host2": {"cards": second}})
    said = "GPUs are of several kinds, and all ranks wait for the slowest: "
    assert warnings == [said + kinds for kinds in message]


def test_the_driver_is_reached_by_its_interface_or_route(tmp_path):
    def address(**changes):
        plan = read_tiny(tmp_path, hosts="me:2", **changes)
        return inspection.driver_address(plan, {"me": "127.0.0.1"}, here=frozenset({HERE, "me"}))

    assert address() == address(network_interface="lo") == "127.0.0.1"
    assert address(driver_address="127.0.0.2") == "127.0.0.2"
    assert "has no address on this machine" in refusal(address, network_interface="eth99")
    assert "is not an address of this machine" in refusal(address, driver_address="203.0.113.7")


def test_the_end_of_a_long_log_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_results, "folder_of", lambda run_id: tmp_path / run_id)
    log = remote_results.make_folder("m") / "rank-1.log"
    log.write_bytes(b"x" * 2 * remote_results.MAX_BYTES + b"last")
    sent = remote_results.unpack(remote_results.pack("m", end=False))["rank-1.log"]
    assert (len(sent), sent[-4:]) == (remote_results.MAX_BYTES, b"last")
