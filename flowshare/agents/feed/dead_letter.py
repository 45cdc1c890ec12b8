"""Dead letters: the record unchanged, and headers with its reason and its origin."""

from __future__ import annotations

from typing import Final

from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.errors import UnreadableBytes
from flowshare.agents.handler.outcomes import Outcome
from flowshare.agents.handler.retry_headers import PREFIX as RETRY_PREFIX
from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.handler.texts import REASON_MAX, clip, kind_of, trace
from flowshare.protocol.decoding import DecodedRecord
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.share.parking import Mark

PREFIX: Final = "flowshare.dlq."
LEFT_OUT: Final = "left_out"
"""Header of a letter without its record, which was too large or could not be read."""


def dead_letter(topic: str, group: str, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> ProducerRecord:
    """Make the dead letter of a record: key, value and headers unchanged, `flowshare.dlq.*` headers added.

    Headers of an earlier dead letter (a replayed record that died again) are replaced. A record that was replayed for a
    parked key keeps the offset of its original: it is the same letter.
    """
    headers = [(name, value) for name, value in record.headers if not name.startswith((PREFIX, RETRY_PREFIX))]
    error = outcome.error
    at = (group, chunk.tp.topic_id, chunk.tp.partition)
    mark = next((Mark.of(value, *at) for name, value in reversed(record.headers) if name == REPLAY_HEADER), None)
    described = {
        "reason": clip(outcome.reason, REASON_MAX),
        "exception": "" if error is None else kind_of(error),
        "trace": "" if error is None else trace(error),
        "topic": chunk.topic,
        "topic_id": str(chunk.tp.topic_id),
        "partition": str(chunk.partition),
        "offset": str(chunk.place(record.offset) if mark is None else mark.original),
        "attempts": str(record.delivery_count),
        "agent": chunk.agent,
        "group": group,
        "timestamp": str(record.timestamp_ms),
    }
    if isinstance(error, UnreadableBytes):
        described[LEFT_OUT] = "key, value and headers: their bytes are no record; they are at the record's place"
    headers += [(PREFIX + name, text.encode("utf-8", "replace")) for name, text in described.items()]
    return ProducerRecord(topic, record.value, record.key, tuple(headers), None, None)


def without_record(letter: ProducerRecord) -> ProducerRecord:
    """Return the letter with its `flowshare.dlq.*` headers only, and one that says so: for a record that no topic takes
    whole."""
    own = tuple((name, value) for name, value in letter.headers if name.startswith(PREFIX) and name != PREFIX + "trace")
    size = sum(len(part or b"") for part in (letter.key, letter.value))
    said = (
        f"key, value ({size} bytes with it) and headers: the topic does not take them; they are at the record's place"
    )
    return ProducerRecord(letter.topic, None, None, (*own, (PREFIX + LEFT_OUT, said.encode())), None, None)


def without_trace(letter: ProducerRecord) -> ProducerRecord:
    """Return the letter without its trace."""
    left = tuple((name, value) for name, value in letter.headers if name != PREFIX + "trace")
    return letter._replace(headers=left)
