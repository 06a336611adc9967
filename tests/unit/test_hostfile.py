"""Hostfiles: every dialect read alike, every slip told with its place, no file that crashes the
parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from measurement.errors import HostfileError
from runners.hosts.host_facts import is_here
from runners.hosts.host_lists import (
    parse_hostfile,
    parse_hosts,
    read_hostfile,
)
from tests.conftest import REPOSITORY
from tests.kit.refusals import refusal


def read(text):
    return [(entry.host, entry.slots) for entry in parse_hostfile(text, source="hosts")]


def refused(text):
    return refusal(parse_hostfile, text, source="hosts")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host1 slots = 4", [("host1", 4)]),
        ("host1", [("host1", 1)]),
        ("[FE80:0::0001] slots=4", [("FE80:0::0001", 4)]),
        ("[fe80::1%eth0]:4", [("fe80::1%eth0", 4)]),
        ("# all\n\n host1:2 # the first\n\thost2\tslots=2\r\n#end", [("host1", 2), ("host2", 2)]),
    ],
)
def test_every_form_is_read(text, expected):
    assert read(text) == expected


SLIPS = "host1 slots=0|host1:-1|host1:10000|host1 slots=٤|host1 slots=four|host1 slots=|host1:"
SLIPS += "|host1:4 slots=4|host1 slots|host1 slot=4|host1 4|host1 user=me|me@host1|fe80::1|[fe80::1|[host1]:4|host1:4,host2:4"
SLIPS += "|[fe80::1%-oProxyCommand=x]|-oProxyCommand=x|/var/spool/pbs/aux/77|host1;reboot|$(reboot)|hôte|:4|[]|node1 0 all.q@node1 <NULL>"


@pytest.mark.parametrize("line", SLIPS.split("|"))
def test_a_slip_is_told_with_its_line_and_what_is_accepted(line):
    message = refused(f"# a comment\nhost9 slots=2\n\n{line}\n")
    assert message.startswith(f"hosts line 4: '{line[:20]}")
    assert "names no host; accepted: 'host1', 'host1:4', 'host1 slots=4'" in message


def test_a_file_without_hosts_is_refused():
    said = "hosts names no host; write one per line, such as 'host1 slots=4'"
    assert refused("") == refused("# nobody\n") == said


def test_lists_are_read_and_mistakes_in_them_refused():
    hosts = parse_hosts("host1:4, [::1]:2,host2")
    assert [str(entry) for entry in hosts] == ["host1:4", "[::1]:2", "host2:1"]
    with pytest.raises(HostfileError, match=r"^-H names no host"):
        parse_hosts("")
    with pytest.raises(HostfileError, match=r"^-H host 2: 'host1:0' names no host; accepted: "):
        parse_hosts("host2,host1:0")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\x80\xff\x00")
    for path in (tmp_path / "none", tmp_path, tmp_path / "binary", Path("nul\0")):
        with pytest.raises(HostfileError, match=r"hostfile '.*' cannot be read"):
            read_hostfile(path)
    (tmp_path / "from-windows").write_bytes("\ufeffhost1:2\r\nhost2:2\r\n".encode())
    assert [entry.host for entry in read_hostfile(tmp_path / "from-windows")] == ["host1", "host2"]


@pytest.mark.parametrize(
    "path",
    sorted(path for path in (REPOSITORY / "hostfiles").iterdir() if path.is_file()),
    ids=lambda path: path.name,
)
def test_shipped_hostfiles_are_read_and_say_when_to_use_them(path):
    assert read_hostfile(path)
    assert path.read_text().startswith("# ")


def test_this_machine_is_known_by_its_addresses():
    assert is_here("127.0.1.1")
    assert is_here("::1") or not Path("/proc/net/if_inet6").exists()
    assert not is_here("192.0.2.1")
