"""Records with ids that flow at a steady rate, by librdkafka's idempotent producer past all proxies.

`Feed` produces by flowshare's own producer, on any backend, as much as it is told to and as fast as it can.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from flowshare.backend import open_backend
from flowshare.backend.base import Backend, BackendError
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError
from flowshare.client.producer.producer import Message
from flowshare.client.producer.producer import Producer as OwnProducer
from flowshare.clock import LoopClock
from flowshare.fleet.state.topic import state_topic
from flowshare.slots.records import Claim, decode
from tests.chaos.journal import NO_KEY, NUMBER_SIZE

FLUSH_S = 60.0
TICK_S = 0.05
PIECE = 20_000
PATIENCE_S = 5.0
"""How long workers come first when nobody leads a path."""


class Traffic(threading.Thread):
    """Produces the ids 0 to `records` - 1 round robin, `rate` a second, then waits until all are confirmed."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, records: int, rate: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self.bootstrap, self._topic, self._partitions, self._records = bootstrap, topic, partitions, records
        self.rate = rate
        self.error: BaseException | None = None
        self._stopped = threading.Event()
        self.up_to = records
        """Ids from here on are kept back for later."""
        self.sent = 0
        self.confirmed: dict[int, tuple[int, float]] = {}
        """Partition, and when it was confirmed (monotonic seconds), by id."""

    def make_topic(self) -> None:
        """Returns when it is made."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self._topic, self._partitions, 1)])[self._topic].result(30)

    def stop(self) -> None:
        """Produce no more."""
        self._stopped.set()
        if self.ident is not None:
            self.join(FLUSH_S)

    def run(self) -> None:
        before, due = time.monotonic(), 1.0
        while self.sent < self._records and not self._stopped.is_set():
            now = time.monotonic()
            due = min(self.up_to, due + (now - before) * self.rate)
            before = now
            while self.sent < int(due):
                self._produce(self.sent)
                self.sent += 1
            self._producer.poll(TICK_S)
        self._producer.flush(FLUSH_S)

    def _produce(self, number: int) -> None:
        def confirmed(error: object, _: object) -> None:
            assert error is None, error
            self.confirmed[number] = number % self._partitions, time.monotonic()

        value = b"%0*d" % (NUMBER_SIZE, number) + b"." * 90
        self._producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=confirmed)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Backend]:
    """The backend at a URL, with workers before it where somebody has to lead."""
    backend = open_backend(url, clock=LoopClock(), patience_s=PATIENCE_S)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def make_topics(url: str, topics: Sequence[str], partitions: int) -> None:
    """Returns when they are made."""

    async def make() -> None:
        async with opened(url) as backend:
            admin = ShareAdmin(lambda: backend.connect("feed"), clock=LoopClock())
            for topic in topics:
                await admin.create_topic(topic, partitions=partitions)
            await admin.close()

    asyncio.run(make())


class Feed(threading.Thread):
    """Produces messages in their order, up to where it may; each time it is allowed more, it connects anew."""

    def __init__(self, url: str, topic: str, messages: Sequence[Message], *, partitions: int = 1) -> None:
        super().__init__(name="feed", daemon=True)
        self._url, self._topic, self._messages, self._partitions = url, topic, messages, partitions
        self._stopped = threading.Event()
        self.up_to = 0
        self.sent = 0
        self.error: BaseException | None = None

    def make_topic(self) -> None:
        """Returns when it is made."""
        make_topics(self._url, [self._topic], self._partitions)

    def stop(self) -> None:
        """Produce no more."""
        self._stopped.set()
        if self.ident is not None:
            self.join(FLUSH_S)

    def run(self) -> None:
        while self.sent < len(self._messages) and not self._stopped.is_set():
            if self.sent < self.up_to:
                try:
                    asyncio.run(self._send())
                except BaseException as error:
                    self.error = error
                    raise
            time.sleep(TICK_S)

    async def _send(self) -> None:
        async with opened(self._url) as backend:
            producer = OwnProducer(lambda: backend.connect("feed"), clock=LoopClock(), batch_size=100_000)
            while self.sent < self.up_to and not self._stopped.is_set():
                until = min(self.up_to, self.sent + PIECE)
                await producer.send_many(self._topic, self._messages[self.sent : until])
                self.sent = until
            await producer.close()


def message(number: int, key: int = NO_KEY) -> Message:
    """Return the record with an id."""
    return Message(b"%0*d" % (NUMBER_SIZE, number) + b"." * 90, key=None if key == NO_KEY else b"%d" % key)


def claims_in(bootstrap: str, fleet: str, slots: int) -> list[tuple[float, int, Claim]]:
    """All claims in the fleet's log that lie there: seconds since 1970, slot, claim, in log order per slot."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "chaos", "enable.auto.commit": False, "log_level": 0}
        | {"enable.partition.eof": False, "auto.offset.reset": "earliest"}
    )
    found: list[tuple[float, int, Claim]] = []
    topic = state_topic(fleet)
    try:
        for slot in range(slots):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, slot), timeout=30)
            consumer.assign([TopicPartition(topic, slot, low)])
            position, until = low, time.monotonic() + 60
            while position < high and time.monotonic() < until:
                for message in consumer.consume(1000, 1.0):
                    assert message.error() is None, message.error()
                    position = message.offset() + 1
                    record = decode(message.key(), message.value())
                    if isinstance(record, Claim):
                        found.append((message.timestamp()[1] / 1000, slot, record))
    finally:
        consumer.close()
    return found


def lag(url: str, topic: str) -> int:
    """Records that the agent's group has not finished, as its leaders say; -1 while they cannot be asked."""

    async def ask() -> int:
        backend = open_backend(url, clock=LoopClock())
        await backend.start()
        admin = ShareAdmin(lambda: backend.connect("chaos"), clock=LoopClock())
        try:
            return sum(part.lag for part in await admin.group_offsets(f"{topic}.work", [topic]))
        finally:
            await admin.close()
            await backend.close()

    try:
        return asyncio.run(ask())
    except (OSError, ClientError, BackendError) as error:
        print(f"  the lag is not known: {error!r}", flush=True)
        return -1
