"""A run: a stretch of one partition's log that lies in memory, read at its front and filled at its end.

    start ≤ given ≤ end        offsets; [start, end) is here but for what is missing in the log itself
    ahead                      bytes behind `given`, the furthest that anybody has read

Chunks go at the front only, so that a run never has a hole of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from flowshare.fleet.log.chunk import Piece

if TYPE_CHECKING:
    import asyncio

    from flowshare.fleet.log.chunk import Chunk


class Run:
    """Chunks that follow each other.

    epoch: leader epoch of the batch before `end`, −1: not known. filling: brings in what follows, if that is under way.
    """

    __slots__ = ("_chunks", "_ends", "_past", "_through", "ahead", "end", "epoch", "filling", "given", "size", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = self.given = start
        self.size = self.ahead = 0
        self.epoch = -1
        self.filling: asyncio.Task[Chunk | None] | None = None
        self._chunks: list[Chunk] = []
        self._ends: list[int] = []
        self._through: list[int] = []
        """Bytes that were ever added, each chunk's included."""
        self._past = 0

    def covers(self, offset: int) -> bool:
        """Whether what follows `offset` is here."""
        return self.start <= offset < self.end

    def read(self, offset: int, max_bytes: int) -> Piece:
        """Batches from the one that holds `offset`, or the next one, on: at least one; `offset` is covered."""
        index = bisect_right(self._ends, offset)
        piece = self._chunks[index].read(offset, max_bytes)
        end = piece.batches[-1].last + 1
        left = max_bytes - len(piece.records)
        if end == self._ends[index]:
            index += 1
            if left > 0 and index < len(self._chunks):
                piece, index = self._longer(piece, index, left)
                end = piece.batches[-1].last + 1
        if end > self.given:
            self.given = end
            self.ahead = self._past - (self._through[index - 1] if index else self._past - self.size)
        return piece

    def _longer(self, piece: Piece, index: int, left: int) -> tuple[Piece, int]:
        """The piece with what fits of the chunks from `index` on, and the chunk behind the last that was used up."""
        pieces = [piece]
        while index < len(self._chunks) and left > 0:
            chunk = self._chunks[index]
            more = chunk.read(chunk.batches[0].first, left)
            if len(more.records) > left:
                break
            pieces.append(more)
            left -= len(more.records)
            if more.batches[-1].last + 1 < chunk.end:
                break
            index += 1
        whole = Piece(
            b"".join([one.records for one in pieces]),
            tuple([batch for one in pieces for batch in one.batches]),
            tuple([batch for one in pieces for batch in one.aborted]),
            pieces[-1].epoch,
        )
        return whole, index

    def add(self, chunk: Chunk) -> None:
        """Go on at the end."""
        self._chunks.append(chunk)
        self._ends.append(chunk.end)
        self._past += chunk.size
        self._through.append(self._past)
        self.size += chunk.size
        self.ahead += chunk.size
        self.end = chunk.end
        self.epoch = chunk.epoch

    def drop(self, *, given_only: bool) -> int:
        """Forget the first chunk (`given_only`: if all of it was read); how many bytes that were."""
        if not self._chunks or (given_only and self._ends[0] > self.given):
            return 0
        chunk = self._chunks.pop(0)
        self.start = self._ends.pop(0)
        del self._through[0]
        self.size -= chunk.size
        if self.given < self.start:
            self.given = self.start
        self.ahead = min(self.ahead, self.size)
        return chunk.size

    def cut(self, end: int) -> int:
        """Forget what lies at `end` and behind; how many bytes that were."""
        before = self.size
        while self._chunks and self._chunks[-1].end > end:
            # The part of it that stays is read again when it is wanted.
            chunk = self._chunks.pop()
            self._ends.pop()
            self._through.pop()
            self._past -= chunk.size
            self.size -= chunk.size
        self.ahead = min(self.ahead, self.size)
        if self.end > end:
            self.end = self._ends[-1] if self._ends else min(self.start, end)
            self.epoch = self._chunks[-1].epoch if self._chunks else -1
        self.start = min(self.start, self.end)
        self.given = min(self.given, self.end)
        return before - self.size
