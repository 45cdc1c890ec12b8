"""Settles: commits with outputs, which are taken whole, and only while none of their offsets is committed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flowshare.cooperative.ranges import holes, total
from flowshare.core_errors import ConcurrentTransactions, FencedStateEpoch, OffsetOutOfRange
from tests.cooperative.test_partition import entry, held, stored


def settle(partition, *ranges, member="a", reset_epoch=0, **how):
    decision = partition.settle(member, reset_epoch, [entry(*ranges)], 10, **how)
    partition.confirm(decision)
    return decision.answer


def test_a_settle_commits_what_it_names():
    partition = held()

    answer = settle(partition, (0, 2), (5, 6))

    assert answer.taken
    assert (partition.offsets.stable, partition.offsets.ranges()) == (2, [(5, 6)])


def test_a_settle_of_what_is_committed_already_commits_nothing_and_says_what_it_is():
    partition = held()
    settle(partition, (0, 2), (5, 6))

    answer = settle(partition, (1, 3), (5, 7))

    assert not answer.taken
    assert answer.committed == ((1, 2), (5, 6))
    assert (partition.offsets.stable, partition.offsets.ranges()) == (2, [(5, 6)])


def test_a_settle_of_who_does_not_hold_the_keys_commits_nothing():
    partition = held()

    answer = settle(partition, (0, 2), member="b")

    assert answer.fenced == ((0, 2),)
    assert partition.offsets.stable == 0


def test_a_settle_behind_the_log_or_of_another_epoch_is_refused():
    partition = held()

    with pytest.raises(OffsetOutOfRange):
        settle(partition, (0, 9), log_end=5)
    with pytest.raises(FencedStateEpoch):
        settle(partition, (0, 1), reset_epoch=7)
    assert partition.offsets.stable == 0


def test_what_is_settled_apart_is_nobodys_until_it_is_known_what_became_of_its_outputs():
    partition = held()

    assert settle(partition, (0, 2), apart=-1).taken
    assert partition.offsets.stable == 0
    with pytest.raises(ConcurrentTransactions):
        settle(partition, (1, 2))
    assert stored(partition).pending.state == {}, "the log of the leader knows it"

    partition.confirm(partition.settled_apart(-1, 20, committed=True))
    assert partition.offsets.stable == 2
    assert settle(partition, (1, 2)).committed == ((1, 2),)


def test_what_was_settled_apart_and_came_to_nothing_may_be_settled_again():
    partition = held()
    settle(partition, (0, 2), apart=-1)

    partition.confirm(partition.settled_apart(-1, 20, committed=False))

    assert partition.offsets.stable == 0
    assert settle(partition, (0, 2)).taken


@pytest.mark.parametrize(
    ("ranges", "waits"),
    [([(0, 1)], False), ([(1, 2)], True), ([(3, 4), (0, 1)], False)],
    ids=["the first", "a later one", "the first among others"],
)
def test_a_settle_waits_while_something_before_its_first_offset_is_not_committed(ranges, waits):
    assert held().waits("a", 0, [entry(*ranges)]) is waits


def test_a_settle_that_would_not_be_taken_waits_for_nothing():
    partition = held()
    settle(partition, (4, 5))

    assert not partition.waits("b", 0, [entry((2, 3))])
    assert not partition.waits("a", 0, [entry((4, 5))])
    assert not partition.waits("a", 7, [entry((2, 3))])


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_again_or_at_once_outputs_of_an_offset_are_written_once_and_with_its_commit(seed):
    chance = random.Random(seed)
    partition, written, plain = held(), Counter(), set()
    apart: dict[int, range] = {}
    for number in range(1, 120):
        first = chance.randrange(25)
        offsets = range(first, first + chance.randint(1, 4))
        what = chance.choice(("settle", "apart", "end", "commit"))
        if what == "commit":
            plain.update(offset for offset in offsets if not partition.offsets.is_committed(offset))
            partition.confirm(partition.commit("a", 0, [entry((offsets.start, offsets.stop))], 10))
        elif what == "end" and apart:
            ended, committed = chance.choice(sorted(apart)), chance.random() < 0.5
            settled = apart.pop(ended)
            written.update(settled if committed else ())
            partition.confirm(partition.settled_apart(ended, 10, committed=committed))
        else:
            key = -number if what == "apart" else None
            try:
                taken = settle(partition, (offsets.start, offsets.stop), apart=key).taken
            except ConcurrentTransactions:
                continue
            if taken and key is not None:
                apart[key] = offsets
            elif taken:
                written.update(offsets)

    assert set(written.values()) <= {1}
    assert all(partition.offsets.is_committed(offset) for offset in {*written, *plain})
    assert sum(partition.offsets.is_committed(offset) for offset in range(30)) == len({*written, *plain})


def test_holes_and_sums_of_ranges():
    assert holes(2, 8, [3, 4, 7]) == [(2, 3), (5, 7)]
    assert holes(2, 4, [2, 3]) == []
    assert total([(0, 2), (5, 6)]) == 3
