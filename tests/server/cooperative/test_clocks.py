"""The machine's clock is set back or forward by days, and time passes, while cooperative groups work."""

from __future__ import annotations

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import StartEntry
from flowshare.testing.clock import settle
from tests.server.cooperative.test_offsets import delete
from tests.server.cooperative.world import LEASE_MS, LOWER, NONE, SWEEP, WHOLE, cooperative

pytestmark = pytest.mark.asyncio
DAY_S = 86_400.0
SET = pytest.mark.parametrize("days", [-400, -1, 1, 400])
ALMOST_S = LEASE_MS / 1000 - 0.5


@SET
async def test_a_claim_lasts_as_long_as_its_lease_however_the_clock_is_set(days):
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(LOWER)
        first, end, epoch = a.held[0][0]
        w.clock.set_wall(days * DAY_S)
        await w.clock.advance(ALMOST_S)

        assert [one.holder for one in (await b.hold(WHOLE)).blocked] == ["a"]
        assert (await a.commits(StartEntry((first, end), epoch, ((7, 2),), 3_000))).error is NONE
        assert await a.commit((0, 5)) == (5, 0, 5)
        await w.clock.advance(1.0)
        part = await b.hold(WHOLE)
        assert not part.blocked
        assert tuple(tuple(one) for one in part.starts) == ((7, 2),)
        assert [(one.before, one.end) for one in part.reaches] == [(3_000, LOWER[0][1])]
        assert (await a.commits(a.entry((5, 6)))).fenced == (0,)


@SET
async def test_leases_that_were_stored_before_the_clock_was_set_count_from_the_start(days):
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(LOWER)
        w.clock.set_wall(days * DAY_S)
        await w.restart()
        w.again(a)
        w.again(b)
        assert [one.holder for one in (await b.hold(WHOLE)).blocked] == ["a"]
        await w.clock.advance(ALMOST_S)
        assert [one.holder for one in (await b.hold(WHOLE)).blocked] == ["a"]
        await w.clock.advance(1.0)
        assert not (await b.hold(WHOLE)).blocked


@SET
async def test_a_late_commit_of_a_group_that_was_deleted_is_fenced_however_the_clock_was_set(days):
    async with cooperative(100) as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50), (60, 70))
        late, before = m.entry((70, 80)), m.epochs[0]
        await delete(w)
        w.clock.set_wall(days * DAY_S)
        await w.restart()
        w.again(m)

        assert (await m.hold(WHOLE)).stable == 0
        assert (await m.commits(late, reset_epoch=before)).error is ErrorCode.FENCED_STATE_EPOCH
        assert await w.state() == (0, [])


@pytest.mark.parametrize("days", [0, 400])
async def test_what_a_group_holds_does_not_expire_though_nothing_is_committed_for_long(days):
    async with cooperative(100, classic=SWEEP) as w:
        a = w.member("a")
        await a.hold(WHOLE)
        await a.commit((0, 50), (60, 70))
        w.clock.set_wall(days * DAY_S)
        for _ in range(40):
            await w.clock.advance(LEASE_MS / 4_000)
            await settle()
            assert (await a.hold(WHOLE)).stable == 50
        assert await w.state() == (50, [(60, 70)])
        await a.leaves()
        for _ in range(70):
            await w.clock.advance(1)
            await settle()
        assert await w.stored("g") == []


async def test_a_member_that_is_started_again_under_its_name_is_let_in_when_its_lease_is_over():
    async with cooperative() as w:
        m = w.member("m")
        m.sequence = 40
        await m.hold(WHOLE)
        await m.leaves()
        again = w.member("m")
        assert (await again.asks({0: WHOLE})).error is ErrorCode.FENCED_MEMBER_EPOCH
        await w.clock.advance(LEASE_MS / 1000)
        assert [one[:2] for one in (await again.hold(WHOLE)).held] == [WHOLE[0]]
