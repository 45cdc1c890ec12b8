"""The feeder: everything of an agent that happens on the service loop.

It fetches as much as the pool will finish soon, decodes in bulk, hands chunks to the pool, renews locks, and turns
what the pool finished into acknowledgements. Fetching goes on while records are in flight: a slow record holds up
nothing but its own slot. Per record nothing is done here on the way of a plain accept: offsets come and go in lists.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random as random_module
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.acks import GAP, REJECT, RELEASE, AckSender, Confirmed
from flowshare.agents.chunk import Chunk, runs
from flowshare.agents.diagnose import StallWatch
from flowshare.agents.garbage import collector_paused
from flowshare.agents.leader import Leadership
from flowshare.agents.outcomes import Kind, Outcome
from flowshare.agents.prefetch import Prefetch
from flowshare.agents.ratelimit import TokenBucket
from flowshare.agents.settle import Settler
from flowshare.agents.setup import prepare
from flowshare.client.errors import ClientError, Closed
from flowshare.client.member import ShareMember
from flowshare.protocol.batches import DecodeError, decode
from flowshare.protocol.decoding import DecodedRecord
from flowshare.share.types import AcquireMode

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.pool import Handed, Pool
    from flowshare.agents.runtime import Observer
    from flowshare.agents.stats import AgentStats
    from flowshare.client.admin import ShareAdmin
    from flowshare.client.member import Fetched
    from flowshare.client.producer import Producer
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import Connection

logger = logging.getLogger("flowshare.agents")

TICK_S: Final = 0.25
"""How often locks and stuck handlers are looked at while records are held."""
RENEW_LEFT: Final = 0.6
"""Locks are renewed when this part of their time is left."""
FETCH_BYTES_MAX: Final = 16 << 20
FETCH_WAIT_S: Final = 0.5
FAILED_WAIT_S: Final = 1.0
UNCONFIRMED_MAX: Final = 50_000


class Feeder:
    """One agent's member, its buffer and its acknowledgements."""

    def __init__(
        self,
        agent: ShareAgent,
        pool: Pool,
        *,
        clock: Clock,
        service_loop: asyncio.AbstractEventLoop,
        handler_loop: asyncio.AbstractEventLoop,
        connect: Callable[[], Awaitable[Connection]],
        producer: Producer,
        admin: ShareAdmin,
        random: random_module.Random,
        stats: AgentStats,
        observer: Observer | None,
    ) -> None:
        options = agent.options
        now = clock.monotonic()
        self.agent = agent
        self.paused = False
        self.outstanding = 0
        """Records that are held and not decided yet."""
        self._pool = pool
        self._clock = clock
        self._service_loop = service_loop
        self._handler_loop = handler_loop
        self._connect = connect
        self._admin = admin
        self._stats = stats
        self._observer = observer
        self._told: dict[tuple[Any, int], tuple[int, str, float]] = {}
        self._acks = AckSender(agent.name, clock, stats, self._observe if observer is not None else None)
        self._settler = Settler(
            agent,
            clock=clock,
            producer=producer,
            acks=self._acks,
            random=random,
            stats=stats,
            on_decided=self._decided,
        )
        self._prefetch = Prefetch(
            options.records_at_once, fixed_buffer=options.batch.size if options.batch else 0, now=now
        )
        self._bucket = None if options.rate_limit is None else TokenBucket(options.rate_limit, now)
        self._live: dict[Chunk, None] = {}
        self._member: ShareMember | None = None
        self._generation = 0
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self._fetching: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._ticker: TimerHandle | None = None
        self._leadership = Leadership(agent, clock=clock, admin=admin)
        self._stall = StallWatch(agent, clock=clock, admin=admin)
        self._trouble: str | None = None
        self._renewals: set[asyncio.Future[None]] = set()
        pool.finished = self._finished
        pool.renew = self._renew_one

    # --- what is seen from outside ------------------------------------------------------------------------------

    @property
    def member_id(self) -> str | None:
        """Id of the member; None before it joined."""
        return None if self._member is None else self._member.member_id

    @property
    def target(self) -> int:
        """How many records to hold in all, as the handlers' speed asks for."""
        return self._prefetch.target

    @property
    def buffered(self) -> int:
        """Records that no handler has begun."""
        return sum(len(chunk.records) for chunk in list(self._live))

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing waits for its acknowledgement."""
        return self.outstanding == 0 and self._acks.unconfirmed == 0

    def problems(self) -> list[str]:
        """Why the agent is not healthy."""
        return [text for text in (self._trouble, self._settler.dead_letter_trouble) if text]

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare topics and group, join, begin to fetch."""
        await prepare(self.agent, self._admin)
        member = self._member = ShareMember(
            self._connect, group_id=self.agent.group, topics=self.agent.topics, clock=self._clock
        )
        await member.start()
        self._generation = member.generation
        self._acks.start(member)
        await self._leadership.start(member.member_id)
        self._stall.start(member)
        self._fetching = asyncio.create_task(self._fetch_all(member), name=f"fetch {self.agent.name}")

    def pause(self) -> None:
        """Stop fetching, give back what was not begun. Any thread."""
        self.paused = True
        self._soon(self._give_all_back)

    def resume(self) -> None:
        """Fetch again. Any thread."""
        self.paused = False
        self._soon(self._room.set)

    async def drain(self, timeout_s: float) -> bool:
        """Fetch no more, give back, wait for the handlers; returns whether all finished in time."""
        self._draining = True
        if self._member is not None:
            self._member.wakeup()
        self._room.set()
        self._give_all_back()
        return await self.settle(timeout_s)

    async def settle(self, limit_s: float) -> bool:
        """Wait until nothing is held and everything is acknowledged, `limit_s` seconds at most."""

        async def wait() -> None:
            while self.outstanding:
                self._empty.clear()
                await self._empty.wait()
            await self._acks.settle()

        try:
            await self._clock.wait_for(wait(), limit_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Give back what is left, leave the group."""
        self._draining = True
        self._stall.stop()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for task in (self._fetching, self._renewing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._fetching = self._renewing = None
        unrun: dict[Any, list[tuple[int, int]]] = {}
        for chunk in list(self._live):
            offsets = self._steal(chunk)
            if offsets and chunk.generation == self._generation:
                unrun.setdefault(chunk.tp, []).extend(runs(offsets))
        await self._leadership.stop()
        await self._settler.stop()
        await self._acks.stop()
        member, self._member = self._member, None
        if member is not None:
            await member.close(unrun=unrun)

    # --- fetching -----------------------------------------------------------------------------------------------

    async def _fetch_all(self, member: ShareMember) -> None:
        while (room := await self._wait_for_room()) > 0:
            try:
                fetched = await member.fetch(
                    records_max=room,
                    max_wait_s=FETCH_WAIT_S,
                    bytes_max=FETCH_BYTES_MAX,
                    mode=AcquireMode.RECORD_LIMIT,
                )
            except Closed:
                return
            except ClientError as error:
                self._trouble = f"fetching fails: {error}"
                logger.warning("agent=%s group=%s: %s", self.agent.name, self.agent.group, self._trouble)
                await self._clock.sleep(FAILED_WAIT_S)
                continue
            self._trouble = None
            self._stats.fetches += 1
            if member.generation != self._generation:
                self._lose_all(member.generation)
            if fetched:
                self._take(fetched)
            else:
                self._stall.nothing_fetched(self)

    async def _wait_for_room(self) -> int:
        """How many records to ask for, once it is worth asking; 0 when the agent drains."""
        while True:
            target = self._prefetch.target
            room = target - self.outstanding
            if self._draining:
                return 0
            if not self.paused and room >= max(1, target // 8) and self._acks.unconfirmed < UNCONFIRMED_MAX:
                if self._bucket is None:
                    return room
                tokens = self._bucket.available(self._clock.monotonic())
                if tokens > 0:
                    return min(room, tokens)
                await self._clock.sleep(self._bucket.wait_s())
                continue
            self._room.clear()
            await self._room.wait()

    def _take(self, fetched: Iterable[Fetched]) -> None:
        """Decode what came and hand it on."""
        now = self._clock.monotonic()
        chunks: list[Chunk] = []
        for part in fetched:
            count = sum(last - first + 1 for first, last, _ in part.acquired)
            self._stats.received += count
            if self._bucket is not None:
                self._bucket.take(count)
            chunk = self._chunk(part, now)
            if chunk is not None:
                chunks.append(chunk)
        self._stall.something_fetched()
        if not chunks:
            return
        if self.outstanding == 0:
            self._prefetch.begun(now)
        for chunk in chunks:
            self._live[chunk] = None
            self.outstanding += chunk.remaining
        if self._draining or self.paused:
            self._give_all_back()
            return
        self._tick_later()
        self._feed(chunks)

    def _chunk(self, part: Fetched, now: float) -> Chunk | None:
        """The records of one partition; what needs no handler is acknowledged here."""
        key = (part.tp, part.generation)
        try:
            with collector_paused():
                decoded = decode(part.records, part.acquired)
        except DecodeError as error:
            for first, last, _ in part.acquired:
                self._corrupt(part, key, first, last, str(error))
            return None
        for first, last in decoded.gaps:
            self._acks.other(key, first, last, GAP, "gaps")
        for first, last in decoded.missing:
            self._acks.other(key, first, last, RELEASE, "unrun", unrun=True)
        for first, last, reason in decoded.corrupt:
            self._corrupt(part, key, first, last, reason)
        if not decoded.records:
            return None
        chunk = Chunk(
            self.agent.name,
            part.topic,
            part.tp,
            decoded.records,
            decode=self.agent.decoder(part.topic),
            deadline=part.lock_deadline,
            generation=part.generation,
            arrived=now,
        )
        if self._observer is not None:
            chunk.attempts = {record.offset: record.delivery_count for record in decoded.records}
        if any(count > 1 for _, _, count in part.acquired):
            self._redelivered(chunk)
        return chunk

    def _redelivered(self, chunk: Chunk) -> None:
        """Records whose attempts are used up go to the dead letter unrun: crashes and lapsed locks did that."""
        attempts_max = self.agent.options.retry.max_attempts
        self._stats.redelivered += sum(record.delivery_count > 1 for record in chunk.records)
        dead = [record for record in chunk.records if record.delivery_count > attempts_max]
        if not dead:
            return
        chunk.records = [record for record in chunk.records if record.delivery_count <= attempts_max]
        for record in reversed(dead):
            reason = (
                f"attempts used up ({record.delivery_count} of {attempts_max}) without an outcome: the worker crashed, "
                "was killed, or lost the lock while handling it"
            )
            self._service_loop.call_soon(self._settler.settle, chunk, record, Outcome(Kind.DEAD, None, reason))

    def _corrupt(self, part: Fetched, key: Any, first: int, last: int, reason: str) -> None:
        """Bytes that are no records: nothing to keep in a dead letter but the fact."""
        logger.error(
            "agent=%s record=%s-%d@%d..%d: the stored bytes cannot be read, rejected: %s",
            self.agent.name,
            part.topic,
            part.partition,
            first,
            last,
            reason,
        )
        self._stats.undecodable += last - first + 1
        self._acks.other(key, first, last, REJECT, "rejected")

    def _feed(self, chunks: list[Chunk]) -> None:
        if self._pool.fed_anywhere or self._handler_loop is self._service_loop:
            self._pool.feed(chunks)
        elif not self._handler_loop.is_closed():
            self._handler_loop.call_soon_threadsafe(self._pool.feed, chunks)

    # --- finished work ------------------------------------------------------------------------------------------

    def _finished(self, handed: Handed) -> None:
        """The pool finished records; called on the service loop, in bulk."""
        count = 0
        for chunk, accepted, others in handed:
            count += len(accepted) + len(others)
            if accepted:
                self._accepted(chunk, accepted)
            for record, outcome in others:
                self._settler.settle(chunk, record, outcome)
        self._prefetch.finished(count, self._clock.monotonic())
        self._room.set()

    def _accepted(self, chunk: Chunk, offsets: list[int]) -> None:
        chunk.settled += offsets
        self._less(chunk, len(offsets))
        if chunk.lost:
            offsets = self._without_lost(chunk, offsets)
        if self._observer is not None:
            for offset in offsets:
                self._told[chunk.tp, offset] = (chunk.attempts.get(offset, 0), "", 0.0)
        if offsets:
            self._acks.accept((chunk.tp, chunk.generation), offsets)

    def _decided(self, chunk: Chunk, record: DecodedRecord, reason: str, delay_s: float) -> None:
        """The settler is about to acknowledge a record."""
        offset = record.offset
        chunk.settled.append(offset)
        self._less(chunk, 1)
        if offset in chunk.lost:
            self._without_lost(chunk, [offset])
        elif self._observer is not None:
            self._told[chunk.tp, offset] = (record.delivery_count, reason, delay_s)
        self._room.set()

    def _without_lost(self, chunk: Chunk, offsets: list[int]) -> list[int]:
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

    def _less(self, chunk: Chunk, count: int) -> None:
        chunk.remaining -= count
        self.outstanding -= count
        if chunk.remaining == 0:
            self._live.pop(chunk, None)
        if self.outstanding == 0:
            self._empty.set()

    def _observe(self, confirmed: Confirmed) -> None:
        from flowshare.agents.runtime import Settled

        assert self._observer is not None
        for offset in range(confirmed.ack.first, confirmed.ack.last + 1):
            attempt, reason, delay_s = self._told.pop((confirmed.tp, offset), (0, "", 0.0))
            self._observer(
                Settled(
                    self.agent.name,
                    confirmed.topic,
                    confirmed.tp.partition,
                    offset,
                    attempt,
                    confirmed.how,
                    reason,
                    delay_s,
                )
            )

    # --- giving back --------------------------------------------------------------------------------------------

    def _give_all_back(self) -> None:
        """Records that no handler has begun go back, without costing an attempt."""
        for chunk in list(self._live):
            self._give_back(chunk)
        self._room.set()

    def _give_back(self, chunk: Chunk) -> None:
        offsets = self._steal(chunk)
        if not offsets:
            return
        chunk.settled += offsets
        self._less(chunk, len(offsets))
        if chunk.generation == self._generation:
            key = (chunk.tp, chunk.generation)
            for first, last in runs([offset for offset in offsets if offset not in chunk.lost]):
                self._acks.other(key, first, last, RELEASE, "unrun", unrun=True)

    def _steal(self, chunk: Chunk) -> list[int]:
        """Take what no handler has begun, in offset order; the pool may pop at the same time, in another thread."""
        offsets: list[int] = []
        try:
            while True:
                offsets.append(chunk.records.pop().offset)
        except IndexError:
            return offsets

    # --- locks --------------------------------------------------------------------------------------------------

    def _tick_later(self) -> None:
        if self._ticker is None and not self._draining:
            self._ticker = self._clock.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """While records are held: renew locks in time, take buffered records away from stuck handlers."""
        self._ticker = None
        if not self._live:
            return
        now = self._clock.monotonic()
        if self._member is not None and self._member.generation != self._generation:
            self._lose_all(self._member.generation)
        if self._prefetch.still_running(self._pool.busy * self._per_slot(), now):
            self._give_all_back()
        if self.agent.options.renew and (self._renewing is None or self._renewing.done()):
            due = [chunk for chunk in self._live if chunk.deadline - now < self._lock_s() * RENEW_LEFT]
            if due:
                self._renewing = asyncio.create_task(self._renew(due), name=f"renew {self.agent.name}")
        self._ticker = self._clock.call_later(TICK_S, self._tick)

    def _per_slot(self) -> int:
        batch = self.agent.options.batch
        return 1 if batch is None else batch.size

    def _lock_s(self) -> float:
        lock_ms = 0 if self._member is None else self._member.lock_timeout_ms
        return lock_ms / 1000 if lock_ms > 0 else 30.0

    async def _renew(self, chunks: list[Chunk]) -> None:
        abandoned = self._pool.abandoned(self._lock_s())
        for chunk in chunks:
            held = [offset for offset in chunk.unfinished() if (id(chunk), offset) not in abandoned]
            if held and chunk.generation == self._generation:
                lost, deadline = await self._acks.renew((chunk.tp, chunk.generation), runs(held))
                if deadline:
                    chunk.deadline = deadline
                self._lose(chunk, [offset for first, last in lost for offset in range(first, last + 1)])

    def _lose(self, chunk: Chunk, offsets: list[int]) -> None:
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
        taken = []
        try:
            while True:
                taken.append(chunk.records.pop())
        except IndexError:
            pass
        kept = [record for record in taken if record.offset not in lost]
        dropped = len(taken) - len(kept)
        chunk.settled += [record.offset for record in taken if record.offset in lost]
        self._stats.lock_lost += dropped
        self._less(chunk, dropped)
        if kept:
            chunk.records.extend(reversed(kept))
            self._feed([chunk])

    def _lose_all(self, generation: int) -> None:
        """The connection was lost: the server gave everything that was held to others."""
        self._generation = generation
        for chunk in list(self._live):
            if chunk.generation != generation:
                self._lose(chunk, chunk.unfinished())
        self._room.set()

    def _renew_one(self, chunk: Chunk, offset: int) -> concurrent.futures.Future[bool]:
        """`Delivery.renew`; any thread."""
        future: concurrent.futures.Future[bool] = concurrent.futures.Future()

        async def renew() -> None:
            lost, deadline = await self._acks.renew((chunk.tp, chunk.generation), [(offset, offset)])
            if not future.cancelled():
                future.set_result(bool(deadline) and not lost)

        def begin() -> None:
            task = asyncio.ensure_future(renew())
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)

        self._soon(begin)
        return future

    def _soon(self, callback: Callable[[], object]) -> None:
        if not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(callback)
