"""The words of the core: record states, acknowledge types, ranges, durable state, limits.

Offsets in pairs `first`, `last` are inclusive. Times are integers in milliseconds, `_ms`. Words are KIP-932's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

DELAY_MS_MAX: Final = 30 * 24 * 3_600_000
"""Longest delay of a released record; a longer delay is cut to this one (SG-7.10)."""


class RecordState(enum.IntEnum):
    """State of one offset of a share-partition; the number is the stored one (SG-1.3)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def terminal(self) -> bool:
        """True if the offset is finished and lets the start offset pass."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


AVAILABLE: Final = int(RecordState.AVAILABLE)
ACQUIRED: Final = int(RecordState.ACQUIRED)
ACKNOWLEDGED: Final = int(RecordState.ACKNOWLEDGED)
ARCHIVING: Final = int(RecordState.ARCHIVING)
ARCHIVED: Final = int(RecordState.ARCHIVED)
HOLE: Final = 5
DELAYED: Final = 6
PENDING: Final = 7
BLOCKED: Final = 8
STATES: Final = 9
"""The number of states of an offset in a `window`; the states are bytes, those from HOLE on are not stored as they
are."""


class AcknowledgeType(enum.IntEnum):
    """The acknowledge types of a record that a member acquired; the number is the one on the wire (SG-7.5)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(enum.IntEnum):
    """The strictness in keeping the number of records asked for (SG-5.4, SG-5.5; KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class Priority(enum.StrEnum):
    """The records that a member gets first, of those delivered before and those never delivered (SG-4.2).

    REDELIVERIES: records that were delivered before, as in Kafka's brokers. NEW: records never delivered; the others
    when there are none, or when the window has no room for any. MIXED: the two take turns, acquire by acquire.
    """

    REDELIVERIES = "redeliveries"
    NEW = "new"
    MIXED = "mixed"


class LogBatch(NamedTuple):
    """Offsets of one record batch as it lies in the log, both inclusive."""

    first: int
    last: int


class AcquiredRange(NamedTuple):
    """Offsets handed to a member, both inclusive, with the number of the delivery (the first is 1; SG-3.1)."""

    first: int
    last: int
    delivery_count: int


class BlockedKey(NamedTuple):
    """A key with waiting records: `blocked` of them behind its head, the record at `offset`, held or not.

    state: HELD (by `member_id`), DELAYED (a retry), ARCHIVING (its dead letter is under way) or AVAILABLE.
    """

    offset: int
    blocked: int
    state: str
    delivery_count: int
    member_id: str = ""


class AckRange(NamedTuple):
    """A range of offsets, both inclusive, with a member's acknowledgement of them: one and the same object on the way
    from a handler's outcome to the core.

    types: one wire number for the whole range, or one per offset. All further fields are flowshare's own. delay_ms:
    milliseconds for which the released records of the range are not delivered (0: none; SG-7.10). unrun: no handler
    began the records, so their delivery does not count when they are released (SG-3.2), and they park no key when
    rejected (SG-18.11). joined: the range was read from a socket as one batch of this type per offset, and is decided
    exactly so: a hole in it is an error, too; it is never sent. attempt (0: not given): the delivery count at which the
    records were acquired; records acquired again since, even by the same member, are not meant. counter: the name under
    which an agent counts the records when their acknowledgement is confirmed; it is never sent.
    """

    first: int
    last: int
    types: bytes
    delay_ms: int = 0
    unrun: bool = False
    joined: bool = False
    attempt: int = 0
    counter: str = ""

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1


class StateRun(NamedTuple):
    """A run of offsets, both inclusive, with equal durable state."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    member_id: str | None = None
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The whole durable state of one share-partition (a snapshot). `start_offset` −1: not resolved yet.

    log_epoch: leader epoch of the log's batch acquired last, or of a later batch read with it; −1: not known, or the
    log is never cut.
    """

    state_epoch: int = 0
    leader_epoch: int = 0
    log_epoch: int = -1
    start_offset: int = -1
    delivery_complete_count: int = 0
    runs: tuple[StateRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUpdate:
    """The changes of a step, to be written: runs replace all earlier runs of their offsets, in log order.

    log_epoch: as in `PartitionState`, −1: unchanged.
    """

    start_offset: int
    delivery_complete_count: int
    runs: tuple[StateRun, ...] = ()
    log_epoch: int = -1


UNLIMITED_DELIVERIES: Final = 1_000_000
"""The highest delivery limit: a group with it loses no record however often its members die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of a group that the share-partition reads at each step, so that a change acts at once (SG-3.4).

    lock_duration_ms: how long an acquisition lock holds (share.record.lock.duration.ms, SG-8.1).
    delivery_count_max: deliveries before a record is archived (share.delivery.count.limit, SG-3.3).
    record_locks_max: acquired records at once (share.partition.max.record.locks, SG-4.3).
    window_max: span from start offset to end offset (share.partition.max.window); None is the value `locks`: the span
        itself is held to `record_locks_max`, finished offsets included, exactly as Kafka's brokers count (SG-4.4).
    renew_enabled: True if RENEW is accepted (share.renew.acknowledge.enable).
    dead_letter_on_limit, dead_letter_on_reject: such records become ARCHIVING, which blocks the start offset, until the
        shell has written the dead letter and calls `finish_archiving` (SG-15.2).
    paused: nothing is acquired; held records can be acknowledged and renewed, and lapse (share.paused, SG-4.6).
    priority: redeliveries or new records first (share.delivery.priority).
    """

    lock_duration_ms: int = 30_000
    delivery_count_max: int = 5
    record_locks_max: int = 2_000
    window_max: int | None = 200_000
    renew_enabled: bool = True
    dead_letter_on_limit: bool = False
    dead_letter_on_reject: bool = False
    paused: bool = False
    priority: Priority = Priority.REDELIVERIES

    @property
    def deliveries_end(self) -> bool:
        """True if records run out of deliveries, so that a dead process's records are better kept apart
        (quarantine)."""
        return self.delivery_count_max < UNLIMITED_DELIVERIES
