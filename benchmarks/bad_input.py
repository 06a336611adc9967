"""Hands very much input that nobody means to everything that reads input: ``python
benchmarks/bad_input.py --inputs 100000``.

Prints for each reader how many inputs it refused and accepted, the slowest, and by how much its
peak memory grew; then, once each, what it should not have done, and exits with 1.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.kit.generated_input import Judgement, Target, judge, targets

TELL = 5
"""Examples of each reader's faults."""


def main() -> int:
    """Try all readers, or those that are named."""
    known = {target.name: target for target in targets()}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inputs", type=int, default=100_000, help="of all readers together; slow ones get fewer"
    )
    parser.add_argument("--only", nargs="+", choices=sorted(known), default=list(known))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [known[name] for name in asked.only]
    each = asked.inputs / sum(1 / target.cost for target in chosen)
    print(
        f"{'reader':12} {'inputs':>8} {'refused':>8} {'accepted':>8} {'slowest s':>9} {'memory MiB':>10} {'faults':>6}"
    )
    wrong = [
        fault
        for target in chosen
        for fault in try_out(target, inputs=round(each / target.cost), number=asked.seed)
    ]
    for fault, count in wrong:
        print(f"\n{fault} ({count} times)")
    return 1 if wrong else 0


def try_out(target: Target, *, inputs: int, number: int) -> list[tuple[str, int]]:
    """Print a line about one reader; returns its faults with how often each was seen."""
    before, found = _peak_mib(), []
    faults: Counter[str] = Counter()
    examples: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for judgement, value in _judgements(target, inputs, number, Path(folder)):
            found.append(judgement)
            if judgement.wrong:
                kind = f"{target.name}: {judgement.wrong.partition(': ')[0]}"
                faults[kind] += 1
                examples.setdefault(kind, f"{judgement.wrong[:700]}\n  of {repr(value)[:300]}")
    refused, slowest = (
        sum(one.refused for one in found),
        max((one.seconds for one in found), default=0.0),
    )
    grown = _peak_mib() - before
    print(
        f"{target.name:12} {len(found):8} {refused:8} {len(found) - refused - _crashes(found):8} {slowest:9.2f} {grown:10.0f} "
        f"{sum(faults.values()):6}",
        flush=True,
    )
    return [(f"{kind}: {examples[kind]}", count) for kind, count in faults.most_common()]


def _crashes(found: list[Judgement]) -> int:
    return sum(one.wrong is not None and not one.refused for one in found)


def _judgements(
    target: Target, inputs: int, number: int, folder: Path
) -> list[tuple[Judgement, Any]]:
    """Hypothesis remembers what it made, so it makes a few thousand at a time."""
    found: list[tuple[Judgement, Any]] = []
    while len(found) < inputs:
        count = min(2000, inputs - len(found))

        @seed(number + len(found))
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(target.inputs)
        def take(value: Any) -> None:
            judgement = judge(target, value, folder)
            found.append((judgement, value if judgement.wrong else None))

        before = len(found)
        take()
        if len(found) < before + count // 2:  # there are no more
            break
    return found


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
