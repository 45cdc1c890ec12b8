"""Journal of handlers, and the plan for each record, which the seed decides; one for all runs.

A line is one `write` to a file that its process alone appends to, done before the handler goes on: a kill -9 of the
process takes no line back. The clock is the machine's monotonic one, the same for all processes.

| line | |
|---|---|
| BEGUN | a handler begins |
| ACCEPTED, FAILED, REJECTED, CANCELLED | it ends: accepted, in an error that is tried again, rejected, cut off |
| CONFIRMED, OTHER | the member was told that the delivery is accepted, or settled otherwise; where a run asks for it |
| STILL | the process itself did not get on for so long, as it found afterwards |
"""

from __future__ import annotations

import random
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LINE = struct.Struct("<cxHHHIIIqqqq")
"""What, partition, attempt, –, process, id of the record, key, offset, fence (generation, serial), nanoseconds.

STILL has nanoseconds in the place of the offset. CONFIRMED and OTHER know no id and no key."""
BEGUN, ACCEPTED, FAILED, REJECTED, CANCELLED, STILL = b"B", b"A", b"F", b"R", b"C", b"S"
CONFIRMED, OTHER = b"K", b"O"
NO_ID = 0xFFFFFFFF
NO_KEY = 0xFFFFFFFF
NO_FENCE = (-1, -1)
NUMBER_SIZE = 10
"""A value begins with the record's id in so many digits."""
POISONED, FAILS, KEYLESS = 0.05, 0.10, 0.05


def _draw(*parts: object) -> float:
    return zlib.crc32(" ".join(map(str, parts)).encode()) / 0x100000000


def poisoned(seed: int, number: int) -> bool:
    """True if a record is planned to end in the dead letters."""
    return _draw("poison", seed, number) < POISONED


def fails(seed: int, number: int, attempt: int) -> bool:
    """True if this attempt at a record is planned to raise an error that is tried again."""
    return _draw("fail", seed, number, attempt) < FAILS


def keys_of(seed: int, keys: int, records: int, skew: float) -> list[int]:
    """The key of each record, NO_KEY for those without one: the n-th key is drawn as often as n^-skew says."""
    dice = random.Random(seed)
    weights = [(1 + key) ** -skew for key in range(keys)]
    drawn = dice.choices(range(keys), weights, k=records)
    return [NO_KEY if dice.random() < KEYLESS else key for key in drawn]


@dataclass(slots=True)
class Turn:
    """One handler's run. end: infinite while nobody knows it; outcome: empty when the handler wrote none."""

    partition: int
    offset: int
    number: int
    key: int
    attempt: int
    pid: int
    begin: float
    end: float = float("inf")
    outcome: bytes = b""
    fence: tuple[int, int] = NO_FENCE
    confirmed: float = float("inf")
    """When the member was told that the accept counts; infinite: never, or the run does not ask."""
    otherwise: bool = False
    """True if the member was told that the delivery was settled otherwise than by an accept."""

    @property
    def decided(self) -> bool:
        """True if the turn ended in an outcome that settles the record."""
        return self.outcome in (ACCEPTED, REJECTED)

    def __str__(self) -> str:
        end = f"{self.outcome.decode() or 'nothing'} at {self.end:.4f}"
        fence = "" if self.fence == NO_FENCE else f" fence {self.fence[0]}.{self.fence[1]}"
        return f"{self.offset} (id {self.number}) attempt {self.attempt} of {self.pid}{fence}: {self.begin:.4f}, {end}"


@dataclass
class Journals:
    """All journals in a folder, read as they grow; half a line is left until it is whole."""

    folder: Path
    decided: set[int] = field(default_factory=set)
    """Ids of the records one of whose handlers ended in an accept or a rejection."""
    at_work: set[int] = field(default_factory=set)
    """Processes in which one ended so."""
    _data: dict[Path, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    _read: dict[Path, int] = field(default_factory=dict)

    def go_on(self) -> None:
        """Read what was added."""
        for path in self.folder.glob("*.journal"):
            position = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
            whole = len(data) - len(data) % LINE.size
            self._read[path] = position + whole
            if whole:
                self._data[path].append(data[:whole])
                ends = [line for line in LINE.iter_unpack(data[:whole]) if line[0] in (ACCEPTED, REJECTED)]
                self.decided.update(line[5] for line in ends)
                self.at_work.update(line[4] for line in ends)

    def lines(self) -> Iterator[tuple]:
        """All lines, each journal's in its order, as LINE has them."""
        for parts in self._data.values():
            yield from LINE.iter_unpack(b"".join(parts))
