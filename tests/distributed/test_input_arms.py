"""Real input beside synthetic, on real ranks: samples from a planted slow disk, and the same from memory."""

from __future__ import annotations

import pytest

from reports import conclude
from reports.conclusions.step_terms import LIMIT
from tests.conftest import HOROVOD, REPOSITORY, needs_horovod, no_process_stays
from tests.kit.comparisons import compare

pytestmark = [needs_horovod, pytest.mark.costly("input arms")]

SAMPLES, READS_PER_S = 4, 64.0
DELAY_S = 2 * SAMPLES / READS_PER_S
"""Of each step, in the real arms."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    both = {"input": ["real", "synthetic"]}
    arms = {"ddp": {"backend": "ddp", **both}, "hvd": {**HOROVOD, **both}}
    changes = {"workload": f"{REPOSITORY}/examples/slow_disk.py:SlowDigits", "workload_options": {"reads_per_s": READS_PER_S}}
    changes |= {"local_batch_size": SAMPLES}
    with no_process_stays():
        measurement = {"launches": 2, "rounds": 2, "local_every": 0}
        return compare(tmp_path_factory.mktemp("input"), arms=arms, measurement=measurement, **changes).folder


def test_the_input_is_what_real_arms_are_slower_by(measured):
    records = measured.records()
    assert {record.arm: record.ranks[0].input for record in records} == {
        "ddp": "real",
        "hvd": "real",
        "ddp-synthetic": "synthetic",
        "hvd-synthetic": "synthetic",
    }
    assert {record.status for record in records} == {"ok"}
    assert len({record.parity.samples_digest for record in records}) == 1, "the gate takes the same batches"
    for record in records:
        waits = measured.steps(record)["data_wait_s"]
        assert waits.min() >= DELAY_S if record.ranks[0].input == "real" else waits.median() < DELAY_S / 2


def test_the_report_says_what_the_input_takes(measured):
    found = conclude(measured)
    real = [arm for arm in found.arms if "synthetic" not in arm.name]
    assert all(arm.step_shares.data_wait >= LIMIT for arm in real)
    assert found.limit.startswith("The input is the limit: ")
    assert "more loader workers (loader_workers) or a faster data set will help" in found.limit
    assert {one.candidate for one in found.results} == {"hvd"}, "an arm with other input is no candidate"
    assert "synthetic" not in found.headline and not any("synthetic" in name for name in found.fastest)
    shares = {arm.name: arm.input_share for arm in found.arms if arm.input_share}
    assert list(shares) == ["ddp", "hvd"] and all(share.bounds and 0 < share.value < 1 for share in shares.values())
    said = [sentence for sentence in found.findings if sentence.startswith("Input takes ")]
    assert [sentence.rpartition(" ")[2] for sentence in said] == ["ddp", "hvd"]
    assert all(sentence in (measured.root / "report.md").read_text() for sentence in said)
    assert any(row.field == "input" and row.allowed for row in found.differences)
