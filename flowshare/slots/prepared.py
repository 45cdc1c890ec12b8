"""Prepared settles: rows in a slot's log for settles whose outputs go in a Kafka transaction and whose state goes in
the slot.

A slot's leader has *lanes*. A lane is a transactional id with a *ledger*: an offset, committed in the lane's own
transactions, that holds the number of the last committed one. One transaction carries the outputs of one or more
settles. Before the transaction is ended, a *row* of each settle is written to the slot's log, with the transaction's
number and the new state of the settle's records. So the slot's leader can tell from the log and the ledger what
happened.

Invariant: a settle is either committed or undone. Committed: its outputs are committed, and the new state of its
records is in the slot's state, or in a row that `decide` calls committed. Undone: its outputs are aborted, and its
records are as they were. The invariant rests on these rules:

- A lane has one transaction at a time. The transaction's number is above all earlier ones, whatever became of those.
  Numbers begin with the epoch of the leader's claim, because rows and ledgers may be gone. They are also above all rows
  and ledgers that are left (`last_number`).
- A row is confirmed in the slot's log before the commit of its transaction is requested. Only the slot's leader gets
  writes confirmed, and the next leader reads all of them. So the next leader's numbers are above this leader's.
- The next leader takes over the lane's transactional id before it reads the ledger. A transaction that was not decided
  by then is never decided. The leader reads the ledger at the broker where it has just written, in a transaction that
  is aborted, because other brokers may have an older ledger.
- Rows of undone settles are deleted at the latest in the write that has the lane's next rows, because the transaction
  of those rows moves the ledger above the old numbers.
- A row of a committed settle is deleted by the write that makes its changes. Changes are made only to records that are
  still acquired in that same delivery. So a row that is found a second time changes nothing.
- After the lane was taken over, the ledger tells about this process's own transaction (`fate`). Below its number: the
  transaction is undone for ever. Equal to its number: it is committed. Above its number: the slot has a new leader,
  which moved the ledger.

    the row is marked decided                          COMMITTED  its changes are made, then it is deleted
    its lane's ledger is at its number, or above       COMMITTED  the same
    the ledger is below, the lane is ours              UNDONE     it is deleted before, or with, the lane's next row
    the ledger is below, its transaction is under way  UNDECIDED  loading the share-partition has to wait
    the ledger is not known                            UNDECIDED  the same

Rows lie among the state keys of the share-partition, or of the cooperative group's partition, that they settle. So they
go with that state when it is deleted or begins anew:

    <the share-partition's keys begin so> 0x04 <lane, 1 byte> <number, 8 bytes> <settle, 2 bytes>
    <the cooperative partition's keys>    0x11 the same
    value    format version, 1: it is marked decided (1 byte each); length of the update (4 bytes), update, writes
    y/ <slot, 4 bytes> <lane, 1 byte>                                     the note of a lane that was used (`LaneNote`)
    value    format version, how it ended (1 byte each); how many partitions `before` has (2 bytes); of each partition,
             of `before` first: length of the topic's name (2 bytes), name, partition (4 bytes)

A transaction coordinator may call a transaction ended without telling the transaction's partitions (KAFKA-20734). So
the leader that takes over a lane tells the partitions again, by empty transactions of the same producer with the same
end. It needs the lane's note for that:

    note                 coordinator says          the partitions are told
    it has an end        open                      first, the slot's leader ends what a predecessor was telling, as the
                                                   predecessor meant to; the note is written again before that
    it has an end        anything                  `before`: committed; `last`: that end
    it has none          committed, aborted        the same, with this end, which is noted before the producer is fenced
    it has none          open                      aborted: those that the coordinator names; all others of the note:
                                                   committed

The note has no end from the beginning of a transaction until the lane is taken over, and again when all partitions are
told.
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
"""Bits of a number that count one leader's transactions; the bits above are its claim's epoch, so numbers rise over
claims."""
Place = tuple[str, int]
LEDGER: Final[Place] = ("", 0)
"""The ledger in a lane's note."""
NO_NUMBER: Final = -1
"""The number of a ledger in which nothing was committed yet."""
SETTLES_MAX: Final = 1 << 16
_PLACE: Final = struct.Struct(">BQH")
_LANE: Final = struct.Struct(">IB")
_NOTE: Final = struct.Struct(">BBH")
_LENGTH: Final = struct.Struct(">H")
_PARTITION: Final = struct.Struct(">i")
_ENDS: Final = (None, False, True)
"""Ends of a lane's last transaction, by their numbers in a note: None is open, True is committed."""
_VALUE: Final = struct.Struct(">BBI")


