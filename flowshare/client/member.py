"""`ShareMember`: one member of one share group in ranges and bytes. `ShareConsumer` and the agents stand on it.

Nothing here is done per record. Acknowledgements never ride on fetches: a fetch may be parked at the server, and an
acknowledgement's outcome is wanted now, so each goes in a ShareAcknowledge of its own beside the parked fetch.

When a connection ends, the server gives what this member held to others. An acknowledgement whose outcome is not
known is reported as an error and never sent again: the record may have been given to somebody in between.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.errors import (
    SESSION_GONE,
    ClientError,
    Closed,
    ConnectionLost,
    IllegalState,
    NotConnected,
    ServerError,
)
from flowshare.client.link import Connect, Link
from flowshare.client.membership import Membership
from flowshare.client.session import EPOCH_CLOSE, FetchSession
from flowshare.client.settings import MIB, MemberSettings
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AckBatch,
    FetchedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AcknowledgeType, AcquiredRange, AcquireMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

RENEW: Final = bytes((AcknowledgeType.RENEW,))
RELEASE: Final = bytes((AcknowledgeType.RELEASE,))
REFUSED: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Errors of a fetch that trying again does not cure."""

logger = logging.getLogger(__name__)


class Fetched(NamedTuple):
    """What a fetch got from one partition.

    `records` are whole record batches that may hold more than was acquired: only offsets inside `acquired` are this
    member's, and each of them is to be acknowledged, with GAP where there is no record. `lock_deadline` is when the
    first lock may lapse, in the clock's monotonic seconds. `generation` is the connection's number: hand it to
    `acknowledge`, and what was held over a connection that is gone is not acknowledged by mistake.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    records: bytes
    acquired: tuple[AcquiredRange, ...]
    lock_deadline: float
    generation: int

    @property
    def tp(self) -> TopicPartition:
        """The key under which these ranges are acknowledged."""
        return TopicPartition(self.topic_id, self.partition)


class TopicIdPartition(NamedTuple):
    """A partition by name, with its topic's id."""

    topic: str
    partition: int
    topic_id: uuid.UUID

    @property
    def tp(self) -> TopicPartition:
        """Topic id and partition."""
        return TopicPartition(self.topic_id, self.partition)


