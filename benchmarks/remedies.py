"""What each remedy that a report names wins back, measured: the cause is planted in the baseline,
and each candidate has a remedy.

    python benchmarks/remedies.py --output FOLDER [--minutes 1.5] [--only NAME ...]

Printed for each remedy: how much faster it makes the arm with the cause, with the interval of its
comparison, and the verdict. A remedy that wins nothing has no place in a report
(``reports/traces.py``). Two ranks; comparisons that are there are read again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

MODELS = Path(__file__).parent / "plugins" / "planted_models.py"
GLOO = {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"}
HOROVOD = {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"}
COPIES = {
    "views": {"gradient_as_bucket_view": True},
    "batched": {"batched_grad_copy": True},
    "both": {"gradient_as_bucket_view": True, "batched_grad_copy": True},
}
RESNET = {
    "workload": "resnet18",
    "workload_options": {"image_size": 32, "num_classes": 10},
    "local_batch_size": 8,
}
GPT = {
    "workload": "language_model",
    "workload_options": {"size": "nano", "sequence_length": 64},
    "local_batch_size": 8,
}
Options = dict[str, Any]
CAUSES: dict[str, tuple[Options, Options, Options, dict[str, Options]]] = {
    # cause: workload, arm, the options that plant it, and by remedy the options that take their
    # place
    "gradient copies, digits": ({"workload": "digits", "local_batch_size": 32}, GLOO, {}, COPIES),
    "gradient copies, ResNet-18": (RESNET, GLOO, {}, COPIES),
    "gradient copies, GPT": (GPT, GLOO, {}, COPIES),
    "gradient copies, small layers": (
        {"workload": f"{MODELS}:DeeperDigits", "local_batch_size": 32},
        GLOO,
        {},
        COPIES,
    ),
    "buffers broadcast": (
        {"workload": f"{MODELS}:BufferedDigits", "local_batch_size": 32},
        GLOO,
        {},
        {"broadcast_buffers: false": {"broadcast_buffers": False}},
    ),
    "unused-parameter search": (
        {"workload": f"{MODELS}:DeepDigits", "local_batch_size": 32},
        GLOO,
        {"find_unused_parameters": True},
        {"find_unused_parameters: false": {}},
    ),
    "small collectives": (
        {"workload": f"{MODELS}:DeepDigits", "local_batch_size": 32},
        GLOO,
        {"bucket_cap_mb": 0.001},
        {"a larger bucket_cap_mb": {"bucket_cap_mb": 25}},
    ),
    "small collectives, Horovod": (
        {"workload": f"{MODELS}:DeepDigits", "local_batch_size": 32},
        HOROVOD,
        {"fusion_threshold_mb": 0},
        {"a larger fusion_threshold_mb": {"fusion_threshold_mb": 64}},
    ),
    "cycle waits": (
        {"workload": "digits", "local_batch_size": 32},
        HOROVOD,
        {"cycle_time_ms": 20},
        {"a smaller cycle_time_ms": {"cycle_time_ms": 1}},
    ),
}


def compared(name: str, output: Path, minutes: float) -> dict[str, Any]:
    """Run one comparison, or read it again; returns its comparison.json."""
    workload, arm, planted, remedies = CAUSES[name]
    folder = output / name.replace(", ", "-").replace(" ", "-")
    if not (folder / "comparison.json").is_file():
        if workload.get("workload") == "language_model":
            text = output / "text"
            text.write_text(
                "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))) * 3
            )
            workload = workload | {
                "workload_options": workload["workload_options"] | {"data_dir": str(text)}
            }
        plan = {
            "name": folder.name,
            **workload,
            "world_size": 2,
            "threads": 1,
            "baseline": "planted",
            "arms": {"planted": arm | {"options": planted}}
            | {
                f"remedy-{number}": arm | {"options": options}
                for number, options in enumerate(remedies.values())
            },
            "measurement": {"minutes": minutes, "block_s": 0.3},
        }
        path = output / f"{folder.name}.yaml"
        path.write_text(yaml.safe_dump(plan, sort_keys=False))
        command = [sys.executable, "-m", "runners.cli", "compare", str(path), "-o", str(folder)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if not (folder / "comparison.json").is_file():
            sys.exit(f"{name}: no comparison, exit code {ended.returncode}\n{ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads((folder / "comparison.json").read_text())
    return found


def main() -> None:
    """Measure what is asked for, and print a line for each remedy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=CAUSES, default=[*CAUSES])
    parser.add_argument("--minutes", type=float, default=1.5, help="for each comparison")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    print(
        "| cause | remedy | times as fast | 95% interval | verdict |\n| --- | --- | --- | --- | --- |"
    )
    for name in given.only:
        found = compared(name, given.output, given.minutes)
        for number, remedy in enumerate(CAUSES[name][3]):
            result = next(one for one in found["results"] if one["candidate"] == f"remedy-{number}")
            bounds = " to ".join(
                "–" if one is None else f"{one:.3f}"
                for one in (result["ci_low"], result["ci_high"])
            )
            print(
                f"| {name} | {remedy} | {result['throughput_ratio']:.3f} | {bounds} | {result['verdict']} |",
                flush=True,
            )
        control = next(one for one in found["results"] if one["role"] == "control")
        print(
            f"| {name} | none: an equal copy | {control['throughput_ratio']:.3f} | | |", flush=True
        )


if __name__ == "__main__":
    main()
