"""Reads what lies in a topic, to its end, as a reader does that wants nothing but what counts.

On an embedded path every reader sees the same. On a real Kafka it is librdkafka with `read_committed`: it waits until
no transaction is open any more, for what a dead worker left open is in the way of all that comes behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from flowshare.backend.url import parse_broker
from flowshare.client.admin.admin import ShareAdmin
from flowshare.clock import LoopClock
from tests.chaos.journal import NUMBER_SIZE
from tests.chaos.once_judge import Output, Placed
from tests.chaos.traffic import opened

PIECE = 5_000
CALL_S = 30.0
OPEN_S = 120.0
"""For how long a transaction that a dead worker left may stay open: a successor ends it, or the coordinator does."""
READ_S = 120.0
LOOK_S = 0.2
CHANGING = frozenset(
    {
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
"""Of brokers that came again a moment ago."""


class Lying(NamedTuple):
    """A record where it lies."""

    partition: int
    offset: int
    value: bytes


def outputs_in(url: str, topic: str) -> list[Placed]:
    """All outputs in a topic."""
    return [Placed(one.partition, one.offset, Output.decode(one.value)) for one in read_all(url, topic)]


def letters_in(url: str, topic: str) -> list[int]:
    """Ids of the records in a dead-letter topic; none without the topic."""
    return [int((one.value or b"-1")[:NUMBER_SIZE]) for one in read_all(url, topic)]


def read_all(url: str, topic: str) -> list[Lying]:
    """All records in a topic, of a real Kafka the committed ones. Raises: AssertionError: one stays open."""
    broker = parse_broker(url)
    if broker.kind == "embedded":
        return asyncio.run(_read_path(url, topic))
    return list(read_committed(",".join(broker.hosts), topic))


async def _read_path(url: str, topic: str) -> list[Lying]:
    found: list[Lying] = []
    async with opened(url) as backend:
        admin = ShareAdmin(lambda: backend.connect("outputs"), clock=LoopClock())
        try:
            if topic not in {one.name for one in await admin.list_topics()}:
                return []
            for partition in range((await admin.describe_topic(topic)).partitions):
                offset = 0
                while records := await admin.read(topic, partition, offset, limit=PIECE):
                    found += [Lying(partition, one.offset, one.value or b"") for one in records]
                    offset = records[-1].offset + 1
        finally:
            await admin.close()
    return found


def read_committed(bootstrap: str, topic: str) -> Iterator[Lying]:
    """All committed records of a topic of a real Kafka."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    described = admin.list_topics(timeout=CALL_S).topics.get(topic)
    if described is None:
        return
    places = [TopicPartition(topic, partition) for partition in described.partitions]
    ends = _wait_closed(admin, places)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, place.partition, 0) for place in places])
        yield from _to_the_ends(consumer, ends)
    finally:
        consumer.close()


def _wait_closed(admin: AdminClient, places: list[TopicPartition]) -> dict[int, int]:
    """Wait until no transaction is open in any of the partitions; their ends."""
    until = time.monotonic() + OPEN_S
    while True:
        stable, ends = (_ends(admin, places, level) for level in (IsolationLevel.READ_COMMITTED, None))
        if ends is not None and stable == ends:
            return ends
        assert time.monotonic() < until, f"a transaction stays open: stable up to {stable}, written up to {ends}"
        time.sleep(LOOK_S)


def _ends(admin: AdminClient, places: list[TopicPartition], level: IsolationLevel | None) -> dict[int, int] | None:
    """None: some partition's leader is changing."""
    wanted = {place: OffsetSpec.latest() for place in places}
    isolation = IsolationLevel.READ_UNCOMMITTED if level is None else level
    asked = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=CALL_S)
    try:
        return {place.partition: told.result(CALL_S).offset for place, told in asked.items()}
    except KafkaException as error:
        if error.args[0].code() not in CHANGING:
            raise
        return None


def _to_the_ends(consumer: Consumer, ends: dict[int, int]) -> Iterator[Lying]:
    """Until the end of each partition was told at the offset that it had, or behind it."""
    left = {partition for partition, end in ends.items() if end}
    until = time.monotonic() + READ_S
    while left:
        assert time.monotonic() < until, f"partitions {left} were not read to their ends {ends}"
        for message in consumer.consume(PIECE, 0.5):
            error = message.error()
            if error is None:
                yield Lying(message.partition(), message.offset(), message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= ends[message.partition()]:
                    left.discard(message.partition())
            else:
                raise AssertionError(str(error))
