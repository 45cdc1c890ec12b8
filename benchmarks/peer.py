"""The Python peers of peers.py: each handles a topic's records once, as fast as it can, and prints its figures.

python benchmarks/peer.py --peer flowshare --bootstrap 127.0.0.1:9092 --topic t --group g --records 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time

import uvloop


class Meter:
    """Counts records; rate and processor time are those from the first record to the last."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.seen = 0
        self._first = self._cpu = 0.0
        self.figures: dict[str, float] = {}
        self.done = asyncio.Event()

    def hit(self) -> None:
        """A record."""
        seen = self.seen = self.seen + 1
        if seen == 1:
            self._begin()
        elif seen == self.total:
            self._end()

    def _begin(self) -> None:
        self._first, self._cpu = time.perf_counter(), time.process_time()

    def _end(self) -> None:
        seconds, cpu = time.perf_counter() - self._first, time.process_time() - self._cpu
        self.figures = {"rate": (self.seen - 1) / seconds, "cpu_us": cpu / self.seen * 1e6}
        self.done.set()


def flowshare(options: argparse.Namespace, meter: Meter) -> None:
    """A no-op agent with default options; by key and with sleeping handlers, if told so."""
    import flowshare as fs

    more = {"order": options.order} if options.order else {}
    if options.concurrency:
        more["concurrency"] = options.concurrency
    pause_s = options.sleep_ms / 1000

    async def main() -> None:
        app = fs.App("bench", broker=options.url or f"kafka://{options.bootstrap}")
        hit = meter.hit

        async def noop(value: bytes) -> None:
            hit()

        async def slow(value: bytes) -> None:
            await asyncio.sleep(pause_s)
            hit()

        handler = slow if pause_s else noop
        app.share_agent(app.topic(options.topic, value_type=bytes), group=options.group, **more)(handler)

        async with app.running():
            await meter.done.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def workers(options: argparse.Namespace, meter: Meter) -> None:
    """The same, with its share group led by the worker itself."""
    options.url = f"kafka://{options.bootstrap}?share=workers&fleet={options.group}"
    flowshare(options, meter)


def faust(options: argparse.Namespace, meter: Meter) -> None:
    """A no-op agent of Faust."""
    import faust as library

    async def main() -> None:
        app = library.App(
            options.group,
            broker=f"kafka://{options.bootstrap}",
            store="memory://",
            value_serializer="raw",
            topic_disable_leader=True,
            web_enabled=False,
        )

        @app.agent(app.topic(options.topic, value_type=bytes, value_serializer="raw"))
        async def noop(stream) -> None:
            async for _ in stream:
                meter.hit()

        worker = asyncio.ensure_future(app.start())
        await meter.done.wait()
        worker.cancel()
        print(json.dumps(meter.figures), flush=True)
        os._exit(0)  # Faust's stop is not what is measured

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def aiokafka(options: argparse.Namespace, meter: Meter) -> None:
    """`getmany` of a consumer group."""
    from aiokafka import AIOKafkaConsumer

    async def main() -> None:
        consumer = AIOKafkaConsumer(
            options.topic,
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        while not meter.figures:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for _ in records:
                    meter.hit()
        await consumer.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def librdkafka(options: argparse.Namespace, meter: Meter) -> None:
    """confluent-kafka's ShareConsumer, each record acknowledged explicitly."""
    from confluent_kafka import AcknowledgeType, ShareConsumer

    consumer = ShareConsumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([options.topic])
    accept = AcknowledgeType.ACCEPT
    while not meter.figures:
        for message in consumer.poll(timeout=0.5):
            consumer.acknowledge(message, accept)
            meter.hit()
    consumer.close()


PEERS = {"flowshare": flowshare, "workers": workers, "faust": faust, "aiokafka": aiokafka, "librdkafka": librdkafka}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--url", default="", help="flowshare's broker URL, in place of --bootstrap")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--order", default="")
    parser.add_argument("--concurrency", type=int, default=0)
    parser.add_argument("--sleep-ms", type=float, default=0.0)
    options = parser.parse_args()
    meter = Meter(options.records)
    PEERS[options.peer](options, meter)
    json.dump(meter.figures, sys.stdout)
    print()


if __name__ == "__main__":
    main()
