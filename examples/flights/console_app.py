"""Application of `make console-demo`: flights that keep coming, with all that a console is there for.

bill       in the order of keys (tail numbers): one record's handler hangs, so that its key stands still; every
           thirtieth fails and is tried again later, some of them until they are dead letters
announce   slow, so that a backlog stays
archive    paused
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import flowshare as fs
from examples.flights.app import Flight

STUCK_AT: Final = 60
"""This flight's handler does not end."""
HANGS_S: Final = 6 * 3600.0
FAILS_EVERY: Final = 30
RECOVERS_EVERY: Final = 3
"""Of the flights that fail, the ones that succeed when they are tried again."""

app = fs.App("flights", broker=os.environ.get("FLOWSHARE_BROKER", "embedded:///tmp/flowshare-console-demo"))
flights = app.topic("flights", key_type=str, value_type=Flight)


@app.share_agent(flights, order="key", concurrency=8, retry=fs.Retry(max_attempts=4, delay=fs.exponential(4, cap=60)))
async def bill(flight: Flight, delivery: fs.Delivery) -> None:
    """Bill a flight; one that never left is rejected."""
    number = flight["id"]
    if number == STUCK_AT:
        await asyncio.sleep(HANGS_S)
    if flight["dep_time"] is None:
        raise fs.Reject("cancelled: no departure time")
    if number % FAILS_EVERY == 7 and (delivery.attempt == 1 or number % RECOVERS_EVERY):
        raise LookupError(f"no tariff for flight {flight['flight']}")
    await asyncio.sleep(0.02)


@app.share_agent(flights, concurrency=4)
async def announce(flight: Flight) -> None:
    """Announce a flight, which takes its time."""
    await asyncio.sleep(0.2 + (flight["id"] % 10) / 50)


@app.share_agent(flights, concurrency=4)
async def archive(_: Flight) -> None:
    """Archive a flight: the demo pauses this group."""
