"""`Feeder` does all work of an agent that happens on the service loop; each agent of a process has one.

A feeder fetches as much as the pool will finish soon, decodes in bulk, hands chunks to the pool, renews locks, and
turns finished records into acknowledgements. Fetching goes on while records are in flight: a slow record holds up only
its own runner. A plain accept costs no work per record here: offsets come and go in lists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.ack_sender import GATHER_S, AckSender
from flowshare.agents.feed.acknowledgements import OutcomeReporter
from flowshare.agents.feed.completion import Completion
from flowshare.agents.feed.delays import RetryTopicReader
from flowshare.agents.feed.early_accepts import EarlyAccepts
from flowshare.agents.feed.locks import HeldRecords, LockKeeper
from flowshare.agents.feed.members import SettlingMember, new_member
from flowshare.agents.feed.outcome_watch import HeardBreaker, OutcomeWatch
from flowshare.agents.feed.prefetch import (
    FETCH_WAIT_S,
    FETCH_WAITS_S,
    FEW,
    FetchSize,
    GroupSize,
    KeyFetchSize,
    KeyPrefetch,
    Prefetch,
    Prefetcher,
)
from flowshare.agents.feed.reader import Reader
from flowshare.agents.feed.setup import check_order_kept, prepare
from flowshare.agents.feed.spans import AckSpans
from flowshare.agents.feed.stalls import StallWatch
from flowshare.agents.feed.standstill import Standstill
from flowshare.agents.handler.chunk import Chunk, runs
from flowshare.agents.handler.rate_limit import TokenBucket
from flowshare.agents.handler.retry_headers import retry_topic
from flowshare.client.errors import ClientError
from flowshare.client.session.ranges import number_of
from flowshare.protocol.decoding import ANSWER_BYTES_MAX, DecodedRecord, RawRecord
from flowshare.share.types import AcquiredRange
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.agents.feed.acknowledgements import Observer
    from flowshare.agents.feed.members import Member
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.run.pool import Environment, FinishedWork, Pool
    from flowshare.client.session.member import AckResult, Fetched
    from flowshare.share.types import AckRange

logger = logging.getLogger("flowshare.agents")

HEARTBEAT_S: Final = 5.0
"""Seconds to wait for the answer to a heartbeat out of turn."""
FINISH_S: Final = 1.0
"""Seconds that handlers may go on with prefetched records when an agent stops and a release costs an attempt."""


class Feeder:
    """Feeder of one agent: its member, its buffer and its acknowledgements."""

    def __init__(
        self,
        agent: ShareAgent,
        pool: Pool,
        environment: Environment,
        *,
        observer: Observer | None = None,
        member_id: str | None = None,
    ) -> None:
        """observer: called with every settled record. member_id: id of the member in the group; None draws one."""
        clock, capabilities, stats = environment.clock, environment.capabilities, pool.stats
        options = agent.options
        now = clock.monotonic()
        self.agent = agent
        self._pool = pool
        self._clock = clock
        self._service_loop = environment.service_loop
        self._handler_loop = environment.handler_loop
        self._connect = environment.connect
        self._virtual_time = environment.virtual_time
        self._admin = environment.admin
        self._allow = environment.producer.allow
        self._stats = stats
        self._reporter = None if observer is None else OutcomeReporter(agent.name, observer)
        telemetry = environment.telemetry
        self._spans = None if telemetry is None else telemetry.settle(agent)
        self._acks = AckSender(
            agent.name,
            clock,
            stats,
            self._confirm if options.at_most_once or self._reporter is not None else None,
            gather_s=0.0 if capabilities.cheap_acknowledge or options.at_most_once else GATHER_S,
            spans=None if self._spans is None else AckSpans(self._spans),
        )
        self._look_due = False
        self._held = HeldRecords(self._acks, stats, self._feed, self._look_soon)
        self._early: EarlyAccepts | None = None
        """Accepts records before they run, with `at_most_once`."""
        if options.at_most_once:
            self._early = EarlyAccepts(
                agent,
                held=self._held,
                acks=self._acks,
                feed=lambda chunks: self._at_pool(pool.feed, chunks),
                spans=self._spans,
            )
        if options.order is not None:
            self._held.on_lost = lambda chunk, lost: self._at_pool(pool.lost, chunk, lost)
        self._completion = Completion(
            agent,
            clock=clock,
            producer=environment.producer,
            acks=self._acks,
            random=environment.random,
            stats=stats,
            on_decided=self._decided,
            on_settled=self._settled,
            on_ended=self._ended,
            letters_by_choice=capabilities.letters_by_choice,
            telemetry=telemetry,
            spans=self._spans,
        )
        self._breaker: OutcomeWatch | None = None
        if options.breaker is not None:
            self._breaker = self._completion.breaker = OutcomeWatch(
                agent,
                clock=clock,
                admin=environment.admin,
                on_open=self._give_back,
                told=None if telemetry is None else telemetry.breaker(agent),
            )
        self._capabilities = capabilities
        retries = not options.at_most_once
        self._delays = self._completion.own_delays() if retries and not capabilities.delayed_release else None
        if not capabilities.unrun_release:
            self._held.keep_from = options.retry.max_attempts
        self._prefetch = (
            Prefetch(
                options.records_at_once,
                fixed_buffer=options.batch.size if options.batch else 0,
                careful=not capabilities.unrun_release,
                now=now,
            )
            if options.order is None
            else KeyPrefetch(options.records_at_once, now=now)
        )
        self._reader = Reader(
            agent,
            acks=self._acks,
            completion=self._completion,
            waiting=None
            if self._delays is None
            else RetryTopicReader(agent, self._completion, self._held, self._delays, self._feed, clock=clock),
            stats=stats,
            service_loop=environment.service_loop,
            observed=observer is not None,
            unreadable=lambda chunk, first, part: self._soon(lambda: self._read_again(chunk, first, part)),
        )
        held = self._held, self._acks, self._reader
        self._fetch_size = (
            KeyFetchSize(self._prefetch, *held, chain=options.chain, by_speed=options.batch is None)
            if isinstance(self._prefetch, KeyPrefetch)
            else FetchSize(self._prefetch, *held, self._delays)
        )
        self._fetch_size.settler = self._completion.settler
        self._bucket = None if options.rate_limit is None else TokenBucket(options.rate_limit, now)
        self._locks = LockKeeper(
            agent, pool=pool, held=self._held, acks=self._acks, prefetch=self._prefetch, clock=clock
        )
        self._held.added = self._locks.watch
        self._standstill = Standstill(
            agent.name,
            permit=pool.permit,
            wake=lambda: self._at_pool(pool.wake),
            held=self._held,
            locks=self._locks,
            clock=clock,
        )
        self._member: Member | None = None
        self._member_id = member_id
        self._asking: asyncio.Task[None] | None = None
        self._ask_again = False
        self._draining = False
        self._stall = StallWatch(agent, clock=clock, admin=environment.admin)
        self._prefetcher = Prefetcher(
            agent,
            self._fetch_size,
            self._bucket,
            self._stall,
            self._take_fetched,
            clock=clock,
            ride=self._acks.ride,
            waits_s=FETCH_WAITS_S if environment.virtual_time else (FETCH_WAIT_S, FETCH_WAIT_S),
        )
        self._acks.on_answered = self._prefetcher.look
        self._handlers_first = environment.handler_loop is not environment.service_loop and not pool.fed_anywhere
        pool.finished = self._finished
        if self._early is None:  # a record accepted before it runs has no lock
            pool.renew = lambda chunk, offset: self._locks.renew_one(chunk, offset, self._soon)

    # --- what is seen from outside ------------------------------------------------------------------------------

    @property
    def target(self) -> int:
        """Number of records (with an order: keys) to hold in all, for the handlers' speed."""
        return self._prefetch.target

    @property
    def buffered(self) -> int:
        """Number of records that no handler has begun."""
        return self._held.buffered

    @property
    def outstanding(self) -> int:
        """Number of records that are held and not decided yet."""
        return self._held.outstanding

    @property
    def arrived_s(self) -> float | None:
        """Arrival of the oldest held record, by the monotonic clock in seconds; None: no record is held."""
        return self._held.arrived_s

    @property
    def idle(self) -> bool:
        """True if no record is held and none waits for its acknowledgement."""
        in_hand = 0 if self._early is None else self._early.in_hand
        return self.outstanding == 0 and self._acks.unconfirmed == 0 and in_hand == 0

    @property
    def paused(self) -> bool:
        """True if nothing is fetched until `resume`."""
        return self._fetch_size.paused

    @property
    def _stopping(self) -> bool:
        return self._draining or self._fetch_size.paused

    @property
    def breaker(self) -> HeardBreaker | None:
        """The state of the group's breaker, as this member heard it; None: the agent has no breaker."""
        return None if self._breaker is None else self._breaker.heard

    @property
    def held_back(self) -> str | None:
        """Reason why the group's breaker holds records back; None: it does not, as far as known."""
        return None if self._breaker is None else self._breaker.trouble

    def problems(self) -> list[str]:
        """Return the reasons why the agent is not healthy."""
        return [
            text
            for text in (self._prefetcher.trouble, self._standstill.trouble, self._completion.dead_letter_trouble)
            if text
        ]

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare topics and group, join, begin to fetch."""
        member = await self._joined()
        self._held.follow(member)
        self._acks.start(member)
        if self._completion.settler is not None:
            assert isinstance(member, SettlingMember), "brokers settle nothing"
            self._completion.settler.start(member)
        self._locks.start(member)
        if not self._virtual_time:
            self._standstill.start(member)
        self._stall.start(member)
        if self._breaker is not None:
            self._breaker.start(member.member_id)
        if not self._draining:
            self._prefetcher.start(member)

    async def _joined(self) -> Member:
        """Prepare topics and group, and join."""
        limits = await prepare(self.agent, self._admin, self._capabilities, self._clock, self._allow)
        side = None if self._delays is None else retry_topic(self.agent.group)
        member = self._member = new_member(
            self._connect, self.agent, side, clock=self._clock, member_id=self._member_id
        )
        await member.start()
        await check_order_kept(self.agent, self._admin, self._clock)
        if not self._capabilities.window_by_count:
            group = self._fetch_size.group = GroupSize(self.agent, limits.locks, clock=self._clock, admin=self._admin)
            await group.start()
        return member

    def pause(self) -> None:
        """Stop fetching, release records that were not begun. Any thread."""
        self._fetch_size.paused = True
        self._soon(self._give_back)

    def resume(self) -> None:
        """Fetch again. Any thread."""
        self._fetch_size.paused = False
        self._soon(self._prefetcher.look)

    def heartbeat(self) -> None:
        """Ask the group at once for this member's partitions: another member is known to be gone."""
        if self._member is None or self._draining:
            return
        self._ask_again = True  # an answer on its way may be from before the other member's end
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
        """Stop fetching, release, wait for the handlers; return True if all finished in time."""
        began_s = self._clock.monotonic()
        self._draining = True
        if self._member is not None and self._prefetcher.started:  # else the member is still joining
            self._member.unsubscribe()
        self._give_back()
        if self._delays is not None:
            self._delays.drain()
        await self._stop_fetching()
        return await self.wait_idle(max(0.0, began_s + timeout_s - self._clock.monotonic()))

    async def wait_idle(self, limit_s: float) -> bool:
        """Wait until no record is held and everything is acknowledged, `limit_s` seconds at most."""

        async def wait() -> None:
            await self._held.wait_empty()
            await self._acks.flush()
            if self._early is not None:
                await self._early.wait_empty()

        try:
            await self._clock.wait_for(wait(), limit_s)
        except TimeoutError:
            return False
        return True

    async def close(self, *, goes_on: bool = False) -> None:
        """Release the rest, leave the group. goes_on: handlers are at work that cannot be ended: their records are left
        to their locks."""
        self._draining = True
        self._stall.stop()
        await cancelled(self._asking)
        await self._standstill.stop()
        if self._breaker is not None:
            await self._breaker.stop()
        await self._locks.stop()
        await self._stop_fetching()
        unrun = self._held.take_unrun()
        if self._fetch_size.group is not None:
            await self._fetch_size.group.stop()
        await self._completion.stop()
        await self._acks.stop()
        member, self._member = self._member, None
        if member is None:
            return
        if goes_on:
            await member.leave_to_locks(unrun=unrun)
        else:
            await member.close(unrun=unrun)

    # --- fetching -----------------------------------------------------------------------------------------------

    def _take_fetched(self, fetched: list[Fetched]) -> bool:
        """Take in the end of a fetch. Returns True if handlers work on its records and the next fetch is considered
        after they had their turn."""
        assert self._member is not None
        self._stats.fetches += 1
        self._held.look(self._member)
        if not fetched:
            self._stall.nothing_fetched(self)
            return False
        return self._take(fetched)

    async def _stop_fetching(self) -> None:
        """Stop fetching; records of a fetch under way are released."""
        if self._member is None or not self._prefetcher.started:
            return
        self._prefetcher.stop()
        try:
            self._take(await self._member.last_fetch())
        except ClientError as error:
            logger.debug("agent=%s: the last fetch failed: %s", self.agent.name, error)

    def _take(self, fetched: Iterable[Fetched]) -> bool:
        """Decode fetched records and hand them on; returns as `_take_fetched`."""
        now = self._clock.monotonic()
        chunks: list[Chunk] = []
        left = ANSWER_BYTES_MAX - self._held.plain_bytes
        for part in fetched:
            count = number_of([part])
            self._stats.received += count
            if not self._held.holds(part):
                self._stats.lock_lost += count  # others got the records before they were taken
                continue
            if self._bucket is not None:
                self._bucket.take(count)
            if self._breaker is not None:
                self._breaker.fetched(part)
            found = self._reader.chunks(part, now, left)
            left -= sum(chunk.plain_bytes for chunk in found)
            chunks += found
            if self._delays is not None and self._delays.waiting:
                self._delays.passed(part.tp, part.acquired[-1].last)
        self._stall.something_fetched()
        if not chunks:
            return False
        first = (
            self._early is None
            and self._handlers_first
            and not self._stopping
            and sum(chunk.remaining for chunk in chunks) <= FEW
        )
        self._hand_on(chunks, now, first=first)
        return first

    def _read_again(self, chunk: Chunk, first: int, part: Fetched) -> None:
        """Read a chunk here that the pool could not read from an offset on: this tells good records from bad ones. At
        least one batch is read, to make progress."""
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

    def _hand_on(self, chunks: list[Chunk], now: float, *, first: bool = False) -> None:
        if self.outstanding == 0:
            self._prefetch.begun(now)
        for chunk in chunks:
            self._held.add(chunk)
        if first:
            # At the end of this turn of the loop: a thread that is woken earlier only waits for the interpreter's lock.
            self._service_loop.call_soon(self._at_pool, self._feed_first, chunks)
            return
        if not self._stopping:
            self._feed(chunks)
            return
        if not self._capabilities.unrun_release:
            self._feed(chunks)
        self._give_back()

    def _give_back(self) -> None:
        """Release records that no handler has begun.

        At once; or, if a release costs an attempt, after `FINISH_S`, so that handlers may still get to some of them.
        """
        if self._capabilities.unrun_release:
            self._held.give_back()
        else:
            self._clock.call_later(FINISH_S, lambda: self._held.give_back() if self._stopping else None)

    def _feed(self, chunks: list[Chunk]) -> None:
        if self._early is not None:
            self._early.add(chunks)
            return
        self._at_pool(self._pool.feed, chunks)

    def _feed_first(self, chunks: list[Chunk]) -> None:
        """Feed the pool, and consider the next fetch when its handlers have begun; on the handler loop."""
        self._pool.feed(chunks)
        self._handler_loop.call_soon(self._begun)

    def _begun(self) -> None:
        if not self._pool.hands_over:  # else finished records trigger the fetch, with their acknowledgements
            self._soon(self._prefetcher.look)

    def _at_pool(self, function: Callable[..., None], *args: object) -> None:
        """Call a function of the pool, on the pool's loop where it must be."""
        if self._pool.fed_anywhere or self._handler_loop is self._service_loop:
            function(*args)
        elif not self._handler_loop.is_closed():
            self._handler_loop.call_soon_threadsafe(function, *args)

    # --- finished work ------------------------------------------------------------------------------------------

    def _finished(self, handed: FinishedWork) -> None:
        """Take in records that the pool finished; called on the service loop, in bulk."""
        self._look_due = True
        if self._breaker is not None:
            self._breaker.ended(handed)
        try:
            for chunk, accepted, others in handed:
                if accepted and chunk.is_accepted:
                    self._all_ended(chunk, accepted)
                elif accepted:
                    self._accepted(chunk, accepted)
                if isinstance(self._fetch_size, KeyFetchSize):
                    self._fetch_size.ended(len(accepted), sum(outcome.has_outputs for _, outcome in others))
                for record, outcome in others:
                    self._completion.complete(chunk, record, outcome)
        finally:
            count = sum(len(accepted) + len(others) for _, accepted, others in handed)
            self._prefetch.finished(count, self._clock.monotonic())
            self._look()

    def _confirm(self, ack: AckRange, result: AckResult, how: str) -> None:
        """Handle an answered acknowledgement. Records accepted before they run are reported when their handler has
        ended."""
        if self._early is not None:
            self._early.confirmed(ack, result, how)
        if self._reporter is not None and (self._early is None or how != "accepted"):
            self._reporter.confirmed(ack, result, how)

    def _all_ended(self, chunk: Chunk, offsets: list[int]) -> None:
        """Note that handlers of records accepted before have ended well."""
        assert self._early is not None
        self._early.ended(chunk.tp, offsets)
        if self._reporter is not None:
            for offset in offsets:
                where = chunk.topic, chunk.partition, offset
                self._reporter.ended(*where, chunk.attempt(offset), "accepted", "")

    def _ended(self, chunk: Chunk, record: DecodedRecord | RawRecord, how: str, reason: str) -> None:
        """Note the end of one such record whose outputs are produced, or that failed."""
        assert self._early is not None
        if how != "accepted":
            self._stats.lost += 1
        if how == "released":
            logger.warning(
                "%s: lost, as it was accepted before it ran (at_most_once): %s", chunk.where(record.offset), reason
            )
            how = "lost"
        self._early.ended(chunk.tp, [record.offset])
        if self._reporter is not None:
            where = chunk.topic, chunk.partition, record.offset
            self._reporter.ended(*where, chunk.attempt(record.offset), how, reason)

    def _accepted(self, chunk: Chunk, offsets: list[int]) -> None:
        self._held.decided(chunk, offsets)
        if chunk.lost:
            offsets = self._held.without_lost(chunk, offsets)
        if self._reporter is not None:
            for offset in offsets:
                self._reporter.note(chunk.tp, offset, chunk.attempts.get(offset, 0))
        if offsets:
            if self._spans is not None:
                self._spans.note(chunk, offsets)
            for attempt, some in chunk.counted(offsets):
                self._acks.accept((chunk.tp, chunk.generation), some, attempt)

    def _settled(self, chunk: Chunk, records: Sequence[DecodedRecord | RawRecord], reason: str) -> None:
        """Note records that were settled with their outputs, or are known not to be."""
        offsets = [record.offset for record in records]
        self._held.decided(chunk, offsets)
        if chunk.lost:
            self._held.without_lost(chunk, offsets)
        if self._reporter is not None:
            for record in records:
                if record.offset not in chunk.lost:
                    self._reporter.note(chunk.tp, record.offset, chunk.attempt(record.offset), reason)

    def _decided(self, chunk: Chunk, record: DecodedRecord | RawRecord, reason: str, delay_s: float) -> None:
        """Note a record whose acknowledgement is about to be queued."""
        offset = record.offset
        self._held.decided(chunk, [offset])
        if offset in chunk.lost:
            self._held.without_lost(chunk, [offset])
        elif self._reporter is not None:
            self._reporter.note(chunk.tp, offset, chunk.attempt(offset), reason, delay_s)

    def _look_soon(self) -> None:
        """Consider the next fetch at the end of this turn: fewer records are held."""
        if not self._look_due:
            self._look_due = True
            self._service_loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_due = False
        self._prefetcher.look()

    def _soon(self, callback: Callable[[], object]) -> None:
        if not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(callback)
