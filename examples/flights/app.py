"""Application of the demo: an agent that classifies each flight's delay, and a pipeline that sums its results up. Run

flowshare worker examples.flights.app:app
flowshare pipeline examples.flights.app:app --once

It is an ordinary application; `make demo` (demo.py) produces the flights, kills the worker and counts.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, TypedDict

import flowshare as fs
from examples.flights.data import classify_row, is_flaky
from flowshare.dev import cache_dir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUT = os.environ.get("FLOWSHARE_FLIGHTS_OUT") or str(cache_dir() / "flights-out")


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
    """Result that the agent makes of a flight."""

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
    exactly_once=True,
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


@app.share_pipeline(
    delays,
    sink=fs.Folder(f"{OUT}/by_hour"),
    checkpoint=f"{OUT}/checkpoint",
    output_mode="complete",
    source={"records_per_trigger": 200_000},
    conf={"spark.sql.shuffle.partitions": "2"},
)
def by_hour(delays: DataFrame) -> DataFrame:
    """Per carrier and hour: flights, mean and 90th percentile of the delay, share of late departures.

    Flights are collected by id before they are counted: so one is counted once also where the agent above has no
    exactly_once, and a result can be there twice.
    """
    delays.createOrReplaceTempView("delays")
    return delays.sparkSession.sql(
        """
        WITH flown AS (
          SELECT value.carrier AS carrier, to_timestamp(value.time_hour) AS hour,
                 collect_set(struct(value.id AS id, value.dep_delay AS delay, value.kind AS kind)) AS flights
          FROM delays GROUP BY value.carrier, to_timestamp(value.time_hour)
        ), sorted AS (
          SELECT *, array_sort(transform(flights, flight -> flight.delay)) AS minutes FROM flown
        )
        SELECT carrier, hour, size(flights) AS flights,
               aggregate(minutes, 0L, (total, one) -> total + one) AS total_delay,
               aggregate(minutes, 0L, (total, one) -> total + one) / size(minutes) AS mean_delay,
               element_at(minutes, CAST(ceil(0.9 * size(minutes)) AS INT)) AS p90_delay,
               size(filter(flights, flight -> flight.kind IN ('late', 'very late'))) / size(flights) AS late_share
        FROM sorted
        """
    )
