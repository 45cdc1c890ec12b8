"""Records at the socket: Produce, Fetch, ListOffsets, DeleteRecords, OffsetForLeaderEpoch.

Rights: WRITE on topics (and on the transactional id), READ to fetch, DESCRIBE to list offsets, DELETE to delete; what
is not allowed is told partition by partition, the others go on. There are no fetch sessions: a client that asks for
one is told session 0 and sends whole requests from then on (KIP-227).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    DeleteRecordsRequest,
    FetchedLog,
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
    ProduceResponse,
)
from flowshare.server.edge.base import Api, Call, Operation, Peer, ResourceType
from flowshare.server.edge.forms import (
    LEADER_EPOCH,
    NO_TIME,
    Form,
    by_topic,
    duplicates,
    form,
    may_cluster,
    may_topic,
    milliseconds,
)
from flowshare.server.failures import Refused

if TYPE_CHECKING:
    import uuid

    from flowshare.server.topic_index import TopicIndex

PRODUCE_WITH_IDS: Final = 13
FETCH_WITH_IDS: Final = 13
ACKS: Final = (-1, 0, 1)
NO_ACKS: Final = 0
ZSTD: Final = 4
ZSTD_FROM: Final = 7
"""Version of Produce from which on batches may be compressed with zstd (KIP-110)."""
MAGIC_AT: Final = 16
ATTRIBUTES_AT: Final = 22
CODEC_MASK: Final = 7
TRANSACTIONAL: Final = 0x10
NO_SESSION: Final = 0
WHOLE_FETCH: Final = (-1, 0)
"""Session epochs of a fetch that names all its partitions."""
SPECIAL_TIMES: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""Timestamps of ListOffsets with a meaning of their own, and the version from which on they have it."""
LOCAL_EARLIEST: Final = -4
REMOTE: Final = (-5, -6)
"""Times that only a tiered log knows: there is no such offset here (KIP-1005, KIP-1023)."""
EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


