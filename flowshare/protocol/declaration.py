"""Declares an API of Kafka's protocol: key, versions, route, and the places of its fields on the wire.

An `Api` stands below its two plain classes in `protocol.messages`, and is all that client and server need to know. For
the wire it names the place of a plain field in kio's entity, by kio's names, unless the field has the same name there
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

A field that a version does not have is left out in writing, and keeps the plain class's default in reading, so one
declaration is good for all versions. `protocol.translation` carries out the declarations. Frequent APIs (Produce,
Fetch, ShareFetch, ShareAcknowledge) are declared without a wire form: they are written and read by hand.
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
"""The kinds of things that have a coordinator. `share`: the state of a share-partition; its leader asks the
coordinator. Coordinators of different kinds may be different nodes for the same name."""
Versions = tuple[int, int]
"""The lowest and highest version."""


class To(enum.Enum):
    """The receiver of a client's request."""

    ANY = enum.auto()
    CONTROLLER = enum.auto()
    LEADER = enum.auto()
    """The leader of the request's `topic` and `partition`."""
    LEADERS = enum.auto()
    """The leaders of the request's `partitions`, each for its own."""
    COORDINATOR = enum.auto()
    """The coordinator of the route's `key`; None: any broker."""
    COORDINATORS = enum.auto()
    """The coordinators of the request's `group_ids`, each for its own."""
    BROKER = enum.auto()
    """The broker whose node id is the route's `key`; None: any broker."""
    ALL = enum.auto()
    SESSION = enum.auto()
    """The broker of a share session: its requests do not use this route."""


@dataclass(frozen=True, slots=True)
class Route:
    """The receiver of a request in a cluster."""

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
"""The place of a plain value: a field's name; the index in a tuple or a mapping's pair; a tuple: one place within
another."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that is always written and never read."""

    value: Any


@dataclass(frozen=True, slots=True)
class Coded:
    """A plain value with a number on the wire. An unknown number is read as `other`."""

    path: Path
    codes: Mapping[Any, int]
    other: Any = None


@dataclass(frozen=True, slots=True)
class Key:
    """A field of an answer that repeats this field of the request. copy: its name in the answer's plain class, if it
    has it.

    codes: as in `Coded`.
    """

    asked: str
    copy: str | None = None
    codes: Mapping[Any, int] | None = None


@dataclass(frozen=True, slots=True)
class Via:
    """A value with separate functions for writing and reading."""

    path: Path
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Several fields of the wire (a tuple of names) that form one plain tuple."""

    path: Path
    make: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class One:
    """An array; a plain message is about one of its elements, and a request of the wire is as many plain ones.

    shape: of the element, or the path of a field, if elements are no entities.
    """

    shape: Shape | str


@dataclass(frozen=True, slots=True)
class Array:
    """An array that is a plain tuple of `make`'s objects, or a mapping if `make` is `dict`."""

    path: Path
    make: Callable[..., Any]
    shape: Shape = field(default_factory=dict[Any, Any])


@dataclass(frozen=True, slots=True)
class Each:
    """An inner array in the shape of `Array`; each of its elements makes a plain object.

    shape: of the element, or the path of a field, if elements are no entities.
    """

    shape: Shape | Path


@dataclass(frozen=True, slots=True)
class Inside:
    """An inner entity with fields of the same plain object; null where the field `null_without` is None."""

    shape: Shape
    null_without: str | None = None


Part = Path | Fixed | Coded | Key | Via | Parts | One | Array | Each | Inside
Shape = Mapping[Any, Part]
"""kio's name of a field (names for `Parts`) -> its place in the plain message."""


def of_partitions(topics: str, partition: Shape | None = None, partitions: str = "partitions") -> Shape:
    """Return the shape of topics with partitions of which a plain message is about one."""
    return {topics: One({partitions: One(partition or {})})}


def rows_of_partitions(path: str, make: Callable[..., Any], partition: Shape | None = None) -> Array:
    """Return the shape of topics with partitions, each of which is a plain object."""
    return Array(path, make, {"partitions": Each(partition or {})})


def _nothing(request: Any) -> int:
    del request
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One API. server, client: None: not served, or not asked at sockets.

    right: the right that a request at a socket needs to be forwarded; None: the edge has a handler for it. needs: the
    lowest version that has all fields of a request. wait_ms: the longest time that the server may hold a request by its
    own wish. request_shape, response_shape: the places of the fields on the wire; None: written by hand.
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
        """Set the API of the request's class."""
        if self.request is not None:
            self.request.api = self

    @property
    def name(self) -> str:
        """kio's name of the API."""
        return self.key.name.lower()

    @property
    def title(self) -> str:
        """Kafka's name of the API."""
        return _title(self.key)


@cache
def _title(key: ApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))
