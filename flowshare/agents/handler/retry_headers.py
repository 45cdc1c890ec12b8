"""Records that wait for their retry in the topic `<group>.retry`, where the servers cannot delay a release.

Such a record is the one that failed, with `flowshare.retry.*` headers: where it came from, how often it was delivered,
when it is due. To its handler, in logs and in its dead letter it is the record that it came from.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.handler.send import ProducerRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.agents.handler.chunk import Chunk
    from flowshare.protocol.decoding import DecodedRecord

PREFIX: Final = "flowshare.retry."
SUFFIX: Final = ".retry"


class RetryOrigin(NamedTuple):
    """Where a waiting record came from. `attempts`: deliveries before it was put here; `due_ms`: wall-clock."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    offset: int
    attempts: int
    due_ms: int

    @property
    def place(self) -> tuple[str, uuid.UUID, int]:
        """The partition that it came from."""
        return self.topic, self.topic_id, self.partition


def retry_topic(group: str) -> str:
    """Name of a group's retry topic."""
    return f"{group}{SUFFIX}"


def waiting(group: str, chunk: Chunk, record: DecodedRecord, due_ms: int, *, counted: bool = True) -> ProducerRecord:
    """The record as it goes into the retry topic; not `counted`: the delivery in hand was no attempt."""
    origin = chunk.origin(record.offset)
    described = {
        "topic": chunk.topic,
        "topic_id": str(chunk.topic_id),
        "partition": str(chunk.partition),
        "offset": str(chunk.place(record.offset)),
        "attempts": str(record.delivery_count if counted or origin is None else origin.attempts),
        "due": str(due_ms),
    }
    headers = tuple((name, value) for name, value in record.headers if not name.startswith(PREFIX))
    headers += tuple((PREFIX + name, text.encode()) for name, text in described.items())
    return ProducerRecord(retry_topic(group), record.value, record.key, headers, None, record.timestamp_ms / 1000)


def origin_of(headers: Iterable[tuple[str, bytes | None]]) -> RetryOrigin | None:
    """What a waiting record's headers say; None: it is none of ours."""
    said = {name.removeprefix(PREFIX): value for name, value in headers if name.startswith(PREFIX)}
    try:
        text = {name: (value or b"").decode() for name, value in said.items()}
        return RetryOrigin(
            text["topic"],
            uuid.UUID(text["topic_id"]),
            int(text["partition"]),
            int(text["offset"]),
            int(text["attempts"]),
            int(text["due"]),
        )
    except (KeyError, ValueError):
        return None