class Row(NamedTuple):
    """The place of a row: the start of its partition's keys (of a share group, or a cooperative one); lane, number of
    its transaction, settle within it."""

    share: bytes
    lane: int
    number: int
    settle: int = 0

    @property
    def key(self) -> bytes:
        """The row's state key."""
        return rows_prefix(self.share) + _PLACE.pack(self.lane, self.number, self.settle)


class LaneNote(NamedTuple):
    """The places of a lane's last transactions, topics and partitions, `LEDGER` for its ledger.

    last: of the last one; before: of the one before it, if that was committed and may not have been told everywhere.
    committed: the end of the last one, once a leader that takes the lane over knows it; else None.
    """

    before: tuple[Place, ...] = ()
    last: tuple[Place, ...] = ()
    committed: bool | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """All partitions of outputs."""
        return tuple(dict.fromkeys([place for place in (*self.before, *self.last) if place != LEDGER]))

    def begun(self, places: Iterable[Place]) -> LaneNote:
        """Return the note for the next transaction, which writes to these places."""
        return LaneNote(self.last, (*sorted(set(places)), LEDGER))

    def left_open(self, places: Iterable[Place]) -> LaneNote:
        """Return the note for an open last transaction with these partitions so far, which is aborted.

        Brokers name no partition of offsets to a client that may not describe their topic, so the ledger always counts
        as one of them.
        """
        last = (*(place for place in places if place != LEDGER), LEDGER)
        before = tuple(place for place in dict.fromkeys([*self.before, *self.last]) if place not in last)
        return LaneNote(before, last, committed=False)

    def ends(self) -> list[tuple[tuple[Place, ...], bool]]:
        """List the ends to tell, in order: the places, and True if their transaction was committed."""
        assert self.committed is not None, "how it ended is known"
        before = tuple(place for place in self.before if place not in self.last)
        ends = [((*before, *self.last), True)] if self.committed else [(before, True), (self.last, False)]
        return [(places, end) for places, end in ends if places]

    def being_ended(self, places: Iterable[Place]) -> bool:
        """Return the end that an interrupted telling of these partitions was to reach: True for commit."""
        of = set(places)
        return next((end for some, end in self.ends() if not of.isdisjoint(some)), bool(self.committed))


class Prepared(NamedTuple):
    """The changes that a settle makes when it is committed. update: of its share-partition. beside: further writes."""

    update: bytes
    beside: tuple[Entry, ...] = ()


class Kept(NamedTuple):
    """A row as it lies in the log. decided: True: committed whatever the ledger says."""

    row: Row
    prepared: Prepared
    decided: bool


class Fate(Enum):
    """The outcome of a prepared settle."""

    COMMITTED = "committed"
    UNDONE = "undone"
    UNDECIDED = "undecided"
    TAKEN = "taken"
    """Another worker leads the slot by now, and will find out."""


# --- bytes --------------------------------------------------------------------------------------------------------


def encode_row(prepared: Prepared, *, decided: bool = False) -> bytes:
    """Return the value of a row."""
    head = _VALUE.pack(VERSION, decided, len(prepared.update))
    return head + prepared.update + encode_entries(prepared.beside)


def rows_prefix(share: bytes) -> bytes:
    """Return the start of the keys of a partition's rows. share: the start of all its keys."""
    return share + (COOPERATIVE_SETTLES if share.startswith(COOPERATIVE_PREFIX) else SHARE_SETTLES)


def row_of(key: bytes) -> Row | None:
    """Return the row that a state key belongs to; None: no row's key. Raises SlotCorrupt."""
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
    """Return a row read from its entry. Raises SlotCorrupt, NewerFormat."""
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
    """Return the rows among entries of a slot. Raises SlotCorrupt, NewerFormat."""
    return [decode_row(key, value) for key, value in entries if row_of(key) is not None]


