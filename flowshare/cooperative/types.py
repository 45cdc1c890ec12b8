"""The words of cooperative groups: ranges, claims, what members commit, and the mutations that are written.

All ranges are half-open: `first` belongs to them, `end` does not. Times are milliseconds, `_ms`.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

HASHES: Final = 2**31
"""Keys have hashes from 0 to HASHES − 1: Kafka's murmur2 of the key, without its sign."""
LEASE_MS: Final = 30_000
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 600_000
DRAIN_TIMEOUT_MS: Final = 60_000


HORIZON_STEP: Final = 2_000
"""Offsets that a member's horizon is moved on by (`attempts`)."""


class OffsetRange(NamedTuple):
    """Offsets from `first` up to, without, `end`."""

    first: int
    end: int


class KeyRange(NamedTuple):
    """Hashes of keys from `first` up to, without, `end`."""

    first: int
    end: int


KeyRanges = tuple[KeyRange, ...]
"""Ascending and disjoint."""
WHOLE: Final[KeyRanges] = (KeyRange(0, HASHES),)
"""A partition that is not split."""


if TYPE_CHECKING:
    Column: TypeAlias = "array[int]"
else:
    Column = array  # that has no type parameter at run time


class OffsetColumns(NamedTuple):
    """Many ranges of offsets, ascending, as two columns: 16 bytes a range, and quick to copy."""

    firsts: Column
    ends: Column

    def pairs(self) -> list[OffsetRange]:
        """The ranges one by one."""
        return list(map(OffsetRange, self.firsts, self.ends))


class DrainMode(enum.StrEnum):
    """The ways to free a range that its holder does not give back. STRICT: only the end of its lease frees it.
    AVAILABLE: a member that has waited for `drain_timeout_ms` may take it, too. Then two handlers of one key may
    overlap, which is counted."""

    STRICT = "strict"
    AVAILABLE = "available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms a member holds. lease_ms: how long after its last `hold` (LEASE_MS_MIN to LEASE_MS_MAX).
    exact_starts: it says each start before it makes it, first ones too, so it needs no horizon (`attempts`)."""

    lease_ms: int = LEASE_MS
    mode: DrainMode = DrainMode.STRICT
    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    exact_starts: bool = False


class Claim(NamedTuple):
    """Hashes that a member holds alone. epoch: grows with each tenure; what a commit names to show that it is this
    claim's."""

    first: int
    end: int
    member: str
    epoch: int


class Holder(NamedTuple):
    """A member that claims something, as it is stored: the group's generation that it knew, and its lease."""

    member: str
    generation: int
    lease_ms: int


class Blocked(NamedTuple):
    """Hashes that a member wants and another one (`holder`) holds, since when it waits for them."""

    first: int
    end: int
    holder: str
    since_ms: int


class Reach(NamedTuple):
    """Of keys with these hashes what lies before an offset may have been begun by a member that is gone."""

    first: int
    end: int
    before: int


class Horizon(NamedTuple):
    """A member begins nothing at this offset or behind it without saying so before."""

    member: str
    offset: int


class PendingOffsets(NamedTuple):
    """The offsets that a producer's open transaction will commit. keys: of the claims under which its records were
    handled."""

    producer_epoch: int
    ranges: tuple[OffsetRange, ...]
    keys: KeyRanges = ()


# -- what is written, in order; a later one of the same key replaces an earlier one


class PutRange(NamedTuple):
    """Offsets behind the stable offset are committed. Key: `first`."""

    first: int
    end: int
    reset_epoch: int


class PutStable(NamedTuple):
    """All offsets before `stable` are committed; ranges of an older reset epoch count no more."""

    stable: int
    reset_epoch: int


class DropRange(NamedTuple):
    """The range of this key is part of another one, or behind the stable offset, or gone."""

    first: int


class PutClaims(NamedTuple):
    """All claims, and the epoch of the newest one there ever was."""

    epoch: int
    holders: tuple[Holder, ...]
    claims: tuple[Claim, ...]


class DropSpans(NamedTuple):
    """Offsets that members had of a partition, whatever their keys, are free: nothing writes them any more."""


class PutPending(NamedTuple):
    """The offsets that an open transaction will commit. Key: `producer_id`."""

    producer_id: int
    pending: PendingOffsets


class DropPending(NamedTuple):
    """The transaction of this producer has ended."""

    producer_id: int


class PutStarts(NamedTuple):
    """How often a record that is not committed was begun. Key: `offset`."""

    offset: int
    starts: int


class DropStarts(NamedTuple):
    """The record of this key is committed, or gone."""

    offset: int


class PutReaches(NamedTuple):
    """The records that gone members may have begun, and the horizons of the present members."""

    reaches: tuple[Reach, ...]
    horizons: tuple[Horizon, ...]


Mutation = (
    PutRange
    | PutStable
    | DropRange
    | PutClaims
    | DropSpans
    | PutPending
    | DropPending
    | PutStarts
    | DropStarts
    | PutReaches
)


class CommitEntry(NamedTuple):
    """Offsets of records whose keys lie in `keys`, or void ones; epoch: of the claim (`Claims.holds`)."""

    keys: KeyRange
    epoch: int
    ranges: Sequence[tuple[int, int]]


class StartEntry(NamedTuple):
    """Starts of records whose keys lie in `keys`: (offset, how often then), and the member's horizon (`attempts`)."""

    keys: KeyRange
    epoch: int
    starts: Sequence[tuple[int, int]]
    horizon: int


Entry = CommitEntry | StartEntry
