"""The machine's clock is set by days while the server runs, and between two runs: nothing ends early, nothing late."""

from __future__ import annotations

import pytest

from flowshare.clock import LoopClock, ahead_ms
from flowshare.protocol.errors import ErrorCode
from flowshare.share.config import GroupConfig
from flowshare.share.group import ShareGroup
from flowshare.share.types import DELAY_MS_MAX
from flowshare.testing.clock import START_MS, ManualClock
from flowshare.transactions.transaction import Transaction, TransactionState
from tests.server.classic_world import NONE, R_S
from tests.server.classic_world import world as classic_world
from tests.server.test_transactions import Writer
from tests.server.world import accept, parked, ranges, release, world

pytestmark = pytest.mark.asyncio

DAYS_S = 2 * 86_400
jumps = pytest.mark.parametrize("jump_s", [DAYS_S, -DAYS_S], ids=["forward", "back"])
LOCK_S = 30.0
"""Default of `share.record.lock.duration.ms`."""


def later_process(w, jump_s: float) -> None:
    """The next server is another process's, before whose start the machine's clock was set."""
    w.clock = ManualClock(w.clock.now_ms() + round(jump_s * 1000))


async def test_the_clocks_of_a_process_agree_and_begin_with_the_machine_s() -> None:
    one, other = LoopClock(), LoopClock()

    first = one.steady_ms()
    assert first <= other.steady_ms() <= first + 60_000
    assert abs(ahead_ms(one)) < 60_000


@jumps
async def test_a_lock_lives_for_its_duration_and_no_other_time_however_the_clock_is_set(jump_s: float) -> None:
    async with world() as w:
        at, m1 = await w.held(2)
        task = await parked(w.member("m2").fetch(at, max_wait_ms=60_000))

        w.clock.set_wall(jump_s)
        await m1.acknowledge({at: [accept(0)]})  # its partition looks at the time again
        await w.clock.advance(LOCK_S - 1)
        assert not task.done()
        await w.clock.advance(1.5)

        assert ranges(await task) == [(1, 1, 2)]


@jumps
async def test_a_delay_lasts_as_long_as_was_said_however_the_clock_is_set(jump_s: float) -> None:
    async with world() as w:
        at, m1 = await w.held(1)
        await m1.acknowledge({at: [release(0, delay_ms=10_000)]})

        w.clock.set_wall(jump_s)
        await w.clock.advance(9)
        assert (await m1.fetch()).partitions == ()
        await w.clock.advance(1.5)

        assert ranges(await m1.fetch()) == [(0, 0, 2)]


@jumps
async def test_a_share_member_is_let_go_after_its_session_timeout_alone(jump_s: float) -> None:
    async with world() as w:
        await w.topic()
        await w.member("m1").heartbeat("t", epoch=0)
        timeout_s = GroupConfig().session_timeout_ms / 1000

        w.clock.set_wall(jump_s)
        await w.clock.advance(timeout_s - 1)
        assert await w.members() == ["m1"]
        await w.clock.advance(2)

        assert await w.members() == []


@jumps
async def test_a_consumer_group_s_member_is_let_go_after_its_session_timeout_alone(jump_s: float) -> None:
    async with classic_world() as w:
        one = await w.stable()

        w.clock.set_wall(jump_s)
        await w.clock.advance(9)
        assert await w.beat(one, 1) is NONE
        assert await w.commit(5, member_id=one, generation=1) is NONE
        await w.clock.advance(9)
        assert await w.beat(one, 1) is NONE
        await w.clock.advance(11)

        assert await w.beat(one, 1) is ErrorCode.UNKNOWN_MEMBER_ID


@jumps
async def test_a_transaction_is_aborted_after_its_timeout_alone(jump_s: float) -> None:
    async with classic_world() as w:
        one = Writer(w, "one")
        await one.open(timeout_ms=10_000)

        w.clock.set_wall(jump_s)
        await w.clock.advance(9.9)
        assert await one.state() == "Ongoing"
        await w.clock.advance(0.2)

        assert await one.state() == "CompleteAbort"


async def test_a_lock_of_a_dead_process_lasts_no_longer_than_its_own_duration_after_a_restart_days_back() -> None:
    async with world() as w:
        at, m1 = await w.held(1, own=True)

        later_process(w, -DAYS_S)
        await w.die()
        m1.reconnect()
        await m1.heartbeat()
        m2 = w.member("m2")
        assert ranges(await m2.fetch(at)) == []
        await w.clock.advance(LOCK_S + 1)

        assert ranges(await m2.fetch()) == [(0, 0, 2)]


async def test_a_transaction_lasts_no_longer_than_its_timeout_after_a_restart_days_back() -> None:
    async with classic_world() as w:
        one = Writer(w, "one")
        await one.open(timeout_ms=10_000)

        later_process(w, -DAYS_S)
        await w.restart()
        assert await one.state() == "Ongoing"
        await w.clock.advance(10.1)

        assert await one.state() == "CompleteAbort"


async def test_a_delay_is_bounded_after_a_restart_years_back() -> None:
    async with world() as w:
        at, m1 = await w.held(1)
        await m1.acknowledge({at: [release(0, delay_ms=10_000)]})

        w.clock = ManualClock(0)
        await w.restart()
        m1.reconnect()
        await m1.fetch(at)
        await w.clock.advance(DELAY_MS_MAX / 1000 + 1)

        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 2)]


async def test_offsets_of_a_group_that_became_empty_before_the_clock_was_put_right_are_kept_over_a_restart() -> None:
    async with classic_world() as w:
        w.clock.set_wall(DAYS_S)  # it had begun with the clock two days slow
        one = await w.stable()
        assert await w.commit(5, member_id=one, generation=1) is NONE
        await w.leave(one)

        w.clock = ManualClock(w.clock.now_ms())
        await w.restart()
        await w.clock.advance(R_S / 2)
        assert await w.committed() == {("t", 0): 5}
        await w.clock.advance(R_S)

        assert await w.committed() in ({}, ErrorCode.GROUP_ID_NOT_FOUND)


async def test_what_a_share_group_stores_of_time_is_the_machine_s_and_is_never_read_as_in_the_future() -> None:
    config = GroupConfig()
    group = ShareGroup("g", config=config)
    state = group._state
    state.empty_since_ms = START_MS

    stored = group.encode(ahead_ms=DAYS_S * 1000)

    same = ShareGroup.decode(stored, group_id="g", config=config, now_ms=START_MS + DAYS_S * 1000)
    assert same.empty_since_ms == START_MS + DAYS_S * 1000
    earlier = ShareGroup.decode(stored, group_id="g", config=config, now_ms=START_MS)
    assert earlier.empty_since_ms == START_MS


async def test_a_transaction_s_times_are_moved_together_and_bounded() -> None:
    one = Transaction(
        transactional_id="x",
        producer_id=1,
        epoch=0,
        timeout_ms=1,
        state=TransactionState.ONGOING,
        started_ms=100,
        updated_ms=90,
    )

    assert (one.shifted(5).started_ms, one.shifted(5).updated_ms) == (105, 95)
    assert (one.shifted(5, until_ms=96).started_ms, one.shifted(5, until_ms=96).updated_ms) == (96, 95)
    assert Transaction(transactional_id="x", producer_id=1, epoch=0, timeout_ms=1).shifted(5).started_ms == -1
