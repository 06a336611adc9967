"""The ends of logs that go into records."""

from __future__ import annotations

from runners.hosts.placement import Placement
from runners.launchers import HERE, HostSlots
from runners.session.arm_processes import LOG_LINES, ArmProcesses


def tails(folder):
    placement = Placement(
        hosts=(HostSlots(host=HERE, slots=2),), cores={HERE: 2}, here=frozenset([HERE])
    )
    processes = ArmProcesses([], run_id="none", folder=folder, placement=placement)
    return processes.log_tails([0, 1])


def test_the_last_lines_of_each_log(tmp_path):
    (tmp_path / "rank-1.log").write_text("".join(f"line {number}\n" for number in range(100)))
    assert tails(tmp_path) == {
        "rank-1.log": "\n".join(f"line {number}" for number in range(100 - LOG_LINES, 100))
    }
