"""What hosts do beside the ranks: read by a real supervisor, written, and concluded from; bytes of
a ring by hand."""

from __future__ import annotations

import socket
import time

import psutil
import pytest

from measurement.records.block import HostCounters
from reports import write_reports
from reports.conclusions.machine import ring_bytes, share_sent
from runners.driver.rounds import measured_outside
from runners.session.arm_run import Exchange
from tests.kit.changed import changed
from tests.kit.plans import tiny
from tests.kit.results_factory import write_results
from tests.unit.test_rank_supervisor import supervised, supervisors  # noqa: F401 - the latter is a fixture

NOTHING = dict.fromkeys(("sent_bytes", "received_bytes", "sent_packets", "received_packets"), 0)
TRAFFIC = {
    "sent_bytes": 2_000_000,
    "received_bytes": 1_000_000,
    "sent_packets": 300,
    "received_packets": 100,
}
IDLE = {"memory_used_bytes": 0, "slowed_by": 0}
BEFORE = HostCounters(
    at_s=10.0,
    core_busy_s=[100.0, 200.0],
    memory_used_bytes=2**30,
    memory_bytes=2**34,
    network={"lo": NOTHING},
    energy_uj={"package-0": (999_000_000, 1_000_000_000)},
    gpus={0: {"energy_mj": 5_000, "utilisation": 0.1, "sm_mhz": 300, **IDLE}},
)


def later(**changes):
    """Two seconds after ``BEFORE``."""
    given = {
        "at_s": 12.0,
        "core_busy_s": [101.5, 200.5],
        "memory_used_bytes": 2**31,
        "network": {"lo": TRAFFIC, "eth0": TRAFFIC},
        "energy_uj": {"package-0": (19_000_000, 1_000_000_000)},
        "gpus": {0: {"energy_mj": 605_000, "utilisation": 0.9, "sm_mhz": 1900, **IDLE}},
    }
    return changed(BEFORE, **given | changes)


def test_two_readings_make_what_happened_between_them():
    use = later().since(BEFORE)
    assert (use.wall_s, use.core_busy_s, use.memory_used_bytes) == (2.0, [1.5, 0.5], 2**31)
    assert use.network == {"lo": TRAFFIC}, "another interface came in between"
    assert use.energy_j == {"package-0": 20.0}, "its counter began again"
    assert (use.gpus[0]["energy_j"], use.gpus[0]["sm_mhz"]) == (600.0, 1900)
    assert later(network=BEFORE.network).since(BEFORE).network == {}, "nothing passed"


def test_bytes_over_links_are_those_of_the_plans_interface():
    idle = {"lo": NOTHING, "eth0": NOTHING, "eth1": NOTHING}
    busy = {**idle, "eth0": TRAFFIC, "eth1": TRAFFIC}
    use = later(network=busy).since(changed(BEFORE, network=idle))
    assert use.link_bytes("eth0") == (2_000_000, 1_000_000)
    assert use.link_bytes(None) == (4_000_000, 2_000_000)
    assert use.link_bytes("lo") == use.link_bytes("ib0") == (0, 0)
    done = Exchange(replies=[], took_s=1.5, hosts={"host1": use})
    across = tiny(hosts="host1:1,host2:1", network_interface="eth0")
    assert measured_outside(done, across)["link_bytes"] == {"host1": (2_000_000, 1_000_000)}
    assert measured_outside(done, tiny())["link_bytes"] == {}


@pytest.mark.slow
def test_a_supervisor_reads_the_counters_of_its_host(supervisors):  # noqa: F811
    """It runs without site-packages, and computes and sends what is then counted."""
    with supervised(supervisors, "; import time; time.sleep(600)"):
        (before,) = supervisors.tell("arm", 0, "counters").values()
        busy = time.process_time() + 0.5
        while time.process_time() < busy:
            pass
        use = supervisors.tell("arm", 0, "counters")[socket.gethostname()].since(before)
    assert sum(use.core_busy_s) >= 0.4
    assert len(use.core_busy_s) == psutil.cpu_count()
    assert use.network["lo"]["sent_bytes"] > 0
    assert 0 < use.memory_used_bytes < use.memory_bytes == psutil.virtual_memory().total


@pytest.mark.slow
def test_a_report_tells_of_each_host(tmp_path):
    """As if two of 40 W had been read beside each block."""
    use = later(energy_uj={"package-0": (79_000_000, 10**9)}, gpus={}).since(BEFORE)

    def change(record):
        hosts = {"host1": use, "host2": use}
        record.blocks = [changed(block, hosts=hosts) for block in record.blocks]

    folder = write_results(tmp_path, ratios={"horovod-mpi": 0.9}, launches=2, change=change)
    for arm in write_reports(folder).arms:
        assert [host.host for host in arm.machine] == ["host1", "host2"]
        host = arm.machine[0]
        assert (host.cores, host.power_w) == (2, 40.0)
        assert host.busy_cores == pytest.approx(1.0)
        assert host.sent_bytes_per_s["lo"] == pytest.approx(1e6)
        assert arm.energy_per_sample_j == pytest.approx(80 / arm.throughput_per_s.value)
    assert "J per sample" in (tmp_path / "report.md").read_text()


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
