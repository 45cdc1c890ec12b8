"""Where a group of a Kafka cluster is, and what a start in another place is told."""

from __future__ import annotations

import itertools

import pytest

from flowshare.backend.base import BackendError
from flowshare.backend.group_location import TOPIC, GroupLocation, GroupLocations, MoveMark, mark_move, read_marks
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.message import Message
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka

TO_BROKERS = MoveMark("native", "shop", 0)
TO_SHOP = MoveMark("workers", "shop", 0)
TO_OTHER = MoveMark("workers", "other", 0)


def told(asked, **facts):
    """The refusal, or None."""
    return GroupLocation(group="shop.pay", **facts).refusal(asked, "shop")


def test_who_begins_where_nobody_knows_the_group_may():
    assert told("native") is None
    assert told("workers") is None


def test_who_goes_on_where_the_group_is_may():
    assert told("native", brokers=True) is None
    assert told("workers", fleet=True) is None
    assert told("native", brokers=True, others=("other",)) is None
    assert told("workers", fleet=True, consumer=True) is None


def test_a_group_in_the_other_place_is_refused_with_the_command_that_moves_it():
    refused = told("native", fleet=True)
    assert "lives with the workers of fleet shop" in refused
    assert "flowshare groups move shop.pay --to native" in refused

    refused = told("workers", brokers=True)
    assert "lives with the brokers" in refused
    assert "flowshare groups move shop.pay --to workers" in refused


@pytest.mark.parametrize("asked", ["native", "workers"])
def test_a_group_in_two_places_without_a_mark_is_refused_in_both(asked):
    with pytest.raises(BackendError, match=r"nothing says which one is right: delete it in one place"):
        told(asked, brokers=True, fleet=True)


def test_the_mark_of_a_move_has_the_last_word():
    for brokers, fleet in itertools.product((True, False), repeat=2):
        facts = {"brokers": brokers, "fleet": fleet}
        assert told("native", mark=TO_BROKERS, **facts) is None
        assert told("workers", mark=TO_SHOP, **facts) is None
        assert "was moved to the brokers" in told("workers", mark=TO_BROKERS, **facts)
        assert "was moved to the workers of fleet shop" in told("native", mark=TO_SHOP, **facts)


def test_a_group_that_was_moved_to_another_fleet_names_it():
    assert "--to native --fleet other" in told("native", mark=TO_OTHER)
    refused = told("workers", mark=TO_OTHER)
    assert 'share="workers" and fleet=other' in refused
    assert "flowshare groups move shop.pay --to native --fleet other" in refused


def test_a_group_that_only_another_fleet_has_is_not_begun_on_the_brokers():
    assert "flowshare groups move shop.pay --to native --fleet other" in told("native", others=("other",))
    assert told("workers", others=("other",)) is None, "two fleets may have groups of one name"


def test_a_consumer_group_of_the_name_is_told_how_its_offsets_are_kept():
    assert "flowshare groups seed NAME --from-consumer-group shop.pay" in told("workers", consumer=True)


# --- what a cluster tells -------------------------------------------------------------------------------------------


def looked(prepare, *, asked=None, fleet="shop", groups=("shop.pay",)):
    async def scenario(clock):
        async with FakeKafka(clock) as kafka:
            await prepare(kafka, clock)
            cluster = kafka.cluster()
            await cluster.start()
            try:
                return await GroupLocations(cluster, fleet, native=True, clock=clock).look(groups, asked)
            finally:
                await cluster.close()

    return run(scenario(LoopTimeClock()))


class Written:
    """A producer on the fake cluster."""

    def __init__(self, connection) -> None:
        self._connection = connection

    async def send_many(self, topic, messages):
        for one in messages:
            builder = BatchBuilder()
            assert builder.add(one.key, one.value, timestamp_ms=0)
            await self._connection.send(m.ProduceRequest(topic=topic, partition=0, records=builder.build()))


def test_nothing_is_known_of_a_group_that_is_nowhere():
    async def nothing(kafka, clock):
        del kafka, clock

    assert looked(nothing) == {"shop.pay": GroupLocation(group="shop.pay")}


def test_a_share_group_of_the_brokers_is_found():
    async def lives(kafka, clock):
        del clock
        connection = kafka.server.connect(client_id="t")
        await kafka.storage.create_topic("orders")
        await connection.send(
            m.ShareGroupHeartbeatRequest(
                group_id="shop.pay", member_id="m", member_epoch=0, subscribed_topics=("orders",)
            )
        )

    assert looked(lives)["shop.pay"].brokers
    assert not looked(lives, groups=("shop.ship",))["shop.ship"].brokers


def test_the_last_mark_of_a_group_counts_and_one_that_was_deleted_does_not():
    async def scenario(clock):
        async with FakeKafka(clock) as kafka:
            cluster = kafka.cluster()
            await cluster.start()

            async def connect():
                return cluster.connect("t")

            admin = ShareAdmin(connect, clock=clock)
            try:
                assert await read_marks(admin) == {}
                await kafka.storage.create_topic(TOPIC, internal=True)
                producer = Written(kafka.server.connect(client_id="t"))
                for group, mark in (("a", TO_SHOP), ("b", TO_SHOP), ("a", TO_BROKERS), ("b", None), ("c", TO_OTHER)):
                    await mark_move(admin, producer, group, mark)
                await producer.send_many(TOPIC, [Message(b'{"to": "moon"}', key=b"c")])
                await producer.send_many(TOPIC, [Message(b"?", key=b"d")])
                return await read_marks(admin)
            finally:
                await admin.close()
                await cluster.close()

    assert run(scenario(LoopTimeClock())) == {"a": TO_BROKERS}
