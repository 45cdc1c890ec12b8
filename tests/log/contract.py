"""Contract of every storage; one class, run over each implementation."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import final

import pytest

from flowshare.log.base import (
    CorruptBatches,
    InvalidTopic,
    OffsetOutOfRange,
    RecordsTooLarge,
    Storage,
    TopicExists,
    UnknownTopic,
)
from flowshare.protocol.batches import BatchBuilder, batch_headers, decode_all
from flowshare.share.types import LogBatch
from tests.sim.clock import HastyClock
from tests.waiting import LIMIT_S

Body = Callable[[Storage], Awaitable[None]]
NOW_MS = 1_700_000_000_000


class FixedClock(HastyClock):
    """Wall-clock that stands still; waiting is real, except that nothing waits longer than 10 ms."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.now = NOW_MS
        self.set_ms = 0

    def now_ms(self) -> int:
        return self.now + self.set_ms

    def steady_ms(self) -> int:
        return self.now


def batch(count: int = 1, *, timestamp_ms: int = NOW_MS, value: bytes = b"v", compression: str = "none") -> bytes:
    """One batch of `count` records, a millisecond apart."""
    builder = BatchBuilder(compression=compression)
    for number in range(count):
        assert builder.add(b"k%d" % number, value, timestamp_ms=timestamp_ms + number)
    return builder.build()


