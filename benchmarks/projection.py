"""How well ``ringside project`` predicts throughput: on published series, and on synthetic ones of
which the truth is known.

    python benchmarks/projection.py SERIES.csv [--cases 16:32,32:128] [--without SERIES]
        [--replications 40]

- Each case N:M projects every series that has both sizes from at most N ranks to M. Printed: the
  error of the projection and of the yardsticks, how wide the interval is, and whether it holds what
  was measured.
- Leave one out: forms and widths of the priors are chosen again for each series, by the other
  series alone (the largest sum of log densities of what came), and that series is projected with
  them. Printed: errors, and where in the interval the figure came.
- Pairs: the ratio of any two series of the file, from the same case, as a study projects the ratio
  of two arms.
- Synthetic: step times of a ring or tree with latency, of overlapped exchange and of stragglers,
  with noise between 0.4% on one host and up to 9% at 32. The truth is the time without noise; an
  interval has to hold one more noisy figure.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from reports.parts_schema import Estimate
from reports.projection import Prediction, Series, project
from reports.statistics.growth_model import Prior, fit_growth

LARGEST_NOISE = 0.09


def read_series(path: Path) -> list[Series]:
    """Read published figures: columns ``series``, ``ranks``, ``ranks_per_host`` and
    ``samples_per_s`` of all ranks together.
    """
    found: dict[str, dict[int, float]] = {}
    per_host: dict[str, int] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file, skipinitialspace=True):
            found.setdefault(row["series"], {})[int(row["ranks"])] = float(row["samples_per_s"])
            per_host[row["series"]] = int(row["ranks_per_host"])
    return [
        Series(name=n, ranks_per_host=per_host[n], samples_per_s=dict(sorted(f.items())))
        for n, f in found.items()
    ]


SIZES = {
    "4 hosts from 1, 2": ((1, 2), 4, 8),
    "16 hosts from 1, 2, 4": ((1, 2, 4), 16, 8),
    "8 hosts from 2, 3, 4": ((2, 3, 4), 8, 1),
}
"""Hosts that are measured, hosts to project to, ranks of each host."""


@dataclass(frozen=True, kw_only=True)
class Met:
    """A prediction and what came."""

    error: float
    hold: float
    ring: float
    inside: bool
    half_width: float


def met(prediction: Prediction, came: float, series: Series) -> Met:
    """Compare a prediction with a figure, and with what two yardsticks say from the sizes that were
    used.

    Hold: the efficiency of the largest one stays. Ring: time grows by (hosts - 1) / hosts, by least
    squares.
    """
    low, high = bounds(prediction.samples_per_s)
    used = [size for size in series.samples_per_s if size >= series.ranks_per_host]
    crossed = [1 - 1 / series.hosts(size) for size in used]
    slope, level = np.polyfit(crossed, [series.time_s(size) for size in used], 1)
    ring = prediction.ranks / (level + slope * (1 - 1 / series.hosts(prediction.ranks)))
    return Met(
        error=prediction.samples_per_s.value / came - 1,
        hold=prediction.ranks / series.time_s(used[-1]) / came - 1,
        ring=float(ring / came - 1),
        inside=low <= came <= high,
        half_width=math.log(high / low) / 2,
    )


def bounds(estimate: Estimate) -> tuple[float, float]:
    """Return both bounds."""
    assert estimate.bounds is not None
    return estimate.bounds


def cases_of(text: str) -> list[tuple[int, int]]:
    """Read N:M,N:M."""
    return [(int(one.partition(":")[0]), int(one.partition(":")[2])) for one in text.split(",")]


def show_published(series: Sequence[Series], cases: Sequence[tuple[int, int]]) -> None:
    """Print a line for each series and case, then what they have in common."""
    print(f"{'series':<62}{'case':>10}{'error':>9}{'hold':>9}{'ring':>9}{'interval':>11}")
    found = []
    for up_to, target in cases:
        fitting = [
            one for one in series if up_to in one.samples_per_s and target in one.samples_per_s
        ]
        done = project(fitting, [target], source="", fit_up_to=up_to)
        for one, told in zip(fitting, done.series, strict=True):
            if told.refusal:
                print(f"{one.name[-60:]:<62}{up_to:>5}:{target:<4} refused: {told.refusal}")
                continue
            found.append(met(told.predictions[0], one.samples_per_s[target], one.up_to(up_to)))
            last = found[-1]
            print(
                f"{one.name[-60:]:<62}{up_to:>5}:{target:<4}{last.error:>+9.1%}{last.hold:>+9.1%}{last.ring:>+9.1%}"
                f"{'±' + format(last.half_width, '.1%'):>8}{'' if last.inside else ' out'}"
            )
    show_summary("all", found, refused=0)


def show_summary(label: str, found: Sequence[Met], *, refused: int) -> None:
    """Print mean and worst absolute errors and the coverage."""
    if not found:
        print(f"{label:<50}  nothing projected, {refused} refused")
        return
    errors = {
        name: np.abs([getattr(one, name) for one in found]) for name in ("error", "hold", "ring")
    }
    told = "".join(
        f"{name:>8}{values.mean():>6.1%} (worst {values.max():>5.1%})"
        for name, values in errors.items()
    )
    inside, half = (
        np.mean([one.inside for one in found]),
        np.mean([one.half_width for one in found]),
    )
    print(
        f"{label:<50}{len(found):>5}{told}   inside {inside:.0%} ±{half:.1%}{f', {refused} refused' if refused else ''}",
        flush=True,
    )


def show_pairs(series: Sequence[Series], cases: Sequence[tuple[int, int]]) -> None:
    """Print how often the interval of a ratio holds that of the measured figures."""
    for up_to, target in cases:
        fitting = [
            one for one in series if up_to in one.samples_per_s and target in one.samples_per_s
        ]
        pairs = [
            (a.name, b.name)
            for a, b in combinations(fitting, 2)
            if a.ranks_per_host == b.ranks_per_host
        ][:500]
        done = project(fitting, [target], source="", fit_up_to=up_to, pairs=pairs)
        by_name = {one.name: one.samples_per_s[target] for one in fitting}
        errors, inside = [], []
        for told in done.ratios:
            came = by_name[told.candidate] / by_name[told.baseline]
            errors.append(abs(told.ratio.value / came - 1))
            low, high = bounds(told.ratio)
            inside.append(low <= came <= high)
        if errors:
            print(
                f"ratios of {len(errors)} pairs, {up_to}:{target}: error {np.mean(errors):.1%}, inside {np.mean(inside):.0%}"
            )


FORMS = {
    "built in": Prior().shares,
    "all alike": (1.0,) * 7,
    "below 1": (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    "ring": (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "tree": (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
}
"""Weights of ``reports.statistics.growth_model.SHARES``."""
PRIORS = {
    f"{name}, step {step}, exchange {exchange}, straggle {straggle}": Prior(
        step=step, exchange=exchange, straggle=straggle, shares=shares
    )
    for name, shares in FORMS.items()
    for step in (0.1, 0.3, 1.0)
    for exchange in (0.05, 0.1, 0.2)
    for straggle in (0.02, 0.08)
}


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A figure under one prior."""

    series: str
    error: float
    """Of throughput."""
    density: float
    """The logarithm of that of the figure which came."""
    place: float
    """How far from the prediction it came, in halves of the interval: above 1 is outside."""


