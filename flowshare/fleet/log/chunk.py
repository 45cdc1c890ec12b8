"""One partition's part of a fetch answer: whole record batches, checked once, cut without looking at them again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.protocol.headers import BatchHeader, DecodeError, check_crc, check_header, frames
from flowshare.share.types import LogBatch

if TYPE_CHECKING:
    from flowshare.protocol.messages.records import AbortedTransaction

ENTRY_BYTES: Final = 400
"""Bytes of memory that a chunk takes besides its records, with a few batches."""
BATCH_BYTES: Final = 150
"""Bytes of memory that each batch takes in addition."""
EPOCH_AT: Final = 12
EPOCH_BYTES: Final = 4


class ChunkSlice(NamedTuple):
    """Consecutive whole batches. aborted: those of them that belong to aborted transactions.

    epoch: leader epoch under which the last of them, or a later batch, was written; −1: not known.
    """

    records: bytes
    batches: tuple[LogBatch, ...]
    aborted: tuple[LogBatch, ...]
    epoch: int


class LogChunk:
    """Consecutive batches of the log; offsets between them are missing there.

    end: the offset behind the last one. epoch: the leader epoch under which the last one was written. size: bytes in
    memory.
    """

    __slots__ = ("_firsts", "_positions", "aborted", "batches", "end", "epoch", "records", "size")

    def __init__(self, records: bytes, headers: Sequence[BatchHeader], aborted: tuple[LogBatch, ...]) -> None:
        last = headers[-1]
        self.records = records
        self.batches = tuple([LogBatch(header.base_offset, header.last_offset) for header in headers])
        self.aborted = aborted
        self.end = last.last_offset + 1
        self.epoch = leader_epoch(records, last.position)
        self.size = len(records) + ENTRY_BYTES + BATCH_BYTES * len(headers)
        self._firsts = [header.base_offset for header in headers]
        self._positions = [*[header.position for header in headers], last.position + last.size]

    def read(self, offset: int, max_bytes: int) -> ChunkSlice:
        """Return batches from the one that holds `offset`, or the next one, on: at least one; `offset` must be below
        `end`."""
        first = max(0, bisect_right(self._firsts, offset) - 1)
        first += self.batches[first].last < offset
        positions = self._positions
        begin = positions[first]
        behind = max(first + 1, bisect_right(positions, begin + max_bytes) - 1)
        if first == 0 and behind == len(self.batches):
            return ChunkSlice(self.records, self.batches, self.aborted, self.epoch)
        batches = self.batches[first:behind]
        aborted = self.aborted
        if aborted:
            aborted = tuple([batch for batch in aborted if batches[0].first <= batch.first <= batches[-1].first])
        return ChunkSlice(self.records[begin : positions[behind]], batches, aborted, self.epoch)


class Parsed(NamedTuple):
    """Content of an answer. damage: the reason why the content ends early, if the answer's bytes are damaged."""

    chunk: LogChunk | None
    damage: str | None


def parse(records: bytes, offset: int, aborted: Sequence[AbortedTransaction] = ()) -> Parsed:
    """Return the batches of an answer from `offset` on, up to the first damaged one; checksums are checked.

    A batch that the broker cut off at the end is left out.
    """
    headers: list[BatchHeader] = []
    damage: str | None = None
    following = 0
    try:
        for header in frames(records, partial_tail=True):
            check_header(header)
            check_crc(records, header)
            if header.base_offset < following:
                raise DecodeError(f"a batch at offset {header.base_offset} comes behind offset {following - 1}")
            following = header.last_offset + 1
            if following > offset:
                headers.append(header)
    except DecodeError as error:
        damage = str(error)
    if not headers:
        return Parsed(None, damage)
    begin, end = headers[0].position, headers[-1].position + headers[-1].size
    among = aborted_batches(headers, aborted) if aborted else ()
    if begin:
        headers = [header._replace(position=header.position - begin) for header in headers]
    return Parsed(LogChunk(records[begin:end], headers, among), damage)


def leader_epoch(records: bytes, position: int = 0) -> int:
    """Return the epoch of the leader that took in the batch at `position`; −1: not stated."""
    return int.from_bytes(records[position + EPOCH_AT : position + EPOCH_AT + EPOCH_BYTES], signed=True)


def aborted_batches(headers: Iterable[BatchHeader], transactions: Sequence[AbortedTransaction]) -> tuple[LogBatch, ...]:
    """Return the batches of aborted transactions: from each one's first offset up to its producer's next marker."""
    ahead = sorted(transactions, key=lambda one: one.first_offset, reverse=True)
    aborting: set[int] = set()
    among: list[LogBatch] = []
    for header in headers:
        while ahead and ahead[-1].first_offset <= header.last_offset:
            aborting.add(ahead.pop().producer_id)
        if header.producer_id not in aborting or not header.is_transactional:
            continue
        if header.is_control:
            aborting.discard(header.producer_id)
        else:
            among.append(LogBatch(header.base_offset, header.last_offset))
    return tuple(among)
