"""How it was measured and what the figures mean, in sentences made from the comparison itself."""

from __future__ import annotations

from reports.quantities import percent
from reports.schema import Comparison
from reports.statistics import TRIM


def method(comparison: Comparison) -> list[str]:
    """The method section of a report, one paragraph an entry."""
    asked = comparison.measurement
    return [_turns(comparison), _blocks(comparison), *_checks(asked), *_formulas(comparison)]


def _turns(comparison: Comparison) -> str:
    asked = comparison.measurement
    launches = max((arm.launches for arm in comparison.arms), default=0)
    if asked["mode"] == "sequential":
        return f"Sequential mode: the arms ran one at a time, {launches} launches each; the launch is the unit."
    frozen = "waiting arms were stopped (SIGSTOP)" if asked["freeze"] else "waiting arms were not stopped (freeze: false)"
    return (
        f"All arms were up at the same time and took turns in random order (seed {comparison.seed}), so that drift of the "
        f"machine hits all alike; {frozen}. Every arm was started anew {launches} times; "
        f"{comparison.measured_minutes:.1f} minutes of blocks in all."
    )


def _blocks(comparison: Comparison) -> str:
    asked = comparison.measurement
    length = f"{asked['block_steps']} steps" if asked["block_steps"] else f"about {asked['block_s']:g} s"
    often = "every block" if asked["rebuild_every"] == 1 else f"every {asked['rebuild_every']} blocks"
    return (
        f"A block is {length} of one arm, the same number of steps in every arm, after {asked['warmup_steps']} untimed ones. "
        f"Model, optimizer and wrapper were built anew for {often}, since identical processes otherwise differ by where "
        "their memory lies. A block's time is its slowest rank's."
    )


def _checks(asked: dict[str, object]) -> list[str]:
    control = (
        "A second copy of the baseline ran as a control; its interval must cover 1. Where it does not, no difference is "
        "claimed that is smaller than the farther bound of the control's interval."
        if asked["control"]
        else "No control ran (control: false)."
    )
    parity = (
        "Before its timing counts, an arm's averaged gradients must equal the float64 mean of all ranks' local gradients, "
        f"and all ranks' parameters must agree after {asked['parity_steps']} optimizer steps."
    )
    return [control, parity]


def _formulas(comparison: Comparison) -> list[str]:
    asked = comparison.measurement
    return [
        "Ratio: candidate's over baseline's throughput, from pairs of blocks of the same round; the geometric mean of the "
        f"pairs, {TRIM:.0%} trimmed at either end within each launch (robust against blocks that a neighbour on the machine hit). "
        "Above 1 the candidate is faster.",
        f"Interval: {percent(asked['confidence'])} confidence, Student's t over launches (Hartung and Knapp; the variance between "
        "launches after Paule and Mandel, pooled over the ratios of this comparison with Satterthwaite's degrees of freedom), "
        "never narrower than the noise of the pairs alone allows. No correction is made for the number of candidates.",
        "Verdict: faster or slower where the interval excludes 1 and the ratio is at least "
        f"{percent(asked['noise_threshold'])} from 1; equivalent where the whole interval lies within that; else undecided.",
        "Throughput: median over blocks of all ranks' samples over the slowest rank's time; its interval (bootstrap over "
        "launches and blocks) includes the machine's drift, which cancels in the ratio.",
        "Exposed communication: step time with gradient exchange less step time without, in the same rounds; the mean of "
        "each launch, then the median over launches. The same definition for every backend.",
        "Phases: medians per step on the slowest rank. They are not to be compared across backends one by one: DDP waits for "
        "communication inside backward, Horovod inside the optimizer's step.",
    ]
