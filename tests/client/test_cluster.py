"""Several brokers as one connection: who gets which request, and what happens when it was the wrong one."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ConnectionLost, NotConnected, ServerError
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.link import Link
from flowshare.client.net.topology import NOBODY, Topology
from flowshare.client.settings import LinkSettings
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import settle
from tests.client.brokers import FakeCluster
from tests.client.fakes import ORDERS
from tests.client.workers import FakeFleet
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


def produce():
    builder = BatchBuilder()
    builder.add(None, b"value", timestamp_ms=1)
    return m.ProduceRequest(topic="orders", partition=0, records=builder.build())


async def begun(clock, connection, request):
    """Begin a request whose answer no task waits for, and return the result that is reported."""
    told = asyncio.get_running_loop().create_future()
    connection.begin(request, lambda finished: told.done() or told.set_result(finished))
    return (await within(clock, 5, told)).result()


async def test_records_go_straight_to_a_leader_that_is_connected_and_to_the_new_one_when_it_says_so(clock):
    fake = FakeCluster(clock, [1, 2])
    connection = await fake.connect()
    await begun(clock, connection, produce())
    await begun(clock, connection, produce())
    fake.leaders[0] = 2
    fake.brokers[1].then(m.ProduceRequest, m.ProduceResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    fake.brokers[1].then(m.ProduceRequest, m.ProduceResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))

    answer = await begun(clock, connection, produce())

    assert answer.error is ErrorCode.NONE
    assert [node for node, _ in fake.seen(m.ProduceRequest)] == [1, 1, 1, 1, 2]
    await connection.close()


async def test_who_sent_records_straight_is_told_of_the_lost_connection_and_the_next_ones_open_another(clock):
    fake = FakeCluster(clock, [1, 2])
    connection = await fake.connect()
    await begun(clock, connection, produce())
    fake.brokers[1].then(m.ProduceRequest, ConnectionError("restarted"))
    with pytest.raises(ConnectionError, match="restarted"):
        await begun(clock, connection, produce())

    answer = await begun(clock, connection, produce())

    assert answer.error is ErrorCode.NONE
    assert len(fake.brokers[1].connections) == 3, "one to ask who leads, and two for records"
    await connection.close()


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


def loading(times):
    return [m.ListGroupsResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * times


async def test_groups_are_listed_when_a_broker_has_loaded_those_that_it_takes_over(clock):
    fake = FakeCluster(clock, [1, 2])
    fake.brokers[2].then(m.ListGroupsRequest, *loading(3))
    admin = ShareAdmin(fake.connect, clock=clock)

    assert [group.group_id for group in await within(clock, 5, admin.list_groups())] == ["g1", "g2"]
    await admin.close()


async def test_groups_that_move_while_they_are_listed_are_told_by_who_has_them_in_the_end(clock):
    fake = FakeCluster(clock, [1, 2, 3])
    fake.brokers[2].then(m.ListGroupsRequest, *loading(1))
    admin = ShareAdmin(fake.connect, clock=clock)
    listing = asyncio.ensure_future(admin.list_groups())
    await settle()
    assert not listing.done()

    del fake.brokers[3]
    fake.brokers[1].groups.append("g3")  # it was asked already, and takes them over

    assert [group.group_id for group in await within(clock, 5, listing)] == ["g1", "g2", "g3"]
    await admin.close()


async def test_a_broker_that_loads_groups_for_ever_is_told_after_a_bounded_time(clock):
    fake = FakeCluster(clock, [1, 2])
    fake.brokers[2].then(m.ListGroupsRequest, *loading(1_000))
    admin = ShareAdmin(fake.connect, clock=clock)

    with pytest.raises(ServerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await within(clock, 15, admin.list_groups())
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
    fake = FakeCluster(clock, [1, 2])
    fake.leaders = [NOBODY, NOBODY]
    connection = await fake.connect()

    fetching = asyncio.ensure_future(connection.send(fetch(0, 1)))
    await clock.advance(0.2)
    assert not fetching.done()
    fake.leaders = [1, 2]
    answer = await within(clock, 5, fetching)

    assert [(log.partition, log.records) for log in answer.partitions] == [(0, b"1"), (1, b"2")]
    assert {log.error for log in answer.partitions} == {ErrorCode.NONE}
    await connection.close()


@pytest.mark.parametrize("moved", [0, 1], ids=["the first", "the second"])
async def test_of_one_leaders_partitions_the_one_that_moved_is_asked_of_its_new_leader(clock, moved):
    fake = FakeCluster(clock, [1, 1, 2])
    connection = await fake.connect()
    await connection.send(fetch(0, 1, 2))
    fake.leaders[moved] = 2

    answer = await within(clock, 5, connection.send(fetch(0, 1, 2)))

    assert {log.error for log in answer.partitions} == {ErrorCode.NONE}
    assert [log.records for log in answer.partitions] == [b"2" if one in (moved, 2) else b"1" for one in range(3)]
    asked = [[part.partition for part in one.partitions] for _, one in fake.seen(m.FetchRequest)]
    assert asked.count([moved]) == 1
    await connection.close()


async def test_partitions_of_a_leader_that_is_not_reached_are_asked_of_the_next_one(clock):
    fake = FakeCluster(clock, [1, 2, 2])
    connection = await fake.connect()
    await fake.cluster.look(("orders",))
    fake.brokers[2].down = True

    fetching = asyncio.ensure_future(connection.send(fetch(1, 2)))
    await clock.advance(0.2)
    assert not fetching.done()
    fake.leaders = [1, 1, 1]
    answer = await within(clock, 5, fetching)

    assert [(log.error, log.records) for log in answer.partitions] == [(ErrorCode.NONE, b"1")] * 2
    await connection.close()


async def test_a_fetch_that_a_quota_holds_back_is_made_again_when_its_time_is_over(clock):
    fake = FakeCluster(clock, [1, 2])
    fake.brokers[2].held_back = 2
    connection = await fake.connect()

    begun = clock.monotonic()
    answer = await within(clock, 9, connection.send(fetch(0, 1)))

    assert [(log.error, log.records) for log in answer.partitions] == [(ErrorCode.NONE, b"1"), (ErrorCode.NONE, b"2")]
    assert clock.monotonic() - begun >= 6, "three seconds each time"
    assert [node for node, _ in fake.seen(m.FetchRequest)].count(1) == 1
    await connection.close()


async def test_a_quota_that_holds_a_fetch_back_for_long_is_told_with_its_time(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].held_back = 1_000
    connection = await fake.connect()

    answer = await within(clock, 12, connection.send(fetch(0)))

    assert [log.error for log in answer.partitions] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert answer.throttle_ms == 3_000
    await connection.close()


async def test_partitions_that_nobody_leads_for_long_are_told_so(clock):
    fake = FakeCluster(clock, [1, 2])
    fake.leaders = [1, NOBODY]
    connection = await fake.connect()

    with pytest.raises(NotConnected, match="leader of orders-1: nobody is"):
        await within(clock, 30, connection.send(fetch(1)))

    await connection.close()


@pytest.mark.parametrize("how", ["has no leader", "has a leader that is not reached", "is refused by its leader"])
async def test_what_was_read_waits_for_no_partition_that_cannot_be_read(clock, how):
    fake = FakeCluster(clock, [1, 2])
    connection = await fake.connect()
    await fake.cluster.look(("orders",))
    match how:
        case "has no leader":
            fake.leaders = [1, NOBODY]
            await within(clock, 1, fake.cluster.look(("orders",)))
        case "is refused by its leader":
            refused = m.FetchedLog(topic="orders", partition=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            fake.brokers[2].then(m.FetchRequest, m.FetchResponse(partitions=(refused,)))
        case _:
            fake.brokers[2].down = True

    begun = clock.monotonic()
    answer = await within(clock, 30, connection.send(fetch(0, 1)))

    assert clock.monotonic() - begun < 0.5
    read, unread = answer.partitions
    assert (read.error, read.records) == (ErrorCode.NONE, b"1")
    assert unread.error in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await connection.close()


async def test_a_question_is_asked_again_while_the_leader_is_not_reached(clock):
    fake = FakeCluster(clock, [1, 2])
    admin = ShareAdmin(fake.connect, clock=clock)
    fake.brokers[2].down = True

    asking = asyncio.ensure_future(admin.offsets("orders", 1))
    await clock.advance(15)
    assert not asking.done()
    fake.brokers[2].down = False

    assert (await within(clock, 10, asking)).log_start == 102
    await admin.close()


async def test_a_broker_that_is_not_reached_ends_no_request_to_another_one(clock):
    """A link's connection leads to all brokers."""
    fake = FakeCluster(clock, [1, 2])
    asked = asyncio.get_running_loop().create_future()
    fake.brokers[1].then(m.FetchRequest, asked)
    link = Link(fake.connect, clock=clock, settings=LinkSettings(), name="reader")
    await fake.cluster.look(("orders",))
    fake.brokers[2].down = True

    parked = asyncio.ensure_future(link.send(fetch(0)))
    with pytest.raises(NotConnected, match="broker 2 is down"):
        await within(clock, 30, link.send(fetch(1)))
    assert "broker 2 is down" in link.trouble
    asked.set_result(m.FetchResponse(partitions=(m.FetchedLog(topic="orders", partition=0),)))

    assert (await within(clock, 1, parked)).partitions[0].error is ErrorCode.NONE
    assert (link.generation, link.trouble) == (0, None)
    await link.close()


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


