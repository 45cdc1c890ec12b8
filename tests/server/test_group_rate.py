"""The rate of a group on a server by itself: what it hands out in any time, to whom, and that it comes again."""

from __future__ import annotations

import pytest

from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from tests.server.world import World, accept, parked, ranges, release, world

pytestmark = pytest.mark.asyncio


async def paced(w: World, rate: str | None) -> None:
    """Set the rate of group `g`."""
    answer = await w.configure({"share.max.rate": rate})
    assert answer.error is ErrorCode.NONE, answer.message


def count(answer) -> int:
    """Records acquired in an answer, of all partitions."""
    return sum(last - first + 1 for partition in answer.partitions for first, last, _ in partition.acquired)


async def drained(w: World, member, ats, seconds: float, *, step_s: float = 0.05) -> int:
    """Return the number of records that a member gets if it fetches all it can for so many seconds."""
    got = 0
    for _ in range(round(seconds / step_s)):
        got += count(await member.fetch(*ats, max_records=1_000))
        await w.clock.advance(step_s)
    return got


async def test_a_group_hands_out_no_more_than_its_rate_over_all_share_partitions() -> None:
    async with world() as w:
        ats = await w.logs(500, 500, 500)
        await paced(w, "40/s")
        m1 = w.member("m1")

        assert await drained(w, m1, ats, 20) == pytest.approx(800, abs=3)


async def test_two_members_that_wait_get_equal_parts() -> None:
    async with world() as w:
        at = await w.log(400)
        await paced(w, "20/s")
        got = {"m1": 0, "m2": 0}
        members = {name: w.member(name) for name in got}
        waiting = {name: await parked(one.fetch(at, max_wait_ms=600_000)) for name, one in members.items()}
        for _ in range(200):
            await w.clock.advance(0.05)
            for name, task in waiting.items():
                if task.done():
                    got[name] += count(task.result())
                    waiting[name] = await parked(members[name].fetch(max_wait_ms=600_000))

        assert sum(got.values()) == pytest.approx(200, abs=3)
        assert abs(got["m1"] - got["m2"]) <= 2


async def test_a_slow_rate_lets_one_through_at_a_time_and_wakes_who_waits() -> None:
    async with world() as w:
        at = await w.log(3)
        await paced(w, "6/m")
        m1 = w.member("m1")
        waiting = await parked(m1.fetch(at, max_wait_ms=600_000))
        await w.clock.advance(9.9)
        assert not waiting.done()
        await w.clock.advance(0.2)
        assert ranges(await waiting) == [(0, 0, 1)]
        assert count(await m1.fetch()) == 0


async def test_the_time_in_which_a_rate_left_nothing_for_who_waits_is_counted() -> None:
    async with world() as w:
        at = await w.log(3)
        partitions = w.server.share.partitions
        await paced(w, "6/m")
        m1 = w.member("m1")
        waiting = await parked(m1.fetch(at, max_wait_ms=600_000))
        await w.clock.advance(9)
        assert partitions.rate_limited_s["g"] == pytest.approx(9, abs=0.1), "a wait that goes on"
        await w.clock.advance(1.1)
        assert count(await waiting) == 1
        assert partitions.rate_limited_s["g"] == pytest.approx(10, abs=0.3)
        await w.clock.advance(30)
        assert partitions.rate_limited_s["g"] == pytest.approx(10, abs=0.3), "nobody waits"
        assert w.server.stats()["rate_limited_s"] == partitions.rate_limited_s
        await paced(w, "0")
        assert partitions.rate_limited_s == {}


async def test_after_a_pause_half_a_second_s_worth_comes_at_once() -> None:
    async with world() as w:
        at = await w.log(500)
        await paced(w, "40/s")
        m1 = w.member("m1")
        assert count(await m1.fetch(at)) == 0
        await w.clock.advance(60)

        assert count(await m1.fetch(max_records=1_000)) == 21


async def test_redeliveries_count() -> None:
    async with world() as w:
        at = await w.log(1)
        await paced(w, "6/m")
        m1 = w.member("m1")
        await m1.fetch(at)
        await w.clock.advance(10.1)
        assert ranges(await m1.fetch()) == [(0, 0, 1)]
        await m1.acknowledge({at: [release(0)]})
        await w.clock.advance(5)
        assert count(await m1.fetch()) == 0
        await w.clock.advance(5.1)

        assert ranges(await m1.fetch()) == [(0, 0, 2)]


async def test_a_rate_that_is_changed_or_taken_away_acts_at_once() -> None:
    async with world() as w:
        at = await w.log(300)
        await paced(w, "1/h")
        m1, m2 = w.member("m1"), w.member("m2")
        waiting = await parked(m1.fetch(at, max_wait_ms=600_000, max_records=5, acquire_mode=1))
        await w.clock.advance(60)
        assert not waiting.done()

        await paced(w, None)
        assert ranges(await waiting) == [(0, 4, 1)]
        assert count(await m2.fetch(at, max_records=100, acquire_mode=1)) == 100


async def test_both_limits_of_a_group_hold_together() -> None:
    async with world() as w:
        at = await w.log(100)
        await w.configure({"share.max.in.flight": "4", "share.max.rate": "10/s"})
        m1 = w.member("m1")
        assert await drained(w, m1, [at], 3) == 4
        answer = await m1.fetch(acks={at: [accept(0, 3)]}, max_records=50)
        got = count(answer) + count(await m1.fetch(max_records=50))

        assert got == 4


async def test_a_group_without_a_rate_ticks_nothing_and_has_no_permits() -> None:
    async with world() as w:
        at = await w.log(10)
        await w.member("m1").fetch(at)

        partitions = w.server.share.partitions
        assert partitions.quota("g") is None
        assert partitions._pacing._timer is None
        [owner] = partitions.owners("g")
        assert owner.partition.allowance.permits is None


async def test_the_clock_set_by_a_day_changes_nothing() -> None:
    async with world() as w:
        at = await w.log(100)
        await paced(w, "10/s")
        m1 = w.member("m1")
        await m1.fetch(at)
        w.clock.set_wall(86_400)
        first = count(await m1.fetch(max_records=1_000))

        assert first <= 1
        assert await drained(w, m1, [at], 2) <= 21


async def test_an_ordered_group_keeps_to_its_rate_too_and_what_an_answer_has_no_room_for_costs_nothing() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.configure({"share.key.order": "key", "share.max.rate": "20/s"})
        builder = BatchBuilder()
        for number in range(60):
            assert builder.add(b"k%d" % number, b"v" * 1_000, [], timestamp_ms=1)
        await w.produce(builder.build())
        m1, got = w.member("m1"), 0
        for _ in range(40):
            answer = await m1.fetch(at, max_records=100, max_bytes=2_500)
            got += count(answer)
            await w.clock.advance(0.05)

        assert got == pytest.approx(40, abs=2)
