"""`ClusterConnection`: a `Connection` to a whole cluster, which sends each request to the right broker.

That is the coordinator of the group or the transactional id, the partition's leader, the controller, a certain broker,
all of them, or any. A broker that says it is the wrong one (NOT_COORDINATOR, NOT_LEADER_OR_FOLLOWER, …) did nothing, so
the request goes to the right one; a request that may have been carried out is never sent twice. ShareFetch and
ShareAcknowledge belong to a session with one broker and do not come this way (`client.session`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from flowshare.backoff import Backoff
from flowshare.client.errors import NO_COORDINATOR, ClientError, ConnectionLost, NotConnected, Unsupported
from flowshare.client.net.topology import NOBODY
from flowshare.protocol import messages
from flowshare.protocol.declaration import ANY, To
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.browse import ShareChangesRequest, ShareChangesResponse

if TYPE_CHECKING:
    from flowshare.client.net.cluster import Cluster
    from flowshare.client.net.connections import NodeConnection
    from flowshare.protocol.declaration import CoordinatorKind
    from flowshare.protocol.messages import Request
    from flowshare.protocol.messages.base import FinishedRequest

R = TypeVar("R")
Find = Callable[[], Awaitable[int]]

NOT_YET: Final = NO_COORDINATOR | {ErrorCode.CONCURRENT_TRANSACTIONS}
"""Errors of a coordinator of transactions that did nothing: another one coordinates, or an earlier request is still
being written."""
WRONG_LEADER: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.LEADER_NOT_AVAILABLE}
)
WRONG_CONTROLLER: Final = frozenset({ErrorCode.NOT_CONTROLLER})
CREATED_S_MAX: Final = 5.0
"""The longest wait, in seconds, for a new topic."""
JOIN_S: Final = 10.0
"""The time limit, in seconds, for the answer of a fleet's worker that coordinates a group to a member that joins."""
BEAT_S: Final = 2.0
"""The time limit, in seconds, for a heartbeat without news: a worker that stands still keeps its connections, and its
successor waits only seconds for its members."""
FLEET_PAUSE_S: Final = 0.5
"""The longest pause, in seconds, between two look-ups of the next coordinator in a fleet, which waits only seconds for
its members."""
BUSY: Final = Backoff(0.001, 0.05)
"""The pauses before a busy coordinator of transactions is asked again: it needs milliseconds."""
RETRY_S_MAX: Final = 10.0
"""The longest search, in seconds, for the right broker, within the request's own time limit."""