def _told(*leaders, nodes=(1, 2), topic_id=ORDERS):
    topic = m.TopicMetadata(
        name="orders",
        topic_id=topic_id,
        partitions=len(leaders),
        leaders=tuple(leader for leader, _ in leaders),
        leader_epochs=tuple(epoch for _, epoch in leaders),
    )
    return m.MetadataResponse(topics=(topic,), nodes={node: ("host", node) for node in nodes})


async def test_an_old_map_changes_nothing_that_is_known_better():
    topology = Topology()
    topology.apply(_told((1, 4), (1, 4)))
    topology.hint(TP, (3, 6), {3: ("host", 3)})

    topology.apply(_told((2, 5), (2, 5)))

    assert (topology.leader("orders", 0), topology.leader("orders", 1)) == (3, 2)
    assert topology.nodes[3] == ("host", 3), "its address is kept, which the old map does not have"
    topology.apply(_told((1, 6), (1, 7)))
    assert (topology.leader("orders", 0), topology.leader("orders", 1)) == (1, 1)


async def test_a_topic_made_anew_begins_with_new_epochs():
    topology = Topology()
    topology.apply(_told((1, 40)))

    topology.apply(_told((2, 1), topic_id=uuid.UUID(int=8)))

    assert topology.leader("orders", 0) == 2


