"""Reading the embedded storage: from memory what was appended or read lately, else from the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from flowshare.log.base import LogOffsets, ReadResult, StorageError
from flowshare.log.partition import Partition, read_blocking
from flowshare.log.producing import aborted_among
from flowshare.log.readahead import STRETCH_BYTES, ReadAhead
from flowshare.log.rules import check_offset
from flowshare.log.store import Store
from flowshare.log.tail import TailBatch, up_to
from flowshare.share.types import LogBatch

READ_TRIES: Final = 5
"""Compaction may forget what is aborted of what is being read; each time takes it longer than a read."""


class Reader:
    """Reads batches. `find` raises UnknownTopic; `blocking` runs a call in a worker thread."""

    def __init__(
        self,
        store: Store,
        ahead: ReadAhead,
        *,
        find: Callable[[str, int], Partition],
        blocking: Callable[[Callable[[], list[TailBatch]]], Awaitable[list[TailBatch]]],
    ) -> None:
        self._store = store
        self._ahead = ahead
        self._find = find
        self._blocking = blocking

    async def read(self, place: tuple[str, int], offset: int, *, max_bytes: int, committed: bool) -> ReadResult:
        """See `Log.read`. Raises: UnknownTopic, OffsetOutOfRange, CorruptRecords, StorageDamaged, StorageError."""
        log = self._find(*place)
        offsets = log.offsets()
        check_offset(offset, offsets)
        end = offsets.last_stable if committed else log.end
        if offset >= end:
            found = list[TailBatch]()
        elif log.tail.covers(offset):
            found = log.tail.read(offset, end, max_bytes)
        elif not (found := self._ahead.read((log.topic_id, log.number), offset, max_bytes)):
            found = up_to(await self._stretch(log, offset, max_bytes), max_bytes)
            # Meanwhile the topic may have gone, or the log start passed the offset.
            offsets = self._find(*place).offsets()
            check_offset(offset, offsets)
        aborted: tuple[LogBatch, ...] = ()
        if committed:
            found = [batch for batch in found if batch.last < end]
            aborted = aborted_among(log.producers, found)
        return _result(found, offsets, aborted)

    async def _stretch(self, log: Partition, offset: int, max_bytes: int) -> list[TailBatch]:
        """Batches from the store, as they were at some moment of the call."""
        for _ in range(READ_TRIES):
            changes, forgotten = log.changes, log.forgotten
            args = (self._store, log, offset, log.end, max(max_bytes, STRETCH_BYTES))
            stretch = await self._blocking(lambda: read_blocking(*args))  # noqa: B023
            if log.changes == changes:
                self._ahead.add((log.topic_id, log.number), stretch)
            # Else it may hold aborted records that nobody could tell from others any more.
            if log.forgotten == forgotten:
                return stretch
        raise StorageError(f"aborted transactions went {READ_TRIES} times while they may have been read; read again")


def _result(found: list[TailBatch], offsets: LogOffsets, aborted: tuple[LogBatch, ...]) -> ReadResult:
    return ReadResult(
        pieces=[batch.records for batch in found],
        batches=tuple(LogBatch(batch.first, batch.last) for batch in found),
        offsets=offsets,
        aborted=aborted,
    )
