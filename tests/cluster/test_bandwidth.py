"""A comparison over a lab's links at another rate: it is felt, bytes are what a ring needs, and the
lab is as it was before."""

from __future__ import annotations

from pathlib import Path

import pytest

from measurement.records.results import ResultsFolder
from reports import conclude
from tests.cluster.conftest import enter
from tests.conftest import ended_well, write_plan
from tests.kit.lab.links import INTERFACE, SWITCH, links_at
from tests.kit.lab.namespaces import run_in_network

LARGE = Path(__file__).parent / "plugins" / "large.py"
SLOW_BITS_PER_S = 100_000_000
ARMS = {
    "ddp": {"backend": "ddp", "transport": "gloo", "launcher": "spawn"},
    "ddp-mpi": {"backend": "ddp", "transport": "mpi", "launcher": "mpirun"},
}


def queues():
    """What shapes the links, at both ends of each; without handles, which the kernel counts up."""
    found = []
    for host in ("host1", "host2"):
        for network, interface in ((host, INTERFACE), (SWITCH, host)):
            told = run_in_network(network, "tc", "qdisc", "show", "dev", interface)
            _, kind, _, *rest = told.split()
            found.append((kind, rest))
    return found


@pytest.mark.costly
def test_a_slow_link_is_felt_and_its_bytes_are_a_rings(lab, tmp_path):
    before = queues()
    assert all(kind == "tbf" and "1Gbit" in rest for kind, rest in before)
    plan = write_plan(
        tmp_path,
        arms=ARMS,
        workload=f"{LARGE}:Large",
        local_batch_size=2,
        hosts="host1:1,host2:1",
        network_interface="eth0",
        measurement={"rounds": 2, "block_steps": 2, "warmup_steps": 1, "local_every": 1},
    )
    with links_at(SLOW_BITS_PER_S):
        done = enter("host1", "ringside", "compare", plan, "-o", tmp_path / "out")
    ended_well(done)
    assert queues() == before
    found = conclude(ResultsFolder(tmp_path / "out"))
    for arm in map(found.arm, ARMS):
        seconds = arm.links[0].needed_bytes * 8 / SLOW_BITS_PER_S
        assert arm.step_terms_s.exposed_exchange.value > 0.5 * seconds > 0.1
        assert [link.host for link in arm.links] == ["host1", "host2"]
        for link in arm.links:
            needed = pytest.approx(link.needed_bytes, rel=0.2)
            assert link.sent_bytes == needed and link.received_bytes == needed
    assert "## Bytes per link" in (tmp_path / "out" / "report.md").read_text()
