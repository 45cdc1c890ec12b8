"""Records at the socket: Produce, Fetch, questions about offsets, and DeleteRecords, which moves the first one.

Rights: WRITE on topics (and on the transactional id), READ to fetch, before a fetch waits and again before it is
answered; DESCRIBE to ask about offsets, DELETE to delete; refusals are told partition by partition, the others go on.
There are no fetch sessions: a client that asks for one is told session 0 and sends whole requests from then on
(KIP-227).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.filter_codec import decode_fetch, encode_fetched
from flowshare.protocol.headers import ATTRIBUTES_AT, CODEC_MASK, MAGIC_AT, TRANSACTIONAL_MASK
from flowshare.protocol.messages import (
    FetchedLog,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from flowshare.protocol.messages.records import (
    DELETE_RECORDS,
    EARLIEST,
    FETCH,
    FILTERED_FETCH,
    LATEST,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.protocol.translation import milliseconds
from flowshare.server.edge.base import LEADER_EPOCH, Endpoint, Peer, SocketCall, may_cluster, may_topic
from flowshare.server.edge.derived import derived
from flowshare.server.edge.entities import Form, form
from flowshare.server.runtime import answers
from flowshare.server.runtime.failures import Refused, refusal

if TYPE_CHECKING:
    import uuid

    from flowshare.server.runtime.turns import Turns

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

PRODUCE_WITH_IDS: Final = 13
FETCH_WITH_IDS: Final = 13
ACKS: Final = (-1, 0, 1)
NO_ACKS: Final = 0
ZSTD: Final = 4
ZSTD_FROM: Final = 7
"""Version of Produce from which on batches may be compressed with zstd (KIP-110)."""
APPEND_COST: Final = 20
"""Cost of an append in its connection's turn: its first step takes as long as this many small things."""
PART_BYTES: Final = 200
"""Bytes of memory that a partition takes in an answer beside its records, about."""
PAIR_BYTES: Final = 16
NO_SESSION: Final = 0
WHOLE_FETCH: Final = (-1, 0)
"""Session epochs of a fetch that names all its partitions."""
EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
SPECIAL_TIMES: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""Timestamps of ListOffsets with a meaning of their own -> first version with that meaning."""
LOCAL_EARLIEST: Final = -4
REMOTE: Final = (-5, -6)
"""Times that only a tiered log knows: this server has no such offset (KIP-1005, KIP-1023)."""


class NamedPartition(NamedTuple):
    """A partition as a request names it: topic name (None if no topic has the id), topic id, number."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int


# --- produce ----------------------------------------------------------------------------------------------------------


async def produce(call: SocketCall) -> Any:
    """Append batches to partitions, concurrently; with acks=0 nothing is answered.

    Raises: ConnectionError when acks=0 and an append failed: closing is the only possible answer then.
    """
    asked = call.request
    with_ids = call.version >= PRODUCE_WITH_IDS
    tasks: list[tuple[NamedPartition, asyncio.Future[ProduceResponse]]] = []
    try:
        async with call.peer.producing:
            await _begin(call, tasks, with_ids=with_ids)
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
    return await _produced(form("produce", call.version), call.peer.turns, done, with_ids=with_ids)


async def _begin(
    call: SocketCall, tasks: list[tuple[NamedPartition, asyncio.Future[ProduceResponse]]], *, with_ids: bool
) -> None:
    """Begin the appends, those of a short request before anything else runs."""
    turns, topics = call.peer.turns, call.request.topic_data
    twice: set[tuple[Any, int]] = set()
    named = await _once(turns, topics, "topic_id" if with_ids else "name", "index", parts="partition_data", twice=twice)
    for topic, parts in named.items():
        name, topic_id = _named(call.peer, topic, with_ids=with_ids)
        for number, part in parts.items():
            await turns.take(APPEND_COST)
            # A task each, also for a single one: tasks begin in the order in which they are made, so that appends keep
            # the order of the requests.
            place = NamedPartition(name, topic_id, number)
            work = _twice() if (topic, number) in twice else _append(call, place, part.records)
            tasks.append((place, asyncio.ensure_future(work)))


