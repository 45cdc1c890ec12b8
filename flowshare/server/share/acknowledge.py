"""ShareAcknowledge, and the acknowledgements that ride on a ShareFetch (KIP-932, KIP-1222).

A request is checked and decided on all its share-partitions before anything is awaited, so that requests act in the
order in which they were sent; then its answer waits until everything is durable. Each partition has its own
result (SG-11.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.core_errors import CoreError, InvalidRequest, UnknownTopicOrPartition
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AcknowledgedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, failure, refusal
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.duties import NOT_KNOWN
from flowshare.share.types import AcknowledgeType, AckRange

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flowshare.log.base import Topic
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.duties import Duties
    from flowshare.server.share.partitions import Partitions
    from flowshare.server.share.sessions import Sessions
    from flowshare.server.share.stats import Stats

    MayRead = Callable[[str], bool] | None

RENEW: Final = int(AcknowledgeType.RENEW)
TYPE_LAST: Final = {1: int(AcknowledgeType.REJECT)}
"""Protocol version -> its highest acknowledge type; later versions have RENEW."""


class Result(NamedTuple):
    """The outcome for a partition's acknowledgements. refused: ranges that were refused although the rest holds."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    refused: tuple[tuple[int, int], ...] = ()


class Pending(NamedTuple):
    """A partition's acknowledgements: their result, or the future to wait for."""

    result: Result
    durable: asyncio.Future[None] | None = None


OK: Final = Result()


class Acknowledger:
    """Decides acknowledgements of any request that carries them."""

    def __init__(self, partitions: Partitions, topics: TopicIndex, stats: Stats) -> None:
        self._partitions = partitions
        self._topics = topics
        self._stats = stats

    def decide(
        self,
        group_id: str,
        member_id: str,
        requested: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        version: int,
        renew_allowed: bool,
        may_read: MayRead,
    ) -> dict[TopicPartition, Pending]:
        """Check and decide, partition by partition; await nothing."""
        decided: dict[TopicPartition, Pending] = {}
        for at, acks in requested.items():
            try:
                check_readable(self._topics.by_id(at.topic_id), may_read)
                decided[at] = self._decide_one(group_id, member_id, at, acks, version, renew_allowed)
            except EXPECTED as error:
                self._stats.acks_refused += 1
                decided[at] = Pending(Result(*failure(error)))
        return decided

    def _decide_one(
        self,
        group_id: str,
        member_id: str,
        at: TopicPartition,
        acks: Sequence[AckRange],
        version: int,
        renew_allowed: bool,
    ) -> Pending:
        topic = self._topics.find(*at)
        if not acks:
            return Pending(OK)
        check_batches(acks, version=version, renew_allowed=renew_allowed)
        key = ShareKey(group_id, *at)
        owner = self._partitions.get(key)
        if owner is None:
            self._partitions.check_led(key)
            raise UnknownTopicOrPartition(f"{topic.name}-{at.partition} is not loaded for group {group_id}")
        durable, refused = owner.acknowledge(member_id, acks)
        if refused is None:
            return Pending(OK, durable)
        self._stats.acks_refused += 1
        return Pending(Result(message=failure(refused.error)[1], refused=refused.ranges), durable)


def check_readable(topic: Topic | None, may_read: MayRead) -> None:
    """Check that a member may have a topic's records; a missing topic is refused elsewhere. Raises: Refused."""
    if may_read is not None and topic is not None and not may_read(topic.name):
        # Members ask by the id, and may not know the name.
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"reading topic {topic.topic_id} is not allowed")


