"""Transactions that brokers call ended without telling their partitions so (KAFKA-20734), on the fake Kafka.

A broker that is killed and comes again finds decided transactions in its log while its partitions have no leader: it
passes over them. Nobody but the producer's successors, or an operator, ends what stays open there.
"""

from __future__ import annotations

import asyncio

import pytest

from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.fleet.outputs_world import OUTPUT, committed_in, on_outputs

OTHER = (OUTPUT, 1)


async def dies_with_its_broker(world, leader, *, after, kept=()):
    """The leader's next settle comes as far as that request, and the broker that comes again forgets the rest."""
    leader.dies(after=after)
    world.kafka.forget_markers(kept=kept)
    leader.settle(0, b"first")
    await world.until(lambda: leader.dead)


def test_outputs_that_were_committed_are_visible_when_the_next_leader_has_told_their_partitions():
    async def scenario(world):
        first = await world.leader("a")
        await first.take()
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        assert world.held_up()

        second = await world.leader("b")

        assert 0 not in await second.take(6)
        assert await world.visible() == [b"first"]
        assert not world.held_up()
        assert second.rows() == []

    on_outputs(scenario)


def test_outputs_of_a_transaction_that_the_next_leader_aborts_stay_away_when_the_abort_is_forgotten():
    async def scenario(world):
        first = await world.leader("a")
        await first.take()
        await dies_with_its_broker(world, first, after=m.TxnOffsetCommitRequest)

        second = await world.leader("b")
        assert 0 in await second.take()
        await second.settle(0, b"second")
        await second.owner.close()

        assert await world.visible() == [b"second"]
        assert not world.held_up()

    on_outputs(scenario)


def test_a_transaction_that_only_some_partitions_were_told_of_is_told_to_the_others():
    async def scenario(world):
        first = await world.leader("a")
        await first.take(2)
        first.settle(1, b"beside", partition=1)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest, kept=[OTHER])

        second = await world.leader("b")
        taken = await second.take(6)

        seen = [*await committed_in(world.kafka, OUTPUT, 0), *await committed_in(world.kafka, *OTHER)]
        assert sorted(seen) == [value for offset, value in ((1, b"beside"), (0, b"first")) if offset not in taken]
        assert not world.held_up()
        assert not world.held_up(*OTHER)

    on_outputs(scenario)


def test_a_lane_whose_broker_was_lost_tells_how_its_last_transaction_ended_before_it_is_used_again():
    async def scenario(world):
        leader = await world.leader("a")
        await leader.take(3)
        world.kafka.forget_markers()
        await leader.settle(0, b"first")
        await world.kafka.cut()

        world.kafka.refuse(m.ProduceRequest, ErrorCode.MESSAGE_TOO_LARGE)
        refused = leader.settle(1, b"too large")  # it is aborted, and takes nothing that was committed with it
        await asyncio.wait([refused])
        assert refused.exception() is not None
        await leader.settle(2, b"third")
        await leader.owner.close()

        assert await world.visible() == [b"first", b"third"]
        assert not world.held_up()

    on_outputs(scenario)


def test_partitions_that_are_gone_keep_nobody_from_telling_the_others():
    async def scenario(world):
        await world.kafka.storage.create_topic("gone")
        first = await world.leader("a")
        await first.log.refresh(("gone",))
        await first.take(2)
        await first.settle(1, b"lost", topic="gone")
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        await world.kafka.storage.delete_topic("gone")

        second = await world.leader("b")

        assert await second.take() == {2: 1}
        assert await world.visible() == [b"first"]
        assert not world.held_up()

    on_outputs(scenario)


@pytest.mark.parametrize("kind", [m.AddPartitionsToTxnRequest, m.AddOffsetsToTxnRequest, m.EndTxnRequest])
@pytest.mark.parametrize("carried_out", [False, True])
def test_a_take_over_whose_connection_breaks_goes_on_where_it_was(kind, carried_out):
    async def scenario(world):
        first = await world.leader("a")
        await first.take()
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)

        if carried_out:
            world.kafka.drop_answers(kind)
        else:
            world.kafka.refuse(kind, ErrorCode.COORDINATOR_NOT_AVAILABLE, 3)
        second = await world.leader("b")

        assert 0 not in await second.take(6)
        assert await world.visible() == [b"first"]
        assert second.rows() == []

    on_outputs(scenario)
