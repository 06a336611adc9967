"""Does "why" name the cause? Comparisons of which it is known beforehand which term makes the
candidate slower.

What is planted in the candidate, the expected term, and what it comes from:

- ``computing``: a tenth of each step is computed more, after the optimizer's step. Library
  overhead, of its own CPU.
- ``thread``: a thread of the library's takes 15% of the rank's core. Library overhead, held up.
- ``twice``: each bucket of gradients is exchanged twice. Exposed exchange.
- ``cycle``: Horovod waits 20 ms longer before it looks for gradients. Exposed exchange, cycle waits.
- ``buckets``: DDP exchanges each gradient by itself (buckets of 1 KiB). Exposed exchange, small
  collectives.
- ``buffers``: DDP broadcasts 4 MiB of buffers that nothing uses. Exposed exchange, buffers
  broadcast.
- ``link``: DDP exchanges twice the bytes (float32 in place of float16) over a slow link. Exposed
  exchange.
- ``late``: rank 1 computes longer in backward, by 10% of a step. Imbalance, rank 1.

    python benchmarks/planted_causes.py --output FOLDER [--only CAUSE ...] [--repeats 2]

Printed for each comparison: the verdict, the term that the report names (or, where it names none,
the largest of those that point the way of the verdict), every term's difference, the straggler, and
the specific cause with its milliseconds beside those by which the steps differ: what leaving the
cause out gains. The control, which has nothing planted, must name none. Run it from the repository,
on an otherwise idle machine. An existing FOLDER is continued. ``link`` needs two hosts:
on one, exchange takes the cores that it could hide behind. It is left out unless it is asked for:

    python -m tests.kit.lab up --hosts 2 --rate 1gbit
    python -m tests.kit.lab run -- python benchmarks/planted_causes.py --output FOLDER --only link
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PLANTED = Path(__file__).parent / "plugins" / "planted.py"
MODELS = Path(__file__).parent / "plugins" / "planted_models.py"
SLOW = Path(__file__).parent / "plugins" / "slow.py"
DDP = {
    "backend": "ddp",
    "transport": "gloo",
    "launcher": "torchrun",
    "options": {"broadcast_buffers": False},
}
HOROVOD = {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"}
SMALL = {"workload": "digits", "local_batch_size": 32}
HOSTS = {"hosts": "host1:1,host2:1", "network_interface": "eth0"}
OVER_A_LINK = HOSTS | {
    "workload": "resnet18",
    "workload_options": {"image_size": 32, "num_classes": 10},
    "local_batch_size": 8,
}
OF_LONG_STEPS = {"seconds_per_launch": 24, "block_s": 1.0}
MEASUREMENT = {
    "rehearsal": "never",
    "launches": 5,
    "seconds_per_launch": 16,
    "block_s": 0.3,
    "local_every": 2,
}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A comparison with a planted cause."""

    term: str
    """Expected to be named first."""
    planted: dict[str, Any]
    """What the candidate has that the baseline has not."""
    baseline: dict[str, Any] = field(default_factory=lambda: DDP)
    workload: dict[str, Any] = field(
        default_factory=lambda: {"workload": "digits", "local_batch_size": 128}
    )
    measurement: dict[str, Any] = field(default_factory=dict)
    straggler: int | None = None
    """The rank that is expected to be named."""
    named: str | None = None
    """The specific cause that is expected to be named, by a trace."""

    def plan(self, name: str, number: int) -> dict[str, Any]:
        """Return the plan of one repetition, with a seed of its own."""
        candidate = self.baseline | self.planted
        is_other = self.planted.get("backend") in ("ddp", "horovod")
        candidate["options"] = {
            **({} if is_other else self.baseline.get("options", {})),
            **self.planted.get("options", {}),
        }
        return {
            "name": f"{name}-{number}",
            **self.workload,
            "world_size": 2,
            "seed": 1 + number,
            "baseline": "plain",
            "arms": {"plain": self.baseline, "planted": candidate},
            "trace": self.named is not None,
            "measurement": MEASUREMENT | self.measurement,
        }


