"""Hosts whose shell greets whoever comes, and hosts whose own name means an address that nobody
else reaches."""

from __future__ import annotations

import pytest

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import enter
from tests.cluster.test_compare_across_hosts import compare, write_plan

GREETING_BASH = r"""
cp /bin/bash /run/quiet-bash
printf '\n7\n{"torch": 1}\r\n\377\376 welcome> ' > /run/greeting
printf '#!/run/quiet-bash\ncat /run/greeting\nexec /run/quiet-bash "$@"\n' > /run/greeting-bash
chmod +x /run/greeting-bash
mount --bind /run/greeting-bash "$(readlink -f /bin/bash)"
"""
HIDDEN_NAME = """
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n10.77.0.1 host1\\n10.77.0.2 host2\\n' "$(hostname)" > /run/hosts
mount --bind /run/hosts /etc/hosts
"""
WHY = "its own name, 'host2', resolves to 127.0.1.1 there, which Gloo gives the other hosts"


@pytest.fixture
def greeting(lab):
    """Of host2, to those who come by ssh."""
    assert enter("host2", "sh", "-c", GREETING_BASH).returncode == 0
    yield
    assert enter("host2", "sh", "-c", 'umount "$(readlink -f /bin/bash)"').returncode == 0


@pytest.fixture
def hidden(lab):
    assert enter("host2", "sh", "-c", HIDDEN_NAME).returncode == 0
    yield
    assert enter("host2", "umount", "/etc/hosts").returncode == 0


@pytest.mark.costly
def test_a_greeting_is_passed_over(greeting, tmp_path):
    done = enter("host1", "ringside", "hosts", "-H", "host1:1,host2:1")
    assert done.returncode == 0, done.stdout + done.stderr
    done = compare(write_plan(tmp_path), tmp_path / "out", "--set", "measurement.rehearsal=always")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rehearsal: checking" in done.stderr
    for record in ResultsFolder(tmp_path / "out").records():
        assert record.status == "ok", record.error
        assert (
            ResultsFolder(tmp_path / "out").launch_folder(0, record.arm) / "rank-1.log"
        ).exists()


@pytest.mark.costly
def test_a_hidden_host_is_told_before_anything_starts(hidden, tmp_path):
    looked = enter("host1", "ringside", "hosts", "-H", "host1:1,host2:1")
    assert looked.returncode == 1, looked.stdout
    assert f"host 'host2': {WHY}" in looked.stdout
    done = compare(write_plan(tmp_path, network_interface=None), tmp_path / "out")
    assert done.returncode == 2, done.stdout
    assert f"ringside: host 'host2': {WHY}" in done.stderr
    assert not (tmp_path / "out").exists()
