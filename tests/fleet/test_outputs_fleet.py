"""Settles with outputs by whole workers: who leads next goes on where the last one was."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.log.base import Output
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange
from tests.fleet.outputs_world import committed_in
from tests.fleet.test_lost_records import OLD, begin, until, virtually
from tests.fleet.test_worker import ACCEPT, take
from tests.fleet.world import Fleet, batch


def settle(fleet, member, offset, value):
    """The share-partition's leader settles a record of a member with an output; what is to be awaited."""
    leader = fleet.leader("orders", 0).worker
    (owner,) = leader._service.partitions.owners("g")
    batches = [AckRange(offset, offset, ACCEPT)]
    decision = owner.partition.acknowledge(member.member_id, batches, now_ms=fleet.clock.steady_ms())
    topic_id = fleet.kafka.storage.topics()["paid"].topic_id
    outputs = [Output("paid", topic_id, 0, batch(value))]
    return owner._writer.add(decision.update, decision=decision, batches=batches, outputs=outputs)


@pytest.mark.parametrize("ends", ["in order", "it dies when it is answered", "it dies before it hears"])
def test_the_next_worker_goes_on_where_the_last_one_was(ends):
    async def scenario(clock):
        async with Fleet(clock, workers=2) as fleet:
            await fleet.topic("paid")
            member = await begin(fleet, OLD)
            _, fetched = await take(member, 5)
            leader = fleet.leader("orders", 0)
            if ends == "it dies before it hears":
                fleet.kafka.drop_answers(m.EndTxnRequest, 1000)
                settle(fleet, member, 2, b"out-2")
                await until(clock, lambda: fleet.kafka.asked[m.EndTxnRequest] > 0)
            else:
                await settle(fleet, member, 2, b"out-2")
            await (leader.stop() if ends == "in order" else leader.kill())
            await fleet.settled()

            acks = [AckRange(offset, offset, ACCEPT) for offset in range(5)]
            results = await member.acknowledge({fetched[0].tp: acks}, generation=fetched[0].generation)

            assert [result.error for result in results] != [ErrorCode.NONE]
            assert await committed_in(fleet.kafka, "paid") == [b"out-2"]
            again = await member.fetch(records_max=10, max_wait_s=40)
            assert 2 not in [at for one in again for first, last, _ in one.acquired for at in range(first, last + 1)]

    virtually(scenario)


def test_of_a_topic_that_was_made_anew_is_said_what_that_means_to_who_uses_it(caplog):
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await fleet.topic("paid")
            member = await begin(fleet, OLD)
            await take(member, 5)
            await settle(fleet, member, 2, b"out-2")
            for name in ("paid", "orders"):
                await fleet.kafka.storage.delete_topic(name)
                await fleet.topic(name)
            await clock.sleep(60)

    virtually(scenario)

    told = [record.getMessage() for record in caplog.records if "made anew" in record.getMessage()]
    assert sorted(told) == [
        "topic orders was made anew: groups begin anew on it: g",
        "topic paid was made anew: what is written goes into the new one, the old one is gone",
    ]


def test_a_worker_tells_of_its_transactions():
    async def scenario(clock):
        async with Fleet(clock, workers=1) as fleet:
            await fleet.topic("paid")
            member = await begin(fleet, OLD)
            await take(member, 5)
            await asyncio.gather(*(settle(fleet, member, n, b"out-%d" % n) for n in range(5)))

            stats = fleet.machines[0].worker.stats()
            assert stats["output_transactions"] >= 1
            assert stats["output_transactions_undecided"] == 0

    virtually(scenario)
