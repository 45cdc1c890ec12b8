"""Health and metrics of `flowshare serve`, which has no agents.

    /live, /ready   200 as long as it serves
    /metrics        Prometheus text of its leading, under a worker's names

Rights are decided as for a worker.
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
    """The pages of a broker, on the broker's loop. stats: returns its counters (`Server.stats`)."""

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
