"""Free mode: who gets which offsets, and until when."""

from __future__ import annotations

import random

import pytest

from flowshare.cooperative import spans as spans_module
from flowshare.cooperative.offsets import CommittedOffsets
from flowshare.cooperative.partition import CooperativePartition, PartitionState
from flowshare.cooperative.stored import encode, load
from flowshare.cooperative.types import HASHES, SpanEntry, Terms
from flowshare.core_errors import BoundReached, FencedMemberEpoch, InconsistentGroupProtocol, InvalidRequest

LEASE_MS = 1_000


def partition(stable=0, ranges=(), **bounds):
    return CooperativePartition(PartitionState.fresh(CommittedOffsets(stable, ranges, **bounds)))


def take(target, member, count, log_end=100, now=0):
    decision = target.take(member, count, log_end, now, lease_ms=LEASE_MS)
    target.confirm(decision)
    return [span[:2] for span in decision.answer.spans]


def commit(target, member, epoch, *ranges, now=0):
    decision = target.commit(member, 0, [SpanEntry(epoch, ranges)], now)
    target.confirm(decision)
    return decision.answer


def test_members_take_what_comes_next_and_nothing_twice():
    one = partition()

    assert take(one, "a", 10) == [(0, 10)]
    assert take(one, "b", 5) == [(10, 15)]
    assert take(one, "a", 200) == [(15, 100)]
    assert take(one, "b", 1) == []
    assert take(one, "b", 2, log_end=101) == [(100, 101)]


def test_one_take_goes_over_what_is_committed_with_others_or_pending():
    one = partition(0, [(2, 4), (9, 10)])
    reserved = one.reserve("x", 0, (7, 0), [], 0)
    one.confirm(reserved)
    one.confirm(one.complete(7, 0, 0, committed=False))
    assert take(one, "a", 2) == [(0, 2)]
    one.confirm(one.reserve("a", 0, (7, 0), [SpanEntry(1, [(1, 2)])], 0))

    assert take(one, "b", 8) == [(4, 9), (10, 13)]

    one.confirm(one.give_back("a", 1, 0))
    assert take(one, "c", 5) == [(0, 1), (13, 17)]
    one.confirm(one.complete(7, 0, 0, committed=False))
    assert take(one, "c", 2) == [(1, 2), (17, 18)]


def test_what_is_committed_of_a_span_leaves_it_and_the_rest_stays():
    one = partition()
    take(one, "a", 10)

    assert commit(one, "a", 1, (0, 2), (5, 6)).progress.stable == 2
    assert [span[:2] for span in one.spans.of("a")] == [(2, 10)]
    assert commit(one, "a", 1, (2, 5), (6, 10)).progress.stable == 10
    assert not one.spans
    assert commit(one, "a", 1, (2, 5)).fenced == ()
    assert take(one, "a", 1) == [(10, 11)]


def test_a_commit_outside_of_the_members_span_is_fenced():
    one = partition()
    take(one, "a", 10)
    take(one, "b", 10)

    assert commit(one, "a", 1, (5, 11)).fenced == (0,)
    assert commit(one, "a", 2, (12, 13)).fenced == (0,)
    assert commit(one, "b", 1, (12, 13)).fenced == (0,)
    assert commit(one, "c", 1, (50, 51)).fenced == (0,)
    assert one.progress.furthest == 0
    low = partition(5)
    take(low, "a", 5)
    assert commit(low, "b", 1, (2, 7)).fenced == (0,)


def test_a_span_whose_lease_ended_is_anothers_and_its_commit_is_fenced():
    one = partition()
    take(one, "a", 10)
    commit(one, "a", 1, (3, 4))
    assert one.next_deadline_ms() == LEASE_MS

    assert take(one, "b", 4, now=LEASE_MS) == [(0, 3), (4, 5)]

    assert commit(one, "a", 1, (0, 1), now=LEASE_MS).fenced == (0,)
    assert one.spans.state.lapsed == 1


def test_a_lease_is_renewed_span_by_span():
    one = partition()
    take(one, "a", 10)
    take(one, "a", 10)
    take(one, "b", 10)

    decision = one.renew("a", [2, 3, 9], 600, lease_ms=LEASE_MS)

    assert decision.answer == (3, 9)
    assert decision.mutations == ()
    one.confirm(one.lapse(LEASE_MS))
    assert [span.epoch for span in one.spans.state.spans] == [2]
    assert one.renew("a", [2], 1_100, lease_ms=2 * LEASE_MS).mutations != ()


