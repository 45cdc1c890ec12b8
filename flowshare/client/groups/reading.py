"""`read_log`: decodes the records of a plain Fetch's answer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowshare.protocol.aborted import AbortedBatches
from flowshare.protocol.decoding import NOTHING, PADDING, SIZE_MAX, RawRecord, read_batch
from flowshare.protocol.each_record import Unreadable
from flowshare.protocol.headers import DecodeError, frames

if TYPE_CHECKING:
    from flowshare.protocol.messages import AbortedTransaction
logger = logging.getLogger(__name__)


class Read(NamedTuple):
    """The result of `read_log`. records: from the asked offset on, in order. next: the offset to go on from. damaged:
    first and last offset of each batch or record that cannot be read, and the reason."""

    records: list[RawRecord]
    next: int
    damaged: list[Unreadable]


def read_log(data: bytes, offset: int, aborted: Sequence[AbortedTransaction] = (), *, size_max: int = SIZE_MAX) -> Read:
    """Return the records of whole batches from `offset` on, without control records.

    aborted: as in a fetch of committed records; batches of these transactions are left out.
    Raises: DecodeError when the bytes are no sequence of batches at all.
    """
    padded = data + PADDING
    records: list[RawRecord] = []
    damaged: list[Unreadable] = []
    position = offset
    transactions = AbortedBatches(aborted)
    for header in frames(data, partial_tail=True):
        skipped = transactions.skips(header)
        if header.last_offset < position:
            continue
        try:
            batch = NOTHING if skipped else read_batch(padded, header, size_max)
        except DecodeError as error:
            damaged.append(Unreadable(max(position, header.base_offset), header.last_offset, str(error)))
        else:
            found = batch.records
            if header.base_offset < position:
                found = [record for record in found if record.offset >= position]
            records += found
            damaged += [
                one._replace(first=max(position, one.first))
                for one in batch.damaged
                if one.last >= max(position, one.first)
            ]
        position = header.last_offset + 1
    return Read(records, position, damaged)


def tell_damaged(topic: str, partition: int, damaged: Iterable[Unreadable]) -> None:
    """Log the records that a reader does not get because they are damaged."""
    for first, last, why in damaged:
        logger.warning(
            "%s-%d@%d..%d: the stored bytes cannot be read, left out: %s", topic, partition, first, last, why
        )
