"""Runs that people started themselves, under names that they give: two commits of one backend, or
two environments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measurement.errors import PlanError
from reports.runs import read_runs
from tests.kit.changed import changed
from tests.unit.test_separate_runs import DDP, SLOWER, compared, write_run

pytestmark = pytest.mark.slow  # results of whole comparisons are composed


def of(source="0" * 16, torch="2.15.0", optimizer=None):
    """What alters a record as if its ranks reported this."""

    def change(record):
        record.ranks = [
            changed(
                rank,
                sources={"train.py": source},
                fingerprint={**rank.fingerprint, "torch": torch},
                optimizer={"class": "SGD", "lr": 0.1, **(optimizer or {})},
            )
            for rank in record.ranks
        ]

    return change


def write_two(root, number=2, *, new=None):
    """Runs of one backend, of which the new ones are a fifth slower; alternating."""
    slower = replace(SLOWER, ratios={"ddp": 0.8})
    for launch in range(number):
        write_run(root / f"a-{launch}", DDP, minute=2 * launch, change=of())
        write_run(
            root / f"b-{launch}",
            DDP,
            minute=2 * launch + 1,
            change=of(**new or {}),
            truth=slower,
        )
    return root


def named(root, text):
    return [
        argument.replace("=", f"={root}/").replace(",", f",{root}/") for argument in text.split()
    ]


def test_names_make_arms_of_one_back_end(tmp_path):
    new = {"source": "2" * 16, "torch": "2.16.0", "optimizer": {"fused": None}}
    comparison = compared(named(write_two(tmp_path, new=new), "old=a-0,a-1 new=b-0 new=b-1"))
    result = comparison.result("new")
    assert (comparison.baseline, result.run_order) == ("old", "alternating")
    assert result.throughput_ratio == pytest.approx(0.8, rel=0.1)
    said = "The runs that were named differ: "
    differing = [line.removeprefix(said) for line in comparison.warnings if line.startswith(said)]
    assert [line.partition(":")[0] for line in differing] == ["host.torch", "source.train.py"]


def test_a_setting_that_only_one_release_has_is_no_difference_in_work(tmp_path):
    new = {"torch": "2.16.0", "optimizer": {"decoupled_weight_decay": False}}
    root = write_two(tmp_path, number=1, new=new)
    warnings = compared(named(root, "old=a-* new=b-*")).warnings
    assert any("optimizer.decoupled_weight_decay" in line for line in warnings)


@pytest.mark.parametrize(
    ("new", "given", "message"),
    [
        ({"optimizer": {"lr": 0.2}}, "old=a-* new=b-*", "optimizer.lr: 0.1 in .*, 0.2 in .*b-0"),
        ({"optimizer": {"nesterov": True}}, "old=a-* new=b-*", "optimizer.nesterov: not set in"),
        (
            {"source": "2" * 16},
            "all=*",
            r"source.train.py: 0000000000000000 in .*name them where sources or versions",
        ),
    ],
)
def test_what_names_do_not_say_is_refused(tmp_path, new, given, message):
    root = write_two(tmp_path, new=new)
    with pytest.raises(PlanError, match=f"(?s){message}"):
        compared(named(root, given))


def test_names_that_say_nothing_clear_are_refused(tmp_path):
    root = write_two(tmp_path, number=1)
    with pytest.raises(PlanError, match="b-0' has no name, and others have"):
        read_runs([f"old={root}/a-0", root / "b-0"])
