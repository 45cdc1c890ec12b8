"""Parked keys: their records wait behind a dead letter, in a group that keeps the order even then (SG-18.11).

A key is parked when one of its records became a dead letter. Its later records follow it into the dead letters, in
order, until a replay has settled them all (Axon Framework's sequenced dead letters are the model). A replay sends the
letters of a key again to the partition that they came from, all of them and in order; each carries a *mark*: the
replay's version, the offset of the original record, the original up to which everything is settled with it, and the one
up to which all must be settled before it.

Invariant, for each parked key: of its records in the log and its letters, exactly those with an original offset in
(done, last], and those behind in the log without a mark, are unsettled; they are settled in this order. The core hands
out a parked key's records one at a time (`heads.single`), so that each is judged by the state that the one before has
left:

| a head of a parked key | is | accepted | rejected, its letter written |
|---|---|---|---|
| without a mark | FOLLOWS: becomes a letter unrun | – | last = its offset |
| of the last replay, behind done | REPLAYED: is run | done = up to; unparked when that is last | the replay is over |
| of the last replay, but the one before it is not settled (it never came) | SETTLED: is archived unseen | – | – |
| of a replay that is over | FOLLOWS | – | as it is: its letter was unsettled already |
| of a replay before the last one, which is not over | SETTLED: is archived unseen | – | – |
| with a mark, at or before done, or its key is not parked | SETTLED | – | – |

A replay is over when one of its records failed: those behind it follow. A replay that is begun while another goes on
sends all unsettled records again: otherwise a record that the first one sent could become another letter and be
replayed twice. So does a replay that is begun after one with a record that could not be sent, or has left the log. A
version is used once, and is higher than any before it of this share-partition, even after unparking or a new load, so
that no mark of an earlier replay counts: it is the generation of the load and a count.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

KEYS_MAX: Final = 10_000
"""The most parked keys of one share-partition."""
COUNT_BITS: Final = 20
"""Bits of a version that count replays; the rest is the generation, in which fewer replays happen than these bits
count."""
NUMBER_MAX: Final = 2**63 - 1
OVER: Final = 0
"""The version that stands for "no replay"."""


class ParkedKey(NamedTuple):
    """The durable state of a parked key.

    first: the record for which the key was parked. done, last: see the invariant. version: of the last replay. flying:
    the offset of a replayed record that was handed out (−1: none). original: the offset of that record's original; its
    settling settles everything up to `up_to`.
    """

    first: int
    done: int
    last: int
    version: int = OVER
    flying: int = -1
    original: int = -1
    up_to: int = -1


class Mark(NamedTuple):
    """The mark of a replayed record, sent as a header. It also names the group, topic and partition of the replay.

    A record that is copied to another topic with all of its headers is an ordinary record there.
    """

    version: int
    original: int
    up_to: int
    after: int
    """The original before this one in the replay, or the settled offset when the replay began."""

    def encode(self, group_id: str, topic_id: UUID, partition: int) -> bytes:
        """Return the header's value."""
        numbers = f"{self.version} {self.original} {self.up_to} {self.after}"
        return f"{numbers} {topic_id.hex}-{partition} {group_id}".encode()

    @classmethod
    def of(cls, value: bytes | None, group_id: str, topic_id: UUID, partition: int) -> Mark | None:
        """Return the mark in a header's value; None: no mark, or one of another group or partition."""
        try:
            version, original, up_to, after, *where = (value or b"").decode().split(" ", 5)
            mark = cls(int(version), int(original), int(up_to), int(after))
        except ValueError:
            return None
        # Any producer of the topic can forge a mark: one that no state could hold does not count.
        sound = OVER < mark.version <= NUMBER_MAX and -1 <= mark.after < mark.original <= mark.up_to <= NUMBER_MAX
        return mark if sound and where == [f"{topic_id.hex}-{partition}", group_id] else None


class Place(enum.Enum):
    """The kinds of a key's head; see the table."""

    FREE = "free"  # its key is not parked
    FOLLOWS = "follows"
    REPLAYED = "replayed"
    SETTLED = "settled"


Change = tuple[bytes, ParkedKey | None]
"""A key with the state to store for it; None: the key is parked no more."""


