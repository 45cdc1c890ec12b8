"""The number of workers that a share group needs, and the decision to have more or fewer.

The figure. By Little's law λ records a second that take S seconds each keep λ·S handlers busy. A worker has
`concurrency` handlers, and a rate limit may allow it fewer records. Waiting records must be worked off within the
target age T, so that

    needed workers = (λ + waiting / T) / min(concurrency / S, rate limit)

where S counts retries (a record that fails half of its deliveries takes two on average), and records in handlers do not
wait. A group's limits of records in flight (`share.max.in.flight`, zero while it is paused) and per second
(`share.max.rate`) bound the figure: more workers would get nothing. The figure does not depend on the present number of
workers: asking again while new workers start asks for no more of them. An app needs as many workers as the most
demanding of its agents, as each worker runs all agents.

The decision (`Scaler`). Invariant: `min` ≤ workers ≤ `max` after each decision, whatever the figure is.

| the figure | what happens |
|---|---|
| more than the workers there are | up to it at once, by a step at most: `up_step`, or as many as there are |
| fewer, but not so for all of the last `down_after_s` | nothing |
| fewer for all of that time | down to its highest value of that time, by a step: `down_step`, or a quarter |
| not known | nothing, and it counts as the workers there are: what cannot be measured is not made smaller |

Two steps in the same direction are `pause_s` apart.

Both are pure: times come in as arguments. `Autoscaler` (`flowshare scale`) asks the workers how many are needed, and
resizes their supervisor by the answer. Each worker's health pages give the figure at `/scale` (`load.py`): workers see
the same groups and differ in their own handlers' times, so the figure is the median. Workers that do not answer or do
not know yet are left out; when no worker knows, nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from flowshare.clock import Clock

logger = logging.getLogger("flowshare.supervisor")

TARGET_AGE_S: Final = 10.0
"""Seconds within which waiting records are to be worked off, by default."""
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
ROUNDING: Final = 0.02
"""Part above a whole number that asks for no further worker: the rates are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load of one agent of one app, and the capacity of one of its workers.

    arrival_per_s: new records; None: unknown. waiting: records that wait for a handler (delayed ones do not count).
    handler_s: seconds of a handler that one record takes, retries included; None: none was measured. concurrency:
    handlers of one worker (a handler of batches counts once: its `handler_s` is shorter). rate_per_s: records that the
    agent's rate limit allows one worker; None: no limit. workers_max: number of workers to which the group gives
    records at the same time, by its limit of records in flight; 0 while the group is paused; None: no limit.
    group_per_s: records that all workers together are handed per second; None: no limit.
    """

    arrival_per_s: float | None
    waiting: int
    handler_s: float | None
    concurrency: int
    rate_per_s: float | None = None
    workers_max: float | None = None
    group_per_s: float | None = None


def needed(demand: Demand, target_age_s: float = TARGET_AGE_S) -> float | None:
    """Return the workers that the demand keeps busy, not rounded; None when not yet known."""
    if demand.workers_max == 0:
        return 0.0
    if demand.arrival_per_s is None:
        return None
    work = demand.arrival_per_s + demand.waiting / target_age_s  # records a second that have to be finished
    if work == 0:
        return 0.0
    if demand.group_per_s is not None:
        work = min(work, demand.group_per_s)
    per_worker = capacity_per_s(demand)
    if per_worker is None:
        return None
    return min(work / per_worker, math.inf if demand.workers_max is None else demand.workers_max)


def capacity_per_s(demand: Demand) -> float | None:
    """Return the records a second that one worker finishes; None when no handler was measured."""
    if demand.handler_s is None:
        return None
    by_handlers = demand.concurrency / max(demand.handler_s, 1e-9)
    return by_handlers if demand.rate_per_s is None else min(by_handlers, demand.rate_per_s)


def whole(workers: float) -> int:
    """Round a figure of `needed` to workers: 0 only when there is nothing to do."""
    return math.ceil(workers - ROUNDING) if workers > 1 else math.ceil(workers)


def read_seconds(text: str) -> float:
    """Read `10`, `10s`, `1.5m`, `500ms`, `1h` as seconds, above 0. Raises: ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    value = float(found[1]) * _UNITS_S[found[2] or "s"] if found else 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"a time such as 10s, 500ms or 2m is needed, not {text!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePolicy:
    """Bounds of the number of workers, and its speed between them. See the module's text.

    min, max: workers. down_after_s: seconds that fewer must have been enough. up_step, down_step: workers a step, at
    least. pause_s: seconds from one step to the next one in the same direction.
    """

    min: int = 1
    max: int = 8
    down_after_s: float = 60.0
    up_step: int = 4
    down_step: int = 1
    pause_s: float = 3.0

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if not 1 <= self.min <= self.max:
            raise ValueError(f"min must be at least 1 and no more than max, not {self.min} and {self.max}")
        if min(self.up_step, self.down_step) < 1 or min(self.down_after_s, self.pause_s) < 0:
            raise ValueError("steps must be at least 1, and times not below 0")


