"""One member's ShareFetch requests: what they say of the session, and what their answers' errors lead to.

An error becomes one of three things: `trouble` (told, and tried again after a pause), a new session, or a refusal
that the next fetch raises (share-groups reference §3.12). Records that came beside an error are never dropped for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import SESSION_GONE, ClientError, Closed, ConnectionLost, NotConnected, ServerError
from flowshare.client.ranges import Fetched
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    FetchedPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AcquireMode

if TYPE_CHECKING:
    from flowshare.client.link import Link
    from flowshare.client.membership import Membership
    from flowshare.client.session import FetchSession
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

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
PAUSE_LEAST_S: Final = 0.05

logger = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What one fetch asks for."""

    records_max: int
    batch_size: int
    max_wait_s: float
    bytes_max: int
    mode: AcquireMode


class Fetcher:
    """Fetches for one member; `lock_timeout_ms` is that of the last answer."""

    def __init__(self, link: Link, session: FetchSession, membership: Membership, *, clock: Clock) -> None:
        self._link = link
        self._session = session
        self._membership = membership
        self._clock = clock
        self._changed = asyncio.Event()
        self._refusal: ClientError | None = None
        self._strikes = 0
        self.trouble: str | None = None
        self.lock_timeout_ms = 0

    def assignment_changed(self) -> None:
        """Let a fetch that waits for its first partition go on."""
        self._changed.set()

    def raise_refusal(self) -> None:
        """Raises: ServerError, once for each refusal."""
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal

    async def fetch(self, plan: Plan) -> list[Fetched]:
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
        request = self._request(plan, wanted)
        try:
            answer = await self._link.send_on(connection, request, wait_s=request.max_wait_ms / 1000)
        except ConnectionLost:
            return []
        fetched = self._take(answer, number, generation)
        if fetched or self.trouble is None:
            self._strikes = 0
        else:
            self._strikes += 1
            await self._clock.sleep(min(self._link.pause_s(self._strikes), max(plan.max_wait_s, PAUSE_LEAST_S)))
        return fetched

    async def _wait_assignment(self, limit_s: float) -> None:
        self._changed.clear()
        try:
            await self._clock.wait_for(self._changed.wait(), limit_s)
        except TimeoutError:
            return

    async def open_session(self, connection: Connection) -> bool:
        """Open the session without fetching, so that what is held can be acknowledged."""
        number = self._session.number
        plan = Plan(0, 1, 0.0, 0, AcquireMode.BATCH_OPTIMIZED)
        request = self._request(plan, self._membership.assignment)
        try:
            answer = await self._link.send_on(connection, request)
        except ConnectionLost:
            return False
        self._take(answer, number, self._link.generation)
        return answer.error is ErrorCode.NONE

    def _request(self, plan: Plan, wanted: frozenset[TopicPartition]) -> ShareFetchRequest:
        """The request that brings the server's view of the session to `wanted`; nothing may be awaited until sent."""
        added, forgotten = self._session.change_to(wanted)
        idle = not wanted
        return ShareFetchRequest(
            group_id=self._membership.group_id,
            member_id=self._membership.member_id,
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
        self.trouble = None
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
                        self._membership.topic_name(part.topic_id),
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
        error = ServerError(code, message, about=f"fetch of group {self._membership.group_id}")
        self.trouble = str(error)
        if code in SESSION_GONE:
            self._session.reset(number)
        elif code in REFUSED:
            self._refusal = error
        logger.warning("%s", error)

    def _partition_refused(self, part: FetchedPartition) -> None:
        topic = self._membership.topic_name(part.topic_id)
        where = f"fetch of {topic}-{part.partition} for group {self._membership.group_id}"
        error = ServerError(part.error, part.message, about=where)
        if self._strikes == 0:
            logger.warning("%s", error)
        self.trouble = str(error)
        if part.error in REFUSED:
            self._refusal = error
        elif part.error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._membership.refresh()
