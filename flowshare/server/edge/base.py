"""An API at the socket: its peer, its endpoint, and the peer's rights.

The listener reads frames and finds the `Endpoint` by key. Each module of this package has one family of endpoints. An
endpoint turns kio's messages into the plain ones of `protocol.messages`, sends these over `Peer.connection` and turns
the answers back, by the API's declaration (`derived`) or by hand. A stranger's requests are checked here: rights,
limits, versions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import (
    REQUEST_PARTS_MAX,
    ApiKey,
    RequestStart,
    read_request,
    request_body,
    write_response,
)
from flowshare.protocol.rights import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from flowshare.server.runtime.failures import Refused
from flowshare.server.security.acls import ANONYMOUS, Authorizer
from flowshare.server.security.guesses import network_of

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.protocol.declaration import Api
    from flowshare.server.runtime.connection import InProcess
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.runtime.turns import Turns
    from flowshare.share.config import ServerConfig

V = TypeVar("V")

LOGIN_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs that are answered after the login is over, too: a client that waits for its answers before it logs in again may
come late."""
LOGIN_S: Final = 15.0
"""Seconds for a repeated login; the wait after failed logins is included."""
BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, *LOGIN_APIS})
"""The APIs that a listener with SASL answers before the login."""
LEADER_EPOCH: Final = 0
"""Epoch of every partition's leader: a log has one server at a time, as its store decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedNode:
    """The one broker that clients are told of: its advertised address, its node id and the cluster's id."""

    host: str
    port: int
    node_id: int = 1
    cluster_id: str = "flowshare"


class ServerBehind(Protocol):
    """The server that sockets are connected to: a whole server, or a fleet's worker."""

    @property
    def config(self) -> ServerConfig:
        """The server's settings."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of all waiting."""
        ...

    @property
    def topics(self) -> TopicIndex:
        """The topics that the server knows."""
        ...

    async def size(self, topic: str, partition: int) -> int:
        """Return the bytes of a partition's log; 0 where the log is elsewhere. Raises: LogError."""
        ...

    def connect(self, *, client_id: str, host: str) -> InProcess:
        """Return a new connection within the process."""
        ...

    def authorize(self, authorizer: Authorizer) -> None:
        """Set the authorizer that decides rights at the sockets."""
        ...


