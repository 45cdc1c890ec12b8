"""Contract of every storage for compacted topics."""

from __future__ import annotations

import asyncio
import random
from typing import final

import pytest

from flowshare.log.base import InvalidRecord, InvalidTopic, OffsetOutOfRange, Storage, UnknownTopic
from flowshare.protocol import thinning
from flowshare.protocol.batches import BatchBuilder, DecodedRecord, batch_headers, decode_all
from tests.log.compaction_world import DAY_MS, Pair, built
from tests.log.contract import NOW_MS
from tests.log.producer_contract import ProducerContract, in_transaction
from tests.waiting import pause, until

COMPACT = {"cleanup.policy": "compact"}
EAGER = {**COMPACT, "min.cleanable.dirty.ratio": "0"}


async def put(storage: Storage, *pairs: Pair, topic: str = "t", codec: str = "none") -> int:
    """Append one batch; its base offset."""
    return (await storage.append(topic, 0, built(list(pairs), codec=codec))).base_offset


async def content(storage: Storage, topic: str = "t", *, committed: bool = False) -> list[DecodedRecord]:
    """All records from the log start on, read as a client does that does not know of holes."""
    bounds = storage.offsets(topic, 0)
    offset, found = bounds.log_start, list[DecodedRecord]()
    while True:
        read = await storage.read(topic, 0, offset, max_bytes=10_000, committed=committed)
        if not read.batches:
            return found
        assert [header.base_offset for header in batch_headers(read.records)] == [b.first for b in read.batches]
        skipped = [range(b.first, b.last + 1) for b in read.aborted]
        found += [r for r in decode_all(read.records) if r.offset >= offset and not any(r.offset in s for s in skipped)]
        offset = read.batches[-1].last + 1


