"""How it was measured and what the figures mean, in sentences made from the comparison itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from measurement.records.record import LengthChoice
from reports.conclusions.disturbances import DISTURBED, FEW, MANY, TIMES_DEVIATION, TIMES_MEDIAN
from reports.conclusions.step_terms import LIMIT
from reports.conclusions.verdict import LOAD_POWER
from reports.schema import Comparison, RatioSummary, SpreadFigures
from reports.statistics.budget import PILOTS
from reports.statistics.intervals import TRIM
from reports.wording.formatting import apart, one_sided_percent, percent
from reports.wording.training_sentences import training_method


def method(comparison: Comparison) -> list[str]:
    """The method section of a report, one paragraph an entry."""
    asked = comparison.measurement
    if asked["mode"] == "separate":
        trained = training_method(comparison.training)[2:] if comparison.training else []
        return [*runs_method(comparison), *trained, _parity(asked), *(_latencies(comparison) if comparison.cases else _figures())]
    if comparison.are_scripts:
        own = [_turns(comparison), *_length(comparison), *script_method(comparison), _luck(comparison)]
        return [*own, _control(asked), *_ratios(asked), *_script_figures(comparison)]
    if comparison.training:
        return [*training_method(comparison.training), _parity(asked), *_ratios(asked), *_figures()]
    if comparison.cases:
        blocks = _loaders(asked) if comparison.are_loaders else _cases(asked)
        return [_turns(comparison), *_length(comparison), *blocks, _control(asked), *_ratios(asked), *_latencies(comparison)]
    turns = [_turns(comparison), *_length(comparison), _blocks(comparison), _luck(comparison)]
    return [*turns, _control(asked), _parity(asked), *_ratios(asked), *_figures()]


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


def _length(comparison: Comparison) -> list[str]:
    """How long launches were, why, and whether more rounds or more launches would tell more."""
    found, spread = [], comparison.spread
    chosen = [choice for choice in comparison.choices if choice.round_deviation is not None]
    if comparison.choices and comparison.measurement["minutes"] is not None:
        pilots = ", ".join(map(str, spread.rounds[:PILOTS])) if spread else "few"
        found.append(
            f"Length of launches: {comparison.measurement['minutes']:g} minutes were given, starts and checks included. The first "
            f"{PILOTS} launches were pilots of {pilots} rounds, which count. {_choice(chosen)}"
        )
    if spread is not None:
        found.append(
            f"Variance: a single round's log-ratio has a standard deviation of {spread.round_deviation:.1%} within a launch, and "
            f"launches differ by {spread.launch_deviation:.1%} beyond that. So {spread.between_share:.0%} of the variance of a "
            f"launch's ratio is between launches, which more rounds would not reduce. {_cost(spread)}"
        )
    return found


def _luck(comparison: Comparison) -> str:
    """What launches draw anew, and what they do not."""
    number = len(comparison.hosts)
    hosts = "this host" if number < 2 else f"these {number} hosts"
    nodes = f"All launches ran on {hosts}: the interval does not say how others differ"
    if comparison.drawn_hosts is not None:
        nodes = f"Each launch drew {comparison.drawn_hosts} hosts, {number} in all, so the interval holds for hosts like these"
    return (
        "Each launch lengthened the environment of all its arms by as many random bytes, since its size moves memory and speed "
        f"with it (padding_bytes in the records). {nodes}."
    )


def _choice(chosen: Sequence[LengthChoice]) -> str:
    if not chosen:
        return "No later launch was chosen."
    first, rounds = chosen[0], [choice.rounds for choice in chosen if choice.rounds is not None]
    span = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
    return (
        f"They took {first.start_s:.1f} s besides their rounds and {first.round_s:.2f} s a round; rounds varied by "
        f"{first.round_deviation:.1%}, and launches were expected to vary by {first.launch_deviation:.1%}. From this came {span} "
        "rounds for later ones, chosen anew after each: as Kalibera and Jones weigh rounds against launches, with Student's t for "
        "few launches. No ratio was looked at."
    )


def _cost(spread: SpreadFigures) -> str:
    if spread.start_s is None or spread.round_s is None:
        return ""
    return f"A launch costs {spread.start_s:.1f} s besides its rounds, and {spread.round_s:.2f} s a round."


def _blocks(comparison: Comparison) -> str:
    asked = comparison.measurement
    length = f"{asked['block_steps']} steps" if asked["block_steps"] else f"about {asked['block_s']:g} s"
    return (
        f"A block is {length} of one arm, the same number of steps in every arm, after {asked['warmup_steps']} untimed ones. "
        "Model, optimizer and wrapper were built once in each launch, as in a training of their own. A block's time is its slowest "
        "rank's."
    )


def _control(asked: dict[str, Any]) -> str:
    return (
        "A second copy of the baseline ran as the A/A control; its interval must cover 1. Where it does not, no difference is "
        "claimed that is smaller than the farther bound of the control's interval. Candidates are held against both copies, "
        "the control against the baseline alone."
        if asked["control"]
        else "No control ran (control: false)."
    )


def _parity(asked: dict[str, Any]) -> str:
    return (
        "For its timing to count, an arm's averaged gradients must equal the float64 mean of all ranks' local gradients, "
        f"and all ranks' parameters must agree after {asked['parity_steps']} optimizer steps. In these, arms of as many ranks must "
        "have called forward, backward, the optimizer's step and the workload's own hooks as often, and have come to the "
        "same parameters, buffers and optimizer state, up to rounding; batch statistics stay each rank's own."
    )


def _cases(asked: dict[str, Any]) -> list[str]:
    length = f"{asked['block_steps']} repetitions" if asked["block_steps"] else f"about {asked['block_s']:g} s"
    return [
        f"A block is {length} of one operation at one size in one arm, back to back, the same number of repetitions in every arm; "
        f"{asked['warmup_steps']} untimed steps go before. In each round the cases come in random order, and in each the arms. "
        "A step is as many repetitions as fill about a millisecond. A block's time is its slowest rank's.",
        "Tensors are made anew for every block. The operation then runs once on known values, other ones on each rank, and every "
        "element of the result is compared with the right one before the timed repetitions begin; an arm with a wrong value "
        "is wrong and has no timing. What the library allocates for a result (Horovod's all_gather and reduce_scatter) is timed.",
    ]


def _loaders(asked: dict[str, Any]) -> list[str]:
    return [
        f"A block is about {asked['block_s']:g} s of loading with one number of workers, after {asked['warmup_steps']} untimed "
        "steps. A step takes one batch from each worker, so that the wait for workers and what they deliver count alike. All "
        "ranks load at the same time. A block's time is its slowest rank's.",
        "Each block starts its loader anew, while the data set stays read. When all ranks are ready, each uses up the batches that "
        "were loaded ahead, and then the clock starts. Batches are put on the rank's device and dropped.",
    ]


def _ratios(asked: dict[str, Any]) -> list[str]:
    return [
        "Ratio: candidate's over baseline's total throughput, all samples over all seconds of the rounds that both finished; of "
        "the launches the geometric mean, each with the same weight, averaged over the two copies of the baseline. Stalls count "
        "with all the time they took. Above 1 the candidate is faster. Typical ratio: of single pairs of blocks, "
        f"{TRIM:.0%} trimmed at either end within each launch; no verdict follows it.",
        f"Interval: {percent(asked['confidence'])} confidence, for all candidates together (Šidák), Student's t over launches: the "
        "wider of that with the variance between launches pooled over the ratios of this comparison (Paule and Mandel, with "
        "Satterthwaite's degrees of freedom) and that of the candidate's own launches, never narrower than the noise within "
        "launches allows. One long run: what a single run may come out at, since launches differ (prediction interval).",
        f"Stall: a step longer than {TIMES_MEDIAN:g} times its launch's median, and further from it than {TIMES_DEVIATION:g} times "
        f"the median deviation. A verdict that depends on fewer than {FEW} in all is undecided: effects rarer than that cannot be "
        "estimated.",
        f"Load: the machine was not quiet where others took {percent(DISTURBED)} or more of the ranks' cores in more than "
        f"{percent(MANY)} of the blocks. A verdict must then be the same in the undisturbed rounds. Where these exclude neither 1 "
        f"nor the ratio, the whole interval must lie farther from 1 than 1 / (1 - share) to the power of {LOAD_POWER}; the share "
        "is what others took in disturbed blocks. It must also lie farther than the control's interval reaches, to the power of "
        f"{LOAD_POWER}.",
        "Launches: one gives no interval and no verdict, since the variance between launches is then unknown.",
        _verdict(asked),
    ]


def _verdict(asked: dict[str, Any]) -> str:
    threshold, each = percent(asked["noise_threshold"]), percent(round(1 - asked["confidence"], 6))
    return (
        f"Verdict: faster or slower where the interval excludes 1 and the ratio is at least {threshold} from 1. Equivalent where "
        f"two one-sided tests at {each} each exclude a difference of {threshold} or more: the whole "
        f"{one_sided_percent(asked['confidence'])} interval, for all candidates together, lies within that. Else undecided."
    )


SOURCES = {
    "loader": "counted in the first tensor that its loader yields",
    "samples_per_step": "as the plan says (samples_per_step)",
    None: "not counted",
}
"""By ``ArmSummary.samples_from``."""


def script_method(comparison: Comparison) -> list[str]:
    """How scripts ran, and how they are held against each other."""
    asked, equality = comparison.measurement, comparison.equality
    assert equality is not None
    length = f"{asked['block_steps']} steps" if asked["block_steps"] else f"about {asked['block_s']:g} s"
    samples = "; ".join(f"{arm.name}: {SOURCES.get(arm.samples_from)}" for arm in comparison.arms if arm.role != "control")
    return [
        "The scripts ran unmodified, each by its own command. A probe, called by torch's hooks, stopped them between two steps. "
        f"A block is {length} of one arm, after {asked['warmup_steps']} untimed ones; its time is its slowest rank's. A step ends "
        "with the optimizer's; what a script does between two steps counts in the later one.",
        f"Samples: {samples}.",
        "Equality: count sketches (float64) of rank 0's parameters before the first step and after each compared one, and "
        "of its gradients in the first, beside the baseline's, by name. Tolerances are for the rounding of the arithmetic that "
        "both use, and never below three times what the control shows. Of all launches the one that is farthest apart counts. "
        "The ranks of one arm must agree.",
        "Loss: the scalar that backward() is called on, mean over ranks. An arm is no worse if the 95% upper bound of the "
        "difference over the later half, by Student's t over launches, is below "
        f"{percent(equality.loss_margin)} of the baseline's loss; worse if the lower bound is above.",
        "Work: where batch, parameters, dtype, accumulation, ranks or the length of an epoch differ, there is no verdict, unless "
        "the plan allows it (scripts.allow).",
    ]


def _script_figures(comparison: Comparison) -> list[str]:
    """What the figures of scripts mean, and what they cannot say."""
    return [
        f"Throughput: all ranks' {comparison.sample_unit} over the sum of the blocks' times, stalls included; its interval "
        "(Student's t over launches) includes the machine's drift, which cancels in the ratio.",
        "Phases: data wait is time in the loader's __next__; backward the time in backward(), and Horovod's wait for its exchange; "
        "optimizer the rest of the optimizer's step; forward is all else.",
        "Because: the phase whose difference from the baseline points the way of the verdict, excludes 0 and exceeds the second "
        "such phase (with 80% confidence), both by Student's t over launches; else no single cause is named.",
        "What this report cannot see: scripts have no floor and no steps without exchange. So computing, library overhead and "
        "exposed exchange are not told apart. A wait for other ranks counts in the phase in which it happens. A GPU's work counts "
        "where the script waits for it.",
    ]


def _latencies(comparison: Comparison) -> list[str]:
    own = (
        "Every case is a comparison of its own, with its own control; nothing is pooled over cases, and no correction is made for "
        "their number: of twenty cases without any difference one may be called different, whatever the number of candidates."
    )
    if comparison.are_loaders:
        return [own, "Samples per second: of all ranks together, the median over blocks of samples over the slowest rank's time."]
    return [
        own,
        "Latency: message size over algbw; of a ping-pong, half the round trip. algbw: median over blocks of message bytes over "
        "the slowest rank's time; its interval is Student's t over the launches' medians. busbw: algbw times what each link must "
        "carry of the message, as nccl-tests defines it (doc/PERFORMANCE.md): 2(n-1)/n for all_reduce, (n-1)/n for all_gather and "
        "reduce_scatter, 1 for broadcast and from rank to rank, n the ranks that take part. The size of an all_gather is that of "
        "its result. GB/s are 10^9 bytes.",
    ]


def _figures() -> list[str]:
    return [
        "Throughput: all ranks' samples over the sum of the blocks' times, stalls included; its interval (Student's t "
        "over launches) includes the machine's drift, which cancels in the ratio.",
        "Why: of mean seconds a step, blocks with exchange (S: the sum of the blocks' times over their steps), without it (L; M: "
        "the slowest rank's, step by step; l: the wait for data in L) and of the no-op backend (the floor; F and f alike), which "
        "is the same training on the same ranks with no library. Compute is F - f and data wait l, means over ranks; library "
        "overhead (L - l) - (F - f) of the typical rank; straggler wait M less these three; exposed exchange (exposed "
        "communication) S - M. They add up to S by definition, whatever the library. Without a floor, overhead is part of compute. "
        "Exposed exchange below 0 says that ranks step faster with exchange than without.",
        "Because: the term whose difference from the baseline points the way of the verdict, excludes 0 and exceeds the second "
        "such term (with 80% confidence), both by Student's t over launches; else no single cause is named.",
        "What holds training back: the share of the mean step that the rank which waits most spends waiting for data, and those of "
        f"the other terms. The largest is called the limit where it is {percent(LIMIT)} or more: without it, throughput would "
        "rise by a third at least. Where none is, computing takes most of the step.",
        "Phases: medians per step on the slowest rank. They are not to be compared across backends one by one: DDP waits for "
        "communication inside backward, Horovod inside the optimizer's step.",
    ]


FEW_RUNS = 5
"""Runs of each arm; from fewer, the variance is poorly estimated."""


def run_lines(results: Sequence[RatioSummary]) -> list[str]:
    """For each candidate the smallest difference that its runs could have shown, and what the order of the runs may hide."""
    found = []
    for result in results:
        if result.run_order is None or result.case is not None:
            continue
        if result.ci_low is not None and result.ci_high is not None:
            smallest = math.exp(math.log(result.ci_high / result.ci_low) / 2)
            paired = "in pairs, since they alternated" if result.run_order == "alternating" else "unpaired"
            found.append(
                f"{result.candidate}: the smallest difference from {result.baseline} that these runs could have shown is "
                f"{apart(smallest)} ({paired})"
            )
        if result.run_order == "one after the other":
            found.append(
                f"All runs of one of {result.candidate} and {result.baseline} came before all of the other: a machine that became "
                "slower or faster meanwhile would look the same as a difference between them; let runs alternate"
            )
        if 2 < result.launches < FEW_RUNS:
            found.append(
                f"{result.candidate}: {result.launches} runs of each estimate the variance poorly; make {FEW_RUNS} or more"
            )
    return found


def runs_method(comparison: Comparison) -> list[str]:
    """How the runs were made and are compared."""
    runs = "; ".join(f"{arm}: {', '.join(folders)}" for arm, folders in comparison.runs.items())
    return [
        "People started these runs themselves, each by its own command; a run is one launch, whose model is built once. No driver "
        f"interleaved them, stopped what waits, or ran a control. Runs: {runs}.",
        "Ratio: of the geometric means over runs of each run's total throughput, all samples over all seconds. Interval: "
        f"{percent(comparison.measurement['confidence'])} confidence for all candidates together (Šidák); where the runs of two "
        "arms alternated, Student's t of neighbours' differences; else Welch's t, which shares no variance between arms. What "
        "one long run may come out at is the prediction interval of the same.",
        _verdict(comparison.measurement),
    ]
