"""Records that an agent holds, and their locks: acquired, not decided yet, and renewed while handlers run.

`HeldRecords` counts the records and releases those that no handler has begun; `LockKeeper` renews their locks and takes
waiting records away from handlers that are stuck. Both run on the service loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from flowshare.agents.feed.ack_sender import AckSender
from flowshare.agents.feed.acknowledgements import Key, unrun_range
from flowshare.agents.feed.members import Member
from flowshare.agents.feed.prefetch import Prefetch
from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.handler.chains import Chains
from flowshare.agents.handler.chunk import Chunk, Unread, runs
from flowshare.agents.run.pool import Pool
from flowshare.agents.run.stats import AgentStats
from flowshare.client.session.ranges import Fetched
from flowshare.clock import Clock, TimerHandle
from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.messages import TopicPartition
from flowshare.tasks import cancelled

logger = logging.getLogger("flowshare.agents")
TICK_S: Final = 0.25
"""Seconds between two looks at locks and stuck handlers while records are held."""
RENEW_LEFT: Final = 0.6
"""Part of a lock's time that is left when the lock is renewed."""
LOCK_S: Final = 30.0
"""Seconds assumed for the lock's time until the server tells it."""
LAPSE_LEFT: Final = 0.05
"""Part of a lock's time that is left when the lock is given up, with an order: cancelled handlers need a moment, and an
answer was under way for another one."""
_Held = concurrent.futures.Future[bool]


