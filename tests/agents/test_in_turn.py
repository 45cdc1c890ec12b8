"""Figures of very many groups: asked in turn, oldest first, within a limited time; the end of a log is asked once."""

from __future__ import annotations

import pytest

from flowshare.agents.scale import in_turn, lag
from flowshare.agents.scale.in_turn import InTurn
from flowshare.agents.scale.retention import Facts
from flowshare.protocol.messages import SharePartitionOffsets
from tests.sim.clock import HandClock

pytestmark = pytest.mark.asyncio


class Admin:
    """Tells of groups that all read one topic, each after some time of the clock."""

    def __init__(self, clock: HandClock, takes_s: float = 0.0) -> None:
        self.clock, self.takes_s = clock, takes_s
        self.asked: list[str] = []
        self.ends = 0
        self.finished = 0

    async def group_offsets(self, group):
        self.asked.append(group)
        self.clock.now_s += self.takes_s
        return [SharePartitionOffsets(topic="t", topic_id=None, partition=0, start_offset=self.finished, lag=100)]

    async def log_end(self, topic, partition):
        self.ends += 1
        return 100 + self.finished

    async def topic_configs(self, topic):
        return []


def names(count: int) -> list[str]:
    return [f"g{number:05}" for number in range(count)]


async def test_the_end_of_a_log_is_asked_for_once_for_the_groups_that_are_asked_together():
    admin = Admin(HandClock())
    found = await lag.rows(admin, lag.Groups(names(2 * lag.GROUPS_AT_ONCE), ()), 0)

    assert (len(found), admin.ends) == (2 * lag.GROUPS_AT_ONCE, 2)
    assert [row["group"] for row in found] == names(2 * lag.GROUPS_AT_ONCE)


async def test_a_look_at_thousands_of_groups_takes_its_part_of_the_time_and_the_others_come_with_the_next_looks():
    clock = HandClock()
    admin = Admin(clock, takes_s=0.01)
    turns, facts, groups = InTurn(clock), Facts(admin), names(1_000)
    looks = 0
    found = await turns.look(admin, facts, groups, ())
    first = sum(one.known for one in found.values())
    while not all(one.known for one in found.values()):
        looks += 1
        found = await turns.look(admin, facts, groups, ())

    chunk_s = lag.AT_ONCE * admin.takes_s
    assert in_turn.PART_S <= first * admin.takes_s <= in_turn.PART_S + chunk_s
    assert looks <= 1_000 // first
    assert admin.asked[:1_000] == groups  # nobody twice before everybody once
    assert turns.oldest_s <= (looks + 1) * (in_turn.PART_S + chunk_s)


async def test_the_rate_of_a_group_that_is_asked_seldom_is_of_the_time_between():
    clock = HandClock()
    admin = Admin(clock)
    turns, facts = InTurn(clock), Facts(admin)
    await turns.look(admin, facts, ["g"], ())
    clock.now_s += 60.0
    admin.finished = 30
    found = await turns.look(admin, facts, ["g"], ())

    assert found["g"].topics[0]["rate"] == 0.5


async def test_a_group_that_is_gone_is_forgotten():
    clock = HandClock()
    admin = Admin(clock)
    turns, facts = InTurn(clock), Facts(admin)
    await turns.look(admin, facts, ["a", "b"], ())

    assert list(await turns.look(admin, facts, ["b"], ())) == ["b"]
