"""What the source's process does with outcomes: acknowledges them. Dead letters of what is rejected were written by the
executors before (`flowshare.spark.rejected`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowshare.share.types import AcknowledgeType
from flowshare.spark.member import Ack
from flowshare.spark.ranges import Range, merged, records_in
from flowshare.spark.rejected import SourceFacts

if TYPE_CHECKING:
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

    def tell(self) -> SourceFacts:
        """What executors need for dead letters."""
        held = merged(self._member.all_held())
        return SourceFacts(self._member.hosts, self._options.dead_letter_topic, tuple(held))

    def take(self, outcomes: Iterable[tuple[Any, ...]]) -> int:
        """Acknowledge what this member holds of them; how many records were. What was lost meanwhile comes again, and
        what was settled before is settled: a batch may give its outcomes twice.

        Raises: ClientError, OSError: the group is not reached.
        """
        from flowshare.spark.outcomes import Outcome

        acks: dict[Range, Ack] = {}
        given = [Outcome(*fields) for fields in outcomes]
        held = self._member.held(Range(*one.place, one.first, one.last) for one in given)
        for one, pieces in zip(given, held, strict=True):
            acks |= dict.fromkeys(pieces, Ack(TYPES[one.kind], round(one.delay * 1000)))
        refused = self._member.acknowledge(acks)
        if refused:
            logger.warning(
                "group %s: outcomes of %d records came too late, they run again",
                self._options.group,
                records_in(refused),
            )
        return records_in(acks) - records_in(refused)
