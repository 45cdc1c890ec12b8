"""Bytes of a fetch to chunks of records.

A member that takes records one by one is sent the whole record batch each time (KIP-1206: the server never looks
inside a batch). The last batch is kept read, so that the next record out of it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flowshare.agents.garbage import collector_paused
from flowshare.protocol.decoding import RawDecoded, RawRecord, decode_raw, read_all
from flowshare.protocol.headers import DecodeError
from flowshare.share.types import AcquiredRange

FEW: Final = 64
"""Up to so many acquired records of a batch are looked up in the kept batch."""
KEPT_BYTES_MAX: Final = 4 << 20


class Intake:
    """Decodes fetches of one agent."""

    __slots__ = ("_kept", "_records")

    def __init__(self) -> None:
        self._kept = b""
        self._records: dict[int, RawRecord] = {}

    def decode(self, records: bytes, acquired: Sequence[AcquiredRange]) -> RawDecoded:
        """As `protocol.decoding.decode_raw`. Raises: DecodeError."""
        with collector_paused():
            few = sum(last - first + 1 for first, last, _ in acquired) <= FEW
            if few and len(records) <= KEPT_BYTES_MAX and self._keep(records):
                found = self._look_up(acquired)
                if found is not None:
                    return RawDecoded(runs=found)
            return decode_raw(records, acquired)

    def _keep(self, records: bytes) -> bool:
        """Have `records` read; False when they are damaged, then the other way tells what is."""
        if records == self._kept:
            return True
        try:
            self._records = {record.offset: record for record in read_all(records)}
        except DecodeError:
            return False
        self._kept = records
        return True

    def _look_up(self, acquired: Sequence[AcquiredRange]) -> list[tuple[list[RawRecord], int]] | None:
        """The acquired records, None when one is not there (a gap, a control batch)."""
        found: list[tuple[list[RawRecord], int]] = []
        for first, last, delivery_count in acquired:
            records: list[RawRecord] = []
            for offset in range(first, last + 1):
                record = self._records.get(offset)
                if record is None:
                    return None
                records.append(record)
            found.append((records, delivery_count))
        return found
