"""Claims on keys: what a hold grants, what it does not, and which commits are let through."""

from __future__ import annotations

import pytest

from flowshare.cooperative import claims as claims_module
from flowshare.cooperative.claims import Claims, ClaimsState, Reserved
from flowshare.cooperative.ranges import checked
from flowshare.cooperative.types import HASHES, Claim, DrainMode, Holder, KeyRange, PutClaims, Terms
from flowshare.core_errors import FencedMemberEpoch

STRICT = Terms(lease_ms=1_000)
AVAILABLE = Terms(lease_ms=1_000, mode=DrainMode.AVAILABLE, drain_timeout_ms=500)


class Asking:
    """Claims, and members that count their sequences."""

    def __init__(self):
        self.claims = Claims()
        self.sequence = 0

    def hold(self, member, *pairs, generation=1, now=0, terms=STRICT, reserved=()):
        self.sequence += 1
        wanted = checked(pairs)
        return self.claims.hold(member, generation, self.sequence, wanted, now, terms=terms, reserved=reserved)


def epochs(held):
    return [(claim.first, claim.end, claim.epoch) for claim in held.held]


def test_who_is_of_an_older_generation_takes_nothing_however_short_its_patience():
    one = Asking()
    one.hold("a", (0, 100), generation=2)
    hasty = Terms(lease_ms=1_000, mode=DrainMode.AVAILABLE, drain_timeout_ms=0)

    held = one.hold("b", (0, 100), generation=1, now=10, terms=hasty)

    assert (held.taken, held.superseded) == ((), True)
    assert one.claims.holds("a", 1, (0, 100))


def test_a_commit_over_a_hole_between_two_claims_is_not_let_through():
    one = Asking()
    one.hold("a", (0, 30), (50, 100))
    assert [one.claims.holds("a", 1, keys) for keys in ((0, 30), (60, 70), (20, 60), (40, 60), (0, 100))] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_what_comes_piece_by_piece_is_one_claim_in_the_end():
    one = Asking()
    one.hold("a", (0, 100))
    one.hold("a", (3, 4), (7, 9), generation=2)
    assert epochs(one.hold("b", (0, 100), generation=2)) == [(0, 3, 2), (4, 7, 2), (9, 100, 2)]
    one.hold("a", (3, 4), generation=2)
    one.hold("b", (0, 100), generation=2)
    one.hold("a", generation=2)

    assert epochs(one.hold("b", (0, 100), generation=2)) == [(0, 100, 2)]


def test_a_member_that_gave_something_back_gets_the_next_under_a_new_epoch():
    one = Asking()
    one.hold("a", (0, 10))

    assert epochs(one.hold("a", (5, 10), (20, 30))) == [(5, 10, 1), (20, 30, 2)]
    assert epochs(one.hold("a", (0, 10), (20, 30))) == [(0, 5, 2), (5, 10, 1), (20, 30, 2)]


def test_what_was_taken_and_came_back_is_another_claim_though_the_member_kept_others():
    one = Asking()
    one.hold("a", (0, 10))
    one.hold("b", (5, 10), generation=2)
    one.hold("a", (0, 10), generation=2, now=400)
    assert one.hold("b", (5, 10), generation=2, now=500, terms=AVAILABLE).taken == (Claim(5, 10, "a", 1),)
    one.hold("b", generation=3, now=500)

    assert epochs(one.hold("a", (0, 10), generation=3, now=500)) == [(0, 5, 1), (5, 10, 3)]
    assert not one.claims.holds("a", 1, (5, 6))
    assert one.claims.holds("a", 1, (4, 5))


@pytest.mark.parametrize(
    ("member", "epoch", "keys", "right"),
    [
        ("a", 1, (0, 5), True),
        ("a", 1, (0, 6), False),
        ("a", 2, (0, 10), True),
        ("a", 3, (0, 10), True),
        ("a", 1, (7, 8), False),
        ("a", 0, (0, 1), False),
        ("b", 3, (0, 1), False),
        ("a", 2, (5, 11), False),
        ("a", 2, (10, 12), False),
        ("a", 2, (15, 16), False),
        ("b", 3, (12, 13), True),
        ("a", 2, (3, 3), False),
        ("a", 2, (4, 3), False),
    ],
)
def test_a_commit_is_let_through_where_each_hash_was_granted_at_its_epoch_or_before(member, epoch, keys, right):
    claims = Claims(
        3,
        [Holder("a", 1, 1_000), Holder("b", 1, 1_000)],
        [Claim(0, 5, "a", 1), Claim(5, 10, "a", 2), Claim(12, 14, "b", 3)],
    )

    assert claims.holds(member, epoch, keys) is right


def test_nothing_is_held_where_there_is_no_claim():
    assert not Claims().holds("a", 1, (0, 1))
    assert not Claims()
    assert Claims().unowned == HASHES
    assert Claims().next_deadline_ms() is None
    assert Claims().waiting_ms(5) == 0


def test_an_older_generation_keeps_what_it_holds_and_gains_nothing():
    one = Asking()
    one.hold("a", (0, 10), generation=4)
    one.hold("b", (20, 30), generation=5)

    old = one.hold("a", (0, 15), (20, 25), generation=4)

    assert epochs(old) == [(0, 10, 1)]
    assert (old.superseded, old.granted) == (True, ())
    assert [(wait.first, wait.end, wait.holder) for wait in old.blocked] == [(20, 25, "b")]
    assert epochs(one.hold("a", (0, 15), generation=5)) == [(0, 15, 1)]