async def _append(call: SocketCall, place: NamedPartition, records: bytes | None) -> ProduceResponse:
    try:
        topic = _allowed(call.peer, place, Operation.WRITE)
        request = _to_append(call, topic, place.partition, records or b"")
    except Refused as error:
        return refusal(ProduceResponse, error)
    return await call.peer.connection.send(request)


def _to_append(call: SocketCall, topic: str, partition: int, records: bytes) -> ProduceRequest:
    """Convert. Raises: Refused."""
    asked = call.request
    if asked.acks not in ACKS:
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={asked.acks} is none of -1, 0, 1")
    if len(records) <= ATTRIBUTES_AT + 1:
        raise Refused(ErrorCode.INVALID_RECORD, "there is no record batch")
    magic, attributes = records[MAGIC_AT], records[ATTRIBUTES_AT + 1]  # the low byte has all needed bits
    if magic != 2:
        raise Refused(ErrorCode.INVALID_RECORD, f"message format {magic} is not taken; format 2 is")
    if attributes & CODEC_MASK == ZSTD and call.version < ZSTD_FROM:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {ZSTD_FROM} of Produce")
    transactional_id = asked.transactional_id
    if attributes & TRANSACTIONAL_MASK and (
        transactional_id is None or not call.peer.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    ):
        raise Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"writing with transactional id {transactional_id} is not allowed",
        )
    return ProduceRequest(topic=topic, partition=partition, records=records, transactional_id=transactional_id)


# --- fetch ------------------------------------------------------------------------------------------------------------


async def fetch(call: SocketCall) -> Any:
    """Read batches of partitions."""
    make, peer, asked = form("fetch", call.version), call.peer, call.request
    if call.version >= 7 and asked.session_epoch not in WHOLE_FETCH:
        return make(
            "FetchResponse",
            error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            session_id=NO_SESSION,
            responses=(),
        )
    with_ids = call.version >= FETCH_WITH_IDS
    replica = asked.replica_state.replica_id if call.version >= 15 else asked.replica_id
    places: list[NamedPartition] = []
    wanted: dict[int, FetchPartition] = {}
    found: dict[int, FetchedLog] = {}
    named = await _once(peer.turns, asked.topics, "topic_id" if with_ids else "topic", "partition")
    for topic, parts in named.items():
        name, topic_id = _named(peer, topic, with_ids=with_ids)
        for number, part in parts.items():
            await peer.turns.take()
            index, place = len(places), NamedPartition(name, topic_id, number)
            places.append(place)
            try:
                allowed = _readable(peer, place, replica)
                _check_epoch(part.current_leader_epoch if call.version >= 9 else -1)
            except Refused as error:
                found[index] = refusal(FetchedLog, error, topic=name or "", partition=place.partition)
            else:
                wanted[index] = FetchPartition(allowed, place.partition, part.fetch_offset, part.partition_max_bytes)
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

    def fetched(index: int) -> tuple[Any, Any]:
        place = places[index]
        part = _fetched_part(make, place, _still_readable(peer, place, found[index], replica))
        return place.topic_id if with_ids else place.topic, part

    return make(
        "FetchResponse",
        error_code=ErrorCode.NONE,
        session_id=NO_SESSION,
        responses=await _topics_of(
            peer.turns,
            map(fetched, range(len(places))),
            lambda topic, parts: make("FetchableTopicResponse", topic=topic, topic_id=topic, partitions=parts),
        ),
    )


