"""``ringside ab COMMAND_A COMMAND_B``: two commands become a plan, which is run like any other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import typer

from measurement.agent.ringside_agent.settings import (
    ENVIRONMENT,
    OMP_NUM_THREADS,
    THREADS,
    is_imposable,
)
from measurement.conditions.differences import is_by_rank
from measurement.errors import PlanError, quoted
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm, Measurement, ScriptSettings
from runners.flags import (
    MINUTES,
    Flag,
    FlagValues,
    SessionOptions,
    command_to_repeat,
    percent_of,
    say,
    session_flags,
    values_of,
)

if TYPE_CHECKING:
    from measurement.conditions.differences import Difference
    from measurement.records.record import LaunchRecord
    from measurement.records.results import ResultsFolder
    from reports.schema import Comparison
    from runners.launchers.command_lines import CommandLine

EXAMPLES = """\
ringside ab 'horovodrun -np 2 python train_hvd.py' 'torchrun --nproc-per-node 2 train_ddp.py'

ringside ab 'python train.py --bs 8' 'python train.py --bs 16' --minutes 2 --allow all

ringside ab 'torchrun --nproc-per-node 2 train.py' --with-a torch==2.9.1 --with-b torch==2.15.0"""
EXIT_FAILED, EXIT_NOT_SHOWN = 1, 3
CHANGES_TRAINING = ("mistake", "work", "training")
"""Severities of differences that first steps may not show."""
Run = Callable[..., "Comparison"]
"""Measures a plan into a folder and shows the result; ``again``: the command line that resumes
it."""
Try = Callable[[Plan, "ResultsFolder"], "list[LaunchRecord]"]
"""Runs only the trial of a plan's commands; returns its records, none if a command failed."""
FIRST_STEPS = {
    "launches": 1,
    "rounds": 1,
    "block_steps": 1,
    "warmup_steps": 0,
    "rehearsal": "never",
}
"""How ``--small`` measures."""
MAX_TRIED = 3
"""Settings that ``--explain`` tries."""
GOLDEN = "golden"
MAX_LABEL = 32
EITHER = ("a", "b")
"""If the commands give no short names."""
OPTION_PATTERN = re.compile(r"(?:^|(?<=\s))-*([^\s=]+)(?:=(\S+)|\s+(?!-)([^\s=]+)(?=\s|$))?")
"""A name with its value after ``=``, or in the next word."""
SCRIPT_FILE = re.compile(r"[^-].*\.(py|sh)")


class AbOptions(SessionOptions):
    """Options of ``ringside ab`` that are not in a plan."""

    command_a: str | None = None
    """The command that is the reference, in quotes, such as 'horovodrun -np 2 python
    train_hvd.py'."""
    command_b: str | None = None
    """The command that is compared with it, such as 'torchrun --nproc-per-node 2 train_ddp.py'.
    Default: the first one, in another environment or commit."""
    name_a: str | None = None
    """Name of the first arm. Default: that of its script, or of what differs."""
    name_b: str | None = None
    """Name of the second arm. Default: that of its script, or of what differs."""
    explain: bool = False
    """Time the first command with settings of the second as well, one in each arm more, and say how
    much of the difference each explains."""
    small: bool = False
    """Compare the first steps of one start, and time nothing that a verdict could rest on. Implies
    --assert-equal."""
    assert_equal: bool = False
    """End with code 3 unless both are shown to train alike: the first steps are equal, and nothing
    that was not allowed, and is no library's default, is another training."""
    assert_not_slower: str | None = None
    """End with code 3 unless the second is shown to be slower by at most this much, such as 5%."""
    golden: Path | None = None
    """A file of --write-golden: end with code 3 unless the last command trains as that one did. One
    command is enough."""
    write_golden: Path | None = None
    """Keep the first steps of the first command in this file. One command is enough."""


ARMS, MEASURING, COMPARING = "Arms", "Measuring", "Comparing"
_option, _arm = partial(Flag, ARMS, AbOptions), partial(Flag, ARMS, Arm)
_measurement = partial(Flag, MEASURING, Measurement)
_scripts, _claim = (partial(Flag, COMPARING, model) for model in (ScriptSettings, AbOptions))
OF_ONE = {
    "directory": "directory",
    "python": "python",
    "commit": "commit",
    "packages": "with",
    "image": "image",
}
"""Fields of an arm, and their flags."""