class Place(NamedTuple):
    """A partition as a request names it: topic name (None if no topic has the id), topic id, number."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int


class RecordsEdge:
    """Answers the record APIs."""

    def __init__(self, topics: TopicIndex) -> None:
        self._topics = topics

    def apis(self) -> Sequence[Api]:
        """The five APIs."""
        return (
            Api(key=ApiKey.PRODUCE, lowest=3, highest=13, answer=self.produce),
            Api(key=ApiKey.FETCH, lowest=4, highest=18, answer=self.fetch),
            Api(key=ApiKey.LIST_OFFSETS, lowest=1, highest=11, answer=self.list_offsets),
            Api(key=ApiKey.DELETE_RECORDS, lowest=0, highest=2, answer=self.delete_records),
            Api(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, lowest=2, highest=4, answer=self.epoch_ends),
        )

    # --- produce --------------------------------------------------------------------------------------------------

    async def produce(self, call: Call) -> Any:
        """Append batches to partitions, side by side; with acks=0 nothing is answered.

        Raises: ConnectionError when acks=0 and something failed: closing is all that can be said then.
        """
        asked = call.request
        with_ids = call.version >= PRODUCE_WITH_IDS
        tasks: list[tuple[Place, asyncio.Future[ProduceResponse]]] = []
        for topic in asked.topic_data:
            name, topic_id = self._named(topic, "name", with_ids=with_ids)
            for part in topic.partition_data:
                # A task each, also for a single one: tasks begin in the order in which they are made, so that what
                # was sent first is appended first.
                work = self._append(call, Place(name, topic_id, part.index), part.records)
                tasks.append((Place(name, topic_id, part.index), asyncio.ensure_future(work)))
        try:
            done = [(place, await task) for place, task in tasks]
        except BaseException:
            for _, task in tasks:
                task.add_done_callback(_take_note)
            raise
        if asked.acks == NO_ACKS:
            failed = next((answer for _, answer in done if answer.error is not ErrorCode.NONE), None)
            if failed is not None:
                raise ConnectionError(f"a produce request without acks failed: {failed.error.name} {failed.message}")
            return None
        return _produced(form("produce", call.version), done, with_ids=with_ids)

    async def _append(self, call: Call, place: Place, records: bytes | None) -> ProduceResponse:
        try:
            topic = _allowed(call.peer, place, Operation.WRITE)
            request = self._to_append(call, topic, place.partition, records or b"")
        except Refused as error:
            return ProduceResponse(error=error.code, message=str(error))
        return await call.peer.connection.send(request)

    def _to_append(self, call: Call, topic: str, partition: int, records: bytes) -> ProduceRequest:
        """Raises: Refused."""
        asked = call.request
        if asked.acks not in ACKS:
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={asked.acks} is none of -1, 0, 1")
        if len(records) <= ATTRIBUTES_AT:
            raise Refused(ErrorCode.INVALID_RECORD, "there is no record batch")
        magic, attributes = records[MAGIC_AT], records[ATTRIBUTES_AT]
        if magic != 2:
            raise Refused(ErrorCode.INVALID_RECORD, f"message format {magic} is not taken; format 2 is")
        if attributes & CODEC_MASK == ZSTD and call.version < ZSTD_FROM:
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {ZSTD_FROM} of Produce")
        transactional_id = asked.transactional_id
        if attributes & TRANSACTIONAL and (
            transactional_id is None
            or not call.peer.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        ):
            raise Refused(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                f"writing with transactional id {transactional_id} is not allowed",
            )
        return ProduceRequest(topic=topic, partition=partition, records=records, transactional_id=transactional_id)

    # --- fetch ----------------------------------------------------------------------------------------------------

    async def fetch(self, call: Call) -> Any:
        """Read batches of partitions."""
        make, peer, asked = form("fetch", call.version), call.peer, call.request
        if call.version >= 7 and asked.session_epoch not in WHOLE_FETCH:
            return make(
                "FetchResponse",
                throttle_time=NO_TIME,
                error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                session_id=NO_SESSION,
                responses=(),
            )
        with_ids = call.version >= FETCH_WITH_IDS
        replica = asked.replica_state.replica_id if call.version >= 15 else asked.replica_id
        places: list[Place] = []
        wanted: dict[int, FetchPartition] = {}
        found: dict[int, FetchedLog] = {}
        for topic in asked.topics:
            name, topic_id = self._named(topic, "topic", with_ids=with_ids)
            for part in topic.partitions:
                index, place = len(places), Place(name, topic_id, part.partition)
                places.append(place)
                try:
                    allowed = _readable(peer, place, replica)
                    _check_epoch(part.current_leader_epoch if call.version >= 9 else -1)
                except Refused as error:
                    found[index] = FetchedLog(
                        topic=name or "", partition=place.partition, error=error.code, message=str(error)
                    )
                else:
                    wanted[index] = FetchPartition(
                        allowed, place.partition, part.fetch_offset, part.partition_max_bytes
                    )
        if wanted:
            answer = await peer.connection.send(
                FetchRequest(
                    partitions=tuple(wanted.values()),
                    max_wait_ms=milliseconds(asked.max_wait),
                    min_bytes=asked.min_bytes,
                    max_bytes=asked.max_bytes,
                    committed=asked.isolation_level == 1,
                )
            )
            found.update(zip(wanted, answer.partitions, strict=True))
        return _fetched(make, [(place, found[index]) for index, place in enumerate(places)], with_ids=with_ids)

    # --- offsets --------------------------------------------------------------------------------------------------

    async def list_offsets(self, call: Call) -> Any:
        """Offsets by time."""
        make, asked = form("list_offsets", call.version), call.request
        committed = call.version >= 2 and asked.isolation_level == 1
        twice = duplicates((topic.name, part.partition_index) for topic in asked.topics for part in topic.partitions)
        topics: list[Any] = []
        for topic in asked.topics:
            parts: list[Any] = []
            for part in topic.partitions:
                try:
                    if (topic.name, part.partition_index) in twice:
                        raise Refused(ErrorCode.INVALID_REQUEST, "the partition stands in the request twice")
                    fields = await self._offset(call, topic.name, part, committed=committed)
                except Refused as error:
                    fields = {"error_code": error.code, "offset": -1, "timestamp": -1, "leader_epoch": -1}
                parts.append(make("ListOffsetsPartitionResponse", partition_index=part.partition_index, **fields))
            topics.append(make("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(parts)))
        return make("ListOffsetsResponse", throttle_time=NO_TIME, topics=tuple(topics))

    async def _offset(self, call: Call, topic: str, part: Any, *, committed: bool) -> dict[str, Any]:
        """Raises: Refused."""
        if not may_topic(call.peer, Operation.DESCRIBE, topic):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"describing topic {topic} is not allowed")
        _check_epoch(part.current_leader_epoch if call.version >= 4 else -1)
        timestamp = part.timestamp
        if timestamp < 0 and SPECIAL_TIMES.get(timestamp, call.version + 1) > call.version:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"time {timestamp} has no meaning in version {call.version}")
        answer = await call.peer.connection.send(
            ListOffsetsRequest(
                topic=topic,
                partition=part.partition_index,
                timestamp_ms=-2 if timestamp == LOCAL_EARLIEST or timestamp in REMOTE else timestamp,
                committed=committed,
            )
        )
        if answer.error is not ErrorCode.NONE:
            raise Refused(answer.error, answer.message or "")
        found = answer.offset >= 0 and timestamp not in REMOTE
        return {
            "error_code": ErrorCode.NONE,
            "offset": answer.offset if found else -1,
            "timestamp": answer.timestamp_ms if found else -1,
            "leader_epoch": LEADER_EPOCH if found else -1,
        }

    async def epoch_ends(self, call: Call) -> Any:
        """Where the log of a leader's epoch ends: there is one epoch, and it goes to the log's end."""
        make = form("offset_for_leader_epoch", call.version)
        topics: list[Any] = []
        for topic in call.request.topics:
            parts: list[Any] = []
            for part in topic.partitions:
                try:
                    fields = await self._epoch_end(call.peer, topic.topic, part)
                except Refused as error:
                    fields = {"error_code": error.code, "leader_epoch": -1, "end_offset": -1}
                parts.append(make("EpochEndOffset", partition=part.partition, **fields))
            topics.append(make("OffsetForLeaderTopicResult", topic=topic.topic, partitions=tuple(parts)))
        return make("OffsetForLeaderEpochResponse", throttle_time=NO_TIME, topics=tuple(topics))

    async def _epoch_end(self, peer: Peer, topic: str, part: Any) -> dict[str, Any]:
        """Raises: Refused."""
        if not (may_topic(peer, Operation.DESCRIBE, topic) or may_cluster(peer, Operation.CLUSTER_ACTION)):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"describing topic {topic} is not allowed")
        _check_epoch(part.current_leader_epoch)
        answer = await peer.connection.send(ListOffsetsRequest(topic=topic, partition=part.partition, timestamp_ms=-1))
        if answer.error is not ErrorCode.NONE:
            raise Refused(answer.error, answer.message or "")
        known = part.leader_epoch == LEADER_EPOCH
        return {
            "error_code": ErrorCode.NONE,
            "leader_epoch": LEADER_EPOCH if known else -1,
            "end_offset": answer.offset if known else -1,
        }

    # --- delete ---------------------------------------------------------------------------------------------------

    async def delete_records(self, call: Call) -> Any:
        """Move log starts."""
        make = form("delete_records", call.version)
        topics: list[Any] = []
        for topic in call.request.topics:
            allowed = may_topic(call.peer, Operation.DELETE, topic.name)
            parts: list[Any] = []
            for part in topic.partitions:
                error, low = ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1
                if allowed:
                    error, low = await _cut(call.peer, topic.name, part)
                parts.append(
                    make(
                        "DeleteRecordsPartitionResult",
                        partition_index=part.partition_index,
                        low_watermark=low,
                        error_code=error,
                    )
                )
            topics.append(make("DeleteRecordsTopicResult", name=topic.name, partitions=tuple(parts)))
        return make("DeleteRecordsResponse", throttle_time=NO_TIME, topics=tuple(topics))

    def _named(self, topic: Any, name: str, *, with_ids: bool) -> tuple[str | None, uuid.UUID | None]:
        """Name and id of a topic of a request; older versions give the name in field `name`, later ones the id."""
        if not with_ids:
            return getattr(topic, name), None
        found = None if topic.topic_id is None else self._topics.by_id(topic.topic_id)
        return None if found is None else found.name, topic.topic_id


async def _cut(peer: Peer, topic: str, part: Any) -> tuple[ErrorCode, int]:
    if part.offset < -1:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    answer = await peer.connection.send(
        DeleteRecordsRequest(topic=topic, partition=part.partition_index, before=part.offset)
    )
    return answer.error, answer.log_start


def _allowed(peer: Peer, place: Place, operation: Operation) -> str:
    """The topic's name. Raises: Refused (no topic has the id, or it may not be used)."""
    if place.topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {place.topic_id}")
    if not may_topic(peer, operation, place.topic):
        verb = "writing to" if operation is Operation.WRITE else "reading"
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{verb} topic {place.topic} is not allowed")
    return place.topic


