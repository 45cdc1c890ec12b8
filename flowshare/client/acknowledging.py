"""One member's ShareAcknowledge requests: sent at once, beside a parked fetch, and never sent twice.

An acknowledgement whose outcome is not known is an error: the record may have been given to somebody in between.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import SESSION_GONE, ConnectionLost
from flowshare.client.ranges import AckResult
from flowshare.client.session import EPOCH_CLOSE
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AckBatch,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.client.fetching import Fetcher
    from flowshare.client.link import Link
    from flowshare.client.membership import Membership
    from flowshare.client.session import FetchSession
    from flowshare.clock import Clock

RELEASE: Final = bytes((AcknowledgeType.RELEASE,))

logger = logging.getLogger(__name__)


class Acknowledger:
    """Acknowledges for one member."""

    def __init__(
        self, link: Link, session: FetchSession, membership: Membership, fetcher: Fetcher, *, clock: Clock
    ) -> None:
        self._link = link
        self._session = session
        self._membership = membership
        self._fetcher = fetcher
        self._clock = clock
        self._under_way = 0
        self._done = asyncio.Event()

    async def acknowledge(
        self, acks: Mapping[TopicPartition, Sequence[AckBatch]], generation: int | None
    ) -> list[AckResult]:
        """Send and tell the outcome of each partition, in order."""
        self._under_way += 1
        try:
            return await self._acknowledge(acks, generation)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._done.set()

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            self._done.clear()
            await self._done.wait()

    async def close_session(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Give `unrun` ranges back without costing an attempt and end the session, which releases the rest."""
        connection = self._link.current
        if connection is None or not self._session.open:
            return
        ordered = {tp: [AckBatch(first, last, RELEASE, 0, True) for first, last in sorted(unrun[tp])] for tp in unrun}
        request = self._request(ordered, EPOCH_CLOSE)
        self._session.reset()
        try:
            answer = await self._link.send_on(connection, request)
        except ConnectionLost as error:
            logger.info("session of %s closed with its connection: %s", self._membership.group_id, error)
            return
        for result in self._results(ordered, answer, 0.0):
            if result.error is not ErrorCode.NONE:
                logger.warning(
                    "unrun records of group=%s topic=%s partition=%d cost an attempt: %s %s",
                    self._membership.group_id,
                    result.topic,
                    result.partition,
                    result.error.name,
                    result.message or "",
                )

    async def _acknowledge(
        self, acks: Mapping[TopicPartition, Sequence[AckBatch]], generation: int | None
    ) -> list[AckResult]:
        connection = self._link.current
        if connection is None or (generation is not None and generation != self._link.generation):
            reason = "the connection over which the records were acquired ended; they are given to others"
            return self._all_failed(acks, ErrorCode.NETWORK_EXCEPTION, reason)
        if not self._session.open and not await self._fetcher.open_session(connection):
            return self._all_failed(acks, ErrorCode.SHARE_SESSION_NOT_FOUND, "no session could be opened")
        number = self._session.number
        sent_s = self._clock.monotonic()
        request = self._request(acks, self._session.next_epoch())
        try:
            answer = await self._link.send_on(connection, request)
        except ConnectionLost as error:
            return self._all_failed(acks, ErrorCode.NETWORK_EXCEPTION, f"outcome unknown: {error}")
        if answer.error in SESSION_GONE:
            self._session.reset(number)
        return self._results(acks, answer, sent_s)

    def _request(self, acks: Mapping[TopicPartition, Sequence[AckBatch]], epoch: int) -> ShareAcknowledgeRequest:
        renew = any(AcknowledgeType.RENEW in batch.types for batches in acks.values() for batch in batches)
        return ShareAcknowledgeRequest(
            group_id=self._membership.group_id,
            member_id=self._membership.member_id,
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
            self._fetcher.lock_timeout_ms = answer.lock_timeout_ms
        deadline_s = sent_s + self._fetcher.lock_timeout_ms / 1000
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
        name = self._membership.topic_name(tp.topic_id)
        return AckResult(name, tp.topic_id, tp.partition, tuple(batches), code, message, deadline_s)
