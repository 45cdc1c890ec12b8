"""The workers backend: share groups on any Kafka, led by the workers themselves (docs/architecture.md).

A worker that leads opens a listener for other workers and anybody's share clients. A process that does not lead (a
short command, `lead=false`) finds the workers by their slot group. Records, producers and consumer groups are Kafka's
own.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flowshare.backend.base import NOTHING_ASKED, WORKERS, BackendError, GroupNeeds
from flowshare.backend.fleet_options import ADVICE, FleetPlace, FleetSecurity
from flowshare.backend.native import KafkaBackend
from flowshare.client.errors import ClientError, NotConnected, check
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.routing import ClusterConnection
from flowshare.client.settings import LinkSettings
from flowshare.fleet.directory import OF_WORKERS
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.backend.url import BrokerUrl
    from flowshare.client.net.connections import NodeConnection
    from flowshare.client.net.tcp import TcpConnection
    from flowshare.clock import Clock
    from flowshare.fleet.directory import WorkerAddress
    from flowshare.fleet.worker import FleetWorker
    from flowshare.protocol.messages import Connection
    from flowshare.server.net.listener import Listener
    from flowshare.server.runtime.connection import InProcess

CHECK_S: Final = 5.0
"""Seconds for the advertised address to lead back here."""

logger = logging.getLogger(__name__)


class WorkersBackend(KafkaBackend):
    """The share groups of a fleet on the Kafka at `broker`; its options name the fleet and the listener."""

    kind = "workers"
    capabilities = WORKERS

    def __init__(
        self, broker: BrokerUrl, *, clock: Clock | None = None, lead: bool = True, asked: GroupNeeds = NOTHING_ASKED
    ) -> None:
        """lead: share in leading the groups. asked: needs of the app's groups. Raises: BadBrokerUrl."""
        super().__init__(broker, clock=clock, asked=asked)
        self._place = FleetPlace.of(broker, lead=lead)
        self._secured = FleetSecurity.of(broker)
        self._workers: Cluster | None = None
        self._listener: Listener | None = None
        self._ending: asyncio.Task[None] | None = None
        """Task that closes the backend, while it runs."""
        self.bootstrap: str | None = None
        """`host:port` where share clients reach this worker; None for one that does not lead."""
        self.fleet = self._place.fleet
        """The fleet's name."""
        self.worker: FleetWorker | None = None
        """This process's part in leading."""
        self.led = False
        """True if there were workers that lead when the backend was opened."""

    # --- life ---------------------------------------------------------------------------------------------------

    async def _begin(self, cluster: Cluster) -> None:
        """Lead, or find the workers that lead."""
        from flowshare.fleet.state.outputs import ends_transactions

        if not ends_transactions(cluster.api_versions):
            self.capabilities = replace(WORKERS, settling=False)
        await self.check_groups(self._asked)
        await (self._lead(cluster) if self._place.lead else self._find())

    async def close(self) -> None:
        """Leave the fleet in order, to the end even if the caller is cancelled; harmless when it is not open. A second
        caller waits for the same end."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name=f"leave the fleet {self.fleet}")
            self._ending.add_done_callback(self._ended)
        await asyncio.shield(self._ending)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._ending = None

    async def _end(self) -> None:
        worker, self.worker = self.worker, None
        listener, self._listener = self._listener, None
        workers, self._workers = self._workers, None
        async with AsyncExitStack() as rest:  # the last one first, each whatever becomes of the others
            rest.push_async_callback(super().close)
            if workers is not None:
                rest.push_async_callback(workers.close)
            if worker is not None:
                rest.push_async_callback(worker.close)
            if listener is not None:
                rest.push_async_callback(listener.close)
            if worker is not None:
                await worker.leave()

    async def _lead(self, cluster: Cluster) -> None:
        from flowshare.fleet.worker import FleetWorker
        from flowshare.server.edge.base import AdvertisedNode
        from flowshare.server.net.listener import Listener, ListenerError

        place, brokers = self._place, self._broker.hosts
        listens = await asyncio.to_thread(place.listens, brokers, guarded=self._secured.guarded)  # looks names up
        self._secured.check(listens[0], self._security)
        doors = await self._secured.doors(self._clock)
        worker = self.worker = FleetWorker(cluster, place.options(), clock=self._clock, dial=self._dial)
        await worker.prepare()
        host = await asyncio.to_thread(place.advertised_host, listens[0], brokers)
        port = 0 if place.advertise is None else place.advertise[1]  # 0: the listener's port
        node = AdvertisedNode(host=host, port=port, node_id=worker.node_id, cluster_id=f"flowshare-{place.fleet}")
        listener = self._listener = Listener(
            worker.server,
            node=node,
            clock=self._clock,
            tls=doors.tls,
            sasl=doors.sasl,
            authorizer=doors.authorizer,
            apis=worker.server.apis(sasl=doors.sasl),
        )
        worker.settings.on_change(lambda config: listener.configure(config.limits))
        try:
            await listener.start(*listens)
        except ListenerError as error:
            raise BackendError(str(error)) from None
        host, port = listener.node.host, listener.node.port
        self.bootstrap = f"{host}:{port}"
        await self._check_address(host, port)
        await worker.join(host, port)
        listener.rename(worker.node_id)  # another worker may have drawn the same
        self.led = True
        self._workers = self._cluster_of([self.bootstrap])

    async def _check_address(self, host: str, port: int) -> None:
        """Check that the advertised address leads back to this worker, and that this worker lets its fleet in.

        Raises: BackendError.
        """
        from flowshare.fleet.messages import WhoRequest

        assert self.worker is not None
        try:
            line = await self._open(host, port, "flowshare-check", LinkSettings(connect_timeout=CHECK_S))
        except (OSError, ClientError) as error:
            raise BackendError(f"this worker is not reached at {host}:{port}: {error}; {ADVICE}") from None
        try:
            told = await line.send(WhoRequest())
            check(told.error, told.message, f"who answers at {host}:{port}")
        except (OSError, ClientError) as error:
            raise BackendError(f"what answers at {host}:{port} is not this worker ({error}); {ADVICE}") from None
        finally:
            await line.close()
        if told.node_id != self.worker.node_id:
            raise BackendError(f"what answers at {host}:{port} is another worker; {ADVICE}")
        if not told.worker:
            raise BackendError(
                f"the fleet's listeners take this worker for {told.principal}, who is no worker: name the "
                "principals of all workers in listen_super_users (several with ; between them)"
            )

    async def _find(self) -> None:
        try:
            hosts = await self._addresses()
        except NotConnected as error:
            logger.debug("%s", error)  # a client of brokers only needs no workers
            hosts = []
        self.led = bool(hosts)
        self._workers = self._cluster_of(hosts)

    async def _addresses(self) -> list[str]:
        """Return the addresses of the fleet's workers, as told by their slot group. Raises: NotConnected,
        ClientError."""
        from flowshare.fleet.inspection import describe_fleet

        if self._cluster is None:
            raise NotConnected("the workers backend is not open")
        kafka = self._cluster.connect("flowshare-look")
        try:
            slot_map = await describe_fleet(kafka, self._place.fleet)
        finally:
            await kafka.close()
        if slot_map is None or not slot_map.nodes:
            raise NotConnected(
                f"nobody leads the fleet {self._place.fleet!r} on {self._broker} at the moment: start a worker that "
                "may lead (flowshare worker app:app), or name another fleet (&fleet=… in the broker's URL)"
            )
        return [f"{host}:{port}" for host, port in slot_map.nodes.values()]

    def _cluster_of(self, hosts: list[str]) -> Cluster:
        worker = None if self.worker is None else self.worker.node_id
        return Cluster(
            hosts,
            clock=self._clock,
            security=self._secured.own,
            local={} if worker is None else {worker: self._connect_own},
            fresh_addresses=self._addresses,
            worker=worker,
            who=_who,
            outdated=lambda: self.worker is not None and not self.worker.sure,
            own_address=self.bootstrap,
        )

    # --- connections --------------------------------------------------------------------------------------------

    async def connect(self, client_id: str) -> Connection:
        """Open a connection to brokers and workers. Raises: BackendError before `start` and after `close`."""
        cluster = self._opened()
        if self._workers is None:
            raise BackendError("the workers backend is not open")
        return FleetConnection(self._workers, client_id, cluster.connect(client_id))

    async def _connect_own(self, client_id: str) -> InProcess:
        """Open a connection to this process's own worker, without a socket."""
        if self.worker is None:
            raise NotConnected("this worker has left the fleet")
        return self.worker.connect(client_id)

    async def _dial(self, place: WorkerAddress) -> TcpConnection:
        return await self._open(place.host, place.port, "flowshare-peer", LinkSettings())

    async def _open(self, host: str, port: int, client_id: str, settings: LinkSettings) -> TcpConnection:
        """Open a connection to a worker, with the fleet's own login. Raises: OSError, ClientError."""
        from flowshare.client.net.tcp import open_tcp

        return await open_tcp(
            host, port, client_id=client_id, clock=self._clock, settings=settings, security=self._secured.own
        )

    def stats(self) -> Mapping[str, Any]:
        """Return counters and gauges of the share-partitions that this worker leads."""
        return {} if self.worker is None else self.worker.stats()


