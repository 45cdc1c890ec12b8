"""Figures of very many groups that must be asked for one by one: in turn, the oldest figures first.

Kafka's brokers tell the unfinished records of one group at a time, and so does the coordinator of a cooperative group.
One look spends a limited time on that, so thousands of groups cost no more per look than some hundred; their figures
are older in turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.agents.scale import lag
from flowshare.agents.scale.rates import Rates

if TYPE_CHECKING:
    from collections.abc import Collection

    from flowshare.agents.scale.retention import Facts
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import Clock

PART_S: Final = 2.0
"""Seconds that one look may ask."""


@dataclass(slots=True)
class Asked:
    """The last known figures of a group.

    at_s: when they were asked for. partitions: rows of `lag.rows`; topics: rows of `lag.by_topic`.
    """

    at_s: float = -math.inf
    partitions: lag.Rows = field(default_factory=list[dict[str, object]])
    topics: lag.Rows = field(default_factory=list[dict[str, object]])
    rates: Rates = field(default_factory=Rates)

    @property
    def known(self) -> bool:
        """True if the group's figures were asked for at least once."""
        return self.at_s > -math.inf


class InTurn:
    """Remembers the last figures of each group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, Asked] = {}

    async def look(
        self, admin: ShareAdmin, facts: Facts, share: Collection[str], cooperative: Collection[str]
    ) -> dict[str, Asked]:
        """Return all of these groups with their last known figures. Raises: ClientError, OSError."""
        sharing = set(cooperative)
        names = dict.fromkeys((*share, *cooperative))
        self._groups = {name: self._groups.get(name) or Asked() for name in names}
        until_s = self._clock.monotonic() + PART_S
        due = sorted(names, key=lambda name: self._groups[name].at_s)
        for first in range(0, len(due), lag.AT_ONCE):
            if self._clock.monotonic() > until_s:
                break
            some = due[first : first + lag.AT_ONCE]
            of = lag.Groups([name for name in some if name not in sharing], [name for name in some if name in sharing])
            await self._ask(admin, facts, of, some)
        return self._groups

    @property
    def oldest_s(self) -> float:
        """Age of the oldest known figures in seconds; groups that were never asked for do not count."""
        return self._clock.monotonic() - min(
            (one.at_s for one in self._groups.values() if one.known), default=self._clock.monotonic()
        )

    async def _ask(self, admin: ShareAdmin, facts: Facts, of: lag.Groups, names: Collection[str]) -> None:
        found = await lag.rows(admin, of, self._clock.now_ms(), facts)
        now_s = self._clock.monotonic()
        made: dict[str, lag.Rows] = {name: [] for name in names}
        for row in found:
            made[row["group"]].append(row)
        for name, rows in made.items():
            one = self._groups[name]
            one.rates.look(rows, now_s)
            await lag.add_retention(rows, facts, one.rates, now_s)
            one.at_s, one.partitions, one.topics = now_s, rows, lag.by_topic(rows, one.rates)
