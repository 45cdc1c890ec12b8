"""How an API of Kafka's protocol is declared: key, versions, where it goes, and where its fields are on the wire.

An `Api` stands below its two plain classes in `protocol.messages`, and is all that client and server need to know of
it. Of the wire it says where a plain field is found in kio's entity, by kio's names, unless it has the same name there
or the usual one (`translation.USUAL`):

    DELETE_GROUPS = Api(
        ApiKey.DELETE_GROUPS,
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        server=(0, 2),
        client=(2, 2),
        route=Route(To.COORDINATORS),
        request_shape={"groups_names": "group_ids"},
        response_shape={"results": Array("groups", GroupResult)},
    )

A field that a version does not have is left out when it is written, and keeps the plain class's default when it is
read, so one declaration is good for all versions. `protocol.translation` does what it says. APIs that are asked all the
time (Produce, Fetch, ShareFetch, ShareAcknowledge) are declared without a wire form: they are written and read by hand.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.rights import NeededRight

CoordinatorKind = Literal["group", "transaction", "share"]
"""What has a coordinator; `share`: the state of a share-partition, asked by its leader. Those of different kinds may be
different nodes under the same name."""
Versions = tuple[int, int]
"""Lowest and highest."""


class To(enum.Enum):
    """Whom a client asks."""

    ANY = enum.auto()
    CONTROLLER = enum.auto()
    LEADER = enum.auto()
    """Of the request's `topic` and `partition`."""
    LEADERS = enum.auto()
    """Those of the request's `partitions`, each for its own."""
    COORDINATOR = enum.auto()
    """Of what the route's `key` says; None: any broker."""
    COORDINATORS = enum.auto()
    """Those of the request's `group_ids`, each for its own."""
    BROKER = enum.auto()
    """Whose node id the route's `key` says; None: any broker."""
    ALL = enum.auto()
    SESSION = enum.auto()
    """The broker that a share session is with: its requests do not go by this route."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request belongs in a cluster."""

    to: To
    key: Callable[[Any], Any] | None = None
    kind: CoordinatorKind = "group"


ANY: Final = Route(To.ANY)
CONTROLLER: Final = Route(To.CONTROLLER)
LEADER: Final = Route(To.LEADER)
OF_GROUP: Final = Route(To.COORDINATOR, lambda request: request.group_id)
OF_TRANSACTION: Final = Route(To.COORDINATOR, lambda request: request.transactional_id, "transaction")


# --- where plain fields are on the wire -------------------------------------------------------------------------------

Path = str | int | tuple[str | int, ...]
"""A plain field by its name; an element of a tuple, or of a mapping's pairs, by its place; a tuple: one within another.
"""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Written always, read never."""

    value: Any


@dataclass(frozen=True, slots=True)
class Coded:
    """A plain value that the wire has a number for. What has none is `other` when it is read."""

    path: Path
    codes: Mapping[Any, int]
    other: Any = None


@dataclass(frozen=True, slots=True)
class Key:
    """In an answer: repeats this field of the request; `copy`: the answer's plain class has it, too, by this name.

    codes: as in `Coded`.
    """

    asked: str
    copy: str | None = None
    codes: Mapping[Any, int] | None = None


@dataclass(frozen=True, slots=True)
class Via:
    """A value that is written and read by functions of its own."""

    path: Path
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Several fields of the wire (a tuple of names) that are one plain tuple."""

    path: Path
    make: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class One:
    """An array of which a plain message is about one element; a request of the wire is as many plain ones.

    shape: of the element, or the path of a field, where elements are no entities.
    """

    shape: Shape | str


@dataclass(frozen=True, slots=True)
class Array:
    """An array that is a plain tuple of `make`'s objects, or a mapping where that is `dict`."""

    path: Path
    make: Callable[..., Any]
    shape: Shape = field(default_factory=dict[Any, Any])


@dataclass(frozen=True, slots=True)
class Each:
    """In the shape of `Array`: an inner array, of which each element makes a plain object of its own.

    shape: of the element, or the path of a field, where elements are no entities.
    """

    shape: Shape | Path


@dataclass(frozen=True, slots=True)
class Inside:
    """An entity of its own with fields of the same plain object; null where `null_without` is None."""

    shape: Shape
    null_without: str | None = None


Part = Path | Fixed | Coded | Key | Via | Parts | One | Array | Each | Inside
Shape = Mapping[Any, Part]
"""kio's name of a field (of several, for `Parts`) -> what it is in the plain message."""


def of_partitions(topics: str, partition: Shape | None = None, partitions: str = "partitions") -> Shape:
    """An array of topics with arrays of partitions, of which a plain message is about one."""
    return {topics: One({partitions: One(partition or {})})}


def rows_of_partitions(path: str, make: Callable[..., Any], partition: Shape | None = None) -> Array:
    """Topics with partitions, each of which is a plain object."""
    return Array(path, make, {"partitions": Each(partition or {})})


def _nothing(request: Any) -> int:
    del request
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One API; `server` or `client` None: it is not served, or not asked at sockets.

    right: what a request at a socket needs to be handed on as it is; None: the edge has a handler of its own.
    needs: the lowest version that can say what a request says. wait_ms: how long the server may sit on a request by its
    own wish. ask, tell: where the fields of request and answer are on the wire; None: by hand.
    """

    key: ApiKey
    request: type[Any] | None = None
    response: Callable[..., Any] | None = None
    server: Versions | None = field(kw_only=True, default=None)
    client: Versions | None = field(kw_only=True, default=None)
    route: Route = field(kw_only=True, default=ANY)
    request_shape: Shape | None = field(kw_only=True, default=None)
    response_shape: Shape | None = field(kw_only=True, default=None)
    right: NeededRight | None = field(kw_only=True, default=None)
    needs: Callable[[Any], int] = field(kw_only=True, default=_nothing)
    wait_ms: Callable[[Any], int] = field(kw_only=True, default=_nothing)

    def __post_init__(self) -> None:
        """The request's class knows its API."""
        if self.request is not None:
            self.request.api = self

    @property
    def name(self) -> str:
        """kio's name of it."""
        return self.key.name.lower()

    @property
    def title(self) -> str:
        """Kafka's name of it."""
        return _title(self.key)


@cache
def _title(key: ApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))
