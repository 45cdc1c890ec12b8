"""`Cluster`: several brokers as one thing to talk to: who leads, who coordinates, how each is reached.

What one client learns of the cluster all others of the process know. Sockets are not shared: a broker answers the
requests of one connection strictly one after another, so each `ClusterConnection` and each share session has its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from flowshare.client.errors import ClientError, NotConnected, ServerError
from flowshare.client.routing import ClusterConnection
from flowshare.client.settings import LinkSettings
from flowshare.client.topology import NOBODY, Address, Topology
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import FindCoordinatorRequest, MetadataRequest

if TYPE_CHECKING:
    from flowshare.client.security import Security
    from flowshare.clock import Clock
    from flowshare.protocol.messages import TopicPartition

REFRESH_PAUSE_S: Final = 0.1
"""Least time between two looks at the same topics: many partitions may find out at once that they moved."""

logger = logging.getLogger(__name__)


class NodeConnection(Protocol):
    """A connection to one broker that says what it is."""

    api_versions: Mapping[int, tuple[int, int]]
    is_flowshare: bool

    async def send(self, request: Any) -> Any:
        """As `Connection.send`."""
        ...

    async def close(self) -> None:
        """As `Connection.close`."""


OpenNode = Callable[[str, int, str], Awaitable[NodeConnection]]
"""(host, port, client id) -> a new connection. Raises OSError when trying again may help, else ClientError."""


class Cluster:
    """What is known of a cluster and how its brokers are reached; on one event loop."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        clock: Clock,
        client_id: str = "flowshare",
        settings: LinkSettings | None = None,
        security: Security | None = None,
        open_node: OpenNode | None = None,
    ) -> None:
        """bootstrap: `host:port` of brokers to ask first. open_node: opens connections; None: TCP."""
        self._bootstrap = [_address(text) for text in bootstrap]
        self._client_id = client_id
        self._open = open_node or self._open_tcp
        self._security = security
        self._coordinators: dict[str, int] = {}
        self._looked: dict[tuple[str, ...] | None, float] = {}
        self._looking: dict[tuple[str, ...] | None, asyncio.Task[None]] = {}
        self._own: ClusterConnection | None = None
        self.clock = clock
        self.settings = settings or LinkSettings()
        self.topology = Topology()
        self.api_versions: Mapping[int, tuple[int, int]] = {}
        """APIs of the first broker that answered, with their lowest and highest version."""
        self.is_flowshare = False
        """Whether that broker is one of flowshare's own servers."""

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the brokers, within connect_timeout_s. Raises: NotConnected, ClientError (trying again is no use)."""
        deadline_s = self.clock.monotonic() + self.settings.connect_timeout_s
        pause_s = self.settings.backoff_min_s
        told = False
        while True:
            try:
                await self.look(())
            except OSError as error:
                if not told:
                    told = True
                    limit_s = self.settings.connect_timeout_s
                    logger.warning("no broker answers, trying for %g s: %s", limit_s, error)
                if self.clock.monotonic() + pause_s >= deadline_s:
                    raise
                await self.clock.sleep(pause_s)
                pause_s = min(2 * pause_s, self.settings.backoff_max_s)
            else:
                return

    async def close(self) -> None:
        """Close the cluster's own connection; those of others are theirs."""
        own, self._own = self._own, None
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        if own is not None:
            await own.close()

    def connect(self, client_id: str) -> ClusterConnection:
        """A connection to the cluster as a whole; its sockets are opened as they are needed."""
        return ClusterConnection(self, client_id)

    # --- reaching nodes -----------------------------------------------------------------------------------------

    async def open_node(self, node_id: int, client_id: str) -> NodeConnection:
        """A new connection to one broker. Raises: NotConnected (not known, not reachable), ClientError."""
        address = self.topology.nodes.get(node_id)
        if address is None:
            await self.look(())
            address = self.topology.nodes.get(node_id)
        if address is None:
            raise NotConnected(f"broker {node_id} is not among the cluster's brokers now")
        return await self._open_at(address, client_id)

    async def open_any(self, client_id: str) -> NodeConnection:
        """A new connection to whichever broker can be reached. Raises: NotConnected, ClientError."""
        addresses = dict.fromkeys([*self.topology.nodes.values(), *self._bootstrap])
        problem: OSError | None = None
        for address in addresses:
            try:
                return await self._open_at(address, client_id)
            except OSError as error:
                problem = error
        assert problem is not None
        raise NotConnected(str(problem)) from problem

    async def _open_at(self, address: Address, client_id: str) -> NodeConnection:
        connection = await self._open(address[0], address[1], client_id)
        if not self.api_versions:
            self.api_versions = connection.api_versions
            self.is_flowshare = connection.is_flowshare
        return connection

    async def _open_tcp(self, host: str, port: int, client_id: str) -> NodeConnection:
        from flowshare.client.tcp import open_tcp

        return await open_tcp(
            host, port, client_id=client_id, clock=self.clock, settings=self.settings, security=self._security
        )

    def _ours(self) -> ClusterConnection:
        if self._own is None:
            self._own = self.connect(self._client_id)
        return self._own

    # --- who leads ----------------------------------------------------------------------------------------------

    async def look(self, topics: tuple[str, ...] | None) -> None:
        """Ask for brokers and the leaders of these topics (None: of all); who asks meanwhile gets the same answer.

        Raises: NotConnected, ConnectionLost.
        """
        task = self._looking.get(topics)
        if task is None:
            task = self._looking[topics] = asyncio.create_task(self._look(topics), name="cluster metadata")
            task.add_done_callback(lambda _: self._looking.pop(topics, None))
        await asyncio.shield(task)

    async def _look(self, topics: tuple[str, ...] | None) -> None:
        since_s = self.clock.monotonic() - self._looked.get(topics, -REFRESH_PAUSE_S)
        if since_s < REFRESH_PAUSE_S:
            await self.clock.sleep(REFRESH_PAUSE_S - since_s)
        try:
            await self._ours().send(MetadataRequest(topics=topics))
        finally:
            self._looked[topics] = self.clock.monotonic()

    async def leader(self, topic: str, partition: int) -> int:
        """Node that leads a partition, NOBODY when it has none now. Raises: as `look`."""
        if self.topology.leader(topic, partition) == NOBODY:
            await self.look((topic,))
        return self.topology.leader(topic, partition)

    def leader_of(self, tp: TopicPartition) -> int:
        """Node that leads a partition as far as it is known; NOBODY: `look_for` finds it."""
        return self.topology.leader_of(tp)

    async def look_for(self, topics: Sequence[str]) -> None:
        """Find out again who leads the partitions of these topics; what cannot be found out stays as it was."""
        try:
            await self.look(tuple(sorted(topics)))
        except (OSError, ClientError) as error:
            logger.info("the leaders of %s cannot be looked up now: %s", ", ".join(topics), error)

    def moved(self, tp: TopicPartition, leader: tuple[int, int], endpoints: Mapping[int, Address]) -> bool:
        """A broker says that it does not lead a partition, and who does; False: `look_for` has to find out."""
        return self.topology.hint(tp, leader, endpoints)

    # --- who coordinates ----------------------------------------------------------------------------------------

    async def coordinator(self, group_id: str) -> int:
        """Node that coordinates a group; NOBODY: there is none at the moment.

        Raises: ServerError (not allowed), NotConnected, ConnectionLost.
        """
        known = self._coordinators.get(group_id)
        if known is not None:
            return known
        answer = await self._ours().send(FindCoordinatorRequest(group_id=group_id))
        if answer.error is ErrorCode.NONE:
            self.topology.nodes[answer.node_id] = answer.host, answer.port
            self._coordinators[group_id] = answer.node_id
            return answer.node_id
        error = ServerError(answer.error, answer.message, about=f"finding the coordinator of group {group_id}")
        if not error.retriable:
            raise error
        logger.info("%s", error)
        return NOBODY

    def forget_coordinator(self, group_id: str) -> None:
        """It turned out to be another one."""
        self._coordinators.pop(group_id, None)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host:
        return text.strip("[]"), 9092
    return host.strip("[]"), int(port)
