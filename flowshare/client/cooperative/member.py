"""`CooperativeMember`: one member of a cooperative group, over its own connections.

Four things go on beside each other, and know of each other by `Partitions` only:

    membership   rounds of the group say what the member is to have      `GroupMember`
    holding      it says what it wants, and is told what it holds        `_hold_loop`; all leases hang on it
    reading      it reads the whole of what it holds a part of           `_read_loop`
    committing   what is finished, one request at a time                 `_commit_loop`

A lease is counted from when the hold was sent, by the member's own clock: so it ends here before it ends at the server.
From then on nothing is begun and nothing that was begun counts. What gives something back and what commits go one after
the other (`_order`): the server must not see a range given back before the commits of it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.client.cooperative.assigning import PROTOCOL, Place, assign, encode_user_data, target_of
from flowshare.client.cooperative.partitions import Partition, Partitions, Record
from flowshare.client.cooperative.reading import scan_log
from flowshare.client.cooperative.scan import COMMIT_MAX, Batch, KeyScan, Progress
from flowshare.client.errors import ClientError, Closed, ServerError, check
from flowshare.client.groups.member import GroupMember
from flowshare.client.groups.membership import Generation, GroupSettings
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import CooperativeSettings
from flowshare.cooperative.ranges import Pair, assigned, merged
from flowshare.cooperative.types import KeyRange, KeyRanges
from flowshare.core_errors import CoreError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import EARLIEST, FetchPartition, FetchRequest, ListOffsetsRequest, MetadataRequest
from flowshare.protocol.messages.cooperative import (
    CommitEntry,
    CooperativeCommitRequest,
    CooperativeHoldRequest,
    CooperativeOffsetsRequest,
    HeldPartition,
    PartitionCommit,
    PartitionProgress,
    WantedKeys,
)
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import FetchedLog

R = TypeVar("R")
RENEWALS: Final = 3
"""Holds within a lease."""
AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 0.5
"""Between two holds while others hold what the member waits for."""
BOUND_S: Final = 0.5
"""The same while it waits for the stable offset."""
READ_SHORT_S: Final = 0.1
"""How long a fetch may wait while partitions are left out of it."""
COMMIT_RANGES_MAX: Final = 10_000
"""Ranges of offsets that a server takes in one commit."""
TOPICS_S: Final = 1.0
MANUAL_GENERATION: Final = 0
FAULT_S: Final = 1.0
"""After a fault of ours."""
RELEASE_S: Final = 2.0
"""How long a member that leaves waits for the answer."""

logger = logging.getLogger(__name__)


class CooperativeMember:
    """One member. All methods are called on one event loop; so are the callbacks.

    topics: subscribed. manual: instead of them, ranges of keys by topic and partition; none: the whole partition.
    on_ready: called when there may be records to begin. on_lost: told of records in flight that are not the member's
    any more; what becomes of them does not count.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        topics: Sequence[str] = (),
        manual: Mapping[Place, Sequence[Pair]] | None = None,
        settings: CooperativeSettings | None = None,
        member_id: str | None = None,
        on_ready: Callable[[], object] = lambda: None,
        on_lost: Callable[[Partition, list[Record]], object] = lambda partition, lost: None,
    ) -> None:
        """Raises: InvalidRequest (ranges of a partition overlap)."""
        self.group_id = group_id
        self.member_id = member_id or str(uuid.uuid4())
        self._settings = settings or CooperativeSettings()
        self._clock = clock
        self._topics = tuple(sorted(topics))
        self._manual = None if manual is None else {place: assigned(list(keys)) for place, keys in manual.items()}
        self.partitions = Partitions(clock)
        self.partitions.on_ready = on_ready
        self.partitions.on_lost = on_lost
        name = f"{group_id}: member {self.member_id}"
        self._link = Link(connect, clock=clock, settings=self._settings.link, name=name)
        self._reader = Link(connect, clock=clock, settings=self._settings.link, name=f"{name}: reader")
        self._group = None if self._manual is not None else self._membership(connect)
        self._generation = MANUAL_GENERATION
        self._targets: dict[Place, KeyRanges] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._applying: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()
        self._sequence = 0
        self._answered = 0
        self._told = asyncio.Event()
        self._lapse: TimerHandle | None = None
        self._closed = False
        self.losses = 0
        """How often records in flight were lost."""
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

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def target(self) -> dict[Place, KeyRanges]:
        """What the member is to have, as the newest round says."""
        return dict(self._targets)

    @property
    def held(self) -> dict[Place, KeyRanges]:
        """What it holds."""
        found = {one.place: _joined(one) for one in self.partitions if self.partitions.live(one)}
        return {place: keys for place, keys in found.items() if keys}

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, in words; None when all is well (there may just be nothing to read)."""
        if self._group is not None and self._group.trouble:
            return self._group.trouble
        told = [*self._trouble.values(), *(one.trouble for one in self.partitions if one.trouble)]
        if told:
            return told[0]
        if not self._targets:
            return "no partition is assigned yet"
        blocked = [f"{one.text} by {', '.join(one.blocked)}" for one in self.partitions if one.blocked]
        return f"keys are held by members that have not finished: {'; '.join(blocked)}" if blocked else None

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; harmless when that was done. Raises: Closed."""
        if self._closed:
            raise Closed("the member was closed")
        if self._tasks:
            return
        if self._group is not None:
            self._group.start()
        elif self._manual is not None:
            self._targets = dict(self._manual)
            self._apply()
        loops = (self._hold_loop, self._read_loop, self._commit_loop)
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

    async def close(self, *, release: bool = True) -> None:
        """Commit what is finished, give everything back, leave the group. What is in flight comes again elsewhere.

        release: False: nothing is given back: handlers go on that nobody can end, and the lease has to.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self._clock.wait_for(self.flush(), self._settings.close_timeout)
        except TimeoutError:
            logger.warning("group=%s: not all commits were answered; what was not is handled again", self.group_id)
        await cancelled(self._applying, *self._tasks)
        if self._lapse is not None:
            self._lapse.cancel()
        if self._tasks and release:
            await self._release_all()
        if self._group is not None:
            await self._group.close()
        for partition in list(self.partitions):
            self.partitions.lost(partition, partition.scan.lose())
        await self._link.close()
        await self._reader.close()

    def drain(self) -> None:
        """Begin nothing new, and give back what is finished: for a member that stops. It stays in the group."""
        for partition in self.partitions:
            partition.scan.set_target(())
        self._draining = True
        self.partitions.to_hold.set()

    _draining = False

    # --- records ------------------------------------------------------------------------------------------------

    def next_s(self) -> float | None:
        """When the next record may be begun, 0: at once; None: none is there."""
        due = (one.scan.dispatcher.next_s() for one in self.partitions if self.partitions.live(one))
        return min((one for one in due if one is not None), default=None)

    def take(self, count: int, *, keys: int = 0, chain: int = 1) -> list[tuple[Partition, list[Record]]]:
        """Begin up to `count` records, in the order of each key: `Dispatcher.take`. Those that were begun and not
        finished keep their keys."""
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
            keys = max(0, keys - len({one.hash for one in found}))
            self.partitions.to_the_end(partition)
            if partition.scan.position() is not None:
                self.partitions.to_read.set()
        return taken

    def finish(self, partition: Partition, found: Record) -> bool:
        """The record is finished: it is committed soon. False: it is not the member's any more."""
        if not partition.scan.finish(found):
            return False
        self.partitions.to_commit.set()
        return True

    def give_back(self, partition: Partition, found: Record, *, delay_s: float = 0.0, unrun: bool = False) -> bool:
        """The record is to be begun again, after a delay. False: it is not the member's any more."""
        not_before_s = self._clock.monotonic() + delay_s if delay_s > 0 else 0.0
        given = partition.scan.give_back(found, not_before_s=not_before_s, unrun=unrun)
        if given and partition.scan.releases:
            self.partitions.to_hold.set()
        return given

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

    # --- the group ----------------------------------------------------------------------------------------------

    def _user_data(self) -> bytes:
        return encode_user_data(
            shares=self._settings.shares, unshared=self._settings.unshared_topics, owned=self._targets
        )

    def _assigned(self, generation: Generation) -> None:
        try:
            self._targets = target_of(generation.partitions, generation.user_data)
        except CoreError as error:
            logger.exception(
                "group=%s: the assignment of generation %d makes no sense", self.group_id, generation.number
            )
            self._trouble["assignment"] = f"the assignment makes no sense: {error}"
            return
        self._trouble.pop("assignment", None)
        self._generation = generation.number
        self._apply()

    def _apply(self) -> None:
        if self._applying is not None:
            self._applying.cancel()
        self._applying = asyncio.create_task(self._apply_targets(), name=f"{self.group_id}: topics")

    async def _apply_targets(self) -> None:
        """Tell the scans what they are to have; the ids of new topics are looked up first."""
        for partition in self.partitions:
            if partition.place not in self._targets:
                partition.scan.set_target(())
        unknown = sorted({place[0] for place in self._targets if self.partitions.get(place) is None})
        ids: dict[str, uuid.UUID] = {}
        while any(topic not in ids for topic in unknown):
            try:
                ids = await self._topic_ids(unknown)
            except (OSError, ClientError) as error:
                self._tell("topics", error)
            if any(topic not in ids for topic in unknown):
                await self._clock.sleep(TOPICS_S)
        self._trouble.pop("topics", None)
        for place, keys in self._targets.items():
            known = self.partitions.get(place)
            partition = known or Partition(place, ids[place[0]], KeyScan(buffer_max=self._settings.buffer_records))
            if known is None:
                self.partitions.add(partition)
            partition.scan.set_target(() if self._draining else keys)
        self.partitions.to_hold.set()
        self.partitions.changed()

    async def _topic_ids(self, topics: Sequence[str]) -> dict[str, uuid.UUID]:
        answer = await self._link.send(MetadataRequest(topics=tuple(topics)))
        found = {one.name: one.topic_id for one in answer.topics if one.error is ErrorCode.NONE}
        missing = [topic for topic in topics if topic not in found]
        if missing:
            self._trouble["topics"] = f"there is no topic {', '.join(missing)}: create it, or check its name"
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    # --- holding ------------------------------------------------------------------------------------------------

    async def _hold_loop(self) -> None:
        failures = 0
        while True:
            self.partitions.to_hold.clear()
            try:
                await self._hold()
                failures = 0
                self._trouble.pop("holding", None)
            except (OSError, ClientError) as error:
                failures += 1
                self._tell("holding", error)
            pause_s = self._link.pause_s(failures) if failures else self._hold_pause_s()
            if failures:
                await self._clock.sleep(pause_s)
            else:
                await self._event(self.partitions.to_hold, pause_s)

    def _hold_pause_s(self) -> float:
        waits = any(one.scan.missing for one in self.partitions)
        bound = any(one.scan.at_bound for one in self.partitions)
        renewal_s = self._settings.lease / RENEWALS
        if waits:
            self._again_s = min(AGAIN_MAX_S, 2 * self._again_s)
            return min(renewal_s, self._again_s)
        self._again_s = AGAIN_MIN_S / 2
        return min(renewal_s, BOUND_S) if bound else renewal_s

    _again_s = AGAIN_MIN_S / 2

    async def _hold(self) -> None:
        """Say what the member wants, once. Raises: ServerError, OSError, ClientError."""
        if any(one.scan.releases for one in self.partitions):
            async with self._order:
                await self._say(self._asked())
        else:
            await self._say(self._asked())

    def _asked(self) -> list[WantedKeys]:
        wanted: list[WantedKeys] = []
        for partition in list(self.partitions):
            keys = partition.scan.ask()
            if keys:
                wanted.append(WantedKeys(*partition.key, keys))
            elif not partition.scan.pieces and partition.place not in self._targets:
                self.partitions.forget(partition)
        return wanted

    async def _say(self, wanted: Sequence[WantedKeys]) -> None:
        if not wanted and not self._sequence:
            self._answered = 1  # nothing was ever asked for, so there is nothing to know
            self._told.set()
            return
        self._sequence += 1
        sent_s = self._clock.monotonic()
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
                partitions=tuple(wanted),
            )
        )
        check(answer.error, answer.message, f"group {self.group_id}: holding keys")
        for part in answer.partitions:
            partition = self.partitions.of(part.topic_id, part.partition)
            if partition is not None:
                await self._held(partition, part, sent_s + answer.lease_ms / 1000)
        self._answered = self._sequence
        self._told.set()
        self._watch_leases()
        self.partitions.changed()

    async def _held(self, partition: Partition, part: HeldPartition, lease_end_s: float) -> None:
        """What became of a hold in one partition. With an error nothing was done there: its lease goes on."""
        if part.error is not ErrorCode.NONE:
            partition.trouble = f"{partition.text}: {part.error.name} {part.message or ''}".strip()
            return
        partition.trouble = None
        partition.blocked = tuple(sorted({one.holder for one in part.blocked}))
        scan, progress = partition.scan, _progress(part)
        claims = [(one.first, one.end, one.epoch) for one in part.held]
        ranges: Sequence[Pair] | None = None if part.ranges is None else part.ranges.pairs()
        if ranges is None and scan.lacks_ranges(claims, progress.reset_epoch):
            ranges = await self._ranges(partition)
        partition.lease_end_s = lease_end_s
        lost = scan.held(claims, progress, ranges)
        if part.log_start > progress.stable:
            self._passed(partition, part.log_start)
        self.losses += bool(lost)
        self.partitions.lost(partition, lost)
        if scan.uncommitted:
            self.partitions.to_commit.set()

    async def _ranges(self, partition: Partition) -> list[Pair]:
        """R of a partition, read page by page. Raises: ServerError, OSError, ClientError."""
        topic, number = partition.place
        found: list[Pair] = []
        start = 0
        while True:
            answer = await self._link.send(
                CooperativeOffsetsRequest(group_id=self.group_id, topics={topic: (number,)}, ranges_from=start)
            )
            check(answer.error, answer.message, f"group {self.group_id}: committed ranges of {partition.text}")
            (part,) = answer.partitions
            check(part.error, part.message, f"group {self.group_id}: committed ranges of {partition.text}")
            found += [] if part.ranges is None else part.ranges.pairs()
            if not part.more or part.ranges is None or not part.ranges.firsts:
                return found
            start = found[-1][1]

    async def _release_all(self) -> None:
        """Hold nothing any more; what is not answered ends with the lease."""
        for partition in self.partitions:
            partition.scan.set_target(())
        try:
            async with self._order:
                await self._clock.wait_for(self._say(()), RELEASE_S)
        except (OSError, ClientError, TimeoutError) as error:
            logger.info("group=%s: what was held is free when its lease ends: %s", self.group_id, error)

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
                    "again where its keys are held next",
                    self.group_id,
                    partition.text,
                )
                lost = partition.scan.lose()
                self.losses += 1
                self.partitions.lost(partition, lost)
        self.partitions.to_hold.set()
        self._watch_leases()

    # --- reading ------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        failures = 0
        while True:
            self.partitions.to_read.clear()
            places = {one.place: at for one in self.partitions if (at := one.scan.position()) is not None}
            if not places:
                await self.partitions.to_read.wait()
                continue
            left_out = any(one.scan.pieces and one.place not in places for one in self.partitions)
            try:
                await self._read(places, READ_SHORT_S if left_out else self._settings.fetch_max_wait)
                failures = 0
                self._trouble.pop("reading", None)
            except (OSError, ClientError) as error:
                failures += 1
                self._tell("reading", error)
                await self._clock.sleep(self._link.pause_s(failures))

    async def _read(self, places: Mapping[Place, int], wait_s: float) -> None:
        """One fetch. Raises: ServerError, OSError, ClientError."""
        settings = self._settings
        asked = tuple(FetchPartition(*place, at, settings.partition_fetch_bytes) for place, at in places.items())
        committed = settings.isolation_level == "read_committed"
        answer = await self._reader.send(
            FetchRequest(
                partitions=asked,
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
            position = places[partition.place]
            if log.error is ErrorCode.NONE:
                self._scanned(partition, position, log)
            elif log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._out_of_range(partition, position)
            else:
                retried = ServerError(log.error, log.message, about=f"reading {partition.text}")
        self.partitions.changed()
        if retried is not None:
            raise retried

    def _scanned(self, partition: Partition, position: int, log: FetchedLog) -> None:
        scanned = scan_log(log.records, position, log.aborted)
        for first, last, why in scanned.damaged:
            logger.error("record=%s@%d..%d: the stored bytes cannot be read: %s", partition.text, first, last, why)
        partition.scan.scanned(position, scanned.end, scanned.records)
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
            await self._clock.sleep(AGAIN_MAX_S)

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
            if any(one.scan.releases for one in self.partitions) or failures:
                self.partitions.to_hold.set()
            self.partitions.changed()
            if failures:
                await self._clock.sleep(self._link.pause_s(failures))

    def _batches(self) -> list[tuple[Partition, Batch]]:
        """What goes with one commit."""
        left, batches = COMMIT_RANGES_MAX, list[tuple[Partition, Batch]]()
        for partition in list(self.partitions):
            batch = partition.scan.commit(min(COMMIT_MAX, left // 2)) if left > 1 else None
            if batch is not None:
                batches.append((partition, batch))
                left -= len(batch.offsets) + len(batch.voids)
        return batches

    async def _commit(self, batches: Sequence[tuple[Partition, Batch]]) -> bool:
        """One commit; whether all of it was taken."""
        asked = tuple(
            PartitionCommit(*partition.key, batch.reset_epoch, tuple(CommitEntry(*part) for part in batch.parts))
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
                good = partition.scan.committed(batch, _progress(part), part.fenced) and good
                continue
            partition.scan.failed(batch)
            good = False
            if part is not None:
                partition.trouble = f"{partition.text}: {part.error.name} {part.message or ''}".strip()
        return good

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


def _progress(part: PartitionProgress) -> Progress:
    return Progress(part.stable, part.reset_epoch, part.count, part.furthest)


def _joined(partition: Partition) -> KeyRanges:
    return tuple(KeyRange(*pair) for pair in merged(piece[:2] for piece in partition.scan.pieces))