def _readable(peer: Peer, place: Place, replica: int) -> str:
    """The name of a topic that may be fetched; who says it is a replica needs a right of its own. Raises: Refused."""
    if replica < 0:
        return _allowed(peer, place, Operation.READ)
    if not may_cluster(peer, Operation.CLUSTER_ACTION):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "replicas need CLUSTER_ACTION on the cluster")
    if place.topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {place.topic_id}")
    return place.topic


def _check_epoch(epoch: int) -> None:
    """Whether the leader epoch that a client knows is this one; −1: it knows none. Raises: Refused."""
    if epoch > LEADER_EPOCH:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} has not come; it is {LEADER_EPOCH}")


def _produced(make: Form, done: Iterable[tuple[Place, ProduceResponse]], *, with_ids: bool) -> Any:
    parts = (
        (
            (place.topic_id if with_ids else place.topic),
            make(
                "PartitionProduceResponse",
                index=place.partition,
                error_code=answer.error,
                base_offset=answer.base_offset,
                log_append_time=_time(answer.append_time_ms),
                log_start_offset=answer.log_start,
                record_errors=(),
                error_message=answer.message,
            ),
        )
        for place, answer in done
    )
    return make(
        "ProduceResponse",
        throttle_time=NO_TIME,
        responses=tuple(
            make("TopicProduceResponse", name=topic, topic_id=topic, partition_responses=tuple(partitions))
            for topic, partitions in by_topic(parts).items()
        ),
    )