async def filtered_fetch(call: SocketCall) -> FetchResponse:
    """Read batches thinned to some keys; `protocol.filter_codec` reads and writes the messages."""
    peer, asked = call.peer, call.request
    places = [NamedPartition(part.topic, None, part.partition) for part in asked.partitions]
    found: dict[int, FetchedLog] = {}
    for index, place in enumerate(places):
        await peer.turns.take()
        try:
            _allowed(peer, place, Operation.READ)
        except Refused as error:
            found[index] = refusal(FetchedLog, error, topic=asked.partitions[index].topic, partition=place.partition)
    wanted = [index for index in range(len(places)) if index not in found]
    if wanted:
        answer = await peer.connection.send(
            replace(asked, partitions=tuple(asked.partitions[index] for index in wanted))
        )
        found.update(zip(wanted, answer.partitions, strict=True))
    logs = [_still_readable(peer, place, found[index], -1) for index, place in enumerate(places)]
    for log in logs:
        answers.space().add(PART_BYTES + PAIR_BYTES * (0 if log.filtered is None else len(log.filtered.voids)))
    return FetchResponse(partitions=tuple(logs))


def _named(peer: Peer, topic: Any, *, with_ids: bool) -> tuple[str | None, uuid.UUID | None]:
    """Return a topic's name and id from a request; older versions give the name, later ones the id."""
    if not with_ids:
        return topic, None
    found = None if topic is None else peer.server.topics.by_id(topic)
    return None if found is None else found.name, topic


async def _topics_of(
    turns: Turns, pairs: Iterable[tuple[K, V]], make: Callable[[K, tuple[V, ...]], R]
) -> tuple[R, ...]:
    """Call `make` with each topic and its values; return the results, topics in the order of their first coming.

    pairs: of topic and value; if it is an iterator, it makes the pairs in turns, too.
    """
    found: dict[K, list[V]] = {}
    async for some in turns.few(pairs):
        for topic, value in some:
            found.setdefault(topic, []).append(value)
    return await turns.each(lambda one: make(one[0], tuple(one[1])), tuple(found.items()))


async def _once(
    turns: Turns,
    topics: Iterable[Any],
    topic: str,
    partition: str,
    *,
    parts: str = "partitions",
    twice: set[tuple[Any, int]] | None = None,
) -> dict[Any, dict[int, Any]]:
    """Return the parts of a request by partition: topic -> number -> part, in the order of their first coming.

    If a partition is named twice, its last part counts, as in Kafka. topic, parts, partition: names of the fields that
    hold a topic's name or id, its parts, a part's number. twice: receives the partitions that are named more than once.
    Meanwhile no later request of the connection is begun.
    """
    found: dict[Any, dict[int, Any]] = {}
    for one in topics:
        at = getattr(one, topic)
        named = found.setdefault(at, {})
        async for some in turns.few(getattr(one, parts)):
            for part in some:
                number = getattr(part, partition)
                if twice is not None and number in named:
                    twice.add((at, number))
                named[number] = part
    return found


async def _twice() -> ProduceResponse:
    """Refuse a partition that stands in a request twice: of two batches one might be appended and the other not."""
    return ProduceResponse(error=ErrorCode.INVALID_REQUEST, message="the partition stands in the request twice")


def _allowed(peer: Peer, place: NamedPartition, operation: Operation) -> str:
    """Return the topic's name. Raises: Refused (no topic has the id, or it may not be used)."""
    if place.topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {place.topic_id}")
    if not may_topic(peer, operation, place.topic):
        verb = "writing to" if operation is Operation.WRITE else "reading"
        # A client that asked by the id may not know the name.
        asked_for = place.topic if place.topic_id is None else place.topic_id
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{verb} topic {asked_for} is not allowed")
    return place.topic


def _readable(peer: Peer, place: NamedPartition, replica: int) -> str:
    """Return the name of a topic that may be fetched; a client that calls itself a replica needs a right of its own.
    Raises: Refused."""
    if replica < 0:
        return _allowed(peer, place, Operation.READ)
    if not may_cluster(peer, Operation.CLUSTER_ACTION):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "replicas need CLUSTER_ACTION on the cluster")
    if place.topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {place.topic_id}")
    return place.topic


