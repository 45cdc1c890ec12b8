"""ShareAcknowledge: results by partition, durability, and what a refused write leaves behind."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AckRange
from flowshare.testing.clock import settle
from tests.server.world import accept, parked, ranges, reject, release, world

pytestmark = pytest.mark.asyncio


async def full_disk() -> None:
    """Refuse a write."""
    raise StorageError("no space left on device")


async def test_each_partition_has_its_own_result() -> None:
    async with world() as w:
        good, bad = await w.logs(2, 2)
        unknown, none = TopicPartition(uuid.uuid4(), 0), TopicPartition(good.topic_id, 9)
        m = w.member("m1")
        await m.fetch(good, bad)

        answer = await m.acknowledge({good: [accept(0, 1)], bad: [accept(5)], unknown: [accept(0)], none: []})

        assert {(p.topic_id, p.partition): p.error for p in answer.partitions} == {
            good: ErrorCode.NONE,
            bad: ErrorCode.INVALID_REQUEST,
            unknown: ErrorCode.UNKNOWN_TOPIC_ID,
            none: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert answer.lock_timeout_ms == 30_000


@pytest.mark.parametrize(
    ("batches", "version"),
    [
        ([AckRange(5, 3, b"\x01")], 2),
        ([accept(5, 9), accept(0, 4)], 2),
        ([AckRange(0, 9, b"")], 2),
        ([AckRange(0, 9, b"\x01\x01\x01")], 2),
        ([AckRange(0, 9, b"\x05")], 2),
        ([AckRange(0, 9, b"\xff")], 2),
        ([AckRange(0, 9, b"\x04")], 1),
        ([AckRange(0, 9, b"\x04")], 2),
        ([AckRange(-3, 9, b"\x01")], 2),
        ([accept(0, 9), accept(0, 9)], 2),
    ],
)
async def test_malformed_batches_change_nothing(batches: list[AckRange], version: int) -> None:
    async with world() as w:
        at, m = await w.held(10)

        answer = await m.acknowledge({at: batches}, version=version)

        assert [p.error for p in answer.partitions] == [ErrorCode.INVALID_REQUEST]
        answer = await m.acknowledge({at: [accept(0, 9)]})
        assert [p.error for p in answer.partitions] == [ErrorCode.NONE]


async def test_a_renewal_keeps_the_lock() -> None:
    async with world() as w:
        at, m = await w.held(1)
        await w.clock.advance(29)
        await m.acknowledge({at: [AckRange(0, 0, b"\x04")]}, is_renew_ack=True)

        await w.clock.advance(29)
        answer = await m.acknowledge({at: [accept(0)]})

        assert [p.error for p in answer.partitions] == [ErrorCode.NONE]
        assert w.server.stats()["acks"] == {"gap": 0, "accept": 1, "release": 0, "reject": 0, "renew": 1}


async def test_another_member_may_not_acknowledge() -> None:
    async with world() as w:
        at, _ = await w.held(1)
        m2 = w.member("m2")
        await m2.fetch(at)

        answer = await m2.acknowledge({at: [accept(0)]})

        assert [p.error for p in answer.partitions] == [ErrorCode.INVALID_RECORD_STATE]


async def test_an_answer_waits_until_the_acknowledgement_is_durable() -> None:
    async with world() as w:
        at, m1 = await w.held(2)
        m2 = w.member("m2")
        await m2.fetch(at)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait

        task = await parked(m1.acknowledge({at: [release(0)]}))
        again = await m1.acknowledge({at: [accept(0)]})
        assert [p.error for p in again.partitions] == [ErrorCode.INVALID_RECORD_STATE]
        gate.set()

        assert [p.error for p in (await task).partitions] == [ErrorCode.NONE]


async def test_what_is_decided_during_a_write_goes_into_one_next_write() -> None:
    async with world() as w:
        at, m = await w.held(100)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        writes = w.server.stats()["state_writes"]

        tasks = [await parked(m.acknowledge({at: [accept(offset)]})) for offset in range(100)]
        gate.set()
        answers = await asyncio.gather(*tasks)

        assert {p.error for answer in answers for p in answer.partitions} == {ErrorCode.NONE}
        assert w.server.stats()["state_writes"] == writes + 2


async def test_a_refused_write_is_an_error_and_the_records_stay_acquired() -> None:
    async with world() as w:
        at, m = await w.held(2)
        w.storage.before_write = full_disk

        refused = await m.acknowledge({at: [accept(0, 1)]})
        w.storage.before_write = None
        answer = await m.acknowledge({at: [accept(0, 1)]})

        assert [p.error for p in refused.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert [p.error for p in answer.partitions] == [ErrorCode.NONE]


async def test_a_lock_that_lapses_during_a_write_that_fails_frees_the_record() -> None:
    async with world() as w:
        at, m1 = await w.held(1)
        m2 = w.member("m2")
        gate = asyncio.Event()

        async def late_failure() -> None:
            await gate.wait()
            await full_disk()

        w.storage.before_write = late_failure
        task = await parked(m1.acknowledge({at: [accept(0)]}))
        await w.clock.advance(31)
        gate.set()
        assert [p.error for p in (await task).partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]
        w.storage.before_write = None

        assert ranges(await m2.fetch(at)) == [(0, 0, 2)]


async def test_an_acquire_that_cannot_be_written_gives_an_error_and_no_records() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")
        await m.fetch(at)
        await w.produce(1)
        w.storage.before_write = full_disk

        refused = await m.fetch(max_wait_ms=1000)
        w.storage.before_write = None

        assert [(p.error, p.acquired) for p in refused.partitions] == [(ErrorCode.KAFKA_STORAGE_ERROR, ())]
        assert ranges(await m.fetch()) == [(0, 0, 1)]


async def test_what_a_failed_write_left_out_is_written_later() -> None:
    async with world() as w:
        at, _ = await w.held(1)
        w.storage.before_write = full_disk
        await w.clock.advance(30)
        assert w.server.stats()["failed_state_writes"] >= 1
        w.storage.before_write = None
        await w.clock.advance(31)
        await settle()
        await w.restart()

        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 2)]


async def test_a_record_is_finished_when_its_deliveries_are_used_up() -> None:
    async with world(configs={"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "2"}) as w:
        at, m = await w.held(1)
        await m.acknowledge({at: [release(0)]})
        assert ranges(await m.fetch()) == [(0, 0, 2)]

        await m.acknowledge({at: [release(0)]})

        assert (await m.fetch()).partitions == ()


async def test_rejected_records_do_not_come_again() -> None:
    async with world() as w:
        at, m = await w.held(2)

        await m.acknowledge({at: [reject(0, 1)]})
        await m.acknowledge({}, epoch=-1)

        assert ranges(await w.member("m2").fetch(at)) == []


async def test_a_fault_in_the_store_stops_the_share_partition_and_the_next_fetch_loads_it_again() -> None:
    async with world() as w:
        at, m = await w.held(2)

        async def broken() -> None:
            raise RuntimeError("broken")

        w.storage.before_write = broken
        failed = await m.acknowledge({at: [accept(0, 1)]})
        w.storage.before_write = None
        late = await m.acknowledge({at: [accept(0, 1)]})

        assert [p.error for p in failed.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert [p.error for p in late.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert ranges(await m.fetch()) == [(0, 1, 2)]


async def test_a_server_closes_while_its_disk_refuses_writes() -> None:
    async with world() as w:
        at, m = await w.held(2)
        w.storage.before_write = full_disk
        await m.acknowledge({at: [accept(0)]})

        await w.server.close()

        with pytest.raises(ConnectionError):
            await m.acknowledge({at: [accept(0)]})
