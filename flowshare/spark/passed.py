"""What a group finished without any batch of the query's having held it. Pure.

Kafka's brokers archive a record that was delivered too often, also when nobody ever saw it: a query that dies between
an acquire and its write-ahead log uses up deliveries (spark-on-kafka.md §7). All that is told of it is that the
share-partition's start offset moves on. Invariant: every offset before a start offset was in a committed batch, or is
returned by `advance`, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowshare.spark.ranges import Done, Place, Range


class Passed:
    """Start offsets that are known, and the committed batches' offsets behind them."""

    def __init__(self, starts: Mapping[Place, int] | None = None, ranges: Iterable[Range] = ()) -> None:
        self._starts = dict(starts or {})
        self._held = Done(ranges)

    @property
    def starts(self) -> dict[Place, int]:
        """Start offset by partition, as of the last `advance`."""
        return dict(self._starts)

    def ranges(self) -> Iterable[Range]:
        """Committed offsets behind the start offsets, ascending."""
        return self._held.ranges()

    def add(self, ranges: Iterable[Range]) -> None:
        """A batch with these ranges is committed."""
        for one in ranges:
            if one.last >= self._starts.get(one.place, 0):
                self._held.add(one)

    def forget(self, topic: str) -> None:
        """The topic was made anew."""
        for place in [place for place in self._starts if place[0] == topic]:
            del self._starts[place]
        self._held.forget(topic)

    def begin(self, ranges: Iterable[Range]) -> None:
        """These were acquired: a partition that was not known begins with the first of them."""
        for one in sorted(ranges):
            self._starts.setdefault(one.place, one.first)

    def advance(self, starts: Mapping[Place, int]) -> list[Range]:
        """Take over start offsets as they are now, while no batch is under way; what they passed and no batch held.

        A partition that is seen for the first time, or whose start offset went back (its topic was made anew, an
        operator moved it), begins afresh.
        """
        found: list[Range] = []
        for place, start in starts.items():
            before = self._starts.get(place)
            self._starts[place] = start
            if before is None or start <= before:
                continue
            found += self._held.split(Range(*place, before, start - 1))[1]
        self._held.prune(starts)
        return found