BY_ARM: dict[Flag, str] = {
    _arm(field, (f"--{flag}-{arm}",)): arm for field, flag in OF_ONE.items() for arm in ("a", "b")
}
OF_BOTH = (
    _arm(
        "python",
        help="A Python of another environment, such as /envs/old/bin/python, for both arms.",
    ),
    _arm("samples_per_step"),
    _arm("iteration_ends"),
    _arm("untimed"),
)
FLAGS: Sequence[Flag] = (
    _option("command_a", is_argument=True, metavar="COMMAND_A"),
    _option("command_b", is_argument=True, metavar="COMMAND_B"),
    _option("name_a"),
    _option("name_b"),
    *BY_ARM,
    *OF_BOTH,
    Flag(MEASURING, Plan, "hosts", ("-H", "--hosts")),
    _measurement("minutes", default=None, help=f"{MINUTES} [5]"),
    _measurement("launches", default=None),
    _measurement("steps_per_launch", ("--steps",)),
    _measurement("max_minutes"),
    Flag(MEASURING, Plan, "freed_memory"),
    Flag(
        MEASURING,
        Plan,
        "seed",
        help="Seed of the order of starts and blocks, and of scripts with --seed-flag.",
    ),
    *map(_scripts, ("seed_flag", "same_start", "same_data", "cpu", "loss_margin")),
    *map(_scripts, ("trackers", "keep_files")),
    Flag(
        COMPARING,
        Plan,
        "allow",
        ("--allow",),
        metavar="FIELD",
        help="A difference in work that does not withhold the verdict, or all.",
    ),
    _claim("small"),
    _claim("explain"),
    _claim("assert_equal"),
    _claim("assert_not_slower", metavar="PERCENT"),
    _claim("golden", metavar="FILE"),
    _claim("write_golden", metavar="FILE"),
    *session_flags(AbOptions, MEASURING),
)


BY_NAME: Mapping[str, Flag] = {flag.name.removeprefix("--"): flag for flag in FLAGS}


def flags_named(*names: str) -> tuple[Flag, ...]:
    """Return flags of ``ringside ab`` for a command that has them, too."""
    return tuple(BY_NAME[name] for name in names)


def flags_with(given: FlagValues, more: Mapping[str, Any]) -> FlagValues:
    """Those of the flags given that ``ringside ab`` has, and more of its flags by name."""
    kept = {flag: value for flag, value in given.items() if flag in FLAGS}
    return kept | {BY_NAME[name]: value for name, value in more.items()}


TEXT = "Compare two commands of yours, unmodified: which is faster, and do they train alike?"


def run_given(run: Run, run_trial: Try, flags: FlagValues) -> None:
    """Make the plan, run it, and end with code 3 if something asked for is not shown."""
    from measurement.records.results import ResultsFolder, default_folder
    from reports.scripts.configuration import script_differences
    from reports.scripts.equality import compare_to_golden, read_golden, write_golden

    options = AbOptions(**values_of(flags, AbOptions))
    golden = read_golden(options.golden) if options.golden else None
    limit = options.assert_not_slower
    most_slower = None if limit is None else percent_of(limit, flag="--assert-not-slower")
    plan = plan_of(flags)
    if plan.scripts.cpu and (most_slower is not None or options.explain):
        raise PlanError("--cpu says nothing of speed; leave --assert-not-slower and --explain out")
    folder = ResultsFolder(options.output or default_folder(plan.name))
    tried: list[LaunchRecord] = []
    if options.explain and len(plan.arms) > 1:
        first, second = plan.arms
        plan, tried = with_arms_to_try(
            plan.model_copy(update={"question": second}),
            folder,
            run_trial,
            lambda records: settings_to_try(
                script_differences(records), baseline=first, candidate=second
            ),
        )
    comparison = run(
        plan,
        folder,
        again=command_to_repeat(folder.root),
        resume_elsewhere=options.resume_elsewhere,
        is_shown=len(plan.arms) > 1,
        tried=tried,
    )
    if not comparison.is_ok:
        raise typer.Exit(EXIT_FAILED)
    unmet = not_shown(
        comparison,
        equal=options.assert_equal or (options.small and len(plan.arms) > 1),
        most_slower=most_slower,
    )
    if options.write_golden:
        write_golden(options.write_golden, plan, folder.records())
    if golden:
        equality, others = compare_to_golden(
            golden, folder.records(), plan.question or list(plan.arms)[-1]
        )
        print(equality.sentence, *others, sep="\n")
        if equality.unequal:
            unmet.append(f"not shown to train as '{options.golden}': {equality.sentence}")
    for line in unmet:
        say(line)
    if unmet:
        raise typer.Exit(EXIT_NOT_SHOWN)