class _Seen(NamedTuple):
    at_s: float
    workers: int


class Scaler:
    """Decides the number of workers, one figure after the other. Times are seconds of a monotonic clock."""

    def __init__(self, policy: ScalePolicy, now_s: float) -> None:
        self.policy = policy
        self._highest: deque[_Seen] = deque()
        """Figures of the last `down_after_s`: each lower than those before it, the first is the highest of all."""
        self._since_s = now_s
        self._up_at_s = self._down_at_s = -math.inf

    def decide(self, workers: int, figure: float | None, now_s: float) -> int:
        """Return the number of workers to have. workers: present target. figure: of `needed`, None: unknown."""
        wanted = workers if figure is None else whole(min(figure, float(self.policy.max)))
        wanted = self._bounded(wanted)
        self._remember(wanted, now_s)
        if workers != self._bounded(workers):
            return self._bounded(workers)
        if wanted > workers:
            return self._up(workers, wanted, now_s)
        return self._down(workers, now_s)

    def _up(self, workers: int, wanted: int, now_s: float) -> int:
        if now_s - self._up_at_s < self.policy.pause_s:
            return workers
        self._up_at_s = now_s
        return min(wanted, workers + max(self.policy.up_step, workers))

    def _down(self, workers: int, now_s: float) -> int:
        highest = self._highest[0].workers
        watched_s = now_s - self._since_s
        if highest >= workers or watched_s < self.policy.down_after_s or now_s - self._down_at_s < self.policy.pause_s:
            return workers
        self._down_at_s = now_s
        return max(highest, workers - max(self.policy.down_step, workers // 4))

    def _remember(self, wanted: int, now_s: float) -> None:
        while self._highest and self._highest[-1].workers <= wanted:
            self._highest.pop()
        self._highest.append(_Seen(now_s, wanted))
        while self._highest[0].at_s <= now_s - self.policy.down_after_s and len(self._highest) > 1:
            self._highest.popleft()

    def _bounded(self, workers: int) -> int:
        return min(self.policy.max, max(self.policy.min, workers))


Report = Mapping[str, Any]
"""The answer of `/scale`."""
Ask = Callable[[str, str], Awaitable[Report | None]]
"""Function of a worker's `host:port` and a page that returns the answer, None without one. Bounded in time."""
LOOK_S: Final = 1.0


class Resizable(Protocol):
    """A keeper of workers whose number can be changed: a `Supervisor`, or a keeper of workers elsewhere."""

    @property
    def size(self) -> int:
        """Number of workers kept."""

    @property
    def ready(self) -> Mapping[int, str]:
        """Addresses of the running workers' pages, by number."""

    def resize(self, count: int) -> None:
        """Keep `count` workers."""


class Autoscaler:
    """Resizes a supervisor until it is cancelled."""

    def __init__(self, policy: ScalePolicy, *, target_age_s: float, ask: Ask, clock: Clock) -> None:
        """target_age_s: seconds within which waiting records are to be worked off."""
        self._page = f"/scale?target_age={target_age_s:g}"
        self._ask = ask
        self._clock = clock
        self._scaler = Scaler(policy, clock.monotonic())
        self._troubled = False

    async def run(self, supervisor: Resizable) -> None:
        """Look every second."""
        while True:
            try:
                await self.look(supervisor)
            except Exception:
                if not self._troubled:  # once, not each second
                    logger.exception("the workers' number stays as it is: how many are needed could not be found out")
                self._troubled = True
            else:
                self._troubled = False
            await self._clock.sleep(LOOK_S)

    async def look(self, supervisor: Resizable) -> None:
        """Ask once and resize by the answers."""
        addresses = [address for address in supervisor.ready.values() if address]
        answers = await asyncio.gather(*(self._ask(address, self._page) for address in addresses))
        report = median_report([answer for answer in answers if answer is not None])
        size = supervisor.size
        wanted = self._scaler.decide(size, None if report is None else report["needed"], self._clock.monotonic())
        if wanted != size:
            logger.info(
                "from %d to %d workers: %s", size, wanted, "within the bounds" if report is None else why(report)
            )
            supervisor.resize(wanted)


def median_report(answers: Sequence[Report]) -> Report | None:
    """Return the median of the reports with a known number (the higher of two); None: no report has one."""
    known = sorted((one for one in answers if one.get("needed") is not None), key=lambda one: float(one["needed"]))
    return known[len(known) // 2] if known else None


def why(report: Report) -> str:
    """Describe the figure and its parts, in one line."""
    agents = sorted(report["agents"], key=lambda agent: -(agent["needed"] or 0.0))
    text = f"{report['needed']:.1f} are needed"
    if not agents or not report["needed"]:
        return text
    first = agents[0]
    waiting = sum(topic["waiting"] for topic in first["topics"])
    arrival = sum(topic["arrival_rate"] or 0.0 for topic in first["topics"])
    took = "" if first["handler_s"] is None else f", a record takes {first['handler_s']:.3g} s"
    return f"{text} ({first['agent']}: {arrival:.1f} records/s arrive, {waiting} wait{took})"
