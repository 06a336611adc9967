"""Compares scripts whose answer is known, unmodified, as a user does: by ``ringside ab``.

- ``same``: the same script twice, by each launcher. Counted: "equal", and no verdict of a
  difference.
- ``extra``: train_ddp.py beside itself with 3% more compute in each step. Counted: called slower,
  and the minutes that took.
- ``mistakes``: train_hvd.py beside its port, with one planted mistake at a time. Counted: mistakes
  that a sentence on the first screen names, which the faithful port's comparison does not have.
- ``workload``: both scripts, and both libraries on the same training written as a workload.
  Counted: intervals that agree.
- ``environments``: train_ddp.py in two environments, by ``--python-a`` and ``--python-b``.
- ``examples``: Horovod's own examples beside our ports, and PyTorch's minGPT-ddp with two sets of
  flags. ``--examples`` is a folder with ``horovod-examples``, ``minGPT-ddp``, ``env-mingpt`` and
  ``mnist`` (the data). minGPT asks for GPUs; without any, a ``sitecustomize`` of that environment
  tells it that the CPU is one.

    python benchmarks/scripts.py QUESTION --output FOLDER [--only NAME] [--repeats N] [--launches N]
        [--steps N] [-- MORE FLAGS]

The scripts are in benchmarks/users_scripts. Run it on an otherwise idle machine, but ``mistakes``,
which times nothing that counts. An existing FOLDER is continued. ``srun`` is asked where there is a
Slurm job. ``--hosts host1:1,host2:1`` puts a rank of each command on each host, where they are
written for ranks on this one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SCRIPTS = Path(__file__).parent / "users_scripts"
BIN = Path(sys.executable).parent
TORCHRUN = "torchrun --standalone --nproc-per-node 2"
HOROVODRUN = "horovodrun --gloo -np 2 -H localhost:2 python"
LONG = "--samples 40960 --epochs 1000"
"""So that no script comes to its end, and few steps are followed by an evaluation."""
FIRST_SCREEN_LINES = 50
NAMED_BY = {
    "lr-not-scaled": r"learning rate",
    "no-sampler": r"sampler|same (data|batch)",
    "op-sum": r"\bsum|summed",
    "unsynced-parameter": r"rank.*\bscale\b|\bscale\b.*rank",
    "ranks-start-apart": r"rank.*start|start.*rank",
    "dropout-seeded-alike": r"dropout|seed",
    "global-batch": r"global|per rank",
    "fp16-compression": r"fp16|float16|half",
    "no-buffer-broadcast": r"buffer|batch.?norm",
    "schedule-per-epoch": r"schedule|learning rate.*(epoch|step)",
    "optimizer-before-move": r"optimizer.*(made|moved|model|parameter)|without an optimizer",
    "no-zero-grad": r"zero",
}
"""What a sentence must say to name a planted mistake."""
OF_HOROVOD = ("op-sum", "ranks-start-apart", "fp16-compression")
"""Of which train_hvd.py has the mistake; for the others its port has."""
OTHERWISE = ("op-sum", "ranks-start-apart", "fp16-compression", "no-buffer-broadcast")
"""Those that the other script can make, too: they are asked besides, and counted by themselves."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two commands."""

    name: str
    a: str
    b: str
    more: tuple[str, ...] = ()
    """Further flags of ``ringside ab``."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What ``ringside ab`` answered."""

    pair: str
    code: int
    minutes: float
    printed: str
    """Both streams, in order, 200 columns wide."""
    comparison: dict[str, Any] = field(default_factory=dict)
    """Empty where there is none."""

    @property
    def result(self) -> dict[str, Any]:
        """The entry of the only candidate."""
        return next(
            (entry for entry in self.comparison.get("results", []) if entry["role"] == "candidate"),
            {},
        )

    @property
    def is_equal(self) -> bool:
        """Whether the two are shown to train alike."""
        equality = self.comparison.get("equality")
        return bool(equality) and not equality["unequal"]

    @property
    def sentences(self) -> list[str]:
        """What differs, and what was found of equality, the most important first."""
        equality = self.comparison.get("equality") or {}
        found = [one["sentence"] for one in self.comparison["differences"]]
        return [
            *found,
            *equality.get("ranks", {}).values(),
            *equality.get("batches", {}).values(),
            equality.get("sentence", ""),
        ]

    @property
    def first_screen(self) -> str:
        """What a user sees without scrolling, on one line."""
        return flat(" ".join(self.printed.splitlines()[:FIRST_SCREEN_LINES]))

    def line(self) -> str:
        """Everything that counts, in one line."""
        result = self.result
        ratio = (
            f"ratio {result['throughput_ratio']:.3f}"
            if result.get("throughput_ratio")
            else "no ratio"
        )
        ratio += (
            f" ({result['ci_low']:.3f} to {result['ci_high']:.3f})" if result.get("ci_low") else ""
        )
        verdict, equality = (
            result.get("verdict", "no verdict"),
            "equal" if self.is_equal else "not equal",
        )
        return f"{self.pair}: {verdict}, {ratio}, {equality}, exit code {self.code}, {self.minutes:.1f} min"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How comparisons are run."""

    output: Path
    repeats: int
    measured: tuple[str, ...]
    """Flags of ``ringside ab`` for how long it measures."""
    only: str
    examples: Path | None
    pythons: tuple[str, str]
    hosts: str | None

    def chosen(self, pairs: list[Pair]) -> list[Pair]:
        """Those whose name begins as asked for."""
        return [pair for pair in pairs if pair.name.startswith(self.only)]

    def ask(self, pair: Pair, repetition: int = 0) -> Answer:
        """Run ``ringside ab``, or read what an earlier call answered, and print its line."""
        folder = self.output / f"{pair.name}-{repetition:02d}"
        more = [*self.measured, *pair.more, "--name-a", "a", "--name-b", "b"]
        commands = [pair.a, pair.b]
        if self.hosts:
            more += ["-H", self.hosts]
            commands = [
                one.replace(TORCHRUN, "torchrun --nproc-per-node 1").replace(
                    "localhost:2", self.hosts
                )
                for one in commands
            ]
        answer = run(folder, ["ab", *commands, *more])
        print(answer.line(), flush=True)
        return answer


def run(folder: Path, arguments: list[str]) -> Answer:
    """Run ``ringside`` into a folder, unless that was done."""
    done = folder.with_suffix(".json")
    if not done.exists():
        done.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "200"}
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        began = time.monotonic()
        command = [str(BIN / "ringside"), *arguments, "-o", str(folder)]
        ended = subprocess.run(
            command,
            check=False,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=SCRIPTS,
        )
        minutes = (time.monotonic() - began) / 60
        done.write_text(
            json.dumps({"code": ended.returncode, "minutes": minutes, "printed": ended.stdout})
        )
    comparison = folder / "comparison.json"
    found = json.loads(comparison.read_text()) if comparison.exists() else {}
    return Answer(pair=folder.name, **json.loads(done.read_text()), comparison=found)


def flat(text: str) -> str:
    """Text without a table's lines and repeated blanks."""
    return " ".join(re.sub(r"[─-╿|]", " ", text).split())


