"""Logs to compact: made of what a test says in one line a batch, and the naive model of what must be left of them."""

from __future__ import annotations

from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from flowshare.log.compaction import NewestOffsets, Pass
from flowshare.protocol.batches import CODECS, BatchHeader, DecodedRecord, batch_headers, decode_all, marker, rebase
from flowshare.transactions.aborted import Aborted

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
Pair = tuple[bytes | None, bytes | None]


def built(
    pairs: list[Pair], *, codec: str = "none", producer: int = -1, sequence: int = -1, transactional: bool = False
) -> bytes:
    """One batch of keys and values, a millisecond apart, every third record with a header."""
    epoch = -1 if producer < 0 else 0
    builder = DefaultRecordBatchBuilder(
        2, CODECS.index(codec), transactional, producer, epoch, sequence, max(1 << 20, len(pairs) * 200)
    )
    for number, (key, value) in enumerate(pairs):
        headers = [("h", b"%d" % number), ("n", None)] if number % 3 == 0 else []
        assert builder.append(number, NOW_MS + number, key, value, headers) is not None
    return bytes(builder.build())


class Made(NamedTuple):
    """A batch of the log and whether it belongs to an aborted transaction."""

    header: BatchHeader
    records: bytes
    aborted: bool = False


class World:
    """A log in the making. Every transaction is ended by `end`."""

    def __init__(self) -> None:
        self.batches: list[Made] = []
        self.aborted: list[Aborted] = []
        self.end_offset = 0
        self._open: dict[int, int] = {}

    def add(self, records: bytes) -> None:
        """Append a batch."""
        placed = rebase(records, batch_headers(records), self.end_offset)
        (header,) = batch_headers(placed)
        if header.is_transactional and not header.is_control:
            self._open.setdefault(header.producer_id, self.end_offset)
        self.batches.append(Made(header, placed))
        self.end_offset = header.last_offset + 1

    def end(self, producer: int, *, committed: bool) -> None:
        """Append a marker."""
        first = self._open.pop(producer, None)
        if first is not None and not committed:
            self.aborted.append(Aborted(producer, first, self.end_offset, self.end_offset + 1))
            self.batches = [
                made._replace(aborted=True)
                if made.header.base_offset >= first and made.header.producer_id == producer
                else made
                for made in self.batches
            ]
        self.add(marker(producer, 0, committed=committed, timestamp_ms=NOW_MS))

    def settle(self) -> None:
        """Commit what is open, so that everything is stable."""
        for producer in list(self._open):
            self.end(producer, committed=True)

    def compact(self, first: int = 0, *, now_ms: int = NOW_MS, keys_max: int = 1000, retention_ms: int = DAY_MS) -> int:
        """One pass over the log, which was compacted up to `first` before; how far it went."""
        work = Pass(NewestOffsets(keys_max), self.aborted, now_ms=now_ms, delete_retention_ms=retention_ms)
        until = self.end_offset
        for made in self.batches:
            if made.header.base_offset >= first and not work.take(made.header, made.records):
                until = made.header.base_offset
                break
        kept = list[Made]()
        for made in self.batches:
            thinned = work.thin(made.header, made.records) if made.header.base_offset < until else made.records
            if thinned is not None:
                (header,) = batch_headers(thinned)
                kept.append(Made(header, thinned, made.aborted))
        self.batches = kept
        return until

    def records(self) -> list[DecodedRecord]:
        """Every record that is left, those of aborted transactions too."""
        return [record for made in self.batches for record in decode_all(made.records)]

    def naive(self, *, tombstones: bool) -> list[DecodedRecord]:
        """Return the records that a full compaction must leave, with tombstones or without."""
        good = [record for made in self.batches if not made.aborted for record in decode_all(made.records)]
        newest = {record.key: record.offset for record in good if record.key is not None}
        return [
            record
            for record in good
            if newest.get(record.key) == record.offset and (tombstones or record.value is not None)
        ]
