"""A slot: one place where a handler runs, and what it works on now."""

from __future__ import annotations

import asyncio
from typing import Final

from flowshare.agents.chunk import Chunk
from flowshare.protocol.decoding import DecodedRecord, RawRecord

GRACE_S: Final = 5.0
"""How long a cancelled `async def` handler may take to end before the agent is called unhealthy."""

Held = tuple[Chunk, RawRecord]
"""A record that is handled, as it was read: `chunk.whole` has its other fields."""


class Slot:
    """One of the `concurrency` places. Written by whoever runs the handler, read from any thread."""

    __slots__ = ("cancelled_at", "held", "index", "started", "task", "thread_id", "timed_out")

    def __init__(self, index: int) -> None:
        self.index = index
        self.held: Held | list[Held] | None = None
        """What is handled: one record, a batch's records, or nothing."""
        self.started = 0.0
        self.timed_out = False
        self.cancelled_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.thread_id: int | None = None

    def records(self) -> list[tuple[Chunk, DecodedRecord]]:
        """What is handled now, as a list."""
        held = self.held
        if held is None:
            return []
        return [(chunk, chunk.whole(record)) for chunk, record in (held if isinstance(held, list) else [held])]

    def over_s(self, timeout_s: float | None, now: float) -> float:
        """Seconds that the handler is past its timeout; 0 or less when it is not."""
        return 0.0 if timeout_s is None or self.held is None else now - self.started - timeout_s
