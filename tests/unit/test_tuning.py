"""``ringside tune``: what may be searched, on which budget, what trials tell, going on, the answer, and bad input."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import yaml

from backends import make_backend
from measurement.errors import LaunchError, PlanError
from measurement.plans.plan import Arm
from measurement.plans.plan_file import check_plan
from reports import write_reports
from reports.estimate import Estimate
from reports.tuning.compose_tuning import headline, lossy_warnings, settle
from reports.tuning.effects import fit_effects, normal
from reports.tuning.tuning_report import answers, tuning_page
from reports.tuning.tuning_schema import Asked, Trial, TunedArm, Tuning
from runners.tuning.proposals import propose
from runners.tuning.search import Search, next_launch, open_settings
from runners.tuning.tune_command import begin, finish, plan_text
from tests.conftest import TINY, ringside_here, write_plan
from tests.kit.results_factory import Truth, write_results

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

BOTH = {"ddp": {"backend": "ddp", "transport": "gloo"}, "hvd": {"backend": "horovod", "transport": "gloo"}}
ASKED = Asked(plan_digest="x", trials=4, minutes=None, at_once=2, seed=1, lossy=False)


def plan_of(**changes):
    measurement = {**TINY["measurement"], "launches": 4}
    return check_plan({**TINY, "arms": BOTH, "measurement": measurement, "reports": ["html"], **changes}, source="test")


def options_of(backend, options=None, *, buffers=True, hosts=False, transport="gloo", micro_steps=1, **more):
    made = make_backend(backend, transport=transport, options=options or {}, micro_steps=micro_steps)
    stated = made.search_space(has_buffers=buffers, several_hosts=hosts)
    found = open_settings(stated, made, Arm(backend=backend, options=options or {}), **more)
    return {one.option: one for one in found}


def test_a_back_end_states_what_may_be_searched_and_the_plan_fixes_what_it_sets():
    whole = ["bucket_cap_mb", "first_bucket_mb", "gradient_as_bucket_view", "static_graph", "broadcast_buffers"]
    assert list(options_of("ddp")) == whole
    assert list(options_of("ddp", lossy=True)) == [*whole, "comm_hook"]
    assert list(options_of("ddp", {"bucket_cap_mb": 10.0}, buffers=False, micro_steps=2)) == ["gradient_as_bucket_view"]
    horovod = ["fusion_threshold_mb", "cycle_time_ms", "cache_capacity", "num_groups"]
    assert list(options_of("horovod")) == horovod
    assert list(options_of("horovod", variables=["HOROVOD_CYCLE_TIME"])) == [one for one in horovod if one != "cycle_time_ms"]
    assert list(options_of("horovod", transport="nccl", hosts=True, lossy=True)) == [
        *horovod,
        "hierarchical_allreduce",
        "compression",
    ]
    assert not options_of("naive")
    assert all(one.default in one.values for backend in ("ddp", "horovod") for one in options_of(backend, lossy=True).values())


def test_what_means_nothing_beside_the_others_is_left_out():
    settings = list(options_of("ddp").values())
    assert normal(settings, {"bucket_cap_mb": 50.0, "first_bucket_mb": 5.0, "static_graph": False}) == {"bucket_cap_mb": 50.0}
    assert normal(settings, {"first_bucket_mb": 5.0}) == {"first_bucket_mb": 5.0}
    with pytest.raises(PlanError, match=r"first_bucket_mb 5 beside bucket_cap_mb 50: .* leave one of them out"):
        make_backend("ddp", transport="gloo", options={"bucket_cap_mb": 50, "first_bucket_mb": 5}).check(world_size=2)


def test_settings_become_the_users_own_code():
    options = {"first_bucket_mb": 5.0, "static_graph": True, "broadcast_buffers": False, "comm_hook": "fp16"}
    assert make_backend("ddp", transport="gloo", options=options).users_code() == [
        "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 5242880",
        "model = DistributedDataParallel(model, static_graph=True, broadcast_buffers=False)",
        "model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
    ]
    options = {
        "fusion_threshold_mb": 16.0,
        "cycle_time_ms": 2.5,
        "hierarchical_allreduce": True,
        "num_groups": 4,
        "compression": "fp16",
    }
    assert make_backend("horovod", transport="gloo", options=options).users_code() == [
        "export HOROVOD_FUSION_THRESHOLD=16777216",
        "export HOROVOD_CYCLE_TIME=2.5",
        "export HOROVOD_HIERARCHICAL_ALLREDUCE=1",
        "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), "
        "compression=hvd.Compression.fp16, num_groups=4)",
    ]
    assert make_backend("horovod", transport="gloo", options=options).environment()["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
    assert make_backend("naive", transport="gloo", options={}).users_code() == []


@pytest.mark.parametrize(
    ("changes", "seconds", "trials", "wanted"),
    [
        ({"trials": 10, "at_once": 3}, [], 0, (3, False)),
        ({"trials": 10, "at_once": 3}, [60.0, 60.0], 6, (3, True)),
        ({"trials": 10, "at_once": 3}, [60.0] * 3, 9, (1, True)),
        ({"trials": 10, "at_once": 3}, [60.0] * 4, 10, None),
        ({"trials": None, "minutes": 5.0}, [60.0, 60.0], 4, (2, False)),
        ({"trials": None, "minutes": 5.0}, [60.0, 100.0, 100.0], 6, None),
        ({"trials": None, "minutes": 5.0}, [60.0] * 3, 6, (2, True)),
        ({"trials": None, "minutes": 1.0}, [], 0, (2, False)),
    ],
)
def test_the_budget_is_of_trials_or_minutes_and_its_end_repeats(changes, seconds, trials, wanted):
    asked = ASKED.model_copy(update=changes)
    assert next_launch(asked, seconds, trials) == wanted


def noisy_trials(settings, truth, *, number=24, noise=0.03):
    random, trials = np.random.default_rng(1), []
    for launch in range(number // 3):
        shared = random.normal(0, noise)
        for options in propose(settings, trials, 3, seed=1, repeat=launch >= 5):
            log = truth(options) + random.normal(0, noise) - shared
            trials.append(Trial(launch=launch, options=options, status="ok", log_ratio=log))
    return trials


def test_effects_are_found_and_what_does_nothing_is_left_alone():
    settings = list(options_of("horovod").values())
    trials = noisy_trials(settings, lambda options: {2.5: 0.1, 5.0: 0.2, 10.0: 0.3}.get(options.get("cycle_time_ms"), 0.0))
    effects = fit_effects(settings, trials)
    best = effects.best(margin=0.005)
    assert best["cycle_time_ms"] == 10.0
    (mean, nothing), _ = effects.predict([best, {}])
    assert nothing == 0.0
    assert 0.2 < mean < 0.4
    by_value = {(one.option, one.value): one.ratio for one in effects.table()}
    assert by_value["cycle_time_ms", None].value == 1.0, "the default is what all are relative to"
    assert by_value["cache_capacity", 0].ci_low < 1 < by_value["cache_capacity", 0].ci_high
    for number in (1, 3):
        assert len(propose(settings, trials, number, seed=1, repeat=False)) == number
    idle = fit_effects(settings, noisy_trials(settings, lambda options: 0.0))
    assert idle.predict([idle.best(margin=0.01)])[0][0] < 0.02, "the luckiest trial is not believed"
    assert fit_effects(settings, []).best(margin=0.005) == {}


def test_a_measured_set_is_not_taken_without_an_option_that_is_expected_to_help():
    measured = [  # of real ranks; the equal arm beside them took the whole set, and was 8% faster
        (0, -0.040, {"fusion_threshold_mb": 256.0, "cycle_time_ms": 0.5}),
        (0, 0.132, {"fusion_threshold_mb": 4.0, "num_groups": 1}),
        (0, -0.036, {"fusion_threshold_mb": 1.0, "cycle_time_ms": 5.0, "cache_capacity": 0}),
        (1, -0.026, {"fusion_threshold_mb": 16.0, "cache_capacity": 0}),
        (1, 0.016, {"cycle_time_ms": 2.5, "cache_capacity": 0, "num_groups": 1}),
        (1, -0.115, {"fusion_threshold_mb": 64.0, "cycle_time_ms": 5.0, "num_groups": 4}),
    ]
    trials = [Trial(launch=launch, options=options, status="ok", log_ratio=log) for launch, log, options in measured]
    best = fit_effects(list(options_of("horovod").values()), trials).best(margin=0.005)
    assert best == {"fusion_threshold_mb": 4.0, "num_groups": 1}


def test_proposals_follow_from_the_trials_and_what_failed_is_not_tried_again():
    settings = list(options_of("ddp", {"bucket_cap_mb": 25.0}, buffers=False).values())
    first = propose(settings, [], 2, seed=1, repeat=False)
    assert first == propose(settings, [], 2, seed=1, repeat=False)
    assert len(first) == 2
    trials = [Trial(launch=0, options=first[0], status="wrong", log_ratio=None)]
    trials += [Trial(launch=0, options=first[1], status="ok", log_ratio=0.1)]
    for launch in range(1, 4):
        found = propose(settings, trials, 2, seed=1, repeat=launch == 3)
        assert first[0] not in found
        trials += [Trial(launch=launch, options=one, status="ok", log_ratio=0.0) for one in found]
    assert len({str(trial.options) for trial in trials}) == 3, "two settings of two values have three option sets"


class Machine:
    """Answers a plan with records of a known truth, in the place of ranks."""

    def __init__(self, *, statuses=None):
        self.plans, self.statuses = [], statuses or {}

    def __call__(self, plan, folder, *, is_shown=True):
        self.plans.append(plan)
        ratios = {name: 1.3 if arm.options.get("cycle_time_ms") in (5.0, 10.0) else 1.0 for name, arm in plan.arms.items()}
        truth = Truth(ratios=ratios, statuses={key: self.statuses[key] for key in self.statuses if key[0] in plan.arms}, noise=0.01)
        write_results(folder.root, truth=truth, plan=plan, seed=len(self.plans))
        return write_reports(folder)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A whole tuning of a synthetic machine on which Horovod's cycle is all that matters."""
    root, machine = tmp_path_factory.mktemp("tuned") / "out", Machine()
    asked = ASKED.model_copy(update={"trials": 16, "at_once": 4})
    search = Search(plan_of(), root, asked)
    begin(root, asked)
    assert finish(search, machine, sampler="of a test")
    return root, machine, asked


