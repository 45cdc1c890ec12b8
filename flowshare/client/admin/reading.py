"""Decodes fetched records for readers without a group; very large batches in another thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowshare.protocol.decoding import AT_ONCE_RECORDS, decode_within
from flowshare.protocol.headers import OFFSET_MAX, frames

if TYPE_CHECKING:
    from flowshare.protocol.decoding import DecodedRecord
    from flowshare.protocol.each_record import Unreadable


async def read_within(
    records: bytes,
    first: int,
    last: int = OFFSET_MAX,
    *,
    limit: int | None = None,
    damaged: list[Unreadable] | None = None,
) -> list[DecodedRecord]:
    """Return the records from `first` to `last`, at most `limit`. damaged: as of `decode_within`. Raises:
    DecodeError"""
    if any(header.record_count > AT_ONCE_RECORDS for header in frames(records, partial_tail=True)):
        # A few kilobytes may be a million records: another thread decodes them, so that this loop is not blocked.
        return await asyncio.to_thread(decode_within, records, first, last, limit=limit, damaged=damaged)
    return decode_within(records, first, last, limit=limit, damaged=damaged)
