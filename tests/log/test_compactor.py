"""Compaction of the embedded storage: passes over large logs, sizes, the time index, damage, what lasts."""

from __future__ import annotations

import asyncio
import random

import pytest

from flowshare.clock import LoopClock
from flowshare.log import keys
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.memory import MemoryStorage
from flowshare.log.storage import BrokerStorage
from flowshare.protocol.batches import BatchBuilder
from tests.log.compaction_contract import COMPACT, EAGER, content, put
from tests.log.compaction_world import built
from tests.log.places import opened
from tests.log.producer_contract import in_transaction


def size_of(storage: BrokerStorage) -> int:
    log = storage._partition("t", 0)
    return log.end_position - log.start_position


def index_of(storage: EmbeddedStorage) -> list[tuple[int, int]]:
    """Timestamp and offset of the entries of the time index."""
    times = keys.times(storage.topics()["t"].topic_id, 0)
    return [keys.time_of(key) for key, _ in storage._store.scan(times, keys.after(times))]


async def update(storage, updates: int, distinct: int, seed: int) -> dict[bytes, bytes]:
    """Updates as a table's changelog has them; the last value of each key."""
    chance, values = random.Random(seed), dict[bytes, bytes]()
    for first in range(0, updates, 500):
        builder = BatchBuilder(compression="lz4" if first % 1000 else "none")
        for number in range(first, min(first + 500, updates)):
            key, value = b'"key-%d"' % chance.randrange(distinct), b'{"count": %d}' % number
            builder.add(key, value, timestamp_ms=1_700_000_000_000 + number)
            values[key] = value
        await storage.append("t", 0, builder.build())
    return values


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedded", "memory"])
def test_a_tables_changelog_ends_as_small_as_the_table(tmp_path, kind):
    async def body(storage) -> None:
        await storage.create_topic("t", configs=COMPACT)
        values = await update(storage, 200_000, 100, seed=1)
        await storage._compact()
        found = await content(storage)
        assert {record.key: record.value for record in found} == values
        assert len(found) <= 600  # the last batch is left alone

    async def in_memory() -> None:
        storage = MemoryStorage(LoopClock())
        await body(storage)
        assert size_of(storage) < 50_000
        await storage.close()

    async def on_disk(storage: EmbeddedStorage) -> None:
        await body(storage)
        assert size_of(storage) < 50_000
        assert len(index_of(storage)) < 5

    if kind == "memory":
        asyncio.run(in_memory())
    else:
        opened(tmp_path / "storage", on_disk)
        opened(tmp_path / "storage", lambda storage: _same(storage, 50_000))


async def _same(storage: EmbeddedStorage, size_max: int) -> None:
    assert size_of(storage) < size_max
    assert (await put(storage, (b"a", b"1"))) == 200_000