def hvd(flags: str = LONG) -> str:
    return f"{HOROVODRUN} train_hvd.py {flags}"


def ddp(flags: str = LONG) -> str:
    return f"{TORCHRUN} train_ddp.py {flags}"


def same(setting: Setting) -> None:
    commands = {
        "torchrun": ddp(),
        "horovodrun-gloo": hvd(),
        "horovodrun-mpi": f"horovodrun --mpi -np 2 -H localhost:2 python train_hvd.py {LONG}",
        "mpirun": f"mpirun -np 2 -H localhost:2 python train_hvd.py {LONG}",
    }
    if "SLURM_JOB_ID" in os.environ:
        commands["srun"] = f"srun -n 2 python train_ddp.py {LONG}"
    answers = [
        setting.ask(pair, repetition)
        for pair in setting.chosen(
            [Pair(name=f"same-{name}", a=command, b=command) for name, command in commands.items()]
        )
        for repetition in range(setting.repeats)
    ]
    right = [
        one.is_equal and one.result.get("verdict") in ("equivalent", "undecided") for one in answers
    ]
    print(f"\nsame: {sum(right)} of {len(right)} equal, and without a verdict of a difference")


def extra(setting: Setting) -> None:
    pair = Pair(name="extra", a=ddp(), b=ddp(f"{LONG} --extra-work 0.03"))
    answers = [setting.ask(pair, repetition) for repetition in range(setting.repeats)]
    found = sum(one.result.get("verdict") == "slower" and one.minutes <= 10 for one in answers)
    print(f"\nextra: {found} of {len(answers)} called slower within ten minutes")


