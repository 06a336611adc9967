"""Scripts whose ranks meet at a fixed place: each start of an arm has its own, whoever else is
there."""

from __future__ import annotations

import shutil

import pytest

from measurement.addresses import free_port, listen
from tests.distributed.test_scripts import MAX_S
from tests.kit.script_comparisons import compare_in, write_script_plan
from tests.kit.scripts import SCRIPTS

WAYS = {
    **{
        name: f"python meets.py {name}"
        for name in ("spawns", "forks", "meets_by_tcp", "meets_in_a_file")
    },
    "static": "bash static.sh",
    "c10d": "bash c10d.sh",
    "serves": "torchrun --nproc-per-node 2 meets.py serves",
}
STATIC = "torchrun --nproc-per-node 2 --master-port $PLACE meets.py train"
C10D = "exec torchrun --nproc-per-node 2 --nnodes 1 --rdzv-backend c10d --rdzv-endpoint localhost:$PLACE meets.py train"


@pytest.mark.costly
@pytest.mark.timeout(MAX_S)
@pytest.mark.parametrize(
    "ways",
    [("spawns", "c10d", "serves"), ("forks", "static", "meets_by_tcp"), ("meets_in_a_file",)],
)
def test_arms_that_meet_at_one_place_are_up_together_and_a_stranger_may_be_there(tmp_path, ways):
    """No command names the port, so a trial finds it taken, and its ranks then meet elsewhere."""
    shutil.copy(SCRIPTS / "meets.py", tmp_path)
    (tmp_path / "static.sh").write_text(STATIC)
    (tmp_path / "c10d.sh").write_text(C10D)
    (tmp_path / "own-figures").touch()
    (tmp_path / "meeting").write_text("the user's")
    arms = {name: WAYS[name] for name in ways}
    plan = write_script_plan(tmp_path, arms, allow=["all"])
    port = free_port()
    with listen("", port) as stranger:
        ran = compare_in(tmp_path, "compare", plan, PLACE=str(port))
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()
    assert ran.statuses == dict.fromkeys(ways, "ok")
    for record in ran.records.values():
        assert [rank.world_size for rank in record.ranks] == [2, 2]
        assert (record.script_starts, record.exit_codes) == (1, [0])
    assert [path.read_text() for path in tmp_path.glob("meeting*")] == ["the user's"]
