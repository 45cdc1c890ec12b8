"""ShareFetch (SG-11): acknowledgements, then records from the session's share-partitions, waiting for some if need be.

A fetch goes round its share-partitions in the session's rotated order and acquires available records, within MaxRecords
over all of them and MaxBytes in equal parts (SG-11.3). Without any it stands in line at each of them until one has
records, until MaxWait, or until its session or connection ends (SG-11.4). A fetch that carried acknowledgements does
not wait: its sender waits for their results (SG-11.2).

Rights are checked at each look, and once more on acquired records before they go out: a right lost while a fetch waits
is noticed when it is woken, and records that the fetch may not have any more go back, unrun.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import CoreError, InvalidRequest, ShareSessionLimitReached
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import FetchedPartition, ShareFetchRequest, ShareFetchResponse, TopicPartition
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, failure, refusal
from flowshare.server.runtime.state import GROUP_ID_BYTES_MAX, ShareKey
from flowshare.server.runtime.waiting import Ended
from flowshare.server.share.acknowledge import OK, Result, check_readable, merged, settle
from flowshare.server.share.duties import NOT_KNOWN
from flowshare.server.share.waiters import NOTHING, Taken, Want
from flowshare.share.types import AcquireMode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from flowshare.clock import Clock, TimerHandle
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.runtime.waiting import Waiter
    from flowshare.server.share.acknowledge import Acknowledger, Pending
    from flowshare.server.share.duties import Duties
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.partitions import Partitions
    from flowshare.server.share.sessions import Sessions
    from flowshare.server.share.stats import Stats
    from flowshare.share.session import FetchTurn, Key, ShareSession

WAIT_MAX_MS: Final = 10 * 60 * 1000
"""Longest wait granted, in ms, for any MaxWait."""
LOADS_AT_ONCE: Final = 64
"""Share-partitions that one fetch has loaded concurrently: in a fleet each load asks others."""
LOAD_PATIENCE_S: Final = 0.2
"""Seconds from a load's begin for which a fetch waits for it with records of other share-partitions in its hands."""


@dataclass(slots=True)
class _Found:
    """The records and errors that a fetch has so far."""

    taken: dict[Key, Taken] = field(default_factory=dict["Key", Taken])
    errors: dict[Key, Result] = field(default_factory=dict["Key", "Result"])

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(len(taken.records) for taken in self.taken.values())


