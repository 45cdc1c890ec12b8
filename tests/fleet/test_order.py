"""Groups with an order by key on a fleet: records in turn over leaders, and what adding partitions does to it."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ServerError
from flowshare.fleet.groups.leaders import OFFSETS_TOLD, offsets_of, tell_offsets
from flowshare.protocol.batches import BatchBuilder, decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import AckBatch, SharePartitionOffsets
from flowshare.share.types import AcknowledgeType
from tests.fleet.test_worker import accept, virtually
from tests.fleet.world import EARLIEST, Fleet

BY_KEY = {**EARLIEST, "share.key.order": "key"}
RELEASE = bytes([AcknowledgeType.RELEASE])


async def produce(fleet: Fleet, keys: str) -> None:
    builder = BatchBuilder()
    for number, key in enumerate(keys):
        builder.add(key.encode(), b"%d" % number, [], timestamp_ms=1_000)
    await fleet.kafka.storage.append("orders", 0, builder.build())


def test_heads_are_handed_out_in_turn_over_a_leader_that_dies():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY)
            await produce(fleet, "abacabda")
            member = fleet.member("orders")
            await member.start()
            handled: dict[bytes, list[int]] = {}
            rounds = 0
            async with asyncio.timeout(600):
                while sum(map(len, handled.values())) < 8:
                    fetched = await member.fetch(records_max=100, max_wait_s=0.5)
                    records = [record for one in fetched for record in decode_all(one.records)]
                    assert len({record.key for record in records}) == len(records)  # heads only
                    rounds += bool(records)
                    if rounds == 1 and records:
                        [one] = fetched
                        acks = [AckBatch(run.first, run.last, RELEASE) for run in one.acquired]
                        await member.acknowledge({one.tp: acks}, generation=one.generation)
                        await fleet.leader("orders", 0).kill()
                        await fleet.settled()
                        rounds += 1
                        continue
                    for record in records:
                        handled.setdefault(record.key, []).append(record.offset)
                    await accept(member, fetched)

            assert handled == {b"a": [0, 2, 4, 7], b"b": [1, 5], b"c": [3], b"d": [6]}

    virtually(scenario)


def test_a_topic_that_grows_is_warned_of_once_where_a_group_reads_it_in_order(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY)
            await fleet.configure("free", **EARLIEST)
            for group in ("g", "free"):
                member = fleet.member("orders", group=group)
                await member.start()
                await member.fetch(records_max=1, max_wait_s=5)
            await fleet.kafka.storage.create_partitions("orders", 3)
            await clock.sleep(60)

    virtually(scenario)

    [told] = [record.getMessage() for record in caplog.records if "in the order of keys" in record.getMessage()]
    assert "topic orders has 3 partitions now (1 before), and group g reads it" in told


def test_the_order_of_a_fleets_group_does_not_change_while_it_has_members():
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("orders")
            await fleet.configure(**BY_KEY)
            await fleet.member("orders").start()

            async def connect():
                return fleet.connection()

            admin = ShareAdmin(connect, clock=clock)
            for other in ("header:customer", ""):
                with pytest.raises(ServerError, match="stop all its workers") as caught:
                    await admin.alter_group_configs("g", {"share.key.order": other})
                assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
            await admin.close()

    virtually(scenario)


@pytest.mark.parametrize("parked", [0, 3])
def test_what_a_worker_tells_of_a_share_partition_has_a_field_more_only_where_keys_are_parked(parked: int) -> None:
    """A worker of an older release, in a rolling upgrade, reads as many as it knows."""
    part = SharePartitionOffsets(topic="t", topic_id=uuid.UUID(int=7), partition=1, start_offset=4, parked=parked)

    told = tell_offsets(part)
    assert len(told) == len(OFFSETS_TOLD) + bool(parked)
    assert offsets_of(told) == part
