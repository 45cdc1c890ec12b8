"""Records at the socket: Produce and Fetch; `positions.py` has what is asked about offsets.

Rights: WRITE on topics (and on the transactional id), READ to fetch, before a fetch waits and again before it is
answered; what is not allowed is told partition by partition, the others go on. There are no fetch sessions: a client
that asks for one is told session 0 and sends whole requests from then on (KIP-227).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    FetchedLog,
    FetchPartition,
    FetchRequest,
    ProduceRequest,
    ProduceResponse,
)
from flowshare.server.edge.base import Api, Call, Operation, Peer, ResourceType
from flowshare.server.edge.forms import (
    NO_TIME,
    Form,
    check_epoch,
    form,
    may_cluster,
    may_topic,
    milliseconds,
    once,
    topics_of,
)
from flowshare.server.failures import Refused

if TYPE_CHECKING:
    import uuid

    from flowshare.server.topic_index import TopicIndex
    from flowshare.server.turns import Turns

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
APPEND_COST: Final = 20
"""What an append counts in its connection's turn: its first step alone takes as long as so many small things."""
NO_SESSION: Final = 0
WHOLE_FETCH: Final = (-1, 0)
"""Session epochs of a fetch that names all its partitions."""
EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


class Place(NamedTuple):
    """A partition as a request names it: topic name (None if no topic has the id), topic id, number."""

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int


class RecordsEdge:
    """Answers Produce and Fetch."""

    def __init__(self, topics: TopicIndex) -> None:
        self._topics = topics

    def apis(self) -> Sequence[Api]:
        """The two APIs."""
        return (
            Api(key=ApiKey.PRODUCE, lowest=3, highest=13, answer=self.produce),
            Api(key=ApiKey.FETCH, lowest=4, highest=18, answer=self.fetch),
        )

    # --- produce --------------------------------------------------------------------------------------------------

    async def produce(self, call: Call) -> Any:
        """Append batches to partitions, side by side; with acks=0 nothing is answered.

        Raises: ConnectionError when acks=0 and something failed: closing is all that can be said then.
        """
        asked = call.request
        with_ids = call.version >= PRODUCE_WITH_IDS
        tasks: list[tuple[Place, asyncio.Future[ProduceResponse]]] = []
        try:
            async with call.peer.producing:
                await self._begin(call, tasks, with_ids=with_ids)
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
        self, call: Call, tasks: list[tuple[Place, asyncio.Future[ProduceResponse]]], *, with_ids: bool
    ) -> None:
        """Begin the appends. A short request's are begun before anything else runs."""
        turns, topics = call.peer.turns, call.request.topic_data
        twice: set[tuple[Any, int]] = set()
        named = await once(
            turns, topics, "topic_id" if with_ids else "name", "index", parts="partition_data", twice=twice
        )
        for topic, parts in named.items():
            name, topic_id = self._named(topic, with_ids=with_ids)
            for number, part in parts.items():
                await turns.take(APPEND_COST)
                # A task each, also for a single one: tasks begin in the order in which they are made, so that what
                # was sent first is appended first.
                place = Place(name, topic_id, number)
                work = _twice() if (topic, number) in twice else self._append(call, place, part.records)
                tasks.append((place, asyncio.ensure_future(work)))

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
        named = await once(peer.turns, asked.topics, "topic_id" if with_ids else "topic", "partition")
        for topic, parts in named.items():
            name, topic_id = self._named(topic, with_ids=with_ids)
            for number, part in parts.items():
                await peer.turns.take()
                index, place = len(places), Place(name, topic_id, number)
                places.append(place)
                try:
                    allowed = _readable(peer, place, replica)
                    check_epoch(part.current_leader_epoch if call.version >= 9 else -1)
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
        answered = [(place, found[index]) for index, place in enumerate(places)]

        def fetched(one: tuple[Place, FetchedLog]) -> tuple[Any, Any]:
            return _fetched_part(make, one[0], _still_readable(peer, *one, replica), with_ids=with_ids)

        return await _fetched(make, peer.turns, map(fetched, answered))

    def _named(self, topic: Any, *, with_ids: bool) -> tuple[str | None, uuid.UUID | None]:
        """Name and id of a topic as a request says it; older versions give the name, later ones the id."""
        if not with_ids:
            return topic, None
        found = None if topic is None else self._topics.by_id(topic)
        return None if found is None else found.name, topic


async def _twice() -> ProduceResponse:
    """A partition may stand in a request only once: of two batches one might be taken and the other not."""
    return ProduceResponse(error=ErrorCode.INVALID_REQUEST, message="the partition stands in the request twice")


def _allowed(peer: Peer, place: Place, operation: Operation) -> str:
    """The topic's name. Raises: Refused (no topic has the id, or it may not be used)."""
    if place.topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {place.topic_id}")
    if not may_topic(peer, operation, place.topic):
        verb = "writing to" if operation is Operation.WRITE else "reading"
        # Who asked by the id may not know the name.
        asked_for = place.topic if place.topic_id is None else place.topic_id
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{verb} topic {asked_for} is not allowed")
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


def _still_readable(peer: Peer, place: Place, log: FetchedLog, replica: int) -> FetchedLog:
    """What was read, unless the right to it was taken away while the fetch waited."""
    if log.error is not ErrorCode.NONE:
        return log
    try:
        _readable(peer, place, replica)
    except Refused as error:
        return FetchedLog(topic=log.topic, partition=log.partition, error=error.code, message=str(error))
    return log


async def _produced(make: Form, turns: Turns, done: Iterable[tuple[Place, ProduceResponse]], *, with_ids: bool) -> Any:
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
        responses=await topics_of(
            turns,
            parts,
            lambda topic, found: make("TopicProduceResponse", name=topic, topic_id=topic, partition_responses=found),
        ),
    )


def _fetched_part(make: Form, place: Place, log: FetchedLog, *, with_ids: bool) -> tuple[Any, Any]:
    """A partition under its topic's name or id."""
    part = make(
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
    return place.topic_id if with_ids else place.topic, part


async def _fetched(make: Form, turns: Turns, parts: Iterable[tuple[Any, Any]]) -> Any:
    return make(
        "FetchResponse",
        throttle_time=NO_TIME,
        error_code=ErrorCode.NONE,
        session_id=NO_SESSION,
        responses=await topics_of(
            turns,
            parts,
            lambda topic, found: make("FetchableTopicResponse", topic=topic, topic_id=topic, partitions=found),
        ),
    )


def _time(milliseconds_: int) -> datetime.datetime | None:
    return None if milliseconds_ < 0 else EPOCH + datetime.timedelta(milliseconds=milliseconds_)


def _take_note(task: asyncio.Future[Any]) -> None:
    """Look at the error of a task whose request has failed already by another one's: asyncio warns of one unseen."""
    if not task.cancelled():
        task.exception()
