"""How long the end of a worker waits for its handler loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flowshare.agents.worker.worker import ends
from flowshare.testing import ManualClock

pytestmark = pytest.mark.asyncio


class World:
    """A worker that has drained, and has five seconds for the rest."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ended = threading.Event()
        self.ends = asyncio.ensure_future(ends(self.ended, 5.0, self.clock))


async def test_a_handler_loop_has_its_time_to_end() -> None:
    world = World()
    await world.clock.advance(3)
    assert not world.ends.done()

    world.ended.set()
    await world.clock.advance(0.1)

    assert await world.ends


async def test_a_handler_loop_that_never_ends_is_waited_for_within_bounds() -> None:
    world = World()
    await world.clock.advance(4)
    assert not world.ends.done()
    await world.clock.advance(2)

    assert not await world.ends
