"""One node's ShareFetch requests: what they say of the session, and what their answers' errors lead to.

An error becomes one of four things: `trouble` (told, and tried again after a pause), a new session, another leader,
or a refusal that the next fetch raises (share-groups reference §3.12). Records that came beside an error are never
dropped for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import SESSION_GONE, ClientError, Closed, ConnectionLost, NotConnected, ServerError
from flowshare.client.ranges import Fetched
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AckBatch,
    FetchedPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AcquireMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.client.membership import Membership
    from flowshare.client.node import Node
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

REFUSED: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Errors of a fetch that trying again does not cure."""
MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors after which the partition's leader is looked up."""
UNKNOWN: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_SERVER_ERROR}
)
"""Errors that hint at an assignment which is out of date."""
PAUSE_LEAST_S: Final = 0.05
TELL_AGAIN_S: Final = 60.0


class Move(NamedTuple):
    """A node (`said_by`) says of a partition that it is not the one to ask, and who may be.

    leader: node and leader epoch, −1 and −1 when it names nobody. endpoints: addresses of nodes.
    """

    said_by: int
    tp: TopicPartition
    error: ErrorCode
    leader: tuple[int, int]
    endpoints: Mapping[int, tuple[str, int]]


Moved = Callable[[Move], object]
Riding = dict[TopicPartition, "Sequence[AckBatch]"]

