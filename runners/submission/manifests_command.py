"""``ringside manifests``."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

from measurement.errors import PlanError
from measurement.plans.settings import Section
from runners.flags import Flag, Given, command, values_of
from runners.submission.job_request import JobRequest, most_ranks, require_fit, time_warnings
from runners.submission.manifests import RESULTS, PodRequest, as_yaml, job_name, manifests_of
from runners.submission.schedulers import options_of


class ManifestOptions(Section):
    """What ``ringside manifests`` is asked besides what the pods ask Kubernetes for."""

    plan: Path | None = None
    """A comparison plan (YAML). Its hosts are the pods."""
    settings: tuple[str, ...] = ()
    """Replace a value of the plan; may be repeated."""
    time: str | None = None
    """Time limit, as for 'ringside submit'. What was measured by then is kept and reported."""


_pod, _own = partial(Flag, "Pods", PodRequest), partial(Flag, "Comparison", ManifestOptions)
FLAGS = (
    _own("plan", is_argument=True),
    _own("settings", ("--set",), metavar="KEY=VALUE"),
    _own("time"),
    _pod("image", default=None),
    _pod("flavour"),
    _pod("nodes"),
    _pod("ranks_per_node", default=None),
    _pod("gpus"),
    _pod("cpus"),
    _pod("memory"),
    _pod("queue"),
    _pod("claim"),
)


def print_manifests(given: Given) -> None:
    """Print the manifests of a plan, checked as it will be read in the pods."""
    from measurement.plans.plan_file import checked
    from runners.planning.plan_reading import find_plan, read_plan, require_named

    asked, values = ManifestOptions(**values_of(given, ManifestOptions)), values_of(given, PodRequest)
    nodes = values.get("nodes", PodRequest.model_fields["nodes"].default)
    plan = require_named(asked.plan)
    path = find_plan(plan)
    ranks = values.get("ranks_per_node") or -(-most_ranks(read_plan(plan, overrides=_placed(asked, nodes, 1))) // nodes)
    chosen = read_plan(plan, overrides=_placed(asked, nodes, ranks))
    job = JobRequest(nodes=nodes, tasks_per_node=ranks, gpus_per_node=values.get("gpus"), time=asked.time or "0")
    options_of(job, name=chosen.name, folder=Path())  # refuses what is no time
    require_fit(chosen, job, flags=("--ranks-per-node", "--gpus"))
    placed = next((name for name, point in chosen.points.items() if point.hosts), None)
    if placed is not None:
        raise PlanError(f"point '{placed}' names hosts, and those of a job are its pods; leave them out, and give its world_size")
    limit = {} if job.minutes is None else {"time_s": round(job.minutes * 60)}
    request = checked(PodRequest, values | {"ranks_per_node": ranks} | limit, source="command line")
    name = job_name(chosen.name)
    settings = [word for setting in asked.settings for word in ("--set", setting)]
    text = path.read_text(encoding="utf-8")
    manifests = manifests_of(request, name=name, plan_text=text, arguments=settings)
    for warning in time_warnings(chosen, job):
        print(f"ringside: {warning}; apply the manifests again, and it goes on", file=sys.stderr)
    print(as_yaml(manifests, comments=_comments(request, name)), end="")


manifests = command(print_manifests, FLAGS, text="Print Kubernetes manifests that run a comparison: kubectl apply -f -")


def _placed(asked: ManifestOptions, nodes: int, ranks: int) -> list[str]:
    """Settings with which the plan is read as in the pods, whose names are not asked for."""
    return [*asked.settings, "hosts=" + ",".join(f"pod{number}:{ranks}" for number in range(nodes))]


def _comments(request: PodRequest, name: str) -> list[str]:
    """What people do before and after."""
    pod = f"{name}-launcher" + ("" if request.flavour == "mpijob" else "-0-0")
    keys = " ".join(f"--from-file={file}" for file in ("id_rsa", "id_rsa.pub", "authorized_keys=id_rsa.pub"))
    lines = []
    if request.flavour == "jobset":
        lines += [f"First, once: ssh-keygen -q -N '' -f id_rsa; kubectl create secret generic {name}-ssh {keys}"]
    if request.claim is None:
        lines += ["Results go with the pod: give --claim to keep them."]
    else:
        lines += [f"First: kubectl get pvc {shlex.quote(request.claim)} (pods wait for a claim that is missing)"]
    return [*lines, f"How it stands: kubectl exec POD -- ringside status {RESULTS}/{name}, of the pod {pod}..."]
