"""The rate of a group: in any time t all leaders together hand out at most rate · t + burst."""

from __future__ import annotations

import math
import random

import pytest

from flowshare.core_errors import InvalidConfig
from flowshare.share.breaker import BreakerState, Gate, GateReport, Told
from flowshare.share.config import GroupConfig, ServerConfig
from flowshare.share.leases import LEASE_MS
from flowshare.share.rate import FORGET_MS, Permits, Rate, RateLeases, RateReport, parse_rate
from tests.share.builders import acquire, partition


def rate(text: str) -> Rate:
    found = parse_rate(text)
    assert found is not None
    return found


WANTS = RateReport(0, 0, True)


@pytest.mark.parametrize(
    ("text", "per_s", "said"),
    [("100", 100, "100"), ("100/s", 100, "100/s"), (" 30 / m ", 0.5, "30 / m"), ("2.5/h", 2.5 / 3600, "2.5/h")],
)
def test_rates_are_read(text, per_s, said):
    assert (rate(text).per_s, str(rate(text))) == (pytest.approx(per_s), said)


@pytest.mark.parametrize("text", ["", "-1", "0/s", "10/d", "1e3", "1000001/s", "0.01/h", "x", "١/s", "9" * 40])
def test_what_is_no_rate_is_refused(text):
    assert parse_rate(text) is None


def test_the_group_setting_is_a_rate_or_0():
    server = ServerConfig.embedded()

    assert GroupConfig.parse({}, server).max_rate is None
    assert GroupConfig.parse({"share.max.rate": "0"}, server).max_rate is None
    config = GroupConfig.parse({"share.max.rate": "10/m"}, server)
    assert config.max_rate == rate("10/m")
    told = {one.name: one.value for one in config.values({"share.max.rate": "10/m"})}
    assert told["share.max.rate"] == "10/m"
    assert GroupConfig.effective({"share.max.rate": "nonsense"}, server).max_rate is None
    with pytest.raises(InvalidConfig, match=r"'10 a day'; allowed: a rate such as 100/s or 10/m or 0"):
        GroupConfig.parse({"share.max.rate": "10 a day"}, server)


# --- a leader --------------------------------------------------------------------------------------------------------


def test_permits_are_spent_and_what_is_not_needed_goes_back():
    permits = Permits()
    permits.free = 5

    assert permits.grant(3) == 3
    permits.take(3)
    assert permits.report() == RateReport(held=2, back=0, wanting=True)
    assert permits.grant(9) == 2
    permits.take(2)
    assert permits.used_up
    assert permits.report() == RateReport(held=0, back=0, wanting=True)
    permits.free = 4
    assert permits.report() == RateReport(held=0, back=4, wanting=False)
    assert permits.used_up


def test_permits_without_a_limit_are_any_number():
    permits = Permits()
    permits.free = None

    assert permits.grant(10_000) == 10_000
    permits.take(10_000)
    assert permits.free is None
    assert not permits.report().wanting


def test_what_no_breaker_holds_back_gives_nothing_back_to_one():
    permits = Permits()

    assert permits.report_gate(Told()) == GateReport(wanting=False, back=0, told=Told())
    assert permits.gate is None


def test_what_a_breaker_let_through_is_spent_and_given_back_beside_the_rate():
    permits = Permits()
    permits.free, permits.gate = None, 1

    assert permits.grant(5) == 1
    permits.take(1)
    assert permits.used_up
    assert permits.grant(5) == 0
    permits.put_back(1)
    assert permits.gate == 1
    told = Told(BreakerState.HALF_OPEN)
    assert permits.report_gate(told) == GateReport(wanting=True, back=1, told=told)
    assert permits.used_up
    permits.report()
    assert permits.report_gate(told) == GateReport(wanting=False, back=0, told=told)
    permits.lack()
    assert permits.asked()
    assert not permits.asked()
    permits.open_gate(Gate(told, 1))
    assert permits.grant(9) == 1
    permits.open_gate(Gate(Told()))
    permits.free = 7
    assert permits.grant(9) == 7


def test_permits_that_were_not_used_after_all_come_back():
    permits = Permits()
    permits.free = 1
    permits.take(1)
    permits.put_back(1)
    assert permits.free == 1
    permits.take(1)
    permits.report()
    permits.put_back(1)

    assert permits.free == 0, "it was reported as spent"


