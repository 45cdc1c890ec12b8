"""`LazyRecords`: fetched records that their handler decodes later, some at a time, maybe in another thread.

Used only if the headers show that the batches hold the acquired records and nothing else: no gaps, nothing torn, no
control batch. A batch of a few kilobytes may become 64 MB, and an answer holds hundreds: so at most `READ_BYTES`, or
one batch, are read at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from flowshare.protocol.decoding import PADDING, SIZE_MAX, RawRecord, read_plain, unpacked
from flowshare.protocol.headers import BatchHeader, DecodeError, check_crc, frames
from flowshare.share.types import AcquiredRange

READ_BYTES: Final = 16 << 20
"""The bytes without compression after which the next batch waits until the read ones are used."""


class LazyRecords:
    """Records that are not read yet: all offsets from `first` to `last`; none are left when `first` is behind `last`.

    delivery_count: of all of them. batch_records: offsets of the longest batch.
    """

    __slots__ = ("_batches", "_records", "_size_max", "batch_records", "delivery_count", "first", "last")

    def __init__(self, records: bytes, batches: Sequence[BatchHeader], delivery_count: int, size_max: int) -> None:
        """Create unread records; use `lazy_records`."""
        self.first = batches[0].base_offset
        self.last = batches[-1].last_offset
        self.delivery_count = delivery_count
        self.batch_records = max(header.record_count for header in batches)
        self._records = records
        self._batches = deque(batches)
        self._size_max = size_max

    @property
    def waiting(self) -> int:
        """The number of records that are not read."""
        return self.last - self.first + 1

    def read(self) -> list[RawRecord]:
        """Read the next records. Raises: DecodeError, MemoryError; `first` is then the first record that could not be
        read."""
        found: list[RawRecord] = []
        size = 0
        while self._batches and size < READ_BYTES:
            header = self._batches[0]
            one = self._records[header.position : header.position + header.size] + PADDING
            try:
                check_crc(self._records, header)
                view = unpacked(memoryview(one)[: header.size], header, self._size_max)
                found += read_plain(view, header)
            except (DecodeError, MemoryError):
                if found:
                    break  # these are good; the next call says it
                raise
            size += len(view)
            self._batches.popleft()
            self.first = header.last_offset + 1
        return found


def lazy_records(records: bytes, acquired: Sequence[AcquiredRange], *, size_max: int = SIZE_MAX) -> LazyRecords | None:
    """Return the acquired records, if all have the same delivery count and fill the batches; None: use `decode`.

    Raises: DecodeError (the bytes are no sequence of batches at all).
    """
    batches = tuple(frames(records, partial_tail=True))
    ranges = sorted(acquired)
    if not batches or not ranges:
        return None
    first = end = batches[0].base_offset
    for header in batches:
        span = header.last_offset - header.base_offset + 1
        if header.base_offset != end or header.record_count != span or header.is_control:
            return None
        end += span
    at = first
    for run in ranges:
        if run.first != at or run.delivery_count != ranges[0].delivery_count:
            return None
        at = run.last + 1
    return None if at != end else LazyRecords(records, batches, ranges[0].delivery_count, size_max)
