"""What a slot's log says of settles that were written apart: outputs in a Kafka transaction, state in the slot.

A slot's leader has *lanes*. Each is a transactional id with a *ledger*, an offset that is committed in the lane's own
transactions: the number of the last one that was committed. One transaction carries the outputs of one or more settles.
Before it is ended a *row* of each settle stands in the slot's log, with the transaction's number and what becomes of
the settle's records. So whoever leads the slot reads off log and ledger together what happened.

Invariant: of each settle either its outputs are committed, and what becomes of its records is in the state, or in a row
that `decide` calls committed; or its outputs are aborted, and its records are as they were. It rests on these rules:

- a lane has one transaction at a time, and its number is above all before it, whatever became of those: it begins with
  the epoch of the leader's claim, as rows and ledgers may be gone; and is above these all the same (`last_number`);
- a row is confirmed in the slot's log before its transaction is asked to be committed. Only who leads the slot has
  writes confirmed, and all of them are read by who leads it next: so its numbers are above this one;
- who leads next takes over the lane's transactional id before it reads the ledger: what was not decided then never is.
  It reads where it has just written, in a transaction that is aborted: others may have an older ledger;
- rows of what was not done are deleted no later than in the write that has the lane's next rows: the ledger passes
  their number with that transaction;
- a row of what is committed is deleted by the write that makes its changes, which are made where the records are still
  acquired in that same delivery: so a row that is found a second time changes nothing;
- a ledger that has not reached a transaction's own number, when the lane was taken over since, never does by it; one
  that has just that number is there by it; one above it was moved by somebody who leads the slot by now (`fate`).

    the row is marked decided                          COMMITTED  its changes are made, then it is deleted
    its lane's ledger is at its number, or above       COMMITTED  the same
    the ledger is below, the lane is ours              UNDONE     it is deleted before, or with, the lane's next row
    the ledger is below, its transaction is under way  UNDECIDED  who wants to load the share-partition waits
    the ledger is not known                            UNDECIDED  the same

Rows lie among the own state of what is settled, a share-partition or a partition of a cooperative group, so that they
go with it when it is deleted or begins anew:

    <the share-partition's keys begin so> 0x04 <lane, 1 byte> <number, 8 bytes> <settle, 2 bytes>
    <the cooperative partition's keys>    0x11 the same
    value    format version, 1: it is marked decided (1 byte each); length of the update (4 bytes), update, writes
    y/ <slot, 4 bytes> <lane, 1 byte>                                     the note of a lane that was used (`LaneNote`)
    value    format version, how it ended (1 byte each); how many partitions `before` has (2 bytes); of each partition,
             of `before` first: length of the topic's name (2 bytes), name, partition (4 bytes)

A coordinator may call a transaction ended without telling its partitions so (KAFKA-20734). Whoever takes the lane over
tells them again, by empty transactions of the same producer with the same end. The note is what he needs for that:

    note                 coordinator says          is told
    it has an end        open                      what a predecessor was telling is ended first, as he meant to, by
                                                   who has the slot: the note is written again before that
    it has an end        anything                  `before`: committed; `last`: that end
    it has none          committed, aborted        the same, with this end, which is noted before the producer is fenced
    it has none          open                      aborted: what the coordinator names; all else of the note: committed

The note has no end from when a transaction begins until somebody takes the lane over, and none when all is told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from flowshare.slots.errors import NewerFormat, SlotCorrupt
from flowshare.slots.placement import (
    COOPERATIVE_PREFIX,
    COOPERATIVE_SETTLES,
    LANES_PREFIX,
    SHARE_PREFIX,
    SHARE_SETTLES,
    partition_head,
)
from flowshare.slots.records import Entry, decode_entries, encode_entries

VERSION: Final = 1
EPOCH_BITS: Final = 32
"""A number is above all of older claims of the slot: so many bits count what one leader does."""
Place = tuple[str, int]
LEDGER: Final[Place] = ("", 0)
"""In a lane's note: its ledger."""
NO_NUMBER: Final = -1
"""Of a ledger in which nothing was committed yet."""
SETTLES_MAX: Final = 1 << 16
_PLACE: Final = struct.Struct(">BQH")
_LANE: Final = struct.Struct(">IB")
_NOTE: Final = struct.Struct(">BBH")
_LENGTH: Final = struct.Struct(">H")
_PARTITION: Final = struct.Struct(">i")
_ENDS: Final = (None, False, True)
"""How a lane's last transaction ended, by its number in a note."""
_VALUE: Final = struct.Struct(">BBI")


