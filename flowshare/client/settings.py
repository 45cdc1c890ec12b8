"""Settings of the client's parts, with Kafka's defaults where Kafka has the setting (its name in brackets).

Durations are seconds, sizes are bytes. Each class raises TypeError for a value of another type and ValueError for one
that is too small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from flowshare.client.arguments import check_settings
from flowshare.share.types import AcquireMode

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """How a connection is kept. The bounds are a socket's; in process nothing is in flight.

    connect_timeout_s: how long a call waits for a connection before it gives up (default.api.timeout.ms is 60 s).
    request_timeout_s: how long an answer may take, on top of what the request itself waits (request.timeout.ms).
    backoff_min_s, backoff_max_s: pause before a new try, doubled each time (retry.backoff.ms, retry.backoff.max.ms).
    in_flight_max, in_flight_bytes_max: unanswered requests of one connection, and their bytes; more wait for a place.
    response_bytes_max: the largest answer that is read; what is larger ends the connection.
    ride_s: how long acknowledgements wait for a fetch to ride on, where a broker takes one request at a time; 0 for who
        waits for them before it fetches.
    """

    connect_timeout_s: float = 30.0
    request_timeout_s: float = 30.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0
    in_flight_max: int = 100
    in_flight_bytes_max: int = 64 * MIB
    response_bytes_max: int = 128 * MIB
    ride_s: float = 0.002

    def __post_init__(self) -> None:
        """Raises: TypeError, ValueError."""
        seconds = ("connect_timeout_s", "request_timeout_s", "backoff_min_s", "backoff_max_s", "ride_s")
        counts = ("in_flight_max", "in_flight_bytes_max", "response_bytes_max")
        check_settings(self, {**dict.fromkeys(seconds, 0), **dict.fromkeys(counts, 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Settings of one member of a share group.

    rack_id: where the member runs (client.rack).
    close_timeout_s: how long `close` waits in all.
    """

    link: LinkSettings = field(default_factory=LinkSettings)
    rack_id: str | None = None
    close_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Raises: TypeError, ValueError."""
        check_settings(self, {"close_timeout_s": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a `ShareConsumer`.

    acknowledgement_mode: `implicit`: the next poll or commit accepts what the last poll returned; `explicit`: every
        record is acknowledged by the application before the next poll (share.acknowledgement.mode).
    acquire_mode: how strictly `poll_records_max` is kept (share.acquire.mode, KIP-1206).
    poll_records_max: records a poll asks for; with BATCH_OPTIMIZED it may return more (max.poll.records).
    poll_interval_max_s: the longest time between two polls; after it the member leaves its group, and the next
        poll joins again (max.poll.interval.ms).
    fetch_bytes_max, fetch_wait_s: bytes of one fetch and how long the server may hold it (fetch.max.bytes,
        fetch.max.wait.ms).
    api_timeout_s: how long `commit_sync` waits unless told otherwise (default.api.timeout.ms).
    """

    member: MemberSettings = field(default_factory=MemberSettings)
    acknowledgement_mode: Literal["implicit", "explicit"] = "implicit"
    acquire_mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    poll_records_max: int = 500
    poll_interval_max_s: float = 300.0
    fetch_bytes_max: int = 50 * MIB
    fetch_wait_s: float = 0.5
    api_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Raises: TypeError, ValueError."""
        seconds = ("poll_interval_max_s", "fetch_wait_s", "api_timeout_s")
        check_settings(self, {**dict.fromkeys(seconds, 0), "poll_records_max": 1, "fetch_bytes_max": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a `Producer`.

    linger_s: how long a batch waits for more records (linger.ms). Without waiting, records that come while a request
        of their partition is under way share the next one.
    batch_bytes: size at which a batch is closed (batch.size; Kafka's 16 KiB is small for one process).
    request_bytes_max: the largest record, and about the largest request (max.request.size).
    buffer_bytes: records not yet confirmed, in all; above it `send` waits (buffer.memory).
    compression: codec of the batches (compression.type).
    delivery_timeout_s: after it an unconfirmed record fails (delivery.timeout.ms).
    metadata_age_max_s: how long a topic's partition count is believed (metadata.max.age.ms).
    auto_create_topics: create an unknown topic with one partition, as brokers do by default
        (auto.create.topics.enable).
    """

    link: LinkSettings = field(default_factory=LinkSettings)
    linger_s: float = 0.0
    batch_bytes: int = 64 * 1024
    request_bytes_max: int = MIB
    buffer_bytes: int = 32 * MIB
    compression: Compression = "none"
    delivery_timeout_s: float = 120.0
    metadata_age_max_s: float = 300.0
    auto_create_topics: bool = True

    def __post_init__(self) -> None:
        """Raises: TypeError, ValueError."""
        seconds = ("linger_s", "delivery_timeout_s", "metadata_age_max_s")
        sizes = ("batch_bytes", "request_bytes_max", "buffer_bytes")
        check_settings(self, {**dict.fromkeys(seconds, 0), **dict.fromkeys(sizes, 1)})
