"""`SlotReader`: reads a slot's log in the order of its offsets and tells of each record if it counts.

Invariant: two readers that were fed the same log up to the same offset hold the same claim and the same table, and a
claim's counting records are a beginning of its owner's writes: nothing twice, nothing missing in between, nothing after
a higher claim. The log alone decides; memberships at any time play no part.

    record      condition                                        validity   effect
    claim       epoch above the present claim's, or none before  CLAIMED    it is the claim; serial 1 is next; parts of
                                                                            an unfinished write are dropped
    claim       any other                                        VOID
    others      no claim, another epoch, or it was handed over   VOID
    others      serial is not the next one                       VOID       (it is there twice, or one is missing)
    part        not the last                                     ACCEPTED   kept
    part        the last                                         ACCEPTED   the whole write is applied, as of the
                                                                            offset of its first part
    tick                                                         ACCEPTED
    hand-over                                                    ACCEPTED   nothing more of this claim counts

A log that was pruned begins with a claim that counts (`pruning.py` cuts nowhere else). When it begins with another
record, another program deleted records, and their content is not known: that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from flowshare.slots.errors import SlotCorrupt
from flowshare.slots.records import WRITE_BYTES_MAX, Claim, Entry, HandOver, Part, Record, decode_entries
from flowshare.slots.summary import Fingerprint, PlacedClaim, Summary
from flowshare.slots.table import SlotTable

RECORD_BYTES: Final = 100
"""Approximate bytes that a record takes in the log beside its body."""
CLAIMS_KEPT: Final = 64
"""The most claims whose places are known; beyond, every other one is forgotten, which only makes pruning coarser."""

OnWrite = Callable[[Sequence[Entry], int], None]
"""Called with (entries, offset at which the write began), after it was applied."""


class Validity(Enum):
    """The verdict on a record of the log: a claim that counts, another record that counts, or void."""

    CLAIMED = "claimed"
    ACCEPTED = "accepted"
    VOID = "void"


class _Begun(NamedTuple):
    """The beginning of a write whose last part has not come yet, with the state before it."""

    offset: int
    serial: int
    last: Fingerprint | None


class SlotReader:
    """State of one slot as of `position`, the least offset that may be fed next."""

    def __init__(self, *, start: int = 0) -> None:
        """Begin at the log's start, which is `start`."""
        self.table = SlotTable()
        self.claim: Claim | None = None
        self.position = start
        self.handed_over_to: str | None = None
        """The instance to which the present claim's owner gave the slot; None: to none."""
        self.claims: list[PlacedClaim] = []
        """Claims that counted, since the log's start, oldest first."""
        self.log_bytes = 0
        """The bytes fed since the reader was made, about."""
        self.on_write: OnWrite | None = None
        self._pruned = start > 0
        self._serial = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._begun: _Begun | None = None
        self._last: Fingerprint | None = None

    @classmethod
    def resume(cls, summary: Summary, table: SlotTable) -> SlotReader:
        """Go on from another reader's summary, with its table of that time."""
        reader = cls(start=summary.position)
        reader.table = table
        reader.claim = summary.claim
        reader.handed_over_to = summary.handed_over_to
        reader.claims = list(summary.claims)
        reader.log_bytes = summary.log_bytes
        reader._pruned = False
        reader._serial = summary.serial
        reader._last = summary.last
        return reader

    @property
    def epoch(self) -> int:
        """Epoch of the present claim; 0 without one."""
        return 0 if self.claim is None else self.claim.epoch

    @property
    def kept_bytes(self) -> int:
        """The bytes in the log from its first claim on, about."""
        return self.log_bytes - self.claims[0].log_bytes if self.claims else self.log_bytes

    def feed(self, offset: int, record: Record, checksum: int) -> Validity:
        """Take the record at `offset`, which is `position` or above (offsets in between hold no records).

        Raises: SlotCorrupt; the reader is not to be used any longer then.
        """
        assert offset >= self.position, "a slot's log is read in order"
        if self._pruned:
            self._pruned = False
            if not isinstance(record, Claim):
                raise SlotCorrupt(
                    "the log does not begin with a claim: records were deleted that are still needed (by retention, by "
                    "hand?); see 'state topic lost' in docs/operations.md"
                )
        size = len(record.body) if isinstance(record, Part) else 0
        validity = self._claimed(offset, record) if isinstance(record, Claim) else self._accepted(offset, record)
        self.log_bytes += size + RECORD_BYTES
        self.position = offset + 1
        self._last = Fingerprint(offset, checksum)
        return validity

    def skip(self, position: int) -> None:
        """Note that no records are below `position`."""
        self.position = max(self.position, position)

    def cut(self, log_start: int) -> None:
        """Forget claims below `log_start`: the slot's log was cut there."""
        self.claims = [claim for claim in self.claims if claim.offset >= log_start]

    def summary(self) -> Summary:
        """Return the summary that `resume` needs beside the table. If a write's last part has not come yet, the summary
        is as of the beginning of that write."""
        begun = self._begun
        position, serial, last = (self.position, self._serial, self._last) if begun is None else begun
        return Summary(
            claim=self.claim,
            serial=serial,
            position=position,
            last=last,
            handed_over_to=self.handed_over_to,
            claims=tuple(self.claims),
            log_bytes=self.log_bytes,
        )

    # --- effects -----------------------------------------------------------------------------------------------

    def _claimed(self, offset: int, claim: Claim) -> Validity:
        if claim.epoch <= self.epoch:
            return Validity.VOID
        self.claim = claim
        self.handed_over_to = None
        self._serial = 1
        self._drop_parts()
        if len(self.claims) == CLAIMS_KEPT:
            del self.claims[1::2]
        self.claims.append(PlacedClaim(offset, self.log_bytes))
        return Validity.CLAIMED

    def _accepted(self, offset: int, record: HandOver | Part | Record) -> Validity:
        if record.epoch != self.epoch or record.serial != self._serial or self.handed_over_to is not None:
            return Validity.VOID
        if isinstance(record, Part):
            self._take(offset, record)
        elif isinstance(record, HandOver):
            self.handed_over_to = record.to
        self._serial += 1
        return Validity.ACCEPTED

    def _take(self, offset: int, part: Part) -> None:
        if part.last and not self._parts:
            self._apply(part.body, offset)
            return
        if self._begun is None:
            self._begun = _Begun(offset, part.serial, self._last)
        self._parts.append(part.body)
        self._parts_bytes += len(part.body)
        if self._parts_bytes > WRITE_BYTES_MAX:
            raise SlotCorrupt(f"a write is longer than the {WRITE_BYTES_MAX} bytes that one may have")
        if part.last:
            body, begun = b"".join(self._parts), self._begun
            self._drop_parts()
            self._apply(body, begun.offset)

    def _apply(self, body: bytes, offset: int) -> None:
        entries = decode_entries(body)
        self.table.apply(entries, offset)
        if self.on_write is not None:
            self.on_write(entries, offset)

    def _drop_parts(self) -> None:
        self._parts.clear()
        self._parts_bytes = 0
        self._begun = None
