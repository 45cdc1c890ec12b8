"""`GroupConsumer`: reads the partitions that its member of a consumer group is assigned, and commits for it.

Positions begin at the group's commits, else at `reset`; an offset that is not in the log any more is moved to its
nearer end, with a warning. With `latest` a beginning is committed at once, and a partition added to a topic begins at
its first record: records sent before the group heard of it belong to the group, too. The metadata of the group's
offsets keeps the number of partitions at its beginning, for members that come later.

Reading and membership have separate connections: a broker answers one request after the other, and parks both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from flowshare.client.errors import ClientError, ConnectionLost, NotConnected, ServerError, check
from flowshare.client.groups.assignors import RANGE, Assignor, range_assignor
from flowshare.client.groups.member import GroupMember
from flowshare.client.groups.membership import Generation, GroupSettings
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import LinkSettings
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    EARLIEST,
    LATEST,
    FetchedLog,
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetToCommit,
)
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Request

R = TypeVar("R")
T = TypeVar("T")
Place = tuple[str, int]
"""Topic and partition."""
Reset = Literal["earliest", "latest"] | int
"""The start of a group without commits: an end of the log, or the first record from a time on (milliseconds since
1970)."""
PARTITION_BYTES: Final = 1 << 20
FETCH_BYTES: Final = 8 << 20
TRIES: Final = 5
SIZE_DIGITS_MAX: Final = 10
PROBE_S: Final = 0.5
"""The pause, in seconds, between two requests for a partition that cannot be read."""

logger = logging.getLogger(__name__)


_BEGUN: Final = "flowshare: begun with "
_PARTITIONS: Final = " partitions"


def begun_with(size: int | None) -> str | None:
    """Return the offset metadata of a group that began when its topic had `size` partitions; None: `size` is not
    known."""
    return None if size is None else f"{_BEGUN}{size}{_PARTITIONS}"


def size_in(metadata: str) -> int | None:
    """Return the number in a text of `begun_with`; None: another text."""
    number = metadata.removeprefix(_BEGUN).removesuffix(_PARTITIONS)
    made = (
        number.isascii() and number.isdigit() and len(number) < SIZE_DIGITS_MAX and metadata == begun_with(int(number))
    )
    return int(number) if made else None


class Bounds(NamedTuple):
    """Offsets of an assigned partition. position: the next to read. end: of the log, at the assignment. begun: True:
    the group had no commit."""

    position: int
    end: int
    begun: bool = False


class GroupConsumer:
    """One consumer. All methods and callbacks are called on one event loop.

    reset: see `Reset` (auto.offset.reset). committed: read no open transactions; the caller of `fetch` leaves out
    aborted ones (`FetchedLog.aborted`). on_assigned: called with the start positions when those of a generation are
    known, and again with those that become known later, as of a partition without a leader. on_revoked: awaited before
    the next generation, see `GroupMember`. generation: None: nothing can be read now.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        topics: Sequence[str],
        clock: Clock,
        reset: Reset = "earliest",
        committed: bool = True,
        protocol: str = RANGE,
        assignor: Assignor = range_assignor,
        user_data: Callable[[], bytes] = lambda: b"",
        on_assigned: Callable[[Generation, Mapping[Place, Bounds]], object] = lambda generation, bounds: None,
        on_revoked: Callable[[Generation], Awaitable[object]] | None = None,
        settings: GroupSettings | None = None,
    ) -> None:
        self._clock = clock
        self._reset = reset
        self._committed = committed
        self._told = on_assigned
        self._revoked = on_revoked
        self._link = Link(connect, clock=clock, settings=LinkSettings(), name=f"{group_id}: reader")
        self.member = GroupMember(
            connect,
            group_id=group_id,
            topics=topics,
            clock=clock,
            protocol=protocol,
            assignor=assignor,
            user_data=user_data,
            on_assigned=self._assigned,
            on_revoked=self._let_go,
            settings=settings,
        )
        self._finding: asyncio.Task[None] | None = None
        self._probes: dict[Place, asyncio.Task[None]] = {}
        self._topics = tuple(topics)
        self._sizes: dict[str, int] = {}
        """The number of partitions of each topic when the group began; known for `latest` only."""
        self._refusal = ""
        """The last reason why a partition could not be read."""
        self._ready = asyncio.Event()
        self._began: Generation | None = None
        """The last generation of which a partition was read."""
        self.generation: Generation | None = None
        """The generation by which the consumer reads; None: none."""
        self.positions: dict[Place, int] = {}
        """The next offset of each partition to read; the caller of `fetch` moves it on (`move`)."""

    def start(self) -> None:
        """Begin to join."""
        self.member.start()

    async def close(self) -> None:
        """Leave the group."""
        async with contextlib.AsyncExitStack() as closing:  # all of it, also for a caller who waits no longer
            closing.push_async_callback(self._link.close)
            closing.push_async_callback(self._end_probes)
            closing.push_async_callback(cancelled, self._finding)
            await self.member.close()

    # --- reading ------------------------------------------------------------------------------------------------

    async def ready(self) -> Generation:
        """Wait until a partition can be read, and return the generation."""
        while (generation := self.generation) is None or not self.positions:
            self._ready.clear()
            await self._ready.wait()
        return generation

    async def fetch(
        self, places: Collection[Place] | None = None, *, wait_ms: int, max_bytes: int = PARTITION_BYTES
    ) -> list[FetchedLog]:
        """Fetch from the positions of these partitions (None: of all). Empty if a new generation began meanwhile.

        max_bytes: of each partition. An offset outside the log is moved, and a later call reads there. A partition that
        cannot be read now is left out until it can be read.
        Raises: ServerError, OSError, ClientError.
        """
        generation = self.generation
        asked = tuple(
            FetchPartition(*place, offset, max_bytes)
            for place, offset in self.positions.items()
            if (places is None or place in places) and place not in self._probes
        )
        if not asked:
            if self._probes:
                await self._clock.sleep(PROBE_S)
                raise NotConnected(f"group {self.member.group_id}: no partition can be read: {self._refusal}")
            return []
        try:
            answer = await self._link.send(
                FetchRequest(partitions=asked, max_wait_ms=wait_ms, max_bytes=FETCH_BYTES, committed=self._committed),
                wait_s=wait_ms / 1000,
            )
        except NotConnected as error:
            for part in asked:
                self._probe((part.topic, part.partition), str(error))
            return []
        check(answer.error, answer.message, f"group {self.member.group_id}: reading")
        return await self._good(answer.partitions) if self.generation is generation else []

    async def _good(self, logs: Sequence[FetchedLog]) -> list[FetchedLog]:
        """Return the logs without an error; ask for each other partition alone until it answers. Raises:
        ServerError."""
        good: list[FetchedLog] = []
        for log in logs:
            if log.error is ErrorCode.NONE:
                good.append(log)
            elif log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._move_into((log.topic, log.partition))
            else:
                refused = ServerError(log.error, log.message, about=f"reading {log.topic}-{log.partition}")
                if not refused.retriable:
                    raise refused
                self._probe((log.topic, log.partition), str(refused))
        return good

    def _probe(self, place: Place, why: str) -> None:
        """Leave a partition out until it answers: a partition without a leader would hold up all others."""
        self._refusal = why
        if place not in self._probes and place in self.positions:
            logger.debug("group=%s: %s-%d is asked for alone: %s", self.member.group_id, *place, why)
            probing = asyncio.create_task(self._until_answered(place), name=f"{self.member.group_id}: {place}")
            self._probes[place] = probing

    async def _until_answered(self, place: Place) -> None:
        while True:
            await self._clock.sleep(PROBE_S)
            if (position := self.positions.get(place)) is None:
                self._probes.pop(place, None)
                return
            try:
                log = await self.read_at(place, position, max_bytes=1)
            except (OSError, ClientError) as error:
                self._refusal = str(error)
                continue
            if log.error in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                self._probes.pop(place, None)
                return
            self._refusal = str(ServerError(log.error, log.message, about=f"reading {log.topic}-{log.partition}"))

    async def _end_probes(self) -> None:
        probes, self._probes = self._probes, {}
        await cancelled(*probes.values())

    def move(self, generation: Generation, place: Place, offset: int) -> None:
        """Set a partition's position, if the generation is still the same."""
        if self.generation is generation and place in self.positions:
            self.positions[place] = offset

    def give_up(self, generation: Generation) -> None:
        """Stop reading by this generation, which is over for others already, and ask for a new one."""
        if self.generation is generation:
            self.generation = None
            self.positions = {}
        self.member.rejoin()

    async def commit(self, generation: Generation, offsets: Mapping[Place, int]) -> None:
        """Commit these offsets. Raises: as `GroupMember.commit`."""
        await self.member.commit(
            generation,
            [
                OffsetToCommit(*place, offset, metadata=begun_with(self._sizes.get(place[0])))
                for place, offset in offsets.items()
            ],
        )

    async def log_start(self, place: Place) -> int:
        """Return the first offset of a partition's log. Raises: ServerError, OSError, ClientError."""
        return await self._offset(place, EARLIEST)

    async def read_at(self, place: Place, offset: int, *, max_bytes: int = PARTITION_BYTES) -> FetchedLog:
        """Read at any offset of any partition, without a change of positions. Raises: ServerError, OSError,
        ClientError."""
        part = FetchPartition(*place, offset, max_bytes)
        answer = await self._ask(FetchRequest(partitions=(part,), max_bytes=max_bytes, committed=self._committed))
        check(answer.error, answer.message, f"reading {place[0]}-{place[1]}")
        (log,) = answer.partitions
        return log

    # --- positions ----------------------------------------------------------------------------------------------

    def _assigned(self, generation: Generation) -> None:
        if self._finding is not None:
            self._finding.cancel()
        self._finding = asyncio.create_task(self._find(generation), name=f"{self.member.group_id}: positions")

    async def _find(self, generation: Generation) -> None:
        """Find where to begin, and begin with the partitions that answer; each of the others follows when it does."""
        if self._reset == "latest":
            await self._repeated(self._learn_sizes)
        committed = await self._repeated(partial(self._committed_offsets, generation.places))
        waiting = [
            asyncio.create_task(
                self._repeated(partial(self._bounds, place, committed.get(place))),
                name=f"{self.member.group_id}: where {place[0]}-{place[1]} begins",
            )
            for place in generation.places
        ]
        try:
            while True:
                found = await self._found(waiting)
                waiting = [task for task in waiting if task not in found]
                bounds = dict(task.result() for task in found)
                if self._reset == "latest":
                    begun = {place: one.position for place, one in bounds.items() if one.begun}
                    await self._repeated(partial(self._commit_begun, generation, begun))
                if self.member.generation is not generation or not self._begin_with(generation, bounds) or not waiting:
                    return
        finally:
            await cancelled(*waiting)

    async def _repeated(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` does, called again, after a pause, until it raises neither OSError nor ClientError."""
        failures = 0
        while True:
            try:
                return await ask()
            except (OSError, ClientError) as error:
                failures += 1
                logger.warning("group=%s: where to begin is not known, asked again: %s", self.member.group_id, error)
                await self._clock.sleep(self._link.pause_s(failures))

    async def _found(self, waiting: Sequence[asyncio.Task[T]]) -> list[asyncio.Task[T]]:
        """Wait `PROBE_S` for all of these tasks, then for the first one; return those that are done, in order."""
        if not waiting:
            return []
        with contextlib.suppress(TimeoutError):
            await self._clock.wait_for(asyncio.wait(waiting), PROBE_S)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return [task for task in waiting if task.done()]

    def _begin_with(self, generation: Generation, bounds: Mapping[Place, Bounds]) -> bool:
        """Read these partitions from now on; False if the generation was given up meanwhile."""
        if self._began is generation and self.generation is not generation:
            return False
        if self._began is not generation:
            self._began, self.positions = generation, {}
        self.positions.update({place: one.position for place, one in bounds.items()})
        self.generation = generation
        self._told(generation, bounds)
        self._ready.set()
        return True

    async def _let_go(self, generation: Generation) -> None:
        await cancelled(self._finding)
        await self._end_probes()
        try:
            if self._revoked is not None and self.generation is generation:
                await self._revoked(generation)
        finally:
            self.generation = None
            self.positions = {}

    async def _committed_offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return the committed offsets of these partitions (−1: none), without those that have an error."""
        if not places:
            return {}
        asked = OffsetFetchRequest(group_id=self.member.group_id, partitions=tuple(places), require_stable=True)
        answer = await self._ask(asked)
        check(answer.error, answer.message, f"group {self.member.group_id}: committed offsets")
        if len(places) == 1:
            (topic, partition), (one,) = places[0], answer.partitions
            check(one.error, None, f"group {self.member.group_id}: committed offset of {topic}-{partition}")
        return {(one.topic, one.partition): one.offset for one in answer.partitions if one.error is ErrorCode.NONE}

    async def _bounds(self, place: Place, committed: int | None) -> tuple[Place, Bounds]:
        """Return the offsets of an assigned partition. committed: as of `_committed_offsets`; None: to be asked for."""
        if committed is None:
            committed = (await self._committed_offsets((place,)))[place]
        end = await self._offset(place, LATEST, committed=self._committed)
        begun = committed < 0
        return place, Bounds(await self._begin(place, end) if begun else committed, end, begun)

    async def _commit_begun(self, generation: Generation, positions: Mapping[Place, int]) -> None:
        """Commit where partitions without a commit begin, unless the generation is over."""
        if self.member.generation is generation:
            await self.commit(generation, positions)

    async def _learn_sizes(self) -> None:
        """Find the number of partitions of the topics when the group began: from its offsets' metadata, else from the
        topics."""
        if self._sizes.keys() >= set(self._topics):
            return
        answer = await self._ask(MetadataRequest(topics=self._topics))
        sizes = {topic.name: topic.partitions for topic in answer.topics if topic.error is ErrorCode.NONE}
        places = tuple((topic, partition) for topic, size in sizes.items() for partition in range(size))
        if not places:
            return
        known = await self._ask(OffsetFetchRequest(group_id=self.member.group_id, partitions=places))
        check(known.error, known.message, f"group {self.member.group_id}: committed offsets")
        for part in known.partitions:
            size = size_in(part.metadata) if part.offset >= 0 else None
            if size is not None:
                sizes[part.topic] = min(size, sizes[part.topic])
        for topic, size in sizes.items():
            self._sizes.setdefault(topic, size)

    async def _begin(self, place: Place, end: int) -> int:
        if isinstance(self._reset, int):
            found = await self._offset(place, self._reset)
            return found if found >= 0 else end
        topic, partition = place
        was_there = partition < self._sizes.get(topic, partition + 1)
        return end if self._reset == "latest" and was_there else await self._offset(place, EARLIEST)

    async def _move_into(self, place: Place) -> None:
        """Move a position that is not in the log (any more) to the log's nearer end."""
        before = self.positions.get(place)
        if before is None:
            return
        first, end = await self._offset(place, EARLIEST), await self._offset(place, LATEST)
        if first <= before <= end:
            return  # its leader has it now
        after = first if before < first else end
        logger.warning(
            "group=%s: %s-%d is read on at %d: %d is not in the log", self.member.group_id, *place, after, before
        )
        if self.positions.get(place) == before:
            self.positions[place] = after

    async def _offset(self, place: Place, timestamp_ms: int, *, committed: bool = False) -> int:
        asked = ListOffsetsRequest(topic=place[0], partition=place[1], timestamp_ms=timestamp_ms, committed=committed)
        answer = await self._ask(asked)
        check(answer.error, answer.message, f"offsets of {place[0]}-{place[1]}")
        return answer.offset

    async def _ask(self, request: Request[R]) -> R:
        """Send a request that only reads; send it again, `TRIES` times in all, when the connection is lost."""
        for tried in range(1, TRIES):
            try:
                return await self._link.send(request)
            except (ConnectionLost, NotConnected):
                await self._clock.sleep(self._link.pause_s(tried))
        return await self._link.send(request)
