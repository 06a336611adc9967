"""Whether ``ringside tune`` finds what there is to find, and nothing where there is nothing.

    python benchmarks/tuning.py simulate [--searches 40] [--noise 0.03,0.01] [--launches 8]
        [--effects 0,0.04,0.15,0.5]
    python benchmarks/tuning.py planted -o FOLDER [--set KEY=VALUE ...] [-- FLAGS OF ringside tune]

- ``simulate`` starts nothing. Truths are drawn: effects of settings that are none, small or large,
  with a part that combinations have of their own. The search proposes, and launches of three trials
  answer with noise. Fresh launches then confirm. Printed: how often what it takes is within 2% of
  the best of all settings, what it gains, what the search itself saw of that, whether Optuna's
  importances name the setting with the largest effect, and what fresh launches say. At effect 0 all
  settings are exactly equal, so every 'faster' there is false.
- ``planted`` tunes backends with a bad default (``plugins/bad_defaults.py``), and prints what each
  came to.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from backends import make_backend
from measurement.plans.sections import Arm
from reports.conclusions.ratios import decide
from reports.statistics.intervals import ratio_intervals
from reports.tuning import Options, SearchedSetting, Trial, Tuning, headline, tried_sets
from runners.planning.settings_search import (
    EXPLORED,
    best_of,
    effective_options,
    open_settings,
    optuna,
    optuna_study,
    propose,
)
from runners.processes.process_exit import EXIT_BAD_INPUT

PLUGINS = Path(__file__).parent / "plugins" / "bad_defaults.py"
CLOSE = 0.02
"""What is found should be so close to the best."""
AT_ONCE = 3
THRESHOLD, LAUNCHES, ROUNDS, ROUND_NOISE = 0.01, 5, 20, 0.10
"""Of the simulated confirmation: what is of no interest, launches, their rounds, and the noise of a
block."""
CONFIRMED = 10
"""Times that each search is confirmed."""
OWN = 0.002
"""Standard deviation of what an option set has of its own, beyond effects of settings and of one
pair of them."""
PLANTED = {"ddp": ("SmallBuckets", "torchrun"), "horovod": ("SlowCycle", "horovodrun")}
"""By library, its backend with a bad default, and the launcher."""


def spaces() -> dict[str, list[SearchedSetting]]:
    """The settings that the two libraries state, of a model with buffers."""
    found = {}
    for name in PLANTED:
        backend = make_backend(name, transport="gloo", options={})
        stated = backend.search_space(has_buffers=True, several_hosts=False)
        found[name] = open_settings(stated, backend, Arm(backend=name))
    return found


class Truth:
    """The log speed-up of every option set of an arm."""

    def __init__(
        self, settings: Sequence[SearchedSetting], random: np.random.Generator, *, size: float
    ) -> None:
        """Draw it.

        Of a setting, one in two has an effect of about ``size``: straight over its values, or with
        a turn.
        """
        self._logs = {key({}): 0.0}
        walks = {one.option: self._walk(one, random, size) for one in settings}
        pair, joint = (
            random.choice([one.option for one in settings], 2, replace=False),
            random.normal(0, size / 4),
        )
        ends = {one.option: len(one.values) - 1 for one in settings}
        for values in itertools.product(*(one.values for one in settings)):
            options = effective_options(settings, dict(zip(ends, values, strict=True)))
            if key(options) not in self._logs:
                places = {
                    one.option: one.values.index(options[one.option])
                    for one in settings
                    if one.option in options
                }
                effect = sum(walks[option][place] for option, place in places.items())
                together = joint * math.prod(
                    places[option] / ends[option] if option in places else 0.0 for option in pair
                )
                self._logs[key(options)] = effect + together + random.normal(0, OWN) * bool(size)
        self.best = max(self._logs.values())

    def of(self, options: Options) -> float:
        """What is true of an option set."""
        return self._logs[key(options)]

    def _walk(
        self, setting: SearchedSetting, random: np.random.Generator, size: float
    ) -> list[float]:
        number, default = len(setting.values), setting.values.index(setting.default)
        slope, turn = random.normal(0, size) * random.integers(0, 2), random.integers(0, number)
        raw = [-slope * abs(place - turn) / (number - 1) for place in range(number)]
        return [value - raw[default] for value in raw]


def key(options: Options) -> str:
    """Name an option set."""
    return json.dumps(options, sort_keys=True)


def search(
    settings: list[SearchedSetting],
    truth: Truth,
    random: np.random.Generator,
    *,
    noise: float,
    launches: int,
    seed: int,
) -> list[Trial]:
    """The trials of a search like that of ``ringside tune``: launches answer by the truth and
    noise.
    """
    trials: list[Trial] = []
    for launch in range(launches):
        default = random.normal(0, noise)
        for options in propose(
            settings, trials, AT_ONCE, seed=seed, repeat=launch >= EXPLORED * launches
        ):
            log = truth.of(options) + random.normal(0, noise) - default
            trials.append(Trial(launch=launch, options=options, status="ok", log_ratio=log))
    return trials


def names_the_largest(settings: list[SearchedSetting], truth: Truth, trials: list[Trial]) -> bool:
    """Whether Optuna's importances put the setting first that changes most by itself."""
    spans = {
        one.option: np.ptp(
            [truth.of(effective_options(settings, {one.option: value})) for value in one.values]
        )
        for one in settings
    }
    importances = optuna().importance.get_param_importances(optuna_study(settings, trials, seed=0))
    return next(iter(importances)) == max(spans, key=lambda option: spans[option])


