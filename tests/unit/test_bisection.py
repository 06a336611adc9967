"""Where a bisection looks next, and what it may name: states whose truth is known, nothing is
started."""

from __future__ import annotations

import pytest

from runners.scripts.bisect_command import LOOKS, MAX_SKIPPED, Seen, judged, search, steps


def bad_from(first, *, undecided=()):
    """Looks that take all the minutes they are given, and see the truth but for some states, of
    which there is no figure."""

    def look(at, minutes):
        return (
            Seen(minutes=minutes)
            if at in undecided
            else Seen(minutes=minutes, is_bad=at >= first, low=0.9, high=1.0)
        )

    return look


@pytest.mark.parametrize("last", [1, 2, 3, 24])
def test_each_first_bad_state_is_found_in_the_steps_that_are_promised(last):
    for first in range(1, last + 1):
        known: dict[int, Seen] = {}
        assert search(last, bad_from(first), known, minutes=60) == (first - 1, first)
        assert len(known) <= steps(last)


def test_states_without_a_figure_are_skipped():
    known: dict[int, Seen] = {}
    assert search(24, bad_from(13, undecided=(11, 12)), known, minutes=60) == (10, 13)
    assert sum(state.minutes for state in known.values()) <= 60


def test_undecided_states_are_looked_at_again_while_there_is_time_and_in_a_later_session():
    looks: list[int] = []
    known: dict[int, Seen] = {}

    def look(at, minutes):
        looks.append(at)
        is_decided = minutes > (30 if at == 12 else 1)
        return Seen(minutes=minutes, is_bad=at >= 13 if is_decided else None, low=0.9, high=1.0)

    good, bad = search(24, look, known, minutes=40)
    assert good < 12 and bad == 13
    assert looks.count(12) > LOOKS
    assert sum(state.minutes for state in known.values()) <= 40 * 1.001
    assert search(24, look, known, minutes=120) == (12, 13), "more minutes decide what was skipped"


def test_no_look_begins_when_the_minutes_are_spent():
    """A look takes 2 minutes at least, as three launches do."""
    known: dict[int, Seen] = {}

    def look(at, minutes):
        return Seen(minutes=max(minutes, 2.0), is_bad=True if at == 24 else None)

    for _ in range(2):
        assert search(24, look, known, minutes=3) == (0, 24)
        assert list(known) == [24, 12], "the second is begun with a minute left"


@pytest.mark.parametrize("is_bad", [False, None])
def test_nothing_is_named_where_the_bad_state_is_not_shown_to_be(is_bad):
    known: dict[int, Seen] = {}
    assert search(
        24, lambda at, minutes: Seen(minutes=minutes, is_bad=is_bad), known, minutes=60
    ) == (0, None)
    assert list(known) == [24]


def test_no_more_states_are_skipped_than_the_error_is_shared_among():
    known: dict[int, Seen] = {}
    search(1000, bad_from(2, undecided=range(3, 999)), known, minutes=1e6)
    assert len(known) <= steps(1000) + MAX_SKIPPED


@pytest.mark.parametrize(
    ("low", "high", "is_bad"),
    [(0.9, 0.97, True), (0.99, 1.01, False), (0.97, 0.99, None), (None, None, None)],
)
def test_an_interval_that_holds_the_threshold_decides_nothing(low, high, is_bad):
    assert judged(low, high, 0.985) is is_bad