class HeldRecords:
    """The chunks of one agent, and their ways out other than a handler's outcome: released, or lost."""

    def __init__(
        self,
        acks: AckSender,
        stats: AgentStats,
        feed: Callable[[list[Chunk]], None],
        freed: Callable[[], object],
    ) -> None:
        """feed: hands chunks (again) to the pool. freed: as the attribute."""
        self.live: dict[Chunk, None] = {}
        self.outstanding = 0
        """Number of records that are held and not decided yet."""
        self.generation = 0
        """The member's generation when its held records were last checked."""
        self.keep_from = 0
        """Records at this attempt or a later one are not released unrun (0: all are): a release would cost the last
        attempt."""
        self.on_lost: Callable[[Chunk, set[int]], object] | None = None
        """With an order: called with lost locks, so that no handler goes on without its lock."""
        self._holds: Callable[[TopicPartition, int], bool] = lambda tp, generation: True
        self._acks = acks
        self._stats = stats
        self._feed = feed
        self.added: Callable[[], object] = lambda: None
        """Called whenever one more chunk is held: its locks are to be watched from then on."""
        self.freed = freed
        """Called whenever fewer records are held, or more may be."""
        self._empty = asyncio.Event()

    @property
    def buffered(self) -> int:
        """Number of records that no handler has begun. Any thread."""
        return sum(chunk.waiting for chunk in list(self.live))

    @property
    def arrived_s(self) -> float | None:
        """Arrival of the oldest held record, by the monotonic clock in seconds; None: no record is held. Any thread."""
        return min((chunk.arrived for chunk in list(self.live)), default=None)

    @property
    def followers(self) -> int:
        """Number of buffered records that wait for the record before them in their key."""
        return sum(chunk.chains.waiting for chunk in self.live if chunk.chains is not None)

    @property
    def plain_bytes(self) -> int:
        """Size in bytes, without compression, of the record batches that the chunks were read from."""
        return sum(chunk.plain_bytes for chunk in self.live)

    def add(self, chunk: Chunk) -> None:
        """Hold one more chunk. With an order, its redelivered records are lost to earlier chunks."""
        if chunk.fence is not None and (again := chunk.redelivered()):
            for earlier in [one for one in self.live if one.tp == chunk.tp]:
                self.lose(earlier, [offset for offset in earlier.unfinished() if offset in again])
        self.live[chunk] = None
        self.outstanding += chunk.remaining
        self.added()

    def decided(self, chunk: Chunk, offsets: list[int]) -> None:
        """Note decided records, whose acknowledgement follows; records that wait behind them are released in the same
        request."""
        chunk.settled += offsets
        self._less(chunk, len(offsets))
        if chunk.chains is not None and (rest := chunk.chains.behind(offsets)):
            self._release(chunk, sorted(record.offset for record in rest))

    async def wait_empty(self) -> None:
        """Wait until no record is held."""
        while self.outstanding:
            self._empty.clear()
            await self._empty.wait()

    def without_lost(self, chunk: Chunk, offsets: list[int]) -> list[int]:
        """Return the offsets whose locks are still held; outcomes of the others are discarded, counted and logged."""
        lost = [offset for offset in offsets if offset in chunk.lost]
        if lost:
            logger.warning(
                "agent=%s record=%s-%d@%s: finished after the lock was lost, the outcome is discarded; "
                "the record runs again elsewhere",
                chunk.agent,
                chunk.topic,
                chunk.partition,
                ", ".join(str(offset) for offset in lost[:5]) + (f" and {len(lost) - 5} more" if lost[5:] else ""),
            )
        self._stats.lock_lost += len(lost)
        return [offset for offset in offsets if offset not in chunk.lost] if lost else offsets

    # --- giving back --------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Release records that no handler has begun, without costing an attempt."""
        for chunk in list(self.live):
            if chunk.chains is not None:  # heads that nobody began, and records that wait behind running ones
                self._release(chunk, sorted(record.offset for record in chunk.chains.take(chunk.records)))
                continue
            unread = chunk.take_unread()
            waiting = _take_waiting(chunk)
            keep_from = self.keep_from or math.inf
            kept = [record for record in waiting if chunk.attempt(record.offset) >= keep_from]
            offsets = [record.offset for record in waiting if chunk.attempt(record.offset) < keep_from]
            if unread is not None and unread.lazy.delivery_count >= keep_from:
                chunk.put_unread(unread)
            else:
                offsets += _offsets(unread)
            if kept or chunk.waiting:
                self._put_back(chunk, kept)
            self._release(chunk, offsets)

    def _release(self, chunk: Chunk, offsets: list[int]) -> None:
        """Release these offsets (sorted) without costing an attempt."""
        if not offsets:
            return
        self.decided(chunk, offsets)
        if self._holds(chunk.tp, chunk.generation):
            key = (chunk.tp, chunk.generation)
            for first, last, attempt in chunk.counted_runs([offset for offset in offsets if offset not in chunk.lost]):
                self._acks.acknowledge(key, unrun_range(first, last, attempt))

    def take_unrun(self) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Return ranges that no handler has begun, for the closing of the session, which releases them."""
        unrun: dict[TopicPartition, list[tuple[int, int]]] = {}
        for chunk in list(self.live):
            if chunk.chains is not None:
                offsets = sorted(record.offset for record in chunk.chains.take(chunk.records))
            else:
                unread = chunk.take_unread()
                offsets = [record.offset for record in _take_waiting(chunk)] + _offsets(unread)
            if offsets and self._holds(chunk.tp, chunk.generation):
                unrun.setdefault(chunk.tp, []).extend(runs(offsets))
        return unrun

    # --- losing -------------------------------------------------------------------------------------------------

    def lose(self, chunk: Chunk, offsets: list[int]) -> None:
        """Note lost locks: running records are discarded when they end, waiting ones are dropped."""
        lost = set(offsets) - set(chunk.settled) - chunk.settling
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
        if self.on_lost is not None:
            self.on_lost(chunk, lost)
        if chunk.chains is not None:
            self._lose_in_order(chunk, chunk.chains, lost)
            return
        unread = chunk.take_unread()
        waiting = _take_waiting(chunk)
        dropped = [record.offset for record in waiting if record.offset in lost]
        kept = [record for record in waiting if record.offset not in lost]
        unread_lost = lost.intersection(_offsets(unread))
        dropped += sorted(unread_lost)
        if unread is not None and not unread_lost:
            chunk.put_unread(unread)
        self._stats.lock_lost += len(dropped)
        self.decided(chunk, dropped)
        if unread is not None and 0 < len(unread_lost) < unread.lazy.waiting:
            unread.failed(chunk, unread.lazy.first)  # the rest is read like new, without lost records
        if kept or chunk.waiting:
            self._put_back(chunk, kept)

    def _lose_in_order(self, chunk: Chunk, chains: Chains, lost: set[int]) -> None:
        """Release the records that wait behind a lost record, also if the lost record is running."""
        loss = chains.lose(lost, chunk.records)
        self._stats.lock_lost += len(loss.lost)
        self.decided(chunk, [record.offset for record in loss.lost])
        self._release(chunk, sorted(record.offset for record in loss.back))
        if loss.kept:
            self._put_back(chunk, loss.kept)

    def holds(self, chunk: Chunk | Fetched) -> bool:
        """Tell if records acquired with the chunk can still be this member's."""
        return self._holds(chunk.tp, chunk.generation)

    def follow(self, member: Member) -> None:
        """Ask this member from now on which records are held."""
        self.generation = member.generation
        self._holds = member.holds

    def look(self, member: Member) -> None:
        """Give up records of ended connections or moved partitions: others have them now."""
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
        self.freed()
        if chunk.remaining == 0:
            self.live.pop(chunk, None)
            if chunk.sends:
                logger.error(
                    "agent=%s record=%s: its delivery sent something (delivery.send) after the handler had ended, and "
                    "that is not produced: await what sends before the handler returns",
                    chunk.agent,
                    chunk.at(next(iter(chunk.sends))),
                )
        if self.outstanding == 0:
            self._empty.set()


