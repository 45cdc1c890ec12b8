"""`KmqMember` is an agent's member of a KMQ queue, with the interface that the feed needs.

ask ──▶ fetch ──▶ start markers, confirmed ──▶ commit ──▶ the records are taken ──▶ ACCEPT: end markers, confirmed

the feed says         here
ask                   as many records are marked, as soon as there are some: a record's time runs from its start
                      marker on
ACCEPT                an end marker is written; answered when it is confirmed
any other outcome     nothing is written: the tracker sends the record again when its time is over
a partition is        nothing that is marked and committed is lost: markers belong to no consumer. What is marked
another consumer's    and not committed is dropped, as the partition's new owner reads it
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.agents.handler.chunk import runs
from flowshare.agents.handler.options import READ_COMMITTED
from flowshare.agents.kmq.markers import MarkerSender
from flowshare.agents.kmq.unmarked_records import Ahead, Taken
from flowshare.backoff import USUAL
from flowshare.client.errors import ClientError
from flowshare.client.groups.consumer import Bounds, GroupConsumer, Place
from flowshare.client.groups.membership import Generation, GenerationOver, GroupSettings
from flowshare.client.groups.reading import read_log
from flowshare.client.kmq.tracker import QueueTracker
from flowshare.client.session.arrivals import Arrivals
from flowshare.client.session.ranges import AckResult, Fetched, TopicIdPartition
from flowshare.client.session.shell import answered
from flowshare.client.settings import session_s
from flowshare.kmq.redelivery import redelivered
from flowshare.protocol.decoding import RawDecoded, with_unreadable
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError, frames
from flowshare.protocol.messages import TopicPartition
from flowshare.protocol.settle_codec import NO_ID
from flowshare.share.types import AcquiredRange
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.agents.feed.members import Unrun
    from flowshare.agents.kmq.agent import KmqAgent
    from flowshare.agents.run.pool import Environment
    from flowshare.agents.run.stats import AgentStats
    from flowshare.client.groups.consumer import Reset
    from flowshare.client.session.share_session import Plan
    from flowshare.client.session.shell import Late, Told
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.messages import FetchedLog
    from flowshare.share.types import AckRange

WAIT_MS: Final = 250
TROUBLE_AFTER: Final = 3
NOT_ENDED: Final = "outcome unknown: no end marker could be written: "

logger = logging.getLogger("flowshare.agents")


class KmqMember:
    """One consumer of a KMQ queue, and the tracker beside it; on the service loop."""

    generation = 0
    """No record that was handed on is ever lost."""

    def __init__(self, agent: KmqAgent, environment: Environment, stats: AgentStats) -> None:
        self._agent = agent
        self._environment = environment
        self._clock = environment.clock
        self._stats = stats
        self._markers = MarkerSender(
            agent.markers,
            after_ms=round(agent.redeliver_after_s * 1000),
            producer=environment.producer,
            clock=environment.clock,
        )
        self._consumer = GroupConsumer(
            environment.connect,
            group_id=agent.group,
            topics=agent.topics,
            clock=environment.clock,
            reset=self._reset(),
            committed=agent.options.isolation == READ_COMMITTED,
            settings=GroupSettings(session_timeout=session_s(agent.redeliver_after_s)),
            on_assigned=self._assigned,
        )
        self.tracker = self._own_tracker() if agent.with_tracker or environment.trackers else None
        self._topic_id = NO_ID
        self._ahead = Ahead()
        self._read_in: Generation | None = None
        """The generation in which `_ahead` was read."""
        self._fetching: tuple[Generation, asyncio.Task[list[FetchedLog]]] | None = None
        """The next fetch, with its generation."""
        self._plan: Plan | None = None
        """The records asked for, of which none is being marked yet."""
        self._asked = asyncio.Event()
        self._arrivals = Arrivals()
        self._task: asyncio.Task[None] | None = None
        self._unread: str | None = None

    def _reset(self) -> Reset:
        start = self._agent.options.start
        if isinstance(start, str):
            return "latest" if start == "latest" else "earliest"
        back = self._agent.options.auto_offset_reset  # by_duration:PTnS
        return self._clock.now_ms() - round(float(back.removeprefix("by_duration:PT").removesuffix("S")) * 1000)

    def _own_tracker(self) -> QueueTracker:
        environment = self._environment
        return QueueTracker(
            environment.connect,
            self._agent.rules,
            group_id=self._agent.tracker_group,
            clock=self._clock,
            admin=environment.admin,
            producer=environment.producer,
            widens=self._agent.app.conf.topic_allow_declare,
        )

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        """Id of the consumer in its group; empty before it joined."""
        generation = self._consumer.generation
        return "" if generation is None else generation.member_id

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Partitions that the consumer reads."""
        return frozenset(TopicIdPartition(*place, self._topic_id) for place in self._consumer.positions)

    @property
    def lock_timeout_ms(self) -> int:
        """Milliseconds from a start marker until the tracker sends the record again."""
        return round(self._agent.redeliver_after_s * 1000)

    @property
    def trouble(self) -> str | None:
        """Reason why nothing arrives; None when all is well."""
        return self._consumer.member.trouble or self._unread

    def problems(self) -> list[str]:
        """Return the reasons why the queue is not read, or its own tracker does not work."""
        texts = [self._consumer.member.trouble, self._unread, *(self.tracker.problems() if self.tracker else ())]
        return [text for text in texts if text]

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Return True: markers belong to no consumer."""
        del tp, generation
        return True

    async def finished(self) -> bool:
        """Return True if nothing of its partitions is left to be marked, or to be sent again by its own tracker.

        Raises: ServerError, OSError, ClientError.
        """
        admin, queue = self._environment.admin, self._agent.queue
        partitions = (await admin.describe_topic(queue)).partitions
        for number in range(partitions):
            if self._consumer.positions.get((queue, number), -1) < await admin.log_end(queue, number):
                return False
        tracker = self.tracker
        if tracker is not None:
            ends = {number: await admin.log_end(self._agent.markers, number) for number in range(partitions)}
            if not tracker.has_read(ends) or tracker.open:
                return False
        return not len(self._ahead)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the own tracker, and begin to join the group. Raises: ClientError, OSError."""
        topic = await self._environment.producer.topic(self._agent.queue)
        self._topic_id = topic.topic_id or NO_ID
        if self.tracker is not None:
            await self.tracker.start()
        self._consumer.start()
        self._task = asyncio.create_task(self._run(), name=f"KMQ agent {self._agent.name}")

    async def confirm(self) -> None:
        """Return at once: no record that was handed on can be lost."""

    def unsubscribe(self) -> None:
        """Keep the partitions until `close`: who gets them next reads from what is committed."""

    async def close(self, *, unrun: Unrun | None = None) -> None:
        """Leave the group; `unrun` records are left to the tracker."""
        await self._stop()
        for tp, ranges in (unrun or {}).items():
            count = sum(last - first + 1 for first, last in ranges)
            self._stats.unrun += count
            logger.warning(
                "agent=%s topic=%s partition=%d: %d records are left to the tracker: no handler had begun them",
                self._agent.name,
                self._agent.queue,
                tp.partition,
                count,
            )
        if self.tracker is not None:
            await self.tracker.close()
        await self._consumer.close()

    async def leave_to_locks(self, *, unrun: Unrun) -> None:
        """Close as `close`."""
        await self.close(unrun=unrun)

    async def _stop(self) -> None:
        task, self._task = self._task, None
        await cancelled(task)
        fetching, self._fetching = self._fetching, None
        await cancelled(None if fetching is None else fetching[1])

    def _assigned(self, generation: Generation, bounds: Mapping[Place, Bounds]) -> None:
        """Drop what was read ahead in an older generation: it is read again from the group's commits."""
        if generation is not self._read_in:
            self._read_in = generation
            self._ahead.clear()

    # --- records ------------------------------------------------------------------------------------------------

    def ask(self, plan: Plan) -> None:
        """Mark records as soon as there are some."""
        self._plan = plan
        self._asked.set()

    def withdraw(self) -> None:
        """End an `ask` without records, unless some are being marked."""
        if self._plan is not None:
            self._plan = None
            self._asked.clear()
            self._arrivals.put([])

    def on_fetched(self, listener: Callable[[], object] | None) -> None:
        """Call `listener` when an `ask` has ended."""
        self._arrivals.listener = listener
        if listener is not None and self._arrivals.ready:
            listener()

    def take_fetched(self) -> list[Fetched]:
        """Return the records that the last `ask` brought."""
        return self._arrivals.take()

    async def last_fetch(self) -> list[Fetched]:
        """Return the records that were marked and not taken, for a member that stops: no more are marked."""
        await self._stop()
        return self._arrivals.take()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._serve()
            except Exception as error:
                failures += 1
                self._unread = f"its queue cannot be read: {error}" if failures >= TROUBLE_AFTER else self._unread
                if isinstance(error, OSError | ClientError | DecodeError):
                    logger.warning("agent=%s topic=%s: %s", self._agent.name, self._agent.queue, error)
                else:  # a bug must not end the agent in silence
                    logger.exception("agent=%s topic=%s: reading failed", self._agent.name, self._agent.queue)
                await self._clock.sleep(USUAL.after(failures))
            else:
                failures, self._unread = 0, None

    async def _serve(self) -> None:
        """Mark and hand on records for the plan, if there are some now."""
        generation = await self._consumer.ready()
        await self._asked.wait()
        if not len(self._ahead) and not await self._read(generation):
            return
        plan = self._plan
        if plan is None or self._consumer.generation is not generation:
            return
        taken = self._ahead.take(plan.records_max)
        if not taken:
            return
        if not len(self._ahead) and self._fetching is None:
            self._fetching = generation, self._fetch()
        self._plan = None
        self._asked.clear()
        try:
            fetched = await self._marked(generation, taken)
        except Exception:
            self._again(plan)
            raise
        if fetched:
            self._arrivals.put(fetched)
        else:
            self._again(plan)

    def _again(self, plan: Plan) -> None:
        """Ask once more for a plan whose records could not be marked."""
        self._plan = self._plan or plan
        self._asked.set()

    async def _read(self, generation: Generation) -> bool:
        """Read ahead; False: the generation is over. Raises: OSError, ClientError."""
        logs = await self._fetched(generation)
        if self._consumer.generation is not generation:
            return False
        for log in logs:
            self._take_log(generation, log)
        passed = self._ahead.passed()
        return not passed or await self._commit(generation, passed)

    async def _fetched(self, generation: Generation) -> list[FetchedLog]:
        """Return the records of the fetch under way, or fetch them now. Raises: OSError, ClientError."""
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            if fetching[0] is generation:
                return await fetching[1]
            await cancelled(fetching[1])  # its offsets are of another time
        return await self._fetch()

    def _fetch(self) -> asyncio.Task[list[FetchedLog]]:
        fetching = self._consumer.fetch(wait_ms=WAIT_MS)
        return asyncio.create_task(fetching, name=f"KMQ agent {self._agent.name}: fetch")

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
                self._agent.name,
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
        name = self._agent.count_header
        if name.encode() not in log.records and all(
            head.codec == "none" for head in frames(log.records, partial_tail=True)
        ):
            return None
        return [1 + redelivered(record.headers, name) for record in records]

    async def _marked(self, generation: Generation, taken: list[Taken]) -> list[Fetched]:
        """Mark and commit records, and return them; none: they are another member's.

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
            return []
        return [self._handed(one, began_s + self._agent.redeliver_after_s) for one in taken]

    async def _commit(self, generation: Generation, offsets: dict[Place, int]) -> bool:
        """Commit offsets, trying until the generation is over; False: it is over."""
        failures = 0
        while True:
            try:
                await self._consumer.commit(generation, offsets)
            except GenerationOver as error:
                logger.debug("agent=%s: %s", self._agent.name, error)
                self._consumer.give_up(generation)
                return False
            except (OSError, ClientError) as error:
                failures += 1
                logger.warning("agent=%s: group %s: %s", self._agent.name, self._agent.group, error)
                await self._clock.sleep(USUAL.after(failures))
            else:
                return True

    def _handed(self, taken: Taken, deadline_s: float) -> Fetched:
        """Put records into the form that a server sends."""
        found = _runs(taken)
        return Fetched(
            topic=taken.place[0],
            topic_id=self._topic_id,
            partition=taken.place[1],
            records=b"",
            acquired=tuple(
                AcquiredRange(first, last, count)
                for records, count in found
                for first, last in runs([record.offset for record in records])
            ),
            lock_deadline=deadline_s,
            generation=self.generation,
            read=RawDecoded(runs=found),
        )

    # --- outcomes -----------------------------------------------------------------------------------------------

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """End records that were accepted; returns when their end markers are confirmed."""
        return await answered(lambda told: self.begin_acknowledge(acks, told, generation=generation, on_late=on_late))

    def begin_acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
        rides: bool = False,
    ) -> None:
        """As `acknowledge`; `told` is called once."""
        del generation, on_late, rides
        said = tuple(acks.items())
        sent = [self._markers.end(tp.partition, _offsets(ranges)) for tp, ranges in said]
        asyncio.gather(*sent, return_exceptions=True).add_done_callback(partial(self._ended, said, told))

    def _ended(
        self,
        said: Sequence[tuple[TopicPartition, Sequence[AckRange]]],
        told: Told,
        done: asyncio.Future[list[list[None] | BaseException]],
    ) -> None:
        ends = [asyncio.CancelledError()] * len(said) if done.cancelled() else done.result()
        told([self._result(tp, ranges, end) for (tp, ranges), end in zip(said, ends, strict=True)])

    def _result(self, tp: TopicPartition, ranges: Sequence[AckRange], end: list[None] | BaseException) -> AckResult:
        result = AckResult(self._agent.queue, *tp, tuple(ranges), ErrorCode.NONE, None, 0.0)
        if not isinstance(end, BaseException):
            return result
        return result._replace(error=ErrorCode.NETWORK_EXCEPTION, message=f"{NOT_ENDED}{end!r}")


def _offsets(ranges: Sequence[AckRange]) -> list[int]:
    return [offset for ack in ranges for offset in range(ack.first, ack.last + 1)]


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
