"""A cluster of brokers that are written by the test: each answers for what it leads, one request after another."""

from __future__ import annotations

import contextlib
from typing import Any

from flowshare.client.errors import NotConnected
from flowshare.client.net.cluster import Cluster
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.client.fakes import ORDERS, FakeConnection, FakeServer

ALL_APIS = dict.fromkeys(range(100), (0, 20))


class BrokerConnection(FakeConnection):
    """A connection as to Kafka: requests are answered strictly one after another."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        super().__init__(broker)
        self.api_versions = ALL_APIS
        self.is_flowshare = broker.is_flowshare
        self.client_id = client_id
        self.under_way = 0

    async def send(self, request: Any) -> Any:
        self.under_way += 1
        if type(request) in (m.ShareFetchRequest, m.ShareAcknowledgeRequest):
            assert self.under_way == 1 or self.is_flowshare, "a session's request was sent beside another one"
        try:
            return await super().send(request)
        finally:
            self.under_way -= 1


class Broker(FakeServer):
    """One broker of a `FakeCluster`; the scripts of `FakeServer` work here too."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        super().__init__(partitions=len(cluster.leaders))
        self.cluster = cluster
        self.node_id = node_id
        self.is_flowshare = False
        self.down = False
        self.groups = [f"g{node_id}"]
        """Those that it coordinates."""
        self.held_back = 0
        """How many fetches a quota holds back yet."""

    async def _MetadataRequest(self, request: Any) -> Any:  # noqa: N802
        leaders = tuple(self.cluster.leaders)
        names = ("orders",) if request.topics is None else request.topics
        return m.MetadataResponse(
            topics=tuple(
                m.TopicMetadata(name=name, topic_id=ORDERS, partitions=len(leaders), leaders=leaders)
                if name == "orders"
                else m.TopicMetadata(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for name in names
            ),
            nodes={broker.node_id: ("broker", broker.node_id) for broker in self.cluster.brokers.values()},
        )

    async def _FindCoordinatorRequest(self, request: Any) -> Any:  # noqa: N802
        return m.FindCoordinatorResponse(node_id=self.cluster.coordinator, host="broker", port=self.cluster.coordinator)

    async def _ShareGroupHeartbeatRequest(self, request: Any) -> Any:  # noqa: N802
        if self.node_id != self.cluster.coordinator:
            return m.ShareGroupHeartbeatResponse(error=ErrorCode.NOT_COORDINATOR)
        return await super()._ShareGroupHeartbeatRequest(request)

    async def _ListOffsetsRequest(self, request: Any) -> Any:  # noqa: N802
        if self.cluster.leaders[request.partition] != self.node_id:
            return m.ListOffsetsResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return m.ListOffsetsResponse(offset=100 + self.node_id)

    async def _FetchRequest(self, request: Any) -> Any:  # noqa: N802
        if self.held_back:
            self.held_back -= 1
            return m.FetchResponse(
                partitions=tuple(
                    m.FetchedLog(topic=part.topic, partition=part.partition, error=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
                    for part in request.partitions
                ),
                throttle_ms=3_000,
            )
        return m.FetchResponse(
            partitions=tuple(
                m.FetchedLog(topic=part.topic, partition=part.partition, records=b"%d" % self.node_id)
                if self.cluster.leaders[part.partition] == self.node_id
                else m.FetchedLog(
                    topic=part.topic, partition=part.partition, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, records=b""
                )
                for part in request.partitions
            )
        )

    async def _ListGroupsRequest(self, request: Any) -> Any:  # noqa: N802
        return m.ListGroupsResponse(groups=tuple(m.ListedGroup(group_id=one, state="Empty") for one in self.groups))

    async def _ShareFetchRequest(self, request: Any) -> Any:  # noqa: N802
        carried = [part for part in request.partitions if part.acks]
        if request.max_records and not self.ready and not carried:
            self.more.clear()
            with contextlib.suppress(TimeoutError):
                await self.cluster.clock.wait_for(self.more.wait(), request.max_wait_ms / 1000)
        parts, self.ready = (self.ready, []) if request.max_records else ([], self.ready)
        found = {(part.topic_id, part.partition) for part in parts}
        parts += [
            m.FetchedPartition(topic_id=part.topic_id, partition=part.partition)
            for part in carried
            if part[:2] not in found
        ]
        return m.ShareFetchResponse(lock_timeout_ms=self.lock_timeout_ms, partitions=tuple(parts))


class FakeCluster:
    """Brokers 1, 2, …; `leaders` says who leads each partition of `orders`."""

    def __init__(self, clock: Any, leaders: list[int], *, coordinator: int = 1) -> None:
        self.clock = clock
        self.leaders = leaders
        self.coordinator = coordinator
        self.brokers: dict[int, Broker] = {}
        for node_id in sorted({*leaders, coordinator}):
            self.brokers[node_id] = Broker(self, node_id)
        self.cluster = Cluster([f"broker:{coordinator}"], clock=clock, open_node=self._open)

    async def _open(self, host: str, port: int, client_id: str) -> BrokerConnection:
        broker = self.brokers.get(port)
        if broker is None or broker.down:
            raise NotConnected(f"broker {port} is down")
        connection = BrokerConnection(broker, client_id)
        broker.connections.append(connection)
        return connection

    async def connect(self) -> Any:
        return self.cluster.connect("me")

    def seen(self, kind: type) -> list[tuple[int, Any]]:
        """Requests of a kind, each with the broker that got it."""
        return [(node, one) for node, broker in self.brokers.items() for one in broker.seen(kind)]

    def session_connection(self, node_id: int) -> BrokerConnection:
        """The newest connection to a broker that carried a session's request."""
        return self.brokers[node_id].connections[-1]
