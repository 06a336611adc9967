"""The ends of logs that go into records."""

from __future__ import annotations

from runners.hosts.placement import Placement
from runners.launchers import HERE, HostSlots
from runners.session.arm_processes import LOG_LINES, ArmProcesses


def test_the_last_lines_of_each_log(tmp_path):
    lines = [f"line {number}" for number in range(100)]
    (tmp_path / "rank-1.log").write_text("\n".join(lines))
    hosts = (HostSlots(host=HERE, slots=2),)
    arm = ArmProcesses(
        [], run_id="none", folder=tmp_path, placement=Placement(hosts=hosts, cores={HERE: 2})
    )
    assert arm.log_tails([0, 1]) == {"rank-1.log": "\n".join(lines[-LOG_LINES:])}