def test_arms_take_turns_with_their_own_defaults_and_the_answer_is_a_plan_of_fresh_launches(searched):
    root, machine, _ = searched
    *launches, confirmation = machine.plans
    assert [len(plan.arms) for plan in launches] == [10] * 4, "each arm has its default and as many trials as the other"
    assert {plan.measurement.launches for plan in launches} == {1}
    assert launches[0].arms["hvd-default"].options == {}
    assert len({plan.seed for plan in launches}) == 4, "each launch has its arms in another order"
    assert confirmation == check_plan(yaml.safe_load((root / "tuned.yaml").read_text()), source="tuned.yaml")
    assert confirmation.baseline == "ddp-tuned"
    assert confirmation.asked_arms() == ["hvd-tuned"]
    assert set(confirmation.arms) >= {"ddp-tuned", "hvd-tuned", "hvd-default", "ddp-matched", "hvd-matched"}
    assert confirmation.arms["hvd-tuned"].options["cycle_time_ms"] in (5.0, 10.0)
    assert confirmation.arms["hvd-matched"].options == {"fusion_threshold_mb": 25.0}
    assert plan_text(confirmation) == (root / "tuned.yaml").read_text()


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"minutes": 4.5}, {"minutes": 7.5}),
        ({"launches": 3, "seconds_per_launch": 12.0}, {"launches": 3, "seconds_per_launch": 20.0, "minutes": None}),
        ({"launches": 3, "rounds": 7}, {"launches": 3, "rounds": 7}),
    ],
)
def test_the_confirmation_measures_each_arm_as_long_as_the_plan_does(tmp_path, asked, wanted):
    plan = plan_of(measurement=asked)
    made = Search(plan, tmp_path, ASKED).confirmation().plan
    assert (len(plan.compared_arms()), len(made.compared_arms())) == (3, 5)
    assert {name: getattr(made.measurement, name) for name in wanted} == wanted