class CompactionContract(ProducerContract):
    """Subclasses give `storage`."""

    async def left(self, storage: Storage, *expected: int, topic: str = "t") -> list[DecodedRecord]:
        """Wait until these offsets are left."""

        async def are() -> bool:
            return [record.offset for record in await content(storage, topic)] == list(expected)

        await until(are)
        return await content(storage, topic)

    @final
    def test_the_newest_record_of_each_key_stays_where_it_was(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            await put(storage, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec="gzip")
            await put(storage, (b"a", b"4"))
            await put(storage, (b"a", b"5"), (b"c", b"6"), codec="zstd")
            await put(storage, (b"end", b"7"))

            found = await self.left(storage, 1, 4, 5, 6)

            assert [(r.key, r.value) for r in found] == [(b"b", b"2"), (b"a", b"5"), (b"c", b"6"), (b"end", b"7")]
            bounds = storage.offsets("t", 0)
            assert (bounds.log_start, bounds.high_watermark) == (0, 7)
            assert not storage.dense("t", 0, 0, 7)
            assert await put(storage, (b"a", b"8")) == 7

        run(body)

    @final
    def test_a_batch_of_more_records_than_are_read_at_once_is_thinned_as_any_other(self, run, monkeypatch):
        monkeypatch.setattr(thinning, "STEP_RECORDS", 3)
        monkeypatch.setattr(thinning, "OPENED_RECORDS_MAX", 5)

        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            await put(storage, *((b"%d" % (number % 7), b"%d" % number) for number in range(20)), codec="zstd")
            await put(storage, (b"0", b"20"))
            await put(storage, (b"end", b""))

            found = await self.left(storage, 13, 15, 16, 17, 18, 19, 20, 21)

            assert [one.value for one in found[:3]] == [b"13", b"15", b"16"]

        run(body)

    @final
    def test_reading_at_an_offset_that_is_gone_begins_with_the_next_batch(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            for number in range(50):
                await put(storage, (b"a" if number % 10 else b"b%d" % number, b"v"))
            await put(storage, (b"end", b"v"))
            offsets = [record.offset for record in await self.left(storage, 0, 10, 20, 30, 40, 49, 50)]

            for asked in range(51):
                read = await storage.read("t", 0, asked, max_bytes=1)
                assert read.batches[0].first == next(offset for offset in offsets if offset >= asked)

        run(body)

    @final
    def test_records_without_a_key_are_refused_by_compacted_topics_only(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=COMPACT)
            await storage.create_topic("u")
            for codec in ("none", "lz4"):
                with pytest.raises(InvalidRecord, match="without a key"):
                    await put(storage, (b"a", b"1"), (None, b"2"), codec=codec)
                await put(storage, (None, b"2"), topic="u", codec=codec)
            assert storage.offsets("t", 0).high_watermark == 0
            assert await put(storage, (b"", b"empty, but a key")) == 0

        run(body)

    @final
    def test_records_without_a_key_from_before_go_when_a_topic_becomes_compacted(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await put(storage, (None, b"1"), (b"a", b"2"))
            await put(storage, (b"b", b"3"))
            await storage.alter_topic("t", EAGER)
            await self.left(storage, 1, 2)

        run(body)

    @final
    def test_tombstones_stay_for_their_time_and_then_go_with_the_next_compaction(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            await put(storage, (b"a", b"1"), (b"b", b"2"))
            await put(storage, (b"a", None))
            await put(storage, (b"end", b"3"))
            found = await self.left(storage, 1, 2, 3)
            assert (found[1].key, found[1].value, found[1].timestamp_ms) == (b"a", None, NOW_MS)

            self.clock.now += DAY_MS
            await put(storage, (b"end", b"4"))
            await self.left(storage, 1, 3, 4)
            await put(storage, (b"end", b"5"))
            await self.left(storage, 1, 4, 5)

        run(body)

    @final
    def test_open_transactions_hold_compaction_back_and_aborted_records_go(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            for number in range(3):
                await put(storage, (b"k", b"%d" % number))
            await storage.append("t", 0, in_transaction(0, 2, producer=1))
            await put(storage, (b"k", b"3"))
            await put(storage, (b"k", b"4"))
            await self.left(storage, 2, 3, 4, 5, 6)

            await storage.append_control("t", 0, 1, 0, committed=False)
            await put(storage, (b"end", b"5"))
            await self.left(storage, 6, 8)
            assert [record.offset for record in await content(storage, committed=True)] == [6, 8]
            assert (await storage.append("t", 0, in_transaction(2, 1, producer=1))).base_offset == 9

        run(body)

    @final
    def test_nothing_aborted_is_ever_read_as_committed_while_compaction_goes_on(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={**EAGER, "delete.retention.ms": "0"})
            stop = False

            async def read() -> None:
                while not stop:
                    found = await content(storage, committed=True)
                    assert all(record.value != b"aborted" for record in found)
                    await asyncio.sleep(0)

            reader = asyncio.create_task(read())
            for number in range(60):
                await storage.append("t", 0, _aborted(sequence=number))
                await storage.append_control("t", 0, 1, 0, committed=False)
                await put(storage, (b"k", b"%d" % number))
            stop = True
            await reader
            self.clock.now += 1
            await put(storage, (b"end", b"v"))
            last = storage.offsets("t", 0).high_watermark - 1
            await self.left(storage, last - 1, last)

        run(body)

    @final
    def test_an_aborted_batch_that_holds_the_log_start_is_never_read_as_committed(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            await storage.append("t", 0, in_transaction(0, 5, producer=1))
            await storage.append_control("t", 0, 1, 0, committed=False)
            assert await storage.delete_records("t", 0, 2) == 2
            await put(storage, (b"k", b"1"))
            await put(storage, (b"k", b"2"))
            await put(storage, (b"end", b"3"))

            async def compacted() -> bool:
                return 6 not in [record.offset for record in await content(storage)]

            await until(compacted)
            assert [record.offset for record in await content(storage, committed=True)] == [7, 8]
            await self.left(storage, 7, 8)

        run(body)

    @final
    def test_an_open_transaction_that_holds_the_log_start_is_left_alone(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            await put(storage, (b"k", b"0"))
            await storage.append("t", 0, in_transaction(0, 5, producer=1))
            await storage.delete_records("t", 0, 3)
            await put(storage, (b"k", b"1"))
            await put(storage, (b"k", b"2"))
            await pause(0.05, "a compaction that must not come")

            await self.left(storage, 3, 4, 5, 6, 7)
            await storage.append_control("t", 0, 1, 0, committed=True)
            await put(storage, (b"end", b"3"))
            await self.left(storage, 7, 9)

        run(body)

    @final
    def test_young_records_and_a_log_that_is_mostly_clean_are_left_alone(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={**EAGER, "min.compaction.lag.ms": "1000"})
            await storage.create_topic("late")
            await put(storage, (b"k", b"big" * 1000), topic="late")
            for topic in ("t", "late"):
                for number in range(4):
                    await put(storage, (b"a", b"%d" % number), topic=topic)
            # It is compacted from now on, lest a pass over a part of these leaves it too clean for another one.
            await storage.alter_topic("late", {**COMPACT, "max.compaction.lag.ms": "5000"})
            await self.left(storage, 0, 1, 2, 3)
            self.clock.now += 1001
            await put(storage, (b"b", b"x"))
            await self.left(storage, 3, 4)
            await self.left(storage, 0, 3, 4, topic="late")

            await put(storage, (b"a", b"5"), topic="late")
            await put(storage, (b"c", b"5"), topic="late")
            await pause(0.05, "a compaction that must not come")
            await self.left(storage, 0, 3, 4, 5, 6, topic="late")
            self.clock.now += 5000
            await self.left(storage, 0, 5, 6, topic="late")

        run(body)

    @final
    def test_offsets_are_found_by_time_in_what_is_left(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            for start, key in ((1000, b"a"), (9000, b"b"), (5000, b"c"), (3000, b"b"), (7000, b"d")):
                await storage.append("t", 0, _timed(key, start))
            await self.left(storage, 0, 2, 3, 4)

            assert await storage.offset_for_timestamp("t", 0, 1001) == (2, 5000)
            assert await storage.offset_for_timestamp("t", 0, 5001) == (4, 7000)
            assert await storage.offset_for_timestamp("t", 0, 7001) is None

        run(body)

    @final
    def test_a_compacted_log_can_be_cut_and_shrinks_by_size_of_what_is_left(self, run):
        async def body(storage: Storage) -> None:
            both = {**EAGER, "cleanup.policy": "compact,delete"}
            await storage.create_topic("t", configs=both)
            for number in range(40):
                await put(storage, (b"k%d" % (number % 20), bytes(5000)))
            await put(storage, (b"end", b""))
            await self.left(storage, *range(20, 41))

            await storage.alter_topic("t", {"retention.bytes": "60000"})
            await until(lambda: storage.offsets("t", 0).log_start >= 28)
            await pause(0.05, "a cut that must not go further")
            assert storage.offsets("t", 0).log_start == 28
            assert await storage.delete_records("t", 0, 35) == 35
            with pytest.raises(OffsetOutOfRange):
                await storage.read("t", 0, 34, max_bytes=1)
            await self.left(storage, *range(35, 41))

        run(body)

    @final
    def test_a_topic_may_go_while_it_is_compacted(self, run):
        async def body(storage: Storage) -> None:
            for _ in range(5):
                await storage.create_topic("t", configs=EAGER)
                for number in range(30):
                    await put(storage, (b"a", b"%d" % number))
                await pause(0.01, "the compactor may be anywhere in its work")
                await storage.delete_topic("t")
                with pytest.raises(UnknownTopic):
                    storage.offsets("t", 0)

        run(body)

    @final
    def test_settings_of_compaction_have_kafkas_names_and_bounds(self, run):
        async def body(storage: Storage) -> None:
            for name, value in (
                ("min.cleanable.dirty.ratio", "1.1"),
                ("min.cleanable.dirty.ratio", "half"),
                ("min.compaction.lag.ms", "-1"),
                ("max.compaction.lag.ms", "0"),
                ("delete.retention.ms", "-1"),
                ("segment.ms", "5"),
            ):
                with pytest.raises(InvalidTopic, match=name):
                    await storage.create_topic("t", configs={name: value})
            await storage.create_topic("t", configs={**COMPACT, "max.compaction.lag.ms": "5"})
            with pytest.raises(InvalidTopic, match=r"min.compaction.lag.ms=6 is more"):
                await storage.alter_topic("t", {"min.compaction.lag.ms": "6"})

        run(body)

    @final
    @pytest.mark.parametrize("seed", [1, 2])
    def test_readers_see_the_last_value_of_each_key_at_every_moment(self, run, seed):
        chance = random.Random(seed)

        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs=EAGER)
            values: dict[bytes, bytes] = {}
            for number in range(150):
                pairs = [(b"k%d" % chance.randrange(20), b"%d" % number) for _ in range(chance.randint(1, 5))]
                await put(storage, *pairs, codec=chance.choice(("none", "snappy", "lz4")))
                values.update(pairs)
                if number % 10 == 0:
                    found = await content(storage)
                    assert {record.key: record.value for record in found} == values, f"seed {seed}"
                    await pause(0.01, "the compactor works meanwhile")

            async def small() -> bool:
                return len(await content(storage)) <= 25

            await until(small)
            assert {record.key: record.value for record in await content(storage)} == values, f"seed {seed}"

        run(body)


def _aborted(sequence: int) -> bytes:
    return built([(b"k", b"aborted")], producer=1, sequence=sequence, transactional=True)


def _timed(key: bytes, timestamp_ms: int) -> bytes:
    builder = BatchBuilder()
    builder.add(key, b"v", timestamp_ms=timestamp_ms)
    return builder.build()