def test_a_log_with_more_keys_than_a_pass_remembers_takes_several(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        storage._compactor.keys_max = 70
        await storage.create_topic("t", configs=EAGER)
        chance, values = random.Random(3), dict[bytes, bytes]()
        for number in range(600):
            pair = (b"k%d" % chance.randrange(200), b"%d" % number)
            await put(storage, pair)
            values.update([pair])
        await storage._compact()

        found = await content(storage)
        assert {record.key: record.value for record in found} == values
        assert len(found) <= len(values) + 1

    opened(tmp_path / "storage", body)


def test_sizes_and_times_are_right_after_a_pass_and_after_opening_again(tmp_path):
    async def made(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t", configs=EAGER)
        for number in range(60):
            builder = BatchBuilder()
            builder.add(b"k%d" % (number % 7), bytes(10_000 + number), timestamp_ms=1000 * number)
            await storage.append("t", 0, builder.build())
        before = index_of(storage)
        await storage._compact()
        entries = index_of(storage)
        assert entries == sorted(entries)
        assert len(entries) < len(before)
        await check(storage)

    async def check(storage: EmbeddedStorage) -> None:
        read = await storage.read("t", 0, 0, max_bytes=1 << 24)
        assert len(read.records) == size_of(storage)
        for number in range(60):
            found = await storage.offset_for_timestamp("t", 0, 1000 * number)
            assert found == (max(number, 52), 1000 * max(number, 52))

    opened(tmp_path / "storage", made)
    opened(tmp_path / "storage", check)


def test_a_compacted_partition_whose_batches_were_lost_says_so(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t", configs=EAGER)
        for number in range(10):
            await put(storage, (b"k%d" % (number % 2), b"v"))
        await storage._compact()
        for number in range(5):
            await put(storage, (b"k", b"%d" % number))
        storage._store._db.delete(keys.at(keys.batches(storage.topics()["t"].topic_id, 0), 12))

    opened(tmp_path / "storage", body)
    with pytest.raises(Exception, match="offsets 12-12 are missing"):
        opened(tmp_path / "storage", body)


def test_a_damaged_partition_is_left_alone_and_the_others_are_compacted(tmp_path, caplog):
    async def body(storage: EmbeddedStorage) -> None:
        for topic in ("bad", "t"):
            await storage.create_topic(topic, configs=EAGER)
            for number in range(4):
                await put(storage, (b"k", b"%d" % number), topic=topic)
        place = keys.at(keys.batches(storage.topics()["bad"].topic_id, 0), 1)
        damaged = bytearray(storage._store.get(place))
        damaged[-1] ^= 1
        storage._store._db.put(place, bytes(damaged))

        await storage._compact()
        await storage._compact()

        assert [record.offset for record in await content(storage)] == [2, 3]
        assert storage.offsets("bad", 0).high_watermark == 4

    opened(tmp_path / "storage", body)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "partition 0 of topic bad is not compacted any more: checksum of the batch at offset 1 does not match its bytes"
    ]


def test_what_was_aborted_and_is_gone_is_not_looked_for_any_more(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t", configs={**EAGER, "delete.retention.ms": "0"})
        for sequence in range(20):
            await storage.append("t", 0, in_transaction(sequence))
            await storage.append_control("t", 0, 1, 0, committed=False)
        for number in range(4):
            await put(storage, (b"end", b"%d" % number))
            await storage._compact()
        await check(storage)

    async def check(storage: EmbeddedStorage) -> None:
        assert storage._partition("t", 0).producers.aborted.between(0, 1000) == ()
        read = await storage.read("t", 0, 0, max_bytes=1 << 20)
        assert [(batch.first, batch.last) for batch in read.batches] == [(42, 42), (43, 43)]
        assert (await storage.append("t", 0, in_transaction(20))).base_offset in (44, 45)

    opened(tmp_path / "storage", body)
    opened(tmp_path / "storage", _nothing_aborted)


async def _nothing_aborted(storage: EmbeddedStorage) -> None:
    assert storage._partition("t", 0).producers.aborted.between(0, 1000) == ()


def test_closing_in_the_middle_of_a_pass_is_clean(tmp_path):
    async def first(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t", configs=EAGER)
        for number in range(3000):
            if number % 50 == 0:
                await asyncio.gather(
                    *(storage.append("t", 0, built([(b"k%d" % n, b"%d" % number)])) for n in range(50))
                )
        under_way = asyncio.create_task(storage._compact())
        while not storage._partition("t", 0).holes_to:  # noqa: ASYNC110  nobody tells when it begins
            await asyncio.sleep(0)
        under_way.cancel()

    async def second(storage: EmbeddedStorage) -> None:
        await storage._compact()
        found = await content(storage)
        assert {record.key: record.value for record in found} == {b"k%d" % n: b"2950" for n in range(50)}

    opened(tmp_path / "storage", first)
    opened(tmp_path / "storage", second)


def test_a_log_start_that_overtakes_a_pass_keeps_sizes_right(tmp_path):
    sizes: list[int] = []

    async def first(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t", configs=EAGER)
        for number in range(40):
            await put(storage, (b"k%d" % (number % 5), bytes(1000)))
        under_way = asyncio.create_task(storage._compact())
        while not storage._partition("t", 0).holes_to:  # noqa: ASYNC110  nobody tells when it begins
            await asyncio.sleep(0)
        await storage.delete_records("t", 0, 39)
        await under_way
        sizes.append(size_of(storage))

    async def second(storage: EmbeddedStorage) -> None:
        sizes.append(size_of(storage))
        assert len((await storage.read("t", 0, 39, max_bytes=1)).records) == sizes[0]

    opened(tmp_path / "storage", first)
    opened(tmp_path / "storage", second)
    assert sizes[0] == sizes[1]
