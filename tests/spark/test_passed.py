"""Every offset before a start offset was in a committed batch, or is told once."""

from __future__ import annotations

import random

from flowshare.spark.source.progress import Passed
from flowshare.spark.source.ranges import Range

PLACE = ("t", 0)


def at(first, last, partition=0):
    return Range("t", partition, first, last)


def test_what_no_batch_held_is_told_once():
    passed = Passed({PLACE: 10})
    passed.add([at(10, 19), at(25, 29)])

    assert passed.advance({PLACE: 30}) == [at(20, 24)]
    assert passed.advance({PLACE: 30}) == []
    assert list(passed.ranges()) == []


def test_a_partition_that_is_new_or_whose_start_went_back_begins_afresh():
    passed = Passed()

    assert passed.advance({PLACE: 100}) == []
    assert passed.advance({PLACE: 5}) == []
    assert passed.advance({PLACE: 6}) == [at(5, 5)]


def test_a_partition_that_is_acquired_from_is_known_from_there_on():
    passed = Passed({PLACE: 3})
    passed.begin([at(9, 12), at(7, 8), at(5, 6, partition=1), at(0, 1, partition=1)])

    assert passed.starts == {PLACE: 3, ("t", 1): 0}


def test_the_state_survives_its_text():
    passed = Passed({PLACE: 0, ("t", 1): 0})
    passed.add([at(3, 5), at(0, 7, partition=1)])
    again = Passed(passed.starts, passed.ranges())

    assert again.advance({PLACE: 6, ("t", 1): 8}) == passed.advance({PLACE: 6, ("t", 1): 8}) == [at(0, 2)]


def test_every_offset_is_in_a_batch_or_told_once():
    for seed in range(50):
        dice = random.Random(seed)
        offsets = set(range(60))
        taken = {offset for offset in offsets if dice.random() < 0.8}
        passed, start, told = Passed({PLACE: 0}), 0, []
        left = sorted(taken)
        while start < 60:
            batch, left = left[:7], left[7:]
            passed.add([at(one, one) for one in batch])
            bound = left[0] if left else 60  # a broker does not pass what is not finished
            start = dice.randint(start, bound)
            told += passed.advance({PLACE: start})
            start += bound == start and not left

        assert {offset for one in told for offset in range(one.first, one.last + 1)} == offsets - taken, f"seed {seed}"
