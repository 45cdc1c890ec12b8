"""What an API is at the socket: kio's request in, kio's response out, the server's direct connection behind it.

`server/listener.py` reads frames and finds the `Api` by key; each module of this package has one family of them,
which turns kio's messages into the plain ones of `protocol.messages`, sends those over `Peer.connection`, and turns
the answers back. Whatever may be asked by a stranger is checked here: rights, limits, versions.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from flowshare.protocol.kafka import ApiKey
from flowshare.server.security.guesses import network_of

if TYPE_CHECKING:
    from flowshare.server.connection import InProcess
    from flowshare.server.turns import Turns

ANONYMOUS: Final = "User:ANONYMOUS"
BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""What a listener with SASL answers while it does not know who is at the other end."""


class ResourceType(enum.IntEnum):
    """Kinds of things that rights are given on (Kafka's ResourceType codes)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(enum.IntEnum):
    """What a principal may be allowed to do (Kafka's AclOperation codes)."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_SETTINGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})
OPERATIONS: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: _SETTINGS
    | {
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
    },
    ResourceType.GROUP: _SETTINGS | {Operation.READ, Operation.DESCRIBE, Operation.DELETE},
    ResourceType.CLUSTER: _SETTINGS
    | {
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
    },
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.DESCRIBE, Operation.WRITE}),
}
"""What can be done to each kind of thing, beside ALL (KIP-430)."""


CLUSTER_NAME: Final = "kafka-cluster"
"""The one name that CLUSTER resources have."""


class Authorizer(Protocol):
    """Decides who may do what; the ACLs of a server, or `AllowAll`."""

    def allowed(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether `principal` (`User:alice`), coming from the address `host`, may do `operation`."""
        ...

    def allowed_somewhere(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Whether there can be a thing of this kind on which it is allowed."""
        ...


class AllowAll:
    """Everybody may do everything: a listener without security."""

    def allowed(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Yes."""
        del principal, host, operation, resource, name
        return True

    def allowed_somewhere(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Yes."""
        del principal, host, operation, resource
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The one broker that clients are told of: where it is advertised, and the cluster's id."""

    host: str
    port: int
    node_id: int = 1
    cluster_id: str = "flowshare"


@dataclass(slots=True, kw_only=True)
class Peer:
    """One socket's state: its direct connection to the server, and who is at the other end."""

    connection: InProcess
    node: Node
    host: str
    turns: Turns
    """Taken by what goes through the many things that a request may name."""
    authorizer: Authorizer = field(default_factory=AllowAll)
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
        self.connection.party = lambda: self.party
        self.connection.may_read = lambda topic: self.may(Operation.READ, ResourceType.TOPIC, topic)
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

    def may_somewhere(self, operation: Operation, resource: ResourceType) -> bool:
        """Whether the peer may do `operation` on some thing of this kind.

        An idempotent producer has to be allowed to write to some topic, or IDEMPOTENT_WRITE on the cluster (KIP-679).
        """
        if self.principal is None:
            return False
        return self.authorizer.allowed_somewhere(self.principal, self.host, operation, resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request off a socket."""

    peer: Peer
    version: int
    client_id: str | None
    request: Any
    """kio's request entity of this version, or what `Api.decode` made of the body."""


Answer = Callable[[Call], Awaitable[Any]]
"""Answers with kio's response entity of the call's version, or with what `Api.encode` takes.

None: no answer is sent (Produce with acks=0). A request is accepted (its place in the order of the connection's
requests taken) before the first await. Raises nothing but ConnectionError (the socket is closed).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API with exactly the versions that work."""

    key: ApiKey
    lowest: int
    highest: int
    answer: Answer
    decode: Callable[[bytes, int, int], Any] | None = None
    """(frame, position of the body, version) -> request, instead of kio's reader."""
    encode: Callable[[int, int, Any], bytes] | None = None
    """(correlation id, version, answer) -> frame with its length, instead of kio's writer."""


class Family(Protocol):
    """A family of APIs."""

    def apis(self) -> Sequence[Api]:
        """The APIs of this family."""
        ...
