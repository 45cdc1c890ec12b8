"""Consumers of a cooperative group while the machine's clock is set, and records with odd timestamps."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flowshare.client.cooperative.consumer import CooperativeRecord
from flowshare.client.producer.producer import Message
from flowshare.protocol.batches import BatchBuilder
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.client.cooperative.worlds import QUICK, coop_world

DAY_MS = 86_400_000
LAST_MS = 253_402_300_799_999
"""Of the year 9999."""
YEARS_10_8_MS = 10**8 * 365 * DAY_MS
ODD_MS = (-1, 0, 1, LAST_MS, LAST_MS + 1, YEARS_10_8_MS, 2**63 - 1)


def test_a_clock_that_is_set_by_days_and_back_again_changes_nothing(monkeypatch):
    async def play() -> None:
        now_ms, ahead = LoopTimeClock.now_ms, [0]
        monkeypatch.setattr(LoopTimeClock, "now_ms", lambda clock: now_ms(clock) + ahead[0])
        async with coop_world(partitions=2) as coop:

            async def handler(record: CooperativeRecord[object, object]) -> None:
                await asyncio.sleep(0.1)

            for name in "ab":
                coop.worker(name, handler)
            for days in (400, -400, 1, -1, 0):
                ahead[0] = days * DAY_MS
                await coop.send(40, first=len(coop.runs))
                count = len(coop.runs) + 40
                await coop.until(lambda count=count: sum(run.committed for run in coop.runs) >= count, limit_s=20.0)
                await asyncio.sleep(7.0)
            assert len(coop.runs) == 200
            coop.check_order()

    run(play())


def test_a_record_that_is_released_for_a_time_comes_when_that_is_over_however_the_clock_is_set(monkeypatch):
    async def play() -> None:
        now_ms, ahead = LoopTimeClock.now_ms, [0]
        monkeypatch.setattr(LoopTimeClock, "now_ms", lambda clock: now_ms(clock) + ahead[0])
        loop = asyncio.get_running_loop()
        async with coop_world() as coop:
            consumer = coop.consumer(replace(QUICK, max_poll_records=1))
            consumer.subscribe(["orders"])
            await coop.send(2, keys=1)
            for days in (-400, 400):
                (record,) = await consumer.poll(10.0)
                since_s = loop.time()
                consumer.release(record, delay=30.0)
                ahead[0] = days * DAY_MS
                assert await consumer.poll(29.0) == []
                (again,) = await consumer.poll(5.0)
                assert again.offset == record.offset
                assert loop.time() - since_s > 29.9
                consumer.commit(again)
            await consumer.close()

    run(play())


def test_records_with_odd_timestamps_are_handled_as_all_others():
    async def play() -> None:
        async with coop_world() as coop:
            consumer = coop.consumer(replace(QUICK, max_poll_records=20))
            far = {"message.timestamp.after.max.ms": str(2**63 - 1)}
            await coop.world.storage.create_topic("odd", partitions=1, configs=far)
            consumer.subscribe(["odd"])
            for number, at_ms in enumerate(ODD_MS):
                builder = BatchBuilder()
                assert builder.add(b"k%d" % number, b"%d" % at_ms, [], timestamp_ms=at_ms)
                await coop.world.storage.append("odd", 0, builder.build())
            await coop.world.producer.send_many("odd", [Message(b"last", partition=0)])
            seen: dict[bytes, float] = {}
            while len(seen) < len(ODD_MS) + 1:
                for record in await consumer.poll(5.0):
                    seen[record.value] = record.timestamp
                    assert repr(record)
                    consumer.commit(record)
            await consumer.commit_sync()
            assert coop.stable() == len(ODD_MS) + 1
            await consumer.close()
            assert [seen[b"%d" % at_ms] for at_ms in ODD_MS] == [at_ms / 1000 for at_ms in ODD_MS]

    run(play())
