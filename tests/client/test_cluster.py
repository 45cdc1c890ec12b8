"""Several brokers as one connection: who gets which request, and what happens when it was the wrong one."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.admin import ShareAdmin
from flowshare.client.errors import ConnectionLost, NotConnected, ServerError
from flowshare.client.topology import NOBODY, Topology
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.client.brokers import FakeCluster
from tests.client.fakes import ORDERS
from tests.client.worlds import within

pytestmark = pytest.mark.asyncio
TP = m.TopicPartition(ORDERS, 0)


def fetch(*partitions):
    return m.FetchRequest(partitions=tuple(m.FetchPartition("orders", number, 0) for number in partitions))


async def test_offsets_are_asked_of_the_leader_of_each_partition(clock):
    fake = FakeCluster(clock, [1, 2])
    admin = ShareAdmin(fake.connect, clock=clock)

    first, second = await admin.offsets("orders", 0), await admin.offsets("orders", 1)

    assert (first.log_start, second.log_start) == (101, 102)
    await admin.close()


async def test_a_request_goes_to_the_new_leader_when_the_old_one_says_so(clock):
    fake = FakeCluster(clock, [1, 2])
    admin = ShareAdmin(fake.connect, clock=clock)
    await admin.offsets("orders", 0)
    fake.leaders[0] = 2

    bounds = await within(clock, 5, admin.offsets("orders", 0))

    assert bounds.log_start == 102
    await admin.close()


async def test_heartbeats_find_the_coordinator_first_and_follow_it_when_it_moves(clock):
    fake = FakeCluster(clock, [1, 2])
    connection = await fake.connect()
    beat = m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topics=("orders",))

    await connection.send(beat)
    fake.coordinator = 2
    answer = await within(clock, 5, connection.send(beat))

    assert answer.error is ErrorCode.NONE
    assert [node for node, _ in fake.seen(m.ShareGroupHeartbeatRequest)] == [1, 1, 2]
    await connection.close()


async def test_a_coordinator_that_comes_back_at_another_address_is_found_there(clock):
    fake = FakeCluster(clock, [1, 2])
    connection = await fake.connect()
    beat = m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topics=("orders",))
    await connection.send(beat)
    fake.cluster.topology.nodes[1] = "broker", 3  # where nobody listens; what is known from before the restart
    fake.brokers[1].then(m.ShareGroupHeartbeatRequest, ConnectionError("restarted"))
    with pytest.raises(ConnectionError, match="restarted"):
        await connection.send(beat)

    answer = await within(clock, 5, connection.send(beat))

    assert answer.error is ErrorCode.NONE
    await connection.close()


async def test_a_group_without_coordinator_is_told_after_a_bounded_time(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].then(
        m.FindCoordinatorRequest,
        *[m.FindCoordinatorResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE) for _ in range(100)],
    )
    connection = await fake.connect()

    with pytest.raises(NotConnected, match="coordinator of group g"):
        await within(
            clock, 30, connection.send(m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1))
        )
    await connection.close()


async def test_a_group_that_may_not_be_used_is_refused_at_once(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].then(
        m.FindCoordinatorRequest, m.FindCoordinatorResponse(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    )
    connection = await fake.connect()

    with pytest.raises(ServerError, match="GROUP_AUTHORIZATION_FAILED"):
        await connection.send(m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1))
    await connection.close()


async def test_groups_are_listed_from_every_broker(clock):
    fake = FakeCluster(clock, [1, 2, 3])
    admin = ShareAdmin(fake.connect, clock=clock)

    assert [group.group_id for group in await admin.list_groups()] == ["g1", "g2", "g3"]
    await admin.close()


async def test_groups_are_listed_without_a_broker_that_was_taken_away(clock):
    fake = FakeCluster(clock, [1, 2, 3])
    admin = ShareAdmin(fake.connect, clock=clock)
    await admin.list_groups()
    del fake.brokers[3]
    fake.leaders = [1, 2, 2]
    other = ShareAdmin(fake.connect, clock=clock)

    groups = await within(clock, 5, other.list_groups())

    assert [group.group_id for group in groups] == ["g1", "g2"]
    await admin.close()
    await other.close()


async def test_a_plain_fetch_of_two_leaders_partitions_comes_back_in_order(clock):
    fake = FakeCluster(clock, [1, 2])
    connection = await fake.connect()

    answer = await connection.send(fetch(1, 0))

    assert [(log.partition, log.records) for log in answer.partitions] == [(1, b"2"), (0, b"1")]
    await connection.close()


async def test_of_partitions_without_a_leader_each_one_s_is_looked_for(clock):
    fake = FakeCluster(clock, [1, 2, 2])
    fake.leaders = [NOBODY, NOBODY, 2]
    connection = await fake.connect()

    fetching = asyncio.ensure_future(connection.send(fetch(0, 1, 2)))
    await clock.advance(0.2)
    assert not fetching.done()
    fake.leaders = [1, 2, 2]
    answer = await within(clock, 5, fetching)

    assert [(log.partition, log.records) for log in answer.partitions] == [(0, b"1"), (1, b"2"), (2, b"2")]
    assert {log.error for log in answer.partitions} == {ErrorCode.NONE}
    await connection.close()


async def test_settings_of_a_broker_are_asked_of_that_broker(clock):
    fake = FakeCluster(clock, [1, 2])
    fake.brokers[2].then(m.DescribeConfigsRequest, m.DescribeConfigsResponse())
    connection = await fake.connect()

    await connection.send(m.DescribeConfigsRequest(resource_type="broker", resource="2"))

    assert [node for node, _ in fake.seen(m.DescribeConfigsRequest)] == [2]
    await connection.close()


async def test_a_request_whose_connection_breaks_is_not_sent_again(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].then(m.CreateTopicRequest, ConnectionResetError("reset"))
    admin = ShareAdmin(fake.connect, clock=clock)

    with pytest.raises(ConnectionLost):
        await admin.create_topic("new")

    assert len(fake.seen(m.CreateTopicRequest)) == 1
    await admin.close()


async def test_the_cluster_starts_as_soon_as_one_broker_answers(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].down = True
    starting = asyncio.ensure_future(fake.cluster.start())
    await clock.advance(1)
    fake.brokers[1].down = False

    await within(clock, 5, starting)

    assert set(fake.cluster.topology.nodes) == {1}
    await fake.cluster.close()


async def test_a_cluster_nobody_answers_for_is_told_after_the_connect_timeout(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].down = True

    with pytest.raises(ConnectionError, match="broker 1 is down"):
        await within(clock, 60, fake.cluster.start())
    await fake.cluster.close()


async def _known(leaders):
    topology = Topology()
    topic = m.TopicMetadata(name="orders", topic_id=ORDERS, partitions=len(leaders), leaders=tuple(leaders))
    topology.apply(m.MetadataResponse(topics=(topic,), nodes={1: ("a", 1), 2: ("b", 2)}))
    return topology


async def test_a_hint_names_the_leader_until_metadata_or_a_newer_epoch_does():
    topology = await _known([1])

    assert topology.hint(TP, (2, 5), {})
    assert not topology.hint(TP, (1, 4), {}), "an older epoch is no news"
    assert topology.leader_of(TP) == 2


async def test_a_hint_without_leader_or_to_an_unknown_node_is_no_use():
    topology = await _known([1])

    assert not topology.hint(TP, (-1, -1), {})
    assert not topology.hint(TP, (9, 5), {})
    assert topology.hint(TP, (9, 5), {9: ("c", 9)})
    assert topology.nodes[9] == ("c", 9)


async def test_a_topic_that_is_gone_has_no_leader_any_more():
    topology = await _known([1])

    gone = m.TopicMetadata(name="orders", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topology.apply(m.MetadataResponse(topics=(gone,)))

    assert (topology.leader("orders", 0), topology.leader_of(TP)) == (NOBODY, NOBODY)
    assert not topology.hint(TP, (1, 9), {})