def mistakes(setting: Setting) -> None:
    usual = set(setting.ask(Pair(name="faithful", a=hvd(), b=ddp())).sentences)
    first = [planted(name, in_horovod=name in OF_HOROVOD) for name in NAMED_BY]
    resumed = f"{LONG} --resume {checkpoint(setting.output)}"
    others = [
        planted(name, in_horovod=name not in OF_HOROVOD, suffix="-otherwise", flags=resumed)
        for name in OTHERWISE
    ]
    for what, pairs in (
        ("mistakes", setting.chosen(first)),
        ("the same in the other script", setting.chosen(others)),
    ):
        named = [
            is_named(setting.ask(pair), NAMED_BY[pair.name.removesuffix("-otherwise")], usual)
            for pair in pairs
        ]
        print(f"\n{what}: {sum(named)} of {len(named)} named in the first screen\n", flush=True)


def planted(name: str, *, in_horovod: bool, suffix: str = "", flags: str = LONG) -> Pair:
    """One of the two scripts with a mistake."""
    wrong = f"{flags} --mistake {name}"
    return Pair(
        name=name + suffix,
        a=hvd(wrong if in_horovod else flags),
        b=ddp(flags if in_horovod else wrong),
    )


def checkpoint(folder: Path) -> Path:
    """Weights to begin with, which rank 0 alone reads under Horovod: their batch norm has
    statistics.
    """
    path = folder / "begin.pt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        flags = ["--samples", "640", "--epochs", "1", "--no-evaluation", "--checkpoint", str(path)]
        subprocess.run(
            [
                str(BIN / "torchrun"),
                "--standalone",
                "--nproc-per-node",
                "1",
                "train_ddp.py",
                *flags,
            ],
            check=True,
            cwd=SCRIPTS,
        )
    return path


def is_named(answer: Answer, pattern: str, usual: set[str]) -> bool:
    """Whether a sentence of the first screen names the mistake.

    ``usual``: what is said of the faithful port.
    """
    said = [sentence for sentence in answer.sentences if sentence not in usual]
    naming = [
        one for one in said if re.search(pattern, one, re.I) and flat(one) in answer.first_screen
    ]
    print("  " + "\n  ".join(naming or ["NOT NAMED. New sentences:", *said]), flush=True)
    return bool(naming)


def workload(setting: Setting) -> None:
    agree = []
    for repetition in range(setting.repeats):
        quiet = f"{LONG} --no-evaluation"
        scripts = setting.ask(Pair(name="workload-scripts", a=hvd(quiet), b=ddp(quiet)), repetition)
        folder = setting.output / f"workload-classes-{repetition:02d}"
        plan = folder.with_suffix(".yaml")
        plan.write_text(yaml.safe_dump(workload_plan(setting, repetition)))
        classes = run(folder, ["compare", str(plan)])
        print(classes.line(), flush=True)
        agree.append(intervals_agree(scripts.result, classes.result))
    print(
        f"\nworkload: the two answers agree within their intervals in {sum(agree)} of {len(agree)}"
    )


