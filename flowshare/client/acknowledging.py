"""One node's ShareAcknowledge requests, never sent twice: the record may have been given to somebody in between.

One exception: when another process has taken over from the leader that did not answer, and the records are still this
member's, what was not answered is sent again.

To flowshare's own servers they go at once, beside a parked fetch. To a broker that takes one request at a time they
take turns with the fetches (`client.turns`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import SESSION_GONE, ConnectionLost
from flowshare.client.fetching import MOVED, Fetcher, Move, Moved, Plan, Riding
from flowshare.client.ranges import AckResult
from flowshare.client.session import EPOCH_CLOSE
from flowshare.client.turns import Acks, Turns, Waiting, is_renewal
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AckBatch,
    AcknowledgedPartition,
    FetchedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchResponse,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.client.membership import Membership
    from flowshare.client.node import Node
    from flowshare.client.ranges import Fetched
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

RELEASE: Final = bytes((AcknowledgeType.RELEASE,))
RESUME_S: Final = 6.0
"""How long an acknowledgement waits for another process to take over from a leader that is gone."""
LEADERS_MOST: Final = 5
"""How many leaders in a row may go with an acknowledgement unanswered: in a fleet that drains, each leads in turn."""
LEFT_OUT: Final = "the server's answer leaves this partition out"

logger = logging.getLogger(__name__)


class Acknowledger:
    """Acknowledges for one member at one node."""

    def __init__(self, node: Node, membership: Membership, fetcher: Fetcher, *, clock: Clock, on_moved: Moved) -> None:
        self._node = node
        self._membership = membership
        self._fetcher = fetcher
        self._clock = clock
        self._on_moved = on_moved
        self._turns = Turns(clock, self._send_taken, ride_s=node.ride_s)
        self._under_way = 0
        self._done = asyncio.Event()
        self.asked_s = 0.0
        """When something was last sent while nothing was under way; kept for `send` only."""

    async def acknowledge(self, acks: Acks) -> list[AckResult]:
        """Send and tell the outcome of each partition, in order."""
        self._under_way += 1
        try:
            connection = self._node.link.current or await self._resumed()
            if connection is None:
                return self.all_failed(acks, ErrorCode.NETWORK_EXCEPTION, GONE)
            if not self._node.beside:
                return await self._turns.acknowledge(acks)
            results = await self._send(acks, connection)
            for _ in range(LEADERS_MOST):
                again = await self._resumed()
                if again is None:
                    break
                results = [_in_doubt(result) for result in await self._send(acks, again)]
            return results
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._done.set()

    async def send(self, acks: Acks) -> list[AckResult]:
        """One try, at one of flowshare's own servers; NETWORK_EXCEPTION says that the outcome is not known."""
        connection = self._node.link.current
        if connection is None:
            return self.all_failed(acks, ErrorCode.NETWORK_EXCEPTION, GONE)
        if not self._under_way:
            self.asked_s = self._clock.monotonic()
        self._under_way += 1
        try:
            return await self._send(acks, connection)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._done.set()

    @property
    def busy(self) -> bool:
        """Whether some of them have no outcome yet."""
        return self._under_way > 0

    async def _resumed(self) -> Connection | None:
        """The next connection after one that was interrupted, if what was held over that is still this member's."""
        node = self._node
        if not node.interrupted:
            return None
        generation = node.generation
        connection = await self._fetcher.connect(RESUME_S)
        return connection if node.generation == generation else None

    async def fetch(self, plan: Plan) -> list[Fetched]:
        """One fetch in its turn, with the acknowledgements that wait."""
        connection = await self._fetcher.connect(plan.max_wait_s)
        if connection is None:
            return []
        if self._node.beside:
            fetched, _ = await self._fetcher.fetch(plan, connection)
        else:
            fetched = await self._fetch_in_turn(plan, connection)
        await self._fetcher.rest(fetched, plan)
        return fetched

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            self._done.clear()
            await self._done.wait()

    async def stop(self) -> None:
        """Nothing is sent any more; who waits for an outcome is told that there is none."""
        for waiting in await self._turns.stop():
            waiting.settle(self.all_failed(waiting.acks, ErrorCode.NETWORK_EXCEPTION, STOPPED))

    async def close_session(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Give `unrun` ranges back without costing an attempt and end the session, which releases the rest."""
        serial = not self._node.beside
        if serial:
            await self._turns.take(riding=False)
        try:
            await self._close_session(unrun)
        finally:
            if serial:
                self._turns.done()

    async def _close_session(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        connection = self._node.link.current
        if connection is None or not self._node.session.open:
            return
        ordered = {tp: [AckBatch(first, last, RELEASE, 0, True) for first, last in sorted(unrun[tp])] for tp in unrun}
        request = self._request(ordered, EPOCH_CLOSE)
        self._node.session.reset()
        try:
            answer = await self._node.link.send_on(connection, request)
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

    # --- sending ------------------------------------------------------------------------------------------------

    async def _send(self, acks: Acks, connection: Connection) -> list[AckResult]:
        """One request for all of it, now."""
        session = self._node.session
        if not session.open and not await self._fetcher.open_session(connection):
            ended = self._node.link.current is not connection
            code = ErrorCode.NETWORK_EXCEPTION if ended else ErrorCode.SHARE_SESSION_NOT_FOUND
            return self.all_failed(acks, code, "no session could be opened")
        number = session.number
        sent_s = self._clock.monotonic()
        request = self._request(acks, session.next_epoch())
        try:
            answer = await self._node.link.send_on(connection, request)
        except ConnectionLost as error:
            return self.all_failed(acks, ErrorCode.NETWORK_EXCEPTION, f"outcome unknown: {error}")
        self._node.heard_s = self._clock.monotonic()
        if answer.error in SESSION_GONE:
            session.reset(number)
        return self._results(acks, answer, sent_s)

    async def _send_taken(self, taken: list[Waiting]) -> None:
        """What waited and found no fetch to ride on."""
        connection = self._node.link.current
        together = {tp: batches for waiting in taken for tp, batches in waiting.acks.items()}
        results = self.all_failed(together, ErrorCode.NETWORK_EXCEPTION, GONE if connection is None else STOPPED)
        try:
            if connection is not None:
                results = await self._send(together, connection)
        except Exception as error:
            logger.exception("acknowledging for group %s failed", self._membership.group_id)
            results = self.all_failed(together, ErrorCode.UNKNOWN_SERVER_ERROR, f"outcome unknown: {error!r}")
        finally:
            _settle(taken, results)

    async def _fetch_in_turn(self, plan: Plan, connection: Connection) -> list[Fetched]:
        taken = await self._turns.take(riding=True)
        results: list[AckResult] | None = None
        riding: Riding = {tp: batches for waiting in taken for tp, batches in waiting.acks.items()}
        try:
            if riding and not self._node.session.open:  # a fetch that opens a session carries none (KIP-932)
                results = await self._send(riding, connection)
                _settle(taken, results)
                taken, riding = [], {}
            sent_s = self._clock.monotonic()
            fetched, answer = await self._fetcher.fetch(plan, connection, riding)
            if answer is None:
                reason = f"outcome unknown: {self._node.link.trouble or 'the connection ended'}"
                results = self.all_failed(riding, ErrorCode.NETWORK_EXCEPTION, reason)
            else:
                results = self._results(riding, answer, sent_s)
            return fetched
        finally:
            self._turns.done()
            _settle(taken, results or self.all_failed(riding, ErrorCode.NETWORK_EXCEPTION, "outcome unknown"))

    def _request(self, acks: Acks, epoch: int) -> ShareAcknowledgeRequest:
        return ShareAcknowledgeRequest(
            group_id=self._membership.group_id,
            member_id=self._membership.member_id,
            session_epoch=epoch,
            is_renew_ack=is_renewal(acks),
            partitions=tuple(
                SharePartitionRequest(tp.topic_id, tp.partition, tuple(batches)) for tp, batches in acks.items()
            ),
        )

    # --- outcomes -----------------------------------------------------------------------------------------------

    def _results(
        self, acks: Acks, answer: ShareAcknowledgeResponse | ShareFetchResponse, sent_s: float
    ) -> list[AckResult]:
        if answer.error is not ErrorCode.NONE:
            return self.all_failed(acks, answer.error, answer.message)
        if answer.lock_timeout_ms > 0:
            self._fetcher.lock_timeout_ms = answer.lock_timeout_ms
        deadline_s = sent_s + self._fetcher.lock_timeout_ms / 1000
        answered = {TopicPartition(part.topic_id, part.partition): part for part in answer.partitions}
        renewal = is_renewal(acks)
        results: list[AckResult] = []
        for tp, batches in acks.items():
            part = answered.get(tp)
            code, message = (ErrorCode.INVALID_RECORD_STATE, LEFT_OUT) if part is None else _outcome(part)
            if code is ErrorCode.NONE:
                self._node.acknowledged(tp, batches, renewal=renewal, deadline_s=deadline_s)
            elif code is ErrorCode.INVALID_RECORD_STATE:
                self._node.not_ours(tp, batches)
            elif part is not None and code in MOVED:
                self._on_moved(Move(self._node.node_id, tp, code, part.current_leader, answer.node_endpoints))
            results.append(self._result(tp, batches, code, message, deadline_s))
        return results

    def all_failed(self, acks: Acks, code: ErrorCode, message: str | None) -> list[AckResult]:
        """The same error for each partition."""
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


STOPPED: Final = "outcome unknown: the member was closed before there was an answer"
GONE: Final = "the connection over which the records were acquired ended; they are given to others"


def _in_doubt(result: AckResult) -> AckResult:
    """The outcome of what was sent again: a refusal may mean that it was written the first time."""
    if result.error is not ErrorCode.INVALID_RECORD_STATE:
        return result
    message = "outcome unknown: the leader ended before it answered"
    return result._replace(error=ErrorCode.NETWORK_EXCEPTION, message=message)


def _outcome(part: FetchedPartition | AcknowledgedPartition) -> tuple[ErrorCode, str | None]:
    if isinstance(part, FetchedPartition):
        return part.ack_error, part.ack_message
    return part.error, part.message


def _settle(taken: list[Waiting], results: list[AckResult]) -> None:
    by_partition = {result.tp: result for result in results}
    for waiting in taken:
        waiting.settle([by_partition[tp] for tp in waiting.acks])
