"""A scenario's connection to a fleet: every request goes over a socket to whom it belongs, as a client would send it.

Records, topics and transactions are the brokers'. Groups are asked for at their coordinators. A share session is with
one leader, so one that spans several leaders is several: a request is sent to each of them with the part that is its
own, and the answers are put together. The session's epoch that a scenario counts is the same everywhere but for the
requests that a leader joined later.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flowshare.backend.fleet import of_brokers
from flowshare.client.net.cluster import Cluster
from flowshare.client.net.routing import ClusterConnection
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    Connection,
    FetchedPartition,
    MetadataRequest,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionRequest,
    ShareResumeRequest,
    ShareSettleRequest,
    TopicPartition,
)
from flowshare.protocol.messages.base import FinishedRequest
from tests.scenarios.server_tcp import Wire
from tests.waiting import pause

LOOK_S = 0.02
TOGETHER_S = 0.3
"""How long the other leaders are given when one of them has brought something."""
NOBODY = -1

Sharing = ShareFetchRequest | ShareAcknowledgeRequest
Member = tuple[str | None, str | None]


class FleetWire:
    """One client's sockets: to the brokers, to the workers, and one to each leader for its share sessions."""

    def __init__(self, brokers: ClusterConnection, workers: Cluster, name: str) -> None:
        self.is_flowshare = True
        self.keeps_time = False
        self._brokers = brokers
        self._workers = workers
        self._name = name
        self._groups = workers.connect(name)
        self._lines: dict[int, Wire] = {}
        self._bases: dict[Member, dict[int, int]] = {}
        """Of each member's sessions: by leader, the scenario's epoch at which that one's began."""

    async def send(self, request: Any) -> Any:
        """The answer, of one or put together."""
        if isinstance(request, Sharing):
            return await self._share(request)
        if isinstance(request, ShareSettleRequest):
            return await self._send(await self._found(request.group_id, request.topic_id, request.partition), request)
        if isinstance(request, ShareResumeRequest):
            (told,) = request.partitions
            return await self._send(await self._found(request.group_id, told.topic_id, told.partition), request)
        if of_brokers(request):
            return await self._brokers.send(request)
        return await self._groups.send(request)

    def begin(self, request: Any, told: Callable[[FinishedRequest], object]) -> None:
        """As `Connection.begin`."""
        asyncio.ensure_future(self.send(request)).add_done_callback(told)

    async def close(self) -> None:
        """Close all sockets."""
        lines: list[Connection] = [*self._lines.values(), self._brokers, self._groups]
        for line in lines:
            await line.close()

    # --- sessions -----------------------------------------------------------------------------------------------

    async def _share(self, request: Sharing) -> Any:
        member = request.group_id, request.member_id
        parts: dict[int, list[SharePartitionRequest]] = {}
        for part in request.partitions:
            node = await self._leader(part.topic_id, part.partition)
            if node == NOBODY:
                node = await self._said_to_lead(request.group_id, part)
            parts.setdefault(node, []).append(part)
        bases = self._bases.get(member, {})
        nodes = await self._nodes(request, parts, bases)
        if isinstance(request, ShareAcknowledgeRequest) and request.session_epoch > 0:
            await self._join(request, [node for node in nodes if bases and node not in bases], bases)
        at = {node: self._at(request, bases, node) for node in nodes}
        answers = await asyncio.gather(
            *(self._send(node, self._own(request, parts.get(node, []), at[node], len(nodes))) for node in nodes)
        )
        if all(answer.error is ErrorCode.NONE for answer in answers):
            self._follow(member, request.session_epoch, nodes)
        if isinstance(request, ShareAcknowledgeRequest):
            return _acknowledged(answers)
        if len(nodes) > 1 and request.session_epoch >= 0:
            return await self._wait_for_all(request, dict(zip(nodes, answers, strict=True)))
        return _fetched(answers)

    async def _nodes(
        self, request: Sharing, parts: dict[int, list[SharePartitionRequest]], bases: dict[int, int]
    ) -> list[int]:
        """Who is asked: a new session's leaders, else all that have a part of it."""
        own = set(parts)
        nodes = own if request.session_epoch == 0 and own else own | bases.keys()
        return sorted(nodes or {min(self._workers.topology.nodes)})

    async def _join(self, request: ShareAcknowledgeRequest, nodes: Sequence[int], bases: dict[int, int]) -> None:
        """Begin a session with leaders that have nothing of it yet: only a fetch does that."""
        for node in nodes:
            fetch = ShareFetchRequest(
                group_id=request.group_id, member_id=request.member_id, session_epoch=0, max_wait_ms=0, max_records=0
            )
            answer = await self._send(node, fetch)
            assert answer.error is ErrorCode.NONE, answer
            bases[node] = request.session_epoch - 1

    async def _said_to_lead(self, group_id: str | None, part: SharePartitionRequest) -> int:
        """Of a share-partition that is in no metadata: who does not lead it says who does, as of any other."""
        node = min(self._workers.topology.nodes)
        member = uuid.uuid4().hex
        for epoch, named in ((0, (SharePartitionRequest(part.topic_id, part.partition),)), (-1, ())):
            answer = await self._send(
                node,
                ShareFetchRequest(
                    group_id=group_id or "nobody", member_id=member, session_epoch=epoch, partitions=named
                ),
            )
            for told in answer.partitions:
                if told.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._workers.topology.nodes.update(answer.node_endpoints)
                    return int(told.current_leader[0])
        return node

    @staticmethod
    def _at(request: Sharing, bases: dict[int, int], node: int) -> int:
        """The epoch of a leader's own session."""
        epoch = request.session_epoch
        if epoch <= 0 or not bases:
            return epoch
        return epoch - bases[node] if node in bases else 0

    def _own(self, request: Sharing, parts: list[SharePartitionRequest], epoch: int, nodes: int) -> Sharing:
        """A leader's part of a request."""
        if isinstance(request, ShareAcknowledgeRequest):
            return replace(request, session_epoch=epoch, partitions=tuple(parts))
        wait_ms = request.max_wait_ms if nodes == 1 else 0
        return replace(request, session_epoch=epoch, partitions=tuple(parts), max_wait_ms=wait_ms)

    def _follow(self, member: Member, epoch: int, nodes: Sequence[int]) -> None:
        if epoch == -1:
            self._bases.pop(member, None)
            return
        bases = self._bases.setdefault(member, {})
        if epoch == 0:
            bases.clear()
        for node in nodes:
            bases.setdefault(node, epoch)

    async def _wait_for_all(self, request: ShareFetchRequest, told: dict[int, Any]) -> ShareFetchResponse:
        """Ask again those that brought nothing, until there is something, for as long as the request may wait."""
        loop = asyncio.get_running_loop()
        end = loop.time() + max(request.max_wait_ms / 1000, LOOK_S)
        bases = self._bases.get((request.group_id, request.member_id), {})
        epoch = request.session_epoch
        while (silent := [node for node in told if not _brings(told[node])]) and loop.time() < end:
            if len(silent) < len(told):
                end = min(end, loop.time() + TOGETHER_S)
            await pause(LOOK_S, "as often a client asks that sees several leaders")
            for node in silent:
                bases[node] -= 1
                again = replace(request, session_epoch=epoch - bases[node], partitions=(), forgotten=(), max_wait_ms=0)
                told[node] = _fetched([told[node], await self._send(node, again)])
        return _fetched(list(told.values()))

    # --- sockets ------------------------------------------------------------------------------------------------

    async def _leader(self, topic_id: Any, partition: int) -> int:
        """Who leads a share-partition; NOBODY: there is none such."""
        topology = self._workers.topology
        where = TopicPartition(topic_id, partition)
        if topology.leader_of(where) == NOBODY:
            asked = MetadataRequest(topics=(), topic_ids=(topic_id,))
            answer = await ClusterConnection.send(self._groups, asked)
            topology.apply(answer)
        return topology.leader_of(where)

    async def _found(self, group_id: str, topic_id: Any, partition: int) -> int:
        """Who leads a share-partition, or would."""
        node = await self._leader(topic_id, partition)
        if node == NOBODY:
            return await self._said_to_lead(group_id, SharePartitionRequest(topic_id, partition))
        return node

    async def _send(self, node: int, request: Sharing) -> Any:
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = await self._open(*self._workers.topology.nodes[node])
        return await line.send(request)

    async def _open(self, host: str, port: int) -> Wire:
        clock = self._workers.clock
        return Wire(await open_tcp(host, port, client_id=self._name, clock=clock, settings=LinkSettings()))


def _brings(answer: ShareFetchResponse) -> bool:
    return answer.error is not ErrorCode.NONE or any(
        part.acquired or part.error is not ErrorCode.NONE for part in answer.partitions
    )


def _fetched(answers: Sequence[ShareFetchResponse]) -> ShareFetchResponse:
    """Answers as one; what a later one says of a partition counts, but for the acknowledgements' results."""
    for answer in answers:
        if answer.error is not ErrorCode.NONE:
            return answer
    found: dict[tuple[Any, int], FetchedPartition] = {}
    for answer in answers:
        for part in answer.partitions:
            before = found.get((part.topic_id, part.partition))
            kept = part if before is None else replace(part, ack_error=before.ack_error)
            found[part.topic_id, part.partition] = kept
    return replace(answers[0], partitions=tuple(found.values()))


def _acknowledged(answers: Sequence[ShareAcknowledgeResponse]) -> ShareAcknowledgeResponse:
    for answer in answers:
        if answer.error is not ErrorCode.NONE:
            return answer
    return replace(answers[0], partitions=tuple(part for answer in answers for part in answer.partitions))