class TooManyParked(Exception):
    """Error: no more keys can be parked; the record stays where it is."""


class Parking:
    """The parked keys of one share-partition.

    hash_of: returns a key's hash, as the share-partition's heads know it. generation: of this load; higher than any
    before it.
    """

    def __init__(
        self, hash_of: Callable[[bytes], int], parked: Mapping[bytes, ParkedKey] | None = None, *, generation: int = 0
    ) -> None:
        self._hash_of = hash_of
        self._keys: dict[bytes, ParkedKey] = dict(parked or {})
        self._version = generation << COUNT_BITS
        self._flying = {one.flying: key for key, one in self._keys.items() if one.flying >= 0}
        self._counts = Counter(map(hash_of, self._keys))
        self.hashes = self._counts.keys()
        """Hashes of the parked keys, always up to date. Other keys with such a hash come one at a time, too."""

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> ParkedKey | None:
        """Return the state of a key, None if it is not parked."""
        return self._keys.get(key)

    def items(self) -> Sequence[tuple[bytes, ParkedKey]]:
        """Return all parked keys."""
        return tuple(self._keys.items())

    def judge(self, key: bytes, mark: Mark | None) -> Place:
        """Return the kind of the head of a key."""
        parked = self._keys.get(key)
        if parked is None:
            return Place.FREE if mark is None else Place.SETTLED
        if mark is None:
            return Place.FOLLOWS
        if mark.original <= parked.done or mark.version < parked.version:
            return Place.SETTLED
        if mark.version > parked.version:
            return Place.FOLLOWS
        return Place.REPLAYED if mark.after <= parked.done else Place.SETTLED

    def taken(self, key: bytes, offset: int, mark: Mark) -> Change:
        """Return the change for a REPLAYED record that is handed out."""
        return key, self._keys[key]._replace(flying=offset, original=mark.original, up_to=mark.up_to)

    def settled(self, first: int, last: int) -> list[Change]:
        """Return the changes for records that were accepted, or are not in the log any more."""
        changes: list[Change] = []
        for offset, key in self._flying.items():
            if first <= offset <= last:
                parked = self._keys[key]
                done = max(parked.done, parked.up_to)
                rest = parked._replace(done=done, flying=-1, original=-1, up_to=-1)
                changes.append((key, rest if done < parked.last else None))
        return changes

    def rejected(self, key: bytes, offset: int, mark: Mark | None) -> list[Change]:
        """Return the changes for a record whose dead letter is written. Raises TooManyParked."""
        parked = self._keys.get(key)
        if parked is None:
            if len(self._keys) >= KEYS_MAX:
                raise TooManyParked
            first = offset if mark is None else mark.original  # its letter names the original
            return [(key, ParkedKey(first, first - 1, first))]
        match self.judge(key, mark):
            case Place.FOLLOWS if mark is None:
                return [(key, parked._replace(last=max(parked.last, offset)))]
            case Place.REPLAYED:
                return [(key, parked._replace(version=OVER, flying=-1, original=-1, up_to=-1))]
            case _:
                return []

    def cut(self, end: int) -> list[Change]:
        """Return the changes for a log that ends at `end` now: a replay that lost a record is over."""
        return [
            (key, self._keys[key]._replace(version=OVER, flying=-1, original=-1, up_to=-1))
            for offset, key in self._flying.items()
            if offset >= end
        ]

    def replay(self, key: bytes) -> Change:
        """Return the change for a replay that begins; its version becomes the key's. Raises KeyError (the key is not
        parked)."""
        self._version += 1
        return key, self._keys[key]._replace(version=self._version)

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes."""
        for key, parked in changes:
            old = self._keys.pop(key, None)
            if old is not None and old.flying >= 0:
                self._flying.pop(old.flying, None)
            if parked is not None:
                self._keys[key] = parked
                if parked.flying >= 0:
                    self._flying[parked.flying] = key
            if (old is None) != (parked is None):
                self._count(key, 1 if old is None else -1)

    def _count(self, key: bytes, change: int) -> None:
        number = self._hash_of(key)
        self._counts[number] += change
        if not self._counts[number]:
            del self._counts[number]
