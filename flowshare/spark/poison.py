"""Dead letters of records that the source cannot read: written by the executor that met them, before its task ends.

A task that is tried again writes them again: at least once, as all dead letters.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowshare.agents.dead_letter import PREFIX
from flowshare.agents.texts import REASON_MAX, clip
from flowshare.client.message import Message

if TYPE_CHECKING:
    from flowshare.spark.columns import Poison
    from flowshare.spark.options import SourceOptions
    from flowshare.spark.reading import Part, Rows

logger = logging.getLogger("flowshare.spark")


def bury(part: Part, rows: Rows, options: SourceOptions) -> None:
    """Write dead letters, and return when they are confirmed. Raises: ClientError, OSError: the task is tried again."""
    from flowshare.spark.reading import reader_of

    where = f"{rows.topic}-{rows.partition}"
    for first, last, reason in rows.damaged:
        logger.error("%s: offsets %d to %d cannot be read: %s", where, first, last, reason)
    if rows.poison:
        bad = rows.poison[0]
        what = "become dead letters" if part.buried else "do not fit value_schema"
        logger.error(
            "%s: %d records %s, the first at offset %d: %s",
            where,
            len(rows.poison),
            what,
            bad.record.offset,
            bad.reason,
        )
    letters = [letter(rows.topic, rows.partition, options.group, one) for one in rows.poison]
    letters += [damage(rows.topic, rows.partition, options.group, *one) for one in rows.damaged]
    if letters and options.dead_letter_topic is not None:
        reader_of(part).send(options.dead_letter_topic, letters)


def damage(topic: str, partition: int, group: str, first: int, last: int, reason: str) -> Message:
    """The dead letter of bytes that are no records: where they were, and what is wrong with them."""
    described = {
        "reason": clip(reason, REASON_MAX),
        "topic": topic,
        "partition": str(partition),
        "offset": str(first),
        "last_offset": str(last),
        "group": group,
    }
    return Message(None, None, tuple((PREFIX + name, text.encode()) for name, text in described.items()))


def letter(topic: str, partition: int, group: str, poison: Poison) -> Message:
    """The dead letter of a record: as it was, with headers that say why and whence. A delivery of 0 is not known."""
    record = poison.record
    described = {
        "reason": clip(poison.reason, REASON_MAX),
        "topic": topic,
        "partition": str(partition),
        "offset": str(record.offset),
        "group": group,
        "timestamp": str(record.timestamp),
    }
    if poison.delivery:
        described["attempts"] = str(poison.delivery)
    headers = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    headers += [(PREFIX + name, text.encode()) for name, text in described.items()]
    return Message(record.value, record.key, tuple(headers))
