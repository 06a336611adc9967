"""Kubernetes manifests of a comparison: all arms run in one job's pods, driven from the first of them over the operator's ssh.

The names are those of kubeflow/mpi-operator 0.8, kubeflow/trainer 2.3 and kubernetes-sigs/jobset 0.9. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import yaml
from pydantic import Field

from measurement.errors import PlanError, quoted
from measurement.plans.settings import Section
from runners.hosts.batch_jobs import KUBERNETES, NODE_FILES

Values = dict[str, Any]
Flavour = Literal["mpijob", "trainjob", "jobset"]

IMAGE_USER = 1000
SSH_FOLDER, SSHD, SSH_PORT = "/home/mpiuser/.ssh", ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"], 2222
"""As the operators' own images and examples have them."""
PLAN_FOLDER, PLAN_FILE, RESULTS, HOSTFILE_FOLDER = "/etc/ringside", "plan.yaml", "/results", "/etc/mpi"
MOST_NAME = 40
"""Letters of a job's name: pods' names add up to 20, and the name of a host has 63 at most."""
GRACE_S = 120
"""From SIGTERM to SIGKILL: processes are ended, and what was measured is written and reported."""
OPEN_MPI = {
    NODE_FILES[KUBERNETES]: f"{HOSTFILE_FOLDER}/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}
"""What both operators set in the pod that drives; a JobSet has no operator that does."""


class PodRequest(Section):
    """What the pods ask Kubernetes for: all are alike, so all arms have the same."""

    image: str = Field(min_length=1)
    """Image with Ringside, its workloads, and sshd as kubeflow/mpi-operator's base image has it."""
    nodes: int = Field(default=2, ge=2)
    """Pods, each on a node of its own."""
    ranks_per_node: int = Field(default=1, ge=1)
    """Ranks in each pod."""
    flavour: Flavour = "mpijob"
    """The kind of job: of MPI Operator, of Kubeflow Trainer, or a plain JobSet."""
    gpus: int | None = Field(default=None, ge=1)
    """GPUs of each pod."""
    cpus: int | None = Field(default=None, ge=1)
    """Cores of each pod."""
    memory: str | None = Field(default=None, pattern=r"^[1-9][0-9]*[KMGT]i$")
    """Memory of each pod, such as 64Gi."""
    queue: str | None = None
    """Kueue's queue."""
    claim: str | None = None
    """A PersistentVolumeClaim that all nodes can mount, for results. Without it they go with the pod."""
    time_s: int | None = Field(default=None, ge=1)
    """Seconds until SIGTERM."""

    @property
    def limits(self) -> dict[str, int | str]:
        """Requests and limits of a container; equal, so that no neighbour takes what was asked for."""
        given = {"cpu": self.cpus, "memory": self.memory, "nvidia.com/gpu": self.gpus}
        return {name: value for name, value in given.items() if value is not None}


def job_name(plan_name: str) -> str:
    """Return what a job is called after a plan: small letters, digits and dashes."""
    name = re.sub("[^a-z0-9]+", "-", plan_name.lower()).strip("-")
    return (name if name[:1].isalpha() else f"ringside-{name}")[:MOST_NAME].rstrip("-")


def manifests_of(request: PodRequest, *, name: str, plan_text: str, arguments: Sequence[str] = ()) -> list[Values]:
    """Return the manifests, first what the others need. ``name``: see ``job_name``; ``arguments``: more of ``ringside compare``."""
    names = [request.image, request.queue or "", request.claim or "", *arguments]
    broken = next((text for text in names if not text.isprintable()), None)
    if broken is not None:
        raise PlanError(f"{quoted(broken)} cannot stand in a manifest; leave out characters that do not print")
    job = _Job(request, name, arguments)
    plan = _object("v1", "ConfigMap", f"{name}-plan") | {"data": {PLAN_FILE: plan_text}}
    return [plan, *{"mpijob": job.mpijob, "trainjob": job.trainjob, "jobset": job.jobset}[request.flavour]()]


def as_yaml(manifests: Sequence[Values], *, comments: Sequence[str] = ()) -> str:
    """Return manifests as one text that people read: texts of several lines as blocks, comments first."""
    head = "".join(f"# {line}\n" for line in comments)
    return head + yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=132, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


class _Job:
    """One job's manifests."""

    def __init__(self, request: PodRequest, name: str, arguments: Sequence[str]) -> None:
        self.request, self.name = request, name
        compare = ["ringside", "compare", f"{PLAN_FOLDER}/{PLAN_FILE}", "--set", f"hosts={KUBERNETES}"]
        self.command = [*compare, *arguments, "-o", f"{RESULTS}/{name}"]

    def mpijob(self) -> list[Values]:
        """Return an MPIJob whose launcher is a worker, too."""
        replicas = {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": self._pod(self.command)},
            "Worker": {"replicas": self.request.nodes - 1, "restartPolicy": "Never", "template": self._pod(SSHD)},
        }
        limit = {} if self.request.time_s is None else {"activeDeadlineSeconds": self.request.time_s}
        spec = {
            "slotsPerWorker": self.request.ranks_per_node,
            "runLauncherAsWorker": True,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": SSH_FOLDER,
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, **limit},
            "mpiReplicaSpecs": replicas,
        }
        return [_object("kubeflow.org/v2beta1", "MPIJob", self.name, labels=self._queue) | {"spec": spec}]

    def trainjob(self) -> list[Values]:
        """Return a TrainingRuntime over MPI, of which Kubeflow ships none for Horovod, and a TrainJob that uses it."""
        mpi = {
            "numProcPerNode": self.request.ranks_per_node,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": SSH_FOLDER,
            "runLauncherAsNode": True,
        }
        trained = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        policy = {"numNodes": self.request.nodes, "mpi": mpi}
        runtime = {"mlPolicy": policy, "template": {"spec": self._replicated(nodes={}, driver={}, driver_labels=trained)}}
        job = {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": self.name},
            "trainer": {
                "numNodes": self.request.nodes,
                "numProcPerNode": self.request.ranks_per_node,
                "image": self.request.image,
                "command": self.command,
            },
        }
        version = "trainer.kubeflow.org/v1alpha1"
        return [
            _object(version, "TrainingRuntime", self.name) | {"spec": runtime},
            _object(version, "TrainJob", self.name, labels=self._queue) | {"spec": job},
        ]

    def jobset(self) -> list[Values]:
        """Return a JobSet, with the hostfile and the environment that an MPI operator would have made."""
        hosts = [f"{self.name}-launcher-0-0", *(f"{self.name}-node-0-{number}" for number in range(self.request.nodes - 1))]
        lines = "".join(f"{host}.{self.name} slots={self.request.ranks_per_node}\n" for host in hosts)
        hostfile = _object("v1", "ConfigMap", f"{self.name}-hostfile") | {"data": {"hostfile": lines}}
        ssh = {SSH_FOLDER: {"name": "ssh", "secret": {"secretName": f"{self.name}-ssh", "defaultMode": 0o640}}}
        files = {HOSTFILE_FOLDER: {"name": "hostfile", "configMap": {"name": f"{self.name}-hostfile"}}}
        spec = self._replicated(nodes=ssh, driver=ssh | files, environment=OPEN_MPI)
        return [hostfile, _object("jobset.x-k8s.io/v1alpha2", "JobSet", self.name, labels=self._queue) | {"spec": spec}]

    @property
    def _queue(self) -> dict[str, str]:
        return {} if self.request.queue is None else {"kueue.x-k8s.io/queue-name": self.request.queue}

    def _replicated(
        self,
        *,
        nodes: Mapping[str, Values],
        driver: Mapping[str, Values],
        driver_labels: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Values:
        """Return what a JobSet and a TrainingRuntime share: nodes that serve ssh, and a launcher that starts when they do."""
        limit = {} if self.request.time_s is None else {"activeDeadlineSeconds": self.request.time_s}
        serving = _indexed(self._pod(SSHD, nodes), pods=self.request.nodes - 1)
        driving = _indexed(self._pod(self.command, driver, environment), pods=1, **limit)
        labelled = {"metadata": {"labels": dict(driver_labels)}} if driver_labels else {}
        return {
            "network": {"publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
            "replicatedJobs": [
                {"name": "node", "template": {"spec": serving}},
                {
                    "name": "launcher",
                    "dependsOn": [{"name": "node", "status": "Ready"}],
                    "template": {**labelled, "spec": driving},
                },
            ],
        }

    def _pod(
        self, command: Sequence[str], volumes: Mapping[str, Values] | None = None, environment: Mapping[str, str] | None = None
    ) -> Values:
        """Return a pod's template; ``volumes`` by the path at which they are mounted."""
        claim = {"emptyDir": {}} if self.request.claim is None else {"persistentVolumeClaim": {"claimName": self.request.claim}}
        mounted: dict[str, Values] = {
            RESULTS: {"name": "results", **claim},
            "/dev/shm": {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            PLAN_FOLDER: {"name": "plan", "configMap": {"name": f"{self.name}-plan"}},
            **(volumes or {}),
        }
        serves = command is SSHD
        container = {
            "name": "node",
            "image": self.request.image,
            "command": list(command),
            **({"env": [{"name": name, "value": value} for name, value in environment.items()]} if environment else {}),
            **({"readinessProbe": {"tcpSocket": {"port": SSH_PORT}}} if serves else {}),
            **({"resources": {"requests": self.request.limits, "limits": self.request.limits}} if self.request.limits else {}),
            "volumeMounts": [{"name": volume["name"], "mountPath": path} for path, volume in mounted.items()],
        }
        own = {"ringside/job": self.name}
        apart = {"labelSelector": {"matchLabels": own}, "topologyKey": "kubernetes.io/hostname"}
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": {"runAsUser": IMAGE_USER, "fsGroup": IMAGE_USER},
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "containers": [container],
            "volumes": list(mounted.values()),
        }
        return {"metadata": {"labels": own}, "spec": spec}


def _indexed(pod: Values, *, pods: int, **others: int) -> Values:
    """A Job with numbered pods, each started once."""
    return {"parallelism": pods, "completions": pods, "backoffLimit": 0, **others, "template": pod}


def _object(version: str, kind: str, name: str, *, labels: Mapping[str, str] | None = None) -> Values:
    metadata = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}
