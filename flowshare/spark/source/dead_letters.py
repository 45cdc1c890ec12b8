"""Dead letters of the source: of unreadable records (`bury`), and of records that an outcome rejects (`bury_rejected`).

The executor that met the records writes them before its task ends. Rejected records are read from the log again,
partition by partition, and their letters sent as they come. The source rejects them when all tasks have ended, or
accepts them where the brokers may write a letter of every reject. A task or a batch that is tried again writes its
letters again: at least once, as all dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowshare.agents.feed.dead_letter import PREFIX, without_record
from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.handler.texts import REASON_MAX, clip
from flowshare.client.errors import ClientError, RecordTooLarge
from flowshare.client.producer.message import Message
from flowshare.spark.source.columns import Poison
from flowshare.spark.source.ranges import Place, Range, merged
from flowshare.spark.source.reading import Fetches, reader_of

if TYPE_CHECKING:
    from flowshare.spark.source.options import SourceOptions
    from flowshare.spark.source.reading import LogReader, ReadTask, TaskRows

logger = logging.getLogger("flowshare.spark")


def bury(part: ReadTask, rows: TaskRows, options: SourceOptions) -> None:
    """Write dead letters, and wait until they are confirmed. Raises: ClientError, OSError: the task is tried again."""
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
        _send(reader_of(part.broker, part.hosts), options.dead_letter_topic, letters)


def damage(topic: str, partition: int, group: str, first: int, last: int, reason: str) -> Message:
    """Return the dead letter of bytes that are no records: their place, and the reason."""
    return Message(None, None, _told(reason, topic, partition, first, group, last_offset=last))


def letter(topic: str, partition: int, group: str, poison: Poison) -> Message:
    """Return the dead letter of a record: the record with headers for reason and place. Delivery 0: not known."""
    record = poison.record
    headers = tuple((name, value) for name, value in record.headers if not name.startswith(PREFIX))
    attempts = {"attempts": poison.delivery} if poison.delivery else {}
    told = _told(poison.reason, topic, partition, record.offset, group, timestamp=record.timestamp, **attempts)
    return Message(record.value, record.key, headers + told)


def _told(
    reason: str, topic: str, partition: int, offset: int, group: str, **more: int
) -> tuple[tuple[str, bytes], ...]:
    place = {"topic": topic, "partition": partition, "offset": offset, "group": group}
    facts = {"reason": clip(reason, REASON_MAX), **place, **more}
    return tuple((PREFIX + name, str(value).encode()) for name, value in facts.items())


def _send(reader: LogReader, topic: str, letters: Sequence[Message]) -> None:
    """Write letters, and wait until they are confirmed; one that is too large for its topic goes without its record.

    Raises: ClientError, OSError.
    """
    large: list[tuple[Message, RecordTooLarge]] = []
    for one, outcome in zip(letters, reader.send(topic, letters), strict=True):
        if isinstance(outcome, RecordTooLarge):
            large.append((one, outcome))
        elif isinstance(outcome, ClientError):
            raise outcome
    if not large:
        return
    first, error = large[0]
    headers = dict(first.headers)
    place = [(headers[PREFIX + name] or b"").decode() for name in ("topic", "partition", "offset")]
    logger.error(
        "%d dead letters are too large for %s and go there without their records, which stay at their places until "
        "retention deletes them; the first is of %s-%s@%s: %s",
        len(large),
        topic,
        *place,
        error,
    )
    whole = [ProducerRecord(topic, one.value, one.key, tuple(one.headers), None, None) for one, _ in large]
    for outcome in reader.send(topic, [Message(None, None, without_record(one).headers) for one in whole]):
        if isinstance(outcome, ClientError):
            raise outcome


class SourceFacts(NamedTuple):
    """Facts about a source that executors need. hosts: addresses of its log. dead_letter: topic for dead letters; None:
    none are written. held: ranges that the source holds, with deliveries."""

    hosts: tuple[str, ...]
    dead_letter: str | None
    held: tuple[Range, ...]


def bury_rejected(
    broker: str, group: str, sources: Sequence[SourceFacts], rejected: Mapping[Place, Mapping[int, str]]
) -> bool:
    """Write dead letters of the records with reasons in `rejected`; they are confirmed when this returns.

    Returns False if the source has no topic for them, and none is written. sources: the group's on this machine, at
    least one. Raises: LogGone, ClientError, OSError: the task is tried again.
    """
    first = sources[0]
    if first.dead_letter is None:
        logger.error("group %s: %d records are rejected", group, sum(map(len, rejected.values())))
        return False
    reader = reader_of(broker, first.hosts)
    for place, reasons in sorted(rejected.items()):
        held = [held for source in sources for held in source.held if held.place == place]
        runs = runs_of(place, reasons, held)
        for decoded in Fetches(reader, runs, committed=False, lossy=True).decoded():
            letters = [
                letter(*place, group, Poison(record, delivery, reasons[record.offset] or "rejected"))
                for records, delivery in decoded.runs
                for record in records
            ]
            _send(reader, first.dead_letter, letters)
    return True


def runs_of(place: Place, offsets: Iterable[int], held: Iterable[Range]) -> list[Range]:
    """Join offsets to ascending ranges of one delivery each; 0 where it is not known, as the lock was lost."""
    deliveries = iter(sorted(held))
    known = next(deliveries, None)
    found: list[Range] = []
    for offset in sorted(offsets):
        while known is not None and known.last < offset:
            known = next(deliveries, None)
        delivery = known.delivery if known is not None and known.first <= offset else 0
        found.append(Range(*place, offset, offset, delivery))
    return merged(found)
