"""``ringside hosts``: the parse, the placement, and what is wrong with a host, before anything is
started."""

from __future__ import annotations

import pytest

from tests.conftest import ended_well, ringside_here
from tests.kit.refusals import refused_command


def rows(done):
    return [line.split() for line in done.stdout.splitlines()]


def test_the_table_has_each_host_with_its_ranks(tmp_path):
    (tmp_path / "hosts").write_text("host1 slots=4 max-slots=8\n[fe80::2]:4\nhost3\n")
    done = ended_well(ringside_here("hosts", tmp_path / "hosts", "-np", "5", "--no-reach"))
    assert rows(done)[1:] == [
        ["host1", "4", "0-3"],
        ["fe80::2", "4", "4"],
        ["host3", "1", "none"],
        ["for", "horovodrun", "and", "mpirun:", "-H", "host1:4,[fe80::2]:4,host3:1"],
    ]


def test_this_machine_in_a_list_is_reached():
    done = ended_well(ringside_here("hosts", "-H", "localhost:4"))
    host, slots, ranks, _, reachable, *_ = rows(done)[1]
    assert (host, slots, ranks, reachable) == ("localhost", "4", "0-3", "yes:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a hostfile"),
        (["hostfiles/two-hosts", "-H", "host1:4"], "and not both"),
        (["hostfiles/two-hosts", "-np", "9"], "9 ranks do not fit into 8 slots (host1:4, host2:4)"),
        (["README.md"], "hostfile 'README.md' line 3: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    (line,) = refused_command("hosts", *arguments).splitlines()
    assert message in line
