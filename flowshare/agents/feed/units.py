"""`Unit`: what is settled together, records with their outputs; how it ends, and what is said of it (SG-19)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowshare.agents.feed.acknowledgements import AckRange, Key
from flowshare.agents.handler.chunk import runs

if TYPE_CHECKING:
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.handler.send import ProducerRecord
    from flowshare.protocol.decoding import DecodedRecord, RawRecord

Records = Sequence[tuple["Chunk", "DecodedRecord | RawRecord"]]


class Ending(NamedTuple):
    """How units end. failed: called when their outputs cannot be written, with the records and why; it decides then.
    given_back: called instead when some of the records are lost, with those that are not. done: when it is written."""

    types: bytes
    counter: str
    failed: Callable[[Records, BaseException], None]
    given_back: Callable[[Records], object]
    done: Callable[[], object] | None = None
    reason: str = ""
    unrun: bool = False


class Trouble:
    """What a unit has been through. alone: it is settled by itself. looked_up: its topics were looked up anew."""

    __slots__ = ("alone", "due_s", "looked_up", "tries")

    def __init__(self) -> None:
        self.alone = False
        self.looked_up = False
        self.tries = 0
        self.due_s = 0.0


class Unit:
    """What is settled together. until_s: until then it is tried."""

    __slots__ = ("ending", "outputs", "records", "trouble", "until_s")

    def __init__(self, records: Records, outputs: Sequence[ProducerRecord], ending: Ending) -> None:
        self.records = records
        self.outputs = outputs
        self.ending = ending
        self.until_s = 0.0
        self.trouble: Trouble | None = None

    @property
    def alone(self) -> bool:
        """Whether it is settled by itself."""
        return self.trouble is not None and self.trouble.alone

    @property
    def due_s(self) -> float:
        """When it may be sent; 0: at once."""
        return 0.0 if self.trouble is None else self.trouble.due_s

    def in_trouble(self) -> Trouble:
        """What it has been through, from now on."""
        self.trouble = self.trouble or Trouble()
        return self.trouble

    @property
    def key(self) -> Key:
        """Where it is settled."""
        return self.records[0][0].settles_with

    @property
    def first(self) -> int:
        """The first offset of its records."""
        return min(self.offsets())

    @property
    def last(self) -> int:
        """The last one."""
        return max(self.offsets())

    def has_lost(self) -> bool:
        """Whether one of its records is others' by now."""
        for chunk, record in self.records:  # noqa: SIM110 - as a generator it takes a tenth of all that settling does
            if chunk.lost and record.offset in chunk.lost:
                return True
        return False

    def offsets(self) -> Iterable[int]:
        """Of all its records."""
        return (record.offset for _, record in self.records)


def acks_of(units: Sequence[Unit], offsets: list[int]) -> list[AckRange]:
    """What is said of all of them, ascending, neighbours with the same to say as one. offsets: theirs, sorted."""
    if all(unit.ending is units[0].ending for unit in units) and units[0].records[0][0].fence is None:
        ending = units[0].ending
        return [AckRange(first, last, ending.types, 0, ending.unrun, ending.counter) for first, last in runs(offsets)]
    said: list[tuple[int, bytes, bool, str, int]] = []
    for unit in units:
        ending = unit.ending
        for chunk, record in unit.records:
            attempt = 0 if chunk.fence is None else attempt_of(chunk, record.offset)
            said.append((record.offset, ending.types, ending.unrun, ending.counter, attempt))
    said.sort()
    acks: list[AckRange] = []
    last: tuple[bytes, bool, str, int] | None = None
    first = before = -1
    for offset, *what in said:
        same = tuple(what)
        if same == last and offset == before + 1:
            before = offset
            continue
        if last is not None:
            acks.append(AckRange(first, before, last[0], 0, last[1], last[2], last[3]))
        last, first, before = same, offset, offset  # type: ignore[assignment]
    if last is not None:
        acks.append(AckRange(first, before, last[0], 0, last[1], last[2], last[3]))
    return acks


def attempt_of(chunk: Chunk, offset: int) -> int:
    """What an acknowledgement of a record says of its attempt."""
    [(attempt, _)] = chunk.counted([offset])
    return attempt
