"""A release at the moment at which a partition has nothing else, with a fetch that waits."""

from __future__ import annotations

import pytest

from flowshare.testing.clock import settle
from tests.server.world import parked, ranges, release, world

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("delay_ms", [0, 1])
async def test_a_fetch_that_waits_gets_what_is_released_with_no_delay_as_the_last_record(delay_ms: int) -> None:
    async with world() as w:
        at, m1 = await w.held(1)
        waiting = await parked(w.member("m2").fetch(at, max_wait_ms=60_000))
        await m1.acknowledge({at: [release(0, delay_ms=delay_ms)]})
        await w.clock.advance(0.002)
        await settle()
        assert waiting.done()
        assert ranges(await waiting) == [(0, 0, 2)]