def plan_of(flags: FlagValues) -> Plan:
    """Return the plan of two commands.

    Raises:
        PlanError, HostfileError: a flag or a command is not accepted.
    """
    from measurement.plans.plan_file import check_plan, overridden
    from runners.hosts.placement import with_hosts

    options = AbOptions(**values_of(flags, AbOptions))
    has_golden = bool(options.golden or options.write_golden)
    own = {arm for flag, arm in BY_ARM.items() if flag in flags}
    is_one = has_golden and options.command_b is None and "b" not in own
    if options.command_a is None or not (options.command_b or own or is_one):
        raise PlanError(
            "give two commands, each in quotes: ringside ab 'horovodrun -np 2 python train_hvd.py'"
            " 'torchrun --nproc-per-node 2 train_ddp.py'; or one, and what differs: --with-b"
            " torch==2.9.1, --image-b, --python-b"
        )
    both = {flag.field: flags[flag] for flag in OF_BOTH if flag in flags}
    arms: dict[str, dict[str, Any]] = {
        "a": {"command": options.command_a, **both},
        "b": {"command": options.command_b or options.command_a, **both},
    }
    for flag, arm in BY_ARM.items():
        if flag in flags:
            arms[arm][flag.field] = flags[flag]
    if is_one:
        del arms["b"]
    first, second = names_of(options, arms)
    measurement = values_of(flags, Measurement)
    if options.small or is_one:
        if lengths := [name for name in ("minutes", "max_minutes") if name in measurement]:
            typed = f"--{lengths[0].replace('_', '-')}"
            raise PlanError(
                f"{typed} {measurement[lengths[0]]:g} has no effect: --small, and a golden result,"
                f" end after the first steps; leave out {typed}"
            )
        measurement |= FIRST_STEPS
    content: dict[str, Any] = {
        "name": f"{first}-against-{second}"[:100],
        "baseline": first,
        "arms": dict(zip((first, second), arms.values(), strict=False)),
        "measurement": measurement,
        "scripts": values_of(flags, ScriptSettings),
        **values_of(flags, Plan),
    }
    return check_plan(with_hosts(overridden(content, options.settings)), source="ringside ab")


def with_arms_to_try(
    plan: Plan,
    folder: ResultsFolder,
    run_trial: Try,
    settings_of: Callable[[Sequence[LaunchRecord]], Mapping[str, Any]],
) -> tuple[Plan, list[LaunchRecord]]:
    """Return the plan with an arm for each setting that ``--explain`` tries, the baseline with this
    setting, and the records of its trial; of a folder that has begun, with the arms that it has.
    """
    if folder.plan_path.is_file():
        return plan.model_copy(update={"arms": folder.read_plan().arms}), []
    tried = run_trial(plan, folder)
    settings = list(settings_of(tried).items())[:MAX_TRIED] if tried else []
    if tried and not settings:
        say("--explain has nothing to try: no setting that can be imposed is likely to matter")
    first = plan.arms[plan.baseline]
    arms = {
        f"{plan.baseline}+{name}": first.model_copy(update={"impose": {name: value}})
        for name, value in settings
    }
    return plan.model_copy(update={"arms": {**plan.arms, **arms}}), tried


