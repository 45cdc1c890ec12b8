"""`flowshare scale`: asks the workers how many of them are needed, and resizes their supervisor by it.

Each worker's health pages say it at `/scale` (`load.py`): they see the same groups and differ in what their own
handlers took, so the figure is the median. Workers that do not answer or do not know yet are left out; when nobody
knows, nothing changes. What is done with the figure is decided in `scaling.Scaler`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from flowshare.agents.scaling import Scaler

if TYPE_CHECKING:
    from flowshare.agents.scaling import ScalePolicy
    from flowshare.clock import Clock

logger = logging.getLogger("flowshare.supervisor")

Report = Mapping[str, Any]
"""What `/scale` answers."""
Ask = Callable[[str, str], Awaitable[Report | None]]
"""Takes a worker's `host:port` and a page; gives what it answers, None when it does not. Bounded in time."""

LOOK_S: Final = 1.0


class Resizable(Protocol):
    """What is resized: a `Supervisor`, or a fleet somewhere else."""

    @property
    def size(self) -> int:
        """How many workers are kept."""
        ...

    @property
    def ready(self) -> Mapping[int, str]:
        """Where the workers that run can be asked, by number."""
        ...

    def resize(self, count: int) -> None:
        """Keep so many."""


class Autoscaler:
    """Resizes a supervisor until it is cancelled."""

    def __init__(self, policy: ScalePolicy, *, target_age_s: float, ask: Ask, clock: Clock) -> None:
        """target_age_s: within how many seconds what waits is to be worked off."""
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
        """Ask once and do what follows."""
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
    """The one in the middle of those that know how many workers are needed (the higher of two); None: nobody knows."""
    known = sorted((one for one in answers if one.get("needed") is not None), key=lambda one: float(one["needed"]))
    return known[len(known) // 2] if known else None


def why(report: Report) -> str:
    """The figure and what it is made of, in one line."""
    agents = sorted(report["agents"], key=lambda agent: -(agent["needed"] or 0.0))
    text = f"{report['needed']:.1f} are needed"
    if not agents or not report["needed"]:
        return text
    first = agents[0]
    waiting = sum(topic["waiting"] for topic in first["topics"])
    arrival = sum(topic["arrival_rate"] or 0.0 for topic in first["topics"])
    took = "" if first["handler_s"] is None else f", a record takes {first['handler_s']:.3g} s"
    return f"{text} ({first['agent']}: {arrival:.1f} records/s arrive, {waiting} wait{took})"
