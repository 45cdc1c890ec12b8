"""`PartitionTracker` keeps the messages of one partition that were begun and not ended, by the markers read so far.

    absent ──start──▶ OPEN ──its time has come (`due`)──▶ SENDING ──copied, its end marker written (`ended`)──▶ absent
                       │ ▲                                   │
                       │ └──── it could not be (`failed`) ───┤
                       └───────────── end ───────────────────┴──▶ absent

A second start marker of an open message is a second delivery by a consumer that died before its commit: the second
marker says when the message is due. A start marker of a message that is SENDING changes nothing.

**Time.** A message is due when the tracker's clock has passed its marker's timestamp by the marker's `after_ms`. That
clock is the timestamp of the last markers read, so that a tracker that lags behind redelivers nothing whose end marker
it has not read yet. After all markers were read, the clock goes on with real time; when there was no marker for
`quiet_ms`, the clock is the machine's, if that is later. The clock never passes the last look at the log's end.

**Start.** A start marker may have its end marker further on: nothing is due before all markers were read that were
there when the tracker began (`caught_up_at`).

**Position.** `needed` is the first marker that a successor has to read: that of the oldest open message.

**Bound.** `OPEN_MAX` messages are kept. Behind them only end markers are taken in. When half of the messages have
ended, the markers are read again from the first start that was passed over; as at the start, nothing is due meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from flowshare.backoff import Backoff
from flowshare.kmq.markers import OddMarker, decode

QUIET_MS: Final = 1_000
"""Milliseconds: useNowForRedeliverDespiteNoMarkerSeenForMs, as in KMQ's examples."""
AHEAD_MS_MAX: Final = 3_600_000
"""Milliseconds: a marker's timestamp that is further ahead of the machine's clock is taken as now."""
OPEN_MAX: Final = 1_000_000
"""Messages of one partition that are kept in memory, of some 200 bytes each."""
PAUSES: Final = Backoff(1.0, 60.0)
STALE_MAX: Final = 1_024


class MarkerRecord(Protocol):
    """A record of the markers topic."""

    @property
    def offset(self) -> int:
        """Its offset in the markers topic."""
        ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        ...

    @property
    def key(self) -> bytes | None:
        """Partition and offset of the marker's message."""
        ...

    @property
    def value(self) -> bytes | None:
        """The marker's bytes, which say if the message begins or ends."""
        ...


