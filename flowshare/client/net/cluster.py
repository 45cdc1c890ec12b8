"""`Cluster`: several brokers as one: finds leaders and coordinators, and opens connections to brokers.

All clients of the process share what one of them learns of the cluster. Sockets are not shared: a broker answers the
requests of one connection strictly one after another, so each `ClusterConnection` and each share session has its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

from flowshare.client.errors import AnotherBroker, ClientError, NotConnected, ServerError
from flowshare.client.net.connections import LocalConnection
from flowshare.client.net.routing import ClusterConnection
from flowshare.client.net.topology import NOBODY, Address, Topology
from flowshare.client.settings import LinkSettings
from flowshare.protocol.client_software import MEANT_FROM
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import FindCoordinatorRequest, MetadataRequest
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.net.connections import FreshAddresses, Local, NodeConnection, OpenNode, Who
    from flowshare.client.net.security import Security
    from flowshare.clock import Clock
    from flowshare.protocol.declaration import CoordinatorKind
    from flowshare.protocol.messages import MetadataResponse, Request

R = TypeVar("R")

REFRESH_PAUSE_S: Final = 0.1
"""The shortest time, in seconds, between two look-ups of the same topics: many partitions may move at once."""

TRY_S: Final = 1.0
"""The time limit, in seconds, to connect to a worker of a fleet when any will do and others can be tried."""
OPEN_S: Final = 5.0
"""The time limit, in seconds, to connect to a certain worker."""
LOOK_S: Final = 2.0
"""The time limit, in seconds, for a worker's answer about leaders."""
FAILED_MAX: Final = 100

logger = logging.getLogger(__name__)


