"""What a member's `SessionCore` says is to be done; `client.session.shell` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flowshare.client.session.ranges import AckResult, Fetched
    from flowshare.protocol.messages import TopicPartition


class SendRequest(NamedTuple):
    """Send it over the node's connection, and tell `answered`, `failed`, or that the connection is `lost`."""

    node_id: int
    number: int
    request: Any


class Connect(NamedTuple):
    """Have a connection to the node, and go on trying; tell `opened`, and `unreachable` of each try that failed."""

    node_id: int


class Rest(NamedTuple):
    """The node's connection is not needed for now: do not try to open it."""

    node_id: int


class Drop(NamedTuple):
    """End the node's connection, which is of no use any more."""

    node_id: int
    reason: str


class Forget(NamedTuple):
    """Nothing will be sent to the node any more."""

    node_id: int


class Look(NamedTuple):
    """Have the topology of these partitions looked up, and tell `looked`."""

    partitions: tuple[TopicPartition, ...]


class Refresh(NamedTuple):
    """Have the group told and asked now: the assignment may be out of date, or a leader waits for its members."""


class Arrived(NamedTuple):
    """A fetch has ended, with this or with nothing."""

    fetched: list[Fetched]


class Stir(NamedTuple):
    """There is more to fetch from: who waits for what fetches bring had better ask again."""


class Broke(NamedTuple):
    """A fetch has ended with something that trying again does not cure."""

    error: Exception


class Answered(NamedTuple):
    """The outcomes of a call, in the order of its partitions, but for those that come late."""

    asker: Any
    results: list[AckResult]


class Late(NamedTuple):
    """An outcome that came after its call was answered."""

    asker: Any
    result: AckResult


class Note(NamedTuple):
    """Something to be logged. `level`: logging's."""

    level: int
    text: str


Command = (
    SendRequest | Connect | Rest | Drop | Forget | Look | Refresh | Arrived | Stir | Broke | Answered | Late | Note
)
DEBUG, INFO, WARNING = 10, 20, 30
