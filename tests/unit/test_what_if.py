"""What if: bounds by hand, answers to records of known truth, and what the report and the command
show of them."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from reports.what_if import SCENARIOS, ArmTerms, links_of
from runners.results_commands import parse_rate
from runners.results_commands import project as command
from tests.kit.refusals import refusal

BY_NAME = {each.name: each for each in SCENARIOS}


def terms_of(*, link_rate=None, link_bits=8.0, **terms):
    """One launch: a step of 10 s, 4 of them exposed, 2 besides backward."""
    known = {
        "step": 10.0,
        "compute": 3.0,
        "data_wait": 0.5,
        "library_overhead": 1.5,
        "imbalance": 1.0,
        "exposed_exchange": 4.0,
    }
    return ArmTerms(
        terms=pd.DataFrame([known | terms]),
        quiet_s=pd.Series([2.0]),
        link_bits=link_bits,
        link_rate=link_rate,
        throughput=100.0,
    )


def bounds(steps):
    return steps if isinstance(steps, str) else tuple(float(each.iloc[0]) for each in steps)


@pytest.mark.parametrize(
    ("measured", "rate", "expected"),
    [
        # 8 s on the link: as long as the step where all of backward hides it, else twice 6 s more than now
        (
            4,
            1,
            (10.0, 22.0),
        ),
        # of now 5 s one way, both cannot take more than the 8 s that are not quiet
        (
            1.6,
            1,
            (10.0, 14.8),
        ),
        (1, 8, (6.0, 6.5)),  # 4 of now 8 s cannot be hidden in the 4 s of backward, and become 0.5
        (None, 10**9, (10.0, 10.0)),
    ],
)
def test_a_link_of_another_rate_has_the_bounds_by_hand(measured, rate, expected):
    """Both ways were thought to be used at once.

    Open MPI over TCP uses one after the other: half of the answers were wrong."""
    links = links_of(rate * 10**9)
    steps = terms_of(link_rate=measured and measured * 10**9, link_bits=8e9)
    assert bounds(links.steps(steps)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scenario", "terms", "expected"),
    [
        ("a free network", {}, (6.0, 6.0)),
        ("a free network", {"exposed_exchange": -1.0}, (10.0, 10.0)),
        ("no stragglers", {}, (9.0, 9.0)),
        ("no library overhead", {}, (8.5, 8.5)),
        # never faster than without exchange
        (
            "no library overhead",
            {"exposed_exchange": -1.0},
            (9.5, 9.5),
        ),
        (
            "no library overhead",
            {"library_overhead": float("nan")},
            "there is no floor to tell it from computing",
        ),
    ],
)
def test_scenarios_have_the_bounds_by_hand(scenario, terms, expected):
    steps = bounds(BY_NAME[scenario].steps(terms_of(**terms)))
    assert steps == (expected if isinstance(expected, str) else pytest.approx(expected))


def test_a_term_below_zero_has_nothing_to_give_as_far_as_its_launches_can_tell():
    """It was said to give 1.000 (1.000 to 1.000), where launches differed by more than the term."""
    launches = [terms_of(library_overhead=overhead).terms for overhead in (-3.0, -1.0, 1.0)]
    terms = replace(terms_of(), terms=pd.concat(launches, ignore_index=True))
    shortest, longest = BY_NAME["no library overhead"].steps(terms)
    assert list(shortest) == list(longest) == [12.0, 10.0, 8.0]


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [
        ("100kbit", 10**5),
        ("100gbit", 10**11),
    ],
)
def test_rates_are_read_as_bits_per_second(text, bits_per_s):
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize(
    "text",
    [
        "1 gb",
        "99kbit",
        "101gbit",
        "1gbit; reboot",
        "٣gbit",
    ],
)
def test_other_rates_are_refused(text):
    with pytest.raises(ValueError, match="give 100kbit to 100gbit"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"to": "32", "is_what_if": True}, "give one of both"),
        ({"measured_link": "1gbit"}, "give the rates to answer for, such as --link 10gbit"),
        ({"links": "1gbit", "measured_link": "1gbit,2gbit"}, "give one rate"),
        ({}, "nothing says what to project to"),
    ],
)
def test_what_cannot_be_answered_is_refused(tmp_path, given, message):
    assert message in refusal(command, tmp_path, **given)