class Row(NamedTuple):
    """Where a row lies: the start of its partition's keys (of a share group, or a cooperative one); lane, number of its
    transaction, settle within it."""

    share: bytes
    lane: int
    number: int
    settle: int = 0

    @property
    def key(self) -> bytes:
        """Its state key."""
        return rows_prefix(self.share) + _PLACE.pack(self.lane, self.number, self.settle)


class LaneNote(NamedTuple):
    """Where the last transactions of a lane went, topics and partitions, `LEDGER` for its ledger.

    last: of the last one; before: of the one before it, if that was committed and may not have been told everywhere.
    committed: how the last one ended, once somebody who takes the lane over knows that; else None.
    """

    before: tuple[Place, ...] = ()
    last: tuple[Place, ...] = ()
    committed: bool | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """All partitions of outputs."""
        return tuple(dict.fromkeys([place for place in (*self.before, *self.last) if place != LEDGER]))

    def begun(self, places: Iterable[Place]) -> LaneNote:
        """The next transaction writes to these."""
        return LaneNote(self.last, (*sorted(set(places)), LEDGER))

    def left_open(self, places: Iterable[Place]) -> LaneNote:
        """The last one is open, has these partitions so far, and is aborted.

        Brokers name no partition of offsets to who may not describe their topic, so the ledger is always taken for its.
        """
        last = (*(place for place in places if place != LEDGER), LEDGER)
        before = tuple(place for place in dict.fromkeys([*self.before, *self.last]) if place not in last)
        return LaneNote(before, last, committed=False)

    def ends(self) -> list[tuple[tuple[Place, ...], bool]]:
        """What is to be told to whom, one after the other: places, and whether they are committed."""
        assert self.committed is not None, "how it ended is known"
        before = tuple(place for place in self.before if place not in self.last)
        ends = [((*before, *self.last), True)] if self.committed else [(before, True), (self.last, False)]
        return [(places, end) for places, end in ends if places]

    def being_ended(self, places: Iterable[Place]) -> bool:
        """Whether who told these partitions, and did not come to the end, meant to commit."""
        of = set(places)
        return next((end for some, end in self.ends() if not of.isdisjoint(some)), bool(self.committed))


class Prepared(NamedTuple):
    """What a settle changes when it is committed. update: of its share-partition. beside: further writes."""

    update: bytes
    beside: tuple[Entry, ...] = ()


class Kept(NamedTuple):
    """A row as it lies in the log. decided: it is committed whatever the ledger says."""

    row: Row
    prepared: Prepared
    decided: bool


class Fate(Enum):
    """What became of a settle."""

    COMMITTED = "committed"
    UNDONE = "undone"
    UNDECIDED = "undecided"
    TAKEN = "taken"
    """Somebody else leads the slot by now, and will find out."""


# --- bytes --------------------------------------------------------------------------------------------------------


def encode_row(prepared: Prepared, *, decided: bool = False) -> bytes:
    """The value of a row."""
    head = _VALUE.pack(VERSION, decided, len(prepared.update))
    return head + prepared.update + encode_entries(prepared.beside)


def rows_prefix(share: bytes) -> bytes:
    """Start of the keys of a partition's rows. share: of all of its keys."""
    return share + (COOPERATIVE_SETTLES if share.startswith(COOPERATIVE_PREFIX) else SHARE_SETTLES)


