"""Tasks of the event loop that the shells keep, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait for their ends; their errors are dropped. None entries are skipped."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
