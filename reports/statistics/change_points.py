"""Where the level of a series changes. Numbers in, places out.

A segment is split where the two sides' means differ most, in units of their pooled deviation, if Student's t of it exceeds what any
of the possible places would reach by chance (Worsley, JASA 74, 1979, with Bonferroni's bound); then either side again (Vostrikova's
binary segmentation, 1981). The deviation is that of whole results, so the drift of a machine from day to day is in it.
"""

from __future__ import annotations

import numpy as np

from reports.statistics.student import Array, student_t

FEWEST = 4
"""Values of a segment that can be split: fewer tell hardly anything of how much they vary."""


def change_points(values: Array, *, confidence: float) -> list[int]:
    """The places at which another level begins. ``confidence``: with which a segment without any change is left whole."""
    place = _split(values, confidence)
    if place is None:
        return []
    later = change_points(values[place:], confidence=confidence)
    return [*change_points(values[:place], confidence=confidence), place, *(place + one for one in later)]


def _split(values: Array, confidence: float) -> int | None:
    number = len(values)
    if number < FEWEST or (values == values[0]).all():
        return None
    places = np.arange(1, number)
    sums, squares = np.cumsum(values)[:-1], float((values**2).sum())
    before, after = sums / places, (values.sum() - sums) / (number - places)
    left = np.maximum(squares - places * before**2 - (number - places) * after**2, 1e-24) / (number - 2)
    t = np.abs(after - before) / np.sqrt(left * (1 / places + 1 / (number - places)))
    best = int(np.argmax(t))
    return int(places[best]) if t[best] > student_t(1 - (1 - confidence) / (number - 1), number - 2) else None
