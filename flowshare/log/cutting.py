"""Moving the log start of a partition of the embedded log: where retention wants it, and what is to be deleted then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from flowshare.log import keys
from flowshare.log.partition import Partition, header_of, walk
from flowshare.log.retention import expired
from flowshare.log.store import Range, Store, Write
from flowshare.log.topics import TopicSettings

INDEX_ENTRIES_MAX: Final = 20_000
"""Index entries one retention step looks at: more than 1 GiB of records."""
STEP_BYTES: Final = 64 * 1024 * 1024
"""And what it walks through of a compacted log."""


class Cut(NamedTuple):
    """A move of the log start: what to delete and the new bounds."""

    log_start: int
    start_position: int
    ranges: list[Range]
    writes: list[Write]


def cut_blocking(store: Store, log: Partition, before: int, position: int) -> Cut:
    """What to do so that the log starts at `before`; `position` is the log's end in bytes.

    Raises: CorruptRecords, StorageDamaged, StorageError.
    """
    prefix, times = keys.batches(log.topic_id, log.number), keys.times(log.topic_id, log.number)
    holder = store.last_before(prefix, keys.at(prefix, before + 1))
    keep = before
    if holder is not None:
        base = keys.offset_of(holder[0])
        keep = base if header_of(log.number, base, holder[1]).last_offset >= before else before
    last_cut, start_position = times, position
    for key, value in store.scan(times, keys.after(times)):
        if keys.time_of(key)[1] >= keep:
            start_position = keys.unpack(value)
            break
        last_cut = key + b"\0"
    if keep < log.holes_to:
        start_position = log.start_position + _bytes_before(store, log, keep)
    aborted = keys.aborted(log.topic_id, log.number)
    ranges = [(prefix, keys.at(prefix, keep)), (times, last_cut), (aborted, keys.at(aborted, before))]
    bounds = (keys.bounds(log.topic_id, log.number), keys.pack_pair(before, start_position))
    return Cut(before, start_position, [span for span in ranges if span[0] < span[1]], [bounds])


def _bytes_before(store: Store, log: Partition, keep: int) -> int:
    size = 0
    for header, _ in walk(store, log, 0):
        if header.base_offset >= keep:
            break
        size += header.size
    return size


def kept_from_blocking(
    store: Store, log: Partition, settings: TopicSettings, position: int, end: int, now_ms: int
) -> int:
    """The log start that retention asks for; by size the last batch always stays.

    Raises: CorruptRecords, StorageDamaged, StorageError.
    """

    def over(at: int, last: int) -> bool:
        return 0 <= settings.retention_bytes <= position - at and last + 1 < end

    def old(timestamp: int) -> bool:
        return expired(timestamp, now_ms=now_ms, retention_ms=settings.retention_ms)

    times = keys.times(log.topic_id, log.number)
    start, at, left = 0, 0, position
    entries: Iterator[tuple[bytes, bytes]] = iter(())
    if log.log_start < log.holes_to:
        # What was compacted is walked through: the index does not know its size any more.
        at, left = log.start_position, STEP_BYTES
    else:
        entries = store.scan(times, keys.after(times))
    for count, (key, value) in enumerate(entries):
        timestamp, offset = keys.time_of(key)
        # The entry stands for everything before its batch: that may go when the batch itself is old or over.
        if count and not (over(keys.unpack(value), offset - 1) or old(timestamp)):
            break
        start, at = offset, keys.unpack(value)
        if count == INDEX_ENTRIES_MAX:
            return start
    for header, _ in walk(store, log, start):
        at, left = at + header.size, left - header.size
        if header.base_offset >= end or not (over(at, header.last_offset) or old(header.max_timestamp)):
            break
        start = header.last_offset + 1
        if left < 0:
            break
    return start
