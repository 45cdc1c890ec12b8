"""Which records the dead letters of a task are of."""

from __future__ import annotations

from flowshare.spark.source.dead_letters import runs_of
from flowshare.spark.source.ranges import Range

PLACE = ("t", 0)


def test_neighbours_of_one_delivery_are_one_range():
    held = [Range(*PLACE, 5, 9, 2), Range(*PLACE, 0, 4, 1)]

    assert runs_of(PLACE, [1, 2, 4, 5, 6, 9], held) == [
        Range(*PLACE, 1, 2, 1),
        Range(*PLACE, 4, 4, 1),
        Range(*PLACE, 5, 6, 2),
        Range(*PLACE, 9, 9, 2),
    ]


def test_what_is_not_held_any_more_has_no_known_delivery():
    assert runs_of(PLACE, [3, 4, 20], [Range(*PLACE, 4, 10, 3)]) == [
        Range(*PLACE, 3, 3, 0),
        Range(*PLACE, 4, 4, 3),
        Range(*PLACE, 20, 20, 0),
    ]
