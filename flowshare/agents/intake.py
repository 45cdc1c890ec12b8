"""Bytes of a fetch to chunks of records.

A member that is given a part of a record batch is sent the whole batch, and again with the next part (KIP-1206: the
server never looks inside a batch). The last batch is kept read, so that the next part of it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowshare.agents.garbage import collector_paused
from flowshare.protocol.decoding import ANSWER_BYTES_MAX, LastBatch, RawDecoded, decode_raw
from flowshare.share.types import AcquiredRange


class Intake:
    """Decodes fetches of one agent."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = LastBatch()

    def decode(
        self, records: bytes, acquired: Sequence[AcquiredRange], bytes_max: int = ANSWER_BYTES_MAX
    ) -> RawDecoded:
        """As `protocol.decoding.decode_raw`. Raises: DecodeError, MemoryError."""
        with collector_paused():
            return decode_raw(records, acquired, bytes_max=bytes_max, last=self._last)
