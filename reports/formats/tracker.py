"""Reports for programs in which teams follow their runs.

One of your own is a class in one file: see docs/extending.md.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from measurement.errors import ReportError, cut
from reports.base import Report
from reports.formats.for_programs import gauges
from reports.formats.pages import HtmlReport
from reports.schema import Comparison
from reports.tables.figures import CREATED, VERDICT

SETTINGS = {
    "name",
    "workload",
    "baseline",
    "device",
    "world_size",
    "hosts",
    "local_batch_size",
    "global_batch_size",
    "seed",
}
CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@")


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A comparison, as trackers see runs."""

    identity: str
    """Letters and digits that stay the same when the comparison is resumed or its reports are
    rebuilt."""
    name: str
    plan: str
    headline: str
    created_s: float | None
    """Seconds since 1970."""
    is_ok: bool
    """Whether no arm failed or is wrong."""
    settings: Mapping[str, Any]
    """What was compared, in plain JSON."""
    figures: Mapping[str, float]
    """By names such as ``horovod-mpi/throughput_ratio``; where there are points, theirs comes
    first."""
    verdicts: Mapping[str, str]
    """By names such as ``horovod-mpi/verdict``."""
    page: str
    """HTML of report.html."""


class Tracker(Report):
    """A report that goes to another program.

    Its file is JSON and says where the run is found there.
    """

    is_customary = False
    package: ClassVar[str | None] = None
    """What is imported; None: nothing but Python's own."""
    requirement: ClassVar[str | None] = None
    """What has pip install it; None: the package's name."""

    @abstractmethod
    def send(self, run: TrackedRun) -> Mapping[str, Any]:
        """Make the run there, or bring it up to date; returns what the file says, the same for the
        same run.

        One of ``errors`` becomes a message that says what to do.
        """

    def errors(self) -> tuple[type[Exception], ...]:
        """What ``send`` may raise where the program cannot be reached or refuses the run."""
        return (OSError, ImportError)

    def lack(self) -> str | None:
        spec = importlib.util.find_spec(self.package) if self.package else None
        if self.package is None or (spec and spec.origin):  # a folder of that name has no origin
            return None
        return (
            f"{self.file_name} needs the package {self.package}, which is not installed; run: pip"
            f" install '{self.requirement or self.package}', or leave the report out of the plan's"
            " 'reports'"
        )

    def render(self, summary: Comparison) -> bytes:
        """Send the run to the program; returns the file.

        A failure is a ``ReportError`` that says what to do.
        """
        run = tracked_run(summary, HtmlReport().render(summary))
        try:
            return json.dumps(self.send(run), indent=2).encode() + b"\n"
        except self.errors() as error:
            raise ReportError(
                f"{self.file_name} could not be made: {CREDENTIALS.sub('', cut(str(error)))}; what"
                " was measured and the other reports are written, and 'ringside report' with the"
                " folder tries again"
            ) from error


def tracked_run(summary: Comparison, page: bytes) -> TrackedRun:
    """What is sent to trackers; ``page`` is report.html."""
    identity, figures = f"{summary.comparison_id} {summary.created_at}", list(gauges(summary))
    return TrackedRun(
        identity=hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:16],
        name=summary.comparison_id,
        plan=summary.name,
        headline=summary.headline,
        created_s=CREATED.value(summary),
        is_ok=summary.is_ok,
        settings=summary.model_dump(mode="json", include=SETTINGS),
        figures={
            "/".join([*labels.values(), figure.gauge]): value
            for figure, labels, value in figures
            if figure != VERDICT
        },
        verdicts={
            "/".join([*list(labels.values())[:-1], "verdict"]): labels["verdict"]
            for figure, labels, _ in figures
            if figure == VERDICT
        },
        page=page.decode(),
    )


IDENTITY = "ringside.identity"
"""The tag by which a run is found again."""
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

        # its own number takes minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        client, experiment = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", "ringside")
        project = client.get_experiment_by_name(experiment)
        number = project.experiment_id if project else client.create_experiment(experiment)
        runs = client.search_runs([number], f"tags.`{IDENTITY}` = '{run.identity}'", max_results=1)
        if runs:
            run_id = runs[0].info.run_id
        else:
            began = None if run.created_s is None else int(1000 * run.created_s)
            run_id = client.create_run(
                number, start_time=began, tags={IDENTITY: run.identity}, run_name=run.name
            ).info.run_id
            client.log_batch(
                run_id,
                params=[Param(name, str(value)[:500]) for name, value in run.settings.items()],
            )
        now = int(1000 * time.time())
        metrics = [
            Metric(NOT_IN_NAMES.sub("_", name), value, now, 0)
            for name, value in run.figures.items()
        ]
        tags = [
            RunTag(NOT_IN_NAMES.sub("_", name), text)
            for name, text in {**run.verdicts, "mlflow.note.content": run.headline}.items()
        ]
        # which makes requests of the size that servers take
        client.log_batch(run_id, metrics=metrics, tags=tags)
        client.log_text(run_id, run.page, "report.html")
        client.set_terminated(run_id, status="FINISHED" if run.is_ok else "FAILED")
        return {
            "experiment": experiment,
            "run_id": run_id,
            "url": _url(client.tracking_uri, f"{number}/runs/{run_id}"),
        }


def _url(server: str, place: str) -> str | None:
    """The run's page, without the password that the server's address may hold; None without a
    server.
    """
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https"):
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/#/experiments/{place}"


class WandbReport(Tracker):
    """Settings as the run's config, figures and verdicts as its summary, and the page.

    W&B's own variables are in force, WANDB_MODE=offline for one. Neither code, packages, commands
    nor the console are sent.
    """

    file_name = "wandb.json"
    package = "wandb"
    requirement = "ringside[wandb]"

    def errors(self) -> tuple[type[Exception], ...]:
        from wandb.errors import Error

        return (*super().errors(), Error)

    def send(self, run: TrackedRun) -> Mapping[str, Any]:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "ringside")
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            x_disable_meta=True,
            x_save_requirements=False,
            login_timeout=60,
        )
        try:
            with wandb.init(
                project=project,
                id=run.identity,
                resume="allow",
                name=run.name,
                group=run.plan,
                config={**run.settings},
                settings=settings,
            ) as sent:
                sent.summary.update({"headline": run.headline, **run.figures, **run.verdicts})
                sent.log({"report": wandb.Html(run.page, inject=False)})
                return {
                    "project": project,
                    "id": run.identity,
                    "url": None if sent.offline else sent.url,
                }
        finally:
            wandb.teardown()
