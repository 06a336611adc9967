"""The loaders alone by the users' own commands; a slow one is named as the limit; a damaged file is named wherever it is met."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from measurement.records.loader_record import LoaderRecord
from measurement.records.results import ResultsFolder
from reports.conclusions.step_terms import LIMIT
from tests.conftest import FORKED, ringside_here, write_plan
from tests.kit.commands import MPIRUN, run, warm
from tests.kit.dataset_files import write_data, write_mnist

pytestmark = pytest.mark.usefixtures("no_processes_left")
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]
SHORT = ["--seconds", "0.05", "--rounds", "2", "--local-batch-size", "8"]
SLOW = f"{Path(__file__).parent / 'plugins' / 'slow_data.py'}:SlowMnist"


@pytest.mark.costly
def test_every_rank_loads_with_every_number_of_workers(tmp_path):
    write_mnist(tmp_path / "data")
    asked = ["-m", "runners.io", "--workload", "mnist", "--data-dir", tmp_path / "data", "--workers", "0,2", *SHORT]
    done = run(*MPIRUN, *asked, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    record = LoaderRecord.model_validate_json((tmp_path / "out" / "io.json").read_text())
    assert (record.launcher, record.world_size, record.sample_unit) == ("openmpi", 2, "images")
    places = sorted((turn.round, turn.workers, turn.rank) for turn in record.turns)
    assert places == [(number, workers, rank) for number in (0, 1) for workers in (0, 2) for rank in (0, 1)]
    assert all(turn.seconds >= 0.05 and turn.samples >= 8 and turn.samples % 8 == 0 for turn in record.turns)
    order = [(turn.round, turn.workers) for turn in record.turns]
    assert order[::2] == order[1::2], "all ranks have the same turn at the same time"
    assert all(words in done.stdout for words in ("no worker", "2 workers", "rank 1", "all", "images/s in all"))
    assert "Plotly" in (tmp_path / "out" / "io.html").read_text()
    assert record.storage == {}, "its samples are in memory"
    assert sum(record.cores.values()) >= min(2, len(os.sched_getaffinity(0))), "those of all ranks, not one rank's share"


def test_files_of_images_are_read_without_the_loaders_first(tmp_path):
    options = write_data("imagenet", tmp_path / "data")
    asked = ["--workload", "imagenet", "--data-dir", options["data_dir"], "--workers", "1", *SHORT, "-o", tmp_path / "out"]
    done = run(*warm("-m", "runners.spawn"), "--nproc-per-node", "2", "-m", "runners.io", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    (storage,) = LoaderRecord.model_validate_json((tmp_path / "out" / "io.json").read_text()).storage.values()
    assert (storage.readers, storage.in_order.files + storage.at_random.files) == (2, 19)
    assert "at random, 2 readers" in done.stdout


@pytest.mark.costly
def test_a_workload_without_a_loader_is_refused_in_one_line(tmp_path):
    done = run("python", "-m", "runners.io", "--workload", "synthetic", *SHORT, "-o", tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("ringside: workload 'synthetic' has no option loader_workers")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.costly
def test_a_loader_that_is_slow_on_purpose_is_named_as_the_limit(tmp_path):
    options = write_data("mnist", tmp_path / "data")
    arms = {name: {"backend": name, "transport": "gloo", "launcher": FORKED} for name in ("ddp", "naive")}
    plan = write_plan(
        tmp_path,
        workload=SLOW,
        workload_options=options,
        local_batch_size=4,
        arms=arms,
        measurement={"control": False},
    )
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert all(arm["step_shares"]["data_wait"] >= LIMIT for arm in found["arms"])
    assert found["limit"].startswith("The input is the limit: ")
    assert "more loader workers (loader_workers) or a faster data set will help" in found["limit"]
    needed = run("python", "-m", "runners.io", "--workload", SLOW, "--data-dir", tmp_path / "data", *SHORT, "--workers", "0", "-o",
                 tmp_path / "io", "--against", tmp_path / "out")  # fmt: skip
    assert "too few" in needed.stdout, needed.stdout + needed.stderr
    assert "and training waits for data" in needed.stdout


@pytest.mark.costly("damaged image")
def test_a_damaged_image_ends_the_rank_whose_loader_process_meets_it_with_one_line(tmp_path):
    options, path = damaged_images(tmp_path / "data")
    given = [part for name, value in {**options, "loader_workers": 1}.items() for part in ("--workload-option", f"{name}={value}")]
    logs = ["--log-dir", tmp_path / "logs", "--redirects", "3"]
    asked = ["-m", "runners.ddp", "--workload", "imagenet", *given, "--local-batch-size", "4", "--parity-steps", "0"]
    done = run(*TORCHRUN, *logs, *asked, "-o", tmp_path / "out")
    assert done.returncode != 0
    said = [log.read_text() for log in (tmp_path / "logs").rglob("stderr.log")]
    lines = [text.splitlines()[0] for text in said if text.startswith(f"ringside: image '{path}' cannot be read: ")]
    assert lines, said
    assert all(line.endswith("; replace it, or remove it") for line in lines)
    assert "exitcode  : 2" in done.stderr


@pytest.mark.costly("damaged image")
def test_a_damaged_image_fails_the_arms_of_a_comparison_by_its_name(tmp_path):
    options, path = damaged_images(tmp_path / "data")
    plan = write_plan(
        tmp_path,
        workload="imagenet",
        workload_options={**options, "loader_workers": 1},
        local_batch_size=4,
        measurement={"control": False},
        arms={name: {"backend": name, "transport": "gloo", "launcher": FORKED} for name in ("ddp", "naive")},
    )
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    for record in ResultsFolder(tmp_path / "out").records():
        assert record.status == "failed"
        assert f"image '{path}' cannot be read: " in record.error.message
        assert "Traceback" not in record.error.message


def damaged_images(folder):
    """Options of imagenet on images of which one is cut short, and that image."""
    options = write_data("imagenet", folder)
    path = folder / "train" / "cat" / "3.jpg"
    path.write_bytes(path.read_bytes()[:500])
    return options, path