def _still_readable(peer: Peer, place: NamedPartition, log: FetchedLog, replica: int) -> FetchedLog:
    """Return the records that were read, or a refusal if the right to read was taken away while the fetch waited."""
    if log.error is not ErrorCode.NONE:
        return log
    try:
        _readable(peer, place, replica)
    except Refused as error:
        return refusal(FetchedLog, error, topic=log.topic, partition=log.partition)
    return log


async def _produced(
    make: Form, turns: Turns, done: Iterable[tuple[NamedPartition, ProduceResponse]], *, with_ids: bool
) -> Any:
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
        responses=await _topics_of(
            turns,
            parts,
            lambda topic, found: make("TopicProduceResponse", name=topic, topic_id=topic, partition_responses=found),
        ),
    )


def _fetched_part(make: Form, place: NamedPartition, log: FetchedLog) -> Any:
    return make(
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
    )


def _time(milliseconds_: int) -> datetime.datetime | None:
    return None if milliseconds_ < 0 else EPOCH + datetime.timedelta(milliseconds=milliseconds_)


def _take_note(task: asyncio.Future[Any]) -> None:
    """Read a task's error, whose request has already failed by another error: asyncio warns of one unread."""
    if not task.cancelled():
        task.exception()


# --- offsets ---------------------------------------------------------------------------------------------------------


async def list_offsets(call: SocketCall, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Find an offset by time."""
    call.peer.need(Operation.DESCRIBE, ResourceType.TOPIC, request.topic)
    _check_epoch(request.current_epoch)
    time = request.timestamp_ms
    if time < 0 and SPECIAL_TIMES.get(time, call.version + 1) > call.version:
        return ListOffsetsResponse(error=ErrorCode.UNSUPPORTED_VERSION)
    if time == LOCAL_EARLIEST or time in REMOTE:
        request = replace(request, timestamp_ms=EARLIEST)
    answer = await call.peer.connection.send(request)
    if answer.error is not ErrorCode.NONE:
        return ListOffsetsResponse(error=answer.error)
    if answer.offset < 0 or time in REMOTE:
        return ListOffsetsResponse()
    return replace(answer, leader_epoch=LEADER_EPOCH)


async def epoch_end(call: SocketCall, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Return the end of a leader epoch's log: the only epoch ends at the log's end."""
    peer = call.peer
    if not may_cluster(peer, Operation.CLUSTER_ACTION):
        peer.need(Operation.DESCRIBE, ResourceType.TOPIC, request.topic)
    _check_epoch(request.current_epoch)
    end = ListOffsetsRequest(topic=request.topic, partition=request.partition, timestamp_ms=LATEST)
    answer = await peer.connection.send(end)
    if answer.error is not ErrorCode.NONE or request.leader_epoch != LEADER_EPOCH:
        return OffsetForLeaderEpochResponse(error=answer.error)
    return OffsetForLeaderEpochResponse(leader_epoch=LEADER_EPOCH, end_offset=answer.offset)


def _check_epoch(epoch: int) -> None:
    """Check that a client's leader epoch is not ahead of this server's; −1: it knows none. Raises: Refused."""
    if epoch > LEADER_EPOCH:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} has not come; it is {LEADER_EPOCH}")


async def delete_records(call: SocketCall, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move a log's start."""
    call.peer.need(Operation.DELETE, ResourceType.TOPIC, request.topic)
    if request.before < -1:
        return DeleteRecordsResponse(error=ErrorCode.OFFSET_OUT_OF_RANGE)
    return await call.peer.connection.send(request)


ENDPOINTS: Final = (
    Endpoint(PRODUCE, produce),
    Endpoint(FETCH, fetch),
    Endpoint(FILTERED_FETCH, filtered_fetch, decode=decode_fetch, encode=encode_fetched),
    derived(LIST_OFFSETS, list_offsets, twice="the partition stands in the request twice"),
    derived(DELETE_RECORDS, delete_records),
    derived(OFFSET_FOR_LEADER_EPOCH, epoch_end),
)
