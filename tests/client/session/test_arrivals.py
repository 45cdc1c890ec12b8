"""Tests of fetched records: none is lost if the caller does not wait, is cancelled, or gets an error first."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.client.session.arrivals import Arrivals
from flowshare.client.session.ranges import Fetched
from flowshare.share.types import AcquiredRange
from flowshare.testing.clock import settle

pytestmark = pytest.mark.asyncio


def fetched(offset: int) -> Fetched:
    return Fetched("in", uuid.UUID(int=1), 0, b"", (AcquiredRange(offset, offset, 1),), 30.0, 0)


async def test_what_came_before_anybody_waited_is_taken_at_once():
    arrivals = Arrivals()
    arrivals.put([fetched(0)])
    arrivals.put([fetched(1)])

    await arrivals.wait()

    assert arrivals.take() == [fetched(0), fetched(1)]
    assert not arrivals.ready


async def test_a_fetch_that_brought_nothing_ends_the_wait():
    arrivals = Arrivals()
    waiting = asyncio.ensure_future(arrivals.wait())
    await settle()

    arrivals.put([])
    await waiting

    assert arrivals.take() == []


async def test_a_wait_that_is_cancelled_leaves_what_came():
    arrivals = Arrivals()
    waiting = asyncio.ensure_future(arrivals.wait())
    await settle()

    arrivals.put([fetched(0)])
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert arrivals.ready
    assert list(arrivals.left) == [fetched(0)]
    assert not arrivals.awaited


async def test_an_error_waits_until_what_came_beside_it_is_taken():
    arrivals = Arrivals()
    arrivals.fail(OSError("first"))
    arrivals.put([fetched(0)])
    arrivals.fail(OSError("second"))

    assert arrivals.take() == [fetched(0)]
    assert arrivals.ready
    with pytest.raises(OSError, match="first"):
        arrivals.take()
    with pytest.raises(OSError, match="second"):
        arrivals.take()
    assert not arrivals.ready


async def test_waking_ends_the_wait_or_is_kept_for_the_next():
    arrivals = Arrivals()
    waiting = asyncio.ensure_future(arrivals.wait())
    await settle()
    arrivals.wake()
    await waiting
    assert not arrivals.take_wake()

    arrivals.wake()

    assert [arrivals.take_wake(), arrivals.take_wake()] == [True, False]


async def test_a_listener_is_called_for_each_fetch_that_ends_and_takes_what_came():
    arrivals = Arrivals()
    taken: list[list[Fetched]] = []
    arrivals.listener = lambda: taken.append(arrivals.take())
    assert arrivals.awaited is True

    arrivals.put([fetched(0)])
    arrivals.put([])

    assert taken == [[fetched(0)], []]
    assert not arrivals.ready
