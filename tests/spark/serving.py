"""A broker of this process's own, led on a thread: what the driver's and the executors' side of Spark talk to."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from contextlib import contextmanager

from flowshare.backend import open_backend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.message import Message
from flowshare.client.producer.producer import Producer
from flowshare.clock import LoopClock
from flowshare.spark.sink import broker as sink_broker
from flowshare.spark.source import reading
from tests.waiting import blocking_until

CALL_S = 30
SETTLE_S = 10


class Serving:
    """A broker URL, and what tests ask of it. `share`: options that the URL of a real Kafka gets."""

    def __init__(self, url):
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.backend = self.call(self._open())

    async def _open(self):
        backend = open_backend(self.url, clock=LoopClock(), lead=True)
        await backend.start()

        async def connect():
            return await backend.connect("tests")

        self._connect = connect
        self.admin = ShareAdmin(connect, clock=LoopClock())
        return backend

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def topic(self, name, partitions=1, **configs):
        self.call(self.admin.create_topic(name, partitions=partitions, configs=configs))
        return name

    def produce(self, topic, values, keys=None):
        async def send():
            producer = Producer(self._connect, clock=LoopClock())
            try:
                items = [Message(value, key) for value, key in zip(values, keys or [None] * len(values), strict=True)]
                await producer.send_many(topic, items)
            finally:
                await producer.close()

        self.call(send())

    def read(self, topic):
        async def read():
            found = []
            for partition in range((await self.admin.describe_topic(topic)).partitions):
                offset = 0
                while records := await self.admin.read(topic, partition, offset, limit=50_000):
                    found += records
                    offset = records[-1].offset + 1
            return found

        return self.call(read())

    def backlog(self, group):
        """Records that the group has not finished; waits a while for none. Kafka's brokers know it a moment later, and
        of partitions without records never (−1)."""

        def left():
            return sum(max(0, part.lag) for part in self.call(self.admin.group_offsets(group)))

        return blocking_until(left, good=lambda count: count == 0, limit_s=SETTLE_S, or_last=True)

    def close(self):
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self.call(self.admin.close())
            self.call(self.backend.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()


def url_of(kind, request, folder):
    """The broker URL for one of the kinds; a real Kafka is asked for only where it is needed."""
    if kind == "embedded":
        return f"embedded://{folder}/broker"
    kafka = request.getfixturevalue("kafka")
    url = f"kafka://{kafka.bootstrap}?share={kind}"
    return url if kind == "native" else f"{url}&fleet={folder.name}&state_dir={folder}"


def close_readers():
    """Close this process's readers; the next read opens new ones."""
    for reader in reading._readers.values():
        reader.close()
    reading._readers.clear()


def close_brokers():
    """Close what sinks have open, and wait for it."""
    for opened in list(sink_broker._brokers.values()):
        sink_broker._forget(opened)
        opened.closing.join(CALL_S)


@contextmanager
def serving(url):
    broker = Serving(url)
    try:
        yield broker
    finally:
        broker.close()
