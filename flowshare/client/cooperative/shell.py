"""`CooperativeShell`: a member of a cooperative group, but for what it holds, which `member` adds.

Five things go on beside each other, and know of each other by `Partitions` only:

    membership   rounds of the group say who is in it                               `GroupMember`
    holding      what is the member's, by leases                                    `member`
    reading      it reads what it holds something of                                `LogReader`
    committing   what is finished; what is to be begun not for the first time       `Commits`
    following    the group's ordinary offset is the stable one                      `OrdinaryOffsets`

A lease is counted from when it was asked for, by the member's own clock: so it ends here before it ends at the server.
From then on nothing is begun, and nothing that was begun counts.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.cooperative.assigning import PROTOCOL, Place, assign, encode_user_data
from flowshare.client.cooperative.commits import Commits
from flowshare.client.cooperative.ordinary import OrdinaryOffsets
from flowshare.client.cooperative.partitions import Partition, Partitions, Record
from flowshare.client.cooperative.reading import LogReader
from flowshare.client.cooperative.settles import Settled, Settles
from flowshare.client.errors import ClientError, Closed, check
from flowshare.client.groups.member import GroupMember
from flowshare.client.groups.membership import Generation, GroupSettings
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import CooperativeSettings
from flowshare.cooperative.types import KeyRanges
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import MetadataRequest, OffsetCommitRequest, OffsetToCommit
from flowshare.protocol.messages.cooperative import (
    CooperativeHoldRequest,
    GroupOffset,
    WantedKeys,
)
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import SettleOutput, TopicMetadata
    from flowshare.protocol.messages.cooperative import CooperativeHoldResponse

LEASE_SPARE: Final = 0.06
"""This part of a lease is not used: who is told that it is over needs a moment to stop what it does."""
RENEWALS: Final = 3
"""Renewals within a lease."""
TOPICS_S: Final = 1.0
ABSENT: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
FAULT_S: Final = 1.0
"""After a fault of ours."""
RELEASE_S: Final = 2.0
"""How long a member that leaves waits for the answer."""
MANUAL_GENERATION: Final = 0

logger = logging.getLogger(__name__)


class CooperativeShell(abc.ABC):
    """One member. All methods are called on one event loop; so are the callbacks."""

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        topics: Sequence[str],
        joins: bool,
        settings: CooperativeSettings | None,
        member_id: str | None,
        on_ready: Callable[[], object],
        on_lost: Callable[[Partition, list[Record]], object],
    ) -> None:
        """joins: whether it is in the group's rounds."""
        self.group_id = group_id
        self.member_id = member_id or str(uuid.uuid4())
        self._settings = settings or CooperativeSettings()
        self._clock = clock
        self._topics = tuple(sorted(topics))
        self.partitions = Partitions(clock, group_id)
        self.partitions.on_ready = on_ready
        self.partitions.on_lost = on_lost
        name = f"{group_id}: member {self.member_id}"
        self._link = Link(connect, clock=clock, settings=self._settings.link, name=name)
        self._reader_link = Link(connect, clock=clock, settings=self._settings.link, name=f"{name}: reader")
        self._group = self._membership(connect) if joins else None
        self._generation = MANUAL_GENERATION
        self._reader = LogReader(
            self._reader_link,
            self.partitions,
            group_id,
            settings=self._settings,
            clock=clock,
        )
        self._commits = Commits(self._link, self.partitions, group_id, self.member_id, clock=clock)
        self._settles = Settles(self._link, self.partitions, group_id, self.member_id, clock=clock)
        self._ordinary = OrdinaryOffsets(
            self._link,
            self.partitions,
            group_id,
            clock=clock,
            mine=self._mirrors,
            commit=self._commit_ordinary,
            ages=not joins,
        )
        self._targets: dict[Place, KeyRanges] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._sequence = 0
        self._answered = 0
        self._told = asyncio.Event()
        self._lapse: TimerHandle | None = None
        self._draining = False
        self._closed = False
        self._doubted: dict[Partition, None] = {}
        """Of which the server says that it knows no topic with that id."""

    def _membership(self, connect: Connect) -> GroupMember:
        settings = self._settings
        return GroupMember(
            connect,
            group_id=self.group_id,
            topics=self._topics,
            clock=self._clock,
            protocol=PROTOCOL,
            assignor=assign,
            user_data=self._user_data,
            on_assigned=self._assigned,
            settings=GroupSettings(
                session_timeout=settings.session_timeout,
                heartbeat_interval=settings.heartbeat_interval,
                rebalance_timeout=settings.rebalance_timeout,
                instance_id=settings.group_instance_id,
            ),
        )

    def _user_data(self) -> bytes:
        return encode_user_data(
            shares=self._settings.shares, unshared=self._settings.unshared_topics, owned=self._targets
        )

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def target(self) -> dict[Place, KeyRanges]:
        """The member's target key ranges by partition, from the newest rebalance."""
        return dict(self._targets)

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, in words; None when all is well (there may just be nothing to read)."""
        if self._group is not None and self._group.trouble:
            return self._group.trouble
        return self.partitions.trouble or self._waits_for()

    @abc.abstractmethod
    def _waits_for(self) -> str | None:
        """Describe the cause of the member's waiting, where nothing fails."""

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; harmless when that was done. Raises: Closed."""
        if self._closed:
            raise Closed("the member was closed")
        if self._tasks:
            return
        if self._group is not None:
            self._group.start()
        loops = (
            self._hold_loop,
            self._reader.read_loop,
            self._commits.commit_loop,
            self._commits.tell_loop,
            self._ordinary.follow_loop,
            self._reader.look_back_loop,
        )
        self._tasks = [asyncio.create_task(self._on(loop), name=f"{self.group_id}: {loop.__name__}") for loop in loops]

    async def _on(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop; a fault of ours must not end the member in silence."""
        while True:
            try:
                await loop()
            except Exception as error:
                logger.exception("group=%s: %s failed unexpectedly and goes on", self.group_id, loop.__name__)
                self.partitions.lacks("fault", f"{loop.__name__} failed: {type(error).__name__}: {error}")
                await self._clock.sleep(FAULT_S)

    @abc.abstractmethod
    async def _hold_loop(self) -> None:
        """Get what is the member's to have, and renew it."""

    @abc.abstractmethod
    def _assigned(self, generation: Generation) -> None:
        """A round of the group has ended."""

    async def close(self, *, release: bool = True) -> None:
        """Commit what is finished, give everything back, leave the group. What is in flight comes again elsewhere.

        release: False: nothing is given back: handlers go on that nobody can end, and the lease has to.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self._give_up(release=release)
        finally:  # also for a caller who waits no longer: nothing of the member may live on
            await self._stop_tasks()
            if self._group is not None:
                await self._group.close()
            for partition in list(self.partitions):
                self.partitions.lost(partition, partition.scan.lose())
            await self._link.close()
            await self._reader_link.close()

    async def _give_up(self, *, release: bool) -> None:
        """Commit and release everything before the member leaves, as far as answers come in time."""
        try:
            await self._clock.wait_for(self._all_answered(), self._settings.close_timeout)
        except TimeoutError:
            logger.warning("group=%s: not all commits were answered; what was not is handled again", self.group_id)
        finally:
            await self._settles.stop()
        await self._stop_tasks()
        if self._tasks:
            await self._ordinary.follow()
        if self._tasks and release:
            await self._release_all()

    async def _all_answered(self) -> None:
        await self._settles.ended()
        await self.flush()

    async def _stop_tasks(self) -> None:
        await cancelled(*self._tasks)
        if self._lapse is not None:
            self._lapse.cancel()

    async def _release_all(self) -> None:
        """Hold nothing any more, and say before how often what is not finished was begun; what is not answered ends
        with the lease."""
        tellings = [(one, told) for one in self.partitions if (told := one.scan.telling(owed=True)) is not None]
        owed = [(one, piece) for one, told in tellings for piece in told.pieces()]
        try:
            await self._clock.wait_for(self._commits.tell(owed), RELEASE_S)
        except TimeoutError:
            logger.info("group=%s: how often what goes back was begun is not known to all", self.group_id)
        try:
            async with self._commits.order:
                await self._clock.wait_for(self._say(self._shown()), RELEASE_S)
        except (OSError, ClientError, TimeoutError) as error:
            logger.info("group=%s: what was held is free when its lease ends: %s", self.group_id, error)

    def _shown(self) -> tuple[WantedKeys, ...]:
        """Nothing is wanted any more; of ordinary offsets that were written, and not told of, the server is told."""
        return tuple(
            WantedKeys(*one.key, (), GroupOffset(one.mirrored, one.stable_metadata))
            for one in self.partitions
            if one.shown and not one.begun
        )

    async def _say(self, wanted: Sequence[WantedKeys]) -> CooperativeHoldResponse:
        """Say all that the member wants to hold from now on. Raises: ServerError, OSError, ClientError."""
        self._sequence += 1
        answer = await self._link.send(
            CooperativeHoldRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                generation=self._generation,
                sequence=self._sequence,
                lease_ms=round(self._settings.lease * 1000),
                mode=self._settings.drain_mode,
                drain_timeout_ms=round(self._settings.drain_timeout * 1000),
                auto_offset_reset=self._settings.auto_offset_reset,
                exact_starts=self._settings.exact_starts,
                partitions=tuple(wanted),
            )
        )
        check(answer.error, answer.message, f"group {self.group_id}: holding keys")
        return answer

    @abc.abstractmethod
    def drain(self) -> None:
        """Begin nothing new, and give back what is finished: for a member that stops. It stays in the group."""

    @property
    def lease_spare_s(self) -> float:
        """So long before its leases end the member gives up what it holds."""
        return self._settings.lease * LEASE_SPARE

    # --- leases -------------------------------------------------------------------------------------------------

    def _heard(self) -> None:
        """The server has answered what is the member's."""
        self._answered = self._sequence
        self._told.set()
        self._watch_leases()
        self.partitions.changed()

    def _watch_leases(self) -> None:
        """See to it that what is held past its lease is lost."""
        if self._lapse is not None:
            self._lapse.cancel()
            self._lapse = None
        ends = [one.lease_end_s for one in self.partitions if one.scan.pieces]
        if ends:
            self._lapse = self._clock.call_later(max(0.0, min(ends) - self._clock.monotonic()), self._lapsed)

    def _lapsed(self) -> None:
        self._lapse = None
        for partition in list(self.partitions):
            if partition.scan.pieces and not self.partitions.live(partition):
                logger.warning(
                    "group=%s: the lease of %s is over, as the server did not answer in time; what was in flight comes "
                    "again where it is held next",
                    self.group_id,
                    partition.text,
                )
                self.partitions.lost(partition, partition.scan.lose())
        self.partitions.to_hold.set()
        self._watch_leases()

    # --- records ------------------------------------------------------------------------------------------------

    def next_s(self) -> float | None:
        """When the next record may be begun, 0: at once; None: none is there."""
        return self.partitions.next_s()

    def take(
        self, count: int, *, keys: int = 0, chain: int = 1, in_order: bool = False
    ) -> list[tuple[Partition, list[Record]]]:
        """Begin up to `count` records, in the order of each key: `Partitions.take`."""
        return self.partitions.take(count, keys=keys, chain=chain, in_order=in_order)

    def finish(self, partition: Partition, found: Record) -> bool:
        """The record is finished: it is committed soon. False: it is not the member's any more."""
        if not partition.scan.finish(found):
            return False
        self.partitions.to_commit.set()
        return True

    def accept(self, partition: Partition, found: Record) -> bool:
        """The record is to be committed before it runs; its key is kept until `land`. False: as `finish`."""
        if not partition.scan.accept(found):
            return False
        self.partitions.to_commit.set()
        return True

    def land(self, partition: Partition, found: Record) -> None:
        """A record that was accepted has run."""
        partition.scan.land(found)
        if partition.scan.releases:
            self.partitions.to_hold.set()
        self.partitions.changed()

    def give_back(self, partition: Partition, found: Record, *, delay_s: float = 0.0, unrun: bool = False) -> bool:
        """The record is to be begun again, after a delay. False: it is not the member's any more."""
        not_before_s = self._clock.monotonic() + delay_s if delay_s > 0 else 0.0
        given = partition.scan.give_back(found, not_before_s=not_before_s, unrun=unrun)
        if given and partition.scan.releases:
            self.partitions.to_hold.set()
        return given

    async def settle(
        self, partition: Partition, records: Sequence[Record], outputs: Sequence[SettleOutput], *, ordered: bool = False
    ) -> Settled:
        """Commit records in flight and write outputs, in one step or nothing: `Settles.settle`.

        ordered: not before all offsets before these are committed; they are one run of offsets then.
        """
        settled = await self._settles.settle(
            partition, records, outputs, generation=self._generation if ordered else None
        )
        if settled.fenced:
            self._settles.run(self._regain(partition, settled.fenced))
        return settled

    def begin_settle(
        self,
        partition: Partition,
        records: Sequence[Record],
        outputs: Sequence[SettleOutput],
        told: Callable[[Settled], object],
        *,
        ordered: bool = False,
    ) -> None:
        """As `settle`, for who waits in no task. `told` is called once, unless the member is closed before."""

        async def settled() -> None:
            told(await self.settle(partition, records, outputs, ordered=ordered))

        self._settles.run(settled())

    async def _regain(self, partition: Partition, records: Sequence[Record]) -> None:
        """The server says that these are not the member's: when it has said what is, what of them still is begins
        anew."""
        with suppress(Closed, TimeoutError):  # after the lease nothing of them is the member's
            await self._clock.wait_for(self.confirm(), self._settings.lease)
        for found in records:
            self.give_back(partition, found)
        self.partitions.changed()

    async def confirm(self) -> None:
        """Wait until the server has answered a hold that was sent from now on. Raises: Closed."""
        if self._closed:
            raise Closed("the member was closed")
        since = self._sequence
        self.partitions.to_hold.set()
        while self._answered <= since and self._tasks:
            self._told.clear()
            await self._told.wait()

    async def flush(self) -> None:
        """Wait until all that is finished is committed, or lost: `Partitions.flush`."""
        await self.partitions.flush()

    # --- what its parts ask of it -------------------------------------------------------------------------------

    @abc.abstractmethod
    def _mirrors(self, partition: Partition) -> bool:
        """Tell if this member keeps a partition's ordinary offset."""

    async def _commit_ordinary(self, offsets: Sequence[OffsetToCommit]) -> None:
        if self._group is not None and self._group.generation is not None:
            await self._group.commit(self._group.generation, offsets)
            return
        request = OffsetCommitRequest(group_id=self.group_id, member_id="", generation=-1, offsets=tuple(offsets))
        for one in (await self._link.send(request)).partitions:
            check(one.error, None, f"group {self.group_id}: its ordinary offset of {one.topic}-{one.partition}")

    # --- topics -------------------------------------------------------------------------------------------------

    async def _described(self, topics: Sequence[str]) -> dict[str, TopicMetadata]:
        """Topics by name, asked for until all are there."""
        while True:
            found = await self._seen(topics)
            if len(found) == len(set(topics)):
                return found
            await self._clock.sleep(TOPICS_S)

    async def _seen(self, topics: Sequence[str]) -> dict[str, TopicMetadata]:
        """Those that are there, by name."""
        try:
            answer = await self._link.send(MetadataRequest(topics=tuple(topics)))
        except (OSError, ClientError) as error:
            self.partitions.fails("topics", error)
            return {}
        found = {one.name: one for one in answer.topics if one.error is ErrorCode.NONE and one.topic_id}
        missing = [topic for topic in topics if topic not in found]
        if missing:
            self.partitions.lacks("topics", f"there is no topic {', '.join(missing)}: create it, or check its name")
        else:
            self.partitions.works("topics")
        return found

    async def _look_for_doubted(self) -> None:
        """Let go of partitions of topics that are gone, whether there are others with their names now or not.

        Raises: ServerError, OSError, ClientError.
        """
        doubted = [one for one in self._doubted if self.partitions.get(one.place) is one]
        self._doubted.clear()
        if not doubted:
            return
        answer = await self._link.send(MetadataRequest(topics=tuple(sorted({one.place[0] for one in doubted}))))
        said = {one.name: one for one in answer.topics if one.error in (ErrorCode.NONE, *ABSENT)}
        gone = [one for one in doubted if _is_gone(one, said.get(one.place[0]))]
        for name in sorted({one.place[0] for one in gone}):
            why = "gone" if said[name].error in ABSENT else "made anew"
            logger.warning(
                "group=%s: topic %s was deleted, and is %s: what was begun of it does not count any more",
                self.group_id,
                name,
                why,
            )
        for partition in gone:
            self.partitions.lost(partition, partition.scan.lose())
            self.partitions.forget(partition)
        if gone:
            self._begin_anew()

    @abc.abstractmethod
    def _begin_anew(self) -> None:
        """Partitions were forgotten because their topics are gone: begin with those that have their names now."""

    async def topic_sizes(self, topics: Sequence[str]) -> dict[str, tuple[int, uuid.UUID | None]]:
        """Partitions and ids of topics, asked for until all are there."""
        found = await self._described(topics) if topics else {}
        return {name: (topic.partitions, topic.topic_id) for name, topic in found.items()}

    # --- inside -------------------------------------------------------------------------------------------------

    async def _event(self, event: asyncio.Event, limit_s: float) -> None:
        try:
            await self._clock.wait_for(event.wait(), limit_s)
        except TimeoutError:
            return


def _is_gone(partition: Partition, topic: TopicMetadata | None) -> bool:
    """Tell if the partition's topic is gone. topic: the topic that has the name now; None: not known."""
    if topic is None:
        return False
    return topic.error is not ErrorCode.NONE or topic.topic_id not in (None, partition.topic_id)
