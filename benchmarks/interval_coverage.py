"""How often do intervals on a ratio cover the truth, and how wide are they? A simulation: counts, no timing.

    python benchmarks/interval_coverage.py [--replications 600]      (about two minutes)

Compared, each at 95%, on the same synthetic pairs (true ratio 1):

- ``ringside``: ``reports.statistics.ratio_intervals`` as the reports use it, and ``its control``;
- ``alone``: the same without pooling the launch variance over the ratios of a comparison;
- ``t of means``: Student's t over plain launch means, the textbook answer;
- ``bootstrap``: percentiles of a hierarchical bootstrap (launches, then pairs) of the plain mean.

Every arm, baseline included, has its own block noise (standard deviation 5% of a pair's log-ratio) and its own level in each
launch; ``spread`` is the standard deviation of a ratio's launch level in units of the pair noise over sqrt(pairs). With several
ratios the last is the control's, and the others are held against both baseline and control, as in the reports.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from reports.statistics import Interval, ratio_intervals

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
PAIR_NOISE = 0.05
DRAWS = 400


def block_noise(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Noise of single blocks, standard deviation about 1."""
    if kind == "normal":
        return random.standard_normal(shape)
    if kind == "t3":
        return random.standard_t(3, shape) / math.sqrt(3)
    if kind == "spikes":
        hit = random.random(shape) < 0.08
        return 0.5 * random.standard_normal(shape) - hit * random.lognormal(0.8, 0.7, shape)
    noise = random.standard_normal(shape)
    for place in range(1, shape[-1]):
        noise[..., place] = 0.3 * noise[..., place - 1] + math.sqrt(1 - 0.09) * noise[..., place]
    return noise


def simulate(kind: str, ratios: int, launches: int, pairs: int, spread: Array, random: np.random.Generator) -> list[list[Array]]:
    """Log-ratios, the control's last, by ratio and launch: float64 [pairs, copies of the baseline].

    ``spread`` is of each arm, the baseline first.
    """
    blocks = block_noise(kind, (ratios + 1, launches, pairs), random) * PAIR_NOISE / math.sqrt(2)
    level = random.standard_normal((ratios + 1, launches)) * spread[:, None] * PAIR_NOISE / math.sqrt(2 * pairs)
    blocks += level[..., None]
    control = list((blocks[-1] - blocks[0])[..., None])
    copies = np.stack([blocks[0], blocks[-1]], axis=-1)
    return [*(list(arm[..., None] - copies) for arm in blocks[1:-1]), control]


def ringside(ratios: list[list[Array]], _: np.random.Generator) -> tuple[float, float]:
    """As the reports do it."""
    return _bounds(ratio_intervals(ratios, confidence=CONFIDENCE, scales=scales(ratios))[0])


def control(ratios: list[list[Array]], _: np.random.Generator) -> tuple[float, float]:
    """As the reports do it, of the control."""
    return _bounds(ratio_intervals(ratios, confidence=CONFIDENCE, scales=scales(ratios))[-1])


def scales(ratios: list[list[Array]]) -> list[float]:
    """Of an arm against two, and of the control against one."""
    return [*[1.5] * (len(ratios) - 1), 2.0]


def alone(ratios: list[list[Array]], _: np.random.Generator) -> tuple[float, float]:
    """Without what the other ratios tell."""
    return _bounds(ratio_intervals(ratios[:1], confidence=CONFIDENCE)[0])


def _bounds(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None and interval.low is not None and interval.high is not None
    return math.log(interval.low), math.log(interval.high)


def t_of_means(ratios: list[list[Array]], _: np.random.Generator) -> tuple[float, float]:
    """Student's t over launch means."""
    means = np.array([launch.mean() for launch in ratios[0]])
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means))
    return float(means.mean() - half), float(means.mean() + half)


def bootstrap(ratios: list[list[Array]], random: np.random.Generator) -> tuple[float, float]:
    """Percentiles over resampled launches and pairs."""
    table = np.array(ratios[0]).mean(axis=-1)
    launches, pairs = table.shape
    chosen = random.integers(launches, size=(DRAWS, launches))
    places = random.integers(pairs, size=(DRAWS, launches, pairs))
    means = table[chosen[..., None], places].mean(axis=(1, 2))
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


METHODS: dict[str, Callable[[list[list[Array]], np.random.Generator], tuple[float, float]]] = {
    "ringside": ringside,
    "its control": control,
    "alone": alone,
    "t of means": t_of_means,
    "bootstrap": bootstrap,
}


def cell(kind: str, ratios: int, launches: int, pairs: int, spread: Array, replications: int) -> dict[str, tuple[float, float]]:
    """Coverage and mean half-width in percent, by method."""
    random = np.random.default_rng([7, ratios, launches, pairs, sum(map(ord, kind))])
    bounds: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for _ in range(replications):
        drawn = simulate(kind, ratios, launches, pairs, spread, random)
        for name, method in METHODS.items():
            bounds[name].append(method(drawn, random))
    found = {}
    for name, pairs_of_bounds in bounds.items():
        table = np.array(pairs_of_bounds)
        covered = (table[:, 0] <= 0) & (table[:, 1] >= 0)
        found[name] = (float(covered.mean()), float((table[:, 1] - table[:, 0]).mean() * 50))
    return found


def show(label: str, found: dict[str, tuple[float, float]]) -> None:
    """One line: coverage and mean half-width of each method."""
    print(f"{label:<44}" + "".join(f"  {cover:6.1%} ±{half:5.2f}%" for cover, half in found.values()), flush=True)


def main() -> None:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=600)
    replications = parser.parse_args().replications
    print("coverage and mean half-width at 95%; 'ratios' counts the candidates and the control")
    print(" " * 44 + "".join(f"  {name:>15}" for name in METHODS))
    for kind, ratios, launches, spread in itertools.product(("t3", "spikes"), (1, 3), (2, 3, 5, 10), (0.0, 1.0, 3.0)):
        found = cell(kind, ratios, launches, 40, np.full(ratios + 1, spread), replications)
        show(f"{kind}, {ratios} ratios, {launches} launches, spread {spread:g}", found)
    for kind, pairs in (("normal", 40), ("correlated", 40), ("t3", 10), ("t3", 120)):
        show(f"{kind}, 3 ratios, 3 launches, {pairs} pairs", cell(kind, 3, 3, pairs, np.ones(4), replications))
    print("only the first candidate's launches differ: the pooled variance is too small, its own spread bounds the harm")
    for launches, spread in itertools.product((2, 3, 5), (2.0, 6.0)):
        found = cell("t3", 3, launches, 40, np.array([0.0, spread, 0.0, 0.0]), replications)
        show(f"t3, 3 ratios, {launches} launches, unlike {spread:g}", found)


if __name__ == "__main__":
    main()
