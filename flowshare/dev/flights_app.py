"""The demo's application: one agent that classifies each flight's delay. Run it with

flowshare worker flowshare.dev.flights_app:app

It is an ordinary application; `flowshare demo` (flights.py) produces the flights, kills its worker and counts.
"""

from __future__ import annotations

import asyncio
import os
from typing import TypedDict

import flowshare as fs
from flowshare.dev.flights_data import classify_row, is_flaky


class Flight(TypedDict):
    """One row of the table; None stands for NA."""

    id: int
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    time_hour: str
    dep_time: int | None
    dep_delay: int | None


class Delay(TypedDict):
    """What the agent makes of a flight."""

    id: int
    carrier: str
    time_hour: str
    dep_delay: int | None
    kind: str
    attempt: int


app = fs.App("flights", broker=os.environ.get("FLOWSHARE_BROKER", "embedded:///tmp/flowshare-flights"))
flights = app.topic("flights", key_type=str, value_type=Flight)
delays = app.topic("flights.delays", value_type=Delay)


@app.share_agent(
    flights,
    concurrency=64,
    retry=fs.Retry(max_attempts=5, delay=fs.exponential(0.5, cap=5, jitter=True), on=(TimeoutError,)),
    sink=[delays],
)
async def classify(flight: Flight, delivery: fs.Delivery) -> Delay:
    """Say how late a flight left; one that never left is rejected, so it ends in the dead letters."""
    kind = classify_row(flight["dep_delay"] if flight["dep_time"] is not None else None)
    if kind is None:
        raise fs.Reject("cancelled: no departure time")
    if is_flaky(flight["id"]) and delivery.attempt == 1:
        async with asyncio.timeout(0.01):  # a service that does not answer the first time
            await asyncio.Event().wait()
    return {
        "id": flight["id"],
        "carrier": flight["carrier"],
        "time_hour": flight["time_hour"],
        "dep_delay": flight["dep_delay"],
        "kind": kind,
        "attempt": delivery.attempt,
    }