def row_of(key: bytes) -> Row | None:
    """The row that a state key belongs to; None: it is no row's. Raises: SlotCorrupt."""
    if not key.startswith((SHARE_PREFIX, COOPERATIVE_PREFIX)):
        return None
    share = partition_head(key)
    prefix = rows_prefix(share)
    if not key.startswith(prefix):
        return None
    if len(key) != len(prefix) + _PLACE.size:
        raise SlotCorrupt(f"the key of a prepared settle cannot be read: {key!r}")
    return Row(share, *_PLACE.unpack_from(key, len(prefix)))


def decode_row(key: bytes, value: bytes) -> Kept:
    """A row. Raises: SlotCorrupt, NewerFormat."""
    row = row_of(key)
    if row is None:
        raise SlotCorrupt(f"{key!r} is not the key of a prepared settle")
    if value and value[0] > VERSION:
        raise NewerFormat(
            f"a prepared settle has format {value[0]}, this release reads up to {VERSION}: start this worker with the "
            "release of the others, or a newer one"
        )
    try:
        version, decided, size = _VALUE.unpack_from(value)
    except struct.error:
        raise SlotCorrupt("a prepared settle is cut short") from None
    update = value[_VALUE.size : _VALUE.size + size]
    if version != VERSION or decided > 1 or len(update) != size:
        raise SlotCorrupt("a prepared settle cannot be read")
    return Kept(row, Prepared(update, tuple(decode_entries(value[_VALUE.size + size :]))), bool(decided))


def rows_in(entries: Iterable[tuple[bytes, bytes]]) -> list[Kept]:
    """The rows among entries of a slot. Raises: SlotCorrupt, NewerFormat."""
    return [decode_row(key, value) for key, value in entries if row_of(key) is not None]


def places_in(entries: Iterable[tuple[bytes, bytes]]) -> list[Row]:
    """Where rows lie among entries of a slot, whatever they hold; a key that cannot be read is no row's here."""
    found: list[Row] = []
    for key, _ in entries:
        try:
            row = row_of(key)
        except SlotCorrupt:
            continue
        if row is not None:
            found.append(row)
    return found


def lane_entry(slot: int, lane: int, note: LaneNote) -> tuple[bytes, bytes]:
    """The entry of a lane."""
    parts = [_NOTE.pack(VERSION, _ENDS.index(note.committed), len(note.before))]
    for topic, partition in (*note.before, *note.last):
        name = topic.encode()
        parts += (_LENGTH.pack(len(name)), name, _PARTITION.pack(partition))
    return LANES_PREFIX + _LANE.pack(slot, lane), b"".join(parts)


def lane_of(key: bytes) -> int | None:
    """The lane whose note a state key has; None: it is no lane's. Raises: SlotCorrupt."""
    if not key.startswith(LANES_PREFIX):
        return None
    try:
        _, lane = _LANE.unpack(key[len(LANES_PREFIX) :])
    except struct.error:
        raise SlotCorrupt(f"the key of a lane cannot be read: {key!r}") from None
    return int(lane)


def decode_note(value: bytes) -> LaneNote:
    """The note of a lane. Raises: SlotCorrupt."""
    places: list[Place] = []
    try:
        version, end, before = _NOTE.unpack_from(value)
        at = _NOTE.size
        while at < len(value):
            (length,) = _LENGTH.unpack_from(value, at)
            at += _LENGTH.size
            (partition,) = _PARTITION.unpack_from(value, at + length)
            places.append((value[at : at + length].decode(), partition))
            at += length + _PARTITION.size
    except (struct.error, UnicodeDecodeError):
        raise SlotCorrupt("the note of a lane cannot be read") from None
    if version != VERSION or end >= len(_ENDS) or before > len(places):
        raise SlotCorrupt("the note of a lane has a format that is not known")
    return LaneNote(tuple(places[:before]), tuple(places[before:]), _ENDS[end])


