"""The breaker of a group: each row of its table, and that it never lets more through than it says."""

from __future__ import annotations

import random

import pytest

from flowshare.share.breaker import (
    ADOPT_MS,
    HUNGRY_MS,
    MEMBERS_MAX,
    SILENT_MS,
    Breaker,
    BreakerRule,
    BreakerState,
    Gate,
    GateReport,
    Outcomes,
    Told,
)

RULE = BreakerRule(percent=50, of=20, open_ms=1_000, open_max_ms=3_000, probe_ms=500)
CLOSED, OPEN, HALF_OPEN = BreakerState
WANTS = GateReport(wanting=True)


class Group:
    """A breaker with a member `m` that has reported once."""

    def __init__(self, now=100_000):
        self.now = now
        self.breaker = Breaker(now - 60_000)
        self.counted = Outcomes()
        self.breaker.report("m", self.counted, RULE, now)

    def heard(self, **new):
        self.counted = Outcomes(*(getattr(self.counted, name) + new.get(name, 0) for name in Outcomes._fields))
        return self.breaker.report("m", self.counted, RULE, self.now)

    def lease(self, node=1, report=WANTS):
        return self.breaker.lease(node, report, RULE, self.now)

    def opened(self):
        self.heard(failed=20)
        assert self.lease().told.state is OPEN
        return self

    def trying(self):
        self.opened().now += 1_000
        assert self.lease().more == 1
        return self


def test_it_opens_when_most_of_enough_outcomes_failed():
    group = Group()
    group.heard(failed=19)
    assert group.lease() == Gate(Told())
    told = group.heard(succeeded=1)

    assert told == Told(OPEN, "19 of the last 20 outcomes failed", 1_000, 1_000)


def test_it_stays_closed_while_fewer_fail_however_many_there_were_before():
    group = Group()
    for _ in range(50):
        group.heard(succeeded=11, failed=9)
    assert group.lease() == Gate(Told())
    group.heard(failed=11)

    assert group.lease().told.state is OPEN


def test_outcomes_of_all_members_count_together():
    group = Group()
    for name in "abcdefghij":
        group.breaker.report(name, Outcomes(), RULE, group.now)
        group.breaker.report(name, Outcomes(failed=2), RULE, group.now)

    assert group.lease().told.state is OPEN


def test_what_was_begun_before_it_opened_decides_nothing():
    group = Group().opened()
    group.heard(succeeded=100)
    assert group.lease().told.state is OPEN
    group.trying().heard(succeeded=100, failed=100)

    assert group.lease().told.state is HALF_OPEN


def test_it_lets_nothing_through_before_its_time_and_then_one_in_the_whole_group():
    group = Group().opened()
    group.now += 999
    assert group.lease().more == 0
    group.now += 1
    assert group.lease(node=2, report=GateReport()).more == 0
    assert [group.lease(node).more for node in (2, 1, 2, 3)] == [1, 0, 0, 0]
    assert group.lease().told.state is HALF_OPEN


def test_when_what_was_tried_succeeds_it_closes_and_has_forgotten_all():
    group = Group().trying()
    assert group.heard(tried_succeeded=1) == Told()
    group.heard(failed=19)

    assert group.lease() == Gate(Told())


def test_when_it_fails_it_is_open_for_longer_each_time_up_to_a_bound():
    group, times = Group().opened(), []
    for _ in range(4):
        times.append(group.breaker.told(group.now).left_ms)
        group.now += times[-1]
        assert group.lease().more == 1
        group.heard(tried_failed=1)
    assert times == [1_000, 2_000, 3_000, 3_000]
    group.now += 3_000
    group.lease()
    group.heard(tried_succeeded=1)
    group.heard(failed=20)

    assert group.breaker.told(group.now).left_ms == 1_000


def test_when_nothing_is_heard_of_it_another_one_is_let_through():
    group = Group().trying()
    group.now += 499
    assert group.lease(2).more == 0
    group.now += 1
    assert group.lease(2).more == 1


