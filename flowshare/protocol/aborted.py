"""`AbortedBatches`: finds the batches of aborted transactions, for readers of committed records.

A server that is asked for committed records returns the log up to the first open transaction, in whole batches, and
names the aborted transactions in it. The reader leaves their batches out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowshare.protocol.headers import BatchHeader
    from flowshare.protocol.messages import AbortedTransaction


class AbortedBatches:
    """The batches of aborted transactions: from the first offset of each up to the marker that ends it."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._open: set[int] = set()

    def skips(self, header: BatchHeader) -> bool:
        """True if a reader of committed records leaves out this whole batch. Call it with the batches in log order."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            self._open.add(self._coming.pop().producer_id)
        if header.is_control:
            self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