def predict(one: Series, up_to: int, target: int, prior: Prior) -> Predicted:
    """Project a series that has both sizes."""
    series = one.up_to(up_to)
    used = [ranks for ranks in series.samples_per_s if ranks >= one.ranks_per_host]
    growth = fit_growth(
        [one.hosts(ranks) for ranks in used], [one.time_s(ranks) for ranks in used], prior=prior
    )
    came, hosts = math.log(one.time_s(target)), one.hosts(target)
    means, spreads = growth.logs(hosts)
    centre = growth.mean(hosts)
    half = abs(growth.quantile(hosts, 0.95 if came > centre else 0.05) - centre)
    return Predicted(
        series=one.name,
        error=math.exp(came - centre) - 1,
        density=math.log(
            float((growth.weights * np.exp(-0.5 * ((came - means) / spreads) ** 2) / spreads).sum())
        ),
        place=abs(came - centre) / half,
    )


def show_leave_one_out(series: Sequence[Series], cases: Sequence[tuple[int, int]]) -> None:
    """Print how well each series is met by the prior that the others choose."""
    fitting = [
        (one, *case) for case in cases for one in series if {*case} <= set(one.samples_per_s)
    ]
    found = {name: [predict(*given, prior) for given in fitting] for name, prior in PRIORS.items()}
    left_out = []
    print("\nleave one series out")
    for name in dict.fromkeys(one.name for one, *_ in fitting):
        scores = {
            prior: sum(one.density for one in told if one.series != name)
            for prior, told in found.items()
        }
        best = max(scores, key=lambda prior: scores[prior])
        own = [one for one in found[best] if one.series == name]
        left_out += own
        told = ", ".join(f"{one.error:+.1%} at {one.place:.2f} of its half" for one in own)
        print(f"  {name[-60:]:<62}{told}: {best}")
    errors, places = (
        np.abs([getattr(one, name) for one in left_out]) for name in ("error", "place")
    )
    print(
        f"  error {errors.mean():.1%} (worst {errors.max():.1%}), {np.mean(places <= 1):.0%} inside, farthest {places.max():.2f}"
    )
    means = [np.mean([abs(one.error) for one in told]) for told in found.values()]
    print(
        f"  each of the {len(found)} priors for all series: error {min(means):.1%} to {max(means):.1%}"
    )