def test_what_a_leader_gives_back_another_one_gets():
    group = Group().trying()
    assert group.lease(2, GateReport(back=1)).more == 0
    assert group.lease(2).more == 0, "it was not its own"
    assert group.lease(1, GateReport(back=1)).more == 0
    assert group.lease(2).more == 1


def test_who_gives_it_back_and_wants_it_again_comes_after_the_others():
    group = Group().trying()
    again = GateReport(wanting=True, back=1)
    assert group.lease(2).more == 0

    assert [group.lease(node, again).more for node in (1, 2, 2, 1, 1, 2)] == [0, 1, 0, 1, 0, 1]


def test_who_wanted_it_and_is_not_heard_of_keeps_it_from_nobody():
    group = Group().trying()
    group.lease(2)
    group.now += HUNGRY_MS + 1

    assert group.lease(1, GateReport(wanting=True, back=1)).more == 1


def test_closed_by_hand_it_is_closed():
    group = Group().opened()
    group.breaker.close()

    assert group.lease() == Gate(Told())


def test_where_no_member_reports_it_is_closed():
    group = Group().opened()
    group.now += SILENT_MS
    assert group.lease().told.state is not CLOSED
    group.now += 1

    assert group.lease() == Gate(Told())


def test_a_new_coordinator_takes_over_what_a_leader_knows():
    told = Told(OPEN, "18 of the last 20 outcomes failed", 700, 2_000)
    breaker = Breaker(5_000)
    assert breaker.lease(1, WANTS, RULE, 5_010).more == 0
    found = breaker.lease(2, GateReport(wanting=True, told=told), RULE, 5_100)

    assert found == Gate(told)
    assert breaker.lease(1, WANTS, RULE, 5_800).more == 1
    breaker.report("m", Outcomes(), RULE, 5_800)
    breaker.report("m", Outcomes(tried_failed=1), RULE, 5_810)
    assert breaker.told(5_810).left_ms == 3_000


def test_a_new_coordinator_lets_nothing_be_handed_out_until_a_member_has_told_or_its_time_is_over():
    breaker = Breaker(5_000)
    held = breaker.lease(1, WANTS, RULE, 5_010)
    assert (held.told.state, held.more) == (OPEN, 0)
    assert breaker.told(5_010).state is CLOSED
    breaker.report("m", Outcomes(), RULE, 5_020)
    assert breaker.lease(1, WANTS, RULE, 5_021) == Gate(Told())

    assert Breaker(5_000).lease(1, WANTS, RULE, 5_000 + ADOPT_MS) == Gate(Told())
    assert Breaker(5_000).lease(1, WANTS._replace(told=held.told), RULE, 5_010).told == held.told, "not as if it knew"
    assert Breaker(5_000).report("m", Outcomes(), RULE, 5_010, held.told) == Told()


def test_what_a_leader_says_later_or_out_of_bounds_is_not_followed():
    late = Breaker(5_000).lease(1, GateReport(told=Told(OPEN, "x", 700, 2_000)), RULE, 5_001 + ADOPT_MS)
    odd = Breaker(5_000).lease(1, GateReport(told=Told(OPEN, "x", 10**9, 10**9)), RULE, 5_000)

    assert late.told.state is CLOSED
    assert (odd.told.left_ms, odd.told.open_ms) == (3_000, 3_000)


def test_a_new_coordinator_takes_over_what_a_member_knows():
    breaker = Breaker(5_000)
    told = breaker.report("m", Outcomes(), RULE, 5_100, Told(OPEN, "\x1b[2J", 700, 2_000))

    assert told == Told(OPEN, "most outcomes failed", 700, 2_000)
    assert breaker.report("n", Outcomes(), RULE, 5_200, Told(OPEN, "", 300, 1_000)) == told._replace(left_ms=600)


def test_what_is_being_tried_under_a_new_coordinator_is_waited_for():
    breaker = Breaker(5_000)
    told = Told(HALF_OPEN, "18 of the last 20 outcomes failed", 0, 2_000)
    assert breaker.lease(1, GateReport(wanting=True, told=told), RULE, 5_010) == Gate(told)
    assert breaker.lease(2, WANTS, RULE, 5_509).more == 0

    assert breaker.lease(2, WANTS, RULE, 5_510).more == 1