def settings_to_try(
    differences: Sequence[Difference], *, baseline: str, candidate: str
) -> dict[str, Any]:
    """Return the candidate's value of each setting that may explain a difference in speed, the most
    likely first.
    """
    fields = {difference.field: difference for difference in differences}
    settings = {}
    for field, difference in fields.items():
        if difference.changes_work or not is_imposable(field):
            continue
        if field.startswith(ENVIRONMENT) and (
            difference.is_note or (field == OMP_NUM_THREADS and THREADS in fields)
        ):
            continue  # it has no effect by itself, or a launcher sets it
        if "library" in fields and field.startswith(("ddp.", "environment.HOROVOD_")):
            continue  # one of the libraries has no such setting
        both = [difference.values.get(name) for name in (baseline, candidate)]
        if not any(is_by_rank(value) for value in both):
            settings[field] = both[1]
    return settings


def names_of(options: AbOptions, arms: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Return the arms' names: those of the flags, or by ``names_for`` of their commands, packages
    and commits.
    """
    from runners.launchers.command_lines import read_command

    lines = []
    for arm in arms.values():
        line = read_command(arm["command"])
        more = [
            arm[key].replace("==", "=") for key in ("packages", "commit", "image") if key in arm
        ]
        lines.append(replace(line, words=(*line.words, *more)))
    if len(lines) < 2:
        return options.name_a or name_of(lines[0]) or "script", GOLDEN
    names = names_for(*lines)
    names = (options.name_a or names[0], options.name_b or names[1])
    if names[0] == names[1]:
        raise PlanError(
            f"both arms are named {quoted(names[0])}; give other names with --name-a and --name-b"
        )
    return names


def names_for(first: CommandLine, second: CommandLine) -> tuple[str, str]:
    """Return two names that differ and can be folders: ``train_hvd`` and ``train_ddp``, else
    ``bs8`` and ``bs16`` of ``--bs``.

    If only one of them has an option, it is named after the option, and the other after the script.
    """
    scripts = name_of(first), name_of(second)
    launchers = first.kind or "", second.kind or ""
    labels = _label(first, second) or scripts[0], _label(second, first) or scripts[1]
    for one, other in (scripts, launchers, labels):
        if one and other and one.lower() != other.lower():  # a filesystem may ignore case
            return one, other
    return EITHER


def _as_folder_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")


def name_of(line: CommandLine) -> str:
    """Return the name of its script or module, without folder and suffix; empty if it has none."""
    module = next(
        (
            after
            for word, after in pairwise(line.words)
            if word == "-m" and "distributed" not in after
        ),
        "",
    )
    file = (
        line.file or module.replace(".", "/") or next(filter(SCRIPT_FILE.fullmatch, line.words), "")
    )
    return _as_folder_name(PurePath(file).stem)[:80]


def _label(line: CommandLine, other: CommandLine) -> str:
    """The options that only the first of two commands has, as a short name."""
    others, pieces = OPTION_PATTERN.findall(" ".join(other.words)), []
    for option in OPTION_PATTERN.findall(" ".join(line.words)):
        if option not in others:
            name, value = (text.rpartition("/")[2] for text in (option[0], option[1] or option[2]))
            pieces.append(name + ("-" if value and not value[0].isdigit() else "") + value)
    return _as_folder_name("-".join(pieces))[:MAX_LABEL].rstrip("-._+")


def not_shown(comparison: Comparison, *, equal: bool, most_slower: float | None) -> list[str]:
    """Return a sentence for each claim that was asked for and is not shown.

    ``most_slower``: in percent; None: not asked.
    """
    unmet = []
    if equal and (comparison.equality is None or comparison.equality.unequal):
        verdict = comparison.equality.sentence if comparison.equality else "nothing is known of it"
        unmet.append(f"not shown to train alike: {verdict}")
    unmet += [
        f"not shown to train alike: {row.sentence}; make it alike, or give --allow {row.field}"
        for row in comparison.differences
        # seeds act on starts, orders and dropout, which are compared
        if equal
        and row.severity in CHANGES_TRAINING
        and not (row.allowed or row.field.startswith("seed."))
    ]
    if most_slower is None:
        return unmet
    least = 1 - most_slower / 100
    for result in comparison.results:
        low = None if result.withheld_by else result.ci_low
        if result.role == "candidate" and (low is None or low < least):
            why = f"its throughput is at least {low:.3f} of {result.baseline}'s" if low else None
            unmet.append(
                f"{result.candidate} is not shown to be at most {most_slower:g}% slower:"
                f" {why or result.note or 'there is no ratio'}"
            )
    return unmet
