"""The records that a compacted log keeps: values in, values out; the storages do the reading and writing.

Rules (Kafka 4.x: LogCleaner, LogCleanerManager, Cleaner; KIP-58, KIP-354, KIP-534):

- A record goes when a newer one of its key lies in the part that is being compacted; so does one without key. Offsets
  never change, a batch that keeps records keeps its first and last offset, one that keeps none goes.
- A record without value (a tombstone) stays until its batch's delete horizon: the time of the first compaction that
  saw it plus `delete.retention.ms`.
- Records of aborted transactions go at once. The marker that ends a transaction stays while records of it do, and then
  until its delete horizon.
- Records that are not stable, and the last batch (Kafka: the active segment), are left alone, and with
  `min.compaction.lag.ms` all records that are not that old.
- A partition is due when more than `min.cleanable.dirty.ratio` of its bytes were never compacted, or when its
  oldest such record is older than `max.compaction.lag.ms`.

Kafka keeps the last batch of each producer, empty if need be, since its producers' sequences are read from the log at
start. Here they are stored apart, so such batches go as well.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from typing import Final

from flowshare.log.topics import CompactionSettings
from flowshare.protocol.headers import BatchHeader
from flowshare.protocol.thinning import PlainBatch
from flowshare.transactions.aborted import Aborted, AbortedSpans

KEYS_MAX: Final = 200_000
"""Most keys that one pass can tell apart, 40 MB; a log with more is compacted in several passes."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of batches that one piece reads."""
PIECE_BATCHES: Final = 2000
NO_TIMESTAMP: Final = -1
HORIZON_MS_MAX: Final = 1 << 62
"""The latest delete horizon: the times of a batch's records, some negative, are relative to it, and have 64 bits."""
KEY_BYTES_MAX: Final = 32
"""Bytes of a key from which on the map has a hash of this size instead."""


def due(settings: CompactionSettings, *, dirty_bytes: int, total_bytes: int, first_dirty_ms: int, now_ms: int) -> bool:
    """Return True if a partition is due for compaction. `dirty_bytes`: bytes that could be compacted and never were;
    `total_bytes`: these and the bytes before them; `first_dirty_ms`: time of the first of the dirty bytes."""
    if dirty_bytes <= 0:
        return False
    overdue = 0 <= first_dirty_ms < now_ms - settings.lag_ms_max
    return overdue or dirty_bytes > settings.dirty_ratio_min * total_bytes


def young(settings: CompactionSettings, max_timestamp_ms: int, now_ms: int) -> bool:
    """Return True if a batch is not old enough: it and all batches behind it must be left alone."""
    return settings.lag_ms_min > 0 and max_timestamp_ms > now_ms - settings.lag_ms_min


class NewestOffsets:
    """The newest offset of each key in a part of the log."""

    __slots__ = ("_keys_max", "_offsets")

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._offsets)

    def add(self, batch: PlainBatch) -> bool:
        """Add the next batch; return False (and change nothing) when it has too many new keys. The first one fits.

        Raises: DecodeError
        """
        offsets, found = self._offsets, dict[bytes, int]()
        for step in batch.steps():
            found.update((_short(key), record.offset) for record in step if (key := record.key) is not None)
            if offsets and len(found) > self._keys_max:
                return False
        if offsets and len(offsets) + len(found) > self._keys_max:
            fresh = sum(key not in offsets for key in found)
            if len(offsets) + fresh > self._keys_max:
                return False
        offsets.update(found)
        return True

    def of(self, key: bytes) -> int:
        """Return the newest offset of a key, −1 for one that is not in the part."""
        return self._offsets.get(_short(key), -1)


def _short(key: bytes) -> bytes:
    return key if len(key) < KEY_BYTES_MAX else hashlib.blake2b(key, digest_size=KEY_BYTES_MAX).digest()


class Pass:
    """One pass over the log from its start to the end of `newest`; batches come in order.

    markers_alone: offsets of the markers met so far whose transactions have no records left in the log.
    """

    def __init__(
        self, newest: NewestOffsets, aborted: Iterable[Aborted], *, now_ms: int, delete_retention_ms: int
    ) -> None:
        self.markers_alone: list[int] = []
        self._newest = newest
        self._aborted = AbortedSpans(aborted)
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, HORIZON_MS_MAX)
        self._seen: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return True if a batch of records belongs to an aborted transaction."""
        return header.is_transactional and self._aborted.holds(header.producer_id, header.base_offset)

    def take(self, header: BatchHeader, records: bytes) -> bool:
        """Note the keys of a batch that was never compacted; the first step. Return False if the pass ends before it.

        Raises: DecodeError
        """
        if header.is_control or self.is_aborted(header):
            return True
        return self._newest.add(PlainBatch(records, header))

    def thin(self, header: BatchHeader, records: bytes) -> bytes | None:
        """Return the rest of a batch, from the log's start on; the second step. The same bytes when all is left, None:
        nothing.

        Raises: DecodeError
        """
        if header.is_control:
            return self._marker(header, records)
        if header.is_transactional:
            self._seen.add(header.producer_id)
            if self.is_aborted(header):
                return None
        return self._left(header, records, PlainBatch(records, header))

    def _left(self, header: BatchHeader, records: bytes, batch: PlainBatch) -> bytes | None:
        """Return the rest of a batch of records; None: nothing is left. Few records are in memory at a time. Raises:
        DecodeError"""
        stay = not self._past_horizon(header)
        kept, tombstones, count, newest_ms = array("q"), False, 0, NO_TIMESTAMP
        for step in batch.steps():
            for index, record in enumerate(step, count):
                key = record.key
                if key is None or self._newest.of(key) > record.offset:
                    continue
                if record.value is None:
                    if not stay:
                        continue
                    tombstones = True
                newest_ms = max(newest_ms, record.timestamp)
                kept.append(index)
            count += len(step)
        if not kept:
            return None
        fresh = tombstones and header.delete_horizon_ms is None
        if len(kept) == count and not fresh:
            return records
        return batch.thinned(kept, count=count, newest_ms=newest_ms, horizon_ms=self._horizon_ms if fresh else None)

    def _marker(self, header: BatchHeader, records: bytes) -> bytes | None:
        if header.producer_id in self._seen:
            self._seen.remove(header.producer_id)
            return records
        self.markers_alone.append(header.base_offset)
        if header.delete_horizon_ms is None:
            return PlainBatch(records, header).thinned([0], count=1, newest_ms=None, horizon_ms=self._horizon_ms)
        return None if self._past_horizon(header) else records

    def _past_horizon(self, header: BatchHeader) -> bool:
        horizon_ms = header.delete_horizon_ms
        return horizon_ms is not None and horizon_ms <= self._now_ms
