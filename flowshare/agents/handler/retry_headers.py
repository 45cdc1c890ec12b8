"""Records that wait for their retry in the topic `<group>.retry`, where the servers cannot delay a release.

A waiting record is a copy of the failed one, with `flowshare.retry.*` headers: its origin, its number of deliveries,
its due time. To its handler, in logs and in its dead letter it appears as the original record. Its own timestamp is the
time of the copy: with the original's, retention would delete waiting records, or the topic refuse them as too old.
Only what the copies say themselves outlives the processes that pass them on: so they carry their number of rounds, too.
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
    """Origin of a waiting record. attempts: deliveries before the copy. due_ms: due time, wall-clock. timestamp_ms: the
    original's; None: the waiting record has it itself (of older releases). rounds: times that it was passed on after
    agents had a day to run it."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    offset: int
    attempts: int
    due_ms: int
    timestamp_ms: int | None = None
    rounds: int = 0

    @property
    def place(self) -> tuple[str, uuid.UUID, int]:
        """Partition of the original record."""
        return self.topic, self.topic_id, self.partition


def retry_topic(group: str) -> str:
    """Return the name of a group's retry topic."""
    return f"{group}{SUFFIX}"


def waiting(
    group: str, chunk: Chunk, record: DecodedRecord, due_ms: int, *, counted: bool = True, rounds: int = 0
) -> ProducerRecord:
    """Make the retry topic's copy of a record. counted: False: this delivery was no attempt. rounds: how many the copy
    has more than the record, unless it was one."""
    origin = chunk.origin(record.offset)
    if origin is not None and not counted:
        rounds += origin.rounds
    described = {
        "topic": chunk.topic,
        "topic_id": str(chunk.topic_id),
        "partition": str(chunk.partition),
        "offset": str(chunk.place(record.offset)),
        "attempts": str(record.delivery_count if counted or origin is None else origin.attempts),
        "due": str(due_ms),
        "timestamp": str(record.timestamp_ms),
    }
    if rounds:
        described["rounds"] = str(rounds)
    headers = tuple((name, value) for name, value in record.headers if not name.startswith(PREFIX))
    headers += tuple((PREFIX + name, text.encode()) for name, text in described.items())
    return ProducerRecord(retry_topic(group), record.value, record.key, headers, None, None)


def origin_of(headers: Iterable[tuple[str, bytes | None]]) -> RetryOrigin | None:
    """Return a waiting record's origin from its headers; None: flowshare did not write the record."""
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
            int(text["timestamp"]) if "timestamp" in text else None,
            int(text.get("rounds", 0)),
        )
    except (KeyError, ValueError):
        return None