class StorageContract:
    """Subclasses give `storage`."""

    @asynccontextmanager
    async def storage(self, clock: FixedClock) -> AsyncIterator[Storage]:
        raise NotImplementedError
        yield

    @pytest.fixture
    def run(self, tmp_path):
        self.path = tmp_path / "storage"
        self.clock = FixedClock()

        async def with_storage(body: Body) -> None:
            async with self.storage(self.clock) as storage:
                await body(storage)

        return lambda body: asyncio.run(with_storage(body))

    @final
    def test_appended_batches_get_consecutive_offsets_and_come_back_as_they_were(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")

            first = await storage.append("t", 0, batch(3))
            second = await storage.append("t", 0, batch(2, compression="gzip") + batch(1))
            result = await storage.read("t", 0, 0, max_bytes=1 << 20)

            assert (first.base_offset, first.last_offset) == (0, 2)
            assert (second.base_offset, second.last_offset) == (3, 5)
            assert result.batches == (LogBatch(0, 2), LogBatch(3, 4), LogBatch(5, 5))
            assert [record.offset for record in decode_all(result.records)] == list(range(6))
            assert [header.codec for header in batch_headers(result.records)] == ["none", "gzip", "none"]
            assert result.offsets.high_watermark == result.offsets.last_stable == 6

        run(body)

    @final
    def test_concurrent_appends_keep_the_order_of_their_calls(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")

            done = await asyncio.gather(*(storage.append("t", 0, batch(n % 3 + 1)) for n in range(50)))

            bases = [appended.base_offset for appended in done]
            assert bases == sorted(bases)
            assert all(a.last_offset + 1 == b.base_offset for a, b in itertools.pairwise(done))

        run(body)

    @final
    def test_reading_inside_a_batch_gives_the_whole_batch(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, batch(10))

            assert (await storage.read("t", 0, 7, max_bytes=1)).batches == (LogBatch(0, 9),)

        run(body)

    @final
    def test_reading_stops_at_the_limit_but_gives_at_least_one_batch(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            records = batch(1, value=bytes(1000))
            for _ in range(5):
                await storage.append("t", 0, records)

            assert len((await storage.read("t", 0, 1, max_bytes=1)).batches) == 1
            assert len((await storage.read("t", 0, 1, max_bytes=2 * len(records))).batches) == 2
            assert len((await storage.read("t", 0, 1, max_bytes=1 << 20)).batches) == 4

        run(body)

    @final
    def test_reading_at_the_end_is_empty_and_beyond_it_is_an_error(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            await storage.append("t", 0, batch(3))

            assert (await storage.read("t", 0, 3, max_bytes=100)).records == b""
            for offset in (4, -1, 2**63):
                with pytest.raises(OffsetOutOfRange):
                    await storage.read("t", 0, offset, max_bytes=100)

        run(body)

    @final
    def test_topics_and_partitions_that_do_not_exist_are_named(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            with pytest.raises(UnknownTopic, match="nope"):
                await storage.append("nope", 0, batch())
            with pytest.raises(UnknownTopic, match="1 partitions"):
                await storage.read("t", 1, 0, max_bytes=1)
            with pytest.raises(UnknownTopic):
                storage.offsets("t", -1)

        run(body)

    @final
    @pytest.mark.parametrize(
        "records",
        [b"", b"garbage", batch(2)[:-1], batch(2)[:40], batch(2)[:30] + b"!" + batch(2)[31:], batch() + b"\0"],
    )
    def test_bytes_that_are_no_batches_are_refused_and_leave_nothing(self, run, records):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            with pytest.raises(CorruptBatches):
                await storage.append("t", 0, records)
            assert storage.offsets("t", 0).high_watermark == 0

        run(body)

    @final
    def test_a_batch_larger_than_the_topic_takes_is_refused(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={"max.message.bytes": "500"})
            await storage.append("t", 0, batch(1))
            with pytest.raises(RecordsTooLarge, match="500"):
                await storage.append("t", 0, batch(1, value=bytes(600)))

        run(body)

    @final
    def test_append_time_stamps_records_with_the_storages_clock(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
            self.clock.now = NOW_MS + 77
            await storage.append("t", 0, batch(2, timestamp_ms=5))
            result = await storage.read("t", 0, 0, max_bytes=1)
            assert {record.timestamp_ms for record in decode_all(result.records)} == {NOW_MS + 77}
            assert await storage.offset_for_timestamp("t", 0, NOW_MS) == (0, NOW_MS + 77)

        run(body)

    @final
    def test_offsets_are_found_by_time_within_and_across_batches(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            for start in (1000, 5000, 3000, 9000):
                await storage.append("t", 0, batch(10, timestamp_ms=start, value=bytes(20_000)))

            async def at(time: int) -> tuple[int, int] | None:
                return await storage.offset_for_timestamp("t", 0, time)

            assert await at(-5) == (0, 1000)
            assert await at(1004) == (4, 1004)
            assert await at(1010) == (10, 5000)
            assert await at(3005) == (10, 5000)
            assert await at(5009) == (19, 5009)
            assert await at(5010) == (30, 9000)
            assert await at(9010) is None

        run(body)

    @final
    def test_deleted_records_are_gone_and_the_log_start_only_rises(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t")
            for _ in range(4):
                await storage.append("t", 0, batch(10))

            assert await storage.delete_records("t", 0, 25) == 25
            assert await storage.delete_records("t", 0, 5) == 25
            assert storage.offsets("t", 0).log_start == 25
            with pytest.raises(OffsetOutOfRange):
                await storage.read("t", 0, 24, max_bytes=1)
            assert (await storage.read("t", 0, 25, max_bytes=1)).batches == (LogBatch(20, 29),)
            assert await storage.offset_for_timestamp("t", 0, 0) == (25, NOW_MS + 5)
            with pytest.raises(OffsetOutOfRange):
                await storage.delete_records("t", 0, 41)
            assert await storage.delete_records("t", 0, -1) == 40
            assert (await storage.read("t", 0, 40, max_bytes=1)).records == b""
            assert (await storage.append("t", 0, batch())).base_offset == 40

        run(body)

    @final
    def test_listeners_hear_of_appends_and_log_start_moves_once_they_hold(self, run):
        async def body(storage: Storage) -> None:
            heard = []
            storage.on_append(lambda topic, n: heard.append((topic, n, storage.offsets(topic, n))))
            await storage.create_topic("t", partitions=2)
            await storage.append("t", 1, batch(3))
            await storage.delete_records("t", 1, 2)

            assert [(t, n, o.log_start, o.high_watermark) for t, n, o in heard] == [("t", 1, 0, 3), ("t", 1, 2, 3)]

        run(body)

    @final
    def test_old_records_are_deleted_by_age_but_young_ones_stay(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={"retention.ms": "1000"})
            await storage.append("t", 0, batch(10, timestamp_ms=NOW_MS - 5000))
            await storage.append("t", 0, batch(10, timestamp_ms=NOW_MS - 500))
            await self.until(storage, lambda: storage.offsets("t", 0).log_start == 10)

            self.clock.now += 10_000
            await self.until(storage, lambda: storage.offsets("t", 0).log_start == 20)
            assert (await storage.append("t", 0, batch(timestamp_ms=self.clock.now))).base_offset == 20

        run(body)

    @final
    def test_a_record_of_a_time_far_ahead_does_not_end_retention_for_what_comes_behind_it(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={"message.timestamp.after.max.ms": str(2**62)})
            await storage.append("t", 0, batch(timestamp_ms=NOW_MS - 5000))
            await storage.append("t", 0, batch(timestamp_ms=10**18))
            for _ in range(5):
                await storage.append("t", 0, batch(timestamp_ms=NOW_MS - 5000, value=bytes(60_000)))
            await storage.append("t", 0, batch(timestamp_ms=NOW_MS - 500))
            await storage.alter_topic("t", {"message.timestamp.after.max.ms": None, "retention.ms": "1000"})
            await self.until(storage, lambda: storage.offsets("t", 0).log_start == 7)

        run(body)

    @final
    def test_a_record_of_a_time_far_ahead_goes_with_those_behind_it_and_not_before(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={"message.timestamp.after.max.ms": str(2**62)})
            await storage.append("t", 0, batch(timestamp_ms=NOW_MS - 5000))
            await storage.append("t", 0, batch(timestamp_ms=10**18))
            await storage.append("t", 0, batch(timestamp_ms=NOW_MS - 500))
            await storage.alter_topic("t", {"message.timestamp.after.max.ms": None, "retention.ms": "1000"})
            await self.until(storage, lambda: storage.offsets("t", 0).log_start == 1)
            self.clock.now += 10_000
            await self.until(storage, lambda: storage.offsets("t", 0).log_start == 3)

        run(body)

    @final
    def test_records_of_a_compacted_topic_are_deleted_only_if_its_policy_says_so_too(self, run):
        async def body(storage: Storage) -> None:
            for name, policy in (("kept", "compact"), ("both", "compact,delete")):
                await storage.create_topic(name, configs={"cleanup.policy": policy, "retention.ms": "1000"})
                await storage.append(name, 0, batch(10, timestamp_ms=NOW_MS - 5000))
            await self.until(storage, lambda: storage.offsets("both", 0).log_start == 10)

            assert storage.offsets("kept", 0).log_start == 0

        run(body)

    @final
    def test_records_are_deleted_by_size_down_to_the_last_batch(self, run):
        async def body(storage: Storage) -> None:
            records = batch(1, value=bytes(1000))
            await storage.create_topic("t")
            for _ in range(10):
                await storage.append("t", 0, records)
            await storage.alter_topic("t", {"retention.bytes": str(3 * len(records))})
            await self.until(storage, lambda: storage.offsets("t", 0).log_start == 7)

            await storage.alter_topic("t", {"retention.bytes": "0"})
            await self.until(storage, lambda: storage.offsets("t", 0).log_start == 9)

        run(body)

    @final
    @pytest.mark.parametrize("size", [1_000, 30_000, 60_000])
    def test_a_log_that_was_cut_keeps_all_that_is_young(self, run, size):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", configs={"retention.ms": "1000"})
            for age_ms in (5_000, *[500] * 9):
                await storage.append("t", 0, batch(timestamp_ms=NOW_MS - age_ms, value=bytes(size)))
            for _ in range(3):
                await self.sweep(storage)
                assert storage.offsets("t", 0).log_start == 1

        run(body)

    @final
    @pytest.mark.parametrize("size", [1_000, 30_000, 60_000])
    def test_a_log_that_was_cut_by_size_is_cut_no_further(self, run, size):
        async def body(storage: Storage) -> None:
            records = batch(1, value=bytes(size))
            await storage.create_topic("t", configs={"retention.bytes": str(3 * len(records))})
            for _ in range(10):
                await storage.append("t", 0, records)
            await storage.delete_records("t", 0, 2)
            for _ in range(3):
                await self.sweep(storage)
                assert storage.offsets("t", 0).log_start == 7

        run(body)

    async def sweep(self, storage: Storage) -> None:
        """One whole sweep of retention."""
        await storage._sweep()  # type: ignore[attr-defined]

    async def until(self, storage: Storage, condition: Callable[[], bool]) -> None:
        moved = asyncio.Event()
        storage.on_append(lambda *_: moved.set())
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await moved.wait()
                moved.clear()

    @final
    def test_topics_are_made_changed_and_deleted(self, run):
        async def body(storage: Storage) -> None:
            topic = await storage.create_topic("a.b-c_1", partitions=2, configs={"retention.ms": "9"})
            assert isinstance(topic.topic_id, uuid.UUID)
            assert storage.topics()["a.b-c_1"] == topic
            with pytest.raises(TopicExists):
                await storage.create_topic("a.b-c_1")

            grown = await storage.create_partitions("a.b-c_1", 3)
            assert (grown.partitions, grown.topic_id) == (3, topic.topic_id)
            assert storage.offsets("a.b-c_1", 2).high_watermark == 0
            changed = await storage.alter_topic("a.b-c_1", {"retention.ms": None, "retention.bytes": "5"})
            assert changed.configs == {"retention.bytes": "5"}

            await storage.append("a.b-c_1", 0, batch())
            await storage.delete_topic("a.b-c_1")
            assert not storage.topics()
            with pytest.raises(UnknownTopic):
                await storage.delete_topic("a.b-c_1")
            again = await storage.create_topic("a.b-c_1")
            assert again.topic_id != topic.topic_id
            assert storage.offsets("a.b-c_1", 0).high_watermark == 0

        run(body)

    @final
    def test_every_partition_of_a_topic_with_as_many_as_there_may_be_takes_records(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("wide", partitions=10_000)
            await storage.append("wide", 9_999, batch())
            assert storage.offsets("wide", 9_999).high_watermark == 1
            assert storage.offsets("wide", 5_000).high_watermark == 0
            with pytest.raises(UnknownTopic):
                storage.offsets("wide", 10_000)

        run(body)

    @final
    def test_topic_names_sizes_and_settings_are_checked(self, run):
        async def body(storage: Storage) -> None:
            for name in ("", ".", "..", "a b", "ä", "x" * 250, "__mine", "a\n"):
                with pytest.raises(InvalidTopic):
                    await storage.create_topic(name)
            await storage.create_topic("__mine", internal=True)
            await storage.create_topic("x" * 249)
            for partitions in (0, -1, 10_001):
                with pytest.raises(InvalidTopic):
                    await storage.create_topic("t", partitions=partitions)
            with pytest.raises(InvalidTopic, match=r"did you mean retention\.ms"):
                await storage.create_topic("t", configs={"retention.sm": "1"})
            for key, value in (
                ("retention.ms", "-2"),
                ("retention.ms", "soon"),
                ("cleanup.policy", "shrink"),
                ("compression.type", "gzip"),
                ("message.timestamp.type", "Never"),
            ):
                with pytest.raises(InvalidTopic, match=key):
                    await storage.create_topic("t", configs={key: value})
            await storage.create_topic("t.t")
            with pytest.raises(InvalidTopic, match="collides"):
                await storage.create_topic("t_t")
            with pytest.raises(InvalidTopic, match="can only grow"):
                await storage.create_partitions("t.t", 1)

        run(body)

    @final
    def test_state_is_written_all_or_none_in_order_and_found_by_prefix(self, run):
        async def body(storage: Storage) -> None:
            await storage.write([(b"s/2", b"two"), (b"s/1", b"one"), (b"t/1", b"")])
            await storage.write([(b"s/2", None), (b"s/3", b"x"), (b"s/3", b"three")])
            await asyncio.gather(*(storage.write([(b"last", b"%d" % n)]) for n in range(20)))

            assert await storage.scan(b"s/") == [(b"s/1", b"one"), (b"s/3", b"three")]
            assert await storage.scan(b"t/") == [(b"t/1", b"")]
            assert await storage.scan(b"last") == [(b"last", b"19")]
            assert len(await storage.scan(b"")) == 4
            assert await storage.scan(b"\xff") == []

        run(body)

    @final
    def test_partitions_of_a_topic_do_not_mix(self, run):
        async def body(storage: Storage) -> None:
            await storage.create_topic("t", partitions=3)
            for number in (0, 1, 2):
                await storage.append("t", number, batch(number + 1, value=b"p%d" % number))

            for number in (0, 1, 2):
                result = await storage.read("t", number, 0, max_bytes=1 << 20)
                values = [record.value for record in decode_all(result.records)]
                assert values == [b"p%d" % number] * (number + 1)

        run(body)
