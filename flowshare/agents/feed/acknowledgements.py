"""Acknowledgements of an agent: offsets with their outcomes become ranges, and ranges get results.

Ranges are runs of contiguous finished offsets with one type; they never bridge an unfinished offset. With an order,
each range names its delivery, and the answer the ranges that are not held (SG-18.12). `AckSender` sends them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from flowshare.agents.handler.chunk import runs
from flowshare.client.errors import NO_COORDINATOR
from flowshare.client.session.ranges import cut
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AcknowledgeType, AckRange

if TYPE_CHECKING:
    from flowshare.client.session.ranges import AckResult

ACCEPT: Final = bytes((AcknowledgeType.ACCEPT,))
RELEASE: Final = bytes((AcknowledgeType.RELEASE,))
REJECT: Final = bytes((AcknowledgeType.REJECT,))
GAP: Final = bytes((AcknowledgeType.GAP,))
RENEW: Final = bytes((AcknowledgeType.RENEW,))

LOST: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD_STATE,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
"""Errors that say that the lock is gone; a partition's new leader does not know locks of the old leader."""
HALVED: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
"""Errors that one offset of many may have caused."""
NOT_DONE: Final = NO_COORDINATOR | {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE}
"""Errors after which the records are still held and the same acknowledgement may be sent again."""
Key = tuple[TopicPartition, int]
"""Partition and generation (of the connection over which the records were acquired)."""


class Acknowledging(Protocol):
    """A carrier of acknowledgements; see `AckSender`."""

    def accept(self, key: Key, offsets: list[int], attempt: int = 0) -> None:
        """Accept these offsets."""

    def acknowledge(self, key: Key, ack: AckRange) -> None:
        """Acknowledge a range in another way; `ack.counter` says as what it counts."""


AckRanges = dict[TopicPartition, list[AckRange]]


class Settled(NamedTuple):
    """Outcome of one delivery, reported to an observer after it is confirmed."""

    agent: str
    topic: str
    partition: int
    offset: int
    attempt: int
    outcome: str
    """One of accepted, lost, released, retried, dead_lettered, rejected, lock_lost, unknown or unrun."""
    reason: str
    delay_s: float


Observer = Callable[[Settled], None]
"""Called on the service loop for each settled record; costs time per record, so for tests only."""


class OutcomeReporter:
    """Reports each delivery's outcome to an observer once it is confirmed; on the service loop."""

    def __init__(self, agent: str, observer: Observer, topic: str = "") -> None:
        """topic: the agent's topic, for outcomes whose answer names none."""
        self._agent = agent
        self._topic = topic
        self._observer = observer
        self._noted: dict[tuple[TopicPartition, int], tuple[int, str, float]] = {}

    def note(self, tp: TopicPartition, offset: int, attempt: int, reason: str = "", delay_s: float = 0.0) -> None:
        """Note a record whose acknowledgement is about to be sent."""
        self._noted[tp, offset] = (attempt, reason, delay_s)

    def confirmed(self, ack: AckRange, result: AckResult, how: str) -> None:
        """Report an answered range. how: its outcome; `lock_lost` or `unknown` when it was not confirmed."""
        topic, partition = result.topic, result.partition
        for offset in range(ack.first, ack.last + 1):
            attempt, reason, delay_s = self._noted.pop((result.tp, offset), (0, "", 0.0))
            self._observer(Settled(self._agent, topic, partition, offset, attempt, how, reason, delay_s))

    def settled(self, tp: TopicPartition, offsets: Sequence[int], how: str) -> None:
        """Report the outcome of noted records whose settling no server answers."""
        for offset in offsets:
            attempt, reason, delay_s = self._noted.pop((tp, offset), (0, "", 0.0))
            self._observer(Settled(self._agent, self._topic, tp.partition, offset, attempt, how, reason, delay_s))

    def ended(self, topic: str, partition: int, offset: int, attempt: int, how: str, reason: str) -> None:
        """Report the end of a handler whose record was accepted before."""
        self._observer(Settled(self._agent, topic, partition, offset, attempt, how, reason, 0.0))


