"""Slots are balanced, stay where they are, and neighbours have different owners."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flowshare.slots.assignor import EligibleWorker, assign


def after(slots, owners, nodes, generation=1):
    """The next round: those of `nodes` that had slots tell so."""
    held = {node: [slot for slot, owner in owners.items() if owner == node] for node in nodes}
    return assign(slots, [EligibleWorker(node, held[node], generation if held[node] else -1) for node in nodes])


def moved(before, now):
    return sum(before[slot] != now[slot] for slot in now)


def test_nobody_gets_nothing():
    assert assign(8, []) == {}


@pytest.mark.parametrize(("slots", "workers"), [(32, 1), (32, 3), (32, 32), (5, 9)])
def test_the_first_assignment_is_balanced_and_complete(slots, workers):
    owners = assign(slots, [EligibleWorker(node) for node in range(workers)])

    counts = Counter(dict.fromkeys(range(workers), 0))
    counts.update(owners.values())
    assert sorted(owners) == list(range(slots))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_same_members_keep_what_they_have():
    owners = assign(32, [EligibleWorker(node) for node in range(5)])

    assert after(32, owners, range(5)) == owners


def test_whoever_comes_takes_its_share_and_no_more():
    owners = assign(32, [EligibleWorker(node) for node in range(4)])

    now = after(32, owners, range(5))

    assert moved(owners, now) == 6
    assert Counter(now.values())[4] == 6


def test_when_one_leaves_only_its_slots_move():
    owners = assign(32, [EligibleWorker(node) for node in range(5)])
    lost = [slot for slot, owner in owners.items() if owner == 2]

    now = after(32, owners, [0, 1, 3, 4])

    assert {slot for slot in owners if owners[slot] != now[slot]} == set(lost)


def test_a_claim_keeps_a_slot_where_nobody_was_assigned_it():
    owners = assign(4, [EligibleWorker(1), EligibleWorker(2, claims={0: 7, 3: 2})])

    assert owners[0] == owners[3] == 2


def test_of_two_claims_the_higher_counts():
    owners = assign(2, [EligibleWorker(1, claims={0: 7}), EligibleWorker(2, claims={0: 8})])

    assert owners[0] == 2


def test_a_slot_that_was_just_given_away_is_not_taken_back_before_it_is_claimed():
    giver = EligibleWorker(1, assigned=[0, 1], generation=5, claims={0: 3, 1: 3, 2: 3, 3: 3})
    taker = EligibleWorker(2, assigned=[2, 3], generation=5)

    assert assign(4, [giver, taker]) == {0: 1, 1: 1, 2: 2, 3: 2}


def test_what_lies_in_a_cache_counts_less_than_a_claim():
    owners = assign(4, [EligibleWorker(1, assigned=[0, 1, 2, 3]), EligibleWorker(2, claims={1: 1})])

    assert owners[1] == 2
    assert owners[0] == 1


def test_of_two_assignments_the_later_counts():
    owners = assign(
        2, [EligibleWorker(1, assigned=[0], generation=9), EligibleWorker(2, assigned=[0, 1], generation=4)]
    )

    assert owners == {0: 1, 1: 2}


@pytest.mark.parametrize("seed", range(20))
def test_through_joins_and_leaves_no_more_slots_move_than_have_to(seed):
    draw = random.Random(seed)
    slots, nodes = draw.choice([16, 32, 100]), {0}
    owners = assign(slots, [EligibleWorker(0)])
    for _ in range(20):
        nodes ^= {draw.randrange(12)}
        if not nodes:
            nodes = {0}
        now = after(slots, owners, sorted(nodes))

        counts = Counter(now.values())
        share, larger = divmod(slots, len(nodes))
        held = sorted((sum(owner == node for owner in owners.values()) for node in nodes), reverse=True)
        least = slots - sum(min(have, share + (place < larger)) for place, have in enumerate(held))
        assert all(share <= counts[node] <= share + 1 for node in nodes)
        assert moved(owners, now) == least
        owners = now


def test_eight_neighbouring_slots_have_several_owners_however_the_fleet_grew():
    owners = assign(32, [EligibleWorker(0)])
    for size in range(2, 9):
        owners = after(32, owners, range(size))

        fewest = min(len({owners[(first + step) % 32] for step in range(8)}) for first in range(32))
        assert fewest >= min(size, 4) - (size > 2), size


def test_ten_thousand_slots_are_shared_out_among_a_thousand_workers():
    owners = assign(10_000, [EligibleWorker(node) for node in range(999)])

    now = after(10_000, owners, range(1_000))

    assert moved(owners, now) == 10
    assert set(Counter(now.values()).values()) == {10}