logger = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What one fetch asks for."""

    records_max: int
    batch_size: int
    max_wait_s: float
    bytes_max: int
    mode: AcquireMode


NOTHING: Final = Plan(0, 1, 0.0, 0, AcquireMode.BATCH_OPTIMIZED)
"""A fetch that asks for no records."""


class Fetcher:
    """Fetches for one member from one node; `lock_timeout_ms` is that of the last answer."""

    def __init__(self, node: Node, membership: Membership, *, clock: Clock, on_moved: Moved) -> None:
        self._node = node
        self._membership = membership
        self._clock = clock
        self._on_moved = on_moved
        self._refusal: ClientError | None = None
        self._strikes = 0
        self._tell_s = 0.0
        """When a quota is told of again."""
        self.trouble: str | None = None
        self.lock_timeout_ms = 0

    def raise_refusal(self) -> None:
        """Raises: ServerError, once for each refusal."""
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal

    @property
    def needed(self) -> bool:
        """Whether there is anything to fetch, or to tell the server not to fetch any more."""
        return bool(self._node.wanted or self._node.session.partitions)

    async def connect(self, limit_s: float) -> Connection | None:
        """The node's connection; None when it cannot be had in time."""
        try:
            return await self._node.link.connection(limit_s)
        except (NotConnected, Closed):
            return None

    async def fetch(
        self, plan: Plan, connection: Connection, riding: Riding | None = None
    ) -> tuple[list[Fetched], ShareFetchResponse | None]:
        """One request, handed over before anything is awaited: what it brought, and the answer (None: lost)."""
        node = self._node
        number, generation = node.session.number, node.generation
        request = self._request(plan, riding or {})
        try:
            answer = await node.link.send_on(connection, request, wait_s=request.max_wait_ms / 1000)
        except ConnectionLost:
            return [], None
        return self._take(answer, number, generation), answer

    async def rest(self, fetched: list[Fetched], plan: Plan) -> None:
        """A pause after an answer that brought nothing but trouble."""
        if fetched or self.trouble is None:
            self._strikes = 0
            return
        self._strikes += 1
        pause_s = self._node.link.pause_s(self._strikes)
        await self._clock.sleep(min(pause_s, max(plan.max_wait_s, PAUSE_LEAST_S)))

    async def open_session(self, connection: Connection) -> bool:
        """Open the session without fetching, so that what is held can be acknowledged."""
        _, answer = await self.fetch(NOTHING, connection)
        return answer is not None and answer.error is ErrorCode.NONE

    async def end_wait(self) -> None:
        """Have the server answer a fetch that it has parked. Brokers cannot: theirs ends by itself."""
        connection = self._node.link.current
        if connection is not None and self._node.beside and self._node.session.open:
            await self.fetch(NOTHING, connection)

    def _request(self, plan: Plan, riding: Riding) -> ShareFetchRequest:
        """The request that brings the server's view of the session to what is wanted; awaits nothing."""
        node = self._node
        added, forgotten = node.session.change_to(node.wanted)
        idle = not node.wanted
        wait_s = 0.0 if idle else node.wait_s(plan.max_wait_s, with_acks=bool(riding))
        parts = [SharePartitionRequest(tp.topic_id, tp.partition, tuple(riding.get(tp, ()))) for tp in added]
        parts += [
            SharePartitionRequest(tp.topic_id, tp.partition, tuple(acks))
            for tp, acks in riding.items()
            if tp not in added
        ]
        return ShareFetchRequest(
            group_id=self._membership.group_id,
            member_id=self._membership.member_id,
            session_epoch=node.session.next_epoch(),
            max_wait_ms=round(wait_s * 1000),
            max_bytes=plan.bytes_max,
            max_records=0 if idle else plan.records_max,
            batch_size=plan.batch_size,
            acquire_mode=int(plan.mode),
            partitions=tuple(parts),
            forgotten=forgotten,
        )

    def _take(self, answer: ShareFetchResponse, number: int, generation: int) -> list[Fetched]:
        """What the answer brought; its errors become `trouble`, a new session, or the next call's exception."""
        self.trouble = None
        self._node.heard_s = now_s = self._clock.monotonic()
        if answer.error is not ErrorCode.NONE:
            self._fetch_refused(answer.error, answer.message, number)
            return []
        if answer.throttle_ms > 0 and not answer.partitions:
            self._held_back(answer.throttle_ms, now_s)
            return []
        if answer.lock_timeout_ms > 0:
            self.lock_timeout_ms = answer.lock_timeout_ms
        deadline_s = now_s + self.lock_timeout_ms / 1000
        fetched: list[Fetched] = []
        for part in answer.partitions:
            if part.acquired:
                tp = TopicPartition(part.topic_id, part.partition)
                held_under = self._node.acquired(tp, part.acquired, deadline_s, generation)
                if held_under is not None:
                    name = self._membership.topic_name(part.topic_id)
                    fetched.append(Fetched(name, *tp, part.records, part.acquired, deadline_s, held_under))
            if part.error is not ErrorCode.NONE:
                self._partition_refused(part, answer)
        return fetched

    def _held_back(self, throttle_ms: int, now_s: float) -> None:
        """Kafka's brokers answer without what they acquired meanwhile, and nobody can give it back (seen on 4.3)."""
        self.trouble = (
            f"a quota of the brokers held back a fetch of group {self._membership.group_id} for {throttle_ms / 1000:g} "
            "s. What was acquired for it comes again when its lock is over, and each time counts as a delivery: raise "
            "consumer_byte_rate (or request_percentage) of this user or client id"
        )
        if now_s >= self._tell_s:
            self._tell_s = now_s + TELL_AGAIN_S
            logger.warning("%s", self.trouble)

    def _fetch_refused(self, code: ErrorCode, message: str | None, number: int) -> None:
        error = ServerError(code, message, about=f"fetch of group {self._membership.group_id}")
        self.trouble = str(error)
        if code in SESSION_GONE:
            self._node.session.reset(number)
        elif code in REFUSED:
            self._refusal = error
        elif code in UNKNOWN:  # brokers say so of the whole fetch when one topic is gone or not initialised yet
            self._membership.refresh()
        logger.log(logging.WARNING if self._strikes == 0 else logging.DEBUG, "%s", error)

    def _partition_refused(self, part: FetchedPartition, answer: ShareFetchResponse) -> None:
        topic = self._membership.topic_name(part.topic_id)
        where = f"fetch of {topic}-{part.partition} for group {self._membership.group_id}"
        error = ServerError(part.error, part.message, about=where)
        if self._strikes == 0:
            logger.warning("%s", error)
        self.trouble = str(error)
        if part.error in REFUSED:
            self._refusal = error
        elif part.error in UNKNOWN:
            self._membership.refresh()
        if part.error in MOVED or part.error in UNKNOWN:
            at = TopicPartition(part.topic_id, part.partition)
            self._on_moved(Move(self._node.node_id, at, part.error, part.current_leader, answer.node_endpoints))
