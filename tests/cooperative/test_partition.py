"""Decisions of one partition: they count at once, leave in their order, and are taken back together."""

from __future__ import annotations

import pytest

from flowshare.cooperative.decisions import DecisionState
from flowshare.cooperative.partition import CooperativePartition
from flowshare.cooperative.stored import encode, load
from flowshare.cooperative.types import (
    HASHES,
    WHOLE,
    CommitEntry,
    DropPending,
    KeyRange,
    PutClaims,
    PutRange,
    PutReaches,
    PutStable,
    Terms,
)
from flowshare.core_errors import (
    BoundReached,
    FencedMemberEpoch,
    FencedStateEpoch,
    InvalidRequest,
    NonEmptyGroup,
    OffsetOutOfRange,
)

TERMS = Terms(lease_ms=1_000)
ALL = KeyRange(0, HASHES)


def held(member="a", stable=0):
    """A partition that one member holds."""
    partition = CooperativePartition.new(stable)
    partition.confirm(partition.hold(member, 1, 1, WHOLE, 0, terms=TERMS))
    return partition


def entry(*ranges, epoch=1, keys=ALL):
    return CommitEntry(keys, epoch, ranges)


def stored(partition):
    """Encode and decode the partition's state, and return a partition made of that."""
    loaded = load((pair for pair in map(encode, partition.snapshot()) if pair[1] is not None), now_ms=0)
    assert loaded is not None
    assert loaded.repair == ()
    assert loaded.unreadable == 0
    return CooperativePartition(loaded.state)


def test_a_decision_counts_for_the_next_ones_before_it_is_durable():
    partition = CooperativePartition.new(0)
    first = partition.hold("a", 1, 1, WHOLE, 0, terms=TERMS)
    second = partition.hold("b", 1, 1, WHOLE, 0, terms=TERMS)

    assert [wait.holder for wait in second.answer.blocked] == ["a"]
    assert second.mutations == ()
    assert second.state is DecisionState.UNDER_WAY
    partition.confirm(first)
    partition.confirm(second)
    assert second.state is DecisionState.CONFIRMED


def test_what_writes_nothing_is_settled_at_once_where_nothing_is_under_way():
    partition = held()
    renewed = partition.hold("a", 1, 2, WHOLE, 10, terms=TERMS)

    assert renewed.state is DecisionState.CONFIRMED
    assert renewed.answer.ranges is None
    partition.confirm(renewed)
    partition.commit("a", 0, [entry((0, 1))], 10)
    assert partition.read().state is DecisionState.UNDER_WAY


def test_a_release_and_the_grant_that_follows_are_written_in_this_order():
    partition = held()
    released = partition.hold("a", 1, 2, [], 10, terms=TERMS)
    granted = partition.hold("b", 1, 1, WHOLE, 10, terms=TERMS)
    assert granted.answer.granted == WHOLE
    assert [type(one) for one in (*released.mutations, *granted.mutations)] == 2 * [
        PutClaims,
        PutReaches,
    ]

    assert partition.roll_back(released) == (released, granted)

    assert partition.claims.holds("a", 1, ALL)
    assert granted.state is DecisionState.ROLLED_BACK
    assert partition.roll_back(granted) == ()


def test_a_failed_write_takes_back_all_that_was_decided_since():
    partition = held(stable=5)
    before = partition.snapshot()
    good = partition.commit("a", 0, [entry((8, 9))], 10)
    decisions = [
        partition.commit("a", 0, [entry((5, 7), (10, 12))], 10),
        partition.reserve("a", 0, (7, 0), [entry((20, 21))], 10),
        partition.complete(7, 0, 10, committed=True),
        partition.move_log_start(9, 10),
        partition.leave("a", 10),
        partition.reset(3, 10),
        partition.hold("b", 2, 1, WHOLE, 10, terms=TERMS),
        partition.truncate(1, 10),
    ]
    assert partition.progress == (1, 2, 0, 1)

    assert partition.roll_back(decisions[0]) == tuple(decisions)

    assert partition.progress == (5, 0, 1, 9)
    partition.confirm(good)
    assert partition.snapshot() == (before[0], PutRange(8, 9, 0), *before[1:])


def test_decisions_are_confirmed_in_their_order():
    partition = held()
    first = partition.commit("a", 0, [entry((0, 1))], 10)
    second = partition.commit("a", 0, [entry((1, 2))], 10)
    with pytest.raises(AssertionError, match="in their order"):
        partition.confirm(second)
    with pytest.raises(AssertionError, match="all decisions are settled"):
        partition.snapshot()
    partition.confirm(first)
    partition.roll_back(second)
    with pytest.raises(AssertionError, match="once"):
        partition.confirm(second)


def test_what_is_stored_is_what_is_there():
    partition = held(stable=3)
    partition.confirm(partition.commit("a", 0, [entry((5, 6), (8, 10))], 0))
    partition.confirm(partition.reserve("a", 0, (7, 2), [entry((20, 22), keys=KeyRange(3, 9))], 0))
    again = stored(partition)

    assert again.snapshot() == partition.snapshot()
    assert again.pending.state == partition.pending.state


