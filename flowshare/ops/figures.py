"""Figures of groups at one moment: of a partition, of a topic, of a group. Pure.

None means "not known" in each of them: Kafka's brokers tell less than flowshare's servers. Counts are records and rates
records a second unless a name or a docstring says otherwise; `_s` at the end of a name stands for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.admin.admin import PAUSED
from flowshare.ops.retention import FINISHED, FOREVER

if TYPE_CHECKING:
    from flowshare.ops.rates import Rates

STUCK_MAX: Final = 5
"""Most keys that are named of a topic."""
RAISES_S: Final = 60.0
"""Age in seconds from which a handler's error explains only why its records wait for the end of a delay."""


class StuckKey(NamedTuple):
    """A record at `offset` that `blocked` others of its key wait for.

    state: HELD (by `member_id`), DELAYED (a retry), ARCHIVING (its dead letter is under way) or AVAILABLE.
    """

    partition: int
    offset: int
    blocked: int
    state: str
    delivery_count: int
    member_id: str = ""


class PartitionFigures(NamedTuple):
    """Figures of one partition of a share group or a cooperative group.

    start_offset: of a cooperative group the stable offset. log_end: next offset of the log. backlog: unfinished
    records. parked: keys. most_blocked: records that wait for the same one. stuck: records for which most others wait.
    redeliveries: deliveries after the first since the partition was loaded. oldest_age_s: age of the first unfinished
    record, None without one. finished: finished records since the topic began; its growth is the rate.
    retention_left_s: seconds until retention deletes the first unfinished record, None when never; retention: in words
    why, empty: nobody asked.

    Only cooperative groups have these: committed_ranges, furthest, span: committed ranges behind the stable offset, the
    furthest committed offset, and its distance from the stable one. held_keys, holders: part of the keys that members
    hold (0 to 1), and number of these members. blocked_handovers, handover_wait_s: ranges of keys that members wait for
    until others give them back, and the longest wait. overlaps, lapsed_claims: since the server loaded the partition,
    claims taken from a member that did not give them back in time, and claims whose lease ended.
    """

    group: str
    topic: str
    partition: int
    start_offset: int | None = None
    log_end: int | None = None
    backlog: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    blocked: int | None = None
    parked: int | None = None
    most_blocked: int | None = None
    stuck: tuple[StuckKey, ...] = ()
    redeliveries: int | None = None
    oldest_age_s: float | None = None
    finished: int | None = None
    committed_ranges: int | None = None
    furthest: int | None = None
    span: int | None = None
    held_keys: float | None = None
    holders: int | None = None
    blocked_handovers: int | None = None
    handover_wait_s: float | None = None
    overlaps: int | None = None
    lapsed_claims: int | None = None
    retention_left_s: float | None = None
    retention: str = ""

    def row(self) -> dict[str, Any]:
        """Return the figures by name, for JSON."""
        made = {**self._asdict(), "stuck": [key._asdict() for key in self.stuck]}
        if not self.retention:
            del made["retention_left_s"], made["retention"]
        return made


class TopicFigures(NamedTuple):
    """Sums over the partitions of a topic, or over the topics of a group (`topic` is empty then).

    A sum is None as soon as one of its parts is. partitions: their number. oldest_age_s, retention_left_s, retention:
    of the worst partition. stuck: at most `STUCK_MAX`. arrival_rate: new records; rate: finished ones;
    redelivery_rate: deliveries after the first.
    """

    group: str
    topic: str
    partitions: int = 0
    backlog: int | None = 0
    in_flight: int | None = 0
    delayed: int | None = 0
    blocked: int | None = 0
    parked: int | None = 0
    redeliveries: int | None = 0
    finished: int | None = 0
    oldest_age_s: float | None = None
    retention_left_s: float | None = None
    retention: str = ""
    stuck: tuple[StuckKey, ...] = ()
    arrival_rate: float | None = 0
    rate: float | None = 0
    redelivery_rate: float | None = 0

    def row(self) -> dict[str, Any]:
        """Return the figures by name, for JSON."""
        return {**self._asdict(), "stuck": [key._asdict() for key in self.stuck]}


_SUMS: Final = ("backlog", "in_flight", "delayed", "blocked", "parked", "redeliveries", "finished")
_RATES: Final = ("arrival_rate", "rate", "redelivery_rate")
_SUMS_OF: Final = attrgetter(*_SUMS)
_RATES_OF: Final = attrgetter(*_RATES)


def of_topics(found: Iterable[PartitionFigures], rates: Rates | None = None) -> list[TopicFigures]:
    """Return the figures of each topic of each group. rates: of these groups; None: no rate is known."""
    parts: dict[tuple[str, str], list[PartitionFigures]] = {}
    for one in found:
        parts.setdefault((one.group, one.topic), []).append(one)
    return [
        _joined(group, topic, some, len(some), (None, None, None) if rates is None else rates.of(group, topic))
        for (group, topic), some in parts.items()
    ]


