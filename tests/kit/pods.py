"""Runs jobs of Kubernetes as far as one machine can: each replica's pod in a host of the lab.

It knows nothing of Ringside.

What the operators add to a manifest is read in their sources: kubeflow/mpi-operator
pkg/controller/mpi_job_controller.go, kubeflow/trainer
pkg/runtime/framework/plugins/{mpi/mpi.go,torch/torch.go,jobset/*.go} and
pkg/constants/constants.go, and kubernetes-sigs/jobset. What kubelet and a container's runtime do is
in ``pod_init.py``. The image is this machine's own files.
"""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.kit.lab import namespaces, ssh
from tests.kit.lab.programs import program
from tests.kit.lab.state import load_settings

NAMESPACE = "default"
SSH_PORT = 2222
READY_S = 60
INIT = Path(__file__).with_name("pod_init.py")
OPEN_MPI = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
}


@dataclass(kw_only=True)
class Pod:
    """One pod, as an operator makes it."""

    hostname: str
    subdomain: str
    spec: dict
    drives: bool
    """Starts once the others are ready, and the job ends with it."""

    @property
    def container(self):
        return self.spec["containers"][0]

    def add_environment(self, variables):
        self.container.setdefault("env", []).extend(
            {"name": name, "value": value} for name, value in variables.items()
        )

    def add_volume(self, path, volume):
        self.spec.setdefault("volumes", []).append(volume)
        self.container.setdefault("volumeMounts", []).append(
            {"name": volume["name"], "mountPath": path}
        )


@dataclass(kw_only=True)
class Job:
    """What becomes of a manifest: pods, and the files that their volumes show."""

    pods: list[Pod]
    files: dict[str, dict[str, str]]
    """Of config maps and secrets, by the object's name."""
    needs_key: str | None = None
    """Name of the secret that the operator makes keys for."""

    @property
    def driver(self):
        return next(pod for pod in self.pods if pod.drives)


def job_of(manifests) -> Job:
    """Do what the operator of the one job among some manifests does."""
    objects = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in copy.deepcopy(manifests)
    }
    files = {
        name: manifest["data"] for (kind, name), manifest in objects.items() if kind == "ConfigMap"
    }
    (kind,) = {kind for kind, _ in objects} & set(OPERATORS)
    (job,) = (manifest for (manifest_kind, _), manifest in objects.items() if manifest_kind == kind)
    return OPERATORS[kind](job, objects, files)


def over_ssh(pods, name, *, slots, listed, mount):
    """What an operator adds so that the pod that drives reaches the others; returns the name of the
    key, and the hostfile."""
    secret, config = f"{name}-ssh", f"{name}-config"
    for pod in pods:
        pod.add_volume(mount, {"name": "ssh-auth", "secret": {"secretName": secret}})
        if pod.drives:
            pod.add_environment(OPEN_MPI | {"OMPI_MCA_orte_set_default_slots": str(slots)})
            pod.add_volume("/etc/mpi", {"name": "mpi-job-config", "configMap": {"name": config}})
    return secret, {config: {"hostfile": "".join(f"{host} slots={slots}\n" for host in listed)}}


def mpi_job(job, objects, files):
    name, wanted = job["metadata"]["name"], job["spec"]
    replicas = wanted["mpiReplicaSpecs"]
    names = [
        f"{name}-launcher",
        *(f"{name}-worker-{index}" for index in range(replicas["Worker"]["replicas"])),
    ]
    pods = []
    for host in names:
        role = "Launcher" if host == names[0] else "Worker"
        spec = copy.deepcopy(replicas[role]["template"]["spec"])
        pods.append(Pod(hostname=host, subdomain=name, spec=spec, drives=role == "Launcher"))
        pods[-1].add_environment({"K_MPI_JOB_ROLE": role.lower()})
    listed = names if wanted.get("runLauncherAsWorker") else names[1:]
    reached = {
        "slots": wanted["slotsPerWorker"],
        "listed": [f"{host}.{name}.{NAMESPACE}.svc" for host in listed],
    }
    key, hostfile = over_ssh(pods, name, mount=wanted["sshAuthMountPath"], **reached)
    return Job(pods=pods, files=files | hostfile, needs_key=key)


def job_set(job, objects, files):
    return Job(pods=replicated(job["metadata"]["name"], job["spec"]), files=files)


def train_job(job, objects, files):
    name, trainer = job["metadata"]["name"], job["spec"].get("trainer", {})
    runtime = objects[job["spec"]["runtimeRef"]["kind"], job["spec"]["runtimeRef"]["name"]]["spec"]
    policy, template = runtime["mlPolicy"], runtime["template"]["spec"]
    nodes = trainer.get("numNodes", policy.get("numNodes", 1))
    mpi = policy["mpi"]
    slots = trainer.get("numProcPerNode", mpi["numProcPerNode"])
    for replicated_job in template["replicatedJobs"]:
        inner = replicated_job["template"]
        if replicated_job["name"] == "node":
            inner["spec"]["parallelism"] = max(nodes - 1, 1) if mpi["runLauncherAsNode"] else nodes
        labels = inner.get("metadata", {}).get("labels", {})
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer":
            (container,) = inner["spec"]["template"]["spec"]["containers"]
            container |= {
                key: trainer[key] for key in ("image", "command", "args") if key in trainer
            }
    pods = replicated(name, template)
    listed = [
        f"{pod.hostname}.{name}" for pod in pods if mpi["runLauncherAsNode"] or not pod.drives
    ]
    key, hostfile = over_ssh(
        pods, f"{name}-mpi", slots=slots, listed=listed, mount=mpi["sshAuthMountPath"]
    )
    return Job(pods=pods, files=files | hostfile, needs_key=key)