async def test_a_map_without_epochs_is_believed():
    topology = Topology()
    topology.apply(_told((1, 40)))

    topology.apply(_told((2, -1)))

    assert topology.leader("orders", 0) == 2
    assert topology.hint(TP, (1, 3), {})


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


# --- fleets -----------------------------------------------------------------------------------------------------


async def test_the_server_of_this_process_is_reached_without_sockets(clock):
    fake = FakeFleet(clock, [2])
    asked = []

    async def connect(client_id):
        asked.append(client_id)
        return await fake.open_node("worker", 2, client_id)

    async def never(host, port, client_id):
        raise AssertionError(f"{host}:{port} was connected to")

    cluster = Cluster(["worker:1"], clock=clock, open_node=never, local={2: connect})
    await cluster.start()
    own = await cluster.open_node(2, "me")

    assert asked == ["flowshare", "me"]
    assert own.is_flowshare
    assert cluster.is_flowshare
    assert (await own.send(m.FindCoordinatorRequest(key="g"))).node_id == 1
    await own.close()
    await cluster.close()
    assert all(connection.gone.done() for connection in fake.workers[2].connections)


def outdated_cluster(clock, fake, others=True):
    """A cluster whose own worker, 1, has lost touch; `others`: whether another one is reached."""
    asked = []

    async def own(client_id):
        asked.append(client_id)
        return await fake.open_node("worker", 1, client_id)

    async def open_node(host, port, client_id):
        assert port != 1, "the own worker is asked over a socket"
        if not others:
            raise NotConnected(f"worker {port} is down")
        return await fake.open_node(host, port, client_id)

    state = SimpleNamespace(outdated=False, asked=asked)
    cluster = Cluster(
        ["worker:1"],
        clock=clock,
        open_node=open_node,
        local={1: own},
        own_address="worker:1",
        outdated=lambda: state.outdated,
    )
    return cluster, state


async def test_while_this_processs_worker_has_lost_touch_another_one_is_asked_who_leads(clock):
    fake = FakeFleet(clock, [2])
    cluster, state = outdated_cluster(clock, fake)
    await cluster.start()
    state.outdated = True

    await within(clock, 5, asyncio.gather(*(cluster.look((f"t{number}",)) for number in range(3))))
    state.outdated = False
    await within(clock, 5, cluster.look(("t",)))

    assert len(fake.workers[1].seen(m.MetadataRequest)) == 2
    assert len(fake.workers[2].seen(m.MetadataRequest) + fake.workers[3].seen(m.MetadataRequest)) == 3
    await cluster.close()


