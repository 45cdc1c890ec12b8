"""Browsing a share-partition record by record, and acting on records that others hold.

Browsing takes no lock, counts nothing, writes nothing and loads nothing. For a loaded share-partition the owner's
memory is copied; for another one the stored state is read, and the answer says so. Records of a settle whose outputs
are being written elsewhere (`log.base.SettlesApart`) still appear as acquired. Acting loads the share-partition, as
every change does.

Invariant of a page: it shows one moment, `taken_ms`. It is cut into runs afterwards, in turns with other work
(`runtime.turns`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from flowshare.clock import ahead_ms
from flowshare.core_errors import InvalidRequest, UnknownTopicOrPartition
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.browse import (
    RANGES_MAX,
    RECORDS_MAX,
    RUNS_MAX,
    ShareBrowseRequest,
    ShareBrowseResponse,
    ShareInterveneRequest,
    ShareInterveneResponse,
    SharePlacesRequest,
    SharePlacesResponse,
)
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.state import ShareKey, StoredState, stored_in
from flowshare.share.browse import HOLES, RETENTION, Hole, Seen, stored_runs, together, wanted_states
from flowshare.share.intervene import Act
from flowshare.share.ranges import check_order

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

    from flowshare.clock import Clock, TimerHandle
    from flowshare.log.base import LogOffsets, Storage
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.partitions import Partitions
    from flowshare.server.share.service import ShareService

    Look = Callable[[Collection[str]], Awaitable[object]]

logger = logging.getLogger(__name__)

INLINE_BYTES: Final = 64 << 10
"""Bytes of stored state above which it is decoded in a thread, and kept for a request of the next page."""
RUN_BYTES: Final = 256
"""Bytes of memory that a run takes in an answer, as an object and on the wire, about."""
KEPT_S: Final = 5.0
"""Seconds kept."""


class BrowseApis(Family):
    """Answers requests to browse, and to act on others' records; `Leaders` finds a share-partition's leader."""

    def __init__(self, service: ShareService, look: Look | None = None) -> None:
        """look: as in `ShareOffsetApis`."""
        self._look = look
        self._topics = service.topics
        self._leaders = service.leaders
        self._coordinator = service.coordinator
        self._duties = service.duties
        self._config_of = service.duties.config_of

    @handles(SharePlacesRequest, SharePlacesResponse)
    async def places(self, request: SharePlacesRequest, _: InProcess) -> SharePlacesResponse:
        """Return the partitions that a group has begun."""
        keys = self._leaders.known(self._coordinator.find(request.group_id))
        for topic_id in {key.topic_id for key in keys}:
            if self._topics.by_id(topic_id) is None:
                await self._duties.exists(topic_id)
        topics = ((self._topics.by_id(key.topic_id), key.partition) for key in keys)
        return SharePlacesResponse(places=tuple(sorted((topic.name, number) for topic, number in topics if topic)))

    @handles(ShareBrowseRequest, ShareBrowseResponse)
    async def browse(self, request: ShareBrowseRequest, _: InProcess) -> ShareBrowseResponse:
        """Return a page of a share-partition."""
        if not 1 <= request.limit <= RUNS_MAX:
            raise InvalidRequest(f"ask for 1 to {RUNS_MAX} runs at once, not {request.limit}")
        try:
            wanted_states(request.states)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        key = await self._key(request)
        answer = await self._leaders.browse(key, request)
        return replace(answer, order=self._config_of(request.group_id).key_order)

    @handles(ShareInterveneRequest, ShareInterveneResponse)
    async def intervene(self, request: ShareInterveneRequest, connection: InProcess) -> ShareInterveneResponse:
        """Apply an operator's act to records, and log it."""
        try:
            check_order(request.ranges)
            act = Act(request.act)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        if not 1 <= len(request.ranges) <= RANGES_MAX:
            raise InvalidRequest(f"give 1 to {RANGES_MAX} ranges, not {len(request.ranges)}")
        if sum(last - first + 1 for first, last in request.ranges) > RECORDS_MAX:
            raise InvalidRequest(f"one call acts on {RECORDS_MAX} records at most; send several")
        key = await self._key(request)
        if act is Act.DEAD_LETTER and not self._config_of(request.group_id).dead_letter_topic:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"group {request.group_id} has no topic for dead letters: set errors.deadletterqueue.topic.name, or "
                "reject the records, which keeps nothing of them",
            )
        if key not in self._leaders.known(self._coordinator.find(request.group_id)):
            raise InvalidRequest(f"group {request.group_id} has begun nothing of {request.topic}-{request.partition}")
        answer = await self._leaders.intervene(key, request)
        if not request.dry_run:
            logger.info(
                "an operator's %s: %d records group=%s topic=%s partition=%d offsets=%d-%d client=%s",
                request.act,
                sum(one.done for one in answer.found),
                request.group_id,
                request.topic,
                request.partition,
                request.ranges[0][0],
                request.ranges[-1][1],
                connection.client_id,
            )
        return answer

    async def _key(self, request: ShareBrowseRequest | ShareInterveneRequest) -> ShareKey:
        """Find a share-partition. Raises: GroupIdNotFound, UnknownTopicOrPartition, LogError."""
        self._coordinator.find(request.group_id)
        if self._topics.by_name(request.topic) is None and self._look is not None:
            await self._look((request.topic,))
        topic = self._topics.by_name(request.topic)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {request.topic!r}")
        if not 0 <= request.partition < topic.partitions:
            raise UnknownTopicOrPartition(
                f"topic {request.topic!r} has no partition {request.partition}, it has {topic.partitions}"
            )
        return ShareKey(request.group_id, topic.topic_id, request.partition)


