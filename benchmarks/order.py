"""What order by key costs, and what it gives, on the embedded backend.

    python benchmarks/order.py            all sections, each in fresh processes, medians
    python benchmarks/order.py --section noop --keys 10000 --records 500000

Sections: noop (a no-op agent over one partition, by key or without an order), members (16 members that take 50 ms for a
record, one partition).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path

import uvloop
from agent import VALUE, Meter, run_app

import flowshare as fs
from common import embedded_url, fill, in_fresh_process, info, median_of, verdict
from flowshare.client.producer.producer import Message

MEMBERS = 16
HANDLER_S = 0.05


def messages(records: int, keys: int) -> list[Message]:
    """Records with keys in an order drawn by a seed, all equally often."""
    names = [b"key-%d" % (number % keys) for number in range(records)]
    random.Random(7).shuffle(names)
    return [Message(VALUE, key=name) for name in names]


def section_noop(options: argparse.Namespace) -> dict[str, float]:
    """Records have keys in either case; `order` says whether they count."""

    def make(url: str):
        app = fs.App("bench", broker=url)
        meter = Meter(options.records)
        hit = meter.hit

        @app.share_agent(app.topic("values", value_type=bytes), order=options.order or None)
        async def noop(value: bytes) -> None:
            hit()

        return app, meter

    with embedded_url() as url:
        fill(url, "values", messages(options.records, options.keys))
        return run_app(make, url)


def section_members(options: argparse.Namespace) -> dict[str, float]:
    """16 apps in one process, each a member that handles one record at a time."""
    seen: list[float] = []

    def make(url: str) -> fs.App:
        app = fs.App("bench", broker=url)

        @app.share_agent(app.topic("values", value_type=bytes), order=options.order or None, concurrency=1)
        async def slow(value: bytes) -> None:
            await asyncio.sleep(HANDLER_S)
            seen.append(time.perf_counter())

        return app

    async def main(url: str) -> None:
        apps = [make(url) for _ in range(MEMBERS)]
        running = [app.running() for app in apps]
        for one in running:
            await one.__aenter__()
        while len(seen) < options.records:
            await asyncio.sleep(0.05)
        for one in running:
            await one.__aexit__(None, None, None)

    with embedded_url() as url:
        fill(url, "values", messages(options.records, options.keys))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(url))
    warm = seen[options.records // 5 : options.records * 4 // 5]  # at the end some keys have nothing left
    return {"rate": (len(warm) - 1) / (warm[-1] - warm[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--order", default="")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if options.section:
        print(json.dumps(globals()[f"section_{options.section}"](options)))
        return
    script = str(Path(__file__).resolve())
    free = median_of(options.runs, script, "noop", records=options.records, keys=options.keys)
    by_key = median_of(options.runs, script, "noop", records=options.records, keys=options.keys, order="key")
    verdict("no-op agent by key, 10,000 keys", by_key["rate"], 150_000, unit="records/s")
    info("  the same records without an order", free["rate"], unit="records/s")
    info("  by key / without", by_key["rate"] / free["rate"], unit="×")
    for keys, records, target in ((10_000, 6_000, 300), (4, 1_500, 76), (1, 400, 19)):
        rate = in_fresh_process(script, "members", records=records, keys=keys, order="key")["rate"]
        verdict(f"16 members, 50 ms a record, {keys} keys", rate, target, unit="records/s")


if __name__ == "__main__":
    main()