def test_a_group_that_begins_again_at_generation_one_is_not_held_up_by_an_older_one():
    one = Asking()
    one.hold("a", (0, 10), generation=57)
    assert one.hold("b", (10, 20), generation=1).superseded

    one.hold("a", (0, 10), generation=2)

    assert epochs(one.hold("b", (10, 20), generation=2)) == [(10, 20, 2)]


def test_who_waits_counts_as_being_here():
    one = Asking()
    one.hold("a", (0, 10), generation=1)
    one.hold("b", (0, 10), generation=2)

    assert one.hold("a", (0, 20), generation=1).superseded
    one.claims.leave("b")
    assert not one.hold("a", (0, 20), generation=1).superseded


def test_a_wait_goes_on_for_what_is_left_of_it_and_begins_for_what_is_new():
    one = Asking()
    one.hold("a", (0, 10), (20, 30))
    one.hold("b", (2, 6), now=100, generation=2)
    one.hold("a", (0, 3), (5, 10), (20, 30), now=150, generation=2)

    held = one.hold("b", (2, 6), (8, 9), (25, 26), now=200, generation=2)

    assert [(wait.first, wait.end, wait.since_ms) for wait in held.blocked] == [
        (2, 3, 100),
        (5, 6, 100),
        (8, 9, 200),
        (25, 26, 200),
    ]
    assert one.claims.waiting_ms(250) == 150


def test_a_wait_begins_anew_behind_another_holder_and_when_the_keys_were_not_wanted():
    one = Asking()
    one.hold("a", (0, 10))
    one.hold("b", (0, 10), now=100, generation=2)
    one.hold("b", (5, 6), now=200, generation=3)
    assert one.hold("b", (0, 10), now=300, generation=4).blocked[0].since_ms == 300
    one.claims.leave("a")
    one.hold("c", (0, 5), now=400, generation=5)

    blocked = one.hold("b", (0, 10), now=500, generation=5).blocked

    assert [(wait.first, wait.end, wait.holder, wait.since_ms) for wait in blocked] == [(0, 5, "c", 500)]


def test_what_a_transaction_reserved_is_granted_to_nobody_and_taken_by_nobody():
    one = Asking()
    reserved = [Reserved(KeyRange(3, 5), "transaction")]
    held = one.hold("a", (0, 10), reserved=reserved)
    assert epochs(held) == [(0, 3, 1), (5, 10, 1)]
    assert [(wait.first, wait.end, wait.holder) for wait in held.blocked] == [(3, 5, "transaction")]

    late = one.hold("b", (0, 10), now=999, terms=AVAILABLE, reserved=reserved, generation=2)
    assert late.held == ()
    one.hold("a", (0, 10), now=999, reserved=reserved, generation=2)
    taken = one.hold("b", (0, 10), now=1_499, terms=AVAILABLE, reserved=reserved, generation=2)

    assert epochs(taken) == [(0, 3, 2), (5, 10, 2)]
    assert [(wait.first, wait.end) for wait in taken.blocked] == [(3, 5)]


def test_a_call_that_comes_too_late_changes_nothing():
    one = Asking()
    one.hold("a", (0, 10))
    before = one.claims.state
    for sequence in (0, 1):
        with pytest.raises(FencedMemberEpoch, match="too late"):
            one.claims.hold("a", 1, sequence, (), 5_000, terms=STRICT)
    assert one.claims.state is before


def test_leases_end_for_all_that_a_member_holds_and_counts():
    one = Asking()
    one.hold("a", (0, 10), (20, 30))
    one.hold("b", (12, 14), now=500)
    assert one.claims.next_deadline_ms() == 1_000
    assert one.claims.lapse(999) == ()

    assert one.claims.lapse(1_000) == (Claim(0, 10, "a", 1), Claim(20, 30, "a", 1))

    assert one.claims.state.claims == (Claim(12, 14, "b", 2),)
    assert one.claims.of("a") == ()
    assert one.claims.of("b") == (Claim(12, 14, "b", 2),)
    assert one.claims.state.counts.lapsed == 2


def test_a_member_that_waits_only_is_forgotten_with_its_lease():
    one = Asking()
    one.hold("a", (0, 10))
    one.hold("b", (0, 10), generation=9)
    one.hold("a", (0, 10), now=900)

    assert one.claims.lapse(1_000) == ()
    assert not one.hold("a", (0, 11), now=1_000).superseded


def test_a_claim_table_that_is_full_grants_nothing_more(monkeypatch):
    monkeypatch.setattr(claims_module, "CLAIMS_MAX", 3)
    one = Asking()
    one.hold("a", (0, 1), (2, 3))

    assert one.hold("b", (4, 5), (6, 7)).granted == ()
    assert one.hold("b", (4, 5)).granted == ((4, 5),)


def test_only_claims_and_the_lengths_of_leases_are_stored():
    one = Asking()
    empty = ClaimsState((), {}, 0)
    one.hold("a", (0, 10))
    assert one.claims.changed_since(empty) == PutClaims(1, (Holder("a", 1, 1_000),), (Claim(0, 10, "a", 1),))
    before = one.claims.state

    one.hold("a", (0, 10), now=10, generation=7)
    assert one.claims.changed_since(before) is None
    one.hold("b", (0, 10), now=10, generation=7)
    assert one.claims.changed_since(before) is None

    one.hold("a", (0, 10), now=10, generation=7, terms=Terms(lease_ms=2_000))
    stored = one.claims.changed_since(before)
    assert stored is not None
    assert stored.holders == (Holder("a", 7, 2_000),)
    again = Claims(stored.epoch, stored.holders, stored.claims, now_ms=50)
    assert again.next_deadline_ms() == 2_050
    assert again.state.claims == one.claims.state.claims
