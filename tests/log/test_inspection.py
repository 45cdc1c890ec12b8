"""Produced batches whose headers lie: none gets into a log, none holds up others, none takes memory by what it says."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.log import inspection
from flowshare.log.base import CorruptBatches, InvalidRecord, InvalidTimestamp, StorageError
from flowshare.log.inspection import RECORDS_MAX, STEP_RECORDS, Inspector, Rules, examine
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.batches import CODECS, BatchBuilder, DecodeError, batch_headers, check, decode_all
from flowshare.protocol.headers import CRC_AT, frames
from tests.log.contract import NOW_MS, FixedClock, batch
from tests.protocol.test_batches import patch

HOUR_MS = 3_600_000
RULES = Rules(keyed=False, earliest_ms=0, latest_ms=NOW_MS + HOUR_MS)
COUNT_AT, LAST_AT, FIRST_TIME_AT, NEWEST_AT, ATTRIBUTES_AT = 57, 23, 27, 35, 21


def looked_at(records: bytes, rules: Rules = RULES):
    """Return the result of `examine` for the first batch."""
    steps = examine(records, next(frames(records)), rules)
    while (header := inspection._step(steps)) is None:
        pass
    return header


def saying(count: int, records: bytes | None = None) -> bytes:
    """A batch that says it has so many records."""
    changed = patch(records or batch(1), COUNT_AT, ">i", count)
    return patch(changed, LAST_AT, ">i", count - 1)


def many(count: int, *, codec: str = "none") -> bytes:
    """One batch of records without key and value."""
    builder = BatchBuilder(size_max=1 << 30, compression=codec)
    assert builder.add_values([b""] * count, 0, timestamp_ms=NOW_MS) == count
    return builder.build()


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_holds_what_it_says_is_left_as_it_is(codec):
    records = batch(5, compression=codec)
    assert looked_at(records) == batch_headers(records)[0]


@pytest.mark.parametrize("count", [2, 3, RECORDS_MAX, 2**31 - 1])
def test_a_batch_that_says_more_records_than_it_holds_is_refused(count):
    with pytest.raises(InvalidRecord):
        looked_at(saying(count))


def test_a_batch_that_says_fewer_records_than_it_holds_is_refused():
    with pytest.raises(InvalidRecord, match="unconsumed"):
        looked_at(saying(2, batch(3)))


def test_a_batch_of_more_records_than_anybody_should_hold_at_once_is_refused_unread():
    with pytest.raises(InvalidRecord, match=f"{RECORDS_MAX} are taken: send smaller"):
        next(examine(saying(RECORDS_MAX + 1), next(frames(saying(RECORDS_MAX + 1))), RULES))


def test_offsets_that_are_not_in_a_row_are_refused():
    records = bytearray(batch(2))
    header = batch_headers(bytes(records))[0]
    assert records[61 + 3] == 0, "the first record's offset"
    records[61 + 3] = 2  # zigzag for 1
    with pytest.raises(InvalidRecord, match="offsets"):
        looked_at(patch(bytes(records), ATTRIBUTES_AT, ">h", header.attributes))


def test_the_year_10_000_000_000_is_refused_and_so_is_an_hour_and_a_bit():
    for timestamp_ms in (NOW_MS + HOUR_MS + 1, 2**62):
        with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.after\.max\.ms"):
            looked_at(batch(1, timestamp_ms=timestamp_ms))
    assert looked_at(batch(1, timestamp_ms=NOW_MS + HOUR_MS)).max_timestamp == NOW_MS + HOUR_MS


def test_a_time_too_long_ago_is_refused_among_others_and_records_without_time_are_taken():
    rules = RULES._replace(earliest_ms=NOW_MS)
    builder = BatchBuilder()
    for timestamp_ms in (NOW_MS, -1, NOW_MS + 1):
        builder.add(None, b"v", timestamp_ms=timestamp_ms)
    assert looked_at(builder.build(), rules).max_timestamp == NOW_MS + 1
    builder = BatchBuilder()
    for timestamp_ms in (NOW_MS, -1, NOW_MS - 1, NOW_MS + 1):
        builder.add(None, b"v", timestamp_ms=timestamp_ms)
    with pytest.raises(InvalidTimestamp):
        looked_at(builder.build(), rules)


def test_a_newest_timestamp_that_no_record_has_is_set_right():
    assert looked_at(patch(batch(3), NEWEST_AT, ">q", 2**60)).max_timestamp == NOW_MS + 2


@pytest.mark.parametrize(("attribute", "error"), [(0x08, InvalidTimestamp), (0x40, InvalidRecord)])
def test_what_only_the_log_may_say_of_a_batch_is_refused(attribute, error):
    with pytest.raises(error):
        looked_at(patch(batch(1), ATTRIBUTES_AT, ">h", attribute))


def test_compressed_bytes_beyond_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(inspection, "PLAIN_BYTES_MAX", 100_000)
    with pytest.raises(InvalidRecord, match="limit 100000 bytes"):
        looked_at(batch(1, value=b"\0" * 200_000, compression="zstd"))


def test_a_wrong_checksum_says_that_the_bytes_were_damaged_on_their_way():
    records = bytearray(batch(1))
    records[CRC_AT] ^= 1
    with pytest.raises(CorruptBatches, match="checksum"):
        looked_at(bytes(records))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_the_bytes_a_batch_is_either_right_or_refused(data):
    records = bytearray(batch(3, value=b"some value", compression=data.draw(st.sampled_from(CODECS))))
    for _ in range(data.draw(st.integers(1, 4))):
        records[data.draw(st.integers(21, len(records) - 1))] = data.draw(st.integers(0, 255))
    (length,) = struct.unpack_from(">i", records, 8)
    changed = patch(bytes(records), ATTRIBUTES_AT, ">h", struct.unpack_from(">h", records, ATTRIBUTES_AT)[0])
    assert len(changed) == 12 + length
    with contextlib.suppress(DecodeError):
        check(changed)
        with contextlib.suppress(InvalidRecord, InvalidTimestamp):
            header = looked_at(changed)
            found = decode_all(changed)
            assert [record.offset for record in found] == list(range(header.record_count))
            assert max(record.timestamp_ms for record in found) == header.max_timestamp


# --- the thread beside the loop -----------------------------------------------------------------------------------


async def inspect(inspector: Inspector, source: object, records: bytes, *, place: object = "t-0"):
    return await inspector.inspect(source, place, records, check(records), RULES)


def run(body):
    async def with_inspector():
        inspector = Inspector()
        try:
            return await asyncio.wait_for(body(inspector), 30)
        finally:
            await inspector.close()

    return asyncio.run(with_inspector())


def test_who_sends_little_does_not_wait_for_who_sends_much():
    async def body(inspector):
        done: list[str] = []

        async def send(source: str, records: bytes):
            await inspect(inspector, source, records)
            done.append(source)

        much = many(8 * STEP_RECORDS)
        async with asyncio.TaskGroup() as group:
            for source in ("flood 1", "flood 2", "flood 3"):
                group.create_task(send(source, much))
                group.create_task(send(source, much))
            await asyncio.sleep(0)
            group.create_task(send("good", many(10_000)))
        assert done[0] == "good"

    run(body)


def test_what_one_source_sends_to_one_partition_keeps_its_order_and_others_pass():
    async def body(inspector):
        done: list[str] = []

        async def send(source: str, place: str, name: str, records: bytes):
            await inspect(inspector, source, records, place=place)
            done.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(send("a", "t-0", "large", many(2 * STEP_RECORDS)))
            group.create_task(send("a", "t-0", "small", batch(1)))
            group.create_task(send("a", "t-0", "middle", many(STEP_RECORDS)))
            group.create_task(send("a", "t-1", "elsewhere", batch(1)))
            group.create_task(send("b", "t-0", "another's", batch(1)))
        assert done == ["elsewhere", "another's", "large", "small", "middle"]

    run(body)


def test_who_gives_up_lets_nobody_past_who_is_still_looked_into():
    async def body(inspector):
        done: list[str] = []

        async def send(name: str, records: bytes):
            await inspect(inspector, "a", records)
            done.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(send("first", many(4 * STEP_RECORDS)))
            second = group.create_task(send("second", batch(1)))
            group.create_task(send("third", batch(1)))
            await asyncio.sleep(0)
            second.cancel()
        assert done == ["first", "third"]
        assert not inspector._last

    run(body)


def test_one_batch_that_grows_large_is_in_memory_at_a_time(monkeypatch):
    large = many(STEP_RECORDS + 1, codec="zstd")
    monkeypatch.setattr(inspection, "SMALL_BYTES", 1_000)
    opened: list[int] = []

    async def body(inspector):
        real = inspection._opened

        def spy(records, header, kind):
            if kind is inspection._Kind.LARGE:
                opened.append(inspector._open[kind])
            return real(records, header, kind)

        monkeypatch.setattr(inspection, "_opened", spy)
        async with asyncio.TaskGroup() as group:
            for source in range(6):
                group.create_task(inspect(inspector, source, large))
        assert opened == [1] * 6
        assert set(inspector._open.values()) == {0}

    run(body)


def test_a_batch_that_there_is_no_memory_for_is_to_be_sent_again(monkeypatch):
    def none(*_):
        raise MemoryError

    async def body(inspector):
        monkeypatch.setattr(inspection, "unpacked", none)
        with pytest.raises(StorageError, match="memory"):
            await inspect(inspector, "a", many(STEP_RECORDS))

    run(body)


def test_many_little_batches_in_one_turn_of_the_loop_go_to_the_thread(monkeypatch):
    async def body(inspector):
        beside: list[int] = []
        real = inspector._beside

        async def spy(source, records, header, rules):
            beside.append(header.size)
            return await real(source, records, header, rules)

        monkeypatch.setattr(inspector, "_beside", spy)
        little = many(2_000)
        assert len(little) < inspection.ON_LOOP_BYTES
        await asyncio.gather(*(inspect(inspector, "a", little, place=place) for place in range(20)))
        assert len(beside) == 20 - inspection.TURN_BYTES // len(little)

    run(body)


def test_a_fault_of_ours_refuses_what_waits_and_holds_up_nothing_that_comes_later(monkeypatch):
    async def body(inspector):
        def fault(_):
            raise KeyError("a fault")

        with monkeypatch.context() as broken:
            broken.setattr(Inspector, "_next", fault)
            tasks = [asyncio.create_task(inspect(inspector, one, many(STEP_RECORDS))) for one in range(3)]
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(error) for error in ended} == {StorageError}
        assert await inspect(inspector, "later", many(STEP_RECORDS))

    run(body)


def test_closing_refuses_what_waits():
    async def body():
        inspector = Inspector()
        tasks = [asyncio.create_task(inspect(inspector, one, many(4 * STEP_RECORDS))) for one in range(3)]
        await asyncio.sleep(0)
        await inspector.close()
        assert {type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)} == {StorageError}
        with pytest.raises(StorageError):
            await inspect(inspector, "late", many(STEP_RECORDS))

    asyncio.run(body())


# --- in a storage -------------------------------------------------------------------------------------------------


def test_a_storage_believes_its_own_process_and_nobody_else():
    async def body():
        storage = MemoryStorage(FixedClock())
        await storage.create_topic("t")
        with pytest.raises(InvalidRecord):
            await storage.append("t", 0, saying(2**31 - 1), source="somebody")
        with pytest.raises(InvalidTimestamp):
            await storage.append("t", 0, batch(timestamp_ms=2**60), source="somebody")
        assert storage.offsets("t", 0).high_watermark == 0
        await storage.append("t", 0, saying(2, patch(batch(1), 0, ">q", 0)))
        with pytest.raises(InvalidTimestamp, match="after"):
            await storage.append("t", 0, batch(timestamp_ms=2**60))
        await storage.append("t", 0, patch(batch(2), NEWEST_AT, ">q", NOW_MS + 5), source="somebody")
        read = await storage.read("t", 0, 2, max_bytes=1)
        assert batch_headers(read.records)[0].max_timestamp == NOW_MS + 1
        assert [record.offset for record in decode_all(read.records)] == [2, 3]
        await storage.close()

    asyncio.run(body())


def test_a_topic_says_how_far_from_now_its_timestamps_may_be():
    async def body():
        storage = MemoryStorage(FixedClock())
        await storage.create_topic(
            "t", configs={"message.timestamp.before.max.ms": "10", "message.timestamp.after.max.ms": "20"}
        )
        await storage.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
        for early, late in ((11, 0), (0, 21)):
            with pytest.raises(InvalidTimestamp):
                await storage.append("t", 0, batch(timestamp_ms=NOW_MS - early + late), source="somebody")
        await storage.append("t", 0, batch(timestamp_ms=NOW_MS - 10), source="somebody")
        await storage.append("t", 0, batch(timestamp_ms=NOW_MS + 20), source="somebody")
        await storage.append("stamped", 0, batch(timestamp_ms=2**60), source="somebody")
        await storage.close()

    asyncio.run(body())
