"""`GroupMember`: one member of a share group for blocking code: the source's process acquires and acknowledges with it.

A separate thread with an event loop runs the backend and the member, renews locks while a batch runs, and follows the
topics of a pattern. This module does not use Spark.

A query that is started again is the same member to its group, and takes its locks over. Its old process may still live,
stopped or cut off: each process joins with its own `rack_id`, and a process that finds another one beside its member id
does nothing any more (`Fenced`). It looks once a second, and before it joins again a group that gave it up. Epochs are
no fence: they may be equal by chance.

Acquiring is ranges-only where flowshare leads the group (`max_bytes=0`). Kafka's brokers also send the records, which
are ignored: executors read them from the log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from flowshare.agents.host.service import ServiceLoop
from flowshare.backend import open_backend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ClientError, Closed
from flowshare.client.session.member import ShareMember
from flowshare.client.settings import MIB, LinkSettings, MemberSettings
from flowshare.clock import LoopClock
from flowshare.core_errors import FlowshareError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AcknowledgeType, AckRange
from flowshare.spark.source import progress
from flowshare.spark.source.group import EARLIEST, all_begun, need_dead_letter_topic, prepare_group, topics_of
from flowshare.spark.source.ledger import Entry, Ledger
from flowshare.spark.source.locks import UNKNOWN_S, Locks
from flowshare.spark.source.ranges import Place, Range, RangeSet, by_place, merged, records_in

if TYPE_CHECKING:
    from flowshare.backend.base import Backend
    from flowshare.spark.source.group import DeliveryLimits
    from flowshare.spark.source.options import SourceOptions

T = TypeVar("T")
P = ParamSpec("P")

BYTES_MAX: Final = 50 * MIB
"""The most bytes of one fetch from Kafka's brokers, which send no ranges without records."""
OPEN_S: Final = 60.0
CLOSE_S: Final = 10.0
ASSIGNED_S: Final = 10.0
"""The longest wait, in seconds, of a member that took over for its partitions, before it acknowledges its old
records."""
LOCK_MS: Final = 30_000
"""A lock's duration, in milliseconds, before any is known."""
TOPICS_S: Final = 5.0
"""The seconds between two look-ups of a pattern's topics."""
BEGUN_S: Final = 1.0
"""The seconds between two checks if a new group has begun everywhere."""
RENEW_S: Final = 0.5
"""The longest time, in seconds, between two looks for due locks; their duration is not known before the first."""
RELEASE_S: Final = 2.0
"""The time limit, in seconds, for a leaving member to give back a batch."""
LEADERS_S: Final = 10.0
"""The seconds between two look-ups of the partitions' leaders, where leaders count deliveries in memory."""
SPARK: Final = "spark-"
"""The prefix of the `rack_id` of Spark's members."""
LOOK_S: Final = 1.0
"""The seconds between two checks of a member that no other process has its id."""

logger = logging.getLogger("flowshare.spark")


class RangeAck(NamedTuple):
    """Acknowledgement of a range: one type for all of its offsets. delay_ms: delay of a release, where servers support
    it."""

    type: AcknowledgeType
    delay_ms: int = 0


ACCEPT: Final = RangeAck(AcknowledgeType.ACCEPT)
RENEW: Final = RangeAck(AcknowledgeType.RENEW)
RELEASE: Final = RangeAck(AcknowledgeType.RELEASE)


NO_BATCH: Final = Entry(0, "")


class Fenced(FlowshareError, RuntimeError):
    """Another process runs this query by now; this process must end."""


