"""Record batches whose records are read later, maybe by another thread.

Only where the headers say that the batches hold what was acquired and nothing else: then there is nothing to find out
(no gaps, nothing torn, no control batch), and whoever handles the records can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowshare.protocol.decoding import PADDING, SIZE_MAX, RawRecord, read_batch
from flowshare.protocol.headers import frames
from flowshare.share.types import AcquiredRange


class Promised(NamedTuple):
    """Records that are not read yet: offsets `first` to `last`, all of them. `read` raises DecodeError.

    batch_records: offsets of the longest batch.
    """

    first: int
    last: int
    delivery_count: int
    batch_records: int
    read: Callable[[], list[RawRecord]]


def promise(records: bytes, acquired: Sequence[AcquiredRange], *, size_max: int = SIZE_MAX) -> Promised | None:
    """The acquired records, all of them delivered equally often; None when that takes a closer look.

    Raises: DecodeError when the bytes are no sequence of batches at all.
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
    if at != end:
        return None

    def read() -> list[RawRecord]:
        padded = records + PADDING
        return [record for header in batches for record in read_batch(padded, header, size_max).records]

    longest = max(header.record_count for header in batches)
    return Promised(first, end - 1, ranges[0].delivery_count, longest, read)