def confirmed(log: float, random: np.random.Generator, *, noise: float) -> str:
    """The verdict of fresh launches on a set of this true speed-up, beside a control."""
    tables: list[list[Any]] = [[], []]
    for _ in range(LAUNCHES):
        own = random.normal([log, 0.0, 0.0], noise)
        seconds = np.exp(random.normal(0, ROUND_NOISE, (ROUNDS, 3)) - own)
        samples = np.stack([np.ones((ROUNDS, 3)), seconds], axis=-1)
        tables[0].append(samples[:, [0, 1]])
        tables[1].append(samples[:, [2, 1]])
    ratio, control = ratio_intervals(tables, confidence=0.95, family=1)
    return decide(ratio, threshold=THRESHOLD, control=control)


def simulate(
    searches: int, noises: Sequence[float], launches: int, effects: Sequence[float]
) -> None:
    """Print a line for each kind of truth and noise."""
    print(
        "effect  noise  library  within 2%  mean gain  as the search saw it  best gain  importances right  fresh launches"
    )
    for size, noise, (name, settings) in itertools.product(effects, noises, spaces().items()):
        rows, verdicts = [], Counter[str]()
        for number in range(searches):
            random = np.random.default_rng([int(1000 * size), int(1000 * noise), number])
            truth = Truth(settings, random, size=size)
            trials = search(settings, truth, random, noise=noise, launches=launches, seed=number)
            best = best_of(trials, margin=THRESHOLD / 2)
            seen = max(
                (one.log_ratio for one in tried_sets(trials) if one.options == best), default=0.0
            )
            told = [
                confirmed(truth.of(best), random, noise=noise) if best else "nothing taken"
                for _ in range(CONFIRMED)
            ]
            verdicts.update(told)
            named = names_the_largest(settings, truth, trials)
            rows.append(
                (
                    truth.best - truth.of(best) < -math.log(1 - CLOSE),
                    truth.of(best),
                    seen,
                    truth.best,
                    named,
                )
            )
        close, gain, seen, possible, named = np.mean(rows, axis=0)
        shown = f"{close:9.0%}  {gain:9.2%}  {seen:20.2%}  {possible:9.2%}  {named:17.0%}"
        counts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
        print(f"{size:6.0%}  {noise:5.1%}  {name:7}  {shown}  {counts}", flush=True)


def planted(root: Path, flags: Sequence[str], settings: Sequence[str]) -> None:
    """Tune each bad default, and print what came out."""
    overrides = [word for one in settings for word in ("--set", one)]
    for library, (backend, launcher) in PLANTED.items():
        arm = {"backend": f"{PLUGINS}:{backend}", "transport": "gloo", "launcher": launcher}
        plan = {
            "name": library,
            "workload": "digits",
            "world_size": 2,
            "baseline": library,
            "arms": {library: arm},
        }
        root.mkdir(parents=True, exist_ok=True)
        path = root / f"{library}.yaml"
        path.write_text(yaml.safe_dump(plan, sort_keys=False))
        words = ["tune", str(path), "--arm", library, "-o", str(root / library), *flags, *overrides]
        ended = subprocess.run([sys.executable, "-m", "runners.cli", *words], check=False)
        if ended.returncode == EXIT_BAD_INPUT:
            sys.exit(EXIT_BAD_INPUT)
    for library in PLANTED:
        print(headline(Tuning.model_validate_json((root / library / "tuning.json").read_text())))


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["simulate", "planted"])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--searches", type=int, default=40)
    parser.add_argument("--noise", default="0.03,0.01")
    parser.add_argument("--effects", default="0,0.04,0.15,0.5")
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    own, _, flags = " ".join(sys.argv[1:]).partition(" -- ")
    asked = parser.parse_args(own.split())
    if asked.what == "simulate":
        noises, effects = (
            [float(one) for one in text.split(",")] for text in (asked.noise, asked.effects)
        )
        simulate(asked.searches, noises, asked.launches, effects)
    else:
        planted(asked.output, flags.split(), asked.settings)


if __name__ == "__main__":
    main()