def of_brokers(request: Any) -> bool:
    """Tell if Kafka's brokers answer a request, not the fleet's workers: topics, records, producers, consumer
    groups."""
    if isinstance(request, m.FindCoordinatorRequest):
        return request.kind == "transaction"
    api = request.api
    return (api is not None and api.key not in OF_WORKERS) or getattr(request, "resource_type", "") == "topic"


class FleetConnection(ClusterConnection):
    """A connection to a fleet's workers; requests for Kafka's brokers go to the brokers."""

    def __init__(self, workers: Cluster, client_id: str, brokers: ClusterConnection) -> None:
        super().__init__(workers, client_id)
        self._brokers = brokers

    async def _send(self, request: Any) -> Any:
        if isinstance(request, m.DescribeConfigsRequest) and request.resource_type == "broker" and request.resource:
            # The id in the request is from Kafka's brokers. Any worker knows the settings, which are the same for all.
            nodes = (await super()._send(m.MetadataRequest(topics=()))).nodes
            request = replace(request, resource=str(min(nodes)))
        if isinstance(request, m.CooperativeDeleteRequest) and request.topics is None:
            # The group is the brokers', its state a worker's; nothing else deletes the group at the brokers.
            told = await self._brokers.send(m.DeleteGroupsRequest(group_ids=(request.group_id,)))
            (group,) = told.groups
            if group.error not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                return m.CooperativeDeleteResponse(error=group.error, message=group.message)
        if isinstance(request, m.DeleteGroupsRequest):
            return await self._delete_groups(request)
        return await (self._brokers.send(request) if of_brokers(request) else super()._send(request))

    async def _delete_groups(self, request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
        """Delete share groups of the workers, and consumer groups of the brokers, by name.

        Share groups of the brokers stay: delete them with another `share=` in the URL.
        """
        told: m.DeleteGroupsResponse = await super()._send(request)
        unknown = {group.group_id for group in told.groups if group.error is ErrorCode.GROUP_ID_NOT_FOUND}
        if not unknown:
            return told
        listed = (await self._brokers.send(m.ListGroupsRequest())).groups
        theirs = tuple(
            group.group_id for group in listed if group.group_id in unknown and group.type.lower() != "share"
        )
        if not theirs:
            return told
        answer = await self._brokers.send(m.DeleteGroupsRequest(group_ids=theirs))
        found = {group.group_id: group for group in answer.groups}
        return m.DeleteGroupsResponse(groups=tuple(found.get(group.group_id, group) for group in told.groups))

    async def close(self) -> None:
        """Close both kinds of connections."""
        await self._brokers.close()
        await super().close()


async def _who(connection: NodeConnection) -> int:
    """Return the node id of the worker at the other end. Raises: OSError, ClientError."""
    from flowshare.fleet.messages import WhoRequest

    told = await connection.send(WhoRequest())
    check(told.error, told.message, "asking a worker who it is")
    return told.node_id