OPERATORS = {"MPIJob": mpi_job, "TrainJob": train_job, "JobSet": job_set}


def replicated(name, job_set):
    """The pods of a JobSet."""
    pods = []
    for job in job_set["replicatedJobs"]:
        for replica in range(job.get("replicas", 1)):
            inner = job["template"]["spec"]
            for index in range(inner.get("parallelism", 1)):
                host = f"{name}-{job['name']}-{replica}-{index}"
                spec = copy.deepcopy(inner["template"]["spec"])
                drives = "dependsOn" in job
                pod = Pod(hostname=host, subdomain=name, spec=spec, drives=drives)
                pod.add_environment({"JOB_COMPLETION_INDEX": str(index)})
                pods.append(pod)
    return pods


@dataclass(kw_only=True)
class Running:
    """A job in a lab that is up, which has a host for each pod."""

    job: Job
    folder: Path
    """For files of the volumes, and logs."""
    claims: dict[str, Path]
    images: dict[str, dict]
    """Of each image ``path``, its PATH, ``folder``, its working directory, and ``holds``, the
    machine's folders that are in it."""
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __enter__(self):
        settings = load_settings()
        self.hosts = dict(zip((pod.hostname for pod in self.job.pods), settings.names, strict=True))
        self.addresses = {name: settings.address(host) for name, host in self.hosts.items()}
        if self.job.needs_key is not None:
            self.make_key(self.job.needs_key)
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.wait(timeout=20)

    def make_key(self, secret):
        key = self.folder / "key"
        public = ssh.make_key(key, secret)
        self.job.files[secret] = {
            "id_rsa": key.read_text(),
            "id_rsa.pub": public,
            "authorized_keys": public,
        }

    def start(self):
        """Start all pods, the one that drives last."""
        nodes = [pod for pod in self.job.pods if not pod.drives]
        for pod in nodes:
            self.start_pod(pod)
        deadline = time.monotonic() + READY_S
        while not all(self.is_ready(pod) for pod in nodes):
            assert time.monotonic() < deadline and not any(
                self.processes[pod.hostname].poll() for pod in nodes
            ), self.logs()
            time.sleep(0.2)
        self.start_pod(self.job.driver)

    def end(self, *, timeout):
        """Wait for the pod that drives; returns its exit code and what it said."""
        name = self.job.driver.hostname
        code = self.processes[name].wait(timeout=timeout)
        return code, (self.folder / f"{name}.log").read_text()

    def is_ready(self, pod):
        """By its readiness probe."""
        port = pod.container["readinessProbe"]["tcpSocket"]["port"]
        return namespaces.listens(self.hosts[pod.hostname], port)

    def logs(self):
        return {file.name: file.read_text() for file in self.folder.glob("*.log")}

    def start_pod(self, pod):
        host = self.hosts[pod.hostname]
        init = namespaces.init_of(host)
        spec = self.folder / f"{pod.hostname}.json"
        spec.write_text(json.dumps(self.spec_of(pod)))
        separate = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        python = [sys.executable, "-I", "-S", str(INIT), str(spec)]
        argv = [program("unshare"), *separate, *python]
        entered = namespaces.enter_command(init, folder=Path("/"), argv=argv)
        with (self.folder / f"{pod.hostname}.log").open("ab") as log:
            self.processes[pod.hostname] = subprocess.Popen(
                entered, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def spec_of(self, pod):
        image, container = self.images[pod.container["image"]], pod.container
        by_name = {volume["name"]: volume for volume in pod.spec["volumes"]}
        user = pod.spec["securityContext"]["runAsUser"]
        environment = {
            "PATH": image["path"],
            "HOSTNAME": pod.hostname,
            "KUBERNETES_SERVICE_HOST": "10.77.0.254",
            **{each["name"]: each["value"] for each in container.get("env", [])},
        }
        return {
            "hostname": pod.hostname,
            "user": user,
            "group": pod.spec["securityContext"].get("fsGroup", user),
            "environment": environment,
            "folder": image["folder"],
            "holds": image["holds"],
            "command": [*container["command"], *container.get("args", [])],
            "hosts": self.names_for(pod),
            "ssh_port": SSH_PORT,
            "mounts": {
                each["mountPath"]: self.source(by_name[each["name"]])
                for each in container["volumeMounts"]
            },
        }

    def source(self, volume):
        """The folder that a volume shows; none for an empty one."""
        if "persistentVolumeClaim" in volume:
            return str(self.claims[volume["persistentVolumeClaim"]["claimName"]])
        if "emptyDir" in volume:
            return None
        name = (
            volume["configMap"]["name"] if "configMap" in volume else volume["secret"]["secretName"]
        )
        folder = self.folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in self.job.files[name].items():
            (folder / file).write_text(text)
        return str(folder)

    def names_for(self, pod):
        """What a pod resolves: others by the service, itself by its bare name, too."""
        lines = ["127.0.0.1 localhost"]
        for other in self.job.pods:
            base = f"{other.hostname}.{other.subdomain}"
            ends = (f".{NAMESPACE}.svc.cluster.local", f".{NAMESPACE}.svc", f".{NAMESPACE}", "")
            names = [base + end for end in ends] + [other.hostname] * (other is pod)
            lines.append(" ".join([self.addresses[other.hostname], *names]))
        return "\n".join(lines) + "\n"