def test_the_report_says_what_was_gained_and_what_was_not_worth_touching(searched):
    root, _, _ = searched
    tuning = Tuning.model_validate_json((root / "tuning.json").read_text())
    pairs = {(pair.question, pair.candidate): pair for pair in tuning.pairs}
    assert pairs["gain", "hvd-tuned"].verdict == pairs["tuned", "hvd-tuned"].verdict == "faster"
    assert pairs["default", "hvd-default"].verdict != "faster"
    told = "\n".join(answers(tuning))
    assert "ddp: no setting was found that beats its default" in told
    assert "not worth touching in hvd: " in told
    page = tuning_page(tuning, link="confirm/report.html").decode()
    for text in (tuning.headline, "export HOROVOD_CYCLE_TIME=", "DistributedDataParallel(model)", "confirm/report.html"):
        assert text in page


def test_what_no_trial_tried_and_what_may_yet_gain_is_not_called_worthless(searched):
    root, _, _ = searched
    tuning = Tuning.model_validate_json((root / "tuning.json").read_text())
    name, settings, trial = tuning.arms[0].name, tuning.arms[0].settings, tuning.arms[0].trials[0]
    untried = [one.option for one in settings if one.option not in trial.options]
    tried = [one.option for one in settings if one.option in trial.options]
    assert untried
    assert tried
    for high, undecided in ((1.01, untried), (1.03, [one.option for one in settings])):
        bound = Estimate(value=1.0, ci_low=0.99, ci_high=high)
        effects = [one.model_copy(update={"ratio": bound}) for one in tuning.arms[0].effects]
        arm = tuning.arms[0].model_copy(update={"trials": [trial], "effects": effects})
        told = answers(tuning.model_copy(update={"arms": [arm]}))
        assert f"not decided, for want of trials, in {name}: {', '.join(undecided)}" in told
        assert (f"not worth touching in {name}: {', '.join(tried)}" in told) == (high == 1.01)