class Cluster:
    """A client's view of a cluster, and its connections to the brokers. Call all methods on one event loop."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        clock: Clock,
        client_id: str = "flowshare",
        settings: LinkSettings | None = None,
        security: Security | None = None,
        open_node: OpenNode | None = None,
        local: Mapping[int, Local] | None = None,
        fresh_addresses: FreshAddresses | None = None,
        worker: int | None = None,
        who: Who | None = None,
        outdated: Callable[[], bool] | None = None,
        own_address: str | None = None,
    ) -> None:
        """bootstrap: `host:port` of brokers to ask first. open_node: opens connections; None: TCP.

        For fleets: local: servers of this process by their node ids, reached without sockets and asked first; read at
        each opening, so it may change. fresh_addresses: finds addresses when no known one answers. worker: node id of
        this process's own worker, sent to the others. own_address: the address of that worker. who: asks a server for
        its node id. outdated: tells if this process's own worker has lost touch, so that others know leaders and
        coordinators better.
        """
        self.set_bootstrap(bootstrap)
        self._local: Mapping[int, Local] = {} if local is None else local
        self._fresh_addresses = fresh_addresses
        self._failed: dict[Address, int] = {}
        """Addresses of a fleet that gave no answer lately, in the order of their failures: they are tried last."""
        self._reached: WeakKeyDictionary[NodeConnection, Address] = WeakKeyDictionary()
        self._client_id = client_id
        self._open_given = open_node
        self._open = open_node or self._open_tcp
        self._security = security
        self._worker = worker
        self._who = who
        self._outdated = outdated or (lambda: False)
        self._own_address = None if own_address is None else _address(own_address)
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._looked: dict[tuple[str, ...] | None, float] = {}
        self._looking: dict[tuple[str, ...] | None, asyncio.Task[None]] = {}
        self._own: ClusterConnection | None = None
        self._others: ClusterConnection | None = None
        self._alone_until_s = 0.0
        """The time until which this process's own worker is asked, even if outdated, as no other was reached; monotonic
        seconds."""
        self.clock = clock
        self.settings = settings or LinkSettings()
        self.topology = Topology()
        self.api_versions: Mapping[int, tuple[int, int]] = {}
        """The APIs of the first broker that answered, with their lowest and highest version."""
        self.is_flowshare = False
        """True if that broker is one of flowshare's own servers."""

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the brokers, within connect_timeout. Raises: NotConnected, ClientError (a retry does not help)."""
        deadline_s = self.clock.monotonic() + self.settings.connect_timeout
        tries = 0
        while True:
            tries += 1
            try:
                return await self.look(())
            except OSError as error:
                if tries == 1:
                    logger.warning("no broker answers, trying for %g s: %s", self.settings.connect_timeout, error)
                pause_s = self.settings.backoff.after(tries)
                if self.clock.monotonic() + pause_s >= deadline_s:
                    raise
                await self.clock.sleep(pause_s)

    async def close(self) -> None:
        """Close the cluster's own connections, but not those that clients have opened."""
        own = [one for one in (self._own, self._others) if one is not None]
        self._own = self._others = None
        await cancelled(*self._looking.values())
        for one in own:
            await one.close()

    def set_bootstrap(self, bootstrap: Sequence[str]) -> None:
        """Replace the brokers to ask first, as `host:port`; open connections stay open."""
        self._bootstrap = [_address(text) for text in bootstrap]

    def connect(self, client_id: str) -> ClusterConnection:
        """Return a connection to the cluster as a whole; its sockets are opened as they are needed."""
        return ClusterConnection(self, client_id)

    def apart(self, settings: LinkSettings, *, turn: int = 0) -> Cluster:
        """Return the same brokers over separate connections, for a client that cannot wait as long as others do.

        turn: selects the broker that is asked first.
        """
        found = Cluster(
            (),
            clock=self.clock,
            client_id=self._client_id,
            settings=settings,
            security=self._security,
            open_node=self._open_given,
        )
        known = list(dict.fromkeys([*self.topology.nodes.values(), *self._bootstrap]))
        first = turn % len(known)
        found._bootstrap = known[first:] + known[:first]
        return found

    # --- reaching nodes -----------------------------------------------------------------------------------------

    async def open_node(self, node_id: int, client_id: str) -> NodeConnection:
        """Open a connection to one broker. Raises: NotConnected (not known, not reachable), ClientError."""
        if node_id in self._local:
            return await self._open_local(node_id, client_id)
        address = self.topology.nodes.get(node_id)
        if address is None:
            await self.look(())
            address = self.topology.nodes.get(node_id)
        if address is None:
            raise NotConnected(f"broker {node_id} is not among the cluster's brokers now")
        if not self.in_fleet:
            return await self._open_at(address, client_id, node_id)
        try:
            return await self.clock.wait_for(self._open_worker(node_id, address, client_id), OPEN_S)
        except TimeoutError:
            raise NotConnected(f"worker {node_id} cannot be connected to within {OPEN_S:g} s") from None

    async def _open_worker(self, node_id: int, address: Address, client_id: str) -> NodeConnection:
        """Open a connection to a worker, and check its node id: another worker may be at the address by now, with which
        the client may have a session already."""
        connection = await self._open_at(address, client_id, node_id)
        if self._who is None:
            return connection
        try:
            found = await self._who(connection)
        except BaseException:
            await connection.close()
            raise
        if found == node_id:
            return connection
        await connection.close()
        raise NotConnected(f"worker {node_id} is gone: worker {found} is at {address[0]}:{address[1]}")

    async def open_any(self, client_id: str) -> NodeConnection:
        """Open a connection to any broker that can be reached. Raises: NotConnected, ClientError."""
        return await self._open_own(client_id) or await self._open_other(client_id, set())

    async def open_other(self, client_id: str) -> NodeConnection:
        """Open a connection to a worker of another process. Raises: NotConnected, ClientError."""
        tried = {address for node_id, address in self.topology.nodes.items() if node_id in self._local}
        if self._own_address is not None:
            tried.add(self._own_address)
        return await self._open_other(client_id, tried)

    async def _open_own(self, client_id: str) -> NodeConnection | None:
        """Open a connection to a server of this process; None: none is available. Raises: ClientError."""
        for node_id in tuple(self._local):
            try:
                return await self._open_local(node_id, client_id)
            except OSError as error:
                logger.debug("the server of this process is not to be had: %s", error)
        return None

    async def _open_other(self, client_id: str, tried: set[Address]) -> NodeConnection:
        """Open a connection to any broker not tried yet. Raises: NotConnected, ClientError."""
        try:
            return await self._open_first(tried, client_id, last_resort=self._fresh_addresses is None)
        except NotConnected:
            if self._fresh_addresses is None:
                raise
            self.set_bootstrap(await self._fresh_addresses())
            if tried.issuperset(self._bootstrap):
                raise
        return await self._open_first(tried, client_id, last_resort=True)

    async def _open_first(self, tried: set[Address], client_id: str, *, last_resort: bool) -> NodeConnection:
        """Open a connection to the first address that answers, of those not tried yet.

        last_resort: there are no other addresses, so the last one may take its full time.
        Raises: NotConnected, ClientError.
        """
        known = dict.fromkeys([*self.topology.nodes.values(), *self._bootstrap])
        untried = sorted((one for one in known if one not in tried), key=lambda one: self._failed.get(one, 0))
        problem: OSError | None = None
        for address in untried:
            tried.add(address)
            opening = self._open_at(address, client_id, self.topology.node_at(address))
            try:
                others = address != untried[-1] or not last_resort
                return await (self.clock.wait_for(opening, TRY_S) if others and self.in_fleet else opening)
            except AnotherBroker as error:
                problem = error
                if address in self._bootstrap:
                    untried.append(address)  # where to look for the brokers anew, last and whoever is there
            except OSError as error:  # TimeoutError is one
                self._did_not_answer(address)
                problem = error
        if problem is None:
            raise NotConnected("there is no other address to connect to")
        raise NotConnected(str(problem) or f"none of {len(untried)} workers can be connected to") from problem

    @property
    def in_fleet(self) -> bool:
        """True if the servers are workers. Workers come and go, so the client waits only briefly for each."""
        return self.is_flowshare or self._fresh_addresses is not None

    def _did_not_answer(self, address: Address) -> None:
        if self.in_fleet:
            self._failed[address] = 1 + max(self._failed.values(), default=0)
            if len(self._failed) > FAILED_MAX:
                del self._failed[min(self._failed, key=self._failed.__getitem__)]

    async def _open_at(self, address: Address, client_id: str, node_id: int) -> NodeConnection:
        """Open a connection to an address. node_id: the broker that is meant; NOBODY: any. Raises: AnotherBroker."""
        meant = self._meant(node_id)
        try:
            opening = self._open(*address, client_id) if meant is None else self._open_tcp(*address, client_id, meant)
            connection = await opening
        except AnotherBroker as error:
            logger.warning("%s; looking for the brokers anew", error)
            if self.topology.nodes.get(node_id) == address:
                del self.topology.nodes[node_id]
            raise
        self._reached[connection] = address
        self._look_at(connection)
        return connection

    def _meant(self, node_id: int) -> tuple[str, int] | None:
        """The cluster and node that a connection is meant for, sent so that a broker of another cluster says so
        (KIP-1242). None: send nothing.

        Connections other than TCP have their own check: a fleet's workers are asked who they are, a path has its login.
        """
        cluster_id = self.topology.cluster_id
        knows = self.api_versions.get(ApiKey.API_VERSIONS, (0, 0))[1] >= MEANT_FROM
        return (cluster_id, node_id) if cluster_id and node_id != NOBODY and knows and not self._open_given else None

    async def _open_local(self, node_id: int, client_id: str) -> NodeConnection:
        connection = LocalConnection(await self._local[node_id](client_id))
        self._look_at(connection)
        return connection

    def _look_at(self, connection: NodeConnection) -> None:
        if not self.api_versions:
            self.api_versions = connection.api_versions
            self.is_flowshare = connection.is_flowshare

    async def _open_tcp(
        self, host: str, port: int, client_id: str, meant: tuple[str, int] | None = None
    ) -> NodeConnection:
        from flowshare.client.net.tcp import open_tcp

        return await open_tcp(
            host,
            port,
            client_id=client_id,
            clock=self.clock,
            settings=self.settings,
            security=self._security,
            worker=self._worker,
            meant=meant,
        )

    def learn(self, answer: MetadataResponse) -> None:
        """Take in a broker's facts on the cluster."""
        before = self.topology.cluster_id
        self.topology.apply(answer)
        if before is not None and self.topology.cluster_id != before:
            logger.warning("the brokers are of cluster %s now, not %s", self.topology.cluster_id, before)
            self._coordinators.clear()

    def _ours(self) -> ClusterConnection:
        if self._own is None:
            self._own = self.connect(self._client_id)
        return self._own

    def _theirs(self) -> ClusterConnection:
        if self._others is None:
            self._others = ClusterConnection(self, self._client_id, open_any=self.open_other)
        return self._others

    # --- who leads ----------------------------------------------------------------------------------------------

    async def look(self, topics: tuple[str, ...] | None) -> None:
        """Look up brokers and the leaders of these topics (None: of all); concurrent callers share the request.

        Raises: NotConnected, ConnectionLost.
        """
        task = self._looking.get(topics)
        if task is None:
            task = self._looking[topics] = asyncio.create_task(self._look(topics), name="cluster metadata")
            task.add_done_callback(lambda _: self._looking.pop(topics, None))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():  # nobody cancelled the caller
                raise NotConnected("the connection to the cluster is closed") from None
            raise

    async def _look(self, topics: tuple[str, ...] | None) -> None:
        since_s = self.clock.monotonic() - self._looked.get(topics, -REFRESH_PAUSE_S)
        if since_s < REFRESH_PAUSE_S:
            await self.clock.sleep(REFRESH_PAUSE_S - since_s)
        try:
            await self._ask(MetadataRequest(topics=topics))
        finally:
            self._looked[topics] = self.clock.monotonic()

    async def _ask(self, request: Request[R]) -> R:
        """Send a request that any broker can answer. A worker of a fleet that is too slow is not asked again.
        Raises: NotConnected, …
        """
        if not self.in_fleet:
            return await self._ours().send(request)
        if self._outdated() and self.clock.monotonic() >= self._alone_until_s:
            others = self._theirs()
            try:
                await self.clock.wait_for(others.reach(), LOOK_S)
                return await self._ask_over(others, request)
            except OSError as error:  # TimeoutError is one
                logger.info("no other worker says who leads what: %s", error or "none was reached in time")
                self._alone_until_s = self.clock.monotonic() + LOOK_S
        return await self._ask_over(self._ours(), request)

    async def _ask_over(self, line: ClusterConnection, request: Request[R]) -> R:
        address = self._reached.get(await line.reach())
        try:
            answer = await self.clock.wait_for(line.send(request), LOOK_S)
        except TimeoutError:
            if address is not None:
                self._did_not_answer(address)
            if self._own is line:
                self._own = None
            if self._others is line:
                self._others = None
            await line.close()
            raise NotConnected(f"no worker answered {type(request).__name__} within {LOOK_S:g} s") from None
        if address is not None:
            self._failed.pop(address, None)
        return answer

    async def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; NOBODY: it has no leader now. Raises: as `look`."""
        if self.topology.leader(topic, partition) == NOBODY:
            await self.look((topic,))
        return self.topology.leader(topic, partition)

    async def look_for(self, topics: Sequence[str]) -> None:
        """Look up the leaders of these topics again; if that fails, the known leaders stay."""
        try:
            await self.look(tuple(sorted(topics)))
        except (OSError, ClientError) as error:
            logger.info("the leaders of %s cannot be looked up now: %s", ", ".join(topics), error)

    # --- who coordinates ----------------------------------------------------------------------------------------

    async def coordinator(self, key: str, kind: CoordinatorKind = "group") -> int:
        """Return the node that coordinates a group or a transactional id; NOBODY: there is none at the moment.

        Raises: ServerError (not allowed), NotConnected, ConnectionLost.
        """
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        answer = await self._ask(FindCoordinatorRequest(key=key, kind=kind))
        if answer.error is ErrorCode.NONE:
            self.topology.nodes[answer.node_id] = answer.host, answer.port
            self._coordinators[kind, key] = answer.node_id
            return answer.node_id
        error = ServerError(answer.error, answer.message, about=f"finding the coordinator of {kind} {key}")
        if not error.retriable:
            raise error
        logger.info("%s", error)
        return NOBODY

    def forget_coordinator(self, key: str, kind: CoordinatorKind = "group") -> None:
        """Forget a coordinator that turned out to be wrong."""
        self._coordinators.pop((kind, key), None)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host:
        return text.strip("[]"), 9092
    return host.strip("[]"), int(port)