class ClusterConnection:
    """One client's connections to the brokers of a cluster, opened as they are needed."""

    def __init__(
        self,
        cluster: Cluster,
        client_id: str,
        *,
        open_any: Callable[[str], Awaitable[NodeConnection]] | None = None,
    ) -> None:
        """open_any: opens, for a client id, the connection for requests that any broker answers; None: the cluster's
        own way."""
        self.cluster = cluster
        self.client_id = client_id
        self.keeps_time = False
        self._open_any = open_any or cluster.open_any
        self._nodes: dict[int, NodeConnection] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._closed = False
        self._closings: set[asyncio.Future[None]] = set()
        self._on_lost: Callable[[], object] | None = None

    @property
    def is_flowshare(self) -> bool:
        """True if the brokers are flowshare's own servers."""
        return self.cluster.is_flowshare

    def on_lost(self, listener: Callable[[], object]) -> None:
        """Set a callback for the case that a broker, not this end, ends an open connection."""
        self._on_lost = listener
        for node, connection in self._nodes.items():
            self._listen(node, connection, listener)

    def _listen(self, node: int, connection: NodeConnection, listener: Callable[[], object]) -> None:
        def ended(_: str) -> None:
            if self._nodes.get(node) is connection:
                del self._nodes[node]
                listener()

        connection.on_closed(ended)

    async def send(self, request: Request[R]) -> R:
        """Send a request to its broker, and return the answer.

        Raises: NotConnected (never sent), ConnectionError, ServerError, ClientError.
        """
        return cast("R", await self._send(request))

    def begin(self, request: Request[Any], told: Callable[[FinishedRequest], object]) -> None:
        """Begin a request as `Connection.begin`; a record batch goes straight to its partition's leader if that is
        connected."""
        if isinstance(request, messages.ProduceRequest):
            node = self.cluster.topology.leader(request.topic, request.partition)
            connection = self._nodes.get(node)
            if connection is not None:
                connection.begin(request, partial(self._straight, node, connection, request, told))
                return
        asyncio.ensure_future(self._send(request)).add_done_callback(told)

    def _straight(
        self,
        node: int,
        connection: NodeConnection,
        request: Request[Any],
        told: Callable[[FinishedRequest], object],
        finished: FinishedRequest,
    ) -> None:
        """Take in the answer of a leader that was known without a search. If another node leads by now, search for it
        and ask again."""
        try:
            moved = not WRONG_LEADER.isdisjoint(_errors(finished.result()))
        except OSError:
            moved = False
            if self._nodes.get(node) is connection:
                del self._nodes[node]
            closing = asyncio.ensure_future(connection.close())
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
        except ClientError:
            moved = False
        if moved:
            asyncio.ensure_future(self._send(request)).add_done_callback(told)
        else:
            told(finished)

    async def to_coordinator(self, request: Any, key: str, kind: CoordinatorKind = "group") -> Any:
        """Send any request to the broker that coordinates a group or a transactional id. Raises: as `send`."""

        async def wrong() -> None:
            self.cluster.forget_coordinator(key, kind)

        find, signs = partial(self.cluster.coordinator, key, kind), NO_COORDINATOR if kind == "group" else NOT_YET
        try:
            return await self._until_right(request, find, wrong, signs, f"coordinator of {kind} {key}")
        except OSError:
            await wrong()  # the next request asks who it is: one that is not reached may be another one by now
            raise

    async def reach(self) -> NodeConnection:
        """Return a connection to any broker, opened if needed. Raises: NotConnected, ClientError."""
        return await self._node(next(iter(self._nodes), NOBODY))

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        nodes, self._nodes = self._nodes, {}
        for connection in nodes.values():
            await connection.close()

    # --- where to -----------------------------------------------------------------------------------------------

    async def _send(self, request: Any) -> Any:  # noqa: C901 - one case for each way
        api = request.api
        own = request.own
        route = api.route if api is not None else ANY if own is None else own.route
        key = None if route.key is None else route.key(request)
        match route.to:
            case To.COORDINATOR if key is not None:
                return await self.to_coordinator(request, key, route.kind)
            case To.COORDINATORS:
                return await self._to_each_group(request)
            case To.LEADER:
                return await self._to_leader(request, request.topic, request.partition)
            case To.LEADERS:
                return await self._to_leaders(request)
            case To.CONTROLLER if isinstance(request, messages.CreateTopicRequest):
                return await self._create(request)
            case To.CONTROLLER:
                return await self._to_controller(request)
            case To.ALL:
                return await self._to_all(request)
            case To.BROKER if key is not None:
                if isinstance(request, ShareChangesRequest):
                    return await self._told_by(request, key)
                return await self._to_node(request, key)
            case To.SESSION:
                raise AssertionError("share sessions are with one broker: client.session sends their requests")
            case _:
                answer = await self._to_any(request)
                if isinstance(answer, messages.MetadataResponse):
                    self.cluster.learn(answer)
                return answer

    async def _told_by(self, request: ShareChangesRequest, node: int) -> ShareChangesResponse:
        """Ask one of several nodes for its own share changes. If the node is not reached, the answer says so: neither
        this connection nor those to other nodes count as lost."""
        try:
            return cast("ShareChangesResponse", await self._to_node(request, node))
        except Unsupported:
            raise
        except (OSError, ClientError) as error:
            return ShareChangesResponse(error=ErrorCode.BROKER_NOT_AVAILABLE, message=str(error))

    async def _to_leader(self, request: Any, topic: str, partition: int) -> Any:
        find, wrong = partial(self.cluster.leader, topic, partition), partial(self.cluster.look_for, (topic,))
        if await find() == NOBODY and not self.cluster.topology.knows(topic):
            return await self._to_any(request)  # there is no such topic: any broker says so
        return await self._until_right(request, find, wrong, WRONG_LEADER, f"leader of {topic}-{partition}")

    async def _to_controller(self, request: Any) -> Any:
        """Send to the controller: in a cluster with ZooKeeper, others refuse the request; later brokers pass it on."""
        cluster = self.cluster

        async def find() -> int:
            return cluster.topology.controller

        if await find() == NOBODY:
            return await self._to_any(request)
        return await self._until_right(request, find, partial(cluster.look_for, ()), WRONG_CONTROLLER, "controller")

    async def _until_right(
        self,
        request: Any,
        find: Find,
        wrong: Callable[[], Awaitable[None]],
        signs: frozenset[ErrorCode],
        what: str,
    ) -> Any:
        """Send to the node that `find` names, until a node does not answer with one of `signs` (wrong node, or
        busy)."""
        clock, settings = self.cluster.clock, self.cluster.settings
        deadline_s = clock.monotonic() + min(RETRY_S_MAX, settings.request_timeout / 2)
        busy_tries, wrong_tries, answer, problem = 0, 0, None, "nobody is"
        pause_s_max = FLEET_PAUSE_S if self.cluster.in_fleet else settings.backoff.most
        while True:
            node, errors = await find(), set[ErrorCode]()
            if node != NOBODY:
                try:
                    connection = await self._node(node)
                except NotConnected as error:
                    problem = str(error)
                else:
                    answer = await self._over(node, connection, request)
                    errors = _errors(answer)
                    if not signs.intersection(errors):
                        return answer
            if busy := ErrorCode.CONCURRENT_TRANSACTIONS in errors:
                busy_tries += 1
                wait_s = BUSY.after(busy_tries)
            else:
                wrong_tries += 1
                wait_s = min(settings.backoff.after(wrong_tries), pause_s_max)
            if clock.monotonic() + wait_s >= deadline_s:
                break
            await clock.sleep(wait_s)
            if not busy:
                await wrong()
        if answer is not None:
            return answer
        raise NotConnected(f"{what}: {problem}")

    async def _create(self, request: messages.CreateTopicRequest) -> Any:
        """Create a topic, and wait until it can be used: brokers learn of it a moment after it was created."""
        clock = self.cluster.clock
        answer = await self._to_controller(request)
        if request.validate_only:
            return answer
        deadline_s = clock.monotonic() + CREATED_S_MAX
        while answer.error is ErrorCode.NONE and clock.monotonic() < deadline_s:
            found = await self._send(messages.MetadataRequest(topics=(request.name,)))
            if all(topic.error is ErrorCode.NONE and NOBODY not in topic.leaders for topic in found.topics):
                break
            await clock.sleep(self.cluster.settings.backoff.first)
        return answer

    async def _to_each_group(self, request: messages.DeleteGroupsRequest) -> messages.DeleteGroupsResponse:
        found: list[messages.GroupResult] = []
        for group_id in request.group_ids:
            answer = await self.to_coordinator(replace(request, group_ids=(group_id,)), group_id)
            found += answer.groups
        return messages.DeleteGroupsResponse(groups=tuple(found))

    async def _to_leaders(self, request: messages.FetchRequest) -> messages.FetchResponse:
        """Send one request to each leader, all at the same time; return the answers in the order of the question.

        Partitions whose leader has changed, is not reached or is not known are asked for again, alone; so are
        partitions that a quota held back, when its time is over. Once any partition has been read, no other waits for
        an election: one without a leader gets LEADER_NOT_AVAILABLE.
        Raises: NotConnected: no partition has a leader that is reached, for as long as is looked for one.
        """
        clock, settings, topology = self.cluster.clock, self.cluster.settings, self.cluster.topology
        deadline_s = clock.monotonic() + min(RETRY_S_MAX, settings.request_timeout / 2)
        tries, asked, found = 0, request.partitions, dict[tuple[str, int], messages.FetchedLog]()
        problem: NotConnected | None = None
        while True:
            throttle_ms = 0
            leaders = {part: topology.leader(part.topic, part.partition) for part in asked}
            answers, new_problem = await self._ask_leaders(replace(request, partitions=asked))
            problem = new_problem or problem
            for answer in answers:
                if answer.error is not ErrorCode.NONE:
                    return answer
                throttle_ms = max(throttle_ms, answer.throttle_ms)
                found.update({(log.topic, log.partition): log for log in answer.partitions})
            errors = {part: _error_of(found.get((part.topic, part.partition))) for part in asked}
            wrong = {part for part in asked if errors[part] in WRONG_LEADER}
            held_back = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            asked = tuple(part for part in asked if part in wrong or errors[part] is held_back)
            some_read = any(log.error is ErrorCode.NONE for log in found.values())
            tries += bool(wrong)
            wait_s = (0.0 if some_read else settings.backoff.after(tries)) if wrong else throttle_ms / 1000
            if not asked or clock.monotonic() + wait_s >= deadline_s:
                break
            await clock.sleep(wait_s)
            if wrong:
                await self.cluster.look_for(sorted({part.topic for part in wrong}))
            if wrong and some_read:
                moved = {part for part in wrong if topology.leader(*part[:2]) not in (NOBODY, leaders[part])}
                asked = tuple(part for part in asked if part not in wrong or part in moved)
                if not asked:
                    break
        if problem is not None and not found:
            raise problem
        return messages.FetchResponse(
            partitions=tuple(
                found.get((part.topic, part.partition))
                or messages.FetchedLog(
                    topic=part.topic,
                    partition=part.partition,
                    error=ErrorCode.LEADER_NOT_AVAILABLE,
                    message=None if problem is None else str(problem),
                )
                for part in request.partitions
            ),
            throttle_ms=throttle_ms,
        )

    async def _ask_leaders(
        self, request: messages.FetchRequest
    ) -> tuple[list[messages.FetchResponse], NotConnected | None]:
        """Try once: return the answers, and the reason if some are missing because no broker can be asked for them
        now."""
        problem: NotConnected | None = None
        by_leader: dict[int, list[messages.FetchPartition]] = {}
        for part in request.partitions:
            leader = await self.cluster.leader(part.topic, part.partition)
            if leader == NOBODY and self.cluster.topology.knows(part.topic):
                problem = NotConnected(f"leader of {part.topic}-{part.partition}: nobody is")
            else:  # of a topic that there is not any broker says so
                by_leader.setdefault(leader, []).append(part)
        told = await asyncio.gather(
            *(
                self._to_any(replace(request, partitions=tuple(parts)))
                if leader == NOBODY
                else self._to_node(replace(request, partitions=tuple(parts)), leader)
                for leader, parts in by_leader.items()
            ),
            return_exceptions=True,  # none is left under way
        )
        answers: list[messages.FetchResponse] = []
        for one in told:
            if isinstance(one, NotConnected):
                problem = one
            elif isinstance(one, BaseException):
                raise one
            else:
                answers.append(one)
        return answers, problem

    async def _to_all(self, request: messages.ListGroupsRequest) -> messages.ListGroupsResponse:
        """Ask all brokers and merge their answers.

        A broker that takes over another broker's groups reports so until it has them. Then all brokers are asked again,
        because the other broker may be gone by now. Raises: NotConnected: a broker is not reached and nobody has its
        groups yet.
        """
        clock, settings = self.cluster.clock, self.cluster.settings
        deadline_s = clock.monotonic() + min(RETRY_S_MAX, settings.request_timeout / 2)
        tries = 0
        while True:
            tries += 1
            await self.cluster.look(())  # a broker that was taken away for good would be asked for ever
            answer = await self._ask_all(request)
            pause_s = settings.backoff.after(tries)
            if answer.error not in NO_COORDINATOR or clock.monotonic() + pause_s >= deadline_s:
                return answer
            await clock.sleep(pause_s)

    async def _ask_all(self, request: messages.ListGroupsRequest) -> messages.ListGroupsResponse:
        """Return the groups of all brokers, or the first error."""
        groups: dict[str, Any] = {}
        for node in sorted(self.cluster.topology.nodes):
            answer = await self._to_node(request, node)
            if answer.error is not ErrorCode.NONE:
                return cast("messages.ListGroupsResponse", answer)
            groups.update({group.group_id: group for group in answer.groups})
        return messages.ListGroupsResponse(groups=tuple(groups.values()))

    async def _to_node(self, request: Any, node: int) -> Any:
        return await self._over(node, await self._node(node), request)

    async def _to_any(self, request: Any) -> Any:
        """Send to a broker with an open connection, else to the first that can be reached."""
        node = next(iter(self._nodes), NOBODY)
        return await self._over(node, await self._node(node), request)

    # --- connections --------------------------------------------------------------------------------------------

    async def _node(self, node: int) -> NodeConnection:
        """Return the connection to a broker (NOBODY: to any), opened if needed. Raises: NotConnected, ClientError."""
        known = self._nodes.get(node)
        if known is not None:
            return known
        async with self._opening.setdefault(node, asyncio.Lock()):
            known = self._nodes.get(node)
            if known is not None:
                return known
            cluster = self.cluster
            opening = self._open_any(self.client_id) if node == NOBODY else cluster.open_node(node, self.client_id)
            connection = await opening
            if self._closed:
                await connection.close()
                raise NotConnected("the connection to the cluster is closed")
            self._nodes[node] = connection
            if self._on_lost is not None:
                self._listen(node, connection, self._on_lost)
            return connection

    async def _over(self, node: int, connection: NodeConnection, request: Any) -> Any:
        try:
            if isinstance(request, messages.ShareGroupHeartbeatRequest) and self.cluster.in_fleet:
                return await self._beat(connection, request)
            return await connection.send(request)
        except OSError:
            if self._nodes.get(node) is connection:
                del self._nodes[node]
            await connection.close()
            raise

    async def _beat(self, connection: NodeConnection, request: Any) -> Any:
        """Send a heartbeat, which may be repeated and must be answered well within the session. Raises:
        ConnectionLost."""
        limit_s = BEAT_S if request.subscribed_topics is None else JOIN_S
        try:
            return await self.cluster.clock.wait_for(connection.send(request), limit_s)
        except TimeoutError:
            raise ConnectionLost(f"the coordinator of {request.group_id} did not answer within {limit_s:g} s") from None


def _errors(answer: Any) -> set[ErrorCode]:
    """Return the errors of an answer, its own and those of its first parts (a request for one group or partition has
    one)."""
    found = {getattr(answer, "error", ErrorCode.NONE)}
    for parts in (getattr(answer, "groups", ()), getattr(answer, "partitions", ())):
        found.update(getattr(part, "error", ErrorCode.NONE) for part in parts[:1])
    return found


def _error_of(log: messages.FetchedLog | None) -> ErrorCode:
    """Return the error of a partition's fetch; without an answer: another broker leads the partition."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if log is None else log.error