def test_what_a_new_coordinator_closed_is_not_opened_by_those_who_have_not_heard_of_it():
    breaker, told = Breaker(5_000), Told(OPEN, "18 of the last 20 outcomes failed", 700, 2_000)
    breaker.close()

    assert breaker.lease(1, GateReport(wanting=True, told=told), RULE, 5_010) == Gate(Told())
    assert breaker.report("m", Outcomes(), RULE, 5_020, told) == Told()


def test_a_member_that_this_coordinator_hears_of_for_the_first_time_may_have_counted_long_ago():
    breaker = Breaker(0)

    assert breaker.report("m", Outcomes(failed=1_000), RULE, 10).state is CLOSED
    assert breaker.report("m", Outcomes(failed=5), RULE, 20).state is CLOSED, "it counts anew"
    assert breaker.report("m", Outcomes(failed=25), RULE, 30).state is OPEN


def test_members_are_remembered_in_bounds():
    breaker = Breaker(0)
    for number in range(3 * MEMBERS_MAX):
        breaker.report(f"m{number}", Outcomes(), RULE, 0)
    breaker.forget("m2999")
    breaker.forget("never heard of")

    assert len(breaker._members) == MEMBERS_MAX - 1


class World:
    """Leaders, members and coordinators that come and go, lost reports and answers, a downstream that breaks."""

    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.now = 1_000_000
        self.broken = False
        self.breaker = Breaker(self.now)
        self.counts = {f"m{number}": Outcomes() for number in range(4)}
        self.gates = {node: (Told(), 0) for node in range(3)}
        self.begun = self.not_closed_ms = self.changes = 0

    def step(self):
        choose, step = self.choose, self.choose.choice((1, 20, 100))
        self.now += step
        self.broken ^= choose.random() < 0.01
        if choose.random() < 0.002:
            self.breaker, self.changes = Breaker(self.now), self.changes + 1
        self.not_closed_ms += step * (self.breaker.told(self.now).state is not CLOSED)
        self.run(choose.choice(list(self.gates)), choose.choice(list(self.counts)))
        if choose.random() < 0.9:
            self.lease(choose.choice(list(self.gates)))

    def run(self, node, member):
        """A member runs what a leader may hand out, and reports."""
        told, permits = self.gates[node]
        add = Outcomes()
        if told.state is CLOSED:
            add = Outcomes(failed=5 * self.broken, succeeded=5 * (not self.broken))
        elif permits:
            self.gates[node], self.begun = (told, permits - 1), self.begun + 1
            if self.choose.random() < 0.8:  # else its member dies
                add = Outcomes(tried_failed=int(self.broken), tried_succeeded=int(not self.broken))
        self.counts[member] = Outcomes(*(a + b for a, b in zip(self.counts[member], add, strict=True)))
        if self.choose.random() < 0.8:
            self.breaker.report(member, self.counts[member], RULE, self.now)

    def lease(self, node):
        told, permits = self.gates[node]
        found = self.breaker.lease(node, GateReport(self.choose.random() < 0.7, 0, told), RULE, self.now)
        if self.choose.random() < 0.9:
            self.gates[node] = found.told, 0 if found.told.state is CLOSED else permits + found.more

    def mend(self):
        for _ in range(200):
            self.now += 100
            for node in self.gates:
                if self.breaker.lease(node, WANTS, RULE, self.now).more:
                    tried = self.counts["m0"].tried_succeeded + 1
                    self.counts["m0"] = self.counts["m0"]._replace(tried_succeeded=tried)
            self.breaker.report("m0", self.counts["m0"], RULE, self.now)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_lets_through_no_more_than_it_says_and_comes_back(seed):
    world = World(seed)
    for _ in range(800):
        world.step()

    assert world.begun <= world.not_closed_ms / RULE.probe_ms + 2 + 3 * world.changes
    world.mend()
    assert world.breaker.told(world.now).state is CLOSED
