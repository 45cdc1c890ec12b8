"""Figures of the workers on Spark, for each worker and in total; workers send them to the driver every second. Pure.

A worker that is started again counts from 0. The last known counts of its earlier runs are added, so that counters only
grow.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from flowshare.agents.run.stats import BOUNDS_S, AgentStats, HandlerLook

logger = logging.getLogger("flowshare.spark")

COUNTERS: Final = tuple(AgentStats().counters())
GAUGES: Final = ("running", "buffered", "outstanding", "prefetch_target", "overdue", "paused")
LOOK: Final = ("busy_s", "settled", "again")
BUCKETS: Final = len(BOUNDS_S) + 1

Sums = dict[str, float]


class Times:
    """Handler times of several workers, with the parts of `HandlerTimes`."""

    def __init__(self, counts: Iterable[float], sum_s: float) -> None:
        self._counts = list(counts)
        self.sum_s = sum_s

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus buckets: upper bound as text, calls up to it."""
        names = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        return list(zip(names, self._counts, strict=True))


class WorkerFigures:
    """The figures of all workers of an app with these agents."""

    def __init__(self, agents: Iterable[str]) -> None:
        self._agents = tuple(agents)
        self._now: dict[int, dict[str, Sums]] = {}
        self._run: dict[int, object] = {}
        self._before: dict[int, dict[str, Sums]] = defaultdict(dict)

    def take(self, number: int, run: object, agents: Any) -> None:
        """Store the figures of a worker's agents in this run. Unreadable figures are dropped."""
        if self._run.get(number) != run:
            self._keep(number)
            self._run[number] = run
        try:
            found = {name: _read(said) for name, said in agents.items() if name in self._agents}
            self._now[number] = {**self._now.get(number, {}), **found}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            logger.warning("worker %d sends figures that cannot be read: %r", number, error)

    def ended(self, number: int) -> None:
        """Set the gauges of a worker that has ended to 0; its counters stay."""
        for sums in self._now.get(number, {}).values():
            sums.update(dict.fromkeys(GAUGES, 0.0))

    def _keep(self, number: int) -> None:
        for name, sums in self._now.pop(number, {}).items():
            kept = self._before[number].setdefault(name, {})
            for key, value in sums.items():
                if key not in GAUGES:
                    kept[key] = kept.get(key, 0.0) + value

    @property
    def numbers(self) -> list[int]:
        """The numbers of all workers that ever sent figures."""
        return sorted({*self._now, *self._before})

    def of(self, number: int, name: str) -> Sums:
        """Return counters and gauges of one agent in one worker, by the names of `AgentRuntime.stats`."""
        return _added(of.get(number, {}).get(name, {}) for of in (self._now, self._before))

    def stats(self, name: str) -> Sums:
        """Return counters and gauges of an agent, summed over all workers; `paused` is 1 if it is 1 anywhere."""
        total = _added(self.of(number, name) for number in self.numbers)
        total["paused"] = min(1.0, total["paused"])
        return total

    def times(self, name: str, number: int | None = None) -> Times:
        """Return the handler times of an agent, of all workers or of one."""
        sums = self.stats(name) if number is None else self.of(number, name)
        return Times((sums.get(f"bucket {number}", 0.0) for number in range(BUCKETS)), sums.get("seconds", 0.0))

    def look(self, name: str, now_s: float) -> HandlerLook:
        """Return the work of an agent's handlers so far, for `LoadWatch`."""
        sums = self.stats(name)
        busy_s, settled, again = (sums.get(f"look {key}", 0.0) for key in LOOK)
        return HandlerLook(at_s=now_s, busy_s=busy_s, settled=settled, again=again, running=round(sums["running"]))


def _added(parts: Iterable[Sums]) -> Sums:
    total = dict.fromkeys((*COUNTERS, *GAUGES), 0.0)
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _read(said: Mapping[str, Any]) -> Sums:
    """Flatten one agent's figures to one dictionary. Raises: KeyError, TypeError, ValueError."""
    stats, look = said["stats"], said["look"]
    sums = {key: _number(stats[key]) for key in (*COUNTERS, *GAUGES)}
    sums |= {f"look {key}": _number(look[key]) for key in LOOK}
    sums |= {f"bucket {number}": _number(count) for number, count in enumerate(said["times"][:BUCKETS])}
    sums["seconds"] = _number(said["seconds"])
    return sums


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no number")
    return number