def test_a_setting_that_few_trials_left_out_is_left_to_find():
    settings = list(options_of("horovod").values())
    left = {}
    for number in (3, 24):
        trials = noisy_trials(settings, lambda options: 0.2 * (options.get("num_groups") == 4), number=number, noise=0.01)
        effects = fit_effects(settings, trials)
        left[number] = effects.left_to_find(effects.best(margin=0.005))
    assert left[24].ci_high - 1 < (left[3].ci_high - 1) / 2
    assert left[3].ci_low <= left[3].value <= left[3].ci_high


def test_equal_arms_begin_with_the_same_option_sets(tmp_path):
    both = {name: {"backend": "horovod", "transport": "gloo"} for name in ("a", "b")}
    machine = Machine()
    Search(plan_of(arms=both, baseline="a"), tmp_path, ASKED).run(machine)
    plan = machine.plans[0]
    for number in (1, 2):
        assert plan.arms[f"a-trial-{number}"].options == plan.arms[f"b-trial-{number}"].options


def test_a_verdict_that_more_trials_may_turn_is_withheld(searched):
    root, _, _ = searched
    tuning = Tuning.model_validate_json((root / "tuning.json").read_text())
    pair = next(one for one in tuning.pairs if one.question == "tuned")
    assert pair.verdict == "faster", "so the baseline is behind"
    for high, verdict in ((1.001, "faster"), (9.0, "undecided")):
        left = Estimate(value=1.0, ci_low=1.0, ci_high=high)
        arms = [arm.model_copy(update={"left_to_find": left}) for arm in tuning.arms]
        pairs, told = settle(arms, tuning.pairs)
        assert next(one for one in pairs if one.question == "tuned").verdict == verdict
        assert [one.verdict for one in pairs if one.question != "tuned"] == [
            one.verdict for one in tuning.pairs if one.question != "tuned"
        ]
        assert len(told) == (verdict == "undecided")
        assert all(line.startswith(f"{pair.baseline} is ") for line in told)


