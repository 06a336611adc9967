"""Whether ``ringside tune`` finds what there is to find, and nothing where there is nothing.

    python benchmarks/tuning.py simulate [--searches 100] [--noise 0.01,0.03,0.05] [--trials 24]
    python benchmarks/tuning.py planted -o FOLDER [--set KEY=VALUE ...] [-- FLAGS OF ringside tune]
    python benchmarks/tuning.py grid PLAN -o FOLDER [--launches 3] [-- FLAGS OF ringside tune]

- ``simulate`` starts nothing. Truths are drawn: effects of settings that are none, small or large, with a part that combinations
  have of their own. The search proposes, and launches answer with noise. Printed: how often what it takes is within 2% of the
  best of the whole grid, what it gains, what it says is left to find, and how often two arms, each tuned, are told apart: equal
  ones, and ones that are 12% apart.
- ``planted`` tunes back ends with a bad default (``plugins/bad_defaults.py``), and compares the result with the stock back ends.
- ``grid`` tunes a plan, measures every pair of values of each arm's first two settings, and compares the three best of that grid
  with what the search took, in fresh launches. It takes hours where launches are long.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from backends import make_backend
from measurement.plans.plan import Arm
from reports.conclusions.verdict import decide
from reports.estimate import Estimate
from reports.statistics.intervals import ratio_intervals
from reports.tuning.compose_tuning import may_turn
from reports.tuning.effects import Effects, fit_effects, normal, option_sets
from reports.tuning.tuning_schema import Asked, Options, SearchedSetting, Trial
from runners.processes.process_exit import EXIT_BAD_INPUT
from runners.tuning.proposals import propose
from runners.tuning.search import next_launch, open_settings

PLUGINS = Path(__file__).parent / "plugins" / "bad_defaults.py"
CLOSE = 0.02
"""What is found should be so close to the best."""
THRESHOLD, LAUNCHES, ROUNDS, ROUND_NOISE = 0.01, 5, 20, 0.10
"""Of the simulated confirmation: what is of no interest, launches, their rounds, and the noise of a block."""
OWN = 0.002
"""Standard deviation of what an option set has of its own, beyond effects of settings and of one pair of them."""
LAUNCH_S = 60.0
TINY: dict[str, Any] = {
    "name": "planted",
    "workload": "digits",
    "local_batch_size": 32,
    "world_size": 2,
    "baseline": "ddp-gloo",
    "arms": {
        "ddp-gloo": {"backend": f"{PLUGINS}:SmallBuckets", "transport": "gloo", "launcher": "torchrun"},
        "horovod-gloo": {"backend": f"{PLUGINS}:SlowCycle", "transport": "gloo", "launcher": "horovodrun"},
    },
}


def spaces() -> dict[str, list[SearchedSetting]]:
    """The settings that the two libraries state, of a model with buffers."""
    found = {}
    for name in ("ddp", "horovod"):
        backend = make_backend(name, transport="gloo", options={})
        stated = backend.search_space(has_buffers=True, several_hosts=False)
        found[name] = open_settings(stated, backend, Arm(backend=name))
    return found


class Truth:
    """The log speed-up of every option set of an arm."""

    def __init__(self, settings: Sequence[SearchedSetting], random: np.random.Generator, *, size: float) -> None:
        """Draw it. Of a setting, one in two has an effect of about ``size``: straight over its values, or with a turn."""
        self._logs = {key({}): 0.0}
        walks = {one.option: self._walk(one, random, size) for one in settings}
        pair, joint = random.choice([one.option for one in settings], 2, replace=False), random.normal(0, size / 4)
        ends = {one.option: len(one.values) - 1 for one in settings}
        for options in option_sets(settings):
            places = {one.option: one.values.index(options[one.option]) for one in settings if one.option in options}
            effect = sum(walks[option][place] for option, place in places.items())
            together = joint * math.prod(places[option] / ends[option] if option in places else 0.0 for option in pair)
            self._logs[key(options)] = effect + together + random.normal(0, OWN)
        self.best = max(self._logs.values())

    def of(self, options: Options) -> float:
        """What is true of an option set."""
        return self._logs[key(options)]

    def _walk(self, setting: SearchedSetting, random: np.random.Generator, size: float) -> list[float]:
        number, default = len(setting.values), setting.values.index(setting.default)
        slope, turn = random.normal(0, size) * random.integers(0, 2), random.integers(0, number)
        raw = [-slope * abs(place - turn) / (number - 1) for place in range(number)]
        return [value - raw[default] for value in raw]


def key(options: Options) -> str:
    """Name an option set."""
    return json.dumps(options, sort_keys=True)


def search(settings: list[SearchedSetting], truth: Truth, random: np.random.Generator, *, noise: float, asked: Asked) -> Effects:
    """Search as ``ringside tune`` does, with launches that answer by the truth and noise."""
    trials: list[Trial] = []
    launches = 0
    while wanted := next_launch(asked, [LAUNCH_S] * launches, len(trials)):
        number, repeat = wanted
        default = random.normal(0, noise)
        for options in propose(settings, trials, number, seed=asked.seed, repeat=repeat):
            log = truth.of(options) + random.normal(0, noise) - default
            trials.append(Trial(launch=launches, options=options, status="ok", log_ratio=log))
        launches += 1
    return fit_effects(settings, trials)


def best_of(effects: Effects) -> Options:
    """What a search takes."""
    return effects.best(margin=THRESHOLD / 2)


def is_told(logs: Sequence[float], left: Sequence[Estimate], random: np.random.Generator, *, noise: float) -> bool:
    """Whether a confirmation tells two tuned arms of these true speed-ups apart: one of five pairs that hold at once."""
    tables = []
    for log in (logs[1] - logs[0], 0.0, 0.0, 0.0, 0.0):
        tables.append([])
        for _ in range(LAUNCHES):
            arms = random.normal([log, 0.0], noise, 2)
            seconds = np.exp(random.normal(0, ROUND_NOISE, (ROUNDS, 2)) - arms)
            tables[-1].append(np.stack([np.ones((ROUNDS, 2)), seconds], axis=-1))
    found = ratio_intervals(tables, confidence=0.95, family=len(tables))
    ratio = found[0].value
    behind, gap = (0, 1 / ratio) if ratio > 1 else (1, ratio)
    return decide(found[0], threshold=THRESHOLD) in ("faster", "slower") and not may_turn(gap, left[behind])


def simulate(searches: int, noises: Sequence[float], trials: int) -> None:
    """Print a line for each kind of truth and noise."""
    print("truth    noise  library  within 2%  mean loss  mean gain  best gain  left to find, by the search itself  it holds")
    for size, noise, (name, settings) in itertools.product((0.0, 0.04, 0.15, 0.5), noises, spaces().items()):
        losses, gains, bests, left = [], [], [], []
        for number in range(searches):
            random = np.random.default_rng([int(1000 * size), int(1000 * noise), number])
            truth = Truth(settings, random, size=size)
            asked = Asked(plan_digest="", trials=trials, minutes=None, at_once=3, seed=number, lossy=False)
            effects = search(settings, truth, random, noise=noise, asked=asked)
            taken = best_of(effects)
            gains.append(truth.of(taken))
            bests.append(truth.best)
            losses.append(truth.best - gains[-1])
            left.append(np.log(list(effects.left_to_find(taken).model_dump().values())))
        close = sum(loss < -math.log(1 - CLOSE) for loss in losses) / searches
        shown = f"{close:9.0%}  {np.mean(losses):9.2%}  {np.mean(gains):9.2%}  {np.mean(bests):9.2%}"
        said, holds = np.median(left, axis=0), np.mean(np.array(losses) <= np.array(left)[:, 2])
        shown += f"  {said[0]:.1%}, at most {said[2]:.1%}  {holds:.0%}"
        print(f"{size:5.0%}  {noise:7.1%}  {name:7}  {shown}", flush=True)
    print("two arms, each tuned: how far apart  effects  noise  library  told apart")
    for gap, size, noise, (name, settings) in itertools.product((0.0, 0.12), (0.0, 0.04, 0.15), noises, spaces().items()):
        told = told_apart(searches, settings, gap=gap, size=size, noise=noise, trials=trials)
        print(f"{gap:4.0%}  {size:5.0%}  {noise:7.1%}  {name:7}  {told} of {searches}", flush=True)


def told_apart(searches: int, settings: list[SearchedSetting], *, gap: float, size: float, noise: float, trials: int) -> int:
    """How many confirmations tell two tuned arms apart, which are the same but for ``gap``, a logarithm of throughput."""
    told = 0
    for number in range(searches):
        random = np.random.default_rng([7, int(1000 * size), int(1000 * noise), number])
        truth = Truth(settings, random, size=size)
        asked = Asked(plan_digest="", trials=trials, minutes=None, at_once=3, seed=number, lossy=False)
        both = [search(settings, truth, random, noise=noise, asked=asked) for _ in range(2)]
        logs = [truth.of(best_of(one)) + own for one, own in zip(both, (gap, 0.0), strict=True)]
        told += is_told(logs, [one.left_to_find(best_of(one)) for one in both], random, noise=noise)
    return told


def ringside(*words: object) -> None:
    """Run a command; a failed arm is a row of its report, and stops nothing here. Input that is refused does."""
    ended = subprocess.run([sys.executable, "-m", "runners.cli", *map(str, words)], check=False)
    if ended.returncode == EXIT_BAD_INPUT:
        sys.exit(EXIT_BAD_INPUT)


def result_of(folder: Path, name: str) -> Mapping[str, Any]:
    """Read a file of a results folder."""
    found: Mapping[str, Any] = json.loads((folder / name).read_text())
    return found


def planted(root: Path, flags: Sequence[str], settings: Sequence[str]) -> None:
    """Tune the bad defaults, then compare what was found with the stock back ends."""
    root.mkdir(parents=True, exist_ok=True)
    plan = root / "planted.yaml"
    plan.write_text(yaml.safe_dump(TINY, sort_keys=False))
    overrides = [word for one in settings for word in ("--set", one)]
    ringside("tune", plan, "-o", root / "tune", *flags, *overrides)
    tuning = result_of(root / "tune", "tuning.json")
    arms = {}
    for arm, stock in (("ddp-gloo", "ddp"), ("horovod-gloo", "horovod")):
        best = next(one["best"] for one in tuning["arms"] if one["name"] == arm)
        arms |= {f"{arm}-stock": {**TINY["arms"][arm], "backend": stock}}
        arms |= {f"{arm}-repaired": {**TINY["arms"][arm], "options": best}}
    held = root / "stock.yaml"
    held.write_text(yaml.safe_dump({**TINY, "name": "stock", "baseline": "ddp-gloo-stock", "arms": arms}, sort_keys=False))
    ringside("compare", held, "-o", root / "stock", *overrides)
    for pair in tuning["pairs"]:
        print(pair["question"], pair["candidate"], "/", pair["baseline"], pair["ratio"], pair["verdict"])
    for arm in result_of(root / "stock", "comparison.json")["arms"]:
        print(arm["name"], arm["status"], arm["throughput_per_s"])


def grid(plan: Path, root: Path, flags: Sequence[str], launches: int) -> None:
    """Tune a plan, measure a grid of each arm, and compare the grid's three best with what was taken."""
    ringside("tune", plan, "-o", root / "tune", *flags)
    tuning = result_of(root / "tune", "tuning.json")
    tuned = yaml.safe_load((root / "tune" / "tuned.yaml").read_text())
    for arm in tuning["arms"]:
        own = next(one for name, one in tuned["arms"].items() if name == f"{arm['name']}-tuned")
        own = {**own, "options": {**arm["fixed"]}}
        found: dict[str, tuple[float, Options]] = {}
        for number, options in enumerate(chunks(arm["settings"][:2])):
            arms = {"default": own} | {f"g{place}": {**own, "options": {**arm["fixed"], **one}} for place, one in options.items()}
            folder = compared(tuned, arms, root / f"grid-{arm['name']}-{number}", launches=launches, control=False)
            for one in result_of(folder, "comparison.json")["results"]:
                if one["throughput_ratio"]:
                    place = int(one["candidate"][1:])
                    found[one["candidate"]] = (one["throughput_ratio"], options[place])
        best = sorted(found.values(), key=lambda one: -one[0])[:3]
        arms = {"default": {**own, "options": {**arm["fixed"], **arm["best"]}}}
        arms |= {f"g{place}": {**own, "options": {**arm["fixed"], **options}} for place, (_, options) in enumerate(best)}
        folder = compared(tuned, arms, root / f"best-{arm['name']}", launches=2 * launches, control=True)
        for one in result_of(folder, "comparison.json")["results"]:
            shown = {name: one[name] for name in ("candidate", "throughput_ratio", "ci_low", "ci_high", "verdict")}
            print(arm["name"], "taken", arm["best"], "grid's best over it:", shown)