def test_a_share_partition_hands_out_what_the_permits_allow_to_the_record():
    target = partition()
    assert acquire(target, (0, 9), most=2) == [(0, 9, 1)], "whole batches, without a limit"
    target = partition()
    permits = target.allowance.permits = Permits()
    assert not target.can_acquire()
    assert acquire(target, (0, 49), most=50) == []
    permits.free = 3
    assert target.may_acquire("m1", 50, 0) == 3
    assert acquire(target, (0, 49), most=50) == [(0, 2, 1)]
    assert permits.used_up
    permits.free = None
    assert acquire(target, (3, 9), most=50) == [(3, 9, 1)]
    target.allowance.put_back(2)
    target.allowance.permits = None
    target.allowance.put_back(2)


def test_a_full_bucket_gets_nothing_more_and_another_one_says_when():
    leases = RateLeases(0)
    assert leases.next_s(rate("2/s")) == pytest.approx(0.5)
    leases.grant(1, RateReport(0, 0, False), rate("2/s"), 10_000)

    assert leases.next_s(rate("2/s")) == math.inf
    leases.grant(1, WANTS, rate("2/s"), 10_000)
    assert leases.next_s(rate("2/s")) == math.inf, "what was given is not spent, as far as is known"


# --- the bucket ------------------------------------------------------------------------------------------------------


def test_a_new_coordinator_begins_with_nothing():
    leases = RateLeases(begun_ms=50_000)

    assert leases.grant(1, WANTS, rate("10/s"), 50_000) == 0
    assert leases.grant(1, WANTS, rate("10/s"), 50_100) == 1


def test_after_a_pause_there_is_a_burst_and_no_more():
    leases = RateLeases(0)

    assert leases.grant(1, WANTS, rate("10/s"), 3_600_000) == 6


def test_a_leader_that_wants_alone_gets_all():
    leases = RateLeases(0)
    leases.grant(2, RateReport(0, 0, False), rate("100/s"), 0)
    got = sum(leases.grant(1, WANTS, rate("100/s"), now) for now in range(0, 10_001, 100))

    assert got == pytest.approx(1000, abs=1)


@pytest.mark.parametrize("text", ["1000/s", "100/s", "7/s", "10/m"])
def test_those_that_want_get_equal_parts(text):
    leases, got = RateLeases(0), dict.fromkeys((1, 2, 3), 0)
    seconds = 20 if text.endswith("s") else 120
    for now in range(0, seconds * 1000 + 1, 100):
        for node in got:
            got[node] += leases.grant(node, WANTS, rate(text), now)

    assert sum(got.values()) == pytest.approx(rate(text).per_s * seconds, rel=0.01, abs=1)
    assert max(got.values()) - min(got.values()) <= 1 + 0.02 * sum(got.values())


def test_what_one_does_not_use_goes_to_those_who_want_it():
    leases, got = RateLeases(0), {1: 0, 2: 0}
    for now in range(0, 20_001, 100):
        got[1] += leases.grant(1, WANTS, rate("100/s"), now)
        got[2] += leases.grant(2, RateReport(0, 0, now >= 10_000), rate("100/s"), now)

    assert got[1] == pytest.approx(1500, abs=15)
    assert got[2] == pytest.approx(500, abs=15)


def test_what_is_given_back_can_be_given_again():
    leases = RateLeases(0)
    assert leases.grant(1, WANTS, rate("10/s"), 10_000) == 6

    leases.grant(1, RateReport(0, 4, False), rate("10/s"), 10_001)
    assert leases.grant(2, WANTS, rate("10/s"), 10_002) == 4


def test_more_cannot_be_given_back_than_was_given():
    leases = RateLeases(0)
    leases.grant(1, RateReport(0, 1_000, False), rate("10/s"), 100)

    assert leases.outstanding <= 1


def test_nothing_comes_while_a_leader_has_a_burst_in_hand_until_it_says_that_it_is_spent():
    leases = RateLeases(0)
    assert leases.grant(1, WANTS, rate("10/s"), 10_000) == 6

    assert leases.grant(1, WANTS, rate("10/s"), 12_000) == 0
    assert leases.grant(1, WANTS, rate("10/s"), 12_100) == 1