def test_where_nothing_is_told_apart_one_short_sentence_says_so(searched):
    root, _, _ = searched
    tuning = Tuning.model_validate_json((root / "tuning.json").read_text())
    undecided = [pair.model_copy(update={"verdict": "undecided"}) for pair in tuning.pairs]
    assert headline(tuning.arms, undecided) == "Tuned or at defaults, no arm is told apart from ddp"


def test_a_search_goes_on_where_it_was(searched, tmp_path):
    root, machine, asked = searched
    done = len(machine.plans)
    again = Search(plan_of(), root, asked)
    again.run(lambda *_: pytest.fail("nothing is left to measure"))
    assert again.confirmation().plan == machine.plans[-1]
    fresh = Search(plan_of(), tmp_path, asked)
    interrupted = Machine()

    def interrupt(plan, folder):
        if len(interrupted.plans) == 2:
            raise KeyboardInterrupt
        return interrupted(plan, folder)

    with pytest.raises(KeyboardInterrupt):
        fresh.run(interrupt)
    resumed = Search(plan_of(), tmp_path, asked)
    resumed.run(interrupted)
    assert interrupted.plans == machine.plans[: done - 1], "as if it had not been interrupted"


def test_an_arm_that_fails_with_its_own_settings_ends_the_search(tmp_path):
    search = Search(plan_of(), tmp_path, ASKED)
    with pytest.raises(LaunchError, match="arm 'hvd' cannot be tuned: with the plan's own settings it is failed"):
        search.run(Machine(statuses={("hvd-default", 0): "failed"}))


def test_lossy_settings_are_never_held_against_lossless_ones_in_silence():
    def arm(name, lossy):
        empty = {
            "fixed": {},
            "settings": [],
            "trials": [],
            "effects": [],
            "best": {},
            "code": [],
            "left_to_find": Estimate(value=1.0),
        }
        return TunedArm(name=name, backend="x", lossy=lossy, **empty)

    assert lossy_warnings([arm("ddp", ["comm_hook"]), arm("hvd", [])]) == [
        "ddp-tuned loses bits (comm_hook): it may train otherwise",
        "lossy against lossless: ddp compress gradients, hvd do not",
    ]
    assert lossy_warnings([arm("hvd", [])]) == []


BAD = [
    ({"arms": {"one": {"backend": "naive"}, "ddp": {"backend": "naive"}}}, [], "has no arm to tune: one, ddp state no setting"),
    ({}, ["--minutes", "0.1"], "--minutes 0.1 is too little for one trial of each arm"),
    ({"workload": "collectives"}, [], "'collectives' is a micro-benchmark, and trains nothing"),
    ({"input": ["real", "synthetic"]}, [], "cannot be tuned: it has arms on real and on synthetic input; tune them on one"),
    ({"points": {"a": {"world_size": 2}}}, [], "cannot be tuned: it has points"),
    (
        {"measurement": {"control": False, "local_every": 0}, "training": {"epochs": 1}},
        [],
        "cannot be tuned: it has training to the end",
    ),
]


@pytest.mark.parametrize(("changes", "flags", "message"), BAD)
def test_bad_input_is_one_message(tmp_path, changes, flags, message):
    done = ringside_here("tune", write_plan(tmp_path, **changes), "-o", tmp_path / "out", *flags)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_search_and_a_missing_optuna_are_refused(tmp_path, monkeypatch):
    begin(tmp_path / "out", ASKED)
    done = ringside_here("tune", write_plan(tmp_path), "-o", tmp_path / "out", "--trials", 5)
    assert done.returncode == 2
    assert "holds another search (plan_digest" in done.stderr
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = ringside_here("tune", write_plan(tmp_path), "-o", tmp_path / "new")
    assert (done.returncode, "pip install 'ringside[tune]'" in done.stderr) == (2, True)
