"""What is concluded of the loaders alone, from hand-made turns: rates, table, sentences, page; and what training needs of them."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from measurement.errors import PlanError, RecordError
from measurement.records.loader_record import FilesRead, LoaderRecord, LoaderTurn, StorageReads
from reports.conclusions.loaders import LoaderDemand, loading_rates, read_demand, slowest_ranks
from reports.formats.loader_page import loading_page, write_loading
from reports.formats.terminal import loading_table
from reports.tables.loader_table import loader_table, storage_table
from reports.wording.loaders import loader_sentences
from runners.standalone.loader_benchmark import worker_counts
from runners.standalone.loader_turns import read_files
from tests.kit.results_factory import SHARES, Truth, write_results

HOSTS = ("host1", "host1", "host2")
SPEEDS = {0: (100, 110, 90), 2: (300, 310, 200)}
"""Samples per second by number of workers, rank by rank."""


def make_record(workload="digits"):
    """Three rounds: the second as told, the others a tenth slower and faster."""
    turns = [
        LoaderTurn(round=number, rank=rank, host=HOSTS[rank], workers=workers, samples=round(speed * factor), seconds=2.0)
        for number, factor in enumerate((1.8, 2.0, 2.2))
        for workers, speeds in SPEEDS.items()
        for rank, speed in enumerate(speeds)
    ]
    return LoaderRecord(
        created_at="2026-01-01T12:00:00+00:00",
        workload=workload,
        workload_options={"data_dir": "<b>data</b>"},
        sample_unit="images",
        local_batch_size=8,
        launcher="torchrun",
        world_size=3,
        device="cpu",
        cores={"host1": 4, "host2": 2},
        turns=turns,
    )


def with_files(record):
    """Files of 50 kB: host1 reads 2,000 a second at random, host2 1,000; both twice as many in order."""
    read = {"host1": 2000, "host2": 1000}
    storage = {
        host: StorageReads(
            readers=2,
            in_order=FilesRead(files=2 * files, bytes=2 * files * 50_000, seconds=1.0),
            at_random=FilesRead(files=files, bytes=files * 50_000, seconds=1.0),
        )
        for host, files in read.items()
    }
    return record.model_copy(update={"storage": storage})


def need(samples_per_s):
    return LoaderDemand(arm="ddp", samples_per_s=samples_per_s)


def test_ranks_of_a_host_and_of_all_are_summed_within_a_round():
    rates = loading_rates(make_record())
    assert [(place.name, place.host) for place in rates] == [
        ("rank 0", "host1"),
        ("rank 1", "host1"),
        ("rank 2", "host2"),
        ("host", "host1"),
        ("host", "host2"),
        ("all", ""),
    ]
    values = {(place.name, place.host): found for place, found in rates.items()}
    assert values["host", "host1"][2].value == 610
    in_all = values["all", ""][0]
    assert (in_all.value, in_all.ci_low, in_all.ci_high) == pytest.approx((300, 270, 330))
    assert slowest_ranks(rates) == {0: 90, 2: 200}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (80, "Training (ddp) needs 80 images/s per rank; ranks without loader workers load 90: enough, 89% of it is needed"),
        (150, "Training (ddp) needs 150 images/s per rank; 2 workers per rank load 200: enough, 75% of it is needed"),
        (
            400,
            "Training (ddp) needs 400 images/s per rank; 2 workers per rank load 200 at most: too few, 200% of it is needed",
        ),
    ],
)
def test_the_fewest_workers_that_are_enough_for_the_slowest_rank(wanted, sentence):
    first, most = loader_sentences(make_record(), need(wanted))
    assert first.startswith(sentence)
    assert (
        most
        == "Most: 2 workers per rank load 810 images/s in all, 200 on the slowest rank; 2.7 times what ranks load by themselves"
    )


def test_table_and_files(tmp_path):
    record = make_record()
    console = Console(record=True, width=100)
    console.print(loading_table(record, need(150)))
    text = console.export_text()
    assert all(words in text for words in ("no worker", "2 workers", "rank 2", "host2", "729–891", "75%"))
    write_loading(record, need(150), tmp_path)
    assert LoaderRecord.model_validate_json((tmp_path / "io.json").read_text()) == record
    page = (tmp_path / "io.html").read_text()
    assert "2 workers per rank load 200: enough" in page
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert [line["name"] for line in figures["loading"]["data"]] == ["host1", "host2", "all ranks"]
    assert figures["loading"]["layout"]["shapes"][0]["y0"] == 450


@pytest.mark.slow
def test_what_training_needs_is_without_its_waiting_for_data(tmp_path):
    folder = write_results(tmp_path / "results", truth=Truth(noise=0.001, drift=0.0))
    found = read_demand(folder.root, "digits")
    batch = folder.read_plan().local_batch_size
    assert found.arm == "horovod-gloo", "the fastest"
    assert found.samples_per_s == pytest.approx(batch / (0.02 / 1.1) / (1 - SHARES["horovod"][0]), rel=0.01)
    with pytest.raises(RecordError, match="is of workload 'digits', not 'mnist'; give one of the same workload"):
        read_demand(folder.root, "mnist")
    with pytest.raises(RecordError, match="holds no launch record"):
        read_demand(tmp_path, "digits")


def test_numbers_of_workers_are_read_or_refused():
    assert worker_counts("0, 2,16") == [0, 2, 16]
    for text in ("", "a", "1,1", "-1", "1.5", "0,,2", "1;2"):
        with pytest.raises(PlanError, match="no list of different whole numbers from 0 on; write it as 0,1,2,4"):
            worker_counts(text)


def test_where_each_sample_is_a_file_megabytes_stand_beside_what_the_file_system_reads():
    record = with_files(make_record())
    in_all = next(row for row in loader_table(record, None).rows if row.is_total)
    assert in_all.entries["2"].text.splitlines()[-1] == "40.5 MB/s", "810 images of 50 kB"
    rows = [[row.entries[name].text for name in ("host", "order", "files", "bytes")] for row in storage_table(record).rows]
    assert rows[:2] == [["host1", "in order, 2 readers", "4,000", "200"], ["host1", "at random, 2 readers", "2,000", "100"]]
    assert loader_sentences(record, None)[-1] == (
        "Each sample is a file of 50 kB on average: 40.5 MB/s are loaded, 27% of what the file system reads at random, 150 MB/s or "
        "3,000 files/s"
    )
    assert "The file system alone" in loading_page(record, None).decode()
    assert "The file system alone" not in loading_page(make_record(), None).decode()


def test_every_file_is_read_once_or_less_in_either_order(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}").write_bytes(bytes(1000 + number))
    found = read_files(sorted(tmp_path.iterdir()), readers=3, seconds=30, seed=1)
    assert (found.in_order.files, found.at_random.files, found.readers) == (20, 20, 3)
    assert found.in_order.bytes + found.at_random.bytes == sum(1000 + number for number in range(40))
    (tmp_path / "alone").write_bytes(b"1")
    one = read_files([tmp_path / "alone"], readers=1, seconds=30, seed=1)
    assert (one.in_order.files, one.at_random.files) == (1, 1)
