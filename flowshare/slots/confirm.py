"""`Confirming`: the records that an owner has sent to its slot's log, and the confirmed ones among them.

Invariant: a record is confirmed only if no higher claim that counts lies before it in the log.

It holds because the owner reads its own log as any reader does (`SlotReader`), every offset of it in order, and a
record is confirmed exactly when that reader accepts it. Reading is mostly saved by the broker's answer, which names a
record's offset: at the very next offset, the record is fed as it was sent. Else the records before it are read first:
other owners' claims, records of owners that were fenced too late, or this owner's own record that came twice.

    sent         the record waits for its answer, in the order of the log
    answered     at the next offset: it is fed
                 at a higher one: `wanted`; the log up to there is fed by `read`
                 at one that was read already without finding it: the log was changed → lost
                 "it is there", without an offset: `wanted`; the log is read until it comes
    read         another's claim that counts → lost, if there is a claim of one's own, confirmed or sent
                 the record that waits first is accepted → confirmed (its answer may still be under way)
    fed, VOID    the record does not count → lost

Lost is final: records not confirmed then may be in the log and count, or not; no caller may be told either. A missing
answer changes nothing: the record waits, is sent again unchanged, or is given up with the slot.
"""

from __future__ import annotations

from collections import deque

from flowshare.slots.records import Claim, Record, checksum_of, encode
from flowshare.slots.replay import SlotReader, Validity


class Ticket:
    """A record that was sent. `key` and `value` are its bytes; `offset` its place in the log by the broker's answer."""

    __slots__ = ("found", "key", "offset", "record", "value")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.key, self.value = encode(record)
        self.offset: int | None = None
        self.found = False
        """True once the broker has said that the log has the record."""


class Confirming:
    """The records that one owner has sent to one slot, and their confirmation. The shell handles time and transport."""

    def __init__(self, reader: SlotReader) -> None:
        self.reader = reader
        self.mine: Claim | None = None
        """This owner's claim, once it is confirmed."""
        self.lost: str | None = None
        """The reason why this owner owns nothing any more."""
        self.serial = 0
        """Serial of the next record."""
        self._open: deque[Ticket] = deque()

    @property
    def wanted(self) -> bool:
        """True if no record can be confirmed before the log is read on, from the reader's position."""
        if not self._open or self.lost is not None:
            return False
        head = self._open[0]
        return head.found and (head.offset is None or head.offset > self.reader.position)

    def sent(self, record: Record) -> Ticket:
        """Note a record that is about to be sent: a claim if no other waits, any other record under the confirmed
        claim."""
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
        """Note that the broker has the record at `offset` (None: offset not named); return the newly confirmed
        tickets."""
        ticket.found = True
        ticket.offset = offset
        return self.settle()

    def settle(self) -> list[Ticket]:
        """Feed records that the broker placed at the very next offsets; return the newly confirmed tickets, in
        order."""
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
        """Take in a record of the log; return the ticket that it confirms. Below the reader's position: nothing.

        Raises: SlotCorrupt.
        """
        if offset < self.reader.position or self.lost is not None:
            return None
        head = self._open[0] if self._open else None
        return head if self._feed(offset, record, checksum) else None

    def read_up_to(self, position: int) -> None:
        """Note that all records below `position` were read."""
        if self.lost is None:
            self.reader.skip(position)

    def give_up(self, reason: str) -> None:
        """End as lost, because the shell knows that it cannot go on."""
        self.lost = self.lost or reason

    def _feed(self, offset: int, record: Record, checksum: int) -> bool:
        """Feed the reader; True if that confirms the first ticket, which is then removed."""
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
            # Another writer under this claim is a process with the same name, or the log is another one.
            self.lost = f"the record at offset {offset} was not written by this owner"
            return False
        self._open.popleft()
        return True
