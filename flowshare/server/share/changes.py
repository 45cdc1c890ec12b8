"""State of all share-partitions that this server leads, told to watchers as changes since their last request.

A console or a terminal that shows two hundred groups asks every second. Asked group by group that is a call for each
group and one for the end of each log; here it is one call, whose answer is as long as the changes.

Nothing is counted on the way of records. A request has the loaded share-partitions looked through: a few numbers each
(`_signature`), and only where they differ a row is made anew. That is done at most once in `FRESH_S`, or `SHARE` times
as long as it takes, however many ask. A share-partition that is not loaded changes only by its log's end, and by the
ends of delays: its stored state is read once, without loading it, and the ends every `ENDS_S`.

Invariant: a row carries the version at which it last changed; an answer since version v holds every row, and the name
of every removed share-partition, with a greater version. `GONE_MAX` names of removed ones are kept; a watcher further
behind is told everything, as is a watcher that knows another start of the server.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.core_errors import CoreError
from flowshare.log.base import LogError
from flowshare.protocol.batches import DecodeError, batch_headers
from flowshare.protocol.messages.browse import ShareChangesRequest, ShareChangesResponse, Standing
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.state import ShareKey, stored_in
from flowshare.share.types import RecordState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.clock import Clock
    from flowshare.log.base import LogOffsets, Storage
    from flowshare.server.runtime.state import StoredState
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.partitions import Partitions
    from flowshare.server.share.service import ShareService

logger = logging.getLogger(__name__)

FRESH_S: Final = 0.5
SHARE: Final = 50
"""Divisor: looking takes at most this part of the time."""
ENDS_S: Final = 5.0
GONE_MAX: Final = 10_000
AGES_MAX: Final = 200
"""Records whose age is read in one look; the next looks read further ones."""
AT_ONCE: Final = 64

Signature = tuple[int, ...]
Where = tuple[str, str, int]
"""Group, topic and partition."""
Nodes = Callable[[], tuple[int, Collection[int]]]


class ChangeApis(Family):
    """Answers requests of watchers."""

    def __init__(self, service: ShareService, store: Storage, nodes: Nodes = lambda: (-1, ())) -> None:
        """nodes: returns this worker's id and those of all of its fleet."""
        self._changes = Changes(service.partitions, service.topics, store, service.clock)
        self._nodes = nodes

    @handles(ShareChangesRequest, ShareChangesResponse)
    async def changes(self, request: ShareChangesRequest, _: InProcess) -> ShareChangesResponse:
        """Answer with the changes since the watcher's last answer."""
        node, nodes = self._nodes()
        return replace(await self._changes.since(request.server, request.since), node=node, nodes=tuple(nodes))


