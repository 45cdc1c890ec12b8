"""`Message`: one record as it is sent, and the bytes that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from flowshare.client.batching import RECORD_OVERHEAD
from flowshare.client.errors import RecordTooLarge

Headers = Sequence[tuple[str, bytes | None]]
BATCH_OVERHEAD: Final = 61


class Message(NamedTuple):
    """One record for `send_many`. `timestamp_ms` None: now; `partition` None: by key, or spread."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


def size_of(message: Message, topic: str, request_bytes_max: int) -> int:
    """Bytes the record takes, about, and from above. Raises: RecordTooLarge."""
    value, key, headers, _, _ = message
    size = RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
    for name, content in headers:
        size += 10 + 4 * len(name) + len(content or b"")
    if size + BATCH_OVERHEAD > request_bytes_max:
        raise RecordTooLarge(
            f"a record of {size} bytes for {topic} is larger than request_bytes_max ({request_bytes_max}); "
            "send less, or raise it"
        )
    return size
