"""`Confirming`: what an owner has sent to its slot's log, and which of it is confirmed.

Invariant: a record is confirmed only if no higher claim that counts lies before it in the log.

It holds because the owner reads its own log like everybody else (`SlotReader`), every offset of it in order, and a
record is confirmed exactly when that reader accepts it. What saves the reading is that the broker says where a record
went: if that is the very next offset, the record is fed as it was sent. Else what lies before it is read first: other
owners' claims, records of owners that were fenced too late, or this owner's own record that came twice.

    sent         the record waits for its answer, in the order of the log
    answered     at the next offset: it is fed
                 at a higher one: `wanted`; the log up to there is fed by `read`
                 at one that was read already without finding it: the log is not what it was → lost
                 "it is there", without an offset: `wanted`; the log is read until it comes
    read         another's claim that counts → lost, if there is a claim of one's own, confirmed or sent
                 the record that waits first is accepted → confirmed (its answer may still be under way)
    fed, VOID    the record does not count → lost

Lost is final: what is not confirmed then may be in the log and count, or not; nobody may be told either. An answer
that does not come changes nothing: the record waits, is sent again as it was, or is given up with the slot.
"""

from __future__ import annotations

from collections import deque

from flowshare.slots.records import Claim, Record, checksum_of, encode
from flowshare.slots.replay import SlotReader, Validity


class Ticket:
    """A record that was sent. `key` and `value` are its bytes; `offset` where the broker says that it lies."""

    __slots__ = ("found", "key", "offset", "record", "value")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.key, self.value = encode(record)
        self.offset: int | None = None
        self.found = False
        """Whether the broker said that the record is in the log."""


class Confirming:
    """What one owner has sent to one slot, and how far it is confirmed. Times and transport are the shell's."""

    def __init__(self, reader: SlotReader) -> None:
        self.reader = reader
        self.mine: Claim | None = None
        """This owner's claim, once it is confirmed."""
        self.lost: str | None = None
        """Why this owner owns nothing any more."""
        self.serial = 0
        """Serial of the next record."""
        self._open: deque[Ticket] = deque()

    @property
    def wanted(self) -> bool:
        """Whether the log has to be read, from the reader's position on, before anything else can be confirmed."""
        if not self._open or self.lost is not None:
            return False
        head = self._open[0]
        return head.found and (head.offset is None or head.offset > self.reader.position)

    def sent(self, record: Record) -> Ticket:
        """A record is about to be sent: a claim when nothing else waits, anything else under the confirmed claim."""
        assert self.lost is None, self.lost
        if isinstance(record, Claim):
            assert not self._open, "a claim is sent when nothing else is under way"
            assert record.epoch == self.reader.epoch + 1, "a claim's epoch is the next one"
        else:
            assert self.mine is not None, "there is no claim to write under"
            assert record.epoch == self.mine.epoch, "a record has its claim's epoch"
            assert record.serial == self.serial, "records are counted"
            self.serial += 1
        ticket = Ticket(record)
        self._open.append(ticket)
        return ticket

    def answered(self, ticket: Ticket, offset: int | None) -> list[Ticket]:
        """The broker has the record at `offset` (None: it does not say where); what is confirmed by that."""
        ticket.found = True
        ticket.offset = offset
        return self.settle()

    def settle(self) -> list[Ticket]:
        """Feed what the broker placed at the very next offsets; what is confirmed by that, in order."""
        confirmed: list[Ticket] = []
        reader = self.reader
        while self._open and self.lost is None:
            head = self._open[0]
            if head.offset is None or head.offset > reader.position:
                break
            if head.offset < reader.position:
                self.lost = (
                    f"a record was answered with offset {head.offset}, which was read already without finding it: the "
                    "log was cut at its end, or made anew"
                )
                break
            if not self._feed(head.offset, head.record, checksum_of(head.value)):
                self.lost = self.lost or f"the record at offset {head.offset} does not count"
                break
            confirmed.append(head)
        return confirmed

    def read(self, offset: int, record: Record, checksum: int) -> Ticket | None:
        """A record of the log as it is; the ticket that is confirmed by that. Below the reader's position: nothing.

        Raises: SlotCorrupt.
        """
        if offset < self.reader.position or self.lost is not None:
            return None
        head = self._open[0] if self._open else None
        return head if self._feed(offset, record, checksum) else None

    def read_up_to(self, position: int) -> None:
        """All records below `position` were read."""
        if self.lost is None:
            self.reader.skip(position)

    def give_up(self, reason: str) -> None:
        """End as lost, because the shell knows that it cannot go on."""
        self.lost = self.lost or reason

    def _feed(self, offset: int, record: Record, checksum: int) -> bool:
        """Feed the reader; whether that confirms the first ticket, which is taken away then."""
        validity = self.reader.feed(offset, record, checksum)
        if validity is Validity.VOID:
            return False
        head = self._open[0] if self._open else None
        if validity is Validity.CLAIMED:
            assert isinstance(record, Claim)
            if head is None or record != head.record:
                if head is not None or self.mine is not None:
                    self.lost = f"{record.owner} (node {record.node_id}) claimed the slot in epoch {record.epoch}"
                return False
            self.mine = record
            self.serial = 1
        elif self.mine is None or record.epoch != self.mine.epoch:
            return False  # another's, under its claim, before ours
        elif head is None or record != head.record:
            # Nobody else writes under this claim: the process that does has the same name, or the log is another one.
            self.lost = f"the record at offset {offset} was not written by this owner"
            return False
        self._open.popleft()
        return True
