"""What an agent holds: chunks with records that are acquired and not decided yet; on the service loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowshare.agents.acks import RELEASE, AckSender
from flowshare.agents.chunk import Chunk, Unread, runs

if TYPE_CHECKING:
    from flowshare.agents.pair import Member
    from flowshare.agents.stats import AgentStats
    from flowshare.client.ranges import Fetched
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.messages import TopicPartition

logger = logging.getLogger("flowshare.agents")


class Holdings:
    """The chunks of one agent, and the ways out of them other than a handler's outcome: given back, or lost."""

    def __init__(
        self, acks: AckSender, stats: AgentStats, feed: Callable[[list[Chunk]], None], room: asyncio.Event
    ) -> None:
        """feed: hands chunks (again) to the pool. room: set whenever less is held than before."""
        self.live: dict[Chunk, None] = {}
        self.outstanding = 0
        """Records that are held and not decided yet."""
        self.generation = 0
        """The member's, when it was last asked what it still holds."""
        self.keep_from = 0
        """Records at this attempt or a later one are not given back unrun (0: all are): it would cost the last one."""
        self._holds: Callable[[TopicPartition, int], bool] = _always
        self._acks = acks
        self._stats = stats
        self._feed = feed
        self._room = room
        self._empty = asyncio.Event()

    @property
    def buffered(self) -> int:
        """Records that no handler has begun. Any thread."""
        return sum(chunk.waiting for chunk in list(self.live))

    @property
    def plain_bytes(self) -> int:
        """What the record batches that chunks were read from take without compression."""
        return sum(chunk.plain_bytes for chunk in self.live)

    def add(self, chunk: Chunk) -> None:
        """Hold one more chunk."""
        self.live[chunk] = None
        self.outstanding += chunk.remaining

    def decided(self, chunk: Chunk, offsets: list[int]) -> None:
        """These are decided: what follows is their acknowledgement."""
        chunk.settled += offsets
        self._less(chunk, len(offsets))

    async def wait_empty(self) -> None:
        """Wait until nothing is held."""
        while self.outstanding:
            self._empty.clear()
            await self._empty.wait()

    def without_lost(self, chunk: Chunk, offsets: list[int]) -> list[int]:
        """The offsets whose locks are still held; the outcomes of the others are discarded, counted and logged."""
        lost = [offset for offset in offsets if offset in chunk.lost]
        for offset in lost:
            logger.warning(
                "agent=%s record=%s-%d@%d: finished after its lock was lost, the outcome is discarded; "
                "the record runs again elsewhere",
                chunk.agent,
                chunk.topic,
                chunk.partition,
                offset,
            )
        self._stats.lock_lost += len(lost)
        return [offset for offset in offsets if offset not in chunk.lost] if lost else offsets

    # --- giving back --------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Records that no handler has begun go back, without costing an attempt."""
        for chunk in list(self.live):
            unread = chunk.take_unread()
            waiting = _steal(chunk)
            kept: list[RawRecord] = []
            if self.keep_from:
                kept = [record for record in waiting if chunk.attempt(record.offset) >= self.keep_from]
                waiting = [record for record in waiting if chunk.attempt(record.offset) < self.keep_from]
            offsets = [record.offset for record in waiting]
            if unread is not None and self.keep_from and unread.later.delivery_count >= self.keep_from:
                chunk.put_unread(unread)
                self._put_back(chunk, kept)
            else:
                offsets += _offsets(unread)
                if kept:
                    self._put_back(chunk, kept)
            if not offsets:
                continue
            self.decided(chunk, offsets)
            if self._holds(chunk.tp, chunk.generation):
                for first, last in runs([offset for offset in offsets if offset not in chunk.lost]):
                    self._acks.other((chunk.tp, chunk.generation), first, last, RELEASE, "unrun", unrun=True)

    def take_unrun(self) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Ranges that no handler has begun, for the closing of the session, which gives them back."""
        unrun: dict[TopicPartition, list[tuple[int, int]]] = {}
        for chunk in list(self.live):
            unread = chunk.take_unread()
            offsets = [record.offset for record in _steal(chunk)] + _offsets(unread)
            if offsets and self._holds(chunk.tp, chunk.generation):
                unrun.setdefault(chunk.tp, []).extend(runs(offsets))
        return unrun

    # --- losing -------------------------------------------------------------------------------------------------

    def lose(self, chunk: Chunk, offsets: list[int]) -> None:
        """The locks of these are gone: what runs is discarded when it ends, what waits is dropped."""
        lost = set(offsets) - set(chunk.settled)
        if not lost:
            return
        logger.warning(
            "agent=%s record=%s-%d: %d locks are lost: %s",
            chunk.agent,
            chunk.topic,
            chunk.partition,
            len(lost),
            ", ".join(f"{first}..{last}" for first, last in runs(sorted(lost))[:5]),
        )
        chunk.lost |= lost
        unread = chunk.take_unread()
        waiting = _steal(chunk)
        dropped = [record.offset for record in waiting if record.offset in lost]
        kept = [record for record in waiting if record.offset not in lost]
        unread_lost = lost.intersection(_offsets(unread))
        if unread is not None and not unread_lost:
            chunk.put_unread(unread)
        elif unread is not None:
            # What is left of it is read like new, without what is lost.
            dropped += sorted(unread_lost)
        self._stats.lock_lost += len(dropped)
        self.decided(chunk, dropped)
        if unread is not None and unread_lost and len(unread_lost) < unread.later.waiting:
            unread.failed(chunk, unread.later.first)
        if kept or chunk.waiting:
            self._put_back(chunk, kept)

    def holds(self, chunk: Chunk | Fetched) -> bool:
        """Whether what was acquired with this can still be this member's."""
        return self._holds(chunk.tp, chunk.generation)

    def follow(self, member: Member) -> None:
        """From now on `member` says what is held."""
        self.generation = member.generation
        self._holds = member.holds

    def look(self, member: Member) -> None:
        """Connections may have ended, partitions may have moved: what came over them was given to others."""
        if member.generation == self.generation:
            return
        self.follow(member)
        for chunk in list(self.live):
            if not self.holds(chunk):
                self.lose(chunk, chunk.unfinished())

    def _put_back(self, chunk: Chunk, records: list[RawRecord]) -> None:
        chunk.records.extend(reversed(records))
        self._feed([chunk])

    def _less(self, chunk: Chunk, count: int) -> None:
        chunk.remaining -= count
        self.outstanding -= count
        self._room.set()
        if chunk.remaining == 0:
            self.live.pop(chunk, None)
        if self.outstanding == 0:
            self._empty.set()


def _always(tp: TopicPartition, generation: int) -> bool:
    del tp, generation
    return True


def _offsets(unread: Unread | None) -> list[int]:
    return [] if unread is None else list(range(unread.later.first, unread.later.last + 1))


def _steal(chunk: Chunk) -> list[RawRecord]:
    """Take what was read and no handler has begun, in offset order; the pool may pop at the same time, in another
    thread."""
    taken: list[RawRecord] = []
    try:
        while True:
            taken.append(chunk.records.pop())
    except IndexError:
        return taken
