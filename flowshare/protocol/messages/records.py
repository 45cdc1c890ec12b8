"""Records of partitions: produce, fetch, list offsets, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.protocol.declaration import LEADER, Api, Coded, Fixed, Route, To, of_partitions
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Request, Response

LATEST: Final = -1
"""Timestamp that stands for the log's end; readers of committed records: for the last stable offset."""
EARLIEST: Final = -2
"""Timestamp that stands for the log's start."""
MAX_TIMESTAMP: Final = -3
"""Timestamp that stands for the highest one there is (KIP-734)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Request["ProduceResponse"]):
    """Record batches (v2) for one partition; answered when confirmed."""

    topic: str
    partition: int
    records: bytes
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(Response):
    base_offset: int = -1
    log_start: int = -1
    append_time_ms: int = -1
    """When the log stamped the records (message.timestamp.type=LogAppendTime), −1: they keep the producer's time."""


class KeyFilter(NamedTuple):
    """Which records are wanted of a partition: those whose hashes (`key_hash.key_slot_hash`) lie in these half-open
    ranges, ascending and disjoint. until: no batch is read that begins there or behind."""

    keys: tuple[tuple[int, int], ...]
    until: int


class FetchPartition(NamedTuple):
    """One partition to read; its first batch is given even if it is larger than `max_bytes`.

    last_epoch: leader epoch of the batch before `offset`, −1: not known; Kafka says when that is not in the log (any
    more), see `FetchedLog.diverging`. only: flowshare's own: the records that are wanted, for servers that can leave
    out the others; whether it did is said by `FetchedLog.filtered`.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20
    last_epoch: int = -1
    only: KeyFilter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(Request["FetchResponse"]):
    """Plain read of partitions, no group. Waits up to `max_wait_ms` until there are `min_bytes`.

    `max_bytes` bounds all partitions together; the first batch found is given even if it is larger.
    """

    partitions: tuple[FetchPartition, ...]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    committed: bool = False
    """Read no further than the last stable offset, and say which transactions were aborted."""
    session: tuple[int, int] | None = None
    """Id and epoch of a fetch session with this broker (KIP-227), (0, 0): a new one. Within it `partitions` are what
    has changed, and the answer holds what has news."""
    forgotten: tuple[tuple[str, int], ...] = ()
    """Partitions that leave the session."""


class AbortedTransaction(NamedTuple):
    """A transaction of which records among those read do not count: the producer's, from this offset on."""

    producer_id: int
    first_offset: int


class Filtered(NamedTuple):
    """What a server looked at that left out records of other keys: all from the offset asked for up to `end`, without.

    voids: half-open ranges of offsets, ascending, where it found no record of any key: control batches, aborted ones,
    what compaction took. They are told to who asked for hash 0. unopened: ranges of batches that it could not open and
    gave whole; what is void in them is not known.
    """

    end: int
    voids: tuple[tuple[int, int], ...] = ()
    unopened: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLog(Response):
    """What was read of one partition: whole batches; the first may begin before the offset asked for.

    diverging: nothing was read, because the log was cut: the highest leader epoch up to the one asked for, and where
    that ends. filtered: flowshare's own: records of other keys are left out, as was asked for, and those of aborted
    transactions as well; None: all that is there was given.
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
    """`partitions` are in the order in which they were asked for, all of them but in a session.

    session_id: the session that the broker keeps, 0: none. throttle_ms: how long the broker answers nothing on this
    connection, because of a quota; what was asked for may be missing in an answer with one (KIP-219).
    """

    partitions: tuple[FetchedLog, ...] = ()
    session_id: int = 0
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """`timestamp_ms`: `LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, else the first offset with a timestamp at or after it."""

    topic: str
    partition: int
    timestamp_ms: int
    committed: bool = False
    current_epoch: int = -1
    """The epoch that the asker takes for the present one; the broker refuses another. −1: it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse(Response):
    """Offset −1: there is no such record."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    """Leader epoch of the record, −1 when it is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyOffsetsRequest(Request["ManyOffsetsResponse"]):
    """`ListOffsetsRequest` of many partitions, all led by whoever is asked. Asked of sockets only."""

    partitions: tuple[tuple[str, int], ...]
    timestamp_ms: int
    committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyOffsetsResponse:
    """In the order of the request."""

    offsets: tuple[ListOffsetsResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Where the records of a leader's epoch end. Asked of sockets only: in process a log has one leader for ever."""

    topic: str
    partition: int
    leader_epoch: int
    current_epoch: int = -1
    """The epoch that the asker takes for the present one; the broker refuses another. −1: it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse(Response):
    """The highest epoch up to the one asked for, and the offset behind its last record; −1, −1: there is none."""

    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    topic: str
    partition: int
    before: int
    """−1: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse(Response):
    log_start: int = -1


_COMMITTED: Final = Coded("committed", {False: 0, True: 1}, other=False)
"""The isolation level."""
_NO_REPLICA: Final = Fixed(-1)
WAIT_MS: Final = 15_000
"""How long a broker may wait for replicas; below request_timeout, so that its answer still comes."""

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
"""A `FetchRequest` with `FetchPartition.only`, for servers that tell of it in ApiVersions."""
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