@pytest.mark.parametrize("known", [True, False])
async def test_where_no_other_worker_is_reached_the_own_one_answers_outdated_as_it_is(clock, known):
    fake = FakeFleet(clock, [2])
    cluster, state = outdated_cluster(clock, fake, others=False)
    await cluster.start()
    if not known:
        cluster.topology.nodes.clear()
    state.outdated = True

    await within(clock, 5, asyncio.gather(*(cluster.look((f"t{number}",)) for number in range(3))))

    assert len(fake.workers[1].seen(m.MetadataRequest)) == 4
    await cluster.close()


async def test_when_this_process_has_no_server_yet_others_are_asked(clock):
    fake = FakeFleet(clock, [2])

    async def not_yet(client_id):
        raise ConnectionRefusedError("no server yet")

    local = {9: not_yet}
    cluster = Cluster(["worker:1"], clock=clock, open_node=fake.open_node, local=local)
    await cluster.start()
    local.clear()

    assert set(cluster.topology.nodes) == {1, 2, 3}
    await cluster.close()


async def test_addresses_can_be_replaced_and_are_asked_for_when_none_answers(clock):
    fake = FakeFleet(clock, [2])
    asked = []

    async def fresh():
        asked.append(clock.monotonic())
        return ["worker:3"]

    cluster = Cluster(["worker:7"], clock=clock, open_node=fake.open_node, fresh_addresses=fresh)
    cluster.set_bootstrap(["worker:8"])
    await cluster.start()

    assert len(asked) == 1
    assert fake.workers[3].seen(m.MetadataRequest)
    await cluster.close()


async def test_a_caller_that_waits_for_the_leaders_of_a_cluster_that_is_closed_is_told_so(clock):
    fake = FakeCluster(clock, [1])
    await fake.connect()
    fake.brokers[1].then(m.MetadataRequest, asyncio.get_running_loop().create_future())
    waiting = asyncio.ensure_future(fake.cluster.look(("orders",)))
    await settle()

    await fake.cluster.close()

    with pytest.raises(NotConnected, match="closed"):
        await waiting


async def test_nobody_anywhere_is_an_error(clock):
    fake = FakeFleet(clock, [2])

    async def fresh():
        return ["worker:8", "worker:9"]

    cluster = Cluster(["worker:7"], clock=clock, open_node=fake.open_node, fresh_addresses=fresh)

    with pytest.raises(NotConnected, match="worker 9 is down"):
        await within(clock, 40, cluster.start())
    await cluster.close()


async def test_a_worker_that_does_not_say_who_leads_is_asked_last_from_then_on(clock):
    fake = FakeFleet(clock, [2])
    cluster = Cluster(["worker:1"], clock=clock, open_node=fake.open_node)
    await cluster.start()
    fake.workers[1].frozen = True

    with pytest.raises(NotConnected, match="within 2 s"):
        await within(clock, 5, cluster.look(("orders",)))
    await within(clock, 5, cluster.look(("orders",)))

    assert cluster.topology.leader("orders", 0) == 2
    assert len(fake.workers[1].seen(m.MetadataRequest)) == 2
    await cluster.close()


async def test_a_worker_that_is_connected_to_for_ever_is_not_waited_for(clock):
    fake = FakeFleet(clock, [2])

    async def open_node(host, port, client_id):
        if port == 1:
            await asyncio.Event().wait()
        return await fake.open_node(host, port, client_id)

    async def fresh():
        return ["worker:3"]

    cluster = Cluster(["worker:1", "worker:2"], clock=clock, open_node=open_node, fresh_addresses=fresh)

    await within(clock, 4, cluster.start())

    assert fake.workers[2].seen(m.MetadataRequest)
    await cluster.close()


@pytest.mark.parametrize("there", [2, 9])
async def test_a_worker_that_took_the_address_of_another_one_is_not_taken_for_it(clock, there):
    """With it the member may have a session already; a second one under another name would end that again and again."""
    fake = FakeFleet(clock, [2])

    async def who(connection):
        return there

    cluster = Cluster(["worker:1"], clock=clock, open_node=fake.open_node, who=who)
    await cluster.start()
    if there == 2:
        assert await cluster.open_node(2, "me")
    else:
        with pytest.raises(NotConnected, match="worker 2 is gone: worker 9 is at"):
            await cluster.open_node(2, "me")
        assert fake.workers[2].connections[-1].gone.done()
    await cluster.close()
    await fake.cluster.close()
