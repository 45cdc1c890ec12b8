"""Looks at all groups every second, pages open or not: the table of groups, and figures for the store.

Partitions are asked about with each look; members and settings of a group every `LIMITS.slow_s`, a few groups a look. A
look that takes long makes the next one later (`SHARE`), so that the console takes a bounded part of the answering
process. When the log does not answer, the last figures are shown with their age, and the next look comes `AWAY_S`
later.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from flowshare.cli.output import explain
from flowshare.console.store import GROUPS, Figures
from flowshare.core_errors import FlowshareError
from flowshare.ops import Failure
from flowshare.ops.watcher import LookLimits, Snapshot, Watcher
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.console.agents import AgentWatch
    from flowshare.console.source import Source
    from flowshare.console.store import Store
    from flowshare.ops.figures import GroupFigures
    from flowshare.ops.session import CommandSession

logger = logging.getLogger("flowshare.console")

LOOK_S: Final = 1.0
SHARE: Final = 5
"""A look may take one part in `SHARE` of the time, as long as the next one comes within `AWAY_S`."""
LIMITS: Final = LookLimits(seconds=2.0, slow_s=30.0, breakers=100)
AWAY_S: Final = 5.0
LEADING_S: Final = 30.0
"""Time, in s, between two looks at a fleet without running workers: each look claims all its slots."""
LOOK_LIMIT_S: Final = 30.0


class Collector:
    """The collector of all groups, on one loop. store: keeps the figures. agents: knows the workers' held records;
    None: not known."""

    def __init__(self, source: Source, store: Store, clock: Clock, agents: AgentWatch | None = None) -> None:
        self._source = source
        self._store = store
        self._clock = clock
        self._agents = agents
        self._watcher = Watcher(clock, LIMITS, changes=True, letters=True)
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.look = Snapshot()
        self.trouble: str | None = None
        """The last look's failure; None: it succeeded."""

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-console-collector")

    async def close(self) -> None:
        """Stop."""
        task, self._task = self._task, None
        await cancelled(task)

    def hurry(self) -> None:
        """Look at once, also at the slow facts, because a setting was changed."""
        self._watcher.hurry()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._one()
                self.trouble = None
            except (FlowshareError, Failure, OSError) as error:
                self.trouble = explain(error)
                logger.debug("the groups could not be looked at: %s", error)
            except Exception as error:  # a fault of the console: it is told, and the next look may go well
                self.trouble = explain(error)
                logger.exception("the groups could not be looked at")
            took_s = self.look.took_s
            rest_s = min(max(LOOK_S - took_s, took_s * (SHARE - 1)), AWAY_S)
            if self.look.leads:
                rest_s = LEADING_S if self.look.backend == "workers" else AWAY_S
            await self._rest(AWAY_S if self.trouble else rest_s)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _one(self) -> None:
        look = self.look = await self._source.ask(self._see, limit_s=LOOK_LIMIT_S)
        if self._agents is not None:
            self._agents.wanted = look.stalled
        self._store.keep(GROUPS, look.at_ms // 1000, {name: figures_of(one) for name, one in look.groups.items()})

    async def _see(self, session: CommandSession) -> Snapshot:
        found = await self._watcher.look(session.admin, session.backend.capabilities)
        if self._agents is not None:
            found = found.with_in_hand(self._agents.in_hand)
        return replace(found, backend=session.backend.kind, leads=session.leads)


def figures_of(group: GroupFigures) -> Figures:
    """Return the figures of a look to keep."""
    total = group.total
    return Figures(
        backlog=total.backlog,
        in_flight=total.in_flight,
        delayed=total.delayed,
        blocked=total.blocked,
        arriving=_rounded(total.arrival_rate),
        finished=_rounded(total.rate),
        redelivered=_rounded(total.redelivery_rate),
        oldest_s=None if total.oldest_age_s is None else round(total.oldest_age_s),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
