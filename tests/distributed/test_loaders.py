"""Loaders alone, by number of workers."""

from __future__ import annotations

import pytest

from tests.kit.comparisons import compare
from tests.kit.dataset_files import write_data

pytestmark = pytest.mark.usefixtures("no_processes_left")


@pytest.mark.costly
def test_every_number_of_workers_is_measured_on_ranks_that_load_at_the_same_time(tmp_path):
    options = {
        "workload": "imagenet",
        "workers": [3, 0],
        **write_data("imagenet", tmp_path / "data"),
    }
    ran = compare(
        tmp_path,
        workload="loaders",
        workload_options=options,
        local_batch_size=4,
        measurement={"rounds": 2},
    )
    record = ran.records["ddp"]
    few, many = record.cases
    assert [case.name.partition("/")[2] for case in (few, many)] == ["0 workers", "3 workers"]
    steps = ran.folder.steps(record)
    counted = steps[steps["rank"] == 0].groupby("case")["samples"].unique().explode().to_dict()
    assert counted == {few.name: 2 * 4, many.name: 2 * 4 * 3}, (
        "a batch on each rank from each worker"
    )
    assert "Samples per second by number of workers" in ran.read("report.html")
