"""MLflow: a run for each comparison in the experiment that MLFLOW_EXPERIMENT_NAME names, else ``ringside``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from reports.formats.tracker import TrackedRun, Tracker

IDENTITY = "ringside.identity"
"""The tag by which a run is found again."""
MOST_AT_ONCE = 100
"""Tags that MLflow takes in one request."""
NOT_IN_NAMES = re.compile(r"[^\w.\-: /]")


class MlflowReport(Tracker):
    """Settings as parameters, figures as metrics, verdicts as tags, and the page as an artifact.

    MLFLOW_TRACKING_URI and MLflow's other variables are in force.
    """

    file_name = "mlflow.json"
    package = "mlflow"
    requirement = "ringside[mlflow]"

    def errors(self) -> tuple[type[Exception], ...]:
        from mlflow.exceptions import MlflowException

        return (*super().errors(), MlflowException)

    def send(self, run: TrackedRun) -> Mapping[str, Any]:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own number takes minutes
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        client, experiment = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", "ringside")
        known = client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else client.create_experiment(experiment)
        found = client.search_runs([number], f"tags.`{IDENTITY}` = '{run.identity}'", max_results=1)
        if found:
            run_id = found[0].info.run_id
        else:
            began = None if run.created_s is None else int(1000 * run.created_s)
            run_id = client.create_run(number, start_time=began, tags={IDENTITY: run.identity}, run_name=run.name).info.run_id
            client.log_batch(run_id, params=[Param(name, str(value)[:500]) for name, value in run.settings.items()])
        now = int(1000 * time.time())
        metrics = [Metric(NOT_IN_NAMES.sub("_", name), value, now, 0) for name, value in run.figures.items()]
        tags = [
            RunTag(NOT_IN_NAMES.sub("_", name), text)
            for name, text in {**run.verdicts, "mlflow.note.content": run.headline}.items()
        ]
        for first in range(0, max(len(metrics), len(tags)), MOST_AT_ONCE):
            part = slice(first, first + MOST_AT_ONCE)
            client.log_batch(run_id, metrics=metrics[part], tags=tags[part])
        client.log_text(run_id, run.page, "report.html")
        client.set_terminated(run_id, status="FINISHED" if run.is_ok else "FAILED")
        return {"experiment": experiment, "run_id": run_id, "url": _url(client.tracking_uri, f"{number}/runs/{run_id}")}


def _url(server: str, place: str) -> str | None:
    """The run's page, without the password that the server's address may hold; None without a server."""
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https"):
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/#/experiments/{place}"
