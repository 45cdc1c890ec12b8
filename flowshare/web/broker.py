"""Health and metrics of `flowshare serve`, which has no agents.

    /live, /ready   200 as long as it serves
    /metrics        Prometheus text: what it leads, under a worker's names

Who gets what is decided as for a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowshare.web.server import Pages

if TYPE_CHECKING:
    from flowshare.agents.pages.gate import PageSettings
    from flowshare.clock import Clock


class BrokerPages(Pages):
    """Serves them, on the broker's loop. stats: what it tells of itself (`Server.stats`)."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]], settings: PageSettings, clock: Clock) -> None:
        super().__init__(settings, clock)
        self._stats = stats

    async def _reasons(self) -> Sequence[str]:
        return ()

    async def _text(self) -> bytes:
        return await asyncio.to_thread(_text, self._stats())


def _text(stats: Mapping[str, Any]) -> bytes:
    from flowshare.web.metrics import LedMetrics

    return LedMetrics(stats).text()
