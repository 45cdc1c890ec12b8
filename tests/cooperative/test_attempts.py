"""How often records count as begun, whoever died and whoever gave what back."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flowshare.cooperative import attempts as attempts_module
from flowshare.cooperative.attempts import Attempts, AttemptsState, starts_of
from flowshare.cooperative.offsets import CommittedOffsets
from flowshare.cooperative.partition import CooperativePartition
from flowshare.cooperative.stored import encode, load
from flowshare.cooperative.types import (
    HASHES,
    HORIZON_STEP,
    Claim,
    CommitEntry,
    DrainMode,
    DropStarts,
    Horizon,
    KeyRange,
    PutClaims,
    PutReaches,
    PutStable,
    PutStarts,
    Reach,
    StartEntry,
    Terms,
)
from flowshare.core_errors import BoundReached, InvalidRequest
from tests.cooperative.starts_world import StartsWorld
from tests.sim.seeds import drawn

TERMS = Terms(lease_ms=1_000)
AVAILABLE = Terms(lease_ms=600_000, mode=DrainMode.AVAILABLE, drain_timeout_ms=0)
ALL = KeyRange(0, HASHES)
LOWER, UPPER = KeyRange(0, HASHES // 2), KeyRange(HASHES // 2, HASHES)


class Group:
    """One partition, and what is stored of it."""

    def __init__(self) -> None:
        self.partition = CooperativePartition.new(0)
        self.stored = dict(map(encode, self.partition.snapshot()))
        self.sequence = self.now = 0

    def write(self, decision):
        for mutation in decision.mutations:
            key, value = encode(mutation)
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        self.partition.confirm(decision)
        return decision.answer

    def hold(self, member, *keys, terms=TERMS, generation=1):
        self.sequence += 1
        return self.write(self.partition.hold(member, generation, self.sequence, keys or [ALL], self.now, terms=terms))

    def begin(self, member, *starts, horizon=0, epoch=None, keys=ALL):
        known = self.partition.claims.of(member)[0].epoch if epoch is None else epoch
        entry = StartEntry(keys, known, starts, horizon)
        return self.write(self.partition.commit(member, 0, [entry], self.now))

    def commit(self, member, *ranges):
        (claim,) = self.partition.claims.of(member)
        entry = CommitEntry(KeyRange(claim.first, claim.end), claim.epoch, ranges)
        return self.write(self.partition.commit(member, 0, [entry], self.now))

    def dies(self):
        """Whoever holds something is heard of no more."""
        self.now += 1_000
        self.write(self.partition.lapse(self.now))

    def told(self, offset, hash_=5):
        return self.partition.attempts.told(offset, hash_)


def known(begun, offset, hash_=5):
    """As how often begun a member takes a record that is told this."""
    return starts_of(begun.reaches, dict(begun.starts), offset, hash_)


def test_what_a_dead_member_may_have_begun_counts_once_up_to_its_horizon():
    group = Group()
    assert group.hold("a").horizon == HORIZON_STEP
    group.begin("a", horizon=5_000)
    group.commit("a", (0, 3))
    group.dies()

    answer = group.hold("b")
    assert answer.begun.reaches == (Reach(0, HASHES, 5_000),)
    assert [group.told(at) for at in (3, 4_999, 5_000)] == [1, 1, 0]


def test_only_the_keys_of_the_dead_count():
    group = Group()
    group.hold("a", LOWER, terms=Terms(lease_ms=500_000))
    group.hold("b", UPPER)
    group.dies()
    group.hold("c", UPPER)

    assert (group.told(1, 5), group.told(1, HASHES - 1)) == (0, 1)


def test_keys_behind_those_of_the_dead_do_not_count():
    group = Group()
    group.hold("a", LOWER)
    group.dies()

    assert (group.told(1, HASHES // 2 - 1), group.told(1, HASHES // 2)) == (1, 0)


def test_a_horizon_and_what_the_dead_have_reached_never_come_nearer():
    group = Group()
    group.hold("a")
    group.begin("a", horizon=5_000)
    group.begin("a", horizon=3_000)
    assert group.partition.attempts.horizon("a") == 5_000
    group.dies()
    group.hold("b")
    group.dies()

    assert group.partition.attempts.state.reaches == (Reach(0, HASHES, 5_000),)


def test_what_is_given_back_counts_as_often_as_its_member_said():
    group = Group()
    group.hold("a")
    group.begin("a", (7, 2), (9, 1))
    group.write(group.partition.leave("a", 0))

    answer = group.hold("b")
    assert dict(answer.begun.starts) == {7: 2, 9: 1}
    assert (answer.begun.reaches, group.told(7), group.told(8)) == ((), 2, 0)
    group.begin("b", (7, 1))
    assert group.told(7) == 1, "what was told ahead and not begun is taken back"


def test_a_record_that_kills_each_of_its_members_counts_all_of_them_and_its_neighbours_one():
    group = Group()
    for death in range(1, 6):
        group.hold(f"m{death}")
        if death > 1:
            group.begin(f"m{death}", (4, death))
        group.dies()
        assert group.told(4) == death
        assert group.told(5) == 1


def test_a_member_whose_keys_were_taken_counts_as_dead():
    group = Group()
    group.hold("a", terms=Terms(lease_ms=600_000))
    answer = group.hold("b", terms=AVAILABLE, generation=2)
    assert answer.taken

    assert answer.begun.reaches == (Reach(0, HASHES, HORIZON_STEP),)


def test_starts_under_a_claim_that_ended_are_fenced():
    group = Group()
    group.hold("a")
    epoch = group.partition.claims.of("a")[0].epoch
    group.dies()
    group.hold("a")

    assert group.begin("a", (3, 9), epoch=epoch).fenced == (0,)
    assert group.told(3) == 1


def test_a_member_with_exact_starts_has_no_horizon_and_only_what_it_told_counts():
    group = Group()
    assert group.hold("a", terms=Terms(lease_ms=1_000, exact_starts=True)).horizon == 0
    group.begin("a", (4, 1), (5, 1), (6, 1))
    group.begin("a", (6, 0))
    group.dies()
    assert [group.told(at) for at in (4, 5, 6, 7)] == [1, 1, 0, 0]
    assert group.hold("b").begun.reaches == ()


def test_what_is_committed_is_forgotten():
    group = Group()
    group.hold("a")
    group.begin("a", (3, 2), (5, 2), horizon=3_000)
    group.dies()
    group.hold("b")
    group.commit("b", (3, 4))
    assert dict(group.partition.attempts.state.starts) == {5: 2}
    group.commit("b", (0, 3_000))

    state = group.partition.attempts.state
    assert (state.reaches, state.starts) == ((), {})
    group.begin("b", (5, 7))
    assert group.partition.attempts.state.starts == {}, "it is committed"
    assert not [key for key in group.stored if key[:1] == b"\x05"]


def test_a_reset_begins_anew_and_a_cut_forgets_what_is_other_records_now():
    group = Group()
    group.hold("a")
    group.begin("a", (3, 2), (8, 2))
    group.dies()
    group.write(group.partition.truncate(5, group.now))
    assert (group.told(3), dict(group.partition.attempts.state.starts)) == (2, {3: 2})
    group.write(group.partition.reset(0, group.now))

    assert group.told(3) == 0


def test_no_more_starts_are_kept_than_the_bound_allows(monkeypatch):
    monkeypatch.setattr(attempts_module, "STARTS_MAX", 3)
    group = Group()
    group.hold("a")
    group.begin("a", (1, 1), (2, 1), (3, 1))
    assert group.begin("a", (4, 1)).fenced == (0,)
    with pytest.raises(BoundReached, match="commit some of them first"):
        group.partition.attempts.begin("a", [(4, 1)], 0, CommittedOffsets())
    assert group.begin("a", (3, 2)).fenced == (), "what is counted already goes on"
    group.commit("a", (1, 2))
    group.begin("a", (4, 1))


@pytest.mark.parametrize(
    ("starts", "horizon"), [([(-1, 1)], 0), ([(1, -1)], 0), ([(1, 2_000_000)], 0), ([], -1), ([], 2_000_000)]
)
def test_what_makes_no_sense_is_refused(starts, horizon):
    with pytest.raises(InvalidRequest):
        Attempts().begin("a", starts, horizon, CommittedOffsets())


def test_ranges_of_keys_that_are_too_many_are_joined_and_count_too_many(monkeypatch):
    monkeypatch.setattr(attempts_module, "REACHES_MAX", 4)
    known = Attempts(horizons=[Horizon(f"m{at}", at + 1) for at in range(10)])
    known.ended(Claim(10 * at, 10 * at + 5, f"m{at}", 1) for at in range(10))

    assert len(known.state.reaches) <= 4
    assert all(known.told(at, 10 * at) == 1 for at in range(10))


def test_only_what_changed_is_written():
    known = Attempts(starts={1: 1, 2: 5, 7: 3})
    before = known.state
    known.begin("a", [(2, 6), (3, 1)], 9, CommittedOffsets(2))
    known.shrink(CommittedOffsets(2), [(0, 2)])

    assert set(known.changed_since(before)) == {
        PutStarts(2, 6),
        PutStarts(3, 1),
        DropStarts(1),
        PutReaches((), (Horizon("a", 9),)),
    }
    assert known.changed_since(known.state) == ()
    assert Attempts().changed_since(AttemptsState()) == ()


@pytest.mark.parametrize("seed", range(20))
def test_no_member_is_told_of_fewer_starts_than_there_were(seed):
    """Random members that obey the two rules, die, give back; the server is loaded anew now and then."""
    chance = random.Random(seed)
    group, begun, horizons = Group(), {}, {}
    committed: set[int] = set()
    hashes = [chance.randrange(HASHES) for _ in range(30)]
    here: dict[str, dict[int, int]] = {}
    for step in range(300):
        act = chance.random()
        if not here:
            name = f"m{step}"
            answer = group.hold(name, ALL)
            for at in set(range(30)) - committed:
                assert known(answer.begun, at, hashes[at]) >= begun.get(at, 0)
            here[name] = {at: group.told(at, hashes[at]) for at in range(30)}
            horizons[name] = answer.horizon
        (name, counts), *_ = here.items()
        left = sorted(set(range(30)) - committed)
        if act < 0.5 and left:
            at = chance.choice(left)
            counts[at] += 1
            if counts[at] > 1:
                group.begin(name, (at, counts[at]))
            begun[at] = begun.get(at, 0) + 1
            if chance.random() < 0.3:
                group.commit(name, (at, at + 1))
                committed.add(at)
        elif act < 0.7:
            del here[name]
            group.dies()
        elif act < 0.85:
            owed = [(at, count) for at, count in counts.items() if count and at not in committed]
            if owed:
                group.begin(name, *owed)
            group.write(group.partition.leave(name, group.now))
            del here[name]
        else:
            loaded = load(group.stored.items(), now_ms=group.now)
            assert loaded.repair == ()
            assert loaded.state.attempts.state == group.partition.attempts.state
            group.partition = CooperativePartition(loaded.state)


def test_what_counts_more_is_written_before_a_claim_is_gone_and_what_counts_less_behind():
    group = Group()
    group.hold("a")
    group.begin("a", (2, 2))
    group.now += 1_000
    taken = group.partition.hold("b", 1, 9, [ALL], group.now, terms=TERMS)
    assert [type(one) for one in taken.mutations] == [PutReaches, PutClaims]
    group.write(taken)
    entry = CommitEntry(ALL, group.partition.claims.of("b")[0].epoch, [(0, HORIZON_STEP)])
    ended = group.partition.commit("b", 0, [entry], group.now)

    assert [type(one) for one in ended.mutations] == [PutStable, DropStarts, PutReaches]


def test_what_the_dead_left_is_not_forgotten_in_the_write_that_adds_to_it():
    """It is one entry, written before the commit that lets it be forgotten."""
    group = Group()
    group.hold("a", LOWER)
    group.dies()
    group.hold("b", LOWER)
    group.hold("c", UPPER)
    group.begin("c", horizon=5_000, keys=UPPER)
    group.now += 500
    group.hold("b", LOWER)
    group.now += 500

    entry = CommitEntry(LOWER, group.partition.claims.of("b")[0].epoch, [(0, HORIZON_STEP)])
    ended = group.partition.commit("b", 0, [entry], group.now)
    assert isinstance(ended.mutations[0], PutReaches)
    assert ended.mutations[0].reaches == (Reach(*LOWER, HORIZON_STEP), Reach(*UPPER, 5_000))
    group.write(ended)
    group.commit("b", (HORIZON_STEP, HORIZON_STEP + 1))
    assert group.partition.attempts.state.reaches == (Reach(*UPPER, 5_000),)


def play(seed, steps):
    print(f"seed {seed}")
    world = StartsWorld(seed)
    for _ in range(steps):
        world.step()
    return world.seen


def test_members_that_die_and_give_back_are_told_of_no_fewer_starts_and_of_no_more_than_the_rules_allow():
    seen = Counter()
    for number in range(60):
        seen += play(drawn() + number, 150)
    assert min(seen[what] for what in ("told", "told more", "left", "restarts", "rolled back")) > 0, seen


@pytest.mark.slow
def test_the_same_in_many_worlds():
    for number in range(1_500):
        play(drawn() + number, 300)