def test_a_step_that_is_refused_changes_nothing_not_even_what_lapsed():
    partition = held()
    before = partition.claims.state
    late = 5_000
    for error, step in (
        (FencedStateEpoch, lambda: partition.commit("a", 1, [], late)),
        (InvalidRequest, lambda: partition.sequential(-1, late)),
        (OffsetOutOfRange, lambda: partition.sequential(9, late, log_end=8)),
        (FencedMemberEpoch, lambda: partition.reserve("a", 0, (1, 0), [entry((0, 1))], late)),
        (FencedStateEpoch, lambda: partition.reserve("a", 1, (1, 0), [], late)),
        (InvalidRequest, lambda: partition.reset(-1, late)),
    ):
        with pytest.raises(error):
            step()
        assert partition.claims.state is before


def test_entries_are_fenced_one_by_one():
    partition = held()
    answer = partition.commit("a", 0, [entry((0, 1)), entry((5, 6), epoch=0), entry((1, 2))], 10).answer

    assert answer.fenced == (1,)
    assert answer.progress.stable == 2
    assert answer.progress.furthest == 2


def test_a_transaction_that_could_not_be_committed_is_refused_while_it_is_open():
    partition = held()
    far = entry((200_001, 200_002))
    with pytest.raises(BoundReached):
        partition.reserve("a", 0, (7, 0), [far], 10)
    with pytest.raises(OffsetOutOfRange):
        partition.reserve("a", 0, (7, 0), [entry((0, 9))], 10, log_end=8)
    assert partition.progress.furthest == 0
    assert not partition.pending

    answer = partition.complete(7, 0, 10, committed=True)
    assert (answer.answer.ranges, answer.mutations) == ((), ())


def test_the_end_of_a_transaction_writes_what_it_committed_first():
    partition = held()
    partition.confirm(partition.reserve("a", 0, (7, 0), [entry((0, 2), (4, 5))], 10))
    assert partition.read().answer.unstable

    decision = partition.complete(7, 0, 10, committed=True)

    assert decision.mutations == (PutRange(4, 5, 0), PutStable(2, 0), DropPending(7))
    assert decision.answer.ranges == ((0, 2), (4, 5))


def test_only_a_partition_that_nobody_uses_is_reset():
    partition = held()
    with pytest.raises(NonEmptyGroup, match=r"\(a\): stop the group's workers"):
        partition.reset(0, 999)
    partition.confirm(partition.reset(7, 1_000))
    assert partition.progress == (7, 1, 0, 7)
    partition.confirm(partition.hold("b", 2, 1, WHOLE, 1_000, terms=TERMS))
    assert partition.in_use
    with pytest.raises(NonEmptyGroup):
        partition.reset(0, 1_000)
    partition.confirm(partition.leave("b", 1_000))
    partition.confirm(partition.reserve("b", 1, (7, 0), [], 1_000))
    with pytest.raises(NonEmptyGroup):
        partition.reset(0, 1_000)


def test_a_cut_of_the_log_takes_what_is_pending_behind_it_and_fences_what_was_read():
    partition = held()
    partition.confirm(partition.reserve("a", 0, (7, 0), [entry((2, 9))], 0))

    partition.confirm(partition.truncate(4, 0))

    assert partition.pending.ranges() == [(2, 4)]
    with pytest.raises(FencedStateEpoch, match="its epoch is 1, not 0"):
        partition.commit("a", 0, [entry((0, 1))], 0)


def test_the_answer_tells_what_a_member_is_to_know_before_it_begins():
    partition = held(stable=4)
    partition.confirm(partition.commit("a", 0, [entry((6, 8))], 0))
    partition.confirm(partition.reserve("a", 0, (7, 0), [entry((9, 10), keys=KeyRange(0, 5))], 0))

    renewed = partition.hold("a", 1, 2, [(0, 50)], 0, terms=TERMS)
    asked = partition.hold("a", 1, 3, [(0, 50)], 0, terms=TERMS, ranges=True)
    granted = partition.hold("b", 1, 1, [(50, 60)], 0, terms=TERMS)

    assert renewed.answer.ranges is None
    assert asked.answer.ranges is not None
    assert granted.answer.ranges is not None
    assert granted.answer.ranges.pairs() == [(6, 8)]
    assert granted.answer.pending == ((9, 10),)
    assert granted.answer.progress == (4, 0, 1, 8)
    told = partition.read(ranges=True).answer
    assert told.ranges is not None
    assert [claim.member for claim in told.claims] == ["a", "b"]
    assert partition.next_deadline_ms() == 1_000


@pytest.mark.parametrize("lease_ms", [999, 600_001])
def test_a_lease_has_bounds(lease_ms):
    with pytest.raises(InvalidRequest, match="1000 to 600000 ms"):
        CooperativePartition.new(0).hold("a", 1, 1, WHOLE, 0, terms=Terms(lease_ms=lease_ms))
