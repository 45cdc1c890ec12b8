"""Another broker has the address of the one that is meant (KIP-1242): the brokers are looked for anew."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from flowshare.client.errors import AnotherBroker, NotConnected
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.tcp import open_tcp
from flowshare.client.net.topology import Topology
from flowshare.clock import LoopClock
from flowshare.protocol import messages as m
from flowshare.server.edge.base import AdvertisedNode
from flowshare.server.net.listener import Listener
from tests.client.fakes import ORDERS
from tests.client.sockets import EVERYTHING, SETTINGS, asked, fake_broker
from tests.server.edge.kit import edge

pytestmark = pytest.mark.asyncio
V5 = {18: (0, 5)}


@asynccontextmanager
async def broker(cluster_id: str, *, node_id: int = 1, port: int = 0):
    """A broker of this cluster; its port."""
    async with edge() as made:
        node = AdvertisedNode(host="127.0.0.1", port=0, node_id=node_id, cluster_id=cluster_id)
        listener = Listener(made.server, node=node, clock=LoopClock())
        _, bound = await listener.start("127.0.0.1", port)
        try:
            yield bound
        finally:
            await listener.close()


def client(port: int) -> Cluster:
    return Cluster([f"127.0.0.1:{port}"], clock=LoopClock(), settings=SETTINGS)


async def open_at(port: int, meant: tuple[str, int] | None):
    return await open_tcp("127.0.0.1", port, client_id="c", clock=LoopClock(), settings=SETTINGS, meant=meant)


async def test_the_one_that_is_meant_takes_the_connection_and_another_one_does_not():
    async with broker("here", node_id=7) as port:
        connection = await open_at(port, ("here", 7))
        assert connection.api_versions[18] == (0, 5)
        await connection.close()
        for meant in (("elsewhere", 7), ("here", 8)):
            with pytest.raises(AnotherBroker, match=f"broker {meant[1]} of cluster {meant[0]} is no longer at"):
                await open_at(port, meant)


async def test_a_broker_before_kafka_4_4_is_asked_again_without_it():
    async with fake_broker() as old:
        connection = await open_at(old.port, ("here", 1))
        assert [start.version for start in old.starts] == [5, 4]
        await connection.close()
        plain = await open_at(old.port, None)
        assert [start.version for start in old.starts[2:]] == [4], "nobody is meant: no round trip more"
        await plain.close()


async def test_it_is_said_to_a_broker_that_knows_v5_and_only_there():
    async with fake_broker({**EVERYTHING, **V5}, api_versions_highest=5) as new:
        cluster = client(new.port)
        cluster.topology.cluster_id, cluster.topology.nodes = "here", {3: (new.host, new.port)}
        for _ in range(2):  # nothing is known of the first one before it answers
            await (await cluster.open_node(3, "c")).close()
        assert [start.version for start in new.starts] == [4, 5]
        request = asked(new.frames[1])
        assert (request.cluster_id, request.node_id) == ("here", 3)
        await cluster.close()


async def test_a_node_whose_port_another_cluster_took_is_forgotten_and_found_where_it_is(caplog):
    async with AsyncExitStack() as stack:
        right = await stack.enter_async_context(broker("here"))
        wrong = await stack.enter_async_context(broker("elsewhere"))
        cluster = client(right)
        await cluster.start()
        cluster.topology.nodes = {1: ("127.0.0.1", wrong)}

        with pytest.raises(NotConnected):
            await cluster.open_node(1, "c")
        again = await cluster.open_node(1, "c")

        assert cluster.topology.nodes == {1: ("127.0.0.1", right)}
        assert cluster.topology.cluster_id == "here"
        assert "another one is there; looking for the brokers anew" in caplog.text
        await again.close()
        await cluster.close()


async def test_any_broker_is_none_of_another_cluster_while_one_of_this_can_be_reached():
    async with AsyncExitStack() as stack:
        right = await stack.enter_async_context(broker("here"))
        wrong = await stack.enter_async_context(broker("elsewhere"))
        cluster = client(right)
        await cluster.start()
        cluster.topology.nodes = {1: ("127.0.0.1", wrong)}

        connection = await cluster.open_any("c")
        answer = await connection.send(m.MetadataRequest(topics=()))

        assert answer.cluster_id == "here"
        await connection.close()
        await cluster.close()


async def test_a_broker_that_came_back_as_another_cluster_is_taken_with_a_warning(caplog):
    """As one in memory does that is started again: there is no other one to go to."""
    async with broker("first") as port:
        cluster = client(port)
        await cluster.start()
        await cluster.close()
    async with broker("second", port=port):
        await cluster.start()
        assert (cluster.topology.cluster_id, set(cluster.topology.nodes)) == ("second", {1})
        assert "the brokers are of cluster second now, not first" in caplog.text
        await cluster.close()


async def test_what_is_known_of_one_cluster_is_not_held_against_the_next():
    topology = Topology()
    topic = m.TopicMetadata(name="t", topic_id=ORDERS, partitions=1, leaders=(1,), leader_epochs=(9,))
    topology.apply(m.MetadataResponse(nodes={1: ("a", 1)}, cluster_id="one", topics=(topic,)))
    assert topology.leader("t", 0) == 1
    topology.apply(m.MetadataResponse(nodes={2: ("b", 2)}, cluster_id="two"))
    assert (topology.nodes, topology.knows("t")) == ({2: ("b", 2)}, False)
    topology.apply(m.MetadataResponse(nodes={2: ("b", 2)}))
    assert topology.cluster_id == "two", "a server of this process tells none"
