"""Looks at a workload's data on a host: ``python -m runners.planning.data_check JSON``, run by the driver on every other host.

Its answer is one line: what is wrong, or nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measurement.errors import PlanError
from measurement.plans.plan import Plan
from measurement.registry import search_beside
from runners.planning.workload import WorkloadSetup, resolve_workload
from runners.processes import remote
from runners.processes.answers import give
from workloads import Workload

ANSWER_TIMEOUT_S = 600.0
"""Reading all file names of a large data set over a network takes minutes."""


def require_data_on(hosts: Sequence[str], plan: Plan, workload: WorkloadSetup) -> None:
    """Have these hosts look at the workload's data, all at once, as their ranks will see it.

    Raises:
        PlanError: it is missing or damaged on some; one line for each.
        LaunchError: a host does not answer.
    """
    if not hosts or not issubclass(workload.workload, Workload) or workload.workload.require_data is Workload.require_data:
        return
    fields = plan.model_dump(mode="json", include={"workload", "workload_options", "local_batch_size", "seed"})
    argv = remote.python("runners.planning.data_check", json.dumps(fields))
    with ThreadPoolExecutor(max_workers=64) as pool:
        answers = list(pool.map(lambda host: remote.ask(host, argv, timeout_s=ANSWER_TIMEOUT_S), hosts))
    wrong = {host: answer.decode(errors="replace") for host, answer in zip(hosts, answers, strict=True)}
    lines = [f"host '{host}': {message}" for host, message in wrong.items() if message]
    if lines:
        raise PlanError("\n".join(lines))


def main() -> None:
    """Answer with what is wrong with the data here."""
    asked = json.loads(sys.argv[1])
    search_beside(Path.cwd())
    try:
        setup = resolve_workload(asked["workload"], asked["workload_options"])
        setup.build(local_batch_size=asked["local_batch_size"], seed=asked["seed"]).require_data()
        give("")
    except PlanError as error:
        give(" ".join(str(error).split()))


if __name__ == "__main__":
    main()
