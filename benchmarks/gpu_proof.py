"""What of Ringside works on this machine's GPUs? Every check runs, those that fail included; one
archive holds what came out.

    python benchmarks/gpu_proof.py [--output FOLDER] [--only NAME ...] [--minutes 10] [--device
        cuda|cpu]

``make gpu`` builds Horovod over NCCL and runs this. Under ten minutes on one GPU: a check that
would pass the limit is not run, and listed as such. The archive, which may be attached to an issue,
has reports, records, logs, the doctor's findings, package versions and what nvidia-smi says,
without identifiers of cards. ``--device cpu`` tries the list itself, over Gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

REPOSITORY = Path(__file__).parent.parent
HELD_UP = Path(__file__).parent / "plugins" / "held_up.py"
RINGSIDE = [sys.executable, "-m", "runners.cli"]
DELAY_MS, DELAYS = 2.0, ("kernel", "stream", "copy")
IDENTIFIERS = re.compile(
    r"<([a-z_]*(?:serial|serial_number|uuid|pdi|board_id|part_number|guid))>[^<]*</\1>"
)
Judge = Callable[[dict[str, Any]], str]
"""Given ``comparison.json``, says what is wrong; nothing where all is well."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where the checks run."""

    kind: str
    count: int
    name: str

    @property
    def transport(self) -> str:
        """The libraries' own."""
        return "nccl" if self.kind == "cuda" else "gloo"

    def arm(self, backend: str, **options: Any) -> dict[str, Any]:
        """One of a plan."""
        transport = {} if backend == "dp" else {"transport": self.transport}
        launcher = (
            {}
            if backend == "dp"
            else {"launcher": "horovodrun" if backend == "horovod" else "torchrun"}
        )
        return {"backend": backend, **transport, **launcher, "options": options}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that is tried."""

    name: str
    shows: str
    argv: Sequence[str] = ()
    plan: dict[str, Any] = field(default_factory=dict)
    judge: Judge = lambda _: ""
    limit_s: float = 150.0
    least_gpus: int = 1


def plan(
    device: Device, arms: dict[str, Any], *, ranks: int = 1, launches: int = 2, **more: Any
) -> dict[str, Any]:
    """The plan of a short comparison of a small image model."""
    size = {"cuda": (64, 224), "cpu": (2, 32)}[device.kind]
    return {
        "workload": "synthetic",
        "workload_options": {"model": "resnet18", "image_size": size[1], "num_classes": 10},
        "local_batch_size": size[0],
        "world_size": ranks,
        "device": device.kind,
        "baseline": next(iter(arms)),
        "arms": arms,
        "measurement": {"rehearsal": "never", "launches": launches, "seconds_per_launch": 8},
    } | more


def checks(device: Device) -> list[Check]:
    """All of them, the cheap and telling ones first."""
    ddp, horovod, fsdp2 = device.arm("ddp"), device.arm("horovod"), device.arm("fsdp2")
    pair, three = {"ddp": ddp, "horovod": horovod}, {"ddp": ddp, "horovod": horovod, "fsdp2": fsdp2}
    bf16 = {"precision": "amp-bf16"}
    alone = {"dp": device.arm("dp")} if device.kind == "cuda" else {}
    on_all = [
        Check(
            name=f"all-{device.count}-gpus",
            shows="DDP, Horovod, FSDP2 and DataParallel on all GPUs, bfloat16",
            plan=plan(device, three | {"dp": device.arm("dp")}, ranks=device.count, **bf16),
            least_gpus=2,
        ),
        Check(
            name="sync-batchnorm",
            shows="each library's synchronised batch norm on all GPUs",
            plan=plan(device, pair, ranks=device.count, launches=1, speed={"sync_batchnorm": True}),
            least_gpus=2,
        ),
    ]
    return [
        Check(
            name="doctor",
            shows="driver, kernels, toolkit, NCCL and modes fit",
            argv=[*RINGSIDE, "doctor"],
            limit_s=90,
        ),
        Check(
            name="tests",
            shows="DDP over NCCL; events beside kernels",
            argv=[sys.executable, "-m", "pytest", "-q", "tests/gpu"],
        ),
        Check(
            name="one-rank",
            shows="DDP, Horovod, FSDP2 and DataParallel with a control and a floor: stopped in turn, bfloat16, traced",
            plan=plan(device, three | alone, trace=True, **bf16),
            judge=_is_traced,
            limit_s=200,
        ),
        Check(
            name="delayed",
            shows=f"{DELAY_MS:g} ms more in a kernel, on a second stream and in a copy are found, by their size",
            plan=plan(
                device,
                {
                    "ddp": ddp,
                    **{
                        by: device.arm(f"{HELD_UP}:DelayedDDP", delay_ms=DELAY_MS, by=by)
                        for by in DELAYS
                    },
                },
                launches=1,
            ),
            judge=_is_delayed,
            limit_s=200,
        ),
        Check(
            name="waiting-host",
            shows="a host that waits for its device in each step is not called faster",
            plan=plan(device, {"ddp": ddp, "waiting": device.arm(f"{HELD_UP}:WaitingDDP")}),
            judge=_is_not_faster,
        ),
        Check(
            name="channels-last-fp16",
            shows="channels_last, float16 with a loss scale, cuDNN's benchmark",
            plan=plan(
                device,
                pair,
                launches=1,
                precision="amp-fp16" if device.kind == "cuda" else "fp32",
                speed={"channels_last": True, "cudnn_benchmark": True},
            ),
        ),
        *on_all,
        Check(
            name="input",
            shows="loaders, with pinned memory on GPUs",
            plan=plan(
                device,
                {"ddp": ddp},
                workload="loaders",
                workload_options={"workload": "digits", "workers": [0, 2]},
            ),
            limit_s=60,
        ),
        Check(
            name="compile",
            shows="torch.compile of both libraries' models",
            plan=plan(device, pair, launches=1, speed={"compile": True}),
            limit_s=200,
        ),
        Check(
            name="sequential",
            shows="one arm at a time, as where memory holds one only",
            plan=plan(device, pair)
            | {"measurement": {"mode": "sequential", "rehearsal": "never", "launches": 2}},
            limit_s=200,
        ),
    ]


def _is_delayed(found: dict[str, Any]) -> str:
    """Every delayed arm's step is longer than the baseline's by the delay, to a fifth of it."""
    medians = {arm["name"]: arm["step_time_s"]["p50"] for arm in found["arms"]}
    longer = {by: 1e3 * (medians[by] - medians["ddp"]) for by in DELAYS}
    wrong = [
        f"{by}: {more:.2f} ms" for by, more in longer.items() if abs(more - DELAY_MS) > DELAY_MS / 5
    ]
    return (
        f"steps are longer by something else than {DELAY_MS:g} ms ({', '.join(wrong)})"
        if wrong
        else ""
    )


def _is_traced(found: dict[str, Any]) -> str:
    """There is a trace of each arm with NCCL's log, NVML tells clocks, one NCCL serves all, and the
    control comes out equal.
    """
    if not found["traces"]:
        return "there is no trace"
    over = {
        arm["name"]: arm["described"]["nccl"] for arm in found["arms"] if arm["transport"] == "nccl"
    }
    if unread := [arm["arm"] for arm in found["traces"] if arm["arm"] in over and not arm["nccl"]]:
        return f"NCCL's log was not read: {', '.join(unread)}"
    if over and any(host["gpu_mhz"] is None for arm in found["arms"] for host in arm["machine"]):
        return "NVML tells no clock of the GPU"
    if len(set(over.values())) > 1:
        return f"libraries call NCCL of several releases: {over}"
    control = [one["verdict"] for one in found["results"] if one["role"] == "control"]
    return "the control does not come out equal" if {"faster", "slower"} & set(control) else ""


def _is_not_faster(found: dict[str, Any]) -> str:
    verdicts = [one["verdict"] for one in found["results"] if one["candidate"] == "waiting"]
    return "it is called faster" if "faster" in verdicts else ""


def run(check: Check, folder: Path, *, left_s: float) -> str:
    """Run a check; returns "ok" or what went wrong. Its output is in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = list(check.argv)
    if check.plan:
        (folder / "plan.yaml").write_text(
            yaml.safe_dump({"name": check.name, **check.plan}, sort_keys=False)
        )
        argv = [*RINGSIDE, "compare", str(folder / "plan.yaml"), "-o", str(folder / "results")]
    limit_s = min(check.limit_s, left_s)
    with (folder / "output.txt").open("w") as output:
        own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160"}
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | own,
            cwd=REPOSITORY,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # Ringside ends its ranks and keeps what it has
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            return f"not finished in {limit_s:.0f} s"
    if code:
        said = (folder / "output.txt").read_text(errors="replace").splitlines()
        return f"exit code {code}: {next((line for line in said if line.startswith('ringside: ')), 'see output.txt')}"
    if not check.plan:
        return "ok"
    found = json.loads((folder / "results" / "comparison.json").read_text())
    failed = [arm["name"] for arm in found["arms"] if arm["status"] != "ok"]
    return f"not ok: {', '.join(failed)}" if failed else check.judge(found) or "ok"


