"""Groups with an order by key: what is kept apart because its process died with it, and how far."""

from __future__ import annotations

import pytest

from flowshare.testing.clock import settle
from tests.server.test_key_order import BY_KEY, keyed, taken
from tests.server.world import accept, world

pytestmark = pytest.mark.asyncio


async def test_a_record_that_killed_its_process_twice_comes_alone_and_others_go_on() -> None:
    async with world(configs=BY_KEY) as w:
        at = await w.log(keyed("ab"))
        for name in ("m", "n"):
            dies = w.member(name)
            assert len(taken(await dies.fetch(at))) > 0
            await dies.connection.close()
            await settle()
            await w.clock.advance(31)
        await w.produce(keyed("cabd"))
        alone, beside = w.member("o"), w.member("p")
        first = taken(await alone.fetch(at))
        second = taken(await beside.fetch(at))
        third = taken(await w.member("q").fetch(at))
        bound = taken(await alone.fetch())
        await alone.acknowledge({at: [accept(0)]})
        after = taken(await alone.fetch())

    assert (first, second) == ([(0, 0, 3)], [(1, 1, 3)])
    assert third == [(2, 2, 1), (5, 5, 1)]
    assert bound == []
    assert after == [(3, 3, 1)]
