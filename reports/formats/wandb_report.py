"""Weights & Biases: a run for each comparison in the project that WANDB_PROJECT names, else ``ringside``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from reports.formats.tracker import TrackedRun, Tracker


class WandbReport(Tracker):
    """Settings as the run's config, figures and verdicts as its summary, and the page.

    W&B's own variables are in force, WANDB_MODE=offline for one. Neither code, packages, commands nor the console are sent.
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
        told = wandb.Settings(
            silent=True, console="off", disable_git=True, x_disable_meta=True, x_save_requirements=False, login_timeout=60
        )
        try:
            with wandb.init(
                project=project,
                id=run.identity,
                resume="allow",
                name=run.name,
                group=run.plan,
                config={**run.settings},
                settings=told,
            ) as sent:
                sent.summary.update({"headline": run.headline, **run.figures, **run.verdicts})
                sent.log({"report": wandb.Html(run.page, inject=False)})
                return {"project": project, "id": run.identity, "url": None if sent.offline else sent.url}
        finally:
            wandb.teardown()
