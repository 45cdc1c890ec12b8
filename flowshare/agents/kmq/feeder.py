"""`KmqFeeder` does all work of a KMQ agent that happens on the service loop.

    fetch ──▶ start markers, confirmed ──▶ commit ──▶ handlers ──▶ outputs, confirmed ──▶ end markers

Only as many records are marked as the handlers reach soon, as a record's time runs from its start marker on. A record
that no handler has begun in that time is dropped here, since the tracker sends it again. A late handler still ends its
record, which may have been sent again by then.

When partitions go to another consumer, records that are marked and committed are handled to their end here: markers
belong to no consumer. Records that are marked and not committed are dropped, as the partition's new owner reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.acknowledgements import OutcomeReporter
from flowshare.agents.feed.prefetch import Prefetch
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.options import READ_COMMITTED
from flowshare.agents.handler.rate_limit import TokenBucket
from flowshare.agents.kmq.completion import KmqCompletion
from flowshare.agents.kmq.markers import MarkerSender
from flowshare.agents.kmq.setup import prepare
from flowshare.agents.kmq.unmarked_records import Ahead, Taken
from flowshare.backoff import USUAL
from flowshare.client.errors import ClientError
from flowshare.client.groups.consumer import Bounds, GroupConsumer, Place
from flowshare.client.groups.membership import Generation, GenerationOver, GroupSettings
from flowshare.client.groups.reading import read_log
from flowshare.client.kmq.tracker import QueueTracker
from flowshare.client.settings import session_s
from flowshare.kmq.redelivery import redelivered
from flowshare.protocol.decoding import with_unreadable
from flowshare.protocol.headers import DecodeError, frames
from flowshare.protocol.messages import TopicPartition
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import uuid

    from flowshare.agents.feed.acknowledgements import Observer
    from flowshare.agents.kmq.agent import KmqAgent
    from flowshare.agents.run.pool import Environment, FinishedWork, Pool
    from flowshare.client.groups.consumer import Reset
    from flowshare.clock import TimerHandle
    from flowshare.protocol.decoding import DecodedRecord, RawRecord
    from flowshare.protocol.messages import FetchedLog

WAIT_MS: Final = 250
TICK_S: Final = 0.25
"""Seconds between two looks at records whose time is over."""
TROUBLE_AFTER: Final = 3

logger = logging.getLogger("flowshare.agents")


class KmqFeeder:
    """Feeder of one KMQ agent: its consumer, its buffer and its markers."""

    def __init__(
        self, agent: KmqAgent, pool: Pool, environment: Environment, *, observer: Observer | None = None
    ) -> None:
        """observer: called with every settled record."""
        clock, stats = environment.clock, pool.stats
        options = agent.options
        self.agent = agent
        self._environment = environment
        self._pool = pool
        self._clock = clock
        self._stats = stats
        self._service_loop = environment.service_loop
        self._handler_loop = environment.handler_loop
        self._reporter = None if observer is None else OutcomeReporter(agent.name, observer, agent.queue)
        telemetry = environment.telemetry
        self._spans = None if telemetry is None else telemetry.settle(agent)
        self._markers = MarkerSender(
            agent.name,
            agent.markers,
            after_ms=round(agent.redeliver_after_s * 1000),
            producer=environment.producer,
            clock=clock,
            stats=stats,
            on_settled=None if self._reporter is None else self._reporter.settled,
            spans=self._spans,
        )
        self._completion = KmqCompletion(
            agent,
            clock=clock,
            producer=environment.producer,
            acks=self._markers,
            random=environment.random,
            stats=stats,
            on_decided=self._decided,
            on_settled=lambda chunk, records, reason: None,
            telemetry=telemetry,
            spans=self._spans,
        )
        self._prefetch = Prefetch(
            options.records_at_once,
            fixed_buffer=options.batch.size if options.batch else 0,
            now=clock.monotonic(),
        )
        self._bucket = None if options.rate_limit is None else TokenBucket(options.rate_limit, clock.monotonic())
        self._consumer = GroupConsumer(
            environment.connect,
            group_id=agent.group,
            topics=agent.topics,
            clock=clock,
            reset=self._reset(),
            committed=options.isolation == READ_COMMITTED,
            settings=GroupSettings(session_timeout=session_s(agent.redeliver_after_s)),
            on_assigned=self._assigned,
        )
        self._tracker = self._own_tracker() if agent.with_tracker or environment.trackers else None
        self._ahead = Ahead()
        self._generation: Generation | None = None
        """The generation in which `_ahead` was read."""
        self._topic_id: uuid.UUID | None = None
        self._live: dict[Chunk, int] = {}
        """Chunks -> number of their undecided records."""
        self._paused = False
        self._draining = False
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._fetching: tuple[Generation, asyncio.Task[list[FetchedLog]]] | None = None
        """The next fetch, with its generation."""
        self._timer: TimerHandle | None = None
        self._trouble: str | None = None
        self.outstanding = 0
        """Number of records that are marked and not decided yet."""
        pool.finished = self._finished

    def _reset(self) -> Reset:
        start = self.agent.options.start
        if isinstance(start, str):
            return "latest" if start == "latest" else "earliest"
        back = self.agent.options.auto_offset_reset  # by_duration:PTnS
        return self._clock.now_ms() - round(float(back.removeprefix("by_duration:PT").removesuffix("S")) * 1000)

    def _own_tracker(self) -> QueueTracker:
        environment = self._environment
        return QueueTracker(
            environment.connect,
            self.agent.rules,
            group_id=self.agent.tracker_group,
            clock=self._clock,
            admin=environment.admin,
            producer=environment.producer,
            widens=self.agent.app.conf.topic_allow_declare,
        )

    # --- what is seen from outside ------------------------------------------------------------------------------

    @property
    def target(self) -> int:
        """Number of records to hold in all, for the handlers' speed."""
        return self._prefetch.target

    @property
    def buffered(self) -> int:
        """Number of records that no handler has begun."""
        return sum(chunk.waiting for chunk in list(self._live))

    @property
    def arrived_s(self) -> float | None:
        """Arrival of the oldest held record, by the monotonic clock in seconds; None: no record is held."""
        return min((chunk.arrived for chunk in list(self._live)), default=None)

    @property
    def idle(self) -> bool:
        """True if no record is held and none waits for its end marker."""
        return self.outstanding == 0 and self._markers.unconfirmed == 0

    async def finished(self) -> bool:
        """Return True if all records of the member's partitions are handled and its own tracker has none to send again.

        Raises: ServerError, OSError, ClientError.
        """
        admin, queue = self._environment.admin, self.agent.queue
        partitions = (await admin.describe_topic(queue)).partitions
        for number in range(partitions):
            if self._consumer.positions.get((queue, number), -1) < await admin.log_end(queue, number):
                return False
        tracker = self._tracker
        if tracker is not None:
            ends = {number: await admin.log_end(self.agent.markers, number) for number in range(partitions)}
            if not tracker.has_read(ends) or tracker.open:
                return False
        return self.idle and not len(self._ahead)

    @property
    def paused(self) -> bool:
        """True if nothing is fetched until `resume`."""
        return self._paused

    @property
    def tracker(self) -> QueueTracker | None:
        """The feeder's own tracker, if it has one."""
        return self._tracker

    def problems(self) -> list[str]:
        """Return the reasons why the agent is not healthy."""
        texts = [self._consumer.member.trouble, self._trouble]
        if self._tracker is not None:
            texts += self._tracker.problems()
        return [text for text in texts if text]

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Check that the topics exist and fit, join the group, begin to fetch."""
        await prepare(self.agent, self._environment.admin, self._clock)
        producer = self._environment.producer
        self._topic_id = (await producer.topic(self.agent.queue)).topic_id
        if self._tracker is not None:
            await self._tracker.start()
        self._consumer.start()
        if not self._draining:
            self._task = asyncio.create_task(self._run(), name=f"KMQ agent {self.agent.name}")

    def pause(self) -> None:
        """Stop fetching; marked records are handled. Any thread."""
        self._paused = True

    def resume(self) -> None:
        """Fetch again. Any thread."""
        self._paused = False
        self._soon(self._room.set)

    def heartbeat(self) -> None:
        """Do nothing when another member is known to be gone: the group's coordinator finds that out by itself."""

    async def drain(self, timeout_s: float) -> bool:
        """Stop fetching, wait for the handlers of marked records; return True if all finished in time."""
        self._draining = True
        await self._stop_fetching()
        return await self.wait_idle(timeout_s)

    async def wait_idle(self, limit_s: float) -> bool:
        """Wait until no record is held and all end markers are written, `limit_s` seconds at most."""

        async def wait() -> None:
            while self.outstanding:
                self._empty.clear()
                await self._empty.wait()
            await self._markers.flush()

        try:
            await self._clock.wait_for(wait(), limit_s)
        except TimeoutError:
            return False
        return True

    async def close(self, *, goes_on: bool = False) -> None:
        """Leave the group; records that no handler has begun are left to the tracker."""
        self._draining = True
        await self._stop_fetching()
        if self._timer is not None:
            self._timer.cancel()
        for chunk in tuple(self._live):
            self._drop_unbegun(chunk, "unrun")
        await self._completion.stop()
        if self._tracker is not None:
            await self._tracker.close()
        await self._consumer.close()

    async def _stop_fetching(self) -> None:
        task, self._task = self._task, None
        await cancelled(task)
        fetching, self._fetching = self._fetching, None
        await cancelled(None if fetching is None else fetching[1])

    def _assigned(self, generation: Generation, bounds: Mapping[Place, Bounds]) -> None:
        """Drop what was read ahead in an older generation: it is read again from the group's commits."""
        if generation is not self._generation:
            self._generation = generation
            self._ahead.clear()

    # --- records in ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                generation = await self._consumer.ready()
                room = await self._wait_room()
                taken = await self._next(generation, room)
                if not taken or not await self._marked(generation, taken):
                    continue
            except Exception as error:
                failures += 1
                self._trouble = f"its queue cannot be read: {error}" if failures >= TROUBLE_AFTER else self._trouble
                if isinstance(error, OSError | ClientError | DecodeError):
                    logger.warning("agent=%s topic=%s: %s", self.agent.name, self.agent.queue, error)
                else:  # a bug must not end the agent in silence
                    logger.exception("agent=%s topic=%s: reading failed", self.agent.name, self.agent.queue)
                await self._clock.sleep(USUAL.after(failures))
                continue
            failures, self._trouble = 0, None

    async def _wait_room(self) -> int:
        """Return how many more records may be marked, after half of the records held ahead are used up, so that rounds
        are few."""
        while True:
            target = self._prefetch.target
            room = target - self.outstanding
            if self._bucket is not None and not self._paused:
                allowed = self._bucket.available(self._clock.monotonic())
                if not allowed:
                    await self._clock.sleep(self._bucket.wait_s())
                    continue
                room = min(room, allowed)
                if room > 0:
                    return room
            elif room >= max(1, (target - self._prefetch.at_once) // 2) and not self._paused:
                return room
            self._room.clear()
            await self._room.wait()

    async def _next(self, generation: Generation, room: int) -> list[Taken]:
        """Return records to mark now, `room` at most; none when the generation is over."""
        if not len(self._ahead):
            logs = await self._fetched(generation)
            if self._consumer.generation is not generation:
                return []
            for log in logs:
                self._take_log(generation, log)
            if (passed := self._ahead.passed()) and not await self._commit(generation, passed):
                return []
        if self._consumer.generation is not generation:
            return []
        taken = self._ahead.take(room)
        if taken and not len(self._ahead) and self._fetching is None:
            self._fetching = generation, self._fetch()
        return taken

    async def _fetched(self, generation: Generation) -> list[FetchedLog]:
        """Return the records of the fetch under way, or fetch them now. Raises: OSError, ClientError."""
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            if fetching[0] is generation:
                return await fetching[1]
            await cancelled(fetching[1])  # its offsets are of another time
        return await self._fetch()

    def _fetch(self) -> asyncio.Task[list[FetchedLog]]:
        self._stats.fetches += 1
        fetching = self._consumer.fetch(wait_ms=WAIT_MS)
        return asyncio.create_task(fetching, name=f"KMQ agent {self.agent.name}: fetch")

    def _take_log(self, generation: Generation, log: FetchedLog) -> None:
        place = log.topic, log.partition
        before = self._consumer.positions.get(place)
        if before is None or not log.records:
            return
        read = read_log(log.records, before, log.aborted)
        records = with_unreadable(read.records, read.damaged)
        for first, last, why in (one for one in read.damaged if not one.records):
            self._stats.undecodable += last - first + 1
            logger.error(
                "agent=%s record=%s-%d@%d..%d: the stored bytes cannot be read, passed over: %s",
                self.agent.name,
                *place,
                first,
                last,
                why,
            )
        self._consumer.move(generation, place, read.next)
        if read.next > before:
            self._ahead.add(place, records, self._attempts(log, records), read.next)

    def _attempts(self, log: FetchedLog, records: list[RawRecord]) -> list[int] | None:
        """Return the number of deliveries of each record, this one included; None: all for the first time."""
        name = self.agent.count_header
        if name.encode() not in log.records and all(
            head.codec == "none" for head in frames(log.records, partial_tail=True)
        ):
            return None
        attempts = [1 + redelivered(record.headers, name) for record in records]
        self._stats.redelivered += sum(attempt > 1 for attempt in attempts)
        return attempts

    async def _marked(self, generation: Generation, taken: list[Taken]) -> bool:
        """Mark and commit records and hand them on; False: they are another member's.

        Raises: OSError, ClientError: they must be marked again.
        """
        began_s = self._clock.monotonic()
        try:
            await asyncio.gather(
                *(self._markers.start(one.place[1], [record.offset for record in one.records]) for one in taken)
            )
        except BaseException:
            if self._consumer.generation is generation:
                self._ahead.put_back(taken)
            raise
        if not await self._commit(generation, {one.place: one.next for one in taken}):
            self._stats.unrun += sum(len(one.records) for one in taken)
            return False
        self._hand_on([self._chunk(generation, one, began_s) for one in taken])
        return True

    async def _commit(self, generation: Generation, offsets: dict[Place, int]) -> bool:
        """Commit offsets, trying until the generation is over; False: it is over."""
        failures = 0
        while True:
            try:
                await self._consumer.commit(generation, offsets)
            except GenerationOver as error:
                logger.debug("agent=%s: %s", self.agent.name, error)
                self._consumer.give_up(generation)
                return False
            except (OSError, ClientError) as error:
                failures += 1
                logger.warning("agent=%s: group %s: %s", self.agent.name, self.agent.group, error)
                await self._clock.sleep(USUAL.after(failures))
            else:
                return True

    def _chunk(self, generation: Generation, taken: Taken, began_s: float) -> Chunk:
        assert self._topic_id is not None
        queue = self.agent.queue
        return Chunk(
            self.agent.name,
            queue,
            TopicPartition(self._topic_id, taken.place[1]),
            _runs(taken),
            decode=self.agent.decoder(queue),
            decode_key=self.agent.key_decoder(queue),
            deadline=began_s + self.agent.redeliver_after_s,
            generation=generation.number,
            arrived=self._clock.monotonic(),
            group=self.agent.group,
        )

    def _hand_on(self, chunks: list[Chunk]) -> None:
        now = self._clock.monotonic()
        if not self.outstanding:
            self._prefetch.begun(now)
        for chunk in chunks:
            self._live[chunk] = chunk.remaining
            self.outstanding += chunk.remaining
            self._stats.received += chunk.remaining
            if self._bucket is not None:
                self._bucket.take(chunk.remaining)
        self._look()
        self._at_pool(self._pool.feed, chunks)

    # --- time ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Drop records that nobody has begun in time; no handler begins one before this was checked again."""
        now = self._clock.monotonic()
        next_s = float("inf")
        for chunk in tuple(self._live):
            if not chunk.waiting:
                continue
            if chunk.deadline <= now:
                self._drop_unbegun(chunk, "lock_lost")
            else:
                next_s = min(next_s, chunk.deadline)
        permit = self._pool.permit
        permit.until_s = next_s
        if permit.wanted:
            permit.wanted = False
            self._at_pool(self._pool.feed, [])
        if self._live and self._timer is None and not (self._draining and not self.outstanding):
            self._timer = self._clock.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        if self._prefetch.still_running(self._pool.busy, now, full=self.buffered > 0):
            logger.debug("agent=%s: handlers take long, fewer records are marked", self.agent.name)
        self._look()

    def _drop_unbegun(self, chunk: Chunk, counter: str) -> None:
        dropped: list[int] = []
        while True:
            try:
                dropped.append(chunk.records.pop().offset)
            except IndexError:
                break
        if dropped:
            setattr(self._stats, counter, getattr(self._stats, counter) + len(dropped))
            logger.warning(
                "agent=%s record=%s..%d: %d records are left to the tracker: no handler had begun them",
                self.agent.name,
                chunk.at(min(dropped)),
                max(dropped),
                len(dropped),
            )
            self._less(chunk, len(dropped))

    # --- finished work ------------------------------------------------------------------------------------------

    def _finished(self, handed: FinishedWork) -> None:
        """Take in records that the pool finished; called on the service loop, in bulk."""
        count = 0
        for chunk, accepted, others in handed:
            count += len(accepted) + len(others)
            if accepted:
                self._less(chunk, len(accepted))
                self._report(chunk, accepted)
                if self._spans is not None:
                    self._spans.note(chunk, accepted)
                self._markers.accept((chunk.tp, chunk.generation), accepted)
            for record, outcome in others:
                self._completion.complete(chunk, record, outcome)
        self._prefetch.finished(count, self._clock.monotonic())

    def _decided(self, chunk: Chunk, record: DecodedRecord | RawRecord, reason: str, delay_s: float) -> None:
        self._less(chunk, 1)
        self._report(chunk, [record.offset], reason)

    def _report(self, chunk: Chunk, offsets: list[int], reason: str = "") -> None:
        if self._reporter is not None:
            for offset in offsets:
                self._reporter.note(chunk.tp, offset, chunk.attempt(offset), reason)

    def _less(self, chunk: Chunk, count: int) -> None:
        self.outstanding -= count
        left = self._live.get(chunk, 0) - count
        if left > 0:
            self._live[chunk] = left
        else:
            self._live.pop(chunk, None)
        self._room.set()
        if not self.outstanding:
            self._empty.set()

    # --- loops --------------------------------------------------------------------------------------------------

    def _at_pool(self, function: Callable[..., None], *args: object) -> None:
        """Call a function of the pool, on the pool's loop where it must be."""
        if self._pool.fed_anywhere or self._handler_loop is self._service_loop:
            function(*args)
        elif not self._handler_loop.is_closed():
            self._handler_loop.call_soon_threadsafe(function, *args)

    def _soon(self, callback: Callable[[], object]) -> None:
        if not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(callback)


def _runs(taken: Taken) -> list[tuple[list[RawRecord], int]]:
    """Group neighbouring records of the same attempt."""
    if taken.attempts is None:
        return [(taken.records, 1)]
    found: list[tuple[list[RawRecord], int]] = []
    for record, attempt in zip(taken.records, taken.attempts, strict=True):
        if found and found[-1][1] == attempt:
            found[-1][0].append(record)
        else:
            found.append(([record], attempt))
    return found
