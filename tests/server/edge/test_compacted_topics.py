"""Compacted topics as clients that others wrote see them: librdkafka and aiokafka, over both storages."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Place

from flowshare.clock import LoopClock
from flowshare.log.embedded import EmbeddedStorage
from tests.server.edge.kit import edge
from tests.server.edge.test_foreign_clients import librdkafka

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

WITHIN_S = 60.0
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 50
UPDATES = 5_000


def produce(e, codec: str) -> dict[bytes, tuple[bytes, int]]:
    """Update keys with an idempotent producer, abort a transaction, delete a key; (value, offset) of each key."""
    from confluent_kafka import Producer

    newest: dict[bytes, tuple[bytes, int]] = {}

    def report(error, message) -> None:
        assert error is None, error
        newest[message.key()] = (message.value(), message.offset())

    producer = Producer(librdkafka(e, enable_idempotence=True, compression_type=codec, linger_ms=2))
    for number in range(UPDATES):
        producer.produce(
            "t", b"%d" % number, key=b"k%d" % (number % KEYS), headers={"n": b"%d" % number}, callback=report
        )
        producer.poll(0)
    producer.produce("t", None, key=b"k0", callback=report)
    assert producer.flush(WITHIN_S) == 0
    transactional = Producer(librdkafka(e, transactional_id="tx", compression_type=codec))
    transactional.init_transactions(WITHIN_S)
    transactional.begin_transaction()
    transactional.produce("t", b"aborted", key=b"k1")
    assert transactional.flush(WITHIN_S) == 0
    transactional.abort_transaction(WITHIN_S)
    producer.produce("t", b"last", key=b"end", callback=report)
    assert producer.flush(WITHIN_S) == 0
    return newest


def consume(e, last: int, isolation: str) -> list[tuple[int, bytes, bytes | None, list]]:
    """All that librdkafka reads, up to the offset `last`."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        librdkafka(e, group_id="unused", enable_auto_commit=False, isolation_level=isolation, check_crcs=True)
    )
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        found, until = [], time.monotonic() + WITHIN_S
        while time.monotonic() < until and not (found and found[-1][0] == last):
            for message in consumer.consume(1000, timeout=0.5):
                assert message.error() is None, message.error()
                found.append((message.offset(), message.key(), message.value(), message.headers()))
    finally:
        consumer.close()
    return found


async def consume_async(e, last: int) -> list[tuple[int, bytes, bytes | None, list]]:
    """All that aiokafka reads, up to the offset `last`."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=e.address, auto_offset_reset="earliest", isolation_level="read_committed", check_crcs=True
    )
    await consumer.start()
    try:
        consumer.assign([Place("t", 0)])
        await consumer.seek_to_beginning()
        found: list = []
        async with asyncio.timeout(WITHIN_S):
            while not (found and found[-1][0] == last):
                record = await consumer.getone()
                found.append((record.offset, record.key, record.value, list(record.headers) or None))
    finally:
        await consumer.stop()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_clients_read_the_last_value_of_each_key(kind: str, codec: str, tmp_path) -> None:
    storage = None if kind == "memory" else await EmbeddedStorage.open(tmp_path / "storage", clock=LoopClock())
    async with edge(storage=storage) as e:
        await e.storage.create_topic("t", configs=COMPACT)
        newest = await asyncio.to_thread(produce, e, codec)
        end = newest[b"end"][1]

        await e.storage._compact()

        expected = sorted((offset, key, value) for key, (value, offset) in newest.items())
        for isolation in ("read_uncommitted", "read_committed"):
            found = await asyncio.to_thread(consume, e, end, isolation)
            assert [record[:3] for record in found] == expected
        assert all(value is None or key == b"end" or headers == [("n", value)] for _, key, value, headers in found)
        assert await consume_async(e, end) == found


async def test_a_record_without_a_key_is_refused_with_kafkas_error() -> None:
    from confluent_kafka import KafkaError, Producer

    async with edge() as e:
        await e.storage.create_topic("t", configs=COMPACT)
        failed: list = []
        producer = Producer(librdkafka(e))
        producer.produce("t", b"v", callback=lambda error, _: failed.append(error))
        assert await asyncio.to_thread(producer.flush, WITHIN_S) == 0
        assert [error.code() for error in failed] == [KafkaError.INVALID_RECORD]
