"""`PartitionSequence`: chooses the batch of a partition to send next, and its number: the idempotent producer's core.

Invariant: a batch is in the log at most once, even if answers are lost, and its sender gets a confirmation or an error.
Brokers know a partition's last five batches of a producer by (producer id, epoch, first and last sequence). They answer
a known batch with its place instead of writing it again, and refuse a batch that does not follow the last one. From
this follow the rules:

- A batch in doubt (sent, but with unknown outcome) is sent again unchanged: same id, epoch and sequence.
- Only the answer that a batch is out of step proves that it is not in the log: brokers look for a known batch first.
- A batch refused for good, or given up, leaves a hole: no batch behind it can be written in this epoch. When no batch
  is in doubt any more, the remaining ones get a new epoch and numbers from 0 (KIP-360); the epoch fences batches of an
  old connection that still arrive. Epochs of partitions are independent of each other, so no other partition matters.
- In order: at most five batches are under way, and none is sent that is more than four behind an unanswered one, also
  when those between are confirmed: brokers would have forgotten that one when it is sent again. While an epoch has no
  confirmed batch, or a batch has to be sent again, one goes at a time and none is new, so that a log that has forgotten
  the producer takes them in order, too.

An entry (one batch), and what happens to it:

| event | before | after |
|---|---|---|
| `take_new` | waiting | under way, with the next numbers |
| `confirmed` | under way | gone: it is in the log |
| `lost`: no answer, or one that leaves it open | under way | in doubt, to be sent again |
| `out_of_step`, with earlier ones unanswered or a hole | under way | not written, to be sent again |
| `out_of_step`, the first of all | under way | the same, and a hole: the log lost what was before it |
| `fenced`: the epoch is not the newest | under way, no doubt | the same, and a hole that takes a new producer id |
| `refused` for good | under way | gone: its sender gets the error; a hole |
| `split`: too large, no doubt | under way | two entries with its numbers, not written |
| `give_up`: its time is over | not under way | gone: its sender gets the error; a hole |

The partition, when nothing is under way:

| hole | in doubt | what is sent |
|---|---|---|
| no | any | the first entry, as it was; without entries: new batches |
| yes | some | the first one in doubt, as it was: the answer says whether it is written |
| yes | none | everything that is left, renumbered in a new epoch; in a transaction nothing: it has failed |

No I/O, no clock: a batch is any object of the caller.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

B = TypeVar("B")

IN_FLIGHT_MAX: Final = 5
"""The most batches of a partition under way: brokers remember as many (max.in.flight.requests.per.connection)."""
SEQUENCES: Final = 2**31
"""Sequences run from 0 to this number, exclusive, and then from 0 again."""
EPOCH_MAX: Final = 2**15 - 1

Identity = tuple[int, int]
"""Producer id and epoch."""


class NumberedBatch(Generic[B]):
    """A batch with its numbers. in_doubt: True: the batch may be in the log."""

    __slots__ = ("batch", "count", "identity", "in_doubt", "number", "sequence", "under_way")

    def __init__(self, batch: B, count: int, identity: Identity, sequence: int, number: int) -> None:
        """number: the batch's number among all that were sent; the parts of a split batch share its number."""
        self.batch = batch
        self.count = count
        self.identity = identity
        self.sequence = sequence
        self.number = number
        self.under_way = False
        self.in_doubt = False


