"""`Accepts`: the accepts of committed batches: owed, on their way, or refused.

No caller needs to wait for an accept: committed ranges stay in `done` until they are accepted, and `done` is in the
checkpoint's next offset, so that they get into no second batch in any case (invariant 3 of
`flowshare.spark.source.microbatches`).

| a committed range is | then | and becomes |
|---|---|---|
| owed, in `done` | `begin` | on its way |
| on its way, in `done` | `settle`, accepted | forgotten |
| on its way, in `done` | `settle`, refused: its lock was lost | refused |
| on its way, in `done` | `settle`, the group is not reached | owed |
| refused, in `done` | it is delivered again: `swallow` | owed |
| refused, by an earlier process | it is delivered for the first time: the group was made anew | forgotten, and fresh |
| any of these | the start offset passes it | forgotten |
| any of these | its topic was made anew: `meet` | forgotten |

A checkpoint's ranges (`restore`) count only if their topic is still the same, and if the group's start offset did not
go back since.

A first delivery is one only if its counter has forgotten none: Kafka's brokers count acquires in memory, and the next
leader begins with the last written count. So it is a proof only under the leader from which the range was acquired
(`leaders`); under another leader the range counts as delivered before: it is in the output.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from flowshare.client.errors import ClientError
from flowshare.spark.source.ledger import Entry
from flowshare.spark.source.ranges import Offset, Place, Range, RangeSet, records_in

if TYPE_CHECKING:
    from flowshare.spark.source.member import GroupMember

logger = logging.getLogger("flowshare.spark")


class Accepts:
    """The ranges in `done`, and their accepts. One accept at a time is on its way."""

    def __init__(self, member: GroupMember, *, group: str) -> None:
        self._member = member
        self._group = group
        self._done = RangeSet()
        self._earlier = RangeSet()
        """The ranges in `done` that an earlier process of the query committed."""
        self._topics: dict[str, str] = {}
        """Ids of the topics in `done`."""
        self._leaders: dict[Place, str] = {}
        """By partition in `done`, the leader from which its oldest range was acquired."""
        self._owed: list[Range] = []
        self._newest = Entry(0, "")
        """The newest batch of which ranges were owed."""
        self._sent: tuple[list[Range], concurrent.futures.Future[list[Range]]] | None = None

    @property
    def pending(self) -> bool:
        """True if accepts are owed or on their way."""
        return bool(self._owed or self._sent)

    def ranges(self) -> tuple[Range, ...]:
        """Return `done`: ranges that are committed and not known as accepted."""
        return tuple(self._done.ranges())

    def leaders(self, newest: Mapping[Place, str]) -> dict[Place, str]:
        """Return the leaders that count deliveries, for the next offset. newest: those of its acquired ranges."""
        return {**newest, **{place: self._leaders[place] for place in self._done.places()}}

    def owe(self, batch: Offset) -> None:
        """Add the ranges of a committed batch."""
        self._newest = max(self._newest, Entry.of(batch))
        before = self._done.places()
        for one in batch.ranges:
            topic_id = batch.topics.get(one.topic, "")
            if self._topics.setdefault(one.topic, topic_id) == topic_id:
                self._owed.append(one)
                self._done.add(one)
                if one.place not in before:
                    self._leaders[one.place] = batch.leaders.get(one.place, "")

    def restore(self, known: Offset, starts: Mapping[Place, int]) -> None:
        """Restore the committed ranges of an earlier process: of one batch, or of several if the number of `known` is
        0.

        starts: the group's present start offsets.
        """
        self.meet(self._member.topics)
        for topic, topic_id in known.topics.items():
            self._topics.setdefault(topic, topic_id)
        same = [one for one in known.ranges if known.topics.get(one.topic, "") == self._topics.get(one.topic, "")]
        believed = [one for one in same if starts.get(one.place, 0) >= known.starts.get(one.place, 0)]
        if len(believed) < len(known.ranges):
            what = "topics were made anew" if len(same) < len(known.ranges) else "offsets were reset"
            logger.warning("group %s: its %s since this query ran last: it reads them again", self._group, what)
        self.owe(replace(known, ranges=tuple(believed)))
        for one in believed:
            self._earlier.add(one)
        self.prune(starts)

    def meet(self, topics: Mapping[str, str]) -> list[str]:
        """Take in the present ids of topics; return the topics that were created anew, whose ranges are forgotten."""
        anew = [name for name, topic_id in topics.items() if self._topics.get(name, topic_id) != topic_id]
        for name in anew:
            self._done.forget(name)
            self._earlier.forget(name)
        self._topics.update(topics)
        return anew

    def begin(self) -> None:
        """Send owed accepts, after the accept on its way has ended. Raises: ClientError, OSError, Fenced."""
        self._collect()
        # Some owed ranges may have been finished meanwhile, and some may be owed twice, because they came again.
        owed = list(RangeSet(self._done.split(*self._owed)[0]).ranges())
        self._owed = []
        if owed:
            self._sent = owed, self._member.begin_accept(owed, self._newest)

    def settle(self, timeout_s: float | None = None) -> None:
        """Send owed accepts and wait until none is on its way. timeout_s: seconds for each wait; None: no limit.

        Raises: ClientError, OSError, Fenced; TimeoutError.
        """
        self._collect(timeout_s)
        self.begin()
        self._collect(timeout_s)

    def swallow(self, got: Iterable[Range]) -> list[Range]:
        """Owe delivered ranges of committed batches again, and return the other ones."""
        fresh: list[Range] = []
        first: list[Range] = []
        for one in got:
            again, outside = self._done.split(one)
            fresh += outside
            for part in again:
                (first if part.delivery == 1 and self._earlier.split(part)[0] else self._owed).append(part)
        same = self._same_leaders() if first else set[Place]()
        for part in first:
            if part.place in same:
                logger.warning(
                    "group %s: %s-%d@%d to %d were in a batch of this query and come for the first time: the group was "
                    "deleted or reset meanwhile, and they are read again",
                    self._group,
                    *part[:4],
                )
                self._done.remove(part)
                self._earlier.remove(part)
                fresh.append(part)
            else:
                logger.info("group %s: %s-%d@%d to %d were in a batch and are left out", self._group, *part[:4])
                self._owed.append(part)
        return fresh

    def _same_leaders(self) -> set[Place]:
        """Return the partitions whose present leader counted the deliveries of the ranges in `done`."""
        try:
            now = self._member.leaders_now()
        except (ClientError, OSError) as error:
            logger.warning("group %s: who leads its partitions is not known: %s", self._group, error)
            return set()
        return {place for place, leader in self._leaders.items() if leader and now.get(place) == leader}

    def prune(self, starts: Mapping[Place, int]) -> None:
        """Forget ranges before these start offsets: they are finished."""
        self._done.prune(starts)
        self._earlier.prune(starts)

    def _collect(self, timeout_s: float | None = None) -> None:
        """Wait for the accept on its way. Raises: TimeoutError: it is still on its way."""
        if self._sent is None:
            return
        (sent, answer), self._sent = self._sent, None
        try:
            refused = answer.result(timeout_s)
        except BaseException:
            if answer.done():
                self._owed = sent + self._owed
            else:  # this process is to end, and does not wait any longer
                self._sent = sent, answer
            raise
        lost = RangeSet(refused)
        for accepted in lost.split(*sent)[1]:
            self._done.remove(accepted)
        before, now = self._earlier.split(*refused)
        if now:
            logger.warning(
                "group %s: %d records of a committed batch are not accepted, their locks were lost; they are left out "
                "when they come again",
                self._group,
                records_in(now),
            )
        if before:  # as a rule the earlier process accepted them, and the start offset that is told has not moved yet
            logger.debug(
                "group %s: %d records that an earlier process committed are not this one's to accept; those that come "
                "again are left out",
                self._group,
                records_in(before),
            )