class ShareFetching(Family):
    """Answers ShareFetch."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        topics: TopicIndex,
        acknowledger: Acknowledger,
        sessions: Sessions,
        clock: Clock,
        stats: Stats,
        duties: Duties,
    ) -> None:
        self._partitions = partitions
        self._topics = topics
        self._acknowledger = acknowledger
        self._sessions = sessions
        self._clock = clock
        self._stats = stats
        self._duties = duties

    @handles(ShareFetchRequest)
    async def fetch(self, request: ShareFetchRequest, connection: InProcess) -> ShareFetchResponse:
        """Answer a fetch."""
        self._stats.fetches += 1
        came_ms = self._clock.steady_ms()
        try:
            turn, pending = self._accept(request, connection)
        except CoreError as error:
            self._stats.failed_fetches += 1
            if isinstance(error, ShareSessionLimitReached):
                await self._hold_off(request, connection)
            return refusal(ShareFetchResponse, error)
        if not turn.partitions or request.max_records <= 0:
            return self._answer(turn, await settle(pending), _Found(), came_ms)
        # From here on, since its session may end while its acknowledgements are written.
        with self._under_way(turn.session, connection) as waiter:
            acks = await settle(pending)
            found = await self._records(request, turn, connection, waiter, may_wait=not acks)
        for refused, why, _ in () if acks else found.errors.values():
            if refused is ErrorCode.GROUP_AUTHORIZATION_FAILED:
                return ShareFetchResponse(error=refused, message=why)
        return self._answer(turn, acks, found, came_ms)

    @contextlib.contextmanager
    def _under_way(self, session: ShareSession, connection: InProcess) -> Generator[Waiter]:
        """Yield a fetch's waiter, which ends with its session or connection."""
        waiter = self._sessions.enter(session.group_id, session.member_id)
        connection.watch(waiter)
        try:
            yield waiter
        finally:
            connection.unwatch(waiter)
            self._sessions.leave(session.group_id, session.member_id, waiter)

    def _accept(
        self, request: ShareFetchRequest, connection: InProcess
    ) -> tuple[FetchTurn, dict[TopicPartition, Pending]]:
        """Do the steps that keep the order of requests: the session's epoch, then the acknowledgements."""
        check_request(request)
        requested = merged(request.partitions)
        with_acks = {at: acks for at, acks in requested.items() if acks}
        turn = self._sessions.fetch(
            connection,
            request.group_id,
            request.member_id,
            request.session_epoch,
            added=requested,
            forgotten=request.forgotten,
            has_acks=bool(with_acks),
            beside=request.max_records > 0,
        )
        session = turn.session
        pending = self._acknowledger.decide(
            session.group_id,
            session.member_id,
            with_acks,
            version=request.version,
            renew_allowed=request.is_renew_ack,
            may_read=connection.may_read,
        )
        if turn.closed is not None:
            self._sessions.ended(turn.closed)
        return turn, pending

    async def _hold_off(self, request: ShareFetchRequest, connection: InProcess) -> None:
        """Answer late, so that a client that asks again and again does not spin."""
        group_id, member_id = request.group_id or "", request.member_id or ""
        waiter = self._sessions.enter(group_id, member_id)
        connection.watch(waiter)
        limit = waiter.end_after(self._clock, min(request.max_wait_ms, WAIT_MAX_MS))
        try:
            while waiter.ended is Ended.NO:
                await waiter.wait()
        finally:
            limit.cancel()
            connection.unwatch(waiter)
            self._sessions.leave(group_id, member_id, waiter)

    async def _records(
        self, request: ShareFetchRequest, turn: FetchTurn, connection: InProcess, waiter: Waiter, *, may_wait: bool
    ) -> _Found:
        if waiter.abandoned:
            return _Found()
        limit: TimerHandle | None = None
        if may_wait and request.max_wait_ms > 0:
            limit = waiter.end_after(self._clock, min(request.max_wait_ms, WAIT_MAX_MS))
        else:
            waiter.end(Ended.TIMEOUT)
        waiter.min_bytes, waiter.keys = request.min_bytes, frozenset(turn.partitions)
        readable = self._readable(turn.session.group_id, connection)
        visit = _Visit(self._partitions, request, turn, waiter, readable=readable, clock=self._clock)
        try:
            found = await visit.run()
            if limit is not None and waiter.ended is Ended.TIMEOUT:
                self._stats.parked_timeouts += 1
            return found
        finally:
            if limit is not None:
                limit.cancel()
            visit.close()

    def _readable(self, group_id: str, connection: InProcess) -> Callable[[Key], None]:
        """Return a check that raises the reason why the connection's peer may not read a partition, if any."""
        may_read, may_share, topics = connection.may_read, connection.may_share, self._topics

        def check(key: Key) -> None:
            if may_share is not None and not may_share(group_id):
                raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"reading in group {group_id} is not allowed")
            check_readable(topics.by_id(key[0]), may_read)

        return check

    def _answer(
        self, turn: FetchTurn, acks: dict[TopicPartition, Result], found: _Found, came_ms: int
    ) -> ShareFetchResponse:
        listed: list[FetchedPartition] = []
        endpoints: dict[int, tuple[str, int]] = {}
        keys = dict.fromkeys((*turn.partitions, *acks))
        for key in keys:
            error, message, _ = found.errors.get(key, OK)
            taken = found.taken.get(key, NOTHING)
            ack = acks.get(TopicPartition(*key))
            content = ack is not None or bool(taken.ranges)
            failed = error is not ErrorCode.NONE
            if not turn.session.must_list(key, content=content, error=failed):
                continue
            ack_error, ack_message, ack_refused = ack or OK
            leader = NOT_KNOWN
            if ErrorCode.NOT_LEADER_OR_FOLLOWER in (error, ack_error):
                leader = self._duties.leader_of(*key)
                if leader.address is not None:
                    endpoints[leader.current[0]] = leader.address
            listed.append(
                FetchedPartition(
                    topic_id=key[0],
                    partition=key[1],
                    error=error,
                    message=message,
                    ack_error=ack_error,
                    ack_message=ack_message,
                    ack_refused=ack_refused,
                    records=taken.records,
                    acquired=taken.ranges,
                    fence=taken.fence,
                    following=tuple(taken.following.items()),
                    locked_after_ms=None if taken.fence is None else taken.locked_ms - came_ms,
                    current_leader=leader.current,
                )
            )
        lock_timeout_ms = self._duties.config_of(turn.session.group_id).record_lock_duration_ms
        return ShareFetchResponse(lock_timeout_ms=lock_timeout_ms, partitions=tuple(listed), node_endpoints=endpoints)


