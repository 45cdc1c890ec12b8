"""The parts of the embedded storage: tail cache, gate, marker, and what lasts over a restart."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.clock import LoopClock
from flowshare.log import keys
from flowshare.log.base import StorageDamaged, StorageHeld, Topic, TopicExists, UnknownTopic
from flowshare.log.commits import WriteGate
from flowshare.log.damage import Confirmed, Marker, boot_id, check_reached
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.partition import StoredPartition, TopicPartitions
from flowshare.log.recent import Tail, TailBatch, TailBudget
from tests.log.contract import NOW_MS, batch
from tests.log.places import opened
from tests.waiting import LIMIT_S


def test_partitions_are_made_when_they_are_first_asked_for_and_stay():
    topic = Topic(name="t", topic_id=uuid.uuid4(), partitions=10_000, configs={})
    stored = StoredPartition(topic_id=topic.topic_id, number=3)
    partitions = TopicPartitions(topic, [stored])
    assert partitions.made() == ((3, stored),)
    kept = partitions.at(9_999)
    with pytest.raises(UnknownTopic):
        partitions.at(10_000)
    partitions.count = 10_001
    assert partitions.at(9_999) is kept
    assert partitions.at(10_000).number == 10_000
    assert [number for number, _ in partitions.made()] == [3, 9_999, 10_000]


def test_the_oldest_batches_leave_the_tails_first():
    budget, one, two = TailBudget(3 * 300), Tail(), Tail()
    for number in range(3):
        budget.append(one, TailBatch(number, number, bytes(100)))
    budget.append(two, TailBatch(0, 0, bytes(100)))

    assert not one.covers(0)
    assert one.covers(1)
    assert two.covers(0)
    assert [b.first for b in one.read(1, 3, 1 << 20)] == [1, 2]


def test_a_long_tail_forgets_in_amortised_pieces():
    budget, tail = TailBudget(50 * 210), Tail()
    for number in range(5_000):
        budget.append(tail, TailBatch(number, number, bytes(10)))
    assert not tail.covers(4_949)
    assert tail.covers(4_950)
    assert len(tail._batches) < 3_000


def test_a_tail_that_forgets_what_compaction_changes_gives_its_room_to_others():
    budget, one, two = TailBudget(4 * 300), Tail(), Tail()
    for number in (0, 10):
        budget.append(one, TailBatch(number, number + 9, bytes(100)))
        budget.append(two, TailBatch(number, number + 9, bytes(100)))

    budget.forget(one, 10)
    budget.forget(one, 10)

    assert not one.covers(9)
    assert one.covers(10)
    budget.append(one, TailBatch(20, 29, bytes(100)))
    assert two.covers(0)
    budget.append(one, TailBatch(30, 39, bytes(100)))
    assert not two.covers(0)
    assert [b.first for b in one.read(10, 40, 1 << 20)] == [10, 20, 30]


def test_a_tail_does_not_show_what_is_not_confirmed():
    budget, tail = TailBudget(10_000), Tail()
    for number in range(4):
        budget.append(tail, TailBatch(number, number, b"x"))
    assert [b.first for b in tail.read(1, 3, 1 << 20)] == [1, 2]


def test_the_gate_lets_in_first_who_came_first_and_survives_cancellation():
    async def body() -> None:
        gate, order = WriteGate(requests_max=2, bytes_max=100), []

        async def enter(name: str, size: int) -> None:
            await gate.enter(size)
            order.append(name)

        await enter("a", 60)
        big = asyncio.create_task(enter("big", 60))
        small = asyncio.create_task(enter("small", 1))
        gone = asyncio.create_task(enter("gone", 1))
        await asyncio.sleep(0)
        assert order == ["a"]
        gone.cancel()
        gate.leave(1, 60)
        await asyncio.gather(big, small, gone, return_exceptions=True)
        assert order == ["a", "big", "small"]
        gate.leave(1, 60)
        gate.leave(1, 1)
        await enter("huge", 1_000)

    asyncio.run(body())


def test_one_cancelled_after_being_let_in_gives_its_room_back():
    async def body() -> None:
        gate = WriteGate(requests_max=1, bytes_max=100)
        await gate.enter(1)
        first, second = (asyncio.create_task(gate.enter(1)) for _ in range(2))
        await asyncio.sleep(0)
        gate.leave(1, 1)
        first.cancel()
        await asyncio.wait_for(second, LIMIT_S)

    asyncio.run(body())


def test_a_mark_binds_the_confirmed_within_a_boot_and_the_synced_for_ever():
    here = Confirmed(confirmed=10, synced=5, boot_id=boot_id())
    elsewhere = Confirmed(confirmed=10, synced=5, boot_id=b"x")
    check_reached(here, 10)
    check_reached(elsewhere, 5)
    with pytest.raises(StorageDamaged):
        check_reached(here, 9)
    with pytest.raises(StorageDamaged):
        check_reached(elsewhere, 4)


def test_a_marker_remembers_the_last_write(tmp_path):
    marker = Marker.create(tmp_path / "m")
    for number in range(5):
        marker.write(number, synced=number // 2)
    marker.close()
    loaded = Marker.load(tmp_path / "m")
    assert (loaded.mark.confirmed, loaded.mark.synced) == (4, 2)
    loaded.close()


@pytest.mark.parametrize(("prefix", "behind"), [(b"a", b"b"), (b"a\xff\xff", b"b"), (b"a\x00", b"a\x01")])
def test_the_key_behind_a_prefix_is_the_least_one(prefix, behind):
    assert keys.after(prefix) == behind


def test_topics_offsets_log_start_and_state_last(tmp_path):
    async def first(storage: EmbeddedStorage):
        await storage.create_topic("a", partitions=3, configs={"retention.bytes": "123456"})
        await storage.create_topic("gone")
        await storage.append("gone", 0, batch(5))
        for number in range(3):
            for start in range(5):
                await storage.append("a", number, batch(10, timestamp_ms=NOW_MS + 100 * start))
            await storage.delete_records("a", number, 12 + number)
        await storage.delete_records("a", 2, -1)
        await storage.delete_topic("gone")
        await storage.alter_topic("a", {"retention.bytes": None})
        await storage.write([(b"k", b"v")])
        return storage.topics()["a"], [storage.offsets("a", n) for n in range(3)]

    async def second(storage: EmbeddedStorage):
        assert list(storage.topics()) == ["a"]
        assert await storage.scan(b"") == [(b"k", b"v")]
        assert await storage.offset_for_timestamp("a", 0, NOW_MS + 205) == (25, NOW_MS + 205)
        assert await storage.offset_for_timestamp("a", 2, 0) is None
        result = storage.topics()["a"], [storage.offsets("a", n) for n in range(3)]
        assert (await storage.append("a", 1, batch())).base_offset == 50
        assert (await storage.append("a", 2, batch())).base_offset == 50
        assert [b.first for b in (await storage.read("a", 1, 45, max_bytes=1 << 20)).batches] == [40, 50]
        return result

    assert opened(tmp_path, first) == opened(tmp_path, second)


def test_time_lookup_over_many_index_entries_finds_the_first(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t")
        records = [batch(2, timestamp_ms=NOW_MS + 10 * n, value=bytes(20_000)) for n in range(40)]
        await asyncio.gather(*(storage.append("t", 0, r) for r in records))
        assert len(list(storage._store.scan(b"i", b"j"))) > 10
        for n in range(40):
            assert await storage.offset_for_timestamp("t", 0, NOW_MS + 10 * n) == (2 * n, NOW_MS + 10 * n)
            assert await storage.offset_for_timestamp("t", 0, NOW_MS + 10 * n - 9) == (
                (2 * n - 1, NOW_MS + 10 * n - 9) if n else (0, NOW_MS)
            )
        await storage.delete_records("t", 0, 41)
        assert len(list(storage._store.scan(b"i", b"j"))) < 12
        assert await storage.offset_for_timestamp("t", 0, 0) == (41, NOW_MS + 201)

    opened(tmp_path, body, tail_bytes=0)


def test_a_full_queue_makes_producers_wait_and_loses_nothing(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        storage._commits.gate = WriteGate(requests_max=3, bytes_max=1_000)
        await storage.create_topic("t")
        done = await asyncio.gather(*(storage.append("t", 0, batch(1)) for _ in range(100)))
        assert [appended.base_offset for appended in done] == list(range(100))

    opened(tmp_path, body)


def test_an_append_whose_caller_gave_up_is_in_the_log_all_the_same(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t")
        task = asyncio.create_task(storage.append("t", 0, batch(2)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await storage.append("t", 0, batch(1))).base_offset == 2
        assert storage.offsets("t", 0).high_watermark == 3

    opened(tmp_path, body)


def test_an_opening_whose_caller_gave_up_lets_go_of_the_path(tmp_path):
    async def body() -> None:
        opening = asyncio.create_task(EmbeddedStorage.open(tmp_path, clock=LoopClock()))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    storage = await EmbeddedStorage.open(tmp_path, clock=LoopClock())
                except StorageHeld:
                    continue
                break
        await storage.close()

    asyncio.run(body())


def test_a_topic_whose_maker_gave_up_is_there_or_not_at_all(tmp_path):
    async def make(storage: EmbeddedStorage) -> None:
        task = asyncio.create_task(storage.create_topic("t"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TopicExists):
            await storage.create_topic("t")
        assert (await storage.append("t", 0, batch())).base_offset == 0

    opened(tmp_path, make)


def test_what_is_queued_at_close_is_confirmed(tmp_path):
    async def body() -> None:
        storage = await EmbeddedStorage.open(tmp_path, clock=LoopClock())
        await storage.create_topic("t")
        appends = [asyncio.create_task(storage.append("t", 0, batch(1))) for _ in range(20)]
        await asyncio.sleep(0)
        await storage.close()
        assert [a.base_offset for a in await asyncio.gather(*appends)] == list(range(20))

    asyncio.run(body())


def test_closing_leaves_no_task_of_a_caller_that_gave_up_behind(tmp_path):
    async def body() -> None:
        storage = await EmbeddedStorage.open(tmp_path / "storage", clock=LoopClock())
        makers = [asyncio.ensure_future(storage.create_topic(f"t{number}")) for number in range(20)]
        await asyncio.sleep(0)
        for maker in makers:
            maker.cancel()
        await storage.close()
        await asyncio.gather(*makers, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())
