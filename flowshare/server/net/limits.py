"""The limits that a listener sets its clients: bytes, connections, requests under way, time. Limits that Kafka has bear
Kafka's names.

Every limit has a default, and is kept by `listener.py`, `socket.py`, `memory_pool.py`, `server/runtime/answers.py`. A
client that exceeds a limit loses its connection or is not read from for a while; other clients do not notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from flowshare.share.settings import Setting, by_name, number, read_fields

KIB: Final = 1024
MIB: Final = 1024 * KIB
REAUTH_MS_MIN: Final = 5_000
"""Shortest login in ms: a shorter one would cost a server more than it is good for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Limits of one listener; `LISTENER_CONFIGS` has their names in a server.properties."""

    connections_max: int = 2_000
    connections_per_address_max: int | None = None
    """None: half of all; nine of ten for this machine itself, where all clients have one address."""
    backlog: int = 50
    request_bytes_max: int = 100 * MIB
    plain_request_bytes_max: int = MIB
    sync_request_bytes_max: int = 8 * MIB
    queued_request_bytes_max: int = 256 * MIB
    connection_request_bytes_max: int = 64 * MIB
    connection_requests_max: int = 32
    own_connection_requests_max: int = 100
    connection_answer_bytes_max: int = 4 * MIB
    queued_answer_bytes_max: int = 256 * MIB
    answer_bytes_max: int = 64 * MIB
    idle_max_ms: int = 600_000
    setup_max_ms: int = 30_000
    login_request_bytes_max: int = 16 * KIB
    queued_login_bytes_max: int = 4 * MIB
    login_arrival_max_ms: int = 5_000
    reauth_max_ms: int | None = 3_600_000
    """None: a login holds as long as its connection."""
    arrival_max_ms: int = 60_000
    unread_max_ms: int = 60_000

    def connections_from(self, all_: int, *, own: bool) -> int:
        """Return the connections that one address may have of `all_`. own: the address is this machine's."""
        if self.connections_per_address_max is not None:
            return self.connections_per_address_max
        return all_ - all_ // 10 if own else max(all_ // 2, 1)

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> ListenerLimits:
        """Read limits by their names; a limit not given has its default.

        Raises: InvalidConfig for an unknown name or a value out of bounds.
        """
        return cls(**read_fields(values, LISTENER_CONFIGS))


_number = partial(number, ListenerLimits())

LISTENER_CONFIGS: Final[Mapping[str, Setting]] = by_name(
    _number("max.connections", "connections_max", 1, "Connections at once; further ones are closed."),
    _number(
        "max.connections.per.ip",
        "connections_per_address_max",
        1,
        "Connections at once from one address, or IPv6 network of 64 bits; auto: half of max.connections, and nine "
        "of ten from this machine itself, where all clients have one address.",
        words={"auto": None},
    ),
    _number("socket.listen.backlog.size", "backlog", 1, "Connections that wait to be accepted."),
    _number("socket.request.max.bytes", "request_bytes_max", 1 * KIB, "Longest Produce request, or ShareSettle."),
    _number(
        "socket.plain.request.max.bytes",
        "plain_request_bytes_max",
        1 * KIB,
        "Longest request that carries no records: its parts become objects, which take many times their bytes.",
    ),
    _number(
        "socket.sync.request.max.bytes",
        "sync_request_bytes_max",
        1 * KIB,
        "Longest SyncGroup request: the leader of a consumer group sends the assignments of all members in one.",
    ),
    _number(
        "queued.max.request.bytes",
        "queued_request_bytes_max",
        1 * KIB,
        "Bytes of requests of all connections, received and not answered. A principal (without logins: an address) "
        "gets no more when it holds what is left, nor does a connection when it holds what is left of that part.",
    ),
    _number(
        "connection.queued.max.request.bytes",
        "connection_request_bytes_max",
        1 * KIB,
        "The same for one connection; one longer request is taken alone.",
    ),
    _number("connection.max.requests", "connection_requests_max", 1, "Requests of one connection under way at once."),
    _number(
        "connection.max.requests.flowshare",
        "own_connection_requests_max",
        1,
        "The same for flowshare's own clients, whose answers need not keep the order of the requests.",
    ),
    _number(
        "connection.queued.max.response.bytes",
        "connection_answer_bytes_max",
        1 * KIB,
        "Bytes of answers that a client has not read; beyond it no more of its requests are accepted, and of those "
        "under way a fetch waits until its answer is the next one.",
    ),
    _number(
        "queued.max.response.bytes",
        "queued_answer_bytes_max",
        1 * KIB,
        "The same for all connections, what fetches are about to read included: the less is left, the less a fetch "
        "gets, one batch at least; beyond it whoever has most to read is closed.",
    ),
    _number(
        "response.max.bytes",
        "answer_bytes_max",
        64 * KIB,
        "What the answer to one request takes in memory, records excepted; names beyond it are refused, and where "
        "there are none the connection is closed.",
    ),
    _number("connections.max.idle.ms", "idle_max_ms", 1, "A connection without requests is closed after this."),
    _number("connection.setup.max.ms", "setup_max_ms", 1, "Time for the TLS handshake and the SASL login of a client."),
    _number(
        "sasl.server.max.receive.size",
        "login_request_bytes_max",
        1 * KIB,
        "Longest request before the login, and bytes that a client may send before the last one is answered.",
    ),
    _number(
        "queued.max.login.bytes",
        "queued_login_bytes_max",
        1 * KIB,
        "Bytes of requests of all that have not logged in, apart from those of others; beyond it the oldest of "
        "these connections with a begun request is closed.",
    ),
    _number("login.arrival.max.ms", "login_arrival_max_ms", 1, "Time for a begun request before the login to arrive."),
    _number(
        "connections.max.reauth.ms",
        "reauth_max_ms",
        REAUTH_MS_MIN,
        "How long a login holds: a client that does not log in again on its connection by then loses it; 0: as "
        "long as the connection.",
        words={"0": None},
    ),
    _number("request.arrival.max.ms", "arrival_max_ms", 1, "Time for a begun request to arrive as a whole."),
    _number(
        "response.unread.max.ms",
        "unread_max_ms",
        1,
        "A client that reads nothing of what waits for it is closed after this.",
    ),
)
"""Name -> limit. `connection.…`, `login.…`, `socket.plain.…`, `socket.sync.…`, `request.…`, `response.…`,
`queued.max.response.bytes` and `queued.max.login.bytes` are flowshare's own."""
