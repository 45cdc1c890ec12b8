"""`Outage` asks the broker at intervals, so that `/ready` and the log tell when the broker does not answer.

Every client of a process notices an outage by itself at its next request; an idle client never does, and no client
knows how long the outage has lasted. So one small question is asked at intervals.

    THERE ──no answer for AWAY_S──▶ AWAY (a warning, again each time it has lasted twice as long)
      ▲                               │
      └──────── an answer ────────────┘ (told)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from flowshare.client.errors import ClientError, Closed, ServerError
from flowshare.clock import Clock
from flowshare.tasks import cancelled

ASK_S: Final = 2.0
"""Seconds between two questions, and the limit of an answer."""
AWAY_S: Final = 10.0
"""Seconds without an answer after which the broker counts as away; the restart of one of several brokers is shorter."""

logger = logging.getLogger("flowshare.agents")


class Outage:
    """Asks the broker, on the service loop.

    ask: one question; any answer will do, a ServerError too. where: the broker's address, for the texts.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]], *, clock: Clock, where: str) -> None:
        self._ask = ask
        self._clock = clock
        self._where = where
        self._answered_s = clock.monotonic()
        self._reminder_s = AWAY_S
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._answered_s = self._clock.monotonic()
        self._asking = asyncio.create_task(self._go_on(), name="ask whether the broker answers")

    async def close(self) -> None:
        """Stop asking."""
        asking, self._asking = self._asking, None
        await cancelled(asking)

    def problem(self) -> str | None:
        """Say that the broker is away and since when; None: it answers. From any thread."""
        away_s = self._away_s()
        return self._text(away_s) if away_s >= AWAY_S else None

    def _away_s(self) -> float:
        return self._clock.monotonic() - self._answered_s

    def _text(self, away_s: float) -> str:
        return f"{self._where} has not answered for {away_s:.0f} s: see that the broker runs and is reached from here"

    async def _go_on(self) -> None:
        while True:
            began_s = self._clock.monotonic()
            try:
                await self._clock.wait_for(self._ask(), ASK_S)
            except Closed:
                return
            except ServerError:
                self._answer()
            except (ClientError, OSError):  # TimeoutError is one
                self._no_answer()
            else:
                self._answer()
            await self._clock.sleep(max(0.1, ASK_S - (self._clock.monotonic() - began_s)))

    def _answer(self) -> None:
        away_s = self._away_s()
        self._answered_s = self._clock.monotonic()
        if self._reminder_s > AWAY_S:
            logger.warning("%s answers again, after %.0f s", self._where, away_s)
        self._reminder_s = AWAY_S

    def _no_answer(self) -> None:
        away_s = self._away_s()
        if away_s < self._reminder_s:
            return
        logger.warning("%s; work goes on when it does", self._text(away_s))
        while self._reminder_s <= away_s:
            self._reminder_s *= 2
