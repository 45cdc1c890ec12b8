"""The result types of `ShareAdmin.browse`, `records` and `intervene`: the view of one partition of a group.

All kinds of groups share one form: runs of neighbouring offsets in the same state. `BrowsePage.unknown` tells which
facts are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flowshare.share.browse import Hole, SeenRun
from flowshare.share.intervene import Intervened as Intervened

BrowsedRun = SeenRun
BrowsedHole = Hole
ActName = Literal["release", "reject", "dead_letter", "now"]
"""The actions of an operator, see `share.intervene`."""


class BrowsedClaim(NamedTuple):
    """The key hashes that a member of a cooperative group has claimed, `first` to before `end`."""

    first: int
    end: int
    member_id: str


class BrowsedRecord(NamedTuple):
    """A record as in the log. transaction: `committed`, `aborted`, `open`, or empty: the record is in no
    transaction."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPage:
    """The records found. missing: offset ranges without a record in the log (any more). next: the offset to go on at
    when `max_bytes` was reached; None: nothing is left."""

    records: tuple[BrowsedRecord, ...]
    missing: tuple[tuple[int, int], ...] = ()
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsePage:
    """The state of one partition of a group at one moment, in ascending order of offsets.

    kind: `share`, `cooperative`, or `native` (Kafka's brokers lead the group). taken_ms: the moment, milliseconds since
    1970. loaded: True: the state that the leader decides by; False: the stored state. start_offset: all offsets before
    it are finished; −1: the group has not begun with this partition. end_offset: the first offset that was never handed
    out. log_start, log_end, last_stable: of the log. leader: node that leads the partition, −1: there is one server.
    next: the offset of the next page, None: this page is the last. holes: offsets without a record, filled only when no
    states are asked for. order: the order of the group, as `share.key.order`. claims: of a cooperative group by key.
    unknown: a sentence on the missing facts and the reason; empty: nothing is missing.
    """

    group_id: str
    topic: str
    partition: int
    kind: str
    taken_ms: int
    loaded: bool
    start_offset: int = -1
    end_offset: int = -1
    log_start: int = -1
    log_end: int = -1
    last_stable: int = -1
    leader: int = -1
    leader_epoch: int = -1
    next: int | None = None
    runs: Sequence[BrowsedRun] = ()
    holes: tuple[BrowsedHole, ...] = ()
    order: str = ""
    claims: tuple[BrowsedClaim, ...] = ()
    unknown: str = ""

    @property
    def initialised(self) -> bool:
        """True if the group has begun with the partition."""
        return self.start_offset >= 0
