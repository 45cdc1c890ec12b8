"""What an API is at the socket: who asks, what may be asked, and what answers.

The listener reads frames and finds the `Endpoint` by key. A module of this package has one family of them; each turns
kio's messages into the plain ones of `protocol.messages`, sends those over `Peer.connection` and turns the answers
back, by the API's declaration (`derived`) or by hand. Whatever may be asked by a stranger is checked here: rights,
limits, versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import (
    REQUEST_PARTS_MAX,
    ApiKey,
    RequestStart,
    read_request,
    request_body,
    write_response,
)
from flowshare.protocol.rights import CLUSTER_NAME, Operation, ResourceType
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

BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""What a listener with SASL answers while it does not know who is at the other end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedNode:
    """The one broker that clients are told of: where it is advertised, and the cluster's id."""

    host: str
    port: int
    node_id: int = 1
    cluster_id: str = "flowshare"


class ServerBehind(Protocol):
    """What sockets are connected to: a whole server, or a fleet's worker."""

    @property
    def config(self) -> ServerConfig:
        """Its settings."""
        ...

    @property
    def clock(self) -> Clock:
        """What rules all waiting."""
        ...

    @property
    def topics(self) -> TopicIndex:
        """The topics that are known here."""
        ...

    def connect(self, *, client_id: str, host: str) -> InProcess:
        """A new connection within the process."""
        ...

    def authorize(self, authorizer: Authorizer) -> None:
        """Who may do what at the sockets."""
        ...


@dataclass(slots=True, kw_only=True)
class Peer:
    """One socket's state: its direct connection to the server, and who is at the other end."""

    server: ServerBehind
    connection: InProcess
    node: AdvertisedNode
    host: str
    turns: Turns
    """Taken by what goes through the many things that a request may name."""
    authorizer: Authorizer = field(default_factory=Authorizer)
    producing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a Produce request begins its appends, which may take it several turns: what comes behind it and
    depends on its records waits for it, in the order in which it came."""
    principal: str | None = ANONYMOUS
    """None until a listener with SASL knows who it is."""
    software: str = ""
    """Client software name of ApiVersions v3 and later."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """What a family keeps for one connection (an authentication under way)."""
    reauth_max_ms: int | None = None
    """How long a login holds (connections.max.reauth.ms); None: as long as the connection."""
    logged_in_until_s: float | None = None
    """When the login of this connection is over, on the monotonic clock; None: it holds."""
    closing: bool = False
    """The listener closes the socket once the answer to the request under way is written (a failed login)."""
    raw: Callable[[bytes], Awaitable[bytes]] | None = None
    """Takes the next frames whole in place of requests and gives the answers' bytes (both without their length):
    SASL tokens after a SaslHandshake of version 0. The listener asks it, one frame after the other, while it is set.
    Raises ConnectionError: the socket is to be closed without an answer."""

    def __post_init__(self) -> None:
        """What waits behind the connection asks for rights again when it is woken."""
        self.connection.counts_as = lambda: self.party
        self.connection.may_read = lambda topic: self.may(Operation.READ, ResourceType.TOPIC, topic)
        self.connection.may_describe = lambda topic: self.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        self.connection.may_share = lambda group_id: self.may(Operation.READ, ResourceType.GROUP, group_id)

    @property
    def party(self) -> str:
        """Who it counts as where something is divided: its principal, or its address while nobody knows who it is."""
        unknown = self.principal is None or self.principal == ANONYMOUS
        return network_of(self.host) if unknown else str(self.principal)

    def answers(self, key: int) -> bool:
        """Whether a request of this API is answered: before the login only those of `BEFORE_LOGIN`.

        The listener closes the connection, with a log line, at any other.
        """
        return not self.closing and (self.principal is not None or key in BEFORE_LOGIN)

    def outdated(self, now_s: float) -> bool:
        """Whether the login is over: the listener closes the connection, whatever is under way."""
        return self.logged_in_until_s is not None and now_s >= self.logged_in_until_s

    def may(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the peer may do `operation` on the thing of this name."""
        if self.principal is None:
            return False
        return self.authorizer.allowed(self.principal, self.host, operation, resource, name)

    def need(self, operation: Operation, resource: ResourceType, name: str = CLUSTER_NAME) -> None:
        """As `may`. Raises: Refused."""
        if not self.may(operation, resource, name):
            thing = "the cluster" if resource is ResourceType.CLUSTER else f"{resource.name.lower()} {name}"
            code = ErrorCode[f"{resource.name}_AUTHORIZATION_FAILED"]
            raise Refused(code, f"{operation.name} on {thing} is not allowed for {self.principal}")

    def may_somewhere(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the peer may do `operation` on some thing of this kind.

        An idempotent producer has to be allowed to write to some topic, or IDEMPOTENT_WRITE on the cluster (KIP-679).
        """
        if self.principal is None:
            return False
        return self.authorizer.allowed_somewhere(self.principal, self.host, operation, resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketCall:
    """One request off a socket."""

    peer: Peer
    version: int
    client_id: str | None
    request: Any
    """kio's request entity of this version, or what `Endpoint.decode` made of the body."""


Answer = Callable[[SocketCall], Awaitable[Any]]
"""Answers with kio's response entity of the call's version, or with what `Endpoint.encode` takes.

None: no answer is sent (Produce with acks=0). A request is accepted (its place in the order of the connection's
requests taken) before the first await. Raises nothing but ConnectionError (the socket is closed).
"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API as it is served at a socket: exactly the versions that work, and what answers it."""

    api: Api
    answer: Answer
    decode: Callable[[bytes, int, int], Any] | None = None
    """(frame, position of the body, version) -> request, instead of kio's reader."""
    encode: Callable[[int, int, Any], bytes] | None = None
    """(correlation id, version, answer) -> frame with its length, instead of kio's writer."""

    @property
    def key(self) -> ApiKey:
        """Kafka's number of it."""
        return self.api.key

    @property
    def name(self) -> str:
        """kio's name of it."""
        return self.api.name

    @property
    def versions(self) -> tuple[int, int]:
        """Lowest and highest."""
        assert self.api.server is not None
        return self.api.server

    def serves(self, version: int) -> bool:
        """Whether it is one of the versions."""
        lowest, highest = self.versions
        return lowest <= version <= highest

    def read(self, start: RequestStart, frame: bytes, parts_max: int = REQUEST_PARTS_MAX) -> tuple[str | None, Any]:
        """Client id and request of a frame. Raises: as `read_request`."""
        if self.decode is None:
            header, body = read_request(self.name, start, frame, parts_max=parts_max)
        else:
            header, position = request_body(self.name, start, frame)
            body = self.decode(frame, position, start.version)
        return header.client_id, body

    def write(self, correlation_id: int, version: int, answer: Any) -> bytes:
        """The frame of an answer, its length included."""
        if self.encode is None:
            return write_response(correlation_id, answer)
        return self.encode(correlation_id, version, answer)