def workload_plan(setting: Setting, repetition: int) -> dict[str, Any]:
    """The same question about the same training, written as a workload.

    Its ranks are pinned no more than the scripts' are.
    """
    wanted = dict(zip(setting.measured[::2], setting.measured[1::2], strict=True))
    return {
        "name": "workload",
        "workload": str(SCRIPTS / "digits_workload.py:DigitsTraining"),
        "workload_options": {"samples": 40960, "epochs": 1000},
        "world_size": 2,
        "threads": 1,
        "affinity": "none",
        "seed": 1 + repetition,
        "baseline": "a",
        "arms": {
            "a": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
            "b": {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"},
        },
        "measurement": {
            "rehearsal": "never",
            **({"launches": int(wanted["--launches"])} if "--launches" in wanted else {}),
        },
    }


def intervals_agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two ratios are no further apart than both intervals together make likely."""
    if not (one.get("ci_low") and other.get("ci_low")):
        return False
    apart = abs(math.log(one["throughput_ratio"] / other["throughput_ratio"]))
    return apart <= math.hypot(
        *(math.log(result["ci_high"] / result["ci_low"]) / 2 for result in (one, other))
    )


def environments(setting: Setting) -> None:
    python_a, python_b = setting.pythons
    more = (*("--python-a", python_a), *("--python-b", python_b))
    answer = setting.ask(Pair(name="environments", a=ddp(), b=ddp(), more=more))
    print("  " + "\n  ".join(answer.sentences))


def examples(setting: Setting) -> None:
    if setting.examples is None:
        sys.exit("give --examples: the folder that holds Horovod's examples and minGPT-ddp")
    folder = setting.examples.resolve()
    horovod, mnist = (
        folder / "horovod-examples",
        f"--no-cuda --data-dir {shlex.quote(str(folder / 'mnist'))}",
    )
    synthetic = "--no-cuda --model shufflenet_v2_x0_5 --batch-size 2 --num-iters 100000"
    gpt = f"{TORCHRUN} {folder / 'minGPT-ddp' / 'mingpt' / 'main.py'} {mingpt_flags(folder)}"
    pythons = tuple(
        flag
        for arm in "ab"
        for flag in (f"--python-{arm}", str(folder / "env-mingpt" / "bin" / "python"))
    )
    more = (*pythons, "--allow", "all")  # another dtype is other work
    pairs = [
        Pair(
            name="mnist",
            a=f"{HOROVODRUN} {horovod / 'pytorch_mnist.py'} {mnist}",
            b=f"{TORCHRUN} port_of_pytorch_mnist.py {mnist}",
        ),
        Pair(
            name="synthetic",
            a=f"{HOROVODRUN} {horovod / 'pytorch_synthetic_benchmark.py'} {synthetic}",
            b=f"{TORCHRUN} port_of_pytorch_synthetic_benchmark.py {synthetic}",
        ),
        Pair(
            name="mingpt",
            a=f"{gpt} trainer_config.use_amp=false",
            b=f"{gpt} trainer_config.use_amp=true",
            more=more,
        ),
    ]
    for pair in setting.chosen(pairs):
        print("  " + "\n  ".join(setting.ask(pair).sentences))


def mingpt_flags(folder: Path) -> str:
    """A GPT that a core trains in milliseconds, in the configuration's own words."""
    data = folder / "minGPT-ddp" / "mingpt" / "data" / "input.txt"
    return (
        f"data_config.path={data} data_config.block_size=32 data_config.truncate=0.2 gpt_config.n_layer=2 gpt_config.n_head=2 "
        "gpt_config.n_embd=64 trainer_config.batch_size=16 trainer_config.data_loader_workers=0 trainer_config.save_every=1000 "
        f"hydra.run.dir={folder / 'runs'}"
    )


QUESTIONS: dict[str, Callable[[Setting], None]] = {
    one.__name__: one for one in (same, extra, mistakes, workload, environments, examples)
}


def main() -> None:
    """Ask one question."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="only comparisons whose name begins so")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--launches", type=int)
    parser.add_argument("--steps", type=int, help="timed steps of each arm in each launch")
    parser.add_argument("--python-a", default=sys.executable)
    parser.add_argument("--python-b", default=sys.executable)
    parser.add_argument("--examples", type=Path)
    parser.add_argument(
        "--hosts", help="a slot on each of two hosts, as -H of horovodrun takes them"
    )
    words, _, more = " ".join([*sys.argv[1:], ""]).partition(" -- ")
    given = parser.parse_args(words.split())
    wanted = {"--launches": given.launches, "--steps": given.steps}
    measured = [
        word for flag, value in wanted.items() if value is not None for word in (flag, str(value))
    ]
    QUESTIONS[given.question](
        Setting(
            output=given.output.resolve(),
            repeats=given.repeats,
            measured=(*measured, *more.split()),
            only=given.only,
            examples=given.examples,
            pythons=(given.python_a, given.python_b),
            hosts=given.hosts,
        )
    )


if __name__ == "__main__":
    main()
