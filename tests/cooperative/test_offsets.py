"""The committed set against a plain set of numbers, and what is left of a commit after a crash."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.cooperative.offsets import RANGES_MAX, SPAN_MAX, CommittedOffsets
from flowshare.cooperative.stored import encode, load
from flowshare.cooperative.types import DropRange, PutRange, PutStable
from flowshare.core_errors import BoundReached, InvalidRequest, OffsetOutOfRange
from tests.cooperative.model import CommittedSet, check_form, members
from tests.sim.seeds import drawn

one_range = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
some_ranges = st.lists(one_range, max_size=8)
requests = st.lists(some_ranges, max_size=8)
no_deadline = settings(deadline=None, max_examples=50)


def same(offsets, model):
    check_form(offsets)
    assert (offsets.stable, offsets.ranges()) == (model.stable, model.ranges())


@no_deadline
@given(st.integers(0, 20), requests)
def test_commits_are_the_union(stable, batches):
    offsets, model = CommittedOffsets(stable), CommittedSet(stable)
    for ranges in batches:
        offsets.commit(ranges)
        model.commit(ranges)
        same(offsets, model)


@no_deadline
@given(st.integers(0, 20), requests, st.randoms(use_true_random=False))
def test_order_splitting_and_repetition_of_commits_do_not_matter(stable, batches, chooser):
    once, other = CommittedOffsets(stable), CommittedOffsets(stable)
    singles = [[(at, at + 1)] for ranges in batches for first, end in ranges for at in range(first, end)]
    twice = [*singles, *batches]
    chooser.shuffle(twice)
    for ranges in batches:
        once.commit(ranges)
    for ranges in twice:
        other.commit(ranges)

    assert (other.stable, other.ranges()) == (once.stable, once.ranges())


@no_deadline
@given(st.integers(0, 20), some_ranges, some_ranges)
def test_a_commit_of_what_is_committed_writes_nothing(stable, before, ranges):
    offsets = CommittedOffsets(stable, before)
    offsets.commit(ranges)

    assert offsets.commit(ranges).mutations == ()


@no_deadline
@given(st.integers(0, 20), some_ranges, requests)
def test_changes_are_undone_from_the_newest_to_the_oldest(stable, before, batches):
    offsets = CommittedOffsets(stable, before)
    seen = []
    for number, ranges in enumerate(batches):
        state = (offsets.stable, offsets.ranges(), offsets.reset_epoch)
        step = (offsets.commit, offsets.commit, offsets.commit, offsets.truncate, offsets.move_log_start)[number % 5]
        seen.append((state, step(ranges if number % 5 < 3 else 10 * number)))
    for state, change in reversed(seen):
        offsets.undo(change)
        assert (offsets.stable, offsets.ranges(), offsets.reset_epoch) == state


@no_deadline
@given(st.integers(0, 20), some_ranges, st.integers(0, 80), st.integers(0, 80))
def test_what_is_not_committed_is_told_as_it_is(stable, before, first, length):
    offsets, model = CommittedOffsets(stable, before), CommittedSet(stable)
    model.commit(before)
    wanted = [at for at in range(first, first + length) if at not in model.offsets]

    assert [at for low, end in offsets.uncommitted(first, first + length) for at in range(low, end)] == wanted
    assert [at for at in range(90) if offsets.is_committed(at)] == [at for at in range(90) if at in model.offsets]
    assert offsets.columns.pairs() == offsets.ranges()


@no_deadline
@given(st.integers(0, 20), some_ranges, st.integers(0, 90))
def test_a_log_start_commits_what_is_before_it_and_counts_what_is_lost(stable, before, log_start):
    offsets, model = CommittedOffsets(stable, before), CommittedSet(stable)
    model.commit(before)
    lost = sum(at not in model.offsets for at in range(log_start))
    model.commit([(0, log_start)])

    change = offsets.move_log_start(log_start)

    assert change.lost == lost
    same(offsets, model)


@no_deadline
@given(st.integers(0, 40), some_ranges, st.integers(0, 90))
def test_a_cut_forgets_what_is_behind_it_and_begins_a_new_epoch(stable, before, end):
    offsets, model = CommittedOffsets(stable, before, 3), CommittedSet(stable)
    model.commit(before)
    model.offsets = {offset for offset in model.offsets if offset < end}

    change = offsets.truncate(end)

    assert members(offsets) == model.offsets
    assert offsets.reset_epoch == 4
    assert change.mutations[0] == PutStable(offsets.stable, 4)


def recovered(store):
    loaded = load(store.items(), now_ms=0)
    assert loaded is not None
    return loaded.state.offsets


def put(store, mutation):
    key, value = encode(mutation)
    if value is None:
        store.pop(key, None)
    else:
        store[key] = value


def crash_prefixes(seed, commits):
    """Random commits, each recovered from every prefix of its mutations."""
    chooser = random.Random(seed)
    offsets = CommittedOffsets(0)
    store = dict([encode(PutStable(0, 0))])
    after = members(offsets)
    for _ in range(commits):
        if offsets.stable > 150:
            offsets = CommittedOffsets(0)
            store, after = dict([encode(PutStable(0, 0))]), set()
        before = after
        pairs = [(at, at + chooser.randint(1, 9)) for at in chooser.choices(range(180), k=chooser.randint(1, 4))]
        change = offsets.commit(pairs)
        after = members(offsets)
        for mutation in change.mutations:
            put(store, mutation)
            found = members(recovered(store))
            assert before <= found <= after, (seed, pairs, change.mutations, mutation)
        assert members(recovered(store)) == after


def test_what_is_recovered_after_a_crash_is_between_before_and_after():
    crash_prefixes(drawn(), 2_000)


@pytest.mark.slow
def test_what_is_recovered_after_a_crash_is_between_before_and_after_100_000_times():
    crash_prefixes(drawn(), 100_000)


def test_deleting_before_writing_would_lose_commits():
    offsets = CommittedOffsets(0, [(5, 6), (7, 8)])
    store = dict(encode(one) for one in (PutStable(0, 0), PutRange(5, 6, 0), PutRange(7, 8, 0)))
    wrong = sorted(offsets.commit([(4, 5), (6, 7)]).mutations, key=lambda one: not isinstance(one, DropRange))

    put(store, wrong[0])

    assert not members(recovered(store)) >= {5, 7}


@no_deadline
@given(some_ranges, some_ranges, st.integers(0, 80), st.booleans(), st.data())
def test_a_crash_within_a_reset_or_a_cut_never_leaves_too_much(before, committed, at, cut, data):
    offsets = CommittedOffsets(0, before)
    offsets.commit(committed)
    kept = {offset for offset in members(offsets) if offset < at}
    store = dict(
        encode(one) for one in (PutStable(offsets.stable, 0), *(PutRange(*one, 0) for one in offsets.ranges()))
    )
    change = offsets.truncate(at) if cut else offsets.reset(at)
    allowed = kept if cut else set(range(at))
    for mutation in change.mutations[: data.draw(st.integers(1, len(change.mutations)))]:
        put(store, mutation)

    found = recovered(store)

    assert members(found) <= allowed
    assert found.reset_epoch == 1


def test_all_orders_of_six_ranges_end_alike():
    ranges = [(first, first + 10) for first in range(0, 60, 10)]
    for order in itertools.permutations(ranges):
        offsets = CommittedOffsets(0)
        for one in order:
            offsets.commit([one])
        assert (offsets.stable, offsets.count) == (60, 0)


@pytest.mark.slow
def test_every_second_one_of_140_000_offsets_stops_at_the_bound_and_goes_on():
    offsets = CommittedOffsets(0)
    offsets.commit([(at, at + 1) for at in range(1, 2 * RANGES_MAX, 2)])
    assert offsets.count == RANGES_MAX
    for at in range(2 * RANGES_MAX + 1, 140_000, 2):
        with pytest.raises(BoundReached, match="commit what lies between them first"):
            offsets.commit([(at, at + 1)])
    for at in range(0, 20_002, 2):
        offsets.commit([(at, at + 1)])
    offsets.commit([(at, at + 1) for at in range(2 * RANGES_MAX + 1, 140_000, 2)])

    assert (offsets.stable, offsets.count, offsets.furthest) == (20_002, 59_999, 140_000)


def test_a_commit_far_behind_the_stable_offset_is_refused_until_that_moves():
    offsets = CommittedOffsets(10)
    with pytest.raises(BoundReached, match="more than 200000 behind 10"):
        offsets.commit([(SPAN_MAX + 10, SPAN_MAX + 11)])
    assert (offsets.stable, offsets.ranges()) == (10, [])

    offsets.commit([(10, 11), (SPAN_MAX + 10, SPAN_MAX + 11)])

    assert (offsets.stable, offsets.span) == (11, SPAN_MAX)
    with pytest.raises(BoundReached):
        offsets.commit([(SPAN_MAX + 11, SPAN_MAX + 12)])
    offsets.commit([(SPAN_MAX, SPAN_MAX + 1)])


def test_what_ended_in_a_transaction_is_committed_beyond_all_bounds():
    offsets = CommittedOffsets(0, [(2, 3)], ranges_max=1, span_max=10)

    offsets.commit([(50, 51)], bounded=False)

    assert offsets.ranges() == [(2, 3), (50, 51)]


def test_what_is_ahead_is_what_is_committed_behind_the_stable_offset():
    offsets = CommittedOffsets(10, [(12, 15), (20, 21)])

    assert offsets.ahead == 4
    offsets.commit([(10, 12), (30, 40)])
    assert (offsets.stable, offsets.ahead) == (15, 11)


def test_what_fills_a_gap_goes_though_more_ranges_are_left_than_may_be():
    offsets = CommittedOffsets(0, [(2, 3), (4, 5), (6, 7), (8, 9)], ranges_max=1)

    offsets.commit([(3, 4)])
    offsets.commit([(6, 7)])

    assert offsets.ranges() == [(2, 5), (6, 7), (8, 9)]
    with pytest.raises(BoundReached):
        offsets.commit([(10, 11)])


@pytest.mark.parametrize("pair", [(5, 5), (6, 5), (-1, 5)])
def test_an_empty_or_negative_range_is_refused(pair):
    offsets = CommittedOffsets(0)
    with pytest.raises(InvalidRequest, match="no range of offsets"):
        offsets.commit([(7, 9), pair])
    assert offsets.ranges() == []


def test_steps_to_a_negative_offset_or_behind_the_end_of_the_log_are_refused():
    offsets = CommittedOffsets(0)
    for step in (offsets.sequential, offsets.reset):
        with pytest.raises(InvalidRequest, match="negative"):
            step(-1)
    with pytest.raises(OffsetOutOfRange, match="the log ends at 4"):
        offsets.sequential(5, log_end=4)
    with pytest.raises(OffsetOutOfRange, match="offset 4 cannot"):
        offsets.commit([(0, 5)], log_end=4)
    offsets.sequential(4, log_end=4)
    assert offsets.stable == 4
