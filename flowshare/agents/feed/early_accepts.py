"""At most once: records are accepted before their handlers begin, so that none runs twice, whoever dies and when.

    fetched, in hand as ever --room--> accept asked --confirmed--> handed to the pool --outcome--> done
         │ given back, lost               │ refused, or not known
         ▼                                ▼
      runs elsewhere                 not run here

Invariants:
1. A handler begins a record only after its accept was confirmed; nothing that was asked for is asked for again.
2. No more are accepted than handlers run at once (`AgentOptions.records_at_once`), from when the accept is asked for to
   the handler's outcome. So a process that dies loses at most what its handlers had, or were about to get.
3. What is not accepted is held as by any agent: its locks are renewed, it goes back unrun when the agent stops.

Where it is not known whether an accept was made the record is not run: it comes again if it was not.
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
    from flowshare.agents.feed.acknowledgements import AckRange
    from flowshare.agents.feed.locks import HeldRecords
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.telemetry.settling import SettleSpans
    from flowshare.client.session.ranges import AckResult
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.messages import TopicPartition

logger = logging.getLogger("flowshare.agents")


class EarlyAccepts:
    """Stands between what an agent holds and its pool; on the service loop."""

    def __init__(
        self,
        agent: ShareAgent,
        *,
        held: HeldRecords,
        acks: AckSender,
        feed: Callable[[list[Chunk]], object],
        spans: SettleSpans | None = None,
    ) -> None:
        """feed: hands chunks of accepted records to the pool. spans: what tells of accepts; None: nothing does."""
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
        """Told of them then: whoever keeps their keys until their handlers have ended."""
        self.in_hand = 0
        """Records whose accept was asked for, and whose handlers have not ended."""

    def add(self, chunks: Iterable[Chunk]) -> None:
        """More to do."""
        self._waiting.extend(chunks)
        self.look()

    def look(self) -> None:
        """Accept what handlers have room for."""
        room = self._agent.options.records_at_once - self.in_hand
        while room > 0 and self._waiting:
            chunk = self._waiting[0]
            taken = [chunk.records.pop() for _ in range(min(room, len(chunk.records)))]
            if not taken:
                if not chunk.open():  # what cannot be read comes as another chunk
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
        """An acknowledgement was answered: what it accepted may run, what it did not is run by nobody here."""
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
        """These have their handler's outcome, or get no handler."""
        self.in_hand -= len(offsets)
        if not self.in_hand:
            self._empty.set()
        if offsets:
            self.on_ended(tp, offsets)
            asyncio.get_running_loop().call_soon(self.look)

    async def wait_empty(self) -> None:
        """Wait until no accepted record is left to its handler."""
        while self.in_hand:
            self._empty.clear()
            await self._empty.wait()
