"""What the source's process does with outcomes: acknowledges them, and writes dead letters of what was rejected."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowshare.protocol.decoding import decode_raw
from flowshare.share.types import AcknowledgeType, AcquiredRange
from flowshare.spark.columns import Poison
from flowshare.spark.member import Ack
from flowshare.spark.poison import letter
from flowshare.spark.ranges import Range, records_in
from flowshare.spark.reading import Fetches, Part, reader_of

if TYPE_CHECKING:
    from flowshare.client.message import Message
    from flowshare.spark.member import GroupMember
    from flowshare.spark.options import SourceOptions

TYPES = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}

logger = logging.getLogger("flowshare.spark")


class Judge:
    """Takes outcomes for one member. Methods run in the listener's thread."""

    def __init__(self, options: SourceOptions, member: GroupMember) -> None:
        self._options = options
        self._member = member

    def take(self, outcomes: Iterable[tuple[Any, ...]]) -> int:
        """Acknowledge what this member holds of them; how many records were. What was lost meanwhile comes again.

        Raises: ClientError, OSError: a dead letter was not written, and nothing is acknowledged.
        """
        from flowshare.spark.outcomes import Outcome

        acks: dict[Range, Ack] = {}
        rejected: list[tuple[Range, str]] = []
        for one in (Outcome(*fields) for fields in outcomes):
            for held in self._member.held(Range(one.topic, one.partition, one.first, one.last)):
                acks[held] = Ack(TYPES[one.kind], round(one.delay * 1000))
                if one.kind == "reject":
                    rejected.append((held, one.reason))
        self._bury(rejected)
        refused = self._member.acknowledge(acks)
        if refused:
            logger.warning(
                "group %s: outcomes of %d records came too late, they run again",
                self._options.group,
                records_in(refused),
            )
        return records_in(acks) - records_in(refused)

    def _bury(self, rejected: list[tuple[Range, str]]) -> None:
        """Dead letters first: a record that was rejected is gone."""
        topic = self._options.dead_letter_topic
        if not rejected:
            return
        if topic is None:
            logger.error("group %s: %d records are rejected", self._options.group, len(rejected))
            return
        part = Part(broker=self._options.broker, hosts=self._member.hosts, ranges=(), topics={}, committed=False)
        letters = [one for held, reason in rejected for one in self._letters(part, held, reason)]
        reader_of(part).send(topic, letters)

    def _letters(self, part: Part, held: Range, reason: str) -> Iterable[Message]:
        wanted = AcquiredRange(held.first, held.last, held.delivery)
        for log, _ in Fetches(
            reader_of(part), held.topic, held.partition, [held], committed=False, lossy=True
        ).answers():
            for records, delivery in decode_raw(log.records, [wanted]).runs:
                for record in records:
                    found = Poison(record, delivery, reason or "rejected")
                    yield letter(held.topic, held.partition, self._options.group, found)