def check_batches(acks: Sequence[AckRange], *, version: int, renew_allowed: bool) -> None:
    """Check one partition's batches as far as that needs no state (SG-7.1). Raises: InvalidRequest."""
    last_type = TYPE_LAST.get(version, RENEW)
    previous_last = -1
    for ack in acks:
        types = ack.types
        if ack.first > ack.last:
            raise InvalidRequest(f"acknowledgement batch {ack.first}-{ack.last} ends before it begins")
        if ack.first < previous_last:
            raise InvalidRequest(f"acknowledgement batch {ack.first}-{ack.last} begins before the one before it ends")
        previous_last = ack.last
        if not types:
            raise InvalidRequest(f"acknowledgement batch {ack.first}-{ack.last} has no type")
        if len(types) > 1 and len(types) != ack.last - ack.first + 1:
            raise InvalidRequest(f"acknowledgement batch {ack.first}-{ack.last} has {len(types)} types")
        if max(types) > last_type:
            raise InvalidRequest(f"acknowledge type {max(types)} is unknown")
        if not renew_allowed and RENEW in types:
            raise InvalidRequest("a RENEW needs a request that is marked as renewing (IsRenewAck)")


async def settle(pending: Mapping[TopicPartition, Pending]) -> dict[TopicPartition, Result]:
    """Wait until everything is durable; return each partition's result."""
    results: dict[TopicPartition, Result] = {}
    for at, (result, durable) in pending.items():
        results[at] = result
        if durable is not None:
            try:
                await durable
            except EXPECTED as error:
                results[at] = Result(*failure(error))
    return results


def merged(partitions: Iterable[SharePartitionRequest]) -> dict[TopicPartition, Sequence[AckRange]]:
    """Return a request's partitions with their batches; entries that name the same one are put together (SG-11.7)."""
    found: dict[TopicPartition, Sequence[AckRange]] = {}
    joined: dict[TopicPartition, list[AckRange]] = {}
    for topic_id, partition, acks in partitions:
        at = TopicPartition(topic_id, partition)
        earlier = found.get(at)
        if earlier is None:
            found[at] = acks
            continue
        together = joined.get(at)
        if together is None:
            together = joined[at] = found[at] = list(earlier)
        together += acks
    return found


class ShareAcknowledging(Family):
    """Answers ShareAcknowledge."""

    def __init__(
        self,
        *,
        acknowledger: Acknowledger,
        sessions: Sessions,
        stats: Stats,
        duties: Duties,
    ) -> None:
        self._acknowledger = acknowledger
        self._sessions = sessions
        self._stats = stats
        self._duties = duties

    @handles(ShareAcknowledgeRequest)
    async def acknowledge(self, request: ShareAcknowledgeRequest, connection: InProcess) -> ShareAcknowledgeResponse:
        """Decide, wait until durable, answer. Epoch −1 closes the session: records still acquired are released."""
        self._stats.acknowledges += 1
        try:
            closed = self._sessions.acknowledge(request.group_id, request.member_id, request.session_epoch)
        except CoreError as error:
            self._stats.failed_acknowledges += 1
            return refusal(ShareAcknowledgeResponse, error)
        group_id, member_id = request.group_id or "", request.member_id or ""
        pending = self._acknowledger.decide(
            group_id,
            member_id,
            merged(request.partitions),
            version=request.version,
            renew_allowed=request.is_renew_ack,
            may_read=connection.may_read,
        )
        if closed is not None:
            self._sessions.ended(closed)
        results = await settle(pending)
        endpoints: dict[int, tuple[str, int]] = {}
        return ShareAcknowledgeResponse(
            lock_timeout_ms=self._duties.config_of(group_id).record_lock_duration_ms,
            partitions=tuple(self._answered(at, result, endpoints) for at, result in results.items()),
            node_endpoints=endpoints,
        )

    def _answered(
        self, at: TopicPartition, result: Result, endpoints: dict[int, tuple[str, int]]
    ) -> AcknowledgedPartition:
        code, message, refused = result
        leader = self._duties.leader_of(*at) if code is ErrorCode.NOT_LEADER_OR_FOLLOWER else NOT_KNOWN
        if leader.address is not None:
            endpoints[leader.current[0]] = leader.address
        return AcknowledgedPartition(
            topic_id=at.topic_id,
            partition=at.partition,
            error=code,
            message=message,
            current_leader=leader.current,
            refused=refused,
        )