def test_tokens_of_a_leader_that_is_gone_count_as_spent():
    leases = RateLeases(0)
    assert leases.grant(1, WANTS, rate("1/m"), 120_000) == 1

    assert leases.grant(2, WANTS, rate("1/m"), 120_000 + FORGET_MS) == 0
    assert leases.grant(2, WANTS, rate("1/m"), 120_000 + FORGET_MS + 60_000) == 1


def test_a_leader_that_dies_hungry_keeps_nothing_from_the_others():
    leases, got = RateLeases(0), 0
    for now in range(0, 20_001, 100):
        got += leases.grant(1, WANTS, rate("100/s"), now)
        if now == 10_000:
            leases.grant(2, WANTS, rate("100/s"), now)

    assert got == pytest.approx(2000, rel=0.03)


def test_a_lower_rate_acts_at_once():
    leases = RateLeases(0)
    leases.grant(1, WANTS, rate("1000/s"), 10_000)
    leases.grant(1, RateReport(0, 501, False), rate("1000/s"), 10_010)

    assert leases.grant(1, WANTS, rate("2/s"), 10_020) == 2


def test_a_clock_that_stands_or_goes_back_gives_nothing():
    leases = RateLeases(10_000)
    leases.grant(1, WANTS, rate("100/s"), 10_100)

    assert leases.grant(1, WANTS, rate("100/s"), 10_100) == 0
    assert leases.grant(1, WANTS, rate("100/s"), 9_000) == 0
    assert leases.grant(1, WANTS, rate("100/s"), 10_200) == 10


# --- many leaders, lost messages, deaths, coordinators that change ---------------------------------------------------


class World:
    """Leaders with permits of their own, whose reports and answers get lost, and who die; coordinators that change."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.now = 1_000_000
        self.rate = rate(self.choose.choice(["10/m", "3/s", "40/s", "1000/s"]))
        self.nodes = {node: Permits() for node in range(self.choose.randint(1, 7))}
        self.until = dict.fromkeys(self.nodes, 0)
        self.leases = RateLeases(self.now)
        self.handed: list[tuple[int, int]] = []
        self.changes = 0

    def step(self) -> None:
        choose = self.choose
        self.now += choose.choice((1, 10, 30, 120))
        for node in list(self.nodes):
            if self.now >= self.until[node] and self.nodes[node].free:
                self.nodes[node].free = 0
            self.hand_out(node, choose.choice((0, 1, 5, 100)))
            self.report(node, lost=choose.random())
            self.hand_out(node, choose.choice((0, 1, 100)))
        if choose.random() < 0.01:
            node = choose.choice(list(self.nodes))
            del self.nodes[node], self.until[node]
            other = max(self.nodes, default=0) + 100
            self.nodes[other], self.until[other] = Permits(), 0
        if choose.random() < 0.003:
            self.leases, self.changes = RateLeases(self.now), self.changes + 1
        assert self.leases.outstanding <= self.rate.burst + 1e-6

    def report(self, node: int, lost: float) -> None:
        permits = self.nodes[node]
        report, asked = permits.report(), self.now
        if lost < 0.05:
            return
        granted = self.leases.grant(node, report, self.rate, self.now)
        if lost < 0.1:
            return
        permits.free = (permits.free or 0) + granted
        self.until[node] = asked + LEASE_MS

    def hand_out(self, node: int, wanted: int) -> None:
        if wanted:
            got = self.nodes[node].grant(wanted)
            self.nodes[node].take(got)
            self.handed.append((self.now, got))

    def check(self) -> None:
        """Every time from one moment to another: the most that lies above the line of the rate is the burst."""
        total, least = 0.0, 0.0
        begun = self.handed[0][0] if self.handed else 0
        for now, count in self.handed:
            line = (now - begun) * self.rate.per_s / 1000
            least = min(least, total - line)
            total += count
            assert total - line - least <= self.rate.burst * (1 + self.changes) + 1e-6


@pytest.mark.parametrize("seed", range(40))
def test_in_any_time_all_leaders_together_hand_out_at_most_the_rate_and_a_burst(seed):
    world = World(seed)
    for _ in range(250):
        world.step()
    world.check()


@pytest.mark.parametrize("seed", range(10))
def test_without_faults_the_rate_is_reached(seed):
    world = World(seed)
    world.rate = rate("50/s")
    for _ in range(334):
        world.now += 30
        for node in world.nodes:
            world.hand_out(node, 100)
            world.report(node, lost=1.0)
    assert sum(count for _, count in world.handed) == pytest.approx(50 * 10, rel=0.03)