class StoredStates:
    """Reads the stored state of share-partitions. The last large one is kept decoded for a moment: a window of 200,000
    runs takes 0.3 s, and has twenty pages. Changed stored state is decoded again."""

    def __init__(self, store: Storage, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._decoding = asyncio.Semaphore(1)  # one at a time, for any number of requests
        self._kept: tuple[Sequence[tuple[bytes, bytes]], StoredState | None] | None = None
        self._drop: TimerHandle | None = None

    async def read(self, key: ShareKey) -> StoredState | None:
        """Read state; None: never initialised. Raises: StateCorrupt, LogError."""
        entries = await self._store.scan(key.prefix)
        if sum(len(value) for _, value in entries) <= INLINE_BYTES:
            return stored_in(entries, key)
        async with self._decoding:
            if self._kept is None or self._kept[0] != entries:
                self._kept = entries, await asyncio.to_thread(stored_in, entries, key)
            kept = self._kept[1]
            if self._drop is not None:
                self._drop.cancel()
            self._drop = self._clock.call_later(KEPT_S, self._forget)
        return kept

    def _forget(self) -> None:
        self._kept = self._drop = None


async def browsed(
    key: ShareKey,
    request: ShareBrowseRequest,
    *,
    store: Storage,
    topics: TopicIndex,
    partitions: Partitions,
    clock: Clock,
    states: StoredStates,
) -> ShareBrowseResponse:
    """Return a page of a share-partition that is led here. states: reader of the stored state.

    Raises: UnknownTopicId, StateCorrupt, LogError.
    """
    topic = topics.find(key.topic_id, key.partition)
    if (owner := partitions.get(key)) is not None:
        return await _live(owner, request, clock)
    partitions.check_led(key)
    bounds = await store.bounds(topic.name, key.partition)
    stored = await states.read(key) if partitions.knows(key) else None
    partitions.check_led(key)  # else another server has written meanwhile
    answer = _told(bounds, clock)
    if stored is None or stored.state.start_offset < 0:
        return answer
    state = stored.state
    end = max(state.start_offset, state.runs[-1].last + 1 if state.runs else 0)
    answer = replace(
        answer, start_offset=state.start_offset, end_offset=end, leader_epoch=state.leader_epoch, loaded=False
    )
    wanted = wanted_states(request.states)
    first = max(request.offset, state.start_offset)
    seen = stored_runs(
        state.start_offset, state.runs, wanted, first=first, now_ms=clock.steady_ms(), ahead_ms=ahead_ms(clock)
    )
    return await _page(answer, request, seen, end, clock)


async def _live(owner: PartitionOwner, request: ShareBrowseRequest, clock: Clock) -> ShareBrowseResponse:
    partition = owner.partition
    answer = replace(
        _told(owner.log.bounds(), clock),
        loaded=True,
        start_offset=partition.start_offset,
        end_offset=partition.end_offset,
        leader_epoch=owner.leader_epoch,
    )
    look = partition.look(max(request.offset, 0), ahead_ms=ahead_ms(clock))
    return await _page(answer, request, look.runs(wanted_states(request.states)), look.end, clock)


def _told(bounds: LogOffsets, clock: Clock) -> ShareBrowseResponse:
    return ShareBrowseResponse(
        taken_ms=clock.now_ms(),
        log_start=bounds.log_start,
        log_end=bounds.high_watermark,
        last_stable=bounds.last_stable,
    )


async def _page(
    answer: ShareBrowseResponse, request: ShareBrowseRequest, seen: Iterator[Seen], end: int, clock: Clock
) -> ShareBrowseResponse:
    """Fill the answer with the runs and holes up to `end`, as many as the request asks for."""
    gone = min(answer.log_start, answer.end_offset)
    first = max(request.offset, answer.start_offset)
    parts: list[Seen] = []
    if first < gone and HOLES in wanted_states(request.states):  # lies over records that the window has not dropped yet
        parts.append(Seen(holes=[Hole(first, gone - 1, RETENTION)]))
    left, more = request.limit, -1
    turns = answers.turns(clock)
    for some in seen:
        await turns.take(1 + some.size)
        told, more = some.cut(left)
        answers.space().add(RUN_BYTES * told.size)
        parts.append(told)
        left -= told.size
        if more >= 0:
            break
    else:
        more = end if end < answer.end_offset else -1
    runs, holes = together(parts)
    return replace(answer, runs=runs, holes=tuple(holes), next=more)


async def intervened(
    key: ShareKey, request: ShareInterveneRequest, *, partitions: Partitions
) -> ShareInterveneResponse:
    """Act on records of a share-partition that is led here; durable on return. Raises: LogError, CoreError."""
    if not partitions.knows(key):
        raise InvalidRequest(f"share-partition {key} was never begun")
    owner = await partitions.open(key)
    found = await owner.intervene(Act(request.act), request.ranges, dry_run=request.dry_run)
    return ShareInterveneResponse(found=found)
