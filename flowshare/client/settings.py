"""Settings of the client's parts, named as Kafka's settings where Kafka has them, in snake case and without a unit.

Durations are seconds, sizes are bytes. Kafka's name stands in brackets where it differs. Each class raises TypeError
for a value of another type and ValueError for a value that is too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from flowshare.backoff import Backoff
from flowshare.client.arguments import check_settings
from flowshare.share.types import AcquireMode

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
MIB: Final = 1 << 20
LINK_PAUSES: Final = Backoff(0.05, 2.0)

SESSION_S_MIN: Final = 6.0
"""The shortest session, in seconds, that Kafka's brokers accept by default (group.min.session.timeout.ms)."""
SESSION_S_MAX: Final = 10.0


def session_s(limit_s: float) -> float:
    """Return the session of a member that others may take over from after `limit_s` seconds: at most as long, where
    brokers accept that."""
    return min(SESSION_S_MAX, max(SESSION_S_MIN, limit_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Settings of a connection. The bounds are a socket's; in process no request is in flight.

    connect_timeout: longest wait of a call for a connection (default.api.timeout.ms is 60 s).
    request_timeout: longest wait for an answer, on top of the request's own wait (request.timeout.ms).
    backoff: pauses before retries, spread between clients.
    max_in_flight_requests, max_in_flight_bytes: unanswered requests of one connection, and their bytes; others wait.
    max_response_bytes: the largest answer that is read; a larger one ends the connection.
    acknowledge_linger: longest wait of acknowledgements for a fetch to be sent with, where a broker takes one request
        at a time; 0 for callers that wait for them before the next fetch.
    """

    connect_timeout: float = 30.0
    request_timeout: float = 30.0
    backoff: Backoff = LINK_PAUSES
    max_in_flight_requests: int = 100
    max_in_flight_bytes: int = 64 * MIB
    max_response_bytes: int = 128 * MIB
    acknowledge_linger: float = 0.002

    def __post_init__(self) -> None:
        """Check the settings. Raises: TypeError, ValueError."""
        seconds = ("connect_timeout", "request_timeout", "acknowledge_linger")
        counts = ("max_in_flight_requests", "max_in_flight_bytes", "max_response_bytes")
        check_settings(self, {**dict.fromkeys(seconds, 0), **dict.fromkeys(counts, 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Settings of one member of a share group.

    rack_id: the rack where the member runs (client.rack).
    close_timeout: longest wait of `close` in all.
    """

    link: LinkSettings = field(default_factory=LinkSettings)
    rack_id: str | None = None
    close_timeout: float = 10.0

    def __post_init__(self) -> None:
        """Check the settings. Raises: TypeError, ValueError."""
        check_settings(self, {"close_timeout": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a `ShareConsumer`.

    acknowledgement_mode: `implicit`: the next poll or commit accepts the records of the last poll; `explicit`: the
        application acknowledges every record before the next poll (share.acknowledgement.mode).
    isolation_level: the records that the group hands out to all its members: `read_committed`: none of a transaction
        that is open or was aborted; `read_uncommitted`: all, at once; None: as the group is set. This is the group's
        share.isolation.level, set with the first poll; a consumer without the right to set it logs that once.
    acquire_mode: how strictly `max_poll_records` is kept (share.acquire.mode, KIP-1206).
    max_poll_records: records that a poll asks for; with BATCH_OPTIMIZED it may return more (max.poll.records).
    max_poll_interval: the longest time between two polls; after it the member leaves its group, and the next poll joins
        again (max.poll.interval.ms).
    fetch_max_bytes, fetch_max_wait: bytes of one fetch, and the longest time that the server may hold it
        (fetch.max.bytes, fetch.max.wait.ms).
    default_api_timeout: default wait of `commit_sync` (default.api.timeout.ms).
    """

    member: MemberSettings = field(default_factory=MemberSettings)
    acknowledgement_mode: Literal["implicit", "explicit"] = "implicit"
    isolation_level: Literal["read_uncommitted", "read_committed"] | None = "read_committed"
    acquire_mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    max_poll_records: int = 500
    max_poll_interval: float = 300.0
    fetch_max_bytes: int = 50 * MIB
    fetch_max_wait: float = 0.5
    default_api_timeout: float = 60.0

    def __post_init__(self) -> None:
        """Check the settings. Raises: TypeError, ValueError."""
        seconds = ("max_poll_interval", "fetch_max_wait", "default_api_timeout")
        check_settings(self, {**dict.fromkeys(seconds, 0), "max_poll_records": 1, "fetch_max_bytes": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeSettings:
    """Settings of a member of a cooperative group, and of a `CooperativeConsumer`.

    enable_auto_commit: the next poll commits the records of the last one; else the application commits each record
        (enable.auto.commit).
    auto_offset_reset: the start in a partition without commits of the group: `earliest`, `latest`, or `none`: an error
        (auto.offset.reset).
    isolation_level: `read_committed` hands out no record of a transaction that is open or was aborted
        (isolation.level).
    lease: after this time without an answer of the server a member begins nothing, and others get its claims.
    drain_mode: the right of others that wait for claims which this member does not give back in time. `strict`: they
        wait for its lease; `available`: they take the claims after `drain_timeout`, so that two handlers of one key may
        overlap.
    shares: the member takes parts of partitions. unshared_topics: topics of which it takes whole partitions only.
    exact_starts: the server counts each start of a record before it is made, so that the death of a member takes an
        attempt only from its records in flight, at the price of a write for each poll with records. Else first starts
        are counted by the thousand, ahead of time: a death may count once for records beside it.
    session_timeout, heartbeat_interval, rebalance_timeout, group_instance_id: of the membership in the group, as in
        Kafka's consumers.
    max_poll_records: the most records that a poll returns (max.poll.records).
    max_poll_interval: the longest time between two polls; after it the consumer gives everything back and leaves its
        group, and the next poll joins again (max.poll.interval.ms).
    buffer_records: the most records of one partition that wait; with so many its reading stops.
    fetch_max_bytes, partition_fetch_bytes, fetch_max_wait: bytes of one fetch, of each partition in it, and the longest
        time that the server may hold it (fetch.max.bytes, max.partition.fetch.bytes, fetch.max.wait.ms).
    default_api_timeout: default wait of `commit_sync` (default.api.timeout.ms).
    close_timeout: longest wait of `close` for commits.
    """

    link: LinkSettings = field(default_factory=LinkSettings)
    enable_auto_commit: bool = False
    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_committed"
    lease: float = 30.0
    drain_mode: Literal["strict", "available"] = "strict"
    drain_timeout: float = 60.0
    shares: bool = True
    unshared_topics: Sequence[str] = ()
    exact_starts: bool = False
    session_timeout: float = 10.0
    heartbeat_interval: float = 1.0
    rebalance_timeout: float = 6.0
    group_instance_id: str | None = None
    max_poll_records: int = 500
    max_poll_interval: float = 300.0
    buffer_records: int = 2_000
    fetch_max_bytes: int = 50 * MIB
    partition_fetch_bytes: int = MIB
    fetch_max_wait: float = 0.5
    default_api_timeout: float = 60.0
    close_timeout: float = 10.0

    def __post_init__(self) -> None:
        """Check the settings. Raises: TypeError, ValueError."""
        seconds = (
            "drain_timeout",
            "fetch_max_wait",
            "default_api_timeout",
            "close_timeout",
            "heartbeat_interval",
            "max_poll_interval",
        )
        counts = ("max_poll_records", "buffer_records", "fetch_max_bytes", "partition_fetch_bytes", "lease")
        check_settings(self, {**dict.fromkeys(seconds, 0), **dict.fromkeys(counts, 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a `Producer`.

    linger: how long a batch waits for more records (linger.ms). Without waiting, records that are sent in one turn of
        the event loop share a request, and so do records sent while five requests of their partition are under way.
    batch_size: size at which a batch is closed (batch.size; Kafka's 16 KiB is small for one process).
    max_request_size: the largest record (max.request.size).
    buffer_memory: bytes of all records not yet confirmed; above it `send` waits (buffer.memory).
    compression: codec of the batches (compression.type).
    delivery_timeout: time after which an unconfirmed record fails (delivery.timeout.ms).
    metadata_max_age: how long a topic's known partition count is used (metadata.max.age.ms).
    auto_create_topics: create an unknown topic with one partition, as brokers do by default
        (auto.create.topics.enable).
    """

    link: LinkSettings = field(default_factory=LinkSettings)
    linger: float = 0.0
    batch_size: int = 64 * 1024
    max_request_size: int = MIB
    buffer_memory: int = 32 * MIB
    compression: Compression = "none"
    delivery_timeout: float = 120.0
    metadata_max_age: float = 300.0
    auto_create_topics: bool = True

    def __post_init__(self) -> None:
        """Check the settings. Raises: TypeError, ValueError."""
        seconds = ("linger", "delivery_timeout", "metadata_max_age")
        sizes = ("batch_size", "max_request_size", "buffer_memory")
        check_settings(self, {**dict.fromkeys(seconds, 0), **dict.fromkeys(sizes, 1)})
