"""Measure the cost and the gain of order by key, on the embedded backend.

    python benchmarks/order.py            all sections, each in fresh processes, medians
    python benchmarks/order.py --section noop --keys 10000 --records 500000

Sections: noop (a no-op agent over one partition, by key or without an order), members (16 members that take 50 ms for a
record, one partition), stuck (2,000 records/s of 500 keys, one of which is stuck: records of the other keys handled a
second), takeover (from opening a path with 200,000 unfinished offsets to the first records).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path

import uvloop
from agent import VALUE, Meter, run_app

import flowshare as fs
from common import embedded_url, fill, in_fresh_process, info, median_of, verdict
from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.producer.producer import Message
from flowshare.clock import LoopClock
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.messages import (
    CreateTopicRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
    ShareFetchRequest,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.server.runtime.state import ShareKey, initial_writes
from flowshare.share.types import PartitionState, RecordState, StateRun

MEMBERS = 16
HANDLER_S = 0.05


def messages(records: int, keys: int, *, in_turns: bool = False) -> list[Message]:
    """Records with keys, all equally often: in an order drawn by a seed, or in turns."""
    names = [b"key-%d" % (number % keys) for number in range(records)]
    if not in_turns:
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
        fill(url, "values", messages(options.records, options.keys, in_turns=options.in_turns))
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


STUCK_RATE = 2_000
STUCK_S = 20
STUCK_KEYS = 500


def section_stuck(options: argparse.Namespace) -> dict[str, float]:
    """`stuck`: delayed (by 60 s), poisoned (rejected after five attempts), or none. Counts records of the other keys
    that were handled while records came."""
    handled = 0
    late: list[float] = []

    def make(url: str) -> fs.App:
        app = fs.App("bench", broker=url)

        @app.share_agent(app.topic("values", value_type=bytes), order="key", concurrency=64)
        async def handler(value: bytes, delivery: fs.Delivery) -> None:
            nonlocal handled
            if delivery.key == b"key-0" and options.stuck == "delayed":
                raise fs.Release(delay=60)
            if delivery.key == b"key-0" and options.stuck == "poisoned":
                raise ValueError("poison")
            if delivery.key != b"key-0":
                handled += 1
                late.append(LoopClock().now_ms() / 1000 - delivery.timestamp)

        return app

    async def main(url: str) -> dict[str, float]:
        app = make(url)
        names = [b"key-%d" % (number % STUCK_KEYS) for number in range(STUCK_RATE)]
        random.Random(7).shuffle(names)
        async with app.running():
            producer = app.host.producer
            begun = time.perf_counter()
            for tick in range(STUCK_S * 20):
                part = names[tick % 20 * 100 : tick % 20 * 100 + 100]
                await app.host.service.call(
                    lambda part=part: producer.send_many("values", [Message(VALUE, key=name) for name in part])
                )
                await asyncio.sleep(max(0.0, begun + (tick + 1) / 20 - time.perf_counter()))
            found = handled
        late.sort()
        return {
            "rate": found / STUCK_S,
            "p50_ms": late[len(late) // 2] * 1000,
            "p99_ms": late[-len(late) // 100] * 1000,
        }

    with embedded_url() as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        fill(url, "values", [])
        return runner.run(main(url))


def section_takeover(options: argparse.Namespace) -> dict[str, float]:
    """`order`: key, or none. All offsets were delivered once and released, so that all are in the window."""
    topic, group = "values", "g"

    async def prepare(backend: EmbeddedBackend) -> TopicPartition:
        connection = await backend.connect("bench")
        made = await connection.send(CreateTopicRequest(name=topic))
        configs = {"share.auto.offset.reset": "earliest"}
        if options.order:
            configs["share.key.order"] = options.order
        await connection.send(IncrementalAlterConfigsRequest(resource_type="group", resource=group, configs=configs))
        names = [b"key-%d" % (number % options.keys) for number in range(options.records)]
        random.Random(7).shuffle(names)
        for at in range(0, options.records, 1000):
            builder = BatchBuilder()
            for name in names[at : at + 1000]:
                builder.add(name, VALUE, [], timestamp_ms=0)
            await connection.send(ProduceRequest(topic=topic, partition=0, records=builder.build()))
        return TopicPartition(made.topic_id, 0)

    async def main(path: str) -> dict[str, float]:
        backend = EmbeddedBackend(path)
        await backend.start()
        at = await prepare(backend)
        key = ShareKey(group, at.topic_id, 0)
        runs = (StateRun(0, options.records - 1, RecordState.AVAILABLE, 1),)
        await backend._led.storage.write(initial_writes(key, PartitionState(start_offset=0, runs=runs)))
        await backend.close()
        begun = time.perf_counter()
        backend = EmbeddedBackend(path)
        await backend.start()
        connection = await backend.connect("bench")
        request = ShareFetchRequest(
            group_id=group,
            member_id="m",
            session_epoch=0,
            max_records=options.heads,
            heads=options.heads if options.order else 0,
            max_wait_ms=5_000,
            partitions=(SharePartitionRequest(*at),),
        )
        answer = await connection.send(request)
        took = time.perf_counter() - begun
        got = sum(last - first + 1 for part in answer.partitions for first, last, _ in part.acquired)
        assert got, answer
        await backend.close()
        return {"seconds": took, "records": got}

    loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with tempfile.TemporaryDirectory(prefix="flowshare-bench-") as path, loop as runner:
        return runner.run(main(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--order", default="")
    parser.add_argument("--in-turns", type=int, default=0)
    parser.add_argument("--stuck", default="none")
    parser.add_argument("--heads", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if options.section:
        print(json.dumps(globals()[f"section_{options.section}"](options)))
        return
    script = str(Path(__file__).resolve())
    free = median_of(options.runs, script, "noop", records=options.records, keys=options.keys)
    told = {"records": options.records, "keys": options.keys, "order": "key"}
    drawn = median_of(options.runs, script, "noop", **told)
    by_key = median_of(options.runs, script, "noop", **told, **{"in-turns": 1})
    verdict("no-op agent by key, 10,000 keys in turns", by_key["rate"], 150_000, unit="records/s")
    info("  10,000 keys drawn at random", drawn["rate"], unit="records/s")
    info("  the same records without an order", free["rate"], unit="records/s")
    info("  by key / without", by_key["rate"] / free["rate"], unit="×")
    for keys, records, target in ((10_000, 6_000, 300), (4, 1_500, 76), (1, 400, 19)):
        rate = in_fresh_process(script, "members", records=records, keys=keys, order="key")["rate"]
        verdict(f"16 members, 50 ms a record, {keys} keys", rate, target, unit="records/s")
    free = in_fresh_process(script, "stuck", stuck="none")
    info(f"{STUCK_RATE:,} records/s of {STUCK_KEYS} keys, the others'", free["rate"], unit="records/s")
    for stuck in ("delayed", "poisoned"):
        found = in_fresh_process(script, "stuck", stuck=stuck)
        verdict(f"  while one key is {stuck} / while none is", found["rate"] / free["rate"], 0.98, unit="×")
        info("    p99 of the others", found["p99_ms"], unit="ms")
    unordered = median_of(options.runs, script, "takeover", records=200_000, keys=options.keys)["seconds"]
    for keys in (10_000, 10):
        ordered = median_of(options.runs, script, "takeover", records=200_000, keys=keys, order="key")["seconds"]
        info(
            f"take-over with 200,000 unfinished offsets of {keys:,} keys: more than without",
            ordered - unordered,
            unit="s",
        )


if __name__ == "__main__":
    main()