def _offsets(unread: Unread | None) -> list[int]:
    return [] if unread is None else list(range(unread.lazy.first, unread.lazy.last + 1))


def _offsets_in(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def _take_waiting(chunk: Chunk) -> list[RawRecord]:
    """Take records that were read and that no handler has begun, in offset order; the pool may pop at the same time, in
    another thread."""
    taken: list[RawRecord] = []
    try:
        while True:
            taken.append(chunk.records.pop())
    except IndexError:
        return taken


class LockKeeper:
    """Keeper of one agent's locks; on the service loop. No timer runs while nothing is held."""

    def __init__(
        self, agent: ShareAgent, *, pool: Pool, held: HeldRecords, acks: AckSender, prefetch: Prefetch, clock: Clock
    ) -> None:
        self._agent = agent
        self._pool = pool
        self._held = held
        self._acks = acks
        self._prefetch = prefetch
        self._clock = clock
        self._member: Member | None = None
        self._ticker: TimerHandle | None = None
        self._renewing: dict[Key, asyncio.Task[bool]] = {}
        """Renewals by partition and generation: a leader that stands still holds up no other's."""
        self._single: set[asyncio.Task[None]] = set()

    def start(self, member: Member) -> None:
        """Begin, for this member."""
        self._member = member

    async def stop(self) -> None:
        """End all renewals."""
        self._member = None
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        await cancelled(*self._single, *self._renewing.values())

    def watch(self) -> None:
        """Look at the held records from time to time."""
        if self._ticker is None and self._member is not None:
            self._ticker = self._clock.call_later(TICK_S, self._tick)

    def renew_one(self, chunk: Chunk, offset: int, soon: Callable[[Callable[[], object]], None]) -> _Held:
        """Renew one lock now, from any thread; `soon` runs a function on the service loop."""
        future: concurrent.futures.Future[bool] = concurrent.futures.Future()

        async def renew() -> None:
            # With an order nothing runs past the chunk's deadline, so all of the chunk is renewed together.
            offsets = [offset] if chunk.fence is None else chunk.renewable()
            lost, deadline = await self._acks.renew((chunk.tp, chunk.generation), chunk.counted_runs(offsets))
            gone = _offsets_in(lost)
            if chunk.fence is not None:
                self._renewed(chunk, offsets, gone, deadline)
            if not future.done():
                future.set_result(bool(deadline) and offset not in gone)

        def begin() -> None:
            task = asyncio.ensure_future(renew())
            self._single.add(task)
            task.add_done_callback(self._single.discard)

        soon(begin)
        return future

    async def renew_all(self) -> bool:
        """Renew all held locks now; return True if each is renewed or known to be lost. Without renewals, locks that
        have lapsed by the clock count as lost."""
        if self._agent.options.renew:
            await asyncio.gather(*self._renewing.values(), return_exceptions=True)
            self._renew(list(self._held.live), self._lock_s())
            return all(await asyncio.gather(*self._renewing.values()))
        now = self._clock.monotonic()
        for chunk in [chunk for chunk in self._held.live if chunk.deadline <= now]:
            self._held.lose(chunk, chunk.unfinished())
        return True

    def _tick(self) -> None:
        self._ticker = None
        member = self._member
        if member is None or not self._held.live:
            return
        now = self._clock.monotonic()
        self._held.look(member)
        self._look_for_stuck_handlers(now)
        if self._agent.options.renew:
            lock_s = self._lock_s()
            self._renew([chunk for chunk in self._held.live if chunk.deadline - now < lock_s * RENEW_LEFT], lock_s)
        wait_s = TICK_S if self._agent.options.order is None else self._give_up_lapsed(now)
        self._ticker = self._clock.call_later(wait_s, self._tick)

    def _give_up_lapsed(self, now: float) -> float:
        """Give up locks that are about to lapse, whatever the server says later; return seconds until the next look.

        With an order, the key's next record begins elsewhere after the lapse, and no handler may run then.
        """
        spare_s = self._lock_s() * LAPSE_LEFT
        for chunk in [chunk for chunk in self._held.live if chunk.deadline - spare_s <= now]:
            self._held.lose(chunk, chunk.unfinished())
        return min([TICK_S, *(chunk.deadline - spare_s - now for chunk in self._held.live if chunk.renewable())])

    def _look_for_stuck_handlers(self, now: float) -> None:
        """Release waiting records when no runner gets free, or when nobody takes them (the loop is blocked)."""
        batch = self._agent.options.batch
        busy = self._pool.busy
        # A record that waits for the one before it does not wait for a runner.
        full = busy >= len(self._pool.runners) or (batch is None and self._held.buffered > self._held.followers)
        if self._prefetch.still_running(busy * (batch.size if batch else 1), now, full=full):
            self._held.give_back()
        elif self._prefetch.stuck and not full:
            self._pool.probe(self._goes_on)

    def _goes_on(self) -> None:
        """Go on as the handlers' loop is no longer blocked: free handlers may get records."""
        self._prefetch.goes_on()
        self._held.freed()

    def _renew(self, chunks: list[Chunk], lock_s: float) -> None:
        """Renew these chunks' locks, but for partitions with a renewal under way."""
        by_key: dict[Key, list[Chunk]] = {}
        for chunk in chunks:
            key = chunk.tp, chunk.generation
            if key not in self._renewing and self._held.holds(chunk):
                by_key.setdefault(key, []).append(chunk)
        abandoned = self._pool.abandoned(lock_s) if by_key else set[tuple[int, int]]()
        for key, some in by_key.items():
            task = asyncio.create_task(self._renew_partition(some, abandoned), name=f"renew {self._agent.name}")
            self._renewing[key] = task
            task.add_done_callback(partial(self._renewal_ended, key))

    def _renewal_ended(self, key: Key, _: object) -> None:
        del self._renewing[key]

    async def _renew_partition(self, chunks: list[Chunk], abandoned: set[tuple[int, int]]) -> bool:
        """Renew the locks of one partition's chunks; True if the fate of each lock is known."""
        if chunks[0].fence is not None:
            return await self._renew_together(chunks, abandoned)
        known = True
        for chunk in chunks:  # without an order, one lost lock fails its whole request
            known = await self._renew_together([chunk], abandoned) and known
        return known

    async def _renew_together(self, chunks: list[Chunk], abandoned: set[tuple[int, int]]) -> bool:
        """Renew locks of one partition and generation; return True if the fate of each lock is known."""
        held: list[tuple[Chunk, list[int]]] = []
        for chunk in chunks:
            offsets = [offset for offset in chunk.renewable() if (id(chunk), offset) not in abandoned]
            if offsets:
                held.append((chunk, offsets))
        if not held:
            return True
        key = chunks[0].tp, chunks[0].generation
        said = sorted(run for chunk, offsets in held for run in chunk.counted_runs(offsets))
        lost, deadline = await self._acks.renew(key, said)
        gone = _offsets_in(lost)
        known = [self._renewed(chunk, offsets, gone, deadline) for chunk, offsets in held]
        return all(known)

    def _renewed(self, chunk: Chunk, offsets: list[int], gone: Collection[int], deadline: float) -> bool:
        """Take in the answer to a chunk's renewal; True if the fate of each of its locks is known."""
        if deadline:
            chunk.deadline = deadline
        lost_here = [offset for offset in offsets if offset in gone]
        self._held.lose(chunk, lost_here)
        return bool(deadline) or len(lost_here) == len(offsets)

    def _lock_s(self) -> float:
        told_ms = 0 if self._member is None else self._member.lock_timeout_ms
        return told_ms / 1000 if told_ms > 0 else LOCK_S
