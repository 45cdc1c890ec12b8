"""More members than partitions, and one slow record: where a queue differs from a log.

One partition, producer batches of 860 records, 16 members (`concurrency=1`, the rest default) × 50 ms handlers. Each
member is an app of its own on one embedded broker. Kafka 4.3's defaults with Java's or librdkafka's consumer reach
59/s with 3 of 16 busy, and lose 61–68 % to one record of 20 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

import flowshare as fs
from common import embedded_url, fill, in_fresh_process, verdict
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend import open_backend
from flowshare.clock import LoopClock

MEMBERS = 16
HANDLER_S = 0.05
IDEAL = MEMBERS / HANDLER_S


async def run(url: str, seconds: float, slow_offset: int | None) -> dict[str, float]:
    started_at: Counter[int] = Counter()
    by_member: Counter[int] = Counter()
    ended: list[float] = []
    slow_span: list[float] = []
    apps = []

    clock = LoopClock()
    backend = open_backend(url, clock=clock)
    await backend.start()
    for member in range(MEMBERS):
        app = fs.App("beyond", broker=url)

        @app.share_agent(app.topic("values", value_type=bytes), concurrency=1, group="beyond")
        async def work(value: bytes, delivery: fs.Delivery, member: int = member) -> None:
            started_at[delivery.offset] += 1
            if delivery.offset == slow_offset:
                slow_span.append(time.perf_counter())
                await asyncio.sleep(20)
                slow_span.append(time.perf_counter())
                return
            await asyncio.sleep(HANDLER_S)
            by_member[member] += 1
            ended.append(time.perf_counter())

        apps.append(app)
    settings = HostSettings(threads=False)
    hosts = [Host(app, backend=backend, clock=clock, settings=settings) for app in apps]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(backend.close)
        for host in hosts:
            stack.push_async_callback(host.stop)
            await host.start()
        while not ended:
            await asyncio.sleep(0.01)
        first = time.perf_counter()
        if slow_offset is None:
            await asyncio.sleep(seconds)
            last = time.perf_counter()
            done = sum(first <= at <= last for at in ended)
            rate = done / (last - first)
        else:
            while len(slow_span) < 2:
                await asyncio.sleep(0.05)
            begin, end = slow_span
            done = sum(begin <= at <= end for at in ended)
            rate = done / (end - begin)
        again = sum(count > 1 for count in started_at.values())  # what the end cuts off is run by others meanwhile
    return {
        "rate": rate,
        "busy": sum(count > 0 for count in by_member.values()),
        "least_busy": min(by_member.values(), default=0),
        "duplicates": again,
    }


def section(name: str, seconds: float) -> dict[str, float]:
    with embedded_url() as url:
        fill(url, "values", [b"x" * 100] * 20_000, batch_size=860 * 107 + 61)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(url, seconds, 2000 if name == "slow" else None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section")
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    if options.section:
        logging.disable(logging.WARNING)  # the handlers that are cut off at the end
        print(json.dumps(section(options.section, options.seconds)))
        return
    script = str(Path(__file__).resolve())
    plain = in_fresh_process(script, "plain", seconds=options.seconds)
    verdict("16 members × 50 ms on one partition", plain["rate"], 0.95 * IDEAL, unit="records/s")
    verdict("  busy members", plain["busy"], 16)
    verdict("  records run twice", plain["duplicates"], 0, at_most=True)
    slow = in_fresh_process(script, "slow", seconds=options.seconds)
    ideal = 15 / HANDLER_S
    verdict("the other 15 while one record takes 20 s", slow["rate"], 0.98 * ideal, unit="records/s")
    verdict("  lost of what they could do", 100 * (1 - slow["rate"] / ideal), 2, unit="%", at_most=True)
    verdict("  records run twice", slow["duplicates"], 0, at_most=True)


if __name__ == "__main__":
    main()
