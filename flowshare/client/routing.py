"""`ClusterConnection`: a `Connection` to a whole cluster. Each request goes where it belongs.

To the group's coordinator, the partition's leader, a certain broker, all of them, or any. A broker that says it is the
wrong one (NOT_COORDINATOR, NOT_LEADER_OR_FOLLOWER) did nothing, so the request goes to the right one; what may have
been carried out is never sent twice. ShareFetch and ShareAcknowledge belong to a session with one broker and do not
come this way (`client.nodes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from flowshare.client.errors import NotConnected
from flowshare.client.topology import NOBODY
from flowshare.protocol import messages
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.client.cluster import Cluster, NodeConnection
    from flowshare.protocol.messages import Request

R = TypeVar("R")
Find = Callable[[], Awaitable[int]]

WRONG_COORDINATOR: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
WRONG_LEADER: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.LEADER_NOT_AVAILABLE}
)
CREATED_S_MAX: Final = 5.0
"""How long a new topic is waited for."""
RETRY_S_MAX: Final = 10.0
"""How long the right broker is looked for; within the time that the caller gives the request."""


class ClusterConnection:
    """One client's connections to the brokers of a cluster, opened as they are needed."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self.cluster = cluster
        self.client_id = client_id
        self._nodes: dict[int, NodeConnection] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._closed = False

    async def send(self, request: Request[R]) -> R:
        """Answer of the broker that this request belongs to.

        Raises: NotConnected (never sent), ConnectionError, ServerError, ClientError.
        """
        return cast("R", await self._send(request))

    async def close(self) -> None:
        """Close all of them."""
        self._closed = True
        nodes, self._nodes = self._nodes, {}
        for connection in nodes.values():
            await connection.close()

    # --- where to -----------------------------------------------------------------------------------------------

    async def _send(self, request: Any) -> Any:
        cluster = self.cluster
        match request:
            case messages.MetadataRequest():
                answer = await self._to_any(request)
                cluster.topology.apply(answer)
                return answer
            case messages.ShareGroupDescribeRequest() | messages.DeleteGroupsRequest():
                return await self._to_each_group(request)
            case messages.CreateTopicRequest():
                return await self._create(request)
            case messages.FetchRequest():
                return await self._to_leaders(request)
            case messages.ListGroupsRequest():
                return await self._to_all(request)
            case (
                messages.ShareGroupHeartbeatRequest()
                | messages.DescribeShareGroupOffsetsRequest()
                | messages.AlterShareGroupOffsetsRequest()
                | messages.DeleteShareGroupOffsetsRequest()
            ):
                return await self._to_coordinator(request, request.group_id)
            case messages.ProduceRequest() | messages.ListOffsetsRequest() | messages.DeleteRecordsRequest():
                return await self._to_leader(request, request.topic, request.partition)
            case (
                messages.DescribeConfigsRequest(resource_type="broker")
                | messages.IncrementalAlterConfigsRequest(resource_type="broker")
            ) if request.resource:
                return await self._to_node(request, int(request.resource))
            case messages.ShareFetchRequest() | messages.ShareAcknowledgeRequest():
                raise AssertionError("share sessions are with one broker: client.nodes sends their requests")
            case _:
                return await self._to_any(request)

    async def _to_coordinator(self, request: Any, group_id: str) -> Any:
        async def find() -> int:
            return await self.cluster.coordinator(group_id)

        async def wrong() -> None:
            self.cluster.forget_coordinator(group_id)

        return await self._until_right(request, find, wrong, WRONG_COORDINATOR, f"coordinator of group {group_id}")

    async def _to_leader(self, request: Any, topic: str, partition: int) -> Any:
        async def find() -> int:
            return await self.cluster.leader(topic, partition)

        async def wrong() -> None:
            await self.cluster.look_for((topic,))

        if await find() == NOBODY and not self.cluster.topology.knows(topic):
            return await self._to_any(request)  # there is no such topic: any broker says so
        return await self._until_right(request, find, wrong, WRONG_LEADER, f"leader of {topic}-{partition}")

    async def _until_right(
        self,
        request: Any,
        find: Find,
        wrong: Callable[[], Awaitable[None]],
        signs: frozenset[ErrorCode],
        what: str,
    ) -> Any:
        """Send to the node that `find` names, until one of them does not say that it is the wrong one."""
        clock, settings = self.cluster.clock, self.cluster.settings
        deadline_s = clock.monotonic() + min(RETRY_S_MAX, settings.request_timeout_s / 2)
        pause_s, answer, problem = settings.backoff_min_s, None, "nobody is"
        while True:
            node = await find()
            if node != NOBODY:
                try:
                    connection = await self._node(node)
                except NotConnected as error:
                    problem = str(error)
                else:
                    answer = await self._over(node, connection, request)
                    if not signs.intersection(_errors(answer)):
                        return answer
            if clock.monotonic() + pause_s >= deadline_s:
                break
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, settings.backoff_max_s)
            await wrong()
        if answer is not None:
            return answer
        raise NotConnected(f"{what}: {problem}")

    async def _create(self, request: messages.CreateTopicRequest) -> Any:
        """Answered when the topic can be used: brokers learn of it a moment after it was made."""
        clock = self.cluster.clock
        answer = await self._to_any(request)
        deadline_s = clock.monotonic() + CREATED_S_MAX
        while answer.error is ErrorCode.NONE and clock.monotonic() < deadline_s:
            found = await self._send(messages.MetadataRequest(topics=(request.name,)))
            if all(topic.error is ErrorCode.NONE and NOBODY not in topic.leaders for topic in found.topics):
                break
            await clock.sleep(self.cluster.settings.backoff_min_s)
        return answer

    async def _to_each_group(self, request: messages.ShareGroupDescribeRequest | messages.DeleteGroupsRequest) -> Any:
        found: list[Any] = []
        for group_id in request.group_ids:
            answer = await self._to_coordinator(replace(request, group_ids=(group_id,)), group_id)
            found += answer.groups
        if isinstance(request, messages.DeleteGroupsRequest):
            return messages.DeleteGroupsResponse(groups=tuple(found))
        return messages.ShareGroupDescribeResponse(groups=tuple(found))

    async def _to_leaders(self, request: messages.FetchRequest) -> messages.FetchResponse:
        """One request a leader, at the same time; the answers in the order of the question.

        A partition without a leader has one to itself: each of them may come to be led by another broker.
        """
        by_leader: dict[int | tuple[str, int], list[Any]] = {}
        for part in request.partitions:
            leader = await self.cluster.leader(part.topic, part.partition)
            by_leader.setdefault((part.topic, part.partition) if leader == NOBODY else leader, []).append(part)
        answers = await asyncio.gather(
            *(
                self._to_leader(replace(request, partitions=tuple(parts)), parts[0].topic, parts[0].partition)
                for parts in by_leader.values()
            ),
            return_exceptions=True,  # none is left under way
        )
        found: dict[tuple[str, int], Any] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if answer.error is not ErrorCode.NONE:
                return cast("messages.FetchResponse", answer)
            found.update({(log.topic, log.partition): log for log in answer.partitions})
        return messages.FetchResponse(
            partitions=tuple(found[part.topic, part.partition] for part in request.partitions)
        )

    async def _to_all(self, request: messages.ListGroupsRequest) -> messages.ListGroupsResponse:
        await self.cluster.look(())  # a broker that was taken away for good would be asked for ever
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
        """To a broker that a connection is open to, else to the first that can be reached."""
        node = next(iter(self._nodes), NOBODY)
        return await self._over(node, await self._node(node), request)

    # --- connections --------------------------------------------------------------------------------------------

    async def _node(self, node: int) -> NodeConnection:
        """The connection to a broker (NOBODY: to any), opened if need be. Raises: NotConnected, ClientError."""
        known = self._nodes.get(node)
        if known is not None:
            return known
        async with self._opening.setdefault(node, asyncio.Lock()):
            known = self._nodes.get(node)
            if known is not None:
                return known
            cluster = self.cluster
            opening = cluster.open_any(self.client_id) if node == NOBODY else cluster.open_node(node, self.client_id)
            connection = await opening
            if self._closed:
                await connection.close()
                raise NotConnected("the connection to the cluster is closed")
            self._nodes[node] = connection
            return connection

    async def _over(self, node: int, connection: NodeConnection, request: Any) -> Any:
        try:
            return await connection.send(request)
        except OSError:
            if self._nodes.get(node) is connection:
                del self._nodes[node]
            await connection.close()
            raise


def _errors(answer: Any) -> set[ErrorCode]:
    """Errors of an answer, its own and those of its first parts (a request for one group or partition has one)."""
    found = {getattr(answer, "error", ErrorCode.NONE)}
    for parts in (getattr(answer, "groups", ()), getattr(answer, "partitions", ())):
        found.update(part.error for part in parts[:1])
    return found
