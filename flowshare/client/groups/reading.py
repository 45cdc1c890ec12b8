"""Records out of what a plain Fetch answered."""

from __future__ import annotations

from typing import NamedTuple

from flowshare.protocol.decoding import PADDING, SIZE_MAX, RawRecord, read_batch
from flowshare.protocol.headers import DecodeError, frames


class Read(NamedTuple):
    """records: from the asked offset on, in order. next: the offset to go on from. damaged: first and last offset of
    batches that cannot be read, and why."""

    records: list[RawRecord]
    next: int
    damaged: list[tuple[int, int, str]]


def read_log(data: bytes, offset: int, *, size_max: int = SIZE_MAX) -> Read:
    """The records of whole batches from `offset` on; those of control batches are none.

    Raises: DecodeError when the bytes are no sequence of batches at all.
    """
    padded = data + PADDING
    records: list[RawRecord] = []
    damaged: list[tuple[int, int, str]] = []
    position = offset
    for header in frames(data, partial_tail=True):
        if header.last_offset < position:
            continue
        try:
            found = read_batch(padded, header, size_max).records
        except DecodeError as error:
            damaged.append((max(position, header.base_offset), header.last_offset, str(error)))
        else:
            if header.base_offset < position:
                found = [record for record in found if record.offset >= position]
            records += found
        position = header.last_offset + 1
    return Read(records, position, damaged)
