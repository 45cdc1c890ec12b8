"""`CooperativeShell`: what members of cooperative groups have in common, be it that they share by keys, or free.

Five things go on beside each other, and know of each other by `Partitions` only:

    membership   rounds of the group say who is in it                    `GroupMember`
    holding      what is the member's, by leases                         `member`, `free`
    reading      it reads what it holds something of                     `_read_loop`
    committing   what is finished, one request at a time                 `_commit_loop`
    telling      what is to be begun not for the first time (`starts`)   `_tell_loop`

A lease is counted from when it was asked for, by the member's own clock: so it ends here before it ends at the server.
From then on nothing is begun, and nothing that was begun counts. What gives something back and what commits go one
after the other (`_order`): the server must not see something given back before the commits of it.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.cooperative.assigning import PROTOCOL, Place, assign, encode_user_data
from flowshare.client.cooperative.ordinary import OrdinaryOffsets
from flowshare.client.cooperative.partitions import AnyBatch, Partition, Partitions, Record
from flowshare.client.cooperative.reading import scan_log, voids_of
from flowshare.client.cooperative.scan import COMMIT_MAX, KeyScan
from flowshare.client.cooperative.settles import Settled, Settles, entry_of, progress_of
from flowshare.client.cooperative.starts import Telling
from flowshare.client.errors import ClientError, Closed, ServerError, check
from flowshare.client.groups.member import GroupMember
from flowshare.client.groups.membership import Generation, GroupSettings
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import CooperativeSettings
from flowshare.cooperative.types import KeyRanges
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    EARLIEST,
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetToCommit,
)
from flowshare.protocol.messages.cooperative import (
    CooperativeCommitRequest,
    CooperativeHoldRequest,
    GroupOffset,
    PartitionCommit,
    StartEntry,
    WantedKeys,
    stable_metadata,
)
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import FetchedLog, SettleOutput, TopicMetadata
    from flowshare.protocol.messages.cooperative import CooperativeHoldResponse

LEASE_SPARE: Final = 0.06
"""This part of a lease is not used: who is told that it is over needs a moment to stop what it does."""
RENEWALS: Final = 3
"""Renewals within a lease."""
READ_SHORT_S: Final = 0.1
"""How long a fetch may wait while partitions are left out of it."""
CUT_S: Final = 0.5
TOLD_MAX: Final = 4
"""Partitions of which starts are told in one request: each has no more records than wait."""
COMMIT_RANGES_MAX: Final = 10_000
"""Ranges of offsets that a server takes in one commit."""
TOPICS_S: Final = 1.0
FAULT_S: Final = 1.0
"""After a fault of ours."""
LOOK_BACK_S: Final = 30.0
"""A stable offset that has not moved for so long is looked at, and again each time when that has doubled."""
MIRROR_S: Final = 1.0
"""How often the group's ordinary offset is looked at."""
MIRROR_LIMIT_S: Final = 5.0
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
        self.partitions = Partitions(clock)
        self.partitions.on_ready = on_ready
        self.partitions.on_lost = on_lost
        name = f"{group_id}: member {self.member_id}"
        self._link = Link(connect, clock=clock, settings=self._settings.link, name=name)
        self._reader = Link(connect, clock=clock, settings=self._settings.link, name=f"{name}: reader")
        self._group = self._membership(connect) if joins else None
        self._ordinary = OrdinaryOffsets(self._link, group_id, self._commit_ordinary)
        self._generation = MANUAL_GENERATION
        self._settles = Settles(self._link, self.partitions, group_id, self.member_id, clock=clock)
        self._targets: dict[Place, KeyRanges] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._order = asyncio.Lock()
        self._sequence = 0
        self._answered = 0
        self._told = asyncio.Event()
        self._lapse: TimerHandle | None = None
        self._draining = False
        self._closed = False
        self._trouble: dict[str, str] = {}

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
        """What the member is to have, as the newest round says."""
        return dict(self._targets)

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, in words; None when all is well (there may just be nothing to read)."""
        if self._group is not None and self._group.trouble:
            return self._group.trouble
        told = [*self._trouble.values(), *(one.trouble for one in self.partitions if one.trouble)]
        return told[0] if told else self._waits_for()

    @abc.abstractmethod
    def _waits_for(self) -> str | None:
        """What the member waits for, where nothing fails."""

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
            self._read_loop,
            self._commit_loop,
            self._tell_loop,
            self._mirror_loop,
            self._look_back_loop,
        )
        self._tasks = [asyncio.create_task(self._on(loop), name=f"{self.group_id}: {loop.__name__}") for loop in loops]

    async def _on(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop; a fault of ours must not end the member in silence."""
        while True:
            try:
                await loop()
            except Exception as error:
                logger.exception("group=%s: %s failed unexpectedly and goes on", self.group_id, loop.__name__)
                self._trouble["fault"] = f"{loop.__name__} failed: {type(error).__name__}: {error}"
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
            await self._reader.close()

    async def _give_up(self, *, release: bool) -> None:
        """What a member tells before it leaves, as far as there is an answer in time."""
        try:
            await self._clock.wait_for(self._all_answered(), self._settings.close_timeout)
        except TimeoutError:
            logger.warning("group=%s: not all commits were answered; what was not is handled again", self.group_id)
        finally:
            await self._settles.stop()
        await self._stop_tasks()
        if self._tasks:
            await self._mirror()
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
        """Hold nothing any more; what is not answered ends with the lease."""
        try:
            async with self._order:
                await self._clock.wait_for(self._say(self._shown()), RELEASE_S)
        except (OSError, ClientError, TimeoutError) as error:
            logger.info("group=%s: what was held is free when its lease ends: %s", self.group_id, error)

    def _shown(self) -> tuple[WantedKeys, ...]:
        """Nothing is wanted any more; of ordinary offsets that were written, and not told of, the server is told."""
        return tuple(
            WantedKeys(*one.key, (), GroupOffset(one.mirrored, stable_metadata(one.scan.progress.reset_epoch)))
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
        if self._apart():
            busy = any(one.scan.dispatcher.at_work or one.scan.starts.telling for one in self.partitions)
            return None if busy else 0.0
        due = (one.scan.dispatcher.next_s() for one in self.partitions if self.partitions.live(one))
        return min((one for one in due if one is not None), default=None)

    def take(self, count: int, *, keys: int = 0, chain: int = 1) -> list[tuple[Partition, list[Record]]]:
        """Begin up to `count` records, in the order of each key: `Dispatcher.take`. Those that were begun and not
        finished keep their keys."""
        taken = [] if self._apart() else self._take_more(count, keys, chain)
        taken = taken or self._take_suspect()
        if any(one.scan.starts.tells for one in self.partitions):
            self.partitions.to_tell.set()
        return taken

    def _apart(self) -> bool:
        """Whether a suspect is in flight, or is begun next."""
        return any(one.scan.starts.suspect_in_flight or one.scan.starts.suspects_wait for one in self.partitions)

    def _take_suspect(self) -> list[tuple[Partition, list[Record]]]:
        """Begin a suspect if nothing is in flight."""
        if any(one.scan.dispatcher.at_work for one in self.partitions):
            return []
        for partition in list(self.partitions):
            if isinstance(partition.scan, KeyScan) and partition.scan.starts.suspects_wait:
                found = partition.scan.take(1, self._clock.monotonic(), alone=True)
                if found:
                    return [(partition, found)]
        return []

    def _take_more(self, count: int, keys: int, chain: int) -> list[tuple[Partition, list[Record]]]:
        taken: list[tuple[Partition, list[Record]]] = []
        now_s = self._clock.monotonic()
        for partition in list(self.partitions):
            if count <= 0 or not self.partitions.live(partition):
                continue
            found = partition.scan.take(count, now_s, keys=keys, chain=chain)
            if not found:
                continue
            taken.append((partition, found))
            count -= len(found)
            self.partitions.to_the_end(partition)
            if partition.scan.position() is not None:
                self.partitions.to_read.set()
            if keys:
                keys -= len({one.hash for one in found})
                if keys <= 0:
                    break
        return taken

    def finish(self, partition: Partition, found: Record) -> bool:
        """The record is finished: it is committed soon. False: it is not the member's any more."""
        if not partition.scan.finish(found):
            return False
        self.partitions.to_commit.set()
        return True

    def accept(self, partition: Partition, found: Record) -> bool:
        """The record is to be committed before it runs; its key is kept until `land`. False: as `finish`."""
        assert isinstance(partition.scan, KeyScan), "records without keys keep none"
        if not partition.scan.accept(found):
            return False
        self.partitions.to_commit.set()
        return True

    def land(self, partition: Partition, found: Record) -> None:
        """A record that was accepted has run."""
        assert isinstance(partition.scan, KeyScan), "records without keys keep none"
        partition.scan.land(found)
        if self._gives_back(partition):
            self.partitions.to_hold.set()
        self.partitions.changed()

    def give_back(self, partition: Partition, found: Record, *, delay_s: float = 0.0, unrun: bool = False) -> bool:
        """The record is to be begun again, after a delay. False: it is not the member's any more."""
        not_before_s = self._clock.monotonic() + delay_s if delay_s > 0 else 0.0
        given = partition.scan.give_back(found, not_before_s=not_before_s, unrun=unrun)
        if given and self._gives_back(partition):
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

    def _gives_back(self, partition: Partition) -> bool:
        """Whether something of a partition is to be given back now."""
        return False

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
        """Wait until all that is finished is committed, or lost."""
        while any(one.scan.uncommitted for one in self.partitions):
            future = asyncio.get_running_loop().create_future()
            self.partitions.settled.add(future)
            self.partitions.to_commit.set()
            await future

    # --- the ordinary offset ------------------------------------------------------------------------------------

    async def _mirror_loop(self) -> None:
        while not self._ordinary.settled:
            await self._clock.sleep(MIRROR_S)
            await self._mirror()
        await asyncio.Event().wait()

    async def _mirror(self) -> None:
        """Have the ordinary offsets of the group be the stable ones, where that is this member's to see to."""
        mine = [one for one in self.partitions if self._mirrors(one) and self.partitions.live(one)]
        try:
            await self._clock.wait_for(self._ordinary.follow(mine), MIRROR_LIMIT_S)
            self._trouble.pop("ordinary", None)
            if any(not one.begun for one in mine):
                self.partitions.to_hold.set()
        except (OSError, ClientError, TimeoutError) as error:
            logger.debug("group=%s: its ordinary offsets are not the stable ones yet: %s", self.group_id, error)

    @abc.abstractmethod
    def _mirrors(self, partition: Partition) -> bool:
        """Whether this member sees to a partition's ordinary offset."""

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
            try:
                answer = await self._link.send(MetadataRequest(topics=tuple(topics)))
                found = {one.name: one for one in answer.topics if one.error is ErrorCode.NONE and one.topic_id}
            except (OSError, ClientError) as error:
                self._tell("topics", error)
            else:
                missing = [topic for topic in topics if topic not in found]
                if not missing:
                    self._trouble.pop("topics", None)
                    return found
                self._trouble["topics"] = f"there is no topic {', '.join(missing)}: create it, or check its name"
            await self._clock.sleep(TOPICS_S)

    async def topic_sizes(self, topics: Sequence[str]) -> dict[str, tuple[int, uuid.UUID | None]]:
        """Partitions and ids of topics, asked for until all are there."""
        found = await self._described(topics) if topics else {}
        return {name: (topic.partitions, topic.topic_id) for name, topic in found.items()}

    # --- reading ------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        failures = 0
        while True:
            self.partitions.to_read.clear()
            asked = {
                one.place: FetchPartition(*one.place, at, self._fetch_bytes(one.place), only=one.scan.only)
                for one in self.partitions
                if (at := one.scan.position()) is not None
            }
            if not asked:
                await self.partitions.to_read.wait()
                continue
            left_out = any(one.scan.pieces and one.place not in asked for one in self.partitions)
            try:
                await self._read(asked, READ_SHORT_S if left_out else self._settings.fetch_max_wait)
                failures = 0
                self._trouble.pop("reading", None)
            except (OSError, ClientError) as error:
                failures += 1
                self._tell("reading", error)
                await self._clock.sleep(self._link.pause_s(failures))

    async def _look_back_loop(self) -> None:
        """See whether a stable offset stands still at what compaction took (`KeyScan.look_back`)."""
        while True:
            await self._clock.sleep(LOOK_BACK_S)
            for partition in self.partitions:
                stable, times = partition.scan.progress.stable, partition.stands[1]
                times = times + 1 if partition.stands[0] == stable else 0
                partition.stands = (stable, times)
                scan = partition.scan
                if times.bit_count() == 1 and isinstance(scan, KeyScan) and scan.look_back():
                    self.partitions.to_read.set()

    async def _read(self, asked: Mapping[Place, FetchPartition], wait_s: float) -> None:
        """One fetch. Raises: ServerError, OSError, ClientError."""
        settings = self._settings
        committed = settings.isolation_level == "read_committed"
        answer = await self._reader.send(
            FetchRequest(
                partitions=tuple(asked.values()),
                max_wait_ms=round(min(wait_s, settings.fetch_max_wait) * 1000),
                max_bytes=settings.fetch_max_bytes,
                committed=committed,
            ),
            wait_s=wait_s,
        )
        check(answer.error, answer.message, f"group {self.group_id}: reading")
        retried = None
        for log in answer.partitions:
            partition = self.partitions.get((log.topic, log.partition))
            if partition is None:
                continue
            part = asked[partition.place]
            if log.error is ErrorCode.NONE:
                self._scanned(partition, part, log)
            elif log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._out_of_range(partition, part.offset)
            else:
                retried = ServerError(log.error, log.message, about=f"reading {partition.text}")
        self.partitions.changed()
        if retried is not None:
            raise retried

    def _fetch_bytes(self, place: Place) -> int:
        return self._settings.partition_fetch_bytes

    def _scanned(self, partition: Partition, asked: FetchPartition, log: FetchedLog) -> None:
        scan, position = partition.scan, asked.offset
        scanned = scan_log(log.records, position, log.aborted, until=scan.until, last=partition.last_batch)
        for first, last, why in scanned.damaged:
            if scan.commits_as_void(position, first, last + 1):
                logger.error("record=%s@%d..%d: the stored bytes cannot be read: %s", partition.text, first, last, why)
                self.partitions.on_damaged(partition, first, last, why)
        if asked.only is None or log.filtered is None or not isinstance(scan, KeyScan):
            scan.scanned(position, scanned.end, scanned.records)
        else:
            voids = voids_of(log.filtered, scanned.records)
            scan.scanned(position, log.filtered.end, scanned.records, keys=asked.only.keys, voids=voids)
        if partition.scan.has_voids:
            self.partitions.to_commit.set()

    async def _out_of_range(self, partition: Partition, position: int) -> None:
        topic, number = partition.place
        answer = await self._reader.send(ListOffsetsRequest(topic=topic, partition=number, timestamp_ms=EARLIEST))
        check(answer.error, answer.message, f"where {partition.text} begins")
        if answer.offset > position:
            self._passed(partition, answer.offset)
        else:
            partition.trouble = f"{partition.text} ends before {position}: its log was cut"
            self.partitions.to_hold.set()
            await self._clock.sleep(CUT_S)

    def _passed(self, partition: Partition, log_start: int) -> None:
        """What lies before the log's start was never seen by anybody and counts as void."""
        position = partition.scan.position()
        if position is not None and position < log_start:
            logger.warning("%s begins at %d now: what was not read before it is gone", partition.text, log_start)
            partition.scan.scanned(position, log_start, ())
            self.partitions.to_commit.set()

    # --- committing ---------------------------------------------------------------------------------------------

    async def _commit_loop(self) -> None:
        failures = 0
        while True:
            await self.partitions.to_commit.wait()
            self.partitions.to_commit.clear()
            async with self._order:
                batches = self._batches()
                if not batches:
                    continue
                good = await self._commit(batches)
            failures = 0 if good else failures + 1
            if any(one.scan.uncommitted or one.scan.has_voids for one in self.partitions):
                self.partitions.to_commit.set()
            if failures or any(self._gives_back(one) for one in self.partitions):
                self.partitions.to_hold.set()
            self.partitions.changed()
            if failures:
                await self._clock.sleep(self._link.pause_s(failures))

    def _batches(self) -> list[tuple[Partition, AnyBatch]]:
        """What goes with one commit."""
        left, batches = COMMIT_RANGES_MAX, list[tuple[Partition, AnyBatch]]()
        for partition in list(self.partitions):
            batch = partition.scan.commit(min(COMMIT_MAX, left // 2)) if left > 1 else None
            if batch is not None:
                batches.append((partition, batch))
                left -= len(batch.offsets) + len(batch.voids)
        return batches

    async def _commit(self, batches: Sequence[tuple[Partition, AnyBatch]]) -> bool:
        """One commit; whether all of it was taken."""
        asked = tuple(
            PartitionCommit(*partition.key, batch.reset_epoch, tuple(map(entry_of, batch.parts)))
            for partition, batch in batches
        )
        request = CooperativeCommitRequest(group_id=self.group_id, member_id=self.member_id, partitions=asked)
        try:
            answer = await self._link.send(request)
            check(answer.error, answer.message, f"group {self.group_id}: committing")
        except (OSError, ClientError) as error:
            self._tell("committing", error)
            for partition, batch in batches:
                partition.scan.failed(batch)
            return False
        self._trouble.pop("committing", None)
        told = {(one.topic_id, one.partition): one for one in answer.partitions}
        good = True
        for partition, batch in batches:
            part = told.get(partition.key)
            if part is not None and part.error is ErrorCode.NONE:
                good = partition.scan.committed(batch, progress_of(part), part.fenced) and good
                continue
            partition.scan.failed(batch)
            good = False
            if part is not None:
                partition.trouble = f"{partition.text}: {part.error.name} {part.message or ''}".strip()
        return good

    # --- telling of starts --------------------------------------------------------------------------------------

    async def _tell_loop(self) -> None:
        failures = 0
        while True:
            await self.partitions.to_tell.wait()
            self.partitions.to_tell.clear()
            tellings = [(one, telling) for one in self.partitions if (telling := one.scan.telling()) is not None]
            if not tellings:
                continue
            failures = 0 if await self._tell_starts(tellings) else failures + 1
            if failures:
                await self._clock.sleep(self._link.pause_s(failures))
            self.partitions.changed()
            if any(one.scan.starts.tells for one in self.partitions):
                self.partitions.to_tell.set()

    async def _tell_starts(self, tellings: Sequence[tuple[Partition, Telling]]) -> bool:
        """Tell what is to be begun, a few partitions at a time; whether all of it is durable."""
        good = True
        for first in range(0, len(tellings), TOLD_MAX):
            good = await self._tell_some(tellings[first : first + TOLD_MAX]) and good
        return good

    async def _tell_some(self, tellings: Sequence[tuple[Partition, Telling]]) -> bool:
        asked = tuple(
            PartitionCommit(*partition.key, telling.reset_epoch, tuple(StartEntry(*one) for one in telling.parts))
            for partition, telling in tellings
        )
        request = CooperativeCommitRequest(group_id=self.group_id, member_id=self.member_id, partitions=asked)
        fenced: dict[tuple[uuid.UUID, int], Sequence[int]] = {}
        try:
            answer = await self._link.send(request)
            check(answer.error, answer.message, f"group {self.group_id}: telling of starts")
        except (OSError, ClientError) as error:
            self._tell("telling of starts", error)
        else:
            self._trouble.pop("telling of starts", None)
            for part in answer.partitions:
                if part.error is ErrorCode.NONE:
                    fenced[part.topic_id, part.partition] = part.fenced
        finally:
            for partition, telling in tellings:
                partition.scan.told(telling, fenced.get(partition.key, range(len(telling.parts))))
        return len(fenced) == len(tellings) and not any(fenced.values())

    # --- inside -------------------------------------------------------------------------------------------------

    async def _event(self, event: asyncio.Event, limit_s: float) -> None:
        try:
            await self._clock.wait_for(event.wait(), limit_s)
        except TimeoutError:
            return

    def _tell(self, what: str, error: Exception) -> None:
        text = f"{what} fails: {error}"
        if self._trouble.get(what) != text:
            logger.warning("group=%s: %s", self.group_id, text)
        self._trouble[what] = text