def describe(folder: Path) -> None:
    """Write what the machine and the environment are, without identifiers."""
    packages = sorted(f"{one.name}=={one.version}" for one in metadata.distributions())
    (folder / "packages.txt").write_text("\n".join(packages) + "\n")
    for name, argv in {
        "nvidia-smi.xml": ["nvidia-smi", "-q", "-x"],
        "topology.txt": ["nvidia-smi", "topo", "-m"],
    }.items():
        try:
            said = subprocess.run(
                argv, capture_output=True, text=True, timeout=30, check=False
            ).stdout
        except OSError:
            continue
        (folder / name).write_text(IDENTIFIERS.sub(r"<\1/>", said))


def archive(folder: Path) -> Path:
    """Pack the folder beside itself."""
    path = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, arcname=folder.name)
    return path


def main() -> None:
    """Run the checks, list them, and pack what came out.

    Exit codes: 0 all ok, 1 a check was not, 2 there is no GPU.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=Path("results") / f"gpu-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these checks")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            "make gpu: torch sees no GPU here; ringside doctor says what is missing",
            file=sys.stderr,
        )
        sys.exit(2)
    on_gpu = given.device == "cuda"
    count = torch.cuda.device_count() if on_gpu else 1
    device = Device(
        kind=given.device, count=count, name=torch.cuda.get_device_name() if on_gpu else "no GPU"
    )
    given.output.mkdir(parents=True, exist_ok=True)
    describe(given.output)
    began, lines, ended = time.monotonic(), [], 0
    for check in checks(device):
        if given.only and check.name not in given.only:
            continue
        left_s = 60 * given.minutes - (time.monotonic() - began)
        if device.count < check.least_gpus or left_s < check.limit_s / 2:
            why = (
                f"it takes {check.least_gpus} GPUs"
                if device.count < check.least_gpus
                else "no time was left"
            )
            lines.append(f"- {check.name}: not run on a GPU, {why}. {check.shows}")
        else:
            outcome = run(check, given.output / check.name, left_s=left_s)
            ended += outcome != "ok"
            where = (
                f"ran on {device.count} x {device.name}, {time.strftime('%Y-%m-%d')}"
                if on_gpu
                else "not run on a GPU"
            )
            lines.append(f"- {check.name}: {outcome}; {where}. {check.shows}")
        print(lines[-1], flush=True)
    (given.output / "checks.md").write_text("\n".join(lines) + "\n")
    print(f"archive: {archive(given.output)}")
    sys.exit(1 if ended else 0)


if __name__ == "__main__":
    main()
