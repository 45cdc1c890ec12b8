"""The tasks that delete what topics no longer want to keep, and compact: every `INTERVAL_S` on the storage's clock.

What is to be done is the storage's knowledge; this holds only when it is looked at. A task starts with the first topic
that has a setting for it, so that a storage without any has no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from flowshare.clock import Clock
from flowshare.log.base import LogError
from flowshare.log.topics import TopicSettings

INTERVAL_S: Final = 30.0
logger = logging.getLogger(__name__)


class SweepTask:
    """Calls `sweep` at each interval until closed; a failed sweep is logged and tried again at the next."""

    def __init__(self, clock: Clock, sweep: Callable[[], Awaitable[None]], failed: str) -> None:
        """`failed`: what the log says of a failed sweep."""
        self._clock = clock
        self._failed = failed
        self._sweep = sweep
        self._task: asyncio.Task[None] | None = None

    def ensure(self) -> None:
        """Start unless it runs."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="flowshare-sweep")

    async def close(self) -> None:
        """Stop; a sweep under way is cut short."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(INTERVAL_S)
            try:
                await self._sweep()
            except (LogError, MemoryError):
                logger.exception("%s; next try in %g s", self._failed, INTERVAL_S)


def expired(max_timestamp_ms: int, *, now_ms: int, retention_ms: int) -> bool:
    """Whether a batch is older than the topic keeps records; batches without timestamps never are."""
    return retention_ms >= 0 and 0 <= max_timestamp_ms < now_ms - retention_ms


def ahead(max_timestamp_ms: int, settings: TopicSettings, *, now_ms: int) -> bool:
    """Whether a batch is of a time that the topic does not take (message.timestamp.after.max.ms): it came before that
    was checked. Such a one says nothing of its age, and goes with what comes behind it."""
    return max_timestamp_ms > now_ms + settings.timestamp_after_max_ms