class GroupMember:
    """A member of a share group; all methods block, and one thread at a time uses it.

    Errors of all methods when the group or the backend refuses: ClientError; Fenced.
    """

    def __init__(
        self, options: SourceOptions, member_id: str, *, adopts: bool = False, known: Entry = NO_BATCH
    ) -> None:
        """adopts: an earlier process had this id, and `adopt` will be called. known: the newest committed batch in the
        query's checkpoint."""
        self._options = options
        self._known = known
        self.member_id = member_id
        self._adopts = adopts
        self._life = f"{SPARK}{uuid.uuid4().hex[:12]}"
        self._clock = LoopClock()
        self._holds = Locks()
        self._places: dict[Place, TopicPartition] = {}
        """Every partition that was ever assigned, or of which an earlier process held records: held records stay this
        member's when the partition is another member's by now."""
        self._topics: dict[str, str] = {}
        self._leaders: dict[Place, str] = {}
        self._leaders_s = 0.0
        self._looked_s = 0.0
        self.fenced = False
        """True if another process was found to have this member's id."""
        self.others: dict[str, str] = {}
        """Other queries of Spark in the group, as last seen -> their hosts."""
        self.locks_lost = 0
        """The number of records whose lock was lost while they were held."""
        self._run: list[Range] = []
        self._service = ServiceLoop(name=f"flowshare {options.group}")
        self._joined = contextlib.AsyncExitStack()
        """Resources to close when the member ends, in order."""
        self._backend: Backend
        self._admin: ShareAdmin
        self._ledger: Ledger
        self._member: ShareMember
        self.facts: DeliveryLimits

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, str]:
        """The topics from which records were acquired -> their ids."""
        return dict(self._topics)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses of the log, `host:port` of brokers: those of the Kafka cluster, or of the embedded path."""
        kafka = self._backend.kafka
        return () if kafka is None else kafka.hosts

    @property
    def letters_by_choice(self) -> bool:
        """True if the group chooses the records of which its server writes letters; see `Capabilities`."""
        return self._backend.capabilities.letters_by_choice

    def leader(self, place: Place) -> str:
        """Return the name of the leader that counts the deliveries of a partition, as of
        `flowshare.spark.source.progress`.

        It is looked up before each acquire, and so never later than the leader of the acquired records. Empty: not
        known.
        """
        if self._backend.capabilities.durable_acquires:
            return self._backend.kind
        return self._leaders.get(place, "")

    @property
    def refused(self) -> bool:
        """True if the group refused this member for good: it acquires nothing any more."""
        return self._member.failed is not None

    @property
    def lock_s(self) -> float:
        """The lock duration of acquired records, in seconds."""
        return (self._member.lock_timeout_ms or LOCK_MS) / 1000

    # --- opening and closing ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the backend, set the group up, join.

        Raises: BackendError, OptionError, TimeoutError, StrangeCheckpoint.
        """
        self._service.start()
        joining = self._service.submit(self._join)
        try:
            joining.result(OPEN_S)
        except BaseException as error:
            # Otherwise it would join later, and fence the process that has the member's id by then.
            late = joining.cancel() and isinstance(error, TimeoutError)
            self.close()
            if not late:
                raise
            raise TimeoutError(
                f"group {self._options.group} was not joined within {OPEN_S:g} s: see whether its brokers and workers "
                "are well (`flowshare check`)"
            ) from None

    def close(self, run: Iterable[Range] = ()) -> None:
        """Give back all held records, leave the group, close the backend; does no harm if the backend was not opened.

        run: ranges of batches in the write-ahead log, given back as delivered once more; all others go back as if not
        delivered, where servers can.
        """
        if self._service.running:
            self._run = list(run)
            with contextlib.suppress(TimeoutError):
                self._service.submit(self._joined.aclose).result(CLOSE_S)
            self._service.stop()

    # --- acquiring ----------------------------------------------------------------------------------------------

    def acquire(self, records_max: int, wait_s: float) -> list[Range]:
        """Acquire ranges of up to about `records_max` records, waiting up to `wait_s` seconds for the first; they are
        held then.

        An interrupted caller (SIGTERM raises in any call) can call this again at once: ranges on their way come then,
        or are given back with all held ones.
        """
        acquiring = self._begin(self._acquire(records_max, wait_s))
        try:
            return acquiring.result()
        except BaseException:
            acquiring.cancel()  # a member fetches once at a time
            raise

    def all_held(self) -> list[Range]:
        """Return all held ranges, each with its delivery."""
        return self._call(self._look_up(self._holds.ranges))

    def held(self, ranges: Iterable[Range]) -> list[list[Range]]:
        """Return, for each range, its held parts, each with its delivery."""
        wanted = list(ranges)
        return self._call(self._look_up(lambda: [[part for part, _ in self._holds.parts(one)] for one in wanted]))

    def adopt(self, ranges: Iterable[Range], topics: Mapping[str, str]) -> None:
        """Take over the locks of an earlier process of this query in these ranges, if the topics still have these ids.

        The locks are renewed from now on; all other records that the process had acquired go back to the group. Some
        may have been lost with the process: its connection ended, or it was away for too long. Call this once; after an
        error close this member.
        """
        self._call(self._adopt(list(ranges), topics))

    # --- acknowledging ------------------------------------------------------------------------------------------

    def accept(self, ranges: Iterable[Range], batch: Entry = NO_BATCH) -> list[Range]:
        """Accept ranges; return those that were refused or not known: their lock was lost.

        batch: the newest batch of the ranges, which is noted first.
        """
        return self.begin_accept(ranges, batch).result()

    def begin_accept(self, ranges: Iterable[Range], batch: Entry = NO_BATCH) -> concurrent.futures.Future[list[Range]]:
        """Begin `accept` without waiting."""
        return self._begin(self._accept(merged(ranges), batch))

    def acknowledge(self, types: Mapping[Range, RangeAck]) -> list[Range]:
        """Acknowledge ranges; return the refused ones."""
        return self._call(self._acknowledge(types)) if types else []

    def ask(
        self, question: Callable[Concatenate[ShareAdmin, P], Coroutine[Any, Any, T]], *told: P.args, **more: P.kwargs
    ) -> T:
        """Return the answer to a question of `flowshare.spark.source.progress`."""
        return self._call(question(self._admin, *told, **more))

    def leaders_now(self) -> dict[Place, str]:
        """Return the leaders that count deliveries, of partitions from which records were acquired."""
        if self._backend.capabilities.durable_acquires:
            return dict.fromkeys(self._places, self._backend.kind)
        return self._call(progress.leaders_now(self._admin, self._options.group))

    # --- the thread ---------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            asked = {self._options.group: ()}
            self._backend = open_backend(self._options.broker, clock=self._clock, asked=asked)
            stack.push_async_callback(self._backend.close)
            await self._backend.start()

            connect = partial(self._backend.connect, f"spark-{self._options.group}")
            self._admin = ShareAdmin(connect, clock=self._clock, client_id="spark")
            stack.push_async_callback(self._admin.close)
            self._ledger = Ledger(self._admin, self._options.group, self.member_id)
            if self._adopts:
                await self._ledger.check(self._known)
            self.facts = await prepare_group(self._options, self._admin, self._backend.capabilities)
            topics = await topics_of(self._options, self._admin)
            await need_dead_letter_topic(self._options, self._admin, topics)
            self._member = ShareMember(
                connect,
                group_id=self._options.group,
                topics=topics,
                clock=self._clock,
                member_id=self.member_id,
                settings=MemberSettings(link=LinkSettings(acknowledge_linger=0.0), rack_id=self._life),
                adopts=self._adopts,
                joins_again=self._joins_again,
            )
            stack.push_async_callback(self._leave)
            await self._member.start()
            deadline_s = self._clock.monotonic() + ASSIGNED_S
            while not self._member.assignment and self._clock.monotonic() < deadline_s:
                await self._clock.sleep(0.02)
            self._note_topics()
            for beside in (self._renew(), self._watch(), self._follow_topics(), self._see_begun(topics)):
                stack.callback(asyncio.create_task(beside).cancel)
            self._joined = stack.pop_all()

    async def _leave(self) -> None:
        """Give back all held records, without costing a delivery where servers can, and leave; a fenced member just
        ends.

        Records in the write-ahead log go back as delivered or not at all: a leader that is being replaced may answer
        the second request and not the first, and a record that came again with its old count would look like one of a
        reset group.
        """
        logged = RangeSet(self._run)
        run = [part for one in logged.ranges() for part, _ in self._holds.parts(one)]
        try:
            await asyncio.wait_for(self._acknowledge(dict.fromkeys(merged(run), RELEASE)), RELEASE_S)
        except (ClientError, OSError, TimeoutError) as error:
            logger.debug("group %s: a batch was not given back: %s", self._options.group, error)
        except Fenced:
            await self._member.abandon()
            return
        await self._member.close(unrun=self._by_partition(logged.split(*self._holds.ranges())[1]))

    def _by_partition(self, ranges: Iterable[Range]) -> dict[TopicPartition, list[tuple[int, int]]]:
        return {
            self._places[place]: [(one.first, one.last) for one in runs] for place, runs in by_place(ranges).items()
        }

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._begin(work).result()

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the member's thread. Raises: Closed: the thread has ended, as after a takeover."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._service.loop)
        except RuntimeError:
            work.close()
            raise Closed(f"the member of group {self._options.group} has ended") from None

    # --- on the loop --------------------------------------------------------------------------------------------

    async def _look_up(self, look: Callable[[], T]) -> T:
        """Call `look` on the event loop: the member's holds change only there, and are read only there."""
        return look()

    async def _acquire(self, records_max: int, wait_s: float) -> list[Range]:
        await self._look()
        await self._look_up_leaders()
        ranges_only = self._backend.capabilities.ranges_only
        found: list[Range] = []
        while (room := records_max - records_in(found)) > 0:
            try:
                fetched = await self._member.fetch(
                    records_max=room,
                    batch_size=room,
                    max_wait_s=0.0 if found else wait_s,
                    bytes_max=0 if ranges_only else BYTES_MAX,
                )
            except ClientError:
                if not found:
                    raise
                break  # what came before is held, and must get into a batch; the next call meets the error again
            if not fetched:
                break
            for one in fetched:
                got = [Range(one.topic, one.partition, *run) for run in one.acquired]
                self._holds.take(got, one.lock_deadline, one.generation)
                found += got
        self._note_topics()
        return found

    async def _adopt(self, ranges: list[Range], topics: Mapping[str, str]) -> None:
        asked = {one.topic for one in ranges} - self._topics.keys()  # assigned later, or not at all any more
        found = {topic.name: str(topic.topic_id) for topic in await self._admin.describe_topics(asked)}
        self._topics = {**found, **self._topics}
        known = [one for one in ranges if topics.get(one.topic, "") == self._topics.get(one.topic)]
        for one in known:
            self._places.setdefault(one.place, TopicPartition(uuid.UUID(self._topics[one.topic]), one.partition))
        await self._member.adopt(self._by_partition(known))
        self._holds.take(known, UNKNOWN_S, None)

    async def _accept(self, ranges: Iterable[Range], batch: Entry) -> list[Range]:
        await self._look()
        await self._ledger.note(batch)
        return await self._acknowledge(dict.fromkeys(ranges, ACCEPT))

    async def _acknowledge(self, types: Mapping[Range, RangeAck]) -> list[Range]:
        await self._look()
        acks: list[tuple[Range, int | None, RangeAck]] = []
        for one, ack in types.items():
            parts = self._holds.parts(one)
            self._holds.let_go(one)
            left = RangeSet(part for part, _ in parts).split(one)[1]
            acks += [(part, generation, ack) for part, generation in [*parts, *((part, None) for part in left)]]
        return await self._settle(acks)

    async def _settle(self, acks: Iterable[tuple[Range, int | None, RangeAck]]) -> list[Range]:
        """Send acknowledgements, each over the connection of its generation; return the refused ranges.

        One lost lock refuses all of its partition, so those are sent again one by one.
        """
        over: dict[int | None, dict[Range, RangeAck]] = {}
        for one, generation, ack in acks:
            over.setdefault(generation, {})[one] = ack
        refused: list[Range] = []
        for generation, types in over.items():
            for place in await self._send(types, generation):
                parts = [one for one in types if one.place == place]
                if len(parts) == 1:
                    refused += parts
                    continue
                for one in parts:
                    refused += [one] if await self._send({one: types[one]}, generation) else []
        return refused

    async def _send(self, types: Mapping[Range, RangeAck], generation: int | None) -> set[Place]:
        """Send one request; return the partitions whose part was refused."""
        acks: dict[TopicPartition, list[AckRange]] = {}
        for one in sorted(types):
            if one.place in self._places:
                batch = AckRange(one.first, one.last, bytes((types[one].type,)), types[one].delay_ms)
                acks.setdefault(self._places[one.place], []).append(batch)
        results = await self._member.acknowledge(acks, generation=generation) if acks else []
        told = {result.tp for result in results if result.error is ErrorCode.NONE}
        return {one.place for one in types if self._places.get(one.place) not in told}

    async def _renew(self) -> None:
        """Renew held locks when a third of their duration has passed. A refused range is lost: it comes again, and is
        known by then as done, or is part of a batch that has not ended."""
        while True:
            await self._clock.sleep(min(RENEW_S, self.lock_s / 6))
            lock_s = self.lock_s
            due = self._holds.due(self._clock.monotonic() + lock_s * 2 / 3)
            if not due:
                continue
            try:
                await self._look()
                parts = [(part, generation, RENEW) for one in due for part, generation in self._holds.parts(one)]
                lost = set(await self._settle(parts))
            except Fenced as error:
                logger.warning("locks of group %s are not renewed any more: %s", self._options.group, error)
                return
            except (ClientError, OSError) as error:
                logger.warning("locks of group %s were not renewed: %s", self._options.group, error)
                continue
            for one in due:
                if one not in lost:
                    self._holds.renewed(one, self._clock.monotonic() + lock_s)
            gone = [one for one in lost if self._holds.lost(one)]
            self.locks_lost += records_in(gone)
            if gone:
                logger.warning("group %s: %d records' locks were lost", self._options.group, records_in(gone))

    async def _look(self) -> None:
        """Check, once a second, that no later process has this member's id. Raises: Fenced, from then on."""
        now_s = self._clock.monotonic()
        if not self.fenced and now_s >= self._looked_s + LOOK_S:
            group = await self._admin.describe_group(self._options.group)
            mine = [member for member in group.members if member.member_id == self.member_id]
            self.fenced |= any(member.rack_id and member.rack_id != self._life for member in mine)
            self.others = {
                member.member_id: member.client_host
                for member in group.members
                if member.member_id != self.member_id and (member.rack_id or "").startswith(SPARK)
            }
            self._looked_s = now_s
        if self.fenced:
            raise Fenced(f"member {self.member_id} of group {self._options.group} is another process by now")

    async def _watch(self) -> None:
        """Look also while the member is idle: another process with this id may leave again, and would then not be
        seen."""
        while not self.fenced:
            await self._clock.sleep(LOOK_S)
            with contextlib.suppress(ClientError, OSError, Fenced):
                await self._look()

    async def _joins_again(self) -> bool:
        """True if the group gave this member up for another reason than a later process with its id."""
        self._looked_s = 0.0
        with contextlib.suppress(ClientError, OSError, Fenced):  # who cannot be asked meets a join with the same error
            await self._look()
        return not self.fenced

    async def _look_up_leaders(self) -> None:
        """Look up the leaders of assigned partitions, where that matters: when more are assigned, and every
        LEADERS_S."""
        assigned = {(tp.topic, tp.partition) for tp in self._member.assignment}
        now_s = self._clock.monotonic()
        if self._backend.capabilities.durable_acquires or (
            now_s < self._leaders_s + LEADERS_S and assigned <= self._leaders.keys()
        ):
            return
        self._leaders = dict.fromkeys(assigned, "")
        self._leaders.update(await progress.leaders(self._admin, {topic for topic, _ in assigned}))
        self._leaders_s = now_s

    async def _follow_topics(self) -> None:
        """Subscribe to later topics of the pattern."""
        while self._options.topics_pattern:
            await self._clock.sleep(TOPICS_S)
            try:
                self._member.subscribe(await topics_of(self._options, self._admin))
            except (ClientError, OSError) as error:
                logger.warning("topics of %r were not looked up: %s", self._options.topics_pattern, error)

    async def _see_begun(self, topics: list[str]) -> None:
        """Wait until the present topics have begun at `start`, then make later ones begin at their beginning."""
        while self._options.start != EARLIEST:
            try:
                if await all_begun(self._options, self._admin, topics):
                    return
            except (ClientError, OSError) as error:
                logger.debug("group %s: where it has begun is not known: %s", self._options.group, error)
            await self._clock.sleep(BEGUN_S)

    def _note_topics(self) -> None:
        for tp in self._member.assignment:
            if self._topics.get(tp.topic, str(tp.topic_id)) != str(tp.topic_id):
                self._holds.forget(tp.topic)  # of a topic that is gone: the same offsets are other records now
            self._topics[tp.topic] = str(tp.topic_id)
            self._places[tp.topic, tp.partition] = tp.tp
