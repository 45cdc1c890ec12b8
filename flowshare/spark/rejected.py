"""Dead letters of records that an outcome rejects: written by the executor that has the outcome, before its task ends.

A task reads its rejected records from the log, partition by partition, and sends their letters as they come; the
driver rejects them when all tasks have ended. A task or a batch that is tried again writes its letters again: at least
once, as all dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flowshare.protocol.decoding import decode_raw
from flowshare.spark.columns import Poison
from flowshare.spark.poison import letter
from flowshare.spark.ranges import Place, Range
from flowshare.spark.reading import Fetches, LogReader, Part, reader_of

logger = logging.getLogger("flowshare.spark")


class SourceFacts(NamedTuple):
    """What executors are told of a source. hosts: where its log is read. dead_letter: topic, None: none is written.
    held: what it holds, with deliveries."""

    hosts: tuple[str, ...]
    dead_letter: str | None
    held: tuple[Range, ...]


class Rejected(NamedTuple):
    """A record that is rejected, and why."""

    place: Place
    offset: int
    reason: str


def bury_rejected(broker: str, group: str, sources: Sequence[SourceFacts], rejected: Iterable[Rejected]) -> int:
    """Write dead letters and return how many, when all are confirmed.

    sources: the group's on this machine, at least one. Raises: LogGone, ClientError, OSError: the task is tried again.
    """
    reasons: dict[Place, dict[int, str]] = {}
    for one in rejected:
        reasons.setdefault(one.place, {})[one.offset] = one.reason
    first = sources[0]
    if first.dead_letter is None:
        logger.error("group %s: %d records are rejected", group, sum(map(len, reasons.values())))
        return 0
    part = Part(broker=broker, hosts=first.hosts, ranges=(), topics={}, committed=False)
    count = 0
    for place, of_place in sorted(reasons.items()):
        held = [held for source in sources for held in source.held if held.place == place]
        count += _bury(reader_of(part), first.dead_letter, group, runs_of(place, of_place, held), of_place)
    return count


def _bury(reader: LogReader, dead_letter: str, group: str, runs: list[Range], reasons: Mapping[int, str]) -> int:
    count = 0
    for log, wanted in Fetches(reader, *runs[0].place, runs, committed=False, lossy=True).answers():
        letters = [
            letter(log.topic, log.partition, group, Poison(record, delivery, reasons[record.offset] or "rejected"))
            for records, delivery in decode_raw(log.records, wanted).runs
            for record in records
        ]
        reader.send(dead_letter, letters)
        count += len(letters)
    return count


def runs_of(place: Place, offsets: Iterable[int], held: Iterable[Range]) -> list[Range]:
    """Offsets as ascending ranges of one delivery each; 0 where none is known, as the lock was lost."""
    deliveries = iter(sorted(held))
    known = next(deliveries, None)
    found: list[Range] = []
    for offset in sorted(offsets):
        while known is not None and known.last < offset:
            known = next(deliveries, None)
        delivery = known.delivery if known is not None and known.first <= offset else 0
        last = found[-1] if found else None
        if last is not None and last.last + 1 == offset and last.delivery == delivery:
            found[-1] = last._replace(last=offset)
        else:
            found.append(Range(*place, offset, offset, delivery))
    return found
