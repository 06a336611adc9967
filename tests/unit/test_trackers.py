"""Reports for where teams look: MLflow, W&B and one of a user's own (the real ones), and gauges for
a scrape."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from measurement.errors import PlanError
from reports import conclude, make_report, make_reports, send_reports, write_reports
from tests.conftest import REPOSITORY, documented_files, ringside_here
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, make_plan, write_results
from tests.unit.test_pull_request import with_regression

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

FIGURE = "horovod-gloo/throughput_ratio"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two launches of two arms, and one that failed."""
    truth = Truth(statuses={("horovod-mpi", launch): "failed" for launch in range(2)})
    return write_results(
        tmp_path_factory.mktemp("results") / "nightly",
        truth=truth,
        plan=make_plan(launches=2, rounds=4),
    )


@pytest.fixture
def folder(measured, monkeypatch, tmp_path):
    """The same, with nothing in force of whoever runs the tests."""
    for name in ("MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.chdir(tmp_path)
    return measured


def written(folder, *references):
    """The plan's reports as they are written and sent where it names these."""
    folder.write_plan(changed(folder.read_plan(), reports=list(references)))
    comparison = write_reports(folder)
    assert send_reports(folder, comparison) == []
    return comparison


def test_gauges_are_read_by_prometheus_own_parser(folder):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

    comparison = changed(with_regression(conclude(folder)), name='a "name" \\ of\ntwo lines')
    text = make_report("openmetrics").render(comparison).decode()
    families = {family.name: family for family in openmetrics(text)}
    assert all(family.documentation for family in families.values())

    labelled = ((sample.labels, sample.value) for sample in families["ringside_regressed"].samples)
    regressed = {
        (labels["plan"], labels["arm"]): value
        for labels, value in labelled
        if labels["figure"] == "throughput"
    }
    wanted = {"horovod-gloo": 1, "ddp-gloo": 0}
    assert regressed == {(comparison.name, arm): value for arm, value in wanted.items()}


NOT_INSTALLED = """
from reports.formats.tracker import Tracker

class Mine(Tracker):
    file_name, package = "mine.json", "no_such_tracker"

    def send(self, run): ...
"""


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_measured(
    tmp_path, monkeypatch
):
    (tmp_path / "no_such_tracker").mkdir()  # as W&B leaves one where it was used
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(NOT_INSTALLED)
    wanted = r"mine.json needs .* no_such_tracker, .* run: pip install 'no_such_tracker', or leave"
    with pytest.raises(PlanError, match=wanted):
        make_reports([f"{tmp_path / 'mine.py'}:Mine", "html"])
    assert make_report("wandb").requirement == "ringside[wandb]"


class Runs(BaseHTTPRequestHandler):
    """A tracker of somebody's: keeps what is put, by path."""

    kept: ClassVar[dict[str, dict]] = {}

    def do_PUT(self):
        self.kept[self.path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_the_documents_tracker_brings_one_run_up_to_date(folder, tmp_path, monkeypatch):
    (tmp_path / "team_runs.py").write_text(documented_files()["team_runs.py"])
    with HTTPServer(("127.0.0.1", 0), Runs) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TEAM_RUNS", f"http://127.0.0.1:{server.server_port}/runs")
        for _ in range(2):
            comparison = written(folder, f"{tmp_path / 'team_runs.py'}:TeamRuns")
        server.shutdown()
    ((path, run),) = Runs.kept.items()
    assert run["figures"][FIGURE] == comparison.result("horovod-gloo").throughput_ratio
    assert path.endswith(json.loads((folder.root / "team-runs.json").read_text())["run"])


def test_mlflow_has_one_run_of_a_comparison_in_a_local_store(folder, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install 'ringside[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for _ in range(2):
        comparison = written(folder, "mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("ringside").experiment_id])
    assert run.info.run_id == json.loads((folder.root / "mlflow.json").read_text())["run_id"]
    assert run.info.status == "FAILED", "an arm failed"
    assert run.data.metrics[FIGURE] == comparison.result("horovod-gloo").throughput_ratio
    assert run.data.tags["horovod-gloo/verdict"] == comparison.result("horovod-gloo").verdict
    assert client.download_artifacts(run.info.run_id, "report.html")


@pytest.mark.process
def test_wandb_writes_a_run_to_be_synchronised_and_nothing_of_the_process(
    folder, tmp_path, monkeypatch
):
    pytest.importorskip("wandb", reason="pip install 'ringside[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    written(folder, "wandb")
    run_id = json.loads((folder.root / "wandb.json").read_text())["id"]
    (run,) = (tmp_path / "wandb").glob(f"offline-run-*-{run_id}")
    kept = (run / f"run-{run_id}.wandb").read_bytes()
    assert FIGURE.encode() in kept and b"horovod-gloo/verdict" in kept
    assert sys.executable.encode() not in kept and str(REPOSITORY).encode() not in kept
    assert {path.suffix for path in (run / "files").rglob("*") if path.is_file()} == {".html"}


FAILS = """
from pathlib import Path
from reports.formats.tracker import Tracker

class Fails(Tracker):
    file_name = "fails.json"

    def send(self, run):
        with Path(__file__).with_name("told").open("a") as told:
            print(run.name, len(run.page) > 1000, file=told)
        raise OSError("no route to http://user:secret@runs.example")
"""


@pytest.mark.parametrize("command", ["compare", "report"])
def test_a_tracker_that_fails_hides_no_verdict_and_leaves_the_exit_code(tmp_path, command):
    (tmp_path / "fails.py").write_text(FAILS)
    reports = ["html", f"{tmp_path / 'fails.py'}:Fails"]
    plan = changed(make_plan(launches=2, rounds=4), reports=reports)
    folder = write_results(tmp_path / "now", plan=plan)
    # as all launches are measured
    folder.write_manifest(changed(folder.read_manifest(), looks=[2]))
    asked = [folder.plan_path, "-o", folder.root] if command == "compare" else [folder.root]
    done = ringside_here(command, *asked)
    assert done.returncode == 0, done.stderr
    assert "report: " in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert "fails.json could not be made: no route to http://runs.example" in line
    assert (tmp_path / "told").read_text().splitlines() == ["synthetic-20260101 True"], "once"
    made = {path.name for path in folder.root.glob("[cr]*.*")}
    assert made == {"comparison.json", "report.html"}, "what the plan names, and its figures"
