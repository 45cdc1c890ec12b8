"""`Unit`: records that are settled together with their outputs, the unit's ending, and its acknowledgements (SG-19)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowshare.agents.feed.acknowledgements import Key
from flowshare.agents.handler.chunk import runs
from flowshare.share.types import AckRange

if TYPE_CHECKING:
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.handler.send import ProducerRecord
    from flowshare.protocol.decoding import DecodedRecord, RawRecord

Records = Sequence[tuple["Chunk", "DecodedRecord | RawRecord"]]


class Ending(NamedTuple):
    """Ending of units. failed: called when outputs cannot be written, with the records and the error, to decide.
    given_back: called instead when some records are lost, with the others. done: called when it is written."""

    types: bytes
    counter: str
    failed: Callable[[Records, BaseException], None]
    given_back: Callable[[Records], object]
    done: Callable[[], object] | None = None
    reason: str = ""
    unrun: bool = False

    def ack(self, first: int, last: int, attempt: int = 0) -> AckRange:
        """Return the acknowledgement of a range of records that end so."""
        return AckRange(first, last, self.types, 0, self.unrun, False, attempt, self.counter)


class Trouble:
    """A unit's failed tries. alone: the unit is settled by itself. looked_up: its topics were looked up anew."""

    __slots__ = ("alone", "due_s", "looked_up", "tries")

    def __init__(self) -> None:
        self.alone = False
        self.looked_up = False
        self.tries = 0
        self.due_s = 0.0


class Unit:
    """Records and outputs that are settled together. until_s: time until which settling is tried."""

    __slots__ = ("ending", "outputs", "records", "trouble", "until_s")

    def __init__(self, records: Records, outputs: Sequence[ProducerRecord], ending: Ending) -> None:
        self.records = records
        self.outputs = outputs
        self.ending = ending
        self.until_s = 0.0
        self.trouble: Trouble | None = None

    @property
    def alone(self) -> bool:
        """True if the unit is settled by itself."""
        return self.trouble is not None and self.trouble.alone

    @property
    def due_s(self) -> float:
        """Time when the unit may be sent; 0: at once."""
        return 0.0 if self.trouble is None else self.trouble.due_s

    def in_trouble(self) -> Trouble:
        """Return the unit's trouble; made at the first call."""
        self.trouble = self.trouble or Trouble()
        return self.trouble

    @property
    def key(self) -> Key:
        """Partition and generation."""
        return self.records[0][0].settles_with

    @property
    def first(self) -> int:
        """First offset of the unit's records."""
        return min(self.offsets())

    @property
    def last(self) -> int:
        """Their last offset."""
        return max(self.offsets())

    def has_lost(self) -> bool:
        """Tell if one of the unit's records has been lost to another member."""
        for chunk, record in self.records:  # noqa: SIM110 - as a generator it takes a tenth of all that settling does
            if chunk.lost and record.offset in chunk.lost:
                return True
        return False

    def offsets(self) -> Iterable[int]:
        """Return the offsets of all its records."""
        return (record.offset for _, record in self.records)


def acks_of(units: Sequence[Unit], offsets: list[int]) -> list[AckRange]:
    """Return the acknowledgements of all units as ascending ranges; neighbours that say the same are joined.

    offsets: the offsets of the units, sorted.
    """
    ending = units[0].ending
    if all(unit.ending is ending for unit in units) and units[0].records[0][0].fence is None:
        return [ending.ack(first, last) for first, last in runs(offsets)]
    said: dict[tuple[bytes, bool, int, str], list[int]] = {}
    for unit in units:
        types, counter, unrun = unit.ending.types, unit.ending.counter, unit.ending.unrun
        for chunk, record in unit.records:
            says = types, unrun, attempt_of(chunk, record.offset), counter
            said.setdefault(says, []).append(record.offset)
    return sorted(
        AckRange(first, last, types, 0, unrun, False, attempt, counter)
        for (types, unrun, attempt, counter), some in said.items()
        for first, last in runs(sorted(some))
    )


def attempt_of(chunk: Chunk, offset: int) -> int:
    """Return the attempt number that a record's acknowledgement names."""
    [(attempt, _)] = chunk.counted([offset])
    return attempt
