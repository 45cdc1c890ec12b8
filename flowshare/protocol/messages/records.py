"""Records of partitions: produce, fetch, list offsets, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.protocol.declaration import LEADER, Api, Coded, Fixed, Route, To, of_partitions
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response

LATEST: Final = -1
"""The timestamp that stands for the log's end; for readers of committed records: the last stable offset."""
EARLIEST: Final = -2
"""The timestamp that stands for the log's start."""
MAX_TIMESTAMP: Final = -3
"""The timestamp that stands for the highest timestamp in the log (KIP-734)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Request["ProduceResponse"]):
    """Append record batches (v2) to one partition; answered when confirmed."""

    topic: str
    partition: int
    records: bytes
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(Response):
    base_offset: int = -1
    log_start: int = -1
    append_time_ms: int = -1
    """The time when the log stamped the records (message.timestamp.type=LogAppendTime), −1: they keep the producer's
    time."""


class KeyFilter(NamedTuple):
    """The wanted records of a partition: those with hashes (`key_hash.key_slot_hash`) in these half-open ranges,
    ascending and disjoint. until: no batch is read that begins there or behind."""

    keys: tuple[tuple[int, int], ...]
    until: int


class FetchPartition(NamedTuple):
    """One partition to read; its first batch is returned even if it is larger than `max_bytes`.

    last_epoch: leader epoch of the batch before `offset`, −1: not known; Kafka reports when that is not in the log (any
    more), see `FetchedLog.diverging`. only: flowshare's own: the wanted records, for servers that can leave out the
    others; `FetchedLog.filtered` tells if the server did.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20
    last_epoch: int = -1
    only: KeyFilter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(Request["FetchResponse"]):
    """Read partitions without a group. The server waits up to `max_wait_ms` until there are `min_bytes`.

    max_bytes: bounds all partitions together; the first batch found is returned even if it is larger.
    """

    partitions: tuple[FetchPartition, ...]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    committed: bool = False
    """True: read no further than the last stable offset, and name the aborted transactions."""
    session: tuple[int, int] | None = None
    """Id and epoch of a fetch session with this broker (KIP-227), (0, 0): a new one. In a session, `partitions` are
    only the changed ones, and the answer has only those with news."""
    forgotten: tuple[tuple[str, int], ...] = ()
    """Partitions that leave the session."""


class AbortedTransaction(NamedTuple):
    """An aborted transaction: the producer's records from this offset on do not count."""

    producer_id: int
    first_offset: int


class Filtered(NamedTuple):
    """The offsets that a server examined while it left out records of other keys: from the asked offset to before
    `end`.

    voids: half-open ranges of offsets, ascending, without any record: control batches, aborted batches, records removed
    by compaction; sent only with a fetch for hash 0. unopened: ranges of batches that the server could not open and
    sent whole; their voids are not known.
    """

    end: int
    voids: tuple[tuple[int, int], ...] = ()
    unopened: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLog(Response):
    """The batches that were read of one partition, whole; the first may begin before the asked offset.

    diverging: nothing was read, because the log was truncated: the highest leader epoch up to the asked one, and the
    offset where that epoch ends. filtered: flowshare's own: records of other keys were left out, as asked, and those of
    aborted transactions as well; None: nothing was left out.
    """

    topic: str
    partition: int
    records: bytes = b""
    log_start: int = -1
    high_watermark: int = -1
    last_stable: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    diverging: tuple[int, int] | None = None
    filtered: Filtered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(Response):
    """The logs, in the order of the request, complete except in a session.

    session_id: the session that the broker keeps, 0: none. throttle_ms: how long the broker answers nothing on this
    connection, because of a quota; partitions may be missing in such an answer (KIP-219).
    """

    partitions: tuple[FetchedLog, ...] = ()
    session_id: int = 0
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """Ask for an offset. timestamp_ms: `LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, else: the first offset at or after that
    time."""

    topic: str
    partition: int
    timestamp_ms: int
    committed: bool = False
    current_epoch: int = -1
    """The epoch that the caller takes for the current one; the broker refuses another. −1: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse(Response):
    """The offset found; −1: no such record."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    """The leader epoch of the record, −1: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyOffsetsRequest(Request["ManyOffsetsResponse"]):
    """Ask for offsets of many partitions (`ListOffsetsRequest`), all led by the asked broker. Sockets only."""

    partitions: tuple[tuple[str, int], ...]
    timestamp_ms: int
    committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyOffsetsResponse:
    """The offsets, in the order of the request."""

    offsets: tuple[ListOffsetsResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Ask for the end of a leader epoch's records. Sockets only: in process a log has one leader for ever."""

    topic: str
    partition: int
    leader_epoch: int
    current_epoch: int = -1
    """The epoch that the caller takes for the current one; the broker refuses another. −1: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse(Response):
    """The highest epoch up to the asked one, and the offset behind its last record; −1, −1: none."""

    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    topic: str
    partition: int
    before: int
    """The first offset to keep; −1: delete all records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse(Response):
    log_start: int = -1


_COMMITTED: Final = Coded("committed", {False: 0, True: 1}, other=False)
"""Codes of the isolation level."""
_NO_REPLICA: Final = Fixed(-1)
WAIT_MS: Final = 15_000
"""The longest time, in milliseconds, that a broker may wait for replicas; below request_timeout, so that its answer
comes."""

PRODUCE: Final = Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse, server=(3, 13), client=(9, 11), route=LEADER)
FETCH: Final = Api(
    ApiKey.FETCH,
    FetchRequest,
    FetchResponse,
    server=(4, 18),
    client=(12, 12),
    route=Route(To.LEADERS),
    wait_ms=lambda request: request.max_wait_ms,
)
FILTERED_FETCH: Final = Api(
    ApiKey.FLOWSHARE_FETCH, server=(0, 0), client=(0, 0), wait_ms=lambda request: request.max_wait_ms
)
"""A `FetchRequest` with `FetchPartition.only`, for servers that offer it in ApiVersions."""
LIST_OFFSETS: Final = Api(
    ApiKey.LIST_OFFSETS,
    ListOffsetsRequest,
    ListOffsetsResponse,
    server=(1, 11),
    client=(6, 9),
    route=LEADER,
    needs=lambda request: 7 if request.timestamp_ms == MAX_TIMESTAMP else 0,  # KIP-734
    request_shape={
        "replica_id": _NO_REPLICA,
        "isolation_level": _COMMITTED,
        **of_partitions("topics", {"current_leader_epoch": "current_epoch"}),
    },
    response_shape=of_partitions("topics"),
)
LIST_MANY_OFFSETS: Final = Api(ApiKey.LIST_OFFSETS, ManyOffsetsRequest, ManyOffsetsResponse, client=(6, 9))
OFFSET_FOR_LEADER_EPOCH: Final = Api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    server=(2, 4),
    client=(4, 4),
    route=LEADER,
    request_shape={"replica_id": _NO_REPLICA, **of_partitions("topics", {"current_leader_epoch": "current_epoch"})},
    response_shape=of_partitions("topics"),
)
DELETE_RECORDS: Final = Api(
    ApiKey.DELETE_RECORDS,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    server=(0, 2),
    client=(2, 2),
    route=LEADER,
    request_shape={**of_partitions("topics", {"offset": "before"}), "timeout": Fixed(WAIT_MS)},
    response_shape=of_partitions("topics", {"low_watermark": "log_start"}),
)
