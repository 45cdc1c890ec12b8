"""A group begins at offsets with finished records behind them, as one that is carried from elsewhere does."""

from __future__ import annotations

import random
import uuid

import pytest

from flowshare.fleet.groups.leaders import state_of, tell_state
from flowshare.fleet.messages import ReplaceStates
from flowshare.log.base import LogOffsets
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import AlterShareGroupOffsetsRequest, TopicPartition
from flowshare.protocol.private import read, write
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.offsets import _beginning
from tests.server.test_share_offsets import described
from tests.server.world import ranges, world
from tests.sim.seeds import drawn


async def begin(w, offset, *finished, group_id="g"):
    request = AlterShareGroupOffsetsRequest(
        group_id=group_id, offsets={("t", 0): offset}, finished={("t", 0): tuple(finished)}
    )
    return await w.admin.send(request)


@pytest.mark.asyncio
async def test_what_is_finished_behind_the_start_is_not_delivered_also_after_a_restart() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        for _ in range(10):
            await w.produce(1)

        answer = await begin(w, 2, (3, 4), (7, 7))
        assert [part.error for part in answer.partitions] == [ErrorCode.NONE]
        assert [(p.start_offset, p.lag) for p in await described(w)] == [(2, 5)]
        await w.restart()

        m = w.member("m1")
        await m.heartbeat("t")
        got = ranges(await m.fetch(at, max_records=10, acquire_mode=1))
        assert sorted((first, last) for first, last, _ in got) == [(2, 2), (5, 6), (8, 9)]


@pytest.mark.asyncio
async def test_finished_records_at_the_start_move_it_and_those_outside_of_the_log_do_not_count() -> None:
    async with world() as w:
        await w.topic()
        await w.produce(10)

        await begin(w, 1, (0, 3), (6, 7), (9, 30))

        assert [(p.start_offset, p.lag) for p in await described(w)] == [(4, 3)]


def test_what_is_open_is_exactly_what_is_neither_before_the_offset_nor_finished() -> None:
    rng = random.Random(drawn())
    for _ in range(300):
        low = rng.randrange(20)
        bounds = LogOffsets(log_start=low, high_watermark=low + rng.randrange(20), last_stable=low)
        offset = rng.randrange(-3, 45)
        edges = sorted(rng.sample(range(45), 2 * rng.randrange(6)))
        finished = [(edges[at], edges[at + 1]) for at in range(0, len(edges), 2)]

        state = _beginning(3, offset, finished, bounds)

        begin_at = min(max(offset, bounds.log_start), bounds.high_watermark)
        done = {number for first, last in finished for number in range(first, last + 1)}
        wanted = {number for number in range(begin_at, bounds.high_watermark) if number not in done}
        closed = {number for run in state.runs for number in range(run.first, run.last + 1)}
        assert set(range(state.start_offset, bounds.high_watermark)) - closed == wanted
        assert state.delivery_complete_count == len(closed)
        key = ShareKey("g", uuid.UUID(int=7), 1)
        told = ReplaceStates(states=((key, tell_state(state)), (key, tell_state(None))))
        assert [state_of(start) for _, start in read(ReplaceStates, write(told)).states] == [state, None]