class PartitionSequence(Generic[B]):
    """One producer's batches for one partition that have numbers and are not confirmed, in order."""

    def __init__(self, *, transactional: bool = False) -> None:
        """transactional: epochs belong to the transaction, so a hole makes the transaction fail."""
        self.identity: Identity | None = None
        """Producer id and epoch; None: a producer id is needed, see `begin`."""
        self.entries: list[NumberedBatch[B]] = []
        self.under_way = 0
        self.failed = False
        """True if nothing more can be sent in the transaction."""
        self._transactional = transactional
        self._next = 0
        self._made = 0
        self._careful = True
        self._hole = False
        self._outlived = False

    # --- what to send -------------------------------------------------------------------------------------------

    def begin(self, identity: Identity) -> None:
        """Number all entries anew, for a producer id or epoch that the partition has not seen; no entry may be in
        doubt."""
        assert not self.under_way, "what is under way has numbers"
        assert not any(entry.in_doubt for entry in self.entries), "what may be written keeps its numbers"
        self.identity = identity
        self.failed = self._hole = self._outlived = False
        self._careful, self._next = True, 0
        for entry in self.entries:
            entry.identity, entry.sequence = identity, self._take_numbers(entry.count)

    @property
    def has_room(self) -> bool:
        """True if a new batch may be sent now."""
        if self.identity is None or self._hole or self.failed:
            return False
        return not self.entries or (not self._careful and self._made - self.entries[0].number < IN_FLIGHT_MAX)

    def take_new(self, batch: B, count: int) -> NumberedBatch[B]:
        """Give a new batch of `count` records its numbers and mark it as sent; allowed if `has_room`."""
        assert self.identity is not None, "a producer id comes first"
        entry = NumberedBatch(batch, count, self.identity, self._take_numbers(count), self._made)
        self._made += 1
        self.entries.append(entry)
        self._sent(entry)
        return entry

    @property
    def again(self) -> NumberedBatch[B] | None:
        """The batch to send again now, before any new one; None: there is none."""
        if self.under_way or self.failed or self.identity is None:
            return None
        if self._hole:
            return next(entry for entry in self.entries if entry.in_doubt)
        return self.entries[0] if self.entries else None

    def take_again(self) -> NumberedBatch[B] | None:
        """Mark the batch to send again as sent, and return it; None: there is none."""
        entry = self.again
        if entry is not None:
            self._sent(entry)
        return entry

    # --- what became of it --------------------------------------------------------------------------------------

    def confirmed(self, entry: NumberedBatch[B]) -> None:
        """Remove a batch that is in the log."""
        self._back(entry)
        self.entries.remove(entry)
        if not self.entries:
            self._careful = False
        self._go_on()

    def lost(self, entry: NumberedBatch[B], *, sent: bool = True) -> None:
        """Take back a batch without an answer, to be sent again. sent: it may be in the log, so it is in doubt until a
        next try tells."""
        self._back(entry)
        entry.in_doubt = entry.in_doubt or sent
        self._careful = True
        self._go_on()

    def out_of_step(self, entry: NumberedBatch[B]) -> None:
        """Mark a batch as not in the log, because it does not follow the last one there."""
        self._back(entry)
        entry.in_doubt, self._careful = False, True
        self._hole = self._hole or entry is self.entries[0]
        self._go_on()

    def fenced(self, entry: NumberedBatch[B]) -> None:
        """Take in that the log knows a newer epoch of the producer id, of another producer: a new id is needed."""
        assert not entry.in_doubt, "nobody could say whether it is written"
        self._back(entry)
        self._careful = self._hole = self._outlived = True
        self._go_on()

    def refused(self, entry: NumberedBatch[B]) -> None:
        """Drop a batch that is refused for good."""
        self._back(entry)
        self._drop(entry)

    def split(self, entry: NumberedBatch[B], parts: tuple[tuple[B, int], ...]) -> None:
        """Replace a batch that is too large by these parts: (batch, number of records), with as many records in all."""
        assert not entry.in_doubt, "what may be written keeps its numbers"
        assert sum(count for _, count in parts) == entry.count, "the parts take all numbers"
        self._back(entry)
        self._careful = True
        at, sequence = self.entries.index(entry), entry.sequence
        made: list[NumberedBatch[B]] = []
        for batch, count in parts:
            made.append(NumberedBatch(batch, count, entry.identity, sequence, entry.number))
            sequence = (sequence + count) % SEQUENCES
        self.entries[at : at + 1] = made
        self._go_on()

    def give_up(self, entry: NumberedBatch[B]) -> None:
        """Drop a batch whose time is over before it could be sent again."""
        assert not entry.under_way, "its answer may still come"
        self._drop(entry)

    # --- parts --------------------------------------------------------------------------------------------------

    def _sent(self, entry: NumberedBatch[B]) -> None:
        entry.under_way = True
        self.under_way += 1

    def _back(self, entry: NumberedBatch[B]) -> None:
        assert entry.under_way, "it was not sent"
        entry.under_way = False
        self.under_way -= 1

    def _drop(self, entry: NumberedBatch[B]) -> None:
        self.entries.remove(entry)
        self._careful = self._hole = True
        self._go_on()

    def _go_on(self) -> None:
        """Begin a new epoch behind a hole, as soon as no batch is under way or in doubt; a transaction fails."""
        if not self._hole or self.identity is None:
            return
        if self._transactional:
            self.failed = True
        elif not self.under_way and not any(entry.in_doubt for entry in self.entries):
            producer_id, epoch = self.identity
            if self._outlived or epoch == EPOCH_MAX:
                self.identity = None
            else:
                self.begin((producer_id, epoch + 1))

    def _take_numbers(self, count: int) -> int:
        first = self._next
        self._next = (first + count) % SEQUENCES
        return first
