"""Journal of handlers in order by key, and the plan for each record, which the seed decides.

A line is one `write` to a file that its process alone appends to, done before the handler goes on: a kill -9 of the
process takes no line back. The clock is the machine's monotonic one, the same for all processes.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.journal import Growing

LINE = struct.Struct("<cxHHHIIIqqqq")
"""What, partition, attempt, –, process, id of the record, key, offset, fence (generation, serial), nanoseconds."""
BEGUN, ACCEPTED, FAILED, REJECTED, CANCELLED, STILL = b"B", b"A", b"F", b"R", b"C", b"S"
"""A handler begins; it ends: in an accept, in an error that is tried again, in a rejection, or is cancelled. STILL: the
process itself did not get on for so long, as it found afterwards (nanoseconds in the place of the offset)."""
ENDS = frozenset((ACCEPTED, FAILED, REJECTED, CANCELLED))
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

    @property
    def decided(self) -> bool:
        """True if the turn ended in an outcome that settles the record."""
        return self.outcome in (ACCEPTED, REJECTED)

    def __str__(self) -> str:
        end = f"{self.outcome.decode() or 'nothing'} at {self.end:.4f}"
        fence = "" if self.fence == NO_FENCE else f" fence {self.fence[0]}.{self.fence[1]}"
        return f"{self.offset} (id {self.number}) attempt {self.attempt} of {self.pid}{fence}: {self.begin:.4f}, {end}"


@dataclass
class OrderJournals:
    """All journals in a folder, read as they grow."""

    folder: Path
    decided: set[int] = field(default_factory=set)
    """Ids of the records one of whose handlers ended in an accept or a rejection."""
    _data: dict[Path, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._growing = Growing(self.folder, LINE.size)

    def go_on(self) -> None:
        """Read what was added."""
        for path, data in self._growing.rest():
            self._data[path].append(data)
            self.decided.update(line[5] for line in LINE.iter_unpack(data) if line[0] in (ACCEPTED, REJECTED))

    def lines(self) -> Iterator[tuple]:
        """All lines, each journal's in its order, as LINE has them."""
        for parts in self._data.values():
            yield from LINE.iter_unpack(b"".join(parts))