class Gathered:
    __slots__ = ("accepted", "others")

    def __init__(self) -> None:
        self.accepted: dict[int, list[int]] = {}
        """Offsets by attempt."""
        self.others: list[AckRange] = []

    @property
    def size(self) -> int:
        return sum(map(len, self.accepted.values())) + sum(ack.size for ack in self.others)


def ordered(gathered: Gathered) -> tuple[list[AckRange], list[AckRange]]:
    """Return ranges in offset order without overlap, as KIP-932 requires, and the ranges left out for that."""
    acks: list[AckRange] = []
    twice = False
    for attempt, offsets in gathered.accepted.items():
        offsets.sort()
        distinct = offsets
        if len(set(offsets)) < len(offsets):
            twice, distinct = True, sorted(set(offsets))
            again = (Counter(offsets) - Counter(distinct)).elements()
            acks += [_accept(offset, offset, attempt) for offset in again]
        acks += [_accept(first, last, attempt) for first, last in runs(distinct)]
    if not (gathered.others or twice or len(gathered.accepted) > 1):
        return acks, []
    acks += gathered.others
    acks.sort()
    if all(before.last < after.first for before, after in pairwise(acks)):
        return acks, []
    return _last_said(acks)


def unrun_range(first: int, last: int, attempt: int = 0, delay_ms: int = 0) -> AckRange:
    """Return the acknowledgement of records that no handler began: they are released, and it costs no attempt."""
    return AckRange(first, last, RELEASE, delay_ms, True, False, attempt, "unrun")


def _accept(first: int, last: int, attempt: int) -> AckRange:
    return AckRange(first, last, ACCEPT, 0, False, False, attempt, "accepted")


def _last_said(acks: list[AckRange]) -> tuple[list[AckRange], list[AckRange]]:
    """Return each offset's acknowledgement of its last delivery, as ascending ranges; and the rest.

    Without attempts, an accept wins over another outcome.
    """
    last: dict[int, AckRange] = {}
    earlier: list[AckRange] = []
    for ack in sorted(acks, key=lambda ack: (ack.attempt, ack.types == ACCEPT)):
        for offset in range(ack.first, ack.last + 1):
            if offset in last:
                earlier.append(last[offset]._replace(first=offset, last=offset))
            last[offset] = ack
    said: list[AckRange] = []
    before: AckRange | None = None
    for offset in sorted(last):
        ack = last[offset]
        if ack is before and said[-1].last + 1 == offset:
            said[-1] = said[-1]._replace(last=offset)
        else:
            said.append(ack._replace(first=offset, last=offset))
        before = ack
    return said, earlier


def can_halve(acks: list[AckRange], error: ErrorCode) -> bool:
    """Tell if ranges that were refused as a whole should be sent again in halves.

    Ranges with attempts are not halved: the server decided each of them by itself.
    """
    apart = error is ErrorCode.INVALID_RECORD_STATE and any(ack.attempt for ack in acks)
    return (len(acks) > 1 or acks[0].size > 1) and not apart


def outcomes_of(acks: list[AckRange], result: AckResult) -> Iterator[tuple[AckRange, AckResult]]:
    """Yield each range with its result; a range that is refused in part is cut into pieces."""
    if not result.refused:
        for ack in acks:
            yield ack, result
        return
    held = result._replace(refused=())
    refused = held._replace(error=result.refusal, lock_deadline=0.0)
    for ack in acks:
        for first, last, is_refused in cut(ack.first, ack.last, result.refused):
            yield ack._replace(first=first, last=last), refused if is_refused else held


def halves_of(acks: list[AckRange]) -> list[list[AckRange]]:
    if len(acks) > 1:
        middle = len(acks) // 2
        return [acks[:middle], acks[middle:]]
    [ack] = acks
    middle = (ack.first + ack.last) // 2
    return [[ack._replace(last=middle)], [ack._replace(first=middle + 1)]]
