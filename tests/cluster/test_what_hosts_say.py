"""Hosts whose shell greets whoever comes."""

from __future__ import annotations

import pytest

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import enter
from tests.cluster.test_compare_across_hosts import compare, write_plan
from tests.conftest import ended_well

GREETING_BASH = r"""
cp /bin/bash /run/quiet-bash
printf '\n7\n{"torch": 1}\r\n\377\376 welcome> ' > /run/greeting
printf '#!/run/quiet-bash\ncat /run/greeting\nexec /run/quiet-bash "$@"\n' > /run/greeting-bash
chmod +x /run/greeting-bash
mount --bind /run/greeting-bash "$(readlink -f /bin/bash)"
"""


@pytest.fixture
def greeting(lab):
    """Of host2, to those who come by ssh."""
    assert enter("host2", "sh", "-c", GREETING_BASH).returncode == 0
    yield
    assert enter("host2", "sh", "-c", 'umount "$(readlink -f /bin/bash)"').returncode == 0


@pytest.mark.costly
def test_a_greeting_is_passed_over(greeting, tmp_path):
    ended_well(enter("host1", "ringside", "hosts", "-H", "host1:1,host2:1"))
    done = ended_well(
        compare(write_plan(tmp_path), tmp_path / "out", "--set", "measurement.rehearsal=always")
    )
    assert "rehearsal: checking" in done.stderr
    folder = ResultsFolder(tmp_path / "out")
    for record in folder.records():
        assert record.status == "ok", record.error
        assert (folder.launch_folder(0, record.arm) / "rank-1.log").exists()
