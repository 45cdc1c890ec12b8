"""ShareFetch: what it gives, in which order, and what it waits for."""

from __future__ import annotations

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from tests.server.world import accept, ranges, world

pytestmark = pytest.mark.asyncio


async def test_produced_records_are_acquired_and_accepted() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.produce(10)
        m = w.member("m1")

        assert ranges(await m.fetch(at)) == [(0, 9, 1)]
        answer = await m.acknowledge({at: [accept(0, 9)]})

        assert answer.error is ErrorCode.NONE
        assert [p.error for p in answer.partitions] == [ErrorCode.NONE]
        assert (await m.fetch()).partitions == ()