def _fetched(make: Form, found: Iterable[tuple[Place, FetchedLog]], *, with_ids: bool) -> Any:
    parts = (
        (
            (place.topic_id if with_ids else place.topic),
            make(
                "PartitionData",
                partition_index=place.partition,
                error_code=log.error,
                high_watermark=log.high_watermark,
                last_stable_offset=log.last_stable,
                log_start_offset=log.log_start,
                aborted_transactions=tuple(
                    make("AbortedTransaction", producer_id=producer_id, first_offset=first)
                    for producer_id, first in log.aborted
                ),
                preferred_read_replica=-1,
                records=log.records,
            ),
        )
        for place, log in found
    )
    return make(
        "FetchResponse",
        throttle_time=NO_TIME,
        error_code=ErrorCode.NONE,
        session_id=NO_SESSION,
        responses=tuple(
            make("FetchableTopicResponse", topic=topic, topic_id=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic(parts).items()
        ),
    )


def _time(milliseconds_: int) -> datetime.datetime | None:
    return None if milliseconds_ < 0 else EPOCH + datetime.timedelta(milliseconds=milliseconds_)


def _take_note(task: asyncio.Future[Any]) -> None:
    """Look at the error of a task whose request has failed already by another one's: asyncio warns of one unseen."""
    if not task.cancelled():
        task.exception()