Times = Callable[[np.ndarray], np.ndarray]
"""From hosts to a rank's time for a sample, without noise."""


def ring(random: np.random.Generator) -> Times:
    """Bandwidth and latency of a ring, nothing hidden."""
    exchange, latency = random.uniform(0, 0.6), random.exponential(0.002)
    return lambda h: 1 + exchange * (h - 1) / h + latency * (h - 1)


def tree(random: np.random.Generator) -> Times:
    """A tree's cost with each doubling."""
    exchange = random.uniform(0, 0.1)
    return lambda h: 1 + exchange * np.log2(h)


def overlapped(random: np.random.Generator) -> Times:
    """A ring of which backward hides a part."""
    exchange, hidden = random.uniform(0.1, 0.8), random.uniform(0, 0.3)
    return lambda h: 1 + np.maximum(exchange * (h - 1) / h - hidden, 0)


def stragglers(random: np.random.Generator) -> Times:
    """The slowest of all ranks, each with a normal jitter, and a little exchange."""
    jitter, exchange = random.uniform(0.005, 0.05), random.uniform(0, 0.2)
    return lambda h: 1 + jitter * np.sqrt(2 * np.log(8 * h)) + exchange * (h - 1) / h


def leaving_a_host(random: np.random.Generator) -> Times:
    """A cost that several hosts have and one has not, and a ring."""
    step, exchange = random.uniform(0, 0.4), random.uniform(0, 0.3)
    return lambda h: 1 + step * (h > 1) + exchange * (h - 1) / h


FAMILIES: Mapping[str, Callable[[np.random.Generator], Times]] = {
    "ring": ring,
    "tree": tree,
    "overlapped ring": overlapped,
    "stragglers": stragglers,
    "leaving a host": leaving_a_host,
}


def synthetic(
    family: Callable[[np.random.Generator], Times],
    sizes: tuple[Sequence[int], int, int],
    number: int,
) -> Iterator[Met | None]:
    """Yield what comes of series that are drawn; None where the projection is refused."""
    measured, target, per_host = sizes
    hosts = np.array([*measured, target], dtype=float)
    for seed in range(number):
        random = np.random.default_rng([seed, target])
        least, most = 0.004, random.uniform(0.01, LARGEST_NOISE)
        noise = least * (most / least) ** (np.log2(hosts) / 5)
        times = family(random)(hosts) * np.exp(noise * random.standard_normal(len(hosts)))
        ranks = (hosts * per_host).astype(int)
        figures = {int(n): float(n / time) for n, time in zip(ranks, times, strict=True)}
        one = Series(name="synthetic", ranks_per_host=per_host, samples_per_s=figures)
        (told,) = project([one], [int(ranks[-1])], source="", fit_up_to=int(ranks[-2])).series
        yield (
            None
            if told.refusal
            else met(told.predictions[0], figures[int(ranks[-1])], one.up_to(int(ranks[-2])))
        )


def show_synthetic(number: int) -> None:
    """Print a line for each family and set of sizes."""
    print(f"\n{'synthetic series of known truth':<50}{'n':>5}")
    everything: list[Met] = []
    for name, family in FAMILIES.items():
        for label, sizes in SIZES.items():
            drawn = list(synthetic(family, sizes, number))
            found = [one for one in drawn if one]
            show_summary(f"{name}: {label}", found, refused=len(drawn) - len(found))
            everything += found
    show_summary("all", everything, refused=0)


def main() -> None:
    """Print how well published and synthetic series are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("series", type=Path, nargs="?", help="CSV file of published series.")
    parser.add_argument("--cases", type=cases_of, default=[(16, 32), (32, 128)])
    parser.add_argument("--without", help="Name of a series that is left out.")
    parser.add_argument("--replications", type=int, default=40)
    given = parser.parse_args()
    if given.series:
        series = [one for one in read_series(given.series) if one.name != given.without]
        show_published(series, given.cases)
        show_leave_one_out(series, given.cases)
        show_pairs(series, given.cases)
    if given.replications:
        show_synthetic(given.replications)


if __name__ == "__main__":
    main()