class _Visit:
    """One fetch's rounds over its share-partitions."""

    def __init__(
        self,
        partitions: Partitions,
        request: ShareFetchRequest,
        turn: FetchTurn,
        waiter: Waiter,
        *,
        readable: Callable[[Key], None],
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._readable = readable
        self._request = request
        self._turn = turn
        self._waiter = waiter
        self._group_id = turn.session.group_id
        self._member_id = turn.session.member_id
        self._owners: dict[Key, PartitionOwner] = {}
        self._loads: dict[Key, asyncio.Task[object]] = {}
        self._loads_at_once = asyncio.Semaphore(LOADS_AT_ONCE)
        self._errors: dict[Key, Result] = {}
        """The error of each share-partition's last load, told until it is loaded."""
        self._patient = True
        self._space = answers.space()

    async def run(self) -> _Found:
        """Look, and wait and look again, until there is something to answer with."""
        refused: set[Key] | None = None
        while True:
            found = await self._look()
            nothing_to_come = not self._owners and not self._loads
            if found.taken or nothing_to_come or self._waiter.ended is not Ended.NO:
                return found
            # A partition that cannot be fetched from does not keep the rest from waiting; a newer error is told at
            # once.
            refused = set(found.errors).difference(self._owners) if refused is None else refused
            if not refused.issuperset(found.errors):
                return found
            await self._waiter.wait()
            if self._waiter.abandoned:
                return _Found()

    def close(self) -> None:
        """Leave all lines, and the loads under way to others."""
        for load in self._loads.values():
            load.cancel()
        self.leave()

    def leave(self) -> None:
        """Leave all lines; let the next fetches have the rest."""
        for owner in self._owners.values():
            owner.waiting.leave(self._waiter, self._member_id)
            owner.waiting.nudge()

    def _step_aside(self) -> None:
        """Leave the lines without ending: others may take records while this fetch's are written."""
        for owner in self._owners.values():
            owner.waiting.step_aside(self._waiter)

    async def _look(self) -> _Found:
        found = _Found()
        await self._load_all(found)
        # In line before looking, so that no record that comes meanwhile is missed.
        for owner in self._owners.values():
            owner.waiting.park(self._waiter, self._member_id, singles=self._request.heads > 0)
        ready = self._ready(found)
        if not ready:
            return found
        if not await self._enough_bytes(ready):
            for _, owner in ready:
                owner.waiting.pass_on(self._waiter)
            return found
        wanted = min(self._request.max_bytes, answers.FETCH_BYTES_MAX)
        given = self._space.reserve(wanted)
        if wanted and not given:
            self.leave()  # others may take the records; this fetch looks again when its client has read something
            self._space.wake(self._waiter)
            return found
        try:
            await self._take(ready, found, given)
            if found.taken:
                self._step_aside()
            await self._make_durable(found)
            if self._waiter.abandoned:
                self._hand_back(found)
        except BaseException:
            self._hand_back(found)
            raise
        else:
            self._withdraw(found)
        finally:
            self._space.settle(given, found.size)
        return found

    def _hand_back(self, found: _Found) -> None:
        """Release everything, unrun: the client is gone."""
        for key, taken in found.taken.items():
            self._owners[key].hand_back(self._member_id, taken.ranges)
        found.taken.clear()

    def _known(self, key: Key, found: _Found) -> bool:
        """Return True if a share-partition is loaded, or has a known error that forbids fetching from it."""
        owner = self._owners.get(key)
        if owner is None or owner.closed:
            self._owners.pop(key, None)
            owner = self._partitions.get(ShareKey(self._group_id, *key))
            if owner is None:
                return False
        try:
            self._readable(key)
        except EXPECTED as error:
            found.errors[key] = Result(*failure(error))
            if self._owners.pop(key, None) is not None:
                owner.waiting.leave(self._waiter, self._member_id)
                owner.waiting.nudge()
            return True
        self._owners[key] = owner
        return True

    async def _load_all(self, found: _Found) -> None:
        """Load missing share-partitions. The first look waits a moment for them; one that takes longer wakes the fetch
        when it is loaded, and keeps nobody from the others meanwhile."""
        self._begin_loads(found)
        if self._patient and self._loads:
            young = [load for key, load in self._loads.items() if self._loading_s(key) < LOAD_PATIENCE_S]
            if young:
                self.leave()  # it could not come when called
                with contextlib.suppress(TimeoutError):
                    await self._clock.wait_for(asyncio.wait(young), LOAD_PATIENCE_S)
                self._begin_loads(found)
        self._patient = False
        for load in self._loads.values():
            load.remove_done_callback(self._wake)
            load.add_done_callback(self._wake)

    def _begin_loads(self, found: _Found) -> None:
        """Begin the missing loads; note the errors of ended ones."""
        for key in [key for key, load in self._loads.items() if load.done()]:
            try:
                self._loads.pop(key).result()
            except EXPECTED as error:
                found.errors[key] = self._errors[key] = Result(*failure(error))
        for key in self._turn.partitions:
            if key in found.errors:
                continue
            if self._known(key, found):
                self._errors.pop(key, None)
                continue
            if key not in self._loads:
                self._loads[key] = asyncio.get_running_loop().create_task(self._load(key))
            if key in self._errors:  # while the next try is under way
                found.errors[key] = self._errors[key]

    async def _load(self, key: Key) -> None:
        """Load a share-partition. Raises: `EXPECTED`."""
        self._readable(key)
        share = ShareKey(self._group_id, *key)
        if self._partitions.loading_s(share):  # begun by another fetch: it takes no place among this one's
            await self._partitions.open(share)
            return
        async with self._loads_at_once:
            await self._partitions.open(share)

    def _loading_s(self, key: Key) -> float:
        return self._partitions.loading_s(ShareKey(self._group_id, *key))

    def _wake(self, _: object) -> None:
        self._waiter.wake()

    def _ready(self, found: _Found) -> list[tuple[Key, PartitionOwner]]:
        ready: list[tuple[Key, PartitionOwner]] = []
        for key in self._turn.partitions:
            owner = self._owners.get(key)
            if owner is None:
                continue
            try:
                if owner.waiting.ready(self._member_id, self._request.max_records):
                    ready.append((key, owner))
            except EXPECTED as error:
                found.errors[key] = Result(*failure(error))
        return ready

    async def _enough_bytes(self, ready: Iterable[tuple[Key, PartitionOwner]]) -> bool:
        """Return True if MinBytes are there, or need not be: at the wait limit, and for records that come again."""
        missing = self._request.min_bytes
        if missing <= 1 or self._waiter.ended is not Ended.NO:
            return True
        for _, owner in ready:
            missing -= await owner.fetchable_bytes(missing)
            if missing <= 0:
                return True
        return False

    async def _take(self, ready: Sequence[tuple[Key, PartitionOwner]], found: _Found, bytes_max: int) -> None:
        request = self._request
        left = request.max_records
        with_records = request.max_bytes > 0
        bytes_each = bytes_max // len(ready) if with_records else 0x7FFFFFFF
        for key, owner in ready:
            if left <= 0 or found.size >= bytes_max > 0:
                return
            want = Want(
                self._member_id,
                AcquireMode(request.acquire_mode),
                left,
                request.batch_size,
                bytes_each,
                with_records,
                self._waiter,
                min(request.heads, left),
                request.chain,
            )
            try:
                taken = await owner.take(want)
            except EXPECTED as error:
                found.errors[key] = Result(*failure(error))
                continue
            if taken.ranges:
                found.taken[key] = taken
                left -= sum(part.last - part.first + 1 for part in taken.ranges)

    async def _make_durable(self, found: _Found) -> None:
        for key, taken in tuple(found.taken.items()):
            if taken.durable is None:
                continue
            try:
                await taken.durable
            except EXPECTED as error:
                found.errors[key] = Result(*failure(error))
                del found.taken[key]
                self._owners[key].give_back(self._member_id, taken.ranges)

    def _withdraw(self, found: _Found) -> None:
        """Release, unrun, records that the peer may not read any more: rights may have gone while the acquires were
        written."""
        for key, taken in tuple(found.taken.items()):
            try:
                self._readable(key)
            except EXPECTED as error:
                found.errors[key] = Result(*failure(error))
                del found.taken[key]
                self._owners[key].hand_back(self._member_id, taken.ranges)


def check_request(request: ShareFetchRequest) -> None:
    """Check a ShareFetch as far as that needs no state (SG-11.6). Raises: InvalidRequest."""
    if request.group_id is not None and len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
        raise InvalidRequest(f"a group id has at most {GROUP_ID_BYTES_MAX} bytes")
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if request.is_renew_ack and any(limits):
        raise InvalidRequest("a ShareFetch that renews (IsRenewAck) fetches nothing: its limits must be 0")
    if request.acquire_mode not in tuple(AcquireMode):
        raise InvalidRequest(f"acquire mode {request.acquire_mode} is unknown")
    if min(limits) < 0:
        raise InvalidRequest("a ShareFetch's limits must not be negative")