@dataclass(slots=True)
class TrackerCounts:
    """Counters of a tracker's work since it began. foreign: markers of another partition's messages. odd: records that
    are no markers. lost: messages whose record is not in the queue any more."""

    starts: int = 0
    ends: int = 0
    foreign: int = 0
    odd: int = 0
    redelivered: int = 0
    undelivered: int = 0
    lost: int = 0
    failed: int = 0

    def add(self, other: TrackerCounts) -> None:
        """Add another tracker's counts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Open:
    marker: int
    due_ms: int
    sending: bool = False
    failures: int = 0


@dataclass(slots=True)
class PartitionTracker:
    """The open messages of one partition. position: the next marker to read. All times are milliseconds since 1970."""

    partition: int
    position: int
    caught_up_at: int
    quiet_ms: int = QUIET_MS
    open_max: int = OPEN_MAX
    counts: TrackerCounts = field(default_factory=TrackerCounts)
    _open: dict[int, _Open] = field(default_factory=dict)
    """Open messages by their offset, in the order of the markers."""
    _due: list[tuple[int, int]] = field(default_factory=list)
    """Heap of due times and offsets; entries that do not fit an open message are stale."""
    _time_ms: int = -1
    """The largest timestamp of the last markers."""
    _seen_ms: int = -1
    """Time when the last markers were read."""
    _looked_ms: int = -1
    """Last time when all markers of the log had been read."""
    _passed_over: int | None = None
    """First start marker that was passed over, as too many messages were open."""

    # --- reading ------------------------------------------------------------------------------------------------

    def read(self, records: Iterable[MarkerRecord], now_ms: int) -> None:
        """Take in records of the markers topic, which are in order; records below `position` are passed over."""
        latest = -1
        for record in records:
            offset = record.offset
            if offset < self.position:
                continue
            self.position = offset + 1
            try:
                partition, message, after_ms = decode(record.key, record.value)
            except OddMarker:
                self.counts.odd += 1
                continue
            if partition != self.partition:
                self.counts.foreign += 1
                continue
            timestamp = record.timestamp
            if timestamp > now_ms + AHEAD_MS_MAX:
                timestamp = now_ms
            latest = max(latest, timestamp)
            if after_ms is None:
                self.counts.ends += 1
                self._open.pop(message, None)
            else:
                self.counts.starts += 1
                self._start(message, offset, timestamp + after_ms)
        if latest >= 0:
            self._time_ms, self._seen_ms = latest, now_ms
        if len(self._due) > STALE_MAX + 2 * len(self._open):
            self._clean()

    def passed(self, position: int) -> None:
        """Move on to `position`: all records below it were read, or are gone. Goes back to passed-over starts as soon
        as half of `open_max` is free."""
        self.position = max(self.position, position)
        if self._passed_over is not None and len(self._open) <= self.open_max // 2:
            self.caught_up_at = max(self.caught_up_at, self.position)
            self.position, self._passed_over = self._passed_over, None

    def looked(self, now_ms: int) -> None:
        """Note that all markers in the log at this time have been read."""
        self._looked_ms = max(self._looked_ms, now_ms)

    def _start(self, message: int, marker: int, due_ms: int) -> None:
        known = self._open.get(message)
        if known is not None:
            if known.sending:
                return
            del self._open[message]  # reinserted at the end: the order is that of the markers
        elif self._passed_over is not None:  # read again later, and must not be sent on before
            return
        elif len(self._open) >= self.open_max:
            self._passed_over = marker
            return
        self._open[message] = _Open(marker, due_ms)
        heapq.heappush(self._due, (due_ms, message))

    def _clean(self) -> None:
        """Drop stale entries of the heap."""
        self._due = [(one.due_ms, message) for message, one in self._open.items() if not one.sending]
        heapq.heapify(self._due)

    # --- what is due --------------------------------------------------------------------------------------------

    @property
    def caught_up(self) -> bool:
        """True if the tracker has read all markers that were in the log when it began, or when it last had to read some
        again."""
        return self.position >= self.caught_up_at

    @property
    def clock_ms(self) -> int | None:
        """The time in milliseconds by which messages are due; None: no marker was read."""
        if self._seen_ms < 0:
            return None
        passed_ms = self._looked_ms - self._seen_ms
        if passed_ms < 0:
            return self._time_ms
        time_ms = self._time_ms + passed_ms
        return max(time_ms, self._looked_ms) if passed_ms >= self.quiet_ms else time_ms

    def due(self, limit: int) -> list[int]:
        """Return due messages, the earliest `limit` at most, in the order of their offsets; they are SENDING from now
        on."""
        now_ms = self.clock_ms
        if now_ms is None or not self.caught_up:
            return []
        found: list[int] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < limit:
            due_ms, message = heapq.heappop(self._due)
            one = self._open.get(message)
            if one is not None and one.due_ms == due_ms and not one.sending:
                one.sending = True
                found.append(message)
        return sorted(found)

    def next_due_ms(self) -> int | None:
        """Return the earliest due time by `clock_ms`; None: no message is waiting."""
        return self._due[0][0] if self._due else None

    def wanted(self, message: int) -> bool:
        """Tell if a message that is SENDING must still be sent: no end marker has been read for it."""
        one = self._open.get(message)
        return one is not None and one.sending

    def ended(self, message: int) -> None:
        """Forget a message: it was sent on, or its record is lost, and its end marker is written."""
        self._open.pop(message, None)

    def failed(self, message: int) -> int:
        """Open a message again that could not be sent on, due after a pause that doubles; return how often it
        failed."""
        one = self._open.get(message)
        now_ms = self.clock_ms
        if one is None or now_ms is None:
            return 0
        one.failures += 1
        one.sending = False
        one.due_ms = now_ms + round(PAUSES.after(one.failures) * 1000)
        self.counts.failed += 1
        heapq.heappush(self._due, (one.due_ms, message))
        return one.failures

    # --- what is left -------------------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """Number of open messages."""
        return len(self._open)

    def messages(self) -> list[int]:
        """Return the offsets of the open messages, in order."""
        return sorted(self._open)

    @property
    def needed(self) -> int:
        """Offset of the first marker that a successor has to read."""
        behind = self.position if self._passed_over is None else self._passed_over
        return min(next((one.marker for one in self._open.values()), behind), behind)

    @property
    def full(self) -> bool:
        """True while start markers are passed over because too many messages are open."""
        return self._passed_over is not None