def test_what_a_member_gives_back_or_leaves_comes_first():
    one = partition()
    take(one, "a", 10)
    take(one, "b", 10)
    one.confirm(one.give_back("a", 1, 0))
    assert take(one, "c", 4) == [(0, 4)]
    with pytest.raises(FencedMemberEpoch, match="no span of epoch 1"):
        one.give_back("a", 1, 0)
    with pytest.raises(FencedMemberEpoch):
        one.give_back("a", 2, 0)
    one.confirm(one.leave("b", 0))

    assert take(one, "c", 30) == [(4, 34)]


def test_a_take_goes_no_further_than_the_bounds():
    one = partition(0, [(5, 6), (20, 21)], ranges_max=2, span_max=50)
    assert take(one, "a", 100) == [(0, 5), (6, 20)]
    assert take(one, "a", 100) == []
    commit(one, "a", 1, (0, 5))
    assert one.progress == (6, 0, 1, 21)
    assert take(one, "a", 100) == [(21, 56)]


def test_a_take_of_nothing_or_too_much_and_one_too_many_are_refused(monkeypatch):
    one = partition()
    for count in (0, 10_001):
        with pytest.raises(InvalidRequest, match="ask for 1 to"):
            one.take("a", count, 100, 0)
    with pytest.raises(InvalidRequest, match="a lease of 5 ms"):
        one.take("a", 1, 100, 0, lease_ms=5)
    monkeypatch.setattr(spans_module, "SPANS_MAX", 2)
    scattered = partition(0, [(1, 2), (3, 4)])
    assert take(scattered, "a", 10) == [(0, 1), (2, 3)]
    with pytest.raises(BoundReached, match="give back some first"):
        scattered.take("a", 1, 100, 0)


def test_a_partition_is_shared_in_one_way_at_a_time():
    one = partition()
    one.confirm(one.hold("a", 1, 1, [(0, HASHES)], 0, terms=Terms()))
    with pytest.raises(InconsistentGroupProtocol, match="by keys"):
        one.take("b", 1, 100, 0)
    one.confirm(one.hold("a", 1, 2, [], 0, terms=Terms()))
    take(one, "b", 1)
    with pytest.raises(InconsistentGroupProtocol, match="record by record"):
        one.hold("a", 1, 3, [(0, HASHES)], 0, terms=Terms())
    one.confirm(one.hold("a", 1, 4, [], 0, terms=Terms()))


class Takers:
    """Members that take, commit, give back, and let leases lapse; a store, and an owner that restarts."""

    def __init__(self, seed, log_end):
        self.random, self.log_end, self.now = random.Random(seed), log_end, 0
        self.target = partition()
        self.store = {key: value for key, value in map(encode, self.target.snapshot()) if value is not None}
        self.with_members = {}

    def step(self):
        self.now += self.random.choice((0, 5, 30))
        for span in self.target.spans.state.spans:
            if span.deadline_ms <= self.now:
                self.with_members.pop((span.member, span.epoch))
        member = self.random.choice("abc")
        mine = [owner for owner in self.with_members if owner[0] == member]
        action = self.random.choice((self.take, self.commit, self.commit, self.commit, self.give_back))
        self.write(action(self.random.choice(mine)) if mine else self.take((member, 0)))
        self.with_members = {owner: offsets for owner, offsets in self.with_members.items() if offsets}

    def take(self, owner):
        decision = self.target.take(owner[0], self.random.randint(1, 20), self.log_end, self.now, lease_ms=LEASE_MS)
        for span in decision.answer.spans:
            fresh = set(range(span.first, span.end))
            assert not any(fresh & others for others in self.with_members.values())
            self.with_members[span.member, span.epoch] = fresh
        return decision

    def give_back(self, owner):
        del self.with_members[owner]
        return self.target.give_back(*owner, self.now)

    def commit(self, owner):
        offset = self.random.choice(sorted(self.with_members[owner]))
        self.with_members[owner].discard(offset)
        decision = self.target.commit(owner[0], 0, [SpanEntry(owner[1], [(offset, offset + 1)])], self.now)
        assert decision.answer.fenced == ()
        return decision

    def write(self, decision):
        for key, value in map(encode, decision.mutations):
            if value is None:
                del self.store[key]
            else:
                self.store[key] = value
        self.target.confirm(decision)

    def restart(self):
        loaded = load(self.store.items(), now_ms=self.now)
        assert loaded is not None
        assert loaded.repair == ()
        self.target = CooperativePartition(loaded.state)


def test_offsets_have_one_taker_and_are_all_committed_in_the_end():
    seed = random.randrange(2**32)
    print("seed", seed)
    takers = Takers(seed, 300)
    for step in range(20_000):
        takers.step()
        if step % 50 == 0:
            takers.restart()
        if takers.target.progress.stable == 300:
            break

    assert takers.target.progress == (300, 0, 0, 300)
