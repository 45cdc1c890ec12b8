"""Rates from repeated looks at counters: of share-partitions, and of an agent's handlers. Pure.

Counters only grow; a counter that fell (a topic made anew, a share-partition loaded elsewhere) counts as unchanged for
that look. Looks are kept for a limited time and in a limited number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.run.stats import HandlerLook

if TYPE_CHECKING:
    from flowshare.ops.figures import PartitionFigures

GroupTopic = tuple[str, str]
"""Group and topic."""

WINDOW_S: Final = 15.0
"""Seconds over which rates of share-partitions are measured: short, as a fleet must follow them."""
LOOKS_MAX: Final = 16
COST_WINDOW_S: Final = 300.0
COST_SETTLED: Final = 100
"""Records over which the handlers' time is measured; the last five minutes if those have fewer."""
_IN_VAIN: Final = 10


class TopicRates(NamedTuple):
    """Rates per second; None when unknown."""

    arrival: float | None
    finished: float | None
    redelivered: float | None


_UNKNOWN: Final = TopicRates(None, None, None)
_COUNTERS: Final = ("log_end", "finished", "redeliveries")
_COUNTERS_OF: Final = attrgetter(*_COUNTERS)
_Counts = tuple[int | None, ...]


class Rates:
    """Rates of each group and topic, and of each partition."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._looks: deque[tuple[float, Mapping[GroupTopic, Mapping[int, _Counts]]]] = deque(maxlen=LOOKS_MAX)
        self._known: dict[GroupTopic, TopicRates] = {}
        """Rates computed since the last look."""

    def look(self, found: Iterable[PartitionFigures], now_s: float) -> None:
        """Take in the figures found at `now_s` (seconds of a monotonic clock)."""
        self._known.clear()
        seen: dict[GroupTopic, dict[int, _Counts]] = {}
        for one in found:
            seen.setdefault((one.group, one.topic), {})[one.partition] = _COUNTERS_OF(one)
        if self._looks and len(self._looks) == LOOKS_MAX and now_s - self._looks[0][0] < self._window_s:
            self._looks.pop()  # too many looks: the window's first look counts
        self._looks.append((now_s, seen))
        while len(self._looks) > 2 and self._looks[1][0] <= now_s - self._window_s:
            self._looks.popleft()

    def of(self, group: str, topic: str) -> TopicRates:
        """Return the rates of the window; unknown until there were two looks with a partition in common."""
        where = (group, topic)
        known = self._known.get(where)
        if known is None:
            known = self._known[where] = self._of(where)
        return known

    def of_partition(self, group: str, topic: str, partition: int) -> TopicRates:
        """Return the rates of one partition, as `of`."""
        return self._of((group, topic), partition)

    def _of(self, where: GroupTopic, partition: int | None = None) -> TopicRates:
        with_it = [(at_s, seen[where]) for at_s, seen in self._looks if where in seen]
        if len(with_it) < 2:
            return _UNKNOWN
        (begun_s, before), (end_s, after) = with_it[0], with_it[-1]
        if end_s <= begun_s:
            return _UNKNOWN
        if partition is not None:
            after = {partition: after[partition]} if partition in after else {}
        grown = _grown(before, after)
        return TopicRates(*(None if count is None else count / (end_s - begun_s) for count in grown))


def _grown(before: Mapping[int, _Counts], after: Mapping[int, _Counts]) -> list[int | None]:
    """Return the growth of each counter in the partitions that both looks know; None: no common partition."""
    total: list[int | None] = [None] * len(_COUNTERS)
    still = [False] * len(_COUNTERS)
    """True for a counter that is known both times in a partition where no counter grew."""
    for partition, counts in after.items():
        known = before.get(partition)
        if known is None:
            continue
        if known == counts:
            if not all(still):
                still = [one or now is not None for one, now in zip(still, counts, strict=True)]
            continue
        for index, (now, then) in enumerate(zip(counts, known, strict=True)):
            if now is not None and then is not None:
                total[index] = (total[index] or 0) + (now - then if now > then else 0)
    return [0 if count is None and known else count for count, known in zip(total, still, strict=True)]


class HandlerCost:
    """Seconds of a handler that one record of an agent takes, retries included."""

    def __init__(self, attempts_max: int) -> None:
        """attempts_max: no record is handled more often than this."""
        self._attempts_max = attempts_max
        self._looks: deque[HandlerLook] = deque(maxlen=256)
        self._known: float | None = None
        self._busy_at_settled_s = 0.0

    def look(self, look: HandlerLook) -> None:
        """Take in the current counters."""
        ended = bool(self._looks) and look.settled > self._looks[-1].settled
        self._looks.append(look)
        while len(self._looks) > 2:  # the second look replaces the first one
            second = self._looks[1]
            if look.settled - second.settled < COST_SETTLED and look.at_s - second.at_s < COST_WINDOW_S:
                break
            self._looks.popleft()
        first = self._looks[0]
        settled = look.settled - first.settled
        if ended:
            self._busy_at_settled_s = look.busy_s
            again = min(1.0, max(0.0, (look.again - first.again) / settled))
            attempts = min(self._attempts_max, 1 / (1 - again)) if again < 1 else self._attempts_max
            self._known = max(0.0, look.busy_s - first.busy_s) / settled * attempts

    @property
    def seconds(self) -> float | None:
        """The figure; None until a handler ran. While nothing ends it grows with the time that handlers work.

        Records take at least as long as the running handlers have worked on average. (The last figure stands until they
        have worked for ten records' time: by chance nothing ends for a while.)
        """
        last = self._looks[-1] if self._looks else None
        if last is None or not last.running:
            return self._known
        in_vain_s = last.busy_s - self._busy_at_settled_s
        if self._known is None:
            return in_vain_s / last.running
        return max(self._known, in_vain_s / max(_IN_VAIN, last.running))
