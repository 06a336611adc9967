"""What hosts send of their ranks: never what a link leads to, never into another place, and out of
a folder of the user's own."""

from __future__ import annotations

import io
import os
import stat
import tarfile

import pytest

from measurement.errors import LaunchError
from runners.hosts.placement import Placement
from runners.launchers import HostSlots
from runners.processes import remote, remote_results
from runners.rank.worker import redirect_output
from runners.session.arm_processes import ArmProcesses

RUN = "fetched"
SECRET = b"a secret of the user's"


@pytest.fixture
def spool(tmp_path, monkeypatch):
    """The folder of a run, in a temporary folder of its own; beside it a file that is nobody's
    business."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "secret").write_bytes(SECRET)
    return remote_results.make_folder(RUN)


def fetched(*, end=False):
    return remote_results.unpack(remote_results.pack(RUN, end=end))


def test_links_in_it_are_not_followed(spool, tmp_path):
    (spool / "rank-0.log").write_bytes(b"own")
    (spool / "rank-1.log").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", spool / "rank-2.log")
    os.mkfifo(spool / "rank-3.log")
    (spool / "rank-5.log").symlink_to("/dev/zero")
    (spool / "others.txt").write_bytes(SECRET)
    assert fetched(end=True) == {"rank-0.log": b"own"}
    assert not spool.exists()
    assert (tmp_path / "secret").read_bytes() == SECRET


def test_ranks_do_not_write_through_links(spool, tmp_path):
    (spool / "rank-0.log").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        redirect_output(spool / "rank-0.log")
    assert (tmp_path / "secret").read_bytes() == SECRET


def archive(*entries):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            entry.size = len(SECRET) if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(SECRET))
    return content.getvalue()


def test_of_an_archive_only_ranks_files_are_taken():
    sent = archive(
        ("rank-0.log", tarfile.REGTYPE, ""),
        ("../rank-1.log", tarfile.REGTYPE, ""),
        ("rank-3.log/../../x", tarfile.REGTYPE, ""),
        ("rank-5.log", tarfile.LNKTYPE, "rank-0.log"),
        ("launcher.log", tarfile.REGTYPE, ""),
    )
    assert remote_results.unpack(sent) == {"rank-0.log": SECRET}
    assert remote_results.unpack(sent[:520]) == {}


def test_a_link_in_the_results_is_replaced_and_not_written_through(tmp_path, monkeypatch):
    results, outside = tmp_path / "results", tmp_path / "outside"
    results.mkdir()
    outside.write_text("as it was")
    (results / "rank-0.log").symlink_to(outside)
    placement = Placement(hosts=(HostSlots(host="host1", slots=1),), cores={})
    arm = ArmProcesses([], run_id=RUN, folder=results, placement=placement)
    sent = archive(("rank-0.log", tarfile.REGTYPE, ""), ("../rank-1.log", tarfile.REGTYPE, ""))
    monkeypatch.setattr(remote, "on_each", lambda *_: [sent])
    arm.log_tails([0])
    assert outside.read_text() == "as it was"
    assert (results / "rank-0.log").read_bytes() == SECRET
    assert not (results / "rank-0.log").is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["outside", "rank-0.log", "results"]


def test_the_folder_is_closed_to_others(spool):
    for folder in (spool, spool.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert remote_results.make_folder(RUN) == spool, "the ranks of a host share it"


@pytest.mark.parametrize("what", ["open to others", "somebody else's", "a link"])
def test_a_folder_that_others_may_write_is_not_used(spool, tmp_path, what):
    (spool / "rank-0.log").write_bytes(SECRET)
    if what == "open to others":
        spool.parent.chmod(0o777)
    elif what == "somebody else's":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(spool.parent, 65534, 65534)
    else:
        spool.parent.rename(tmp_path / "elsewhere")
        spool.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        LaunchError, match="is no folder of this user alone, and ranks would write their logs there"
    ):
        remote_results.make_folder(RUN)
    assert fetched(end=True) == {}
    assert (spool / "rank-0.log").read_bytes() == SECRET, "nothing of it is removed"