@dataclass(slots=True, kw_only=True)
class Peer:
    """State of one socket: its direct connection to the server, its peer's address and login."""

    server: ServerBehind
    connection: InProcess
    node: AdvertisedNode
    host: str
    turns: Turns
    """Turns for work on a request that names many things."""
    authorizer: Authorizer = field(default_factory=Authorizer)
    producing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a Produce request begins its appends, which may take several turns: later requests of the connection
    that depend on its records wait, in their order."""
    principal: str | None = ANONYMOUS
    """Name of the logged-in user; None before the login at a listener with SASL."""
    software: str = ""
    """Client software name of ApiVersions v3 and later."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Data that an API family keeps for the connection (an authentication under way)."""
    reauth_max_ms: int | None = None
    """Milliseconds that a login holds (connections.max.reauth.ms); None: as long as the connection."""
    logged_in_until_s: float | None = None
    """End of this connection's login, in seconds of the monotonic clock; None: no end."""
    logging_in_since_s: float | None = None
    """Begin of the login under way, in seconds of the monotonic clock; None: no login is under way."""
    closing: bool = False
    """True if the listener closes the socket once the present answer is written (a failed login)."""
    raw: Callable[[bytes], Awaitable[bytes]] | None = None
    """Takes the next frames whole in place of requests and returns the answers' bytes (both without their length): SASL
    tokens after a SaslHandshake of version 0. The listener calls `raw` for one frame after the other while it is set.
    Raises ConnectionError: the socket is to be closed without an answer."""

    def __post_init__(self) -> None:
        """Give the connection the peer's rights: waiting requests check the rights again when woken."""
        self.connection.counts_as = lambda: self.party
        self.connection.may_read = lambda topic: self.may(Operation.READ, ResourceType.TOPIC, topic)
        self.connection.may_describe = lambda topic: self.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        self.connection.may_share = lambda group_id: self.may(Operation.READ, ResourceType.GROUP, group_id)

    @property
    def party(self) -> str:
        """Name under which limits and shares count the peer: its principal, or its address while the peer is
        unknown."""
        unknown = self.principal is None or self.principal == ANONYMOUS
        return network_of(self.host) if unknown else str(self.principal)

    def answers(self, key: int) -> bool:
        """Return True if requests of this API are answered; before the login only those of `BEFORE_LOGIN` are.

        At any other API the listener closes the connection, with a log line.
        """
        return not self.closing and (self.principal is not None or key in BEFORE_LOGIN)

    def outdated(self, now_s: float) -> bool:
        """Return True if the login is over: from then on only another login is answered."""
        return self.logged_in_until_s is not None and now_s >= self.logged_in_until_s

    def logs_in(self, now_s: float) -> bool:
        """Return True if a login is under way, for less than `LOGIN_S`."""
        return self.logging_in_since_s is not None and now_s - self.logging_in_since_s < LOGIN_S

    def may(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Return True if the peer may do `operation` on the resource of this name."""
        if self.principal is None:
            return False
        return self.authorizer.allowed(self.principal, self.host, operation, resource, name)

    def need(self, operation: Operation, resource: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Check `may`. Raises: Refused."""
        if not self.may(operation, resource, name):
            thing = "the cluster" if resource is ResourceType.CLUSTER else f"{resource.name.lower()} {name}"
            code = ErrorCode[f"{resource.name}_AUTHORIZATION_FAILED"]
            raise Refused(code, f"{operation.name} on {thing} is not allowed for {self.principal}")

    def may_somewhere(self, operation: Operation, resource: ResourceType) -> bool:
        """Return True if the peer may do `operation` on at least one resource of this kind.

        An idempotent producer needs WRITE on some topic, or IDEMPOTENT_WRITE on the cluster (KIP-679).
        """
        if self.principal is None:
            return False
        return self.authorizer.allowed_somewhere(self.principal, self.host, operation, resource)


def may_topic(peer: Peer, operation: Operation, topic: str) -> bool:
    """Return True if the peer may do `operation` on a topic."""
    return peer.may(operation, ResourceType.TOPIC, topic)


def may_group(peer: Peer, operation: Operation, group_id: str) -> bool:
    """Return True if the peer may do `operation` on a group."""
    return peer.may(operation, ResourceType.GROUP, group_id)


def may_cluster(peer: Peer, operation: Operation) -> bool:
    """Return True if the peer may do `operation` on the cluster."""
    return peer.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def authorized_operations(peer: Peer, resource: ResourceType, name: str) -> int:
    """Return the operations that the peer may do with a resource, as bits (KIP-430)."""
    return sum(1 << operation for operation in OPERATIONS[resource] if peer.may(operation, resource, name))


def denied(things: Iterable[V], may: Iterable[bool]) -> list[V]:
    """Return the things whose `may` is False: the ones that `compress` leaves out."""
    return [thing for thing, one in zip(things, may, strict=True) if not one]


def duplicates(values: Iterable[V]) -> set[V]:
    """Return the values that occur more than once."""
    return {value for value, count in Counter(values).items() if count > 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketCall:
    """One request from a socket."""

    peer: Peer
    version: int
    client_id: str | None
    request: Any
    """kio's request entity of this version, or the result of `Endpoint.decode`."""


Answer = Callable[[SocketCall], Awaitable[Any]]
"""Answers with kio's response entity of the call's version, or with an argument for `Endpoint.encode`.

None: no answer is sent (Produce with acks=0). A request is accepted (its place in the order of the connection's
requests taken) before the first await. Raises nothing but ConnectionError (the socket is closed).
"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API as served at a socket: exactly the versions that work, and their handler."""

    api: Api
    answer: Answer
    decode: Callable[[bytes, int, int], Any] | None = None
    """(frame, position of the body, version) -> request, instead of kio's reader."""
    encode: Callable[[int, int, Any], bytes] | None = None
    """(correlation id, version, answer) -> frame with its length, instead of kio's writer."""

    @property
    def key(self) -> ApiKey:
        """Kafka's number of the API."""
        return self.api.key

    @property
    def name(self) -> str:
        """kio's name of the API."""
        return self.api.name

    @property
    def versions(self) -> tuple[int, int]:
        """Lowest and highest version served."""
        assert self.api.server is not None
        return self.api.server

    def serves(self, version: int) -> bool:
        """Return True if the endpoint serves this version."""
        lowest, highest = self.versions
        return lowest <= version <= highest

    def read(self, start: RequestStart, frame: bytes, parts_max: int = REQUEST_PARTS_MAX) -> tuple[str | None, Any]:
        """Return the client id and request of a frame. Raises: as `read_request`."""
        if self.decode is None:
            header, body = read_request(self.name, start, frame, parts_max=parts_max)
        else:
            header, position = request_body(self.name, start, frame)
            body = self.decode(frame, position, start.version)
        return header.client_id, body

    def write(self, correlation_id: int, version: int, answer: Any) -> bytes:
        """Return the frame of an answer, its length included."""
        if self.encode is None:
            return write_response(correlation_id, answer)
        return self.encode(correlation_id, version, answer)