class Changes:
    """Rows of all share-partitions of a server, with versions."""

    def __init__(self, partitions: Partitions, topics: TopicIndex, store: Storage, clock: Clock) -> None:
        self._partitions = partitions
        self._topics = topics
        self._store = store
        self._clock = clock
        self._server = str(uuid.uuid4())
        self._version = 0
        self._forgotten = 0
        """Version up to which names of removed ones are forgotten."""
        self._rows: dict[ShareKey, tuple[int, Standing]] = {}
        self._signatures: dict[ShareKey, Signature] = {}
        self._stored: dict[ShareKey, _Idle] = {}
        """Stored figures of the share-partitions that are not loaded."""
        self._gone: dict[ShareKey, tuple[int, Where]] = {}
        self._ages: dict[ShareKey, tuple[int, int]] = {}
        """Offset of the first unfinished record, and its timestamp."""
        self._tried: set[ShareKey] = set()
        """Share-partitions without readable stored state: tried again with the ends."""
        self._unread: set[ShareKey] = set()
        """Those whose record could not be read: tried again with the ends."""
        self._looking: asyncio.Task[None] | None = None
        self._next_s = float("-inf")
        self._ends_s = float("-inf")

    async def since(self, server: str, version: int) -> ShareChangesResponse:
        """Return the changes since the answer with this version. Raises: LogError."""
        await self._look()
        whole = server != self._server or not self._forgotten <= version <= self._version
        least = 0 if whole else version
        turns = answers.turns(self._clock)
        now = self._version
        rows: list[Standing] = []
        for changed, row in reversed(list(self._rows.values())):
            if changed <= least:
                break
            rows.append(row)
            await turns.take()
        rows.reverse()  # of two rows by one name, as when a topic was made anew, the newest one counts
        gone = () if whole else self._names_gone(least)
        return ShareChangesResponse(server=self._server, version=now, whole=whole, rows=tuple(rows), gone=gone)

    def _names_gone(self, least: int) -> tuple[Where, ...]:
        """Return names of share-partitions removed since that version, without names that are in use again."""
        gone = [name for changed, name in self._gone.values() if changed > least]
        if not gone:
            return ()
        there = {(row.group_id, row.topic, row.partition) for _, row in self._rows.values()}
        return tuple(name for name in gone if name not in there)

    async def _look(self) -> None:
        """Look at all share-partitions, unless that was just done; concurrent callers wait for the same look."""
        if self._looking is None:
            if self._clock.monotonic() < self._next_s:
                return
            self._looking = asyncio.ensure_future(self._look_at_all())
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)

    def _looked(self, task: asyncio.Future[None]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # the waiting callers have it

    async def _look_at_all(self) -> None:
        begun_s = self._clock.monotonic()
        ends = begun_s >= self._ends_s
        if ends:
            self._begin_ends(begun_s)
        for key in self._partitions.take_renewed():
            self._tried.discard(key)
            self._stored.pop(key, None)
        known = self._partitions.all_known()
        unread, due, worked_s = await self._see_all(known, ends=ends)
        self._forget(set(known))
        for first in range(0, len(due), AT_ONCE):
            part = due[first : first + AT_ONCE]
            found = await asyncio.gather(*(self._see_idle(key, ends=ends) for key in part))
            unread += [key for key, wanted in zip(part, found, strict=True) if wanted]
        for key in unread[:AGES_MAX]:
            await self._read_age(key)
        self._next_s = self._clock.monotonic() + max(FRESH_S, SHARE * worked_s)

    def _begin_ends(self, now_s: float) -> None:
        """Begin a look that reads the ends of logs, and repeats failed reads."""
        self._ends_s = now_s + ENDS_S
        self._tried.clear()
        for key in self._unread:
            self._ages.pop(key, None)
        self._unread.clear()

    async def _see_all(self, known: Sequence[ShareKey], *, ends: bool) -> tuple[list[ShareKey], list[ShareKey], float]:
        """Return those whose first record's age is to be read, those that are not loaded and have to be read, and the
        seconds that this took."""
        unread: list[ShareKey] = []
        due: list[ShareKey] = []
        worked_s = 0.0
        turns = answers.turns(self._clock)
        for key in known:
            await turns.take()
            at_s = self._clock.monotonic()
            owner = self._partitions.get(key)
            if owner is not None:
                if self._see(key, owner):
                    unread.append(key)
            elif self._is_due(key, ends=ends):
                due.append(key)
            worked_s += self._clock.monotonic() - at_s
        return unread, due, worked_s

    # --- loaded ------------------------------------------------------------------------------------------------------

    def _see(self, key: ShareKey, owner: PartitionOwner) -> bool:
        """Make a share-partition's row anew if it differs; return True if its first record's age is to be read."""
        self._stored.pop(key, None)
        try:
            bounds = owner.log.bounds()
        except (CoreError, LogError):
            return False  # the topic is being deleted, or its log is looked for
        signature = _signature(owner, bounds)
        before = self._rows.get(key)
        # Finding stuck keys is done seldom, so that they are known later than the number of waiting records.
        late = before is not None and owner.partition.blocked_count > 0 and before[1].stuck != owner.stuck()
        if self._signatures.get(key) != signature or late:
            self._signatures[key] = signature
            self._put(key, self._row(key, owner, bounds))
        return self._wants_age(key)

    def _wants_age(self, key: ShareKey) -> bool:
        row = self._rows.get(key)
        if row is None or row[1].lag <= 0:
            return False
        return self._ages.get(key, (-1, 0))[0] != row[1].start_offset

    def _row(self, key: ShareKey, owner: PartitionOwner, bounds: LogOffsets) -> Standing:
        partition = owner.partition
        start = max(partition.start_offset, bounds.log_start)
        lag = max(0, bounds.high_watermark - start - partition.delivery_complete_count)
        offset, oldest_ms = self._ages.get(key, (-1, -1))
        return Standing(
            group_id=key.group_id,
            topic=owner.log.topic,
            partition=key.partition,
            start_offset=start,
            log_end=bounds.high_watermark,
            lag=lag,
            in_flight=partition.acquired_count,
            delayed=partition.delayed_count,
            blocked=partition.blocked_count,
            archiving=partition.archiving_count,
            parked=0 if owner.parked is None else len(owner.parked),
            redeliveries=owner.redeliveries,
            oldest_ms=oldest_ms if lag and offset == start else -1,
            stuck=owner.stuck() if partition.blocked_count else (),
        )

    async def _read_age(self, key: ShareKey) -> None:
        row = self._rows.get(key)
        if row is None:
            return
        start = row[1].start_offset
        try:
            read = await self._store.read(row[1].topic, key.partition, start, max_bytes=1)
            header = next(iter(batch_headers(read.records)), None)
        except (CoreError, LogError, DecodeError) as error:
            logger.debug("the age of the oldest record is not known: %s key=%s", error, key)
            header = None
            self._unread.add(key)
        stamp = -1
        if header is not None:
            stamp = header.first_timestamp if header.delete_horizon_ms is None else header.max_timestamp
        self._ages[key] = start, stamp
        latest = self._rows.get(key)
        if latest is not None and latest[1].start_offset == start:
            self._put(key, latest[1]._replace(oldest_ms=stamp))

    # --- not loaded --------------------------------------------------------------------------------------------------

    def _is_due(self, key: ShareKey, *, ends: bool) -> bool:
        """Return True if the stored state or the log's end has to be read: not known here, or changed."""
        known, before = self._stored.get(key), self._rows.get(key)
        if known is None or before is None:
            return key not in self._tried
        if not ends:
            return False
        if known.delayed or self._wants_age(key):
            return True
        try:
            bounds = self._store.offsets(before[1].topic, key.partition)
        except (CoreError, LogError):
            return True
        return before[1].log_end != bounds.high_watermark or 0 <= before[1].start_offset < bounds.log_start

    async def _see_idle(self, key: ShareKey, *, ends: bool) -> bool:
        """Read the stored state and the log's end; return True if the first record's age is to be read."""
        known = self._stored.get(key)
        if known is not None and not ends and key in self._rows:
            return False
        self._tried.add(key)
        topic = self._topics.by_id(key.topic_id)
        if topic is None:
            return False
        try:
            if known is None:
                stored = stored_in(await self._store.scan(key.prefix), key)
                if stored is None or self._partitions.get(key) is not None:
                    return False
                known = self._stored[key] = _idle(stored)
                self._signatures.pop(key, None)
            bounds = await self._store.bounds(topic.name, key.partition)
        except (CoreError, LogError) as error:
            logger.debug("what is stored is not known: %s key=%s", error, key)
            return False
        start = max(known.start_offset, bounds.log_start) if known.start_offset >= 0 else -1
        offset, oldest_ms = self._ages.get(key, (-1, -1))
        lag = max(0, bounds.high_watermark - start - known.finished) if start >= 0 else -1
        now_ms = self._clock.steady_ms()
        self._put(
            key,
            Standing(
                group_id=key.group_id,
                topic=topic.name,
                partition=key.partition,
                start_offset=start,
                log_end=bounds.high_watermark,
                lag=lag,
                delayed=sum(
                    last - max(first, start) + 1
                    for first, last, due_ms in known.delayed
                    if last >= start and due_ms > now_ms
                ),
                parked=known.parked,
                oldest_ms=oldest_ms if lag > 0 and offset == start else -1,
            ),
        )
        return self._wants_age(key)

    # --- versions ----------------------------------------------------------------------------------------------------

    def _put(self, key: ShareKey, row: Standing) -> None:
        """Keep a row; the newest rows are last."""
        before = self._rows.get(key)
        if before is not None and before[1] == row:
            return
        self._version += 1
        self._rows.pop(key, None)
        self._rows[key] = self._version, row
        self._gone.pop(key, None)

    def _forget(self, known: set[ShareKey]) -> None:
        """Remove the share-partitions that are not led here any more."""
        for key in [key for key in self._rows if key not in known]:
            _, row = self._rows.pop(key)
            for kept in (self._signatures, self._stored, self._ages):
                kept.pop(key, None)
            self._unread.discard(key)
            self._tried.discard(key)
            self._version += 1
            self._gone[key] = self._version, (row.group_id, row.topic, row.partition)
        while len(self._gone) > GONE_MAX:
            key = next(iter(self._gone))
            self._forgotten = self._gone.pop(key)[0]


class _Idle(NamedTuple):
    """The stored figures of a share-partition. delayed: first and last offset, and due time in ms, of each delayed
    range."""

    start_offset: int
    finished: int
    delayed: tuple[tuple[int, int, int], ...]
    parked: int


def _idle(stored: StoredState) -> _Idle:
    state = stored.state
    waiting = (run for run in state.runs if run.state is RecordState.AVAILABLE and run.not_before_ms > 0)
    delayed = tuple((run.first, run.last, run.not_before_ms) for run in waiting)
    return _Idle(state.start_offset, state.delivery_complete_count, delayed, len(stored.parked))


def _signature(owner: PartitionOwner, bounds: LogOffsets) -> Signature:
    """Return a few numbers that differ when the row differs."""
    partition = owner.partition
    return (
        partition.start_offset,
        partition.delivery_complete_count,
        partition.acquired_count,
        partition.delayed_count,
        partition.blocked_count,
        partition.archiving_count,
        owner.redeliveries,
        bounds.high_watermark,
        bounds.log_start,
        0 if owner.parked is None else len(owner.parked),
    )