CAUSES = {
    "computing": Cause(
        term="library_overhead", planted={"backend": f"{SLOW}:SlowDDP", "options": {"extra": 0.1}}
    ),
    "thread": Cause(term="library_overhead", planted={"backend": f"{PLANTED}:BusyThreadDDP"}),
    "twice": Cause(
        term="exposed_exchange", planted={"backend": f"{PLANTED}:TwiceDDP"}, workload=SMALL
    ),
    "cycle": Cause(
        term="exposed_exchange",
        baseline=HOROVOD,
        planted={"options": {"cycle_time_ms": 21.0}},
        workload=SMALL,
        named="cycle waits",
    ),
    "buckets": Cause(
        term="exposed_exchange",
        planted={"options": {"bucket_cap_mb": 0.001}},
        workload=SMALL | {"workload": f"{MODELS}:DeepDigits"},
        named="small collectives",
    ),
    "buffers": Cause(
        term="exposed_exchange",
        planted={"options": {"broadcast_buffers": True}},
        workload=SMALL | {"workload": f"{MODELS}:BufferedDigits"},
        named="buffers broadcast",
    ),
    "late": Cause(
        term="imbalance",
        planted={"backend": f"{PLANTED}:LateRankDDP", "options": {"late_by": 0.1}},
        straggler=1,
        workload={"workload": "digits", "local_batch_size": 128, "freed_memory": "keep"},
        measurement={"local_every": 1, "launches": 6, "seconds_per_launch": 30},
    ),
    "link": Cause(
        term="exposed_exchange",
        baseline={**DDP, "options": {**DDP["options"], "comm_hook": "fp16"}},  # type: ignore[dict-item]
        planted={"options": {"comm_hook": "none"}},
        workload=OVER_A_LINK,
        measurement=OF_LONG_STEPS,
    ),
}


def run(name: str, number: int, output: Path) -> bool:
    """Run one comparison, or read it again; returns whether the expected term came first."""
    cause, folder = CAUSES[name], output / f"{name}-{number}"
    if not (folder / "comparison.json").exists():
        plan = output / f"{name}-{number}.yaml"
        plan.write_text(yaml.safe_dump(cause.plan(name, number), sort_keys=False))
        command = [sys.executable, "-m", "runners.cli", "compare", str(plan), "-o", str(folder)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if not (folder / "comparison.json").exists():
            sys.exit(
                f"{folder.name}: no comparison, exit code {ended.returncode}\n{ended.stderr[-2000:]}"
            )
    found = json.loads((folder / "comparison.json").read_text())
    result = next(entry for entry in found["results"] if entry["role"] == "candidate")
    differences = {term: one["value"] for term, one in result["term_differences_s"].items()}
    sign = -1 if result["verdict"] == "faster" else 1
    if not differences:
        sys.exit(f"{folder.name}: {result['verdict']}, see {folder / 'report.md'}")
    first = (
        result["because"]["term"]
        if result["because"]
        else max(differences, key=lambda term: sign * differences[term])
    )
    arm = next(arm for arm in found["arms"] if arm["name"] == "planted")
    straggler = (arm["by_rank"].get("straggler") or {}).get("rank")
    because = result["because"] or {}
    named, named_s = because.get("named"), because.get("named_s")
    control = next(entry for entry in found["results"] if entry["role"] == "control")
    named_in_control = (control["because"] or {}).get("named")
    is_right = (
        first == cause.term
        and straggler == cause.straggler
        and named == cause.named
        and named_in_control is None
    )
    apart_ms = 1e3 * sum(differences.values())
    terms = ", ".join(f"{term} {1e3 * value:+.2f}" for term, value in differences.items())
    print(
        f"{name} {number}: {'right' if is_right else 'WRONG'}: {result['verdict']} {result['throughput_ratio']:.3f}, "
        f"{'named' if result['because'] else 'not named, largest'} {first}, straggler {straggler}; ms: {terms}; "
        f"because of {named}: {named_s and round(1e3 * named_s, 2)} ms of {apart_ms:.2f}; in the control: {named_in_control}",
        flush=True,
    )
    return is_right


def main() -> None:
    """Run the comparisons and count those that were right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    here = [name for name, cause in CAUSES.items() if "hosts" not in cause.workload]
    parser.add_argument("--only", nargs="+", choices=CAUSES, default=here)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    right = [
        run(name, number, given.output) for number in range(given.repeats) for name in given.only
    ]
    print(f"{sum(right)} of {len(right)} right")


if __name__ == "__main__":
    main()
