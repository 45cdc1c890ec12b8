"""A group's circuit breaker on a server by itself: what it hands out while it is open, and who may say what."""

from __future__ import annotations

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareBreakerRequest
from flowshare.share.breaker import BreakerState
from tests.server.test_group_rate import count
from tests.server.world import parked, ranges, release, world

pytestmark = pytest.mark.asyncio
ON = {
    "share.breaker.failure.percent": "50",
    "share.breaker.window.size": "10",
    "share.breaker.open.ms": "4000",
    "share.breaker.open.max.ms": "6000",
}


async def broken(w, **more):
    """A joined member of a group whose breaker is open; where it reads."""
    at = await w.log(100)
    await w.configure({**ON, **more})
    m1 = w.member("m1", own=True)
    await m1.heartbeat("t")
    await w.clock.advance(0.1)
    await said(w, 0, 0)
    assert (await said(w, 1, 9)).state == "open"
    await w.clock.advance(0.3)
    return at, m1


async def said(w, succeeded, failed, tried_succeeded=0, tried_failed=0, **fields):
    counted = (succeeded, failed, tried_succeeded, tried_failed)
    asked = {"act": "report", "member_id": "m1", **fields}
    return await w.admin.send(ShareBreakerRequest(group_id="g", outcomes=counted, **asked))


async def test_an_open_breaker_hands_out_nothing_then_one_record_then_all() -> None:
    async with world() as w:
        at, m1 = await broken(w)
        waiting = await parked(m1.fetch(at, max_wait_ms=60_000))
        told = await w.admin.send(ShareBreakerRequest(group_id="g"))
        assert (told.state, told.why) == ("open", "9 of the last 10 outcomes failed")
        await w.clock.advance(told.left_ms / 1000 - 0.3)
        assert not waiting.done()
        await w.clock.advance(0.6)
        assert ranges(await waiting) == [(0, 0, 1)]
        assert count(await m1.fetch()) == 0
        assert (await said(w, 1, 9)).state == "half-open"

        assert (await said(w, 1, 9, 1)).state == "closed"
        await w.clock.advance(0.3)
        assert count(await m1.fetch(max_records=50)) >= 50


async def test_a_try_that_fails_costs_no_attempt_and_the_next_one_comes_later() -> None:
    async with world() as w:
        at, m1 = await broken(w)
        assert count(await m1.fetch(at)) == 0
        await w.clock.advance(4)
        assert ranges(await m1.fetch()) == [(0, 0, 1)]
        await m1.acknowledge({at: [release(0)._replace(unrun=True, delay_ms=8_000)]})
        assert (await said(w, 1, 9, 0, 1)).left_ms == 6_000
        await w.clock.advance(5)
        assert count(await m1.fetch()) == 0
        await w.clock.advance(1.3)
        assert ranges(await m1.fetch()) == [(1, 1, 1)], "not the same one again"
        await said(w, 1, 9, 1, 1)
        await w.clock.advance(3)

        assert ranges(await m1.fetch(max_records=1, acquire_mode=1)) == [(0, 0, 1)]


async def test_a_try_of_which_nothing_is_heard_is_followed_by_another() -> None:
    async with world() as w:
        at, m1 = await broken(w, **{"share.record.lock.duration.ms": "5000"})
        await m1.fetch(at)
        await w.clock.advance(4)
        assert count(await m1.fetch()) == 1
        await w.clock.advance(4)
        assert count(await m1.fetch()) == 0
        await said(w, 1, 9)
        await w.clock.advance(1.3)

        assert count(await m1.fetch()) == 1


async def test_closed_by_hand_or_turned_off_it_hands_out_at_once() -> None:
    for change in ("close", "off"):
        async with world() as w:
            at, m1 = await broken(w)
            waiting = await parked(m1.fetch(at, max_wait_ms=60_000))
            if change == "close":
                assert (await said(w, 0, 0, act="close", member_id="")).state == "closed"
            else:
                await w.configure({"share.breaker.failure.percent": None})
            await w.clock.advance(0.3)

            assert count(await waiting) > 1


async def test_beside_a_rate_both_hold() -> None:
    async with world() as w:
        at, m1 = await broken(w, **{"share.max.rate": "20/s"})
        await w.clock.advance(3)
        assert count(await m1.fetch(at)) == 0
        await said(w, 0, 0, act="close", member_id="")
        await w.clock.advance(0.3)

        assert 0 < count(await m1.fetch(max_records=500)) <= 11


async def test_only_a_member_says_what_it_counted_and_a_group_without_one_is_closed() -> None:
    async with world() as w:
        await broken(w)
        assert (await said(w, 0, 50, member_id="stranger")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await w.admin.send(ShareBreakerRequest(group_id="nobody"))).error is ErrorCode.GROUP_ID_NOT_FOUND
        await w.configure({"share.breaker.failure.percent": "0"})

        assert (await said(w, 0, 99)).state == "closed"
        assert w.server.share.partitions.quota("g") is None


@pytest.mark.parametrize("ends", ["in order", "killed"])
async def test_after_a_restart_it_is_as_the_members_know_it(ends: str) -> None:
    async with world() as w:
        at, m1 = await broken(w)
        assert count(await m1.fetch(at)) == 0
        await (w.die() if ends == "killed" else w.restart())
        m1.reconnect()
        await m1.heartbeat("t")
        told = await said(w, 1, 9, known=(BreakerState.OPEN, 3_000, 4_000))
        assert (told.state, told.left_ms, told.open_ms) == ("open", 3_000, 4_000)
        await w.clock.advance(2.5)
        await said(w, 1, 9)
        assert count(await m1.fetch(at)) == 0
        await w.clock.advance(0.8)
        assert count(await m1.fetch()) == 1
        assert (await said(w, 1, 9, 1)).state == "closed"


async def test_after_a_restart_what_is_being_tried_is_waited_for() -> None:
    async with world() as w:
        at, m1 = await broken(w, **{"share.record.lock.duration.ms": "5000"})
        await w.restart()
        m1.reconnect()
        await m1.heartbeat("t")
        assert (await said(w, 1, 9, known=(BreakerState.HALF_OPEN, 0, 4_000))).state == "half-open"
        await w.clock.advance(4.5)
        await said(w, 1, 9, known=(BreakerState.HALF_OPEN, 0, 4_000))
        assert count(await m1.fetch(at)) == 0
        await w.clock.advance(0.8)

        assert count(await m1.fetch()) == 1


async def test_a_clock_that_is_set_by_days_opens_and_closes_nothing() -> None:
    async with world() as w:
        at, m1 = await broken(w)
        assert count(await m1.fetch(at)) == 0
        for days in (1, -2, 1):
            w.clock.set_wall(days * 86_400)
            await w.clock.advance(1)
            await said(w, 1, 9)
            assert count(await m1.fetch()) == 0
        await w.clock.advance(1)

        assert count(await m1.fetch()) == 1
