"""``ringside tune``: what may be searched, what is tried and taken, on which budget, going on, the
answer, and bad input."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import yaml

from backends import make_backend
from measurement.errors import LaunchError, PlanError
from measurement.plans.plan_file import check_plan
from measurement.plans.sections import Arm
from reports import write_reports
from reports.tuning import (
    SearchRequest,
    Trial,
    Tuning,
    headline,
    tried_sets,
)
from runners.planning.settings_search import (
    Search,
    best_of,
    effective_options,
    open_settings,
    propose,
)
from runners.tune_command import record_request, search_and_confirm
from tests.conftest import TINY, write_plan
from tests.kit.changed import changed
from tests.kit.plans import tiny
from tests.kit.refusals import refused_command
from tests.kit.results_factory import Truth, write_results

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

BOTH = {
    "ddp": {"backend": "ddp", "transport": "gloo"},
    "hvd": {"backend": "horovod", "transport": "gloo"},
}
ASKED = SearchRequest(plan_digest="x", arm="hvd", minutes=20.0, at_once=4, lossy=False)
"""A launch of ``Machine`` takes four minutes: three explore, two repeat."""
GOOD = {"cycle_time_ms": 10.0, "num_groups": 4}
"""What helps on ``Machine``."""


def plan_of(**changes):
    measurement = {**TINY["measurement"], "launches": 4}
    return tiny(arms=BOTH, measurement=measurement, reports=["html"], **changes)


def options_of(backend, *, transport="gloo", options=None, micro_steps=1, **searched):
    """The settings of an arm that are searched, by name."""
    options = options or {}
    made = make_backend(backend, transport=transport, options=options, micro_steps=micro_steps)
    space = made.search_space(
        has_buffers=searched.pop("buffers", True), several_hosts=searched.pop("hosts", False)
    )
    settings = open_settings(space, made, Arm(backend=backend, options=options), **searched)
    return {setting.option: setting for setting in settings}


DDP = [
    "bucket_cap_mb",
    "first_bucket_mb",
    "gradient_as_bucket_view",
    "batched_grad_copy",
    "static_graph",
    "broadcast_buffers",
]
HOROVOD = ["fusion_threshold_mb", "cycle_time_ms", "cache_capacity", "num_groups"]


@pytest.mark.parametrize(
    ("backend", "asked", "expected"),
    [
        ("ddp", {"lossy": True}, [*DDP, "comm_hook"]),
        ("ddp", {"options": {"bucket_cap_mb": 10.0}, "buffers": False, "micro_steps": 2}, DDP[2:4]),
        ("horovod", {"variables": ["HOROVOD_FUSION_THRESHOLD"]}, HOROVOD[1:]),
        (
            "horovod",
            {"transport": "nccl", "hosts": True, "lossy": True},
            [*HOROVOD, "hierarchical_allreduce", "compression"],
        ),
        ("fsdp2", {}, ["reshard_after_forward", "prefetch"]),
    ],
)
def test_a_back_end_states_what_may_be_searched_and_the_plan_fixes_what_it_sets(
    backend, asked, expected
):
    settings = options_of(backend, **asked)
    assert list(settings) == expected
    assert all(each.default in each.values for each in settings.values())


def test_what_means_nothing_beside_the_others_is_left_out():
    settings, first_bucket = list(options_of("ddp").values()), {"first_bucket_mb": 5.0}
    beside = {"bucket_cap_mb": 50.0, **first_bucket}
    unlike_default = {"bucket_cap_mb": 50.0, "static_graph": False, **first_bucket}
    assert effective_options(settings, unlike_default) == {"bucket_cap_mb": 50.0}
    assert effective_options(settings, first_bucket) == first_bucket
    with pytest.raises(PlanError, match="only one of bucket_cap_mb and first_bucket_mb; leave out"):
        make_backend("ddp", transport="gloo", options=beside).check(world_size=2)


@pytest.mark.parametrize(
    ("backend", "options", "code"),
    [
        (
            "ddp",
            {"first_bucket_mb": 5.0, "static_graph": True, "comm_hook": "fp16"},
            [
                "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 5242880",
                "model = DistributedDataParallel(model, static_graph=True)",
                "model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
            ],
        ),
        (
            "ddp",
            {
                "zero_redundancy_optimizer": True,
                "comm_hook": "powersgd",
                "powersgd_rank": 4,
                "bucket_cap_mb": 100.0,
            },
            [
                "model = DistributedDataParallel(model, bucket_cap_mb=100.0)",
                "state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4,"
                " start_powerSGD_iter=10)",
                "model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)",
                "optimizer = ZeroRedundancyOptimizer(optimizer.param_groups,"
                " optimizer_class=type(optimizer))",
            ],
        ),
        (
            "horovod",
            {"cycle_time_ms": 2.5, "num_groups": 4, "compression": "fp16"},
            [
                "export HOROVOD_CYCLE_TIME=2.5",
                "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), "
                "compression=hvd.Compression.fp16, num_groups=4)",
            ],
        ),
        (
            "horovod",
            {"op": "Sum", "cache_capacity": 0, "backward_passes_per_step": 2},
            [
                "export HOROVOD_CACHE_CAPACITY=0",
                "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), "
                "op=hvd.Sum, backward_passes_per_step=2)",
            ],
        ),
    ],
)
def test_settings_become_the_users_own_code(backend, options, code):
    passes = options.get("backward_passes_per_step", 1)
    made = make_backend(backend, transport="gloo", options=options, micro_steps=passes)
    assert made.users_code() == code


def trial(log, launch=0, **options):
    return Trial(
        launch=launch, options=options, status="wrong" if log is None else "ok", log_ratio=log
    )


def trials(log, *more, **options):
    return [trial(each, **options) for each in (log, *more)]


def test_one_lucky_trial_is_not_taken_and_what_adds_nothing_is_left_out():
    repeated = trials(-0.02, 0.04, 0.09, a=2)
    assert best_of([trial(0.05, a=1), *repeated], margin=0.0) == {"a": 2}
    assert best_of([trial(0.9, a=1), *repeated], margin=0.0) == {"a": 1}, "far more than noise"
    more = [*trials(0.2, 0.2, a=1, b=1), *trials(0.199, 0.2, a=1)]
    assert best_of(more, margin=0.005) == {"a": 1}
    assert best_of(more, margin=0.0) == {"a": 1, "b": 1}
    failed_once = trials(0.5, None, a=3)
    assert best_of([*trials(0.005, a=1), *failed_once], margin=0.005) == {}
    assert best_of([], margin=0.005) == {}


def test_proposals_follow_from_the_trials_and_what_failed_is_not_tried_again():
    settings, random, measured = list(options_of("horovod").values()), np.random.default_rng(1), []
    for launch in range(8):
        proposed = propose(settings, measured, 3, seed=1, repeat=launch > 5)
        assert proposed == propose(settings, measured, 3, seed=1, repeat=launch > 5)
        assert len({str(each) for each in proposed}) == 3 and {} not in proposed
        assert not any(each.options in proposed for each in tried_sets(measured) if each.failed)
        for options in proposed:
            log = 0.2 * (options.get("cycle_time_ms") == 10.0) + random.normal(0, 0.01)
            failed = options.get("cache_capacity") == 0
            measured.append(trial(None if failed else log, launch, **options))
    assert best_of(measured, margin=0.005)["cycle_time_ms"] == 10.0
    assert measured[-6].options in [each.options for each in measured[:-6]], (
        "the most promising is measured again"
    )


class Machine:
    """Answers a plan with records of a known truth, in the place of ranks."""

    def __init__(self, good=GOOD, statuses=None):
        self.plans, self.good, self.statuses = [], good, statuses or {}

    def speed(self, arm):
        return 1.0 + 0.2 * len(self.good.items() & arm.options.items())

    def __call__(self, plan, folder, *, is_shown=True):
        self.plans.append(plan)
        base = self.speed(plan.arms[plan.baseline])
        ratios = {name: self.speed(arm) / base for name, arm in plan.arms.items()}
        truth = Truth(ratios=ratios, statuses=self.statuses, noise=0.002)
        write_results(folder.root, truth=truth, plan=plan, seed=len(self.plans))
        return write_reports(folder)


def tuned(root, machine, asked=ASKED, **changes):
    """A whole tuning, and what it came to."""
    record_request(root, asked)
    assert search_and_confirm(
        Search(plan_of(**changes), root, asked), machine, sampler="a test's sampler"
    )
    return Tuning.model_validate_json((root / "tuning.json").read_text())


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    root, machine = tmp_path_factory.mktemp("tuned") / "out", Machine()
    return root, machine, tuned(root, machine)


def test_trials_take_turns_with_the_arms_defaults_within_the_minutes(searched):
    _, machine, tuning = searched
    launches = [plan for plan in machine.plans if plan.name == "tiny-search"]
    assert [len(plan.arms) for plan in launches] == [5] * 5
    assert all(plan.arms["hvd"].options == {} for plan in launches)
    assert len({plan.seed for plan in launches}) == 5, "each launch has its arms in another order"
    assert (len(tuning.trials), tuning.search_minutes) == (20, 20.0)


def test_the_gain_is_that_of_fresh_launches_and_each_setting_is_left_out_in_turn(searched):
    _, machine, tuning = searched
    assert tuning.best.items() >= GOOD.items()
    *_, confirmation, without = machine.plans
    confirmed = {name: arm.options for name, arm in confirmation.arms.items()}
    assert (confirmation.baseline, confirmed) == ("hvd", {"hvd": {}, "hvd-tuned": tuning.best})
    assert confirmation.measurement == plan_of().measurement, "as the plan says"
    assert tuning.gain.verdict == "faster"
    assert tuning.gain.throughput_ratio == pytest.approx(1.4, abs=0.05)
    assert without.baseline == "hvd-tuned"
    slower = {name for name, each in tuning.without.items() if each.verdict == "slower"}
    assert slower == GOOD.keys()


def plan_in(root):
    return check_plan(yaml.safe_load((root / "tuned.yaml").read_text()), source="tuned.yaml")


def test_the_plan_that_is_written_has_the_settings_and_the_other_arms(searched):
    root, _, tuning = searched
    plan = plan_in(root)
    assert plan.name == "tiny-tuned"
    assert {name: arm.options for name, arm in plan.arms.items()} == {"ddp": {}, "hvd": tuning.best}


def test_settings_that_do_nothing_are_not_found(tmp_path):
    tuning = tuned(tmp_path / "out", Machine(good={}), changed(ASKED, minutes=8.0))
    assert headline(tuning).startswith("No better settings found for hvd: ")
    assert (tuning.is_confirmed, tuning.without) == (False, {})
    assert plan_in(tmp_path / "out").arms["hvd"].options == {}


def test_a_search_goes_on_where_it_was(searched, tmp_path):
    root, machine, tuning = searched
    again = Search(plan_of(), root, ASKED)
    assert again.run(lambda *_: pytest.fail("nothing is left to measure")) == tuning.best
    interrupted = Machine()

    def interrupt(plan, folder):
        if len(interrupted.plans) == 2:
            raise KeyboardInterrupt
        return interrupted(plan, folder)

    with pytest.raises(KeyboardInterrupt):
        Search(plan_of(), tmp_path, ASKED).run(interrupt)
    assert Search(plan_of(), tmp_path, ASKED).run(interrupted) == tuning.best
    assert interrupted.plans == machine.plans[:5], "as if it had not been interrupted"


def test_an_arm_that_fails_with_its_own_settings_ends_the_search(tmp_path):
    search = Search(plan_of(), tmp_path, ASKED)
    with pytest.raises(
        LaunchError, match="arm 'hvd' cannot be tuned: with the plan's own settings it is failed"
    ):
        search.run(Machine(statuses={("hvd", 0): "failed"}))


@pytest.mark.parametrize(
    ("changes", "arm", "message"),
    [
        (
            {"arms": {"hvd": {"backend": "naive"}}},
            "hvd",
            "arm 'hvd' cannot be tuned: 'naive' states no setting",
        ),
        (
            {"arms": BOTH, "workload": "collectives"},
            "hvd",
            "cannot be tuned: it needs arms that train one workload in blocks",
        ),
    ],
)
def test_bad_input_is_one_message(tmp_path, changes, arm, message):
    plan = write_plan(tmp_path, **changes)
    (line,) = refused_command("tune", plan, "-o", tmp_path / "out", "--arm", arm).splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_search_and_a_missing_optuna_are_refused(tmp_path, monkeypatch):
    record_request(tmp_path / "out", ASKED)
    tune = ("tune", write_plan(tmp_path), "--arm", "ddp", "-o")
    assert "holds a search that was asked for otherwise" in refused_command(*tune, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'ringside[tune]'" in refused_command(*tune, tmp_path / "new")