class AckResult(NamedTuple):
    """Outcome of the acknowledgements of one partition: all of them hold or, with an error, none.

    `lock_deadline`: for renewed records, when the lock lapses now, in the clock's monotonic seconds.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    acks: tuple[AckBatch, ...]
    error: ErrorCode
    message: str | None
    lock_deadline: float

    @property
    def tp(self) -> TopicPartition:
        """Topic id and partition."""
        return TopicPartition(self.topic_id, self.partition)


class _Plan(NamedTuple):
    records_max: int
    batch_size: int
    max_wait_s: float
    bytes_max: int
    mode: AcquireMode


class ShareMember:
    """One member of one share group. One task fetches; any number acknowledge."""

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        topics: Sequence[str],
        clock: Clock,
        member_id: str | None = None,
        settings: MemberSettings | None = None,
        on_assignment: Callable[[frozenset[TopicIdPartition]], None] | None = None,
    ) -> None:
        """A member that is not started; `on_assignment` is called on the loop with each new assignment."""
        self.group_id = group_id
        self.member_id = member_id or str(uuid.uuid4())
        self.lock_timeout_ms = 0
        self._clock = clock
        self._settings = settings or MemberSettings()
        self._on_assignment = on_assignment
        self._session = FetchSession()
        self._link = Link(
            connect,
            clock=clock,
            settings=self._settings.link,
            name=f"member {self.member_id} of {group_id}",
            on_lost=self._session.reset,
        )
        self._changed = asyncio.Event()
        self._membership = Membership(
            self._link,
            group_id=group_id,
            member_id=self.member_id,
            topics=topics,
            clock=clock,
            settings=self._settings,
            on_assignment=self._assigned,
        )
        self._fetching: asyncio.Task[list[Fetched]] | None = None
        self._fetch_called = False
        self._woken = False
        self._waker: asyncio.Future[None] | None = None
        self._refusal: ClientError | None = None
        self._strikes = 0
        self._trouble: str | None = None
        self._acks_open = 0
        self._acks_done = asyncio.Event()
        self._closing = False

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Partitions that this member fetches from."""
        names = self._membership.names
        return frozenset(
            TopicIdPartition(names[tp.topic_id], tp.partition, tp.topic_id) for tp in self._membership.assignment
        )

    @property
    def member_epoch(self) -> int:
        """The member's epoch in its group; 0: not joined."""
        return self._membership.epoch

    @property
    def generation(self) -> int:
        """How many connections were lost; a change means that everything held before is given to others."""
        return self._link.generation

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, in words; None when all is well (there may just be nothing to fetch)."""
        if self._membership.failed is not None:
            return str(self._membership.failed)
        if self._membership.trouble or self._link.trouble or self._trouble:
            return self._membership.trouble or self._link.trouble or self._trouble
        if not self._membership.assignment:
            return f"no partition is assigned; do the topics exist: {', '.join(self._membership.topics)}?"
        return None

    def topic_name(self, topic_id: uuid.UUID) -> str:
        """Name of a topic that is or was assigned."""
        return self._membership.names.get(topic_id, str(topic_id))

    # --- joining ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join; returns after the first heartbeat's answer.

        Raises: NotConnected (no server within the settings' connect_timeout_s), ServerError (the group refuses).
        """
        self._check_open()
        await self._membership.join()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the subscribed topics; the group is told at once."""
        self._membership.subscribe(topics)

    async def leave(self) -> None:
        """Leave the group but stay usable: `start` joins again. What is held may still be acknowledged."""
        await self._membership.leave()

    # --- fetching -----------------------------------------------------------------------------------------------

    async def fetch(
        self,
        *,
        records_max: int,
        batch_size: int | None = None,
        max_wait_s: float = 0.5,
        bytes_max: int = 50 * MIB,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    ) -> list[Fetched]:
        """Acquire up to about `records_max` records, waiting up to `max_wait_s` for the first.

        Empty when there was nothing, when `wakeup` was called, or while the server cannot be reached (then after a
        pause; `trouble` says why). Acquired ranges aim at `batch_size` offsets. With `bytes_max=0` ranges come
        without records. What a cancelled or woken call was about to get is returned by the next call.
        Raises: ServerError (refused), Closed, IllegalState (two fetches at once).
        """
        self._check_open()
        if self._fetch_called:
            raise IllegalState("one fetch of a member at a time; wait for the other call")
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        if self._woken:
            self._woken = False
            return []
        if self._fetching is None:
            plan = _Plan(records_max, batch_size or max(1, records_max), max_wait_s, bytes_max, mode)
            self._fetching = asyncio.create_task(self._fetch(plan), name=f"fetch {self.group_id}")
        return await self._wait_fetch(self._fetching)

    def wakeup(self) -> None:
        """Make the fetch that waits (or else the next one) return at once, empty. Call on the member's loop."""
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)
        else:
            self._woken = True

    async def _wait_fetch(self, task: asyncio.Task[list[Fetched]]) -> list[Fetched]:
        self._waker = asyncio.get_running_loop().create_future()
        self._fetch_called = True
        try:
            waited: set[asyncio.Future[Any]] = {task, self._waker}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._fetch_called = False
            self._waker = None
        if not task.done() or self._closing:
            return []
        self._fetching = None
        return task.result()

    async def _fetch(self, plan: _Plan) -> list[Fetched]:
        """One round: a request and its answer, or a pause when there is nobody to ask."""
        wanted = self._membership.assignment
        if not wanted and not self._session.partitions:
            await self._wait_assignment(plan.max_wait_s)
            wanted = self._membership.assignment
            if not wanted:
                return []
        try:
            connection = await self._link.connection(plan.max_wait_s)
        except (NotConnected, Closed):
            return []
        number, generation = self._session.number, self._link.generation
        request = self._fetch_request(plan, wanted)
        try:
            answer = await self._link.send_on(connection, request, wait_s=request.max_wait_ms / 1000)
        except ConnectionLost:
            return []
        fetched = self._take(answer, number, generation)
        if fetched or self._trouble is None:
            self._strikes = 0
        else:
            self._strikes += 1
            await self._clock.sleep(min(self._link.pause_s(self._strikes), max(plan.max_wait_s, 0.05)))
        return fetched

    async def _wait_assignment(self, limit_s: float) -> None:
        self._changed.clear()
        try:
            await self._clock.wait_for(self._changed.wait(), limit_s)
        except TimeoutError:
            return

    def _fetch_request(self, plan: _Plan, wanted: frozenset[TopicPartition]) -> ShareFetchRequest:
        """The request that brings the server's view of the session to `wanted`; nothing may be awaited until sent."""
        added, forgotten = self._session.change_to(wanted)
        idle = not wanted
        return ShareFetchRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            session_epoch=self._session.next_epoch(),
            max_wait_ms=0 if idle else round(plan.max_wait_s * 1000),
            max_bytes=plan.bytes_max,
            max_records=0 if idle else plan.records_max,
            batch_size=plan.batch_size,
            acquire_mode=int(plan.mode),
            partitions=tuple(SharePartitionRequest(tp.topic_id, tp.partition) for tp in added),
            forgotten=forgotten,
        )

    def _take(self, answer: ShareFetchResponse, number: int, generation: int) -> list[Fetched]:
        """What the answer brought; its errors become `trouble`, a new session, or the next call's exception."""
        self._trouble = None
        if answer.error is not ErrorCode.NONE:
            self._fetch_refused(answer.error, answer.message, number)
            return []
        if answer.lock_timeout_ms > 0:
            self.lock_timeout_ms = answer.lock_timeout_ms
        deadline_s = self._clock.monotonic() + self.lock_timeout_ms / 1000
        fetched: list[Fetched] = []
        for part in answer.partitions:
            if part.acquired:
                fetched.append(
                    Fetched(
                        self.topic_name(part.topic_id),
                        part.topic_id,
                        part.partition,
                        part.records,
                        part.acquired,
                        deadline_s,
                        generation,
                    )
                )
            if part.error is not ErrorCode.NONE:
                self._partition_refused(part)
        return fetched

    def _fetch_refused(self, code: ErrorCode, message: str | None, number: int) -> None:
        error = ServerError(code, message, about=f"fetch of group {self.group_id}")
        self._trouble = str(error)
        if code in SESSION_GONE:
            self._session.reset(number)
        elif code in REFUSED:
            self._refusal = error
        logger.warning("%s", error)

    def _partition_refused(self, part: FetchedPartition) -> None:
        where = f"fetch of {self.topic_name(part.topic_id)}-{part.partition} for group {self.group_id}"
        error = ServerError(part.error, part.message, about=where)
        if self._strikes == 0:
            logger.warning("%s", error)
        self._trouble = str(error)
        if part.error in REFUSED:
            self._refusal = error
        elif part.error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._membership.refresh()

    # --- acknowledging ------------------------------------------------------------------------------------------

    async def acknowledge(
        self, acks: Mapping[TopicPartition, Sequence[AckBatch]], *, generation: int | None = None
    ) -> list[AckResult]:
        """Send acknowledgements now, in one request; one result a partition, in order.

        A result with an error means that nothing of that partition's is known to hold: the records may run again.
        Never raises for what the server or the connection does. With `generation` (of the `Fetched`) older than
        the connection nothing is sent and all fail. RENEW among the types makes the request a renewal (KIP-1222).
        """
        self._acks_open += 1
        try:
            return await self._acknowledge(acks, generation)
        finally:
            self._acks_open -= 1
            if not self._acks_open:
                self._acks_done.set()

    async def renew(
        self, ranges: Mapping[TopicPartition, Iterable[tuple[int, int]]], *, generation: int | None = None
    ) -> list[AckResult]:
        """Start the locks of these ranges (first, last: inclusive) anew; costs no delivery. Results as above."""
        acks = {tp: tuple(AckBatch(first, last, RENEW) for first, last in runs) for tp, runs in ranges.items()}
        return await self.acknowledge(acks, generation=generation)

    async def _acknowledge(
        self, acks: Mapping[TopicPartition, Sequence[AckBatch]], generation: int | None
    ) -> list[AckResult]:
        connection = self._link.current
        if connection is None or (generation is not None and generation != self._link.generation):
            reason = "the connection over which the records were acquired ended; they are given to others"
            return self._all_failed(acks, ErrorCode.NETWORK_EXCEPTION, reason)
        if not self._session.open and not await self._reopen(connection):
            return self._all_failed(acks, ErrorCode.SHARE_SESSION_NOT_FOUND, "no session could be opened")
        number = self._session.number
        sent_s = self._clock.monotonic()
        request = self._ack_request(acks, self._session.next_epoch())
        try:
            answer = await self._link.send_on(connection, request)
        except ConnectionLost as error:
            return self._all_failed(acks, ErrorCode.NETWORK_EXCEPTION, f"outcome unknown: {error}")
        if answer.error in SESSION_GONE:
            self._session.reset(number)
        return self._results(acks, answer, sent_s)

    async def _reopen(self, connection: Connection) -> bool:
        """Open the session without fetching, so that what is held can be acknowledged."""
        number = self._session.number
        plan = _Plan(0, 1, 0.0, 0, AcquireMode.BATCH_OPTIMIZED)
        request = self._fetch_request(plan, self._membership.assignment)
        try:
            answer = await self._link.send_on(connection, request)
        except ConnectionLost:
            return False
        self._take(answer, number, self._link.generation)
        return answer.error is ErrorCode.NONE

    def _ack_request(self, acks: Mapping[TopicPartition, Sequence[AckBatch]], epoch: int) -> ShareAcknowledgeRequest:
        renew = any(AcknowledgeType.RENEW in batch.types for batches in acks.values() for batch in batches)
        return ShareAcknowledgeRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            session_epoch=epoch,
            is_renew_ack=renew,
            partitions=tuple(
                SharePartitionRequest(tp.topic_id, tp.partition, tuple(batches)) for tp, batches in acks.items()
            ),
        )

    def _results(
        self, acks: Mapping[TopicPartition, Sequence[AckBatch]], answer: ShareAcknowledgeResponse, sent_s: float
    ) -> list[AckResult]:
        if answer.error is not ErrorCode.NONE:
            return self._all_failed(acks, answer.error, answer.message)
        if answer.lock_timeout_ms > 0:
            self.lock_timeout_ms = answer.lock_timeout_ms
        deadline_s = sent_s + self.lock_timeout_ms / 1000
        answered = {TopicPartition(part.topic_id, part.partition): part for part in answer.partitions}
        results: list[AckResult] = []
        for tp, batches in acks.items():
            part = answered.get(tp)
            code = ErrorCode.INVALID_RECORD_STATE if part is None else part.error
            message = "the server's answer leaves this partition out" if part is None else part.message
            results.append(self._result(tp, batches, code, message, deadline_s))
        return results

    def _all_failed(
        self, acks: Mapping[TopicPartition, Sequence[AckBatch]], code: ErrorCode, message: str | None
    ) -> list[AckResult]:
        return [self._result(tp, batches, code, message, 0.0) for tp, batches in acks.items()]

    def _result(
        self,
        tp: TopicPartition,
        batches: Sequence[AckBatch],
        code: ErrorCode,
        message: str | None,
        deadline_s: float,
    ) -> AckResult:
        name = self.topic_name(tp.topic_id)
        return AckResult(name, tp.topic_id, tp.partition, tuple(batches), code, message, deadline_s)

    # --- closing ------------------------------------------------------------------------------------------------

    async def close(
        self,
        *,
        unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Stop in order, within `timeout_s` (default: the settings').

        No new fetch; acknowledgements in flight are waited for; `unrun` ranges (first, last: inclusive) and what a
        fetch brought that nobody took go back without costing an attempt; the session is closed, which releases
        whatever else is held; the member leaves; the connection is closed. Calling it again does nothing.
        """
        if self._closing:
            return
        self._closing = True
        self.wakeup()
        limit_s = self._settings.close_timeout_s if timeout_s is None else timeout_s
        try:
            await self._clock.wait_for(self._close(unrun or {}), limit_s)
        except TimeoutError:
            logger.warning("member %s of %s closed late: not all was answered", self.member_id, self.group_id)
        finally:
            await self._end()

    async def _close(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        while self._acks_open:
            self._acks_done.clear()
            await self._acks_done.wait()
        await self._close_session(unrun)
        await self._membership.leave()

    async def _close_session(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        acks: dict[TopicPartition, list[AckBatch]] = {}
        for tp, runs in unrun.items():
            acks.setdefault(tp, []).extend(AckBatch(first, last, RELEASE, 0, True) for first, last in runs)
        for fetched in self._untaken():
            acks.setdefault(fetched.tp, []).extend(
                AckBatch(run.first, run.last, RELEASE, 0, True) for run in fetched.acquired
            )
        connection = self._link.current
        if connection is None or not self._session.open:
            return
        ordered = {tp: sorted(batches) for tp, batches in acks.items()}
        request = self._ack_request(ordered, EPOCH_CLOSE)
        self._session.reset()
        try:
            answer = await self._link.send_on(connection, request)
        except ConnectionLost as error:
            logger.info("session of %s closed with its connection: %s", self.group_id, error)
            return
        for result in self._results(ordered, answer, 0.0):
            if result.error is not ErrorCode.NONE:
                logger.warning(
                    "unrun records of group=%s topic=%s partition=%d cost an attempt: %s %s",
                    self.group_id,
                    result.topic,
                    result.partition,
                    result.error.name,
                    result.message or "",
                )

    def _untaken(self) -> list[Fetched]:
        """What a finished fetch brought after its caller was gone."""
        task = self._fetching
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return []
        self._fetching = None
        return [fetched for fetched in task.result() if fetched.generation == self._link.generation]

    async def _end(self) -> None:
        await self._membership.stop()
        await self._link.close()
        task, self._fetching = self._fetching, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- helpers ------------------------------------------------------------------------------------------------

    def _assigned(self) -> None:
        self._changed.set()
        if self._on_assignment is not None:
            self._on_assignment(self.assignment)

    def _check_open(self) -> None:
        if self._closing:
            raise Closed(f"member {self.member_id} of {self.group_id} is closed")
        if self._membership.failed is not None:
            raise self._membership.failed
