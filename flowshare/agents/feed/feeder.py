"""The feeder: everything of an agent that happens on the service loop.

It fetches as much as the pool will finish soon, decodes in bulk, hands chunks to the pool, renews locks, and turns
what the pool finished into acknowledgements. Fetching goes on while records are in flight: a slow record holds up
nothing but its own slot. Per record nothing is done here on the way of a plain accept: offsets come and go in lists.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from flowshare.agents.acks import GATHER_S, AckSender
from flowshare.agents.asking import Asker, number_of
from flowshare.agents.chunk import Chunk, runs
from flowshare.agents.crowd import Crowd
from flowshare.agents.diagnose import StallWatch
from flowshare.agents.held import Holdings
from flowshare.agents.locks import LockKeeper
from flowshare.agents.pair import new_member
from flowshare.agents.prefetch import Prefetch
from flowshare.agents.ratelimit import TokenBucket
from flowshare.agents.reading import Reader
from flowshare.agents.retry_topic import retry_topic
from flowshare.agents.room import Room
from flowshare.agents.settle import Settler
from flowshare.agents.setup import prepare
from flowshare.agents.standstill import Standstill
from flowshare.agents.telling import Telling
from flowshare.agents.waiting import WaitingRecords
from flowshare.client.errors import ClientError, Closed
from flowshare.protocol.decoding import ANSWER_BYTES_MAX, DecodedRecord
from flowshare.share.types import AcquiredRange

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.pair import Member
    from flowshare.agents.pool import Handed, Pool
    from flowshare.agents.runtime import Observer
    from flowshare.agents.stats import AgentStats
    from flowshare.backend.base import Capabilities
    from flowshare.client.admin import ShareAdmin
    from flowshare.client.member import Fetched
    from flowshare.client.producing import RecordProducer
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

logger = logging.getLogger("flowshare.agents")

FAILED_WAIT_S: Final = 1.0
HEARTBEAT_S: Final = 5.0
"""How long the answer to a heartbeat out of turn is waited for."""
FINISH_S: Final = 1.0
"""How long handlers may go on with what was fetched ahead when an agent stops and giving back costs an attempt."""


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
        producer: RecordProducer,
        admin: ShareAdmin,
        capabilities: Capabilities,
        random: random_module.Random,
        stats: AgentStats,
        observer: Observer | None,
        member_id: str | None = None,
    ) -> None:
        options = agent.options
        now = clock.monotonic()
        self.agent = agent
        self._pool = pool
        self._clock = clock
        self._service_loop = service_loop
        self._handler_loop = handler_loop
        self._connect = connect
        self._admin = admin
        self._stats = stats
        self._telling = None if observer is None else Telling(agent.name, observer)
        self._acks = AckSender(
            agent.name,
            clock,
            stats,
            None if self._telling is None else self._telling.confirmed,
            gather_s=0.0 if capabilities.cheap_acknowledge else GATHER_S,
        )
        self._freed = asyncio.Event()
        self._held = Holdings(self._acks, stats, self._feed, self._freed)
        self._settler = Settler(
            agent, clock=clock, producer=producer, acks=self._acks, random=random, stats=stats, on_decided=self._decided
        )
        self._capabilities = capabilities
        self._delays = None if capabilities.delayed_release else self._settler.own_delays()
        if not capabilities.unrun_release:
            self._held.keep_from = options.retry.max_attempts
        self._prefetch = Prefetch(
            options.records_at_once,
            fixed_buffer=options.batch.size if options.batch else 0,
            careful=not capabilities.unrun_release,
            now=now,
        )
        self._reader = Reader(
            agent,
            acks=self._acks,
            settler=self._settler,
            waiting=None
            if self._delays is None
            else WaitingRecords(agent, self._acks, self._held, self._delays, self._feed, clock=clock),
            stats=stats,
            service_loop=service_loop,
            observed=observer is not None,
            unreadable=lambda chunk, first, part: self._soon(lambda: self._read_again(chunk, first, part)),
        )
        self._room = Room(self._prefetch, self._held, self._acks, self._reader, self._delays)
        self._bucket = None if options.rate_limit is None else TokenBucket(options.rate_limit, now)
        self._locks = LockKeeper(
            agent, pool=pool, holdings=self._held, acks=self._acks, prefetch=self._prefetch, clock=clock
        )
        self._standstill = Standstill(
            agent.name,
            gate=pool.gate,
            wake=lambda: self._at_pool(pool.wake),
            holdings=self._held,
            locks=self._locks,
            clock=clock,
        )
        self._member: Member | None = None
        self._member_id = member_id
        self._asking: asyncio.Task[None] | None = None
        self._ask_again = False
        self._draining = False
        self._fetching: asyncio.Task[None] | None = None
        self._stall = StallWatch(agent, clock=clock, admin=admin)
        self._trouble: str | None = None
        pool.finished = self._finished
        pool.renew = lambda chunk, offset: self._locks.renew_one(chunk, offset, self._soon)

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
        return self._held.buffered

    @property
    def outstanding(self) -> int:
        """Records that are held and not decided yet."""
        return self._held.outstanding

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing waits for its acknowledgement."""
        return self.outstanding == 0 and self._acks.unconfirmed == 0

    @property
    def paused(self) -> bool:
        """Whether nothing is fetched until `resume`."""
        return self._room.paused

    @property
    def _stopping(self) -> bool:
        return self._draining or self._room.paused

    def problems(self) -> list[str]:
        """Why the agent is not healthy."""
        return [text for text in (self._trouble, self._standstill.trouble, self._settler.dead_letter_trouble) if text]

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare topics and group, join, begin to fetch."""
        limits = await prepare(self.agent, self._admin, self._capabilities, self._clock, self._settler.allow)
        side = None if self._delays is None else retry_topic(self.agent.group)
        member = self._member = new_member(
            self._connect, self.agent, side, clock=self._clock, member_id=self._member_id
        )
        await member.start()
        if not self._capabilities.window_by_count:
            crowd = self._room.crowd = Crowd(self.agent, limits.locks, clock=self._clock, admin=self._admin)
            await crowd.start()
        self._held.follow(member)
        self._acks.start(member)
        self._locks.start(member)
        self._standstill.start(member)
        self._stall.start(member)
        asker = Asker(member, clock=self._clock)
        self._fetching = asyncio.create_task(self._fetch_all(asker, member), name=f"fetch {self.agent.name}")

    def pause(self) -> None:
        """Stop fetching, give back what was not begun. Any thread."""
        self._room.paused = True
        self._soon(self._give_back)

    def resume(self) -> None:
        """Fetch again. Any thread."""
        self._room.paused = False
        self._soon(self._freed.set)

    def heartbeat(self) -> None:
        """Have the group asked at once which partitions are this member's: another one is known to be gone."""
        if self._member is None or self._draining:
            return
        self._ask_again = True  # what is on its way may have been answered before that one's end
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_group(self._member), name=f"heartbeat {self.agent.name}")

    async def _ask_group(self, member: Member) -> None:
        while self._ask_again:
            self._ask_again = False
            try:
                await self._clock.wait_for(member.confirm(), HEARTBEAT_S)
            except (ClientError, TimeoutError) as error:
                logger.debug("agent=%s: the group did not answer at once: %r", self.agent.name, error)

    async def drain(self, timeout_s: float) -> bool:
        """Fetch no more, give back, wait for the handlers; returns whether all finished in time."""
        began_s = self._clock.monotonic()
        self._draining = True
        if self._member is not None and self._fetching is not None:  # else it is still joining
            self._member.unsubscribe()
        self._give_back()
        if self._delays is not None:
            self._delays.drain()
        await self._stop_fetching()
        return await self.settle(max(0.0, began_s + timeout_s - self._clock.monotonic()))

    async def settle(self, limit_s: float) -> bool:
        """Wait until nothing is held and everything is acknowledged, `limit_s` seconds at most."""

        async def wait() -> None:
            await self._held.wait_empty()
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
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._standstill.stop()
        await self._locks.stop()
        await self._stop_fetching()
        unrun = self._held.take_unrun()
        if self._room.crowd is not None:
            await self._room.crowd.stop()
        await self._settler.stop()
        await self._acks.stop()
        member, self._member = self._member, None
        if member is not None:
            await member.close(unrun=unrun)

    # --- fetching -----------------------------------------------------------------------------------------------

    async def _fetch_all(self, asker: Asker, member: Member) -> None:
        while (room := await self._wait_for_room(asker)) > 0:
            try:
                await self._fetch_once(asker, member, room)
            except Closed:
                return
            except ClientError as error:
                self._trouble = f"fetching fails: {error}"
                logger.warning("agent=%s group=%s: %s", self.agent.name, self.agent.group, self._trouble)
                await self._clock.sleep(FAILED_WAIT_S)
            except Exception as error:  # a fault of ours must not end the agent in silence
                self._trouble = f"fetching failed unexpectedly: {type(error).__name__}: {error}"
                logger.exception("agent=%s group=%s: %s", self.agent.name, self.agent.group, self._trouble)
                await self._clock.sleep(FAILED_WAIT_S)
            else:
                self._trouble = None

    async def _fetch_once(self, asker: Asker, member: Member, room: int) -> None:
        fetched = await asker.fetch(room, whole=self._room.whole(room))
        self._stats.fetches += 1
        self._held.look(member)
        if not fetched:
            self._stall.nothing_fetched(self)
            return
        try:
            # Only a broker works meanwhile.
            apart = self._room.crowd is not None and not self._draining and self._bucket is None
            if apart and (more := self._room.ahead(number_of(fetched))):
                await asker.send_ahead(more, whole=self._room.whole(more))
        finally:
            self._take(fetched)

    async def _wait_for_room(self, asker: Asker) -> int:
        """How many records to ask for, once it is worth asking or was asked ahead; 0 when the agent drains."""
        while not self._draining:
            room = 1 if asker.asked else self._room.more()
            if room:
                if self._bucket is None:
                    return room
                tokens = self._bucket.available(self._clock.monotonic())
                if tokens > 0:
                    return min(room, tokens)
                self._stall.rate_limited(self._bucket.wait_s())
                await self._clock.sleep(self._bucket.wait_s())
                continue
            if self.paused:
                self._stall.paused()
            self._freed.clear()
            await self._freed.wait()
        return 0

    async def _stop_fetching(self) -> None:
        """No fetch any more; what one under way brings goes back."""
        fetching, self._fetching = self._fetching, None
        if fetching is None or self._member is None:
            return
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        try:
            self._take(await self._member.last_fetch())
        except ClientError as error:
            logger.debug("agent=%s: the last fetch failed: %s", self.agent.name, error)

    def _take(self, fetched: Iterable[Fetched]) -> None:
        """Decode what came and hand it on."""
        now = self._clock.monotonic()
        chunks: list[Chunk] = []
        left = ANSWER_BYTES_MAX - self._held.plain_bytes
        for part in fetched:
            count = number_of([part])
            self._stats.received += count
            if not self._held.holds(part):
                self._stats.lock_lost += count  # it was given to others before anybody took it
                continue
            if self._bucket is not None:
                self._bucket.take(count)
            found = self._reader.chunks(part, now, left)
            left -= sum(chunk.plain_bytes for chunk in found)
            chunks += found
            if self._delays is not None and self._delays.parked:
                self._delays.passed(part.tp, part.acquired[-1].last)
        self._stall.something_fetched()
        if chunks:
            self._hand_on(chunks, now)

    def _read_again(self, chunk: Chunk, first: int, part: Fetched) -> None:
        """The pool could not read a chunk from an offset on: read it here, which tells good records from bad ones; one
        batch at least, so that it goes on."""
        held = self._held.holds(chunk)
        offsets = [offset for offset in chunk.unfinished() if offset >= first]
        self._held.decided(chunk, offsets)
        rest = part._replace(
            acquired=tuple(
                AcquiredRange(max(low, one.first), min(high, one.last), one.delivery_count)
                for low, high in runs(offsets)
                for one in part.acquired
                if one.first <= high and one.last >= low
            )
        )
        now, left = self._clock.monotonic(), max(1, ANSWER_BYTES_MAX - self._held.plain_bytes)
        if held and (chunks := self._reader.chunks(rest, now, left, at_once=True)):
            self._hand_on(chunks, now)

    def _hand_on(self, chunks: list[Chunk], now: float) -> None:
        if self.outstanding == 0:
            self._prefetch.begun(now)
        for chunk in chunks:
            self._held.add(chunk)
        self._locks.watch()
        if not self._stopping:
            self._feed(chunks)
            return
        if not self._capabilities.unrun_release:
            self._feed(chunks)
        self._give_back()

    def _give_back(self) -> None:
        """What no handler has begun goes back: at once, or where that costs an attempt, what they do not get to."""
        if self._capabilities.unrun_release:
            self._held.give_back()
        else:
            self._clock.call_later(FINISH_S, lambda: self._held.give_back() if self._stopping else None)

    def _feed(self, chunks: list[Chunk]) -> None:
        self._at_pool(self._pool.feed, chunks)

    def _at_pool(self, function: Callable[..., None], *args: object) -> None:
        """Call what is the pool's, on its loop where it must be."""
        if self._pool.fed_anywhere or self._handler_loop is self._service_loop:
            function(*args)
        elif not self._handler_loop.is_closed():
            self._handler_loop.call_soon_threadsafe(function, *args)

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
        self._freed.set()

    def _accepted(self, chunk: Chunk, offsets: list[int]) -> None:
        self._held.decided(chunk, offsets)
        if chunk.lost:
            offsets = self._held.without_lost(chunk, offsets)
        if self._telling is not None:
            for offset in offsets:
                self._telling.note(chunk.tp, offset, chunk.attempts.get(offset, 0))
        if offsets:
            self._acks.accept((chunk.tp, chunk.generation), offsets)

    def _decided(self, chunk: Chunk, record: DecodedRecord, reason: str, delay_s: float) -> None:
        """The settler is about to acknowledge a record."""
        offset = record.offset
        self._held.decided(chunk, [offset])
        if offset in chunk.lost:
            self._held.without_lost(chunk, [offset])
        elif self._telling is not None:
            self._telling.note(chunk.tp, offset, record.delivery_count, reason, delay_s)
        self._freed.set()

    def _soon(self, callback: Callable[[], object]) -> None:
        if not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(callback)
