"""The data that a member hands out and takes back: ranges of offsets, never single records."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Sequence

    from flowshare.protocol.decoding import RawDecoded
    from flowshare.protocol.messages import RefusedOutput
    from flowshare.share.types import AckRange, AcquiredRange


class Fetched(NamedTuple):
    """The result of a fetch from one partition.

    `records` are whole record batches and may hold more than was acquired: only offsets inside `acquired` are this
    member's, and each of them must be acknowledged, with GAP where there is no record. `lock_deadline` is the earliest
    end of a lock, in the clock's monotonic seconds. `generation` is the connection's number: pass it to `acknowledge`,
    so that records held over a connection that is gone are not acknowledged by mistake. `fence`: the generation of the
    load, and the number to add to an offset to get its serial number; None: the group has no order. `following`: as
    `FetchedPartition.following`. `read`: the records, if they were read before; then `records` is empty.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    records: bytes
    acquired: tuple[AcquiredRange, ...]
    lock_deadline: float
    generation: int
    fence: tuple[int, int] | None = None
    following: tuple[tuple[int, int], ...] = ()
    read: RawDecoded | None = None

    @property
    def tp(self) -> TopicPartition:
        """The key under which these ranges are acknowledged."""
        return TopicPartition(self.topic_id, self.partition)


class TopicIdPartition(NamedTuple):
    """A partition by name, with its topic's id."""

    topic: str
    partition: int
    topic_id: uuid.UUID

    @property
    def tp(self) -> TopicPartition:
        """Topic id and partition."""
        return TopicPartition(self.topic_id, self.partition)


class AckResult(NamedTuple):
    """The outcome of the acknowledgements of one partition. With an error none of them holds.

    lock_deadline: for renewed records, the new end of the lock, in the clock's monotonic seconds. refused: ranges that
    do not hold though there is no error, where each acknowledgement names its delivery; `refusal` is their error then,
    and `message` gives the reason.

    For a settle: with an error nothing was written, unless `message` begins with `outcome unknown`. refused: with
    INVALID_RECORD_STATE, the ranges that are not held any more; all others are. outputs: the outputs that cannot be
    written, where they are the reason.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    acks: tuple[AckRange, ...]
    error: ErrorCode
    message: str | None
    lock_deadline: float
    refused: tuple[tuple[int, int], ...] = ()
    refusal: ErrorCode = ErrorCode.NONE
    outputs: tuple[RefusedOutput, ...] = ()

    @property
    def tp(self) -> TopicPartition:
        """Topic id and partition."""
        return TopicPartition(self.topic_id, self.partition)


def cut(first: int, last: int, refused: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Yield the pieces of a range: first, last, and True if the piece is in `refused` (ascending, disjoint).

    >>> list(cut(2, 9, [(0, 2), (5, 6)]))
    [(2, 2, True), (3, 4, False), (5, 6, True), (7, 9, False)]
    """
    at = first
    for low, high in refused[bisect_left(refused, first, key=itemgetter(1)) :]:
        if low > last:
            break
        if low > at:
            yield at, low - 1, False
        yield max(low, first), min(high, last), True
        at = high + 1
    if at <= last:
        yield at, last, False


def number_of(fetched: Iterable[Fetched]) -> int:
    """Return the number of acquired offsets."""
    number = 0
    for part in fetched:
        for first, last, _ in part.acquired:
            number += last - first + 1
    return number
