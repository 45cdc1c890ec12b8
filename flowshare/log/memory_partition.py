"""One partition of the storage in memory: its batches, where they are cut, and how they are compacted."""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowshare.log.base import LogOffsets
from flowshare.log.compaction import PIECE_BATCHES, PIECE_BYTES, NewestOffsets, Pass, due, young
from flowshare.log.retention import ahead, expired
from flowshare.log.topics import CompactionSettings, TopicSettings
from flowshare.protocol.batches import DecodeError, batch_headers
from flowshare.transactions.partition import PartitionProducers

logger = logging.getLogger(__name__)


class Stored(NamedTuple):
    """One batch."""

    first: int
    last: int
    max_timestamp: int
    records: bytes


@dataclass(slots=True)
class MemoryPartition:
    """Bounds and batches; `cleaned`: up to where they were compacted; `damaged`: compaction has found it so."""

    log_start: int = 0
    end: int = 0
    size: int = 0
    cleaned: int = 0
    damaged: bool = False
    batches: list[Stored] = field(default_factory=list[Stored])
    firsts: list[int] = field(default_factory=list[int])
    producers: PartitionProducers = field(default_factory=PartitionProducers)

    def offsets(self) -> LogOffsets:
        """Bounds as readers see them."""
        stable = self.producers.last_stable(self.log_start, self.end)
        return LogOffsets(log_start=self.log_start, high_watermark=self.end, last_stable=stable)

    def index_of(self, offset: int) -> int:
        """Index of the first batch that ends at or behind `offset`."""
        index = max(0, bisect.bisect_right(self.firsts, offset) - 1)
        return index + (index < len(self.batches) and self.batches[index].last < offset)

    def append(self, batch: Stored) -> None:
        """Add the next batch."""
        self.batches.append(batch)
        self.firsts.append(batch.first)
        self.end = batch.last + 1
        self.size += len(batch.records)

    def cut(self, before: int) -> None:
        """Let the log start here."""
        self.log_start = before
        self._replace(0, self.index_of(before), ())
        self.producers.aborted.cut(before)

    def kept_from(self, settings: TopicSettings, now_ms: int) -> int:
        """The log start that retention asks for; by size the last batch always stays."""
        start, size = self.log_start, self.size
        for batch in self.batches:
            size -= len(batch.records)
            over = 0 <= settings.retention_bytes <= size and batch.last + 1 < self.end
            if over or expired(batch.max_timestamp, now_ms=now_ms, retention_ms=settings.retention_ms):
                start = batch.last + 1
            elif not ahead(batch.max_timestamp, settings, now_ms=now_ms):
                break
        return start

    async def compact(self, settings: CompactionSettings, now_ms: int) -> None:
        """One pass, if its turn has come; the work is done in a thread, piece by piece.

        A partition with damaged batches is left alone from then on, as Kafka does.
        """
        if self.damaged:
            return
        try:
            await self._pass(settings, now_ms)
        except DecodeError as error:
            self.damaged = True
            logger.error("a partition is not compacted any more: %s", error)  # noqa: TRY400

    async def _pass(self, settings: CompactionSettings, now_ms: int) -> None:
        first, stable = max(self.cleaned, self.log_start), self.offsets().last_stable
        batches = self.batches.copy()
        until = await asyncio.to_thread(_until, batches, settings, first, stable, now_ms)
        aborted = self.producers.aborted.between(self.log_start, until)
        core = Pass(NewestOffsets(), aborted, now_ms=now_ms, delete_retention_ms=settings.delete_retention_ms)
        for piece in _pieces(batches, first, until):
            full = await asyncio.to_thread(_note_keys, core, piece)
            if full is not None:
                until = full
                break
        for piece in _pieces(batches, 0, until):
            left = await asyncio.to_thread(_thin, core, piece)
            self._compacted(piece, left)
            self.producers.aborted.remove(frozenset(core.markers_alone))
            core.markers_alone.clear()
        self.cleaned = max(self.cleaned, until)

    def _compacted(self, piece: Sequence[Stored], left: Sequence[Stored]) -> None:
        """Put what is left in place of a piece, of which the log start may have taken something meanwhile."""
        low = bisect.bisect_left(self.firsts, piece[0].first)
        high = bisect.bisect_right(self.firsts, piece[-1].first)
        self._replace(low, high, [batch for batch in left if batch.last >= self.log_start])

    def _replace(self, low: int, high: int, batches: Sequence[Stored]) -> None:
        self.size += sum(len(batch.records) for batch in batches)
        self.size -= sum(len(batch.records) for batch in self.batches[low:high])
        self.batches[low:high] = batches
        self.firsts[low:high] = [batch.first for batch in batches]


def _until(batches: Sequence[Stored], settings: CompactionSettings, first: int, stable: int, now_ms: int) -> int:
    """Where a pass ends; −1 when its turn has not come."""
    until, total, dirty, oldest_ms = -1, 0, 0, -1
    for batch in batches:
        until = batch.first
        is_dirty = batch.first >= first
        if until >= stable or batch is batches[-1] or (is_dirty and young(settings, batch.max_timestamp, now_ms)):
            break
        total += len(batch.records)
        if is_dirty:
            oldest_ms = oldest_ms if dirty else batch.max_timestamp
            dirty += len(batch.records)
    turn = due(settings, dirty_bytes=dirty, total_bytes=total, first_dirty_ms=oldest_ms, now_ms=now_ms)
    return until if turn else -1


def _pieces(batches: Sequence[Stored], first: int, until: int) -> Iterator[list[Stored]]:
    piece, size = list[Stored](), 0
    for batch in batches:
        if not first <= batch.first < until:
            continue
        piece.append(batch)
        size += len(batch.records)
        if size >= PIECE_BYTES or len(piece) == PIECE_BATCHES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _note_keys(core: Pass, piece: Sequence[Stored]) -> int | None:
    """Where the pass must end, if it must inside the piece."""
    for batch in piece:
        if not core.take(batch_headers(batch.records)[0], batch.records):
            return batch.first
    return None


def _thin(core: Pass, piece: Sequence[Stored]) -> list[Stored]:
    found = list[Stored]()
    for batch in piece:
        left = core.thin(batch_headers(batch.records)[0], batch.records)
        if left is not None:
            found.append(Stored(batch.first, batch.last, batch_headers(left)[0].max_timestamp, left))
    return found
