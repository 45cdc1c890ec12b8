"""At most once: records are accepted before their handlers begin, so that no record runs twice, whatever dies and when.

    fetched, in hand as ever --room--> accept asked --confirmed--> handed to the pool --outcome--> done
         │ given back, lost               │ refused, or not known
         ▼                                ▼
      runs elsewhere                 not run here

Invariants: 1. A handler begins a record only after its accept was confirmed; no accept is sent twice. 2. At most as
many records are accepted as handlers run at once (`AgentOptions.records_at_once`), counted from the request to the
handler's outcome. So a process that dies loses at most the records that its handlers had or would get. 3. Other records
are held as by any agent: their locks are renewed, and they are released unrun when the agent stops.

A record whose accept has an unknown outcome is not run: it comes again if it was not accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from flowshare.agents.handler.chunk import Chunk

if TYPE_CHECKING:
    from flowshare.agents.feed.ack_sender import AckSender
    from flowshare.agents.feed.locks import HeldRecords
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.telemetry.settling import SettleSpans
    from flowshare.client.session.ranges import AckResult
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.messages import TopicPartition
    from flowshare.share.types import AckRange

logger = logging.getLogger("flowshare.agents")


class EarlyAccepts:
    """Accepts an agent's held records and hands them to its pool; on the service loop."""

    def __init__(
        self,
        agent: ShareAgent,
        *,
        held: HeldRecords,
        acks: AckSender,
        feed: Callable[[list[Chunk]], object],
        spans: SettleSpans | None = None,
    ) -> None:
        """feed: hands chunks of accepted records to the pool. spans: records accepts in telemetry; None: no
        telemetry."""
        self._spans = spans
        self._agent = agent
        self._held = held
        self._acks = acks
        self._feed = feed
        self._waiting: deque[Chunk] = deque()
        self._asked: dict[tuple[TopicPartition, int], tuple[Chunk, RawRecord]] = {}
        self._ready: dict[Chunk, list[RawRecord]] = {}
        self._empty = asyncio.Event()
        self.on_ended: Callable[[TopicPartition, Collection[int]], object] = lambda tp, offsets: None
        """Called with records whose handlers have ended, for a member that keeps their keys until then."""
        self.in_hand = 0
        """Number of records whose accept was asked for, and whose handlers have not ended."""

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks."""
        self._waiting.extend(chunks)
        self.look()

    def look(self) -> None:
        """Accept as many records as handlers have room for."""
        room = self._agent.options.records_at_once - self.in_hand
        while room > 0 and self._waiting:
            chunk = self._waiting[0]
            taken = [chunk.records.pop() for _ in range(min(room, len(chunk.records)))]
            if not taken:
                if not chunk.open():  # unreadable records come as another chunk
                    self._waiting.popleft()
                continue
            room -= len(taken)
            self._accept(chunk, taken)

    def _accept(self, chunk: Chunk, records: list[RawRecord]) -> None:
        self.in_hand += len(records)
        offsets = [record.offset for record in records]
        self._asked.update({(chunk.tp, record.offset): (chunk, record) for record in records})
        self._held.decided(chunk, offsets)
        if self._spans is not None:
            self._spans.note_created(chunk, records)
        for attempt, some in chunk.counted(offsets):
            self._acks.accept((chunk.tp, chunk.generation), some, attempt)

    def confirmed(self, ack: AckRange, result: AckResult, how: str) -> None:
        """Handle an answer: accepted records may run; refused records do not run here."""
        asked = [self._asked.pop((result.tp, offset), None) for offset in range(ack.first, ack.last + 1)]
        found = [one for one in asked if one is not None]
        if how != "accepted":
            self.ended(result.tp, [record.offset for _, record in found])
            return
        if found and not self._ready:
            asyncio.get_running_loop().call_soon(self._begin)
        for chunk, record in found:
            self._ready.setdefault(chunk, []).append(record)

    def _begin(self) -> None:
        ready, self._ready = self._ready, {}
        self._feed([chunk.accepted_first(records) for chunk, records in ready.items()])

    def ended(self, tp: TopicPartition, offsets: Collection[int]) -> None:
        """Note records whose handler has ended, or that get no handler."""
        self.in_hand -= len(offsets)
        if not self.in_hand:
            self._empty.set()
        if offsets:
            self.on_ended(tp, offsets)
            asyncio.get_running_loop().call_soon(self.look)

    async def wait_empty(self) -> None:
        """Wait until no accepted record waits for the end of its handler."""
        while self.in_hand:
            self._empty.clear()
            await self._empty.wait()