# --- decisions ----------------------------------------------------------------------------------------------------


def decide(rows: Iterable[Kept], ledgers: Mapping[int, int]) -> dict[Row, Fate]:
    """What became of each row, by the ledgers of lanes that are this leader's (the table above)."""

    def fate_of(kept: Kept) -> Fate:
        if kept.decided:
            return Fate.COMMITTED
        ledger = ledgers.get(kept.row.lane)
        if ledger is None:
            return Fate.UNDECIDED
        return Fate.COMMITTED if kept.row.number <= ledger else Fate.UNDONE

    return {kept.row: fate_of(kept) for kept in rows}


def fate(number: int, ledger: int) -> Fate:
    """What became of this process's own transaction, after its lane was taken over anew."""
    if ledger == number:
        return Fate.COMMITTED
    return Fate.UNDONE if ledger < number else Fate.TAKEN


def last_number(lane: int, rows: Iterable[Row], ledger: int) -> int:
    """The highest number that a lane has used, as far as anybody could take it for another one."""
    return max([0, ledger, *(row.number for row in rows if row.lane == lane)])


class Begun(NamedTuple):
    """A transaction that begins. entries: to be confirmed before it is ended; rows: of its settles, in order."""

    number: int
    rows: tuple[Row, ...]
    entries: tuple[Entry, ...]


class LaneBook:
    """What one leader knows of one lane: the last number, the ledger, and which rows are to be deleted."""

    def __init__(self, lane: int, epoch: int) -> None:
        """epoch: of the claim under which the slot is led."""
        self.lane = lane
        self.ledger: int | None = None
        """Number of the last transaction that was committed; None: not known."""
        self.last = epoch << EPOCH_BITS
        self._open: Begun | None = None
        self._undone: list[Row] = []

    @property
    def under_way(self) -> Begun | None:
        """The transaction that was begun and is not known as committed or undone."""
        return self._open

    def taken_over(self, rows: Sequence[Row], ledger: int) -> None:
        """The lane is this leader's; rows: all that there are in the slot's log."""
        assert self._open is None, "what is under way is known first"
        self.ledger = ledger
        self.last = max(self.last, last_number(self.lane, rows, ledger))
        undone = [row for row in rows if row.lane == self.lane and row.number > ledger]
        self._undone = list(dict.fromkeys([*self._undone, *undone]))

    def begin(self, settles: Sequence[tuple[bytes, Prepared]]) -> Begun:
        """The next transaction, of settles with the starts of their share-partitions' keys."""
        assert self._open is None, "a lane has one transaction at a time"
        assert self.ledger is not None, "a lane is taken over before it is used"
        self.last += 1
        rows = tuple(Row(share, self.lane, self.last, n) for n, (share, _) in enumerate(settles))
        gone: list[Entry] = [(row.key, None) for row in self._undone]
        made: list[Entry] = [(row.key, encode_row(one)) for row, (_, one) in zip(rows, settles, strict=True)]
        self._open = Begun(self.last, rows, (*gone, *made))
        return self._open

    def prepared(self) -> None:
        """The entries of the transaction are confirmed: with them went the rows of all that was not done before."""
        self._undone = []

    def committed(self) -> None:
        """The transaction is committed."""
        assert self._open is not None
        self.ledger, self._open = self._open.number, None

    def undone(self) -> None:
        """The transaction was not committed, and never will be."""
        assert self._open is not None
        self._undone += self._open.rows
        self._open = None

    def fate_of(self, kept: Kept) -> Fate:
        """What became of a row of this lane."""
        if self._open is not None and kept.row.number == self._open.number:
            return Fate.UNDECIDED
        known = {} if self.ledger is None else {self.lane: self.ledger}
        return decide((kept,), known)[kept.row]
