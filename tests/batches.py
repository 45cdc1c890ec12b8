"""Record batches as they lie in a log."""

from __future__ import annotations

from flowshare.protocol.batches import check, rebase


def place(records: bytes, base_offset: int, *, now_ms: int | None = None) -> bytes:
    """Produced batches with consecutive offsets from `base_offset` on, checked. `now_ms`: stamped with this time."""
    return rebase(records, check(records), base_offset, now_ms=now_ms)