def places_in(entries: Iterable[tuple[bytes, bytes]]) -> list[Row]:
    """Return the places of rows among entries of a slot, whatever they hold; unreadable keys are passed over."""
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
    """Return the entry with a lane's note."""
    parts = [_NOTE.pack(VERSION, _ENDS.index(note.committed), len(note.before))]
    for topic, partition in (*note.before, *note.last):
        name = topic.encode()
        parts += (_LENGTH.pack(len(name)), name, _PARTITION.pack(partition))
    return LANES_PREFIX + _LANE.pack(slot, lane), b"".join(parts)


def lane_of(key: bytes) -> int | None:
    """Return the lane whose note a state key has; None: no note's key. Raises SlotCorrupt."""
    if not key.startswith(LANES_PREFIX):
        return None
    try:
        _, lane = _LANE.unpack(key[len(LANES_PREFIX) :])
    except struct.error:
        raise SlotCorrupt(f"the key of a lane cannot be read: {key!r}") from None
    return int(lane)


def decode_note(value: bytes) -> LaneNote:
    """Return the note of a lane. Raises SlotCorrupt."""
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
    """Tell the fate of each row. ledgers: of the lanes that belong to this leader (see the table above)."""

    def fate_of(kept: Kept) -> Fate:
        if kept.decided:
            return Fate.COMMITTED
        ledger = ledgers.get(kept.row.lane)
        if ledger is None:
            return Fate.UNDECIDED
        return Fate.COMMITTED if kept.row.number <= ledger else Fate.UNDONE

    return {kept.row: fate_of(kept) for kept in rows}


def fate(number: int, ledger: int) -> Fate:
    """Tell the fate of this process's own transaction, after the process has taken over its lane again."""
    if ledger == number:
        return Fate.COMMITTED
    return Fate.UNDONE if ledger < number else Fate.TAKEN


def last_number(lane: int, rows: Iterable[Row], ledger: int) -> int:
    """Return the highest number that a lane has used, as far as rows and ledger show it."""
    return max([0, ledger, *(row.number for row in rows if row.lane == lane)])


class Begun(NamedTuple):
    """A transaction that begins. entries: to be confirmed before it is ended; rows: of its settles, in order."""

    number: int
    rows: tuple[Row, ...]
    entries: tuple[Entry, ...]


class LaneBook:
    """One leader's view of one lane: the last number, the ledger, and the rows that must be deleted."""

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
        """Take the lane over for this leader. rows: all rows in the slot's log."""
        assert self._open is None, "what is under way is known first"
        self.ledger = ledger
        self.last = max(self.last, last_number(self.lane, rows, ledger))
        undone = [row for row in rows if row.lane == self.lane and row.number > ledger]
        self._undone = list(dict.fromkeys([*self._undone, *undone]))

    def begin(self, settles: Sequence[tuple[bytes, Prepared]]) -> Begun:
        """Begin the next transaction, of settles with the starts of their share-partitions' keys."""
        assert self._open is None, "a lane has one transaction at a time"
        assert self.ledger is not None, "a lane is taken over before it is used"
        self.last += 1
        rows = tuple(Row(share, self.lane, self.last, n) for n, (share, _) in enumerate(settles))
        gone: list[Entry] = [(row.key, None) for row in self._undone]
        made: list[Entry] = [(row.key, encode_row(one)) for row, (_, one) in zip(rows, settles, strict=True)]
        self._open = Begun(self.last, rows, (*gone, *made))
        return self._open

    def prepared(self) -> None:
        """Note that the transaction's entries are confirmed; they removed the rows of undone settles."""
        self._undone = []

    def committed(self) -> None:
        """Note that the transaction is committed."""
        assert self._open is not None
        self.ledger, self._open = self._open.number, None

    def undone(self) -> None:
        """Note that the transaction was not committed, and never will be."""
        assert self._open is not None
        self._undone += self._open.rows
        self._open = None

    def fate_of(self, kept: Kept) -> Fate:
        """Tell the fate of a row of this lane."""
        if self._open is not None and kept.row.number == self._open.number:
            return Fate.UNDECIDED
        known = {} if self.ledger is None else {self.lane: self.ledger}
        return decide((kept,), known)[kept.row]
