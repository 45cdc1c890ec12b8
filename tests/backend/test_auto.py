"""`share="auto"`: who leads the groups of a Kafka cluster is decided by what is there and what is asked for."""

from __future__ import annotations

import pytest

from flowshare.backend.auto import AutoBackend
from flowshare.backend.base import BackendError
from flowshare.backend.url import parse_broker
from flowshare.protocol import messages as m
from flowshare.protocol.kafka import ApiKey
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka

WITHOUT_SHARE_GROUPS = {int(key): (0, 99) for key in ApiKey if not 76 <= key <= 79}


async def choice(kafka, *, asks=(), cooperative=(), versions=None, broker="kafka://kafka:9092?fleet=shop"):
    """Return the decision if the brokers are to lead, and its reason."""
    backend = AutoBackend(parse_broker(broker), clock=kafka.clock, asked={"g": asks}, cooperative=cooperative)
    cluster = kafka.cluster()
    await cluster.start()
    if versions is not None:
        cluster.api_versions = versions
    try:
        return await backend._choose(cluster)
    finally:
        await cluster.close()


def chosen(prepare=None, **options):
    async def scenario(clock):
        async with FakeKafka(clock) as kafka:
            if prepare is not None:
                await prepare(kafka)
            return await choice(kafka, **options)

    return run(scenario(LoopTimeClock()))


def test_brokers_with_share_groups_lead():
    native, reason = chosen()

    assert native
    assert "no agent asks for anything they lack" in reason


def test_workers_lead_where_the_brokers_have_no_share_groups():
    native, reason = chosen(versions=WITHOUT_SHARE_GROUPS)

    assert not native
    assert "ShareFetch" in reason


def test_workers_lead_what_brokers_cannot():
    native, reason = chosen(asks=("a limit for the whole group (max_in_flight=5)",))

    assert not native
    assert "max_in_flight=5" in reason


def test_a_fleet_that_has_begun_goes_on():
    async def begun(kafka):
        await kafka.storage.create_topic("__flowshare_state.shop", partitions=2, internal=True)

    native, reason = chosen(begun)

    assert not native
    assert "__flowshare_state.shop" in reason


async def lives(kafka):
    connection = kafka.server.connect(client_id="t")
    await kafka.storage.create_topic("orders")
    await connection.send(
        m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topics=("orders",))
    )


def test_a_group_that_lives_on_the_brokers_is_not_left_behind():
    with pytest.raises(BackendError, match="flowshare groups move g --to workers"):
        chosen(lives, asks=("a limit for the whole group (max_in_flight=5)",))


def test_workers_lead_where_a_group_is_cooperative():
    native, reason = chosen(cooperative=["till"])

    assert not native
    assert "till is a cooperative one" in reason


def test_a_cooperative_group_does_not_go_beside_a_group_that_lives_on_the_brokers():
    with pytest.raises(BackendError, match=r"group g lives on the brokers, which keep no cooperative groups \(till\)"):
        chosen(lives, cooperative=["till"])
