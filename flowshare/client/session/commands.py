"""The commands that a member's `SessionCore` gives; `client.session.shell` carries them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flowshare.client.session.ranges import AckResult, Fetched
    from flowshare.protocol.messages import TopicPartition


class SendRequest(NamedTuple):
    """Send a request over the node's connection; then call `answered`, `failed`, or `lost` (the connection ended)."""

    node_id: int
    number: int
    request: Any


class Connect(NamedTuple):
    """Connect to the node, and go on trying; then call `opened`, and `unreachable` for each failed try."""

    node_id: int


class Rest(NamedTuple):
    """Stop trying to open the node's connection, which is not needed for now."""

    node_id: int


class Drop(NamedTuple):
    """End the node's connection, which cannot be used any more."""

    node_id: int
    reason: str


class Forget(NamedTuple):
    """Close the node's link for good: nothing will be sent to the node any more."""

    node_id: int


class Look(NamedTuple):
    """Look up the topology of these partitions, then call `looked`."""

    partitions: tuple[TopicPartition, ...]


class Refresh(NamedTuple):
    """Send a heartbeat now: the assignment may be out of date, or a leader waits for its members."""


class Arrived(NamedTuple):
    """Report a fetch that has ended, with its records, possibly none."""

    fetched: list[Fetched]


class Stir(NamedTuple):
    """Wake the reader of fetched records, so that it asks again: more partitions can be fetched from."""


class Broke(NamedTuple):
    """Report a fetch that has ended with an error which a retry does not cure."""

    error: Exception


class Answered(NamedTuple):
    """Report the outcomes of a call, in the order of its partitions, without those that come late."""

    asker: Any
    results: list[AckResult]


class Late(NamedTuple):
    """Report an outcome that came after its call was answered."""

    asker: Any
    result: AckResult


class Note(NamedTuple):
    """Log a text. level: a level of `logging`."""

    level: int
    text: str


Command = (
    SendRequest | Connect | Rest | Drop | Forget | Look | Refresh | Arrived | Stir | Broke | Answered | Late | Note
)
DEBUG, INFO, WARNING = 10, 20, 30
