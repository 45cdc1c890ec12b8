"""Journal of handlers and members about their own records: lines of a fixed length, which a kill -9 does not undo.

A worker appends to one file of its own, from both of its loops; a thread of the worker syncs the file to the disk. The
clock is the machine's monotonic one, the same for all processes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LINE = struct.Struct("<cxHHxxIqqd")
"""Fields of a line: kind (B, E, A or O), partition, attempt, process, offset, id of the record, monotonic seconds."""
BEGUN, ENDED, ACCEPTED, OTHER = b"B", b"E", b"A", b"O"

APP = """
import asyncio, os, random, struct, threading, time
import flowshare as fs
from flowshare.agents.host.host import Host

LINE = struct.Struct("<cxHHxxIqqd")
PID = os.getpid()
JOURNAL = os.open(os.path.join(os.environ["JOURNALS"], f"{PID}.journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
LONG, SHORT_S, LONG_S = 0.03, float(os.environ["SHORT_S"]), 2.0
dice = random.Random(PID)
app = fs.App(os.environ["TOPIC"], broker=os.environ["URL"])

def note(what, partition, offset, attempt, number):
    os.write(JOURNAL, LINE.pack(what, partition, min(attempt, 65535), PID, offset, number, time.monotonic()))

def sync():
    while True:
        time.sleep(0.2)
        os.fdatasync(JOURNAL)

threading.Thread(target=sync, daemon=True).start()

def settled(one):
    note(b"A" if one.outcome == "accepted" else b"O", one.partition, one.offset, one.attempt, -1)
    if one.outcome != "accepted":
        print("SETTLED", one, flush=True)

Host.__init__.__kwdefaults__["observer"] = settled

@app.share_agent(app.topic(os.environ["TOPIC"], value_type=bytes), concurrency=int(os.environ["CONCURRENCY"]),
                 drain_timeout=10)
async def work(value: bytes, delivery: fs.Delivery) -> None:
    number = int(value[:16])
    note(b"B", delivery.partition, delivery.offset, delivery.attempt, number)
    await asyncio.sleep(LONG_S if dice.random() < LONG else dice.uniform(0, 2 * SHORT_S))
    note(b"E", delivery.partition, delivery.offset, delivery.attempt, number)
"""
"""The app of every worker. Three records in a hundred take 2 s, so that locks are held whenever a fault comes."""


class Line(NamedTuple):
    """One line of a journal. number: the record's id, -1 where it is not known."""

    what: bytes
    partition: int
    attempt: int
    pid: int
    offset: int
    number: int
    at: float

    @property
    def place(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.partition, self.offset


@dataclass
class Growing:
    """All processes' journals in a folder, read as they grow. size: of a line."""

    folder: Path
    size: int
    _read: dict[Path, int] = field(default_factory=dict)

    def rest(self) -> Iterator[tuple[Path, bytes]]:
        """The whole lines that were added, with the journal that they are in."""
        for path in self.folder.glob("*.journal"):
            position = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(position)
                data = file.read()
            whole = len(data) - len(data) % self.size
            self._read[path] = position + whole
            if whole:
                yield path, data[:whole]


@dataclass
class Journals:
    """All workers' journals in a folder, read as they grow."""

    folder: Path
    lines: list[Line] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    """Ids of the records whose handler ended at least once."""

    def __post_init__(self) -> None:
        self._growing = Growing(self.folder, LINE.size)

    def go_on(self) -> list[Line]:
        """Read what was added; the new lines, each journal's in its order."""
        new = [Line(*line) for _, data in self._growing.rest() for line in _lines(data)]
        self.lines += new
        self.ended.update(line.number for line in new if line.what == ENDED)
        return new


def _lines(data: bytes) -> Iterator[tuple[bytes, int, int, int, int, int, float]]:
    return LINE.iter_unpack(data)
