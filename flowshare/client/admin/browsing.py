"""What is seen of a partition of a group by `ShareAdmin.browse`, `records` and `intervene`.

One form for all groups: runs of offsets that are alike. What is not told stands in `BrowsePage.unknown`.
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
"""What an operator may do, see `share.intervene`."""


class BrowsedClaim(NamedTuple):
    """Hashes of keys, `first` to before `end`, that a member of a cooperative group has."""

    first: int
    end: int
    member_id: str


class BrowsedRecord(NamedTuple):
    """A record as it is in the log. transaction: `committed`, `aborted`, `open`, or empty: it is in none."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPage:
    """Records that were asked for. missing: ranges of offsets where the log has none (any more). next: where to go on
    when there were too many bytes; None: that was all."""

    records: tuple[BrowsedRecord, ...]
    missing: tuple[tuple[int, int], ...] = ()
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsePage:
    """What stands in a partition of a group at one moment, ascending.

    kind: `share`, `cooperative`, or `native` (Kafka's brokers lead it). taken_ms: the moment, milliseconds since 1970.
    loaded: it is what the leader decides by; False: what is stored. start_offset: all before it is finished; −1: the
    group has begun nothing here. end_offset: the first offset that nobody was ever given. log_start, log_end,
    last_stable: of the log. leader: node that leads it, −1: there is one server. next: where to go on, None: that was
    all. holes: where no record stands, told when no states are asked for. order: what orders the group, as
    `share.key.order`. claims: of a cooperative group by key. unknown: a sentence on what is not told, and why; empty:
    nothing is missing.
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
        """Whether the group has begun with the partition."""
        return self.start_offset >= 0