def chunks(settings: Sequence[Mapping[str, Any]]) -> Iterator[dict[int, Options]]:
    """Every option set of some settings but the default, twelve to a plan, by number."""
    made = [SearchedSetting.model_validate(one) for one in settings]
    grid = itertools.product(*([(one.option, value) for value in one.values] for one in made))
    sets = {key(one): one for one in (normal(made, dict(chosen)) for chosen in grid) if one}
    numbered = list(enumerate(sets.values()))
    for start in range(0, len(numbered), 12):
        yield dict(numbered[start : start + 12])


def compared(like: Mapping[str, Any], arms: Mapping[str, Any], folder: Path, *, launches: int, control: bool) -> Path:
    """Run a plan of these arms; the first one is called ``default``."""
    measurement = {**like.get("measurement", {}), "launches": launches, "control": control, "floor": False, "local_every": 0}
    measurement.pop("minutes", None)
    plan = {**like, "name": folder.name, "arms": arms, "baseline": "default", "measurement": measurement}
    plan.pop("question", None)
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    ringside("compare", path, "-o", folder)
    return folder


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["simulate", "planted", "grid"])
    parser.add_argument("plan", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--noise", default="0.01,0.03,0.05")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    own, _, flags = " ".join(sys.argv[1:]).partition(" -- ")
    asked = parser.parse_args(own.split())
    if asked.what == "simulate":
        simulate(asked.searches, [float(noise) for noise in asked.noise.split(",")], asked.trials)
    elif asked.what == "planted":
        planted(asked.output, flags.split(), asked.settings)
    else:
        grid(asked.plan, asked.output, flags.split(), asked.launches)


if __name__ == "__main__":
    main()