def of_group(group: str, topics: Sequence[TopicFigures]) -> TopicFigures:
    """Return a group's sums over its topics: 0 without any."""
    rates = [_sum(column) for column in zip(*map(_RATES_OF, topics), strict=True)] or (0, 0, 0)
    return _joined(group, "", topics, sum(one.partitions for one in topics), rates)


def _joined(
    group: str,
    topic: str,
    rows: Sequence[PartitionFigures | TopicFigures],
    partitions: int,
    rates: Sequence[float | None],
) -> TopicFigures:
    if len(rows) == 1:  # most topics have one partition, most groups one topic: of very many this saves a quarter
        (row,) = rows
        ages = row.oldest_age_s, row.retention_left_s, row.retention
        return TopicFigures._make((group, topic, partitions, *_SUMS_OF(row), *ages, row.stuck, *rates))
    columns = zip(*map(_SUMS_OF, rows), strict=True)  # none without rows
    sums: dict[str, Any] = dict(zip(_SUMS, map(_sum, columns), strict=False))
    stuck = sorted((key for row in rows for key in row.stuck), key=lambda key: -key.blocked)[:STUCK_MAX]
    urgent = min(rows, key=_urgency, default=TopicFigures(group, topic))
    return TopicFigures(
        group,
        topic,
        partitions,
        **sums,
        oldest_age_s=max((row.oldest_age_s for row in rows if row.oldest_age_s is not None), default=None),
        retention_left_s=urgent.retention_left_s,
        retention=urgent.retention,
        stuck=tuple(stuck),
        arrival_rate=rates[0],
        rate=rates[1],
        redelivery_rate=rates[2],
    )


def _sum(column: Sequence[Any]) -> Any:
    return None if None in column else sum(column)


def _urgency(one: PartitionFigures | TopicFigures) -> tuple[int, float]:
    """Return a sort key for the most urgent answer: a time, then "not known", then "nothing to fear"."""
    if one.retention_left_s is not None:
        return (0, one.retention_left_s)
    return ({FOREVER: 2, FINISHED: 3}.get(one.retention, 1), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A member's records in hand.

    member: the member, named by its worker if known. oldest_s: seconds that the member has had the oldest record.
    """

    member: str
    records: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerFacts:
    """A group's circuit breaker. state: `closed`, `open`, `half-open`. why: cause of the opening. left_s: seconds until
    it tries."""

    state: str = "closed"
    why: str = ""
    left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """Figures of a group, and its state.

    kind: `share` or `cooperative`. state: of the membership, in Kafka's words; empty when not known. seen_s: time of
    the figures on the watcher's clock, None: nobody has asked for them yet. settings: of the group, by name. members:
    their number; assigned: number of those with a partition. letters: records of its dead-letter topic. holders:
    members with records in hand, as far as they could be asked. error: last error of handlers; error_s: its age in
    seconds. stall: why it stands still (`ops.stall_reason`), None: it does not.
    """

    name: str
    kind: str = "share"
    state: str = ""
    seen_s: float | None = None
    partitions: Sequence[PartitionFigures] = ()
    topics: Sequence[TopicFigures] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    members: int | None = None
    assigned: int | None = None
    breaker: BreakerFacts = BreakerFacts()
    letters: int | None = None
    holders: Sequence[Holder] = ()
    error: str | None = None
    error_s: float | None = None
    stall: str | None = None
    total: TopicFigures = field(init=False, compare=False)
    """Sums over all topics; no figure is known before anybody asked."""

    def __post_init__(self) -> None:
        """Add up the topics."""
        object.__setattr__(self, "total", UNKNOWN if self.seen_s is None else of_group(self.name, self.topics))

    @property
    def paused(self) -> bool:
        """True if a user paused the group."""
        return self.settings.get(PAUSED) == "true"

    @property
    def held_back(self) -> bool:
        """True if the group is paused, by a user or by its breaker."""
        return self.paused or self.breaker.state != "closed"

    @property
    def shown_state(self) -> str:
        """The state in a word or two."""
        if self.paused:
            return "paused"
        return self.state if self.breaker.state == "closed" else f"breaker {self.breaker.state}"

    @property
    def raises(self) -> bool:
        """True if handlers raise at present."""
        return self.error is not None and (self.error_s is None or self.error_s < RAISES_S)


_UNTOLD: Final[Mapping[str, Any]] = dict.fromkeys((*_SUMS, *_RATES))
UNKNOWN: Final = TopicFigures("", "", **_UNTOLD)
