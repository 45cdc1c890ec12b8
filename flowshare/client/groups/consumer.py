"""`GroupConsumer`: reads the partitions that its member of a consumer group is assigned, and commits for it.

Positions begin at what the group has committed, else where `reset` says; an offset that is not in the log any more is
moved to its nearer end, and that is told. Reading and membership have connections of their own: a broker answers one
request after the other, and both are parked there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
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
    OffsetFetchRequest,
    OffsetToCommit,
)
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Request

R = TypeVar("R")
Place = tuple[str, int]
"""Topic and partition."""
Reset = Literal["earliest", "latest"] | int
"""Where a group begins that has committed nothing: or at the first record from a time on, milliseconds since 1970."""
PARTITION_BYTES: Final = 1 << 20
FETCH_BYTES: Final = 8 << 20
TRIES: Final = 5
PROBE_S: Final = 0.5
"""Between two questions for a partition that cannot be read."""

logger = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """position: the next offset to read. end: of the log, when the partition was assigned."""

    position: int
    end: int


class GroupConsumer:
    """One consumer. All methods are called on one event loop; so are the callbacks.

    reset: see `Reset` (auto.offset.reset). on_assigned: told, with where to begin, when a generation's positions are
    known. on_revoked: awaited before the next generation, see `GroupMember`. `generation` None means that there is
    nothing to read now.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        topics: Sequence[str],
        clock: Clock,
        reset: Reset = "earliest",
        protocol: str = RANGE,
        assignor: Assignor = range_assignor,
        user_data: Callable[[], bytes] = lambda: b"",
        on_assigned: Callable[[Generation, Mapping[Place, Bounds]], object] = lambda generation, bounds: None,
        on_revoked: Callable[[Generation], Awaitable[object]] | None = None,
        settings: GroupSettings | None = None,
    ) -> None:
        self._clock = clock
        self._reset = reset
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
        self._refusal = ""
        """Why a partition could not be read last."""
        self._ready = asyncio.Event()
        self.generation: Generation | None = None
        """By which it reads; None: by none."""
        self.positions: dict[Place, int] = {}
        """The next offset of each partition to read: whoever takes what was fetched moves it on (`move`)."""

    def start(self) -> None:
        """Begin to join."""
        self.member.start()

    async def close(self) -> None:
        """Leave the group."""
        await self.member.close()
        await cancelled(self._finding)
        await self._end_probes()
        await self._link.close()

    # --- reading ------------------------------------------------------------------------------------------------

    async def ready(self) -> Generation:
        """Wait until there is something to read."""
        while (generation := self.generation) is None or not self.positions:
            self._ready.clear()
            await self._ready.wait()
        return generation

    async def fetch(
        self, places: Collection[Place] | None = None, *, wait_ms: int, max_bytes: int = PARTITION_BYTES
    ) -> list[FetchedLog]:
        """What there is at the positions, of these partitions or all; empty when another generation began meanwhile.

        max_bytes: of each partition. An offset out of the log is moved, and read by a later call. A partition that
        cannot be read now is left out until it can be.
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
                FetchRequest(partitions=asked, max_wait_ms=wait_ms, max_bytes=FETCH_BYTES), wait_s=wait_ms / 1000
            )
        except NotConnected as error:
            for part in asked:
                self._probe((part.topic, part.partition), str(error))
            return []
        check(answer.error, answer.message, f"group {self.member.group_id}: reading")
        return await self._good(answer.partitions) if self.generation is generation else []

    async def _good(self, logs: Sequence[FetchedLog]) -> list[FetchedLog]:
        """Those that are answered; of the others each is asked for alone until it is. Raises: ServerError."""
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
        """Leave a partition out until it answers: one that nobody leads would hold up all others."""
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
        """Read on from there, if the generation is still the same."""
        if self.generation is generation and place in self.positions:
            self.positions[place] = offset

    def give_up(self, generation: Generation) -> None:
        """Read nothing more by this generation, and ask for a new one: it is over, whatever this member has heard."""
        if self.generation is generation:
            self.generation = None
            self.positions = {}
        self.member.rejoin()

    async def commit(self, generation: Generation, offsets: Mapping[Place, int]) -> None:
        """Commit these offsets. Raises: as `GroupMember.commit`."""
        await self.member.commit(generation, [OffsetToCommit(*place, offset) for place, offset in offsets.items()])

    async def log_start(self, place: Place) -> int:
        """Where a partition's log begins. Raises: ServerError, OSError, ClientError."""
        return await self._offset(place, EARLIEST)

    async def read_at(self, place: Place, offset: int, *, max_bytes: int = PARTITION_BYTES) -> FetchedLog:
        """What lies at any offset of any partition, beside the positions. Raises: ServerError, OSError, ClientError."""
        part = FetchPartition(*place, offset, max_bytes)
        answer = await self._ask(FetchRequest(partitions=(part,), max_bytes=max_bytes))
        check(answer.error, answer.message, f"reading {place[0]}-{place[1]}")
        (log,) = answer.partitions
        return log

    # --- positions ----------------------------------------------------------------------------------------------

    def _assigned(self, generation: Generation) -> None:
        if self._finding is not None:
            self._finding.cancel()
        self._finding = asyncio.create_task(self._find(generation), name=f"{self.member.group_id}: positions")

    async def _find(self, generation: Generation) -> None:
        failures = 0
        while True:
            try:
                bounds = await self._bounds(generation.places)
                break
            except (OSError, ClientError) as error:
                failures += 1
                logger.warning("group=%s: where to begin is not known, asked again: %s", self.member.group_id, error)
                await self._clock.sleep(self._link.pause_s(failures))
        if self.member.generation is not generation:
            return
        self.positions = {place: one.position for place, one in bounds.items()}
        self.generation = generation
        self._told(generation, bounds)
        self._ready.set()

    async def _let_go(self, generation: Generation) -> None:
        await cancelled(self._finding)
        await self._end_probes()
        try:
            if self._revoked is not None and self.generation is generation:
                await self._revoked(generation)
        finally:
            self.generation = None
            self.positions = {}

    async def _bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        if not places:
            return {}
        asked = OffsetFetchRequest(group_id=self.member.group_id, partitions=tuple(places), require_stable=True)
        answer = await self._ask(asked)
        check(answer.error, answer.message, f"group {self.member.group_id}: committed offsets")
        found: dict[Place, Bounds] = {}
        for part in answer.partitions:
            place = part.topic, part.partition
            check(part.error, None, f"group {self.member.group_id}: committed offset of {place[0]}-{place[1]}")
            end = await self._offset(place, LATEST)
            found[place] = Bounds(part.offset if part.offset >= 0 else await self._begin(place, end), end)
        return found

    async def _begin(self, place: Place, end: int) -> int:
        if isinstance(self._reset, int):
            found = await self._offset(place, self._reset)
            return found if found >= 0 else end
        return end if self._reset == "latest" else await self._offset(place, EARLIEST)

    async def _move_into(self, place: Place) -> None:
        """The position is not in the log (any more)."""
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

    async def _offset(self, place: Place, timestamp_ms: int) -> int:
        answer = await self._ask(ListOffsetsRequest(topic=place[0], partition=place[1], timestamp_ms=timestamp_ms))
        check(answer.error, answer.message, f"offsets of {place[0]}-{place[1]}")
        return answer.offset

    async def _ask(self, request: Request[R]) -> R:
        """Send what only reads: again when the connection is lost on the way."""
        for tried in range(1, TRIES):
            try:
                return await self._link.send(request)
            except (ConnectionLost, NotConnected):
                await self._clock.sleep(self._link.pause_s(tried))
        return await self._link.send(request)
