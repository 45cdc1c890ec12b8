"""Acknowledgements of a member in a fleet: each goes to the leader of now, and goes on to the next one if need be.

    what became of it                          what follows
    answered, whatever was said                the outcome
    the worker does not lead the partition     it did nothing: sent where the partition comes home next
    no answer (the connection ended)           in doubt: the next home has said what is still the member's
        some of what is acknowledged still is  it was not written, and cannot be any more: sent there
        none of it is                          the outcome stays unknown
    adrift for the lock time, member closed    nothing is sent any more

Renewals wait for nobody: the next leader begins with a whole lock time. What has to wait is told later where the
caller can take it so, so that a partition without a leader holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.client.acknowledging import GONE, STOPPED
from flowshare.client.ranges import AckResult
from flowshare.client.topology import NOBODY
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from flowshare.client.custody import Custody
    from flowshare.client.membership import Membership
    from flowshare.client.node_client import NodeClient
    from flowshare.client.nodes import Late
    from flowshare.protocol.messages import AckBatch, TopicPartition

    Batches = Sequence[AckBatch]
    Acks = Mapping[TopicPartition, Batches]

LEFT: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.LEADER_NOT_AVAILABLE}
)
"""A worker that says so did nothing, and does not lead the partition (any more)."""
TRIES_MAX: Final = 5
"""So many leaders in a row may end with an acknowledgement unanswered, or hand it on."""
MOVING: Final = "the partition has no leader at the moment; what is held of it stays held: ask again"
RENEW: Final = {int(AcknowledgeType.RENEW)}


class Forwarder:
    """Sends one member's acknowledgements. `client_of`: what speaks to a node, None when nothing does."""

    def __init__(self, custody: Custody, membership: Membership, client_of: Callable[[int], NodeClient | None]) -> None:
        self._custody = custody
        self._membership = membership
        self._client_of = client_of
        self._awaited: dict[TopicPartition, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._none_waits = asyncio.Event()
        self._stopped = False

    async def acknowledge(self, acks: Acks, generation: int | None, on_late: Late | None) -> list[AckResult]:
        """Send each to where it is at home; outcomes in the order of the partitions.

        on_late: told of each outcome that has to wait for another leader, which is then not in the list.
        """
        since = self._custody.taken
        outcomes: dict[TopicPartition, AckResult | None] = dict.fromkeys(acks)
        home = self._home_of_all(acks, generation)
        if home is None:
            answered = await self._send_apart(acks, generation, outcomes)
        else:
            answered = await self._send(home, acks)
            if not any(result.error for result in answered):
                return answered
        going_on: list[AckResult] = []
        for result in answered:
            if result.error is ErrorCode.NETWORK_EXCEPTION or result.error in LEFT:
                going_on.append(result)
            else:
                outcomes[result.tp] = result
        if going_on:
            outcomes.update(await self._go_on(going_on, generation, since, on_late))
        return [outcome for outcome in outcomes.values() if outcome is not None]

    def _home_of_all(self, acks: Acks, generation: int | None) -> int | None:
        """The node where all of it is held and at home; None when there is no such node."""
        custody, home = self._custody, None
        for tp in acks:
            at = custody.homes.get(tp)
            if at is None or (home is not None and at != home):
                return None
            if generation is not None and not custody.holds(tp, generation):
                return None
            home = at
        return home

    async def _send_apart(
        self, acks: Acks, generation: int | None, outcomes: dict[TopicPartition, AckResult | None]
    ) -> list[AckResult]:
        """What several nodes answer; what is not held has its outcome at once."""
        parts: dict[int, dict[TopicPartition, Batches]] = {}
        for tp, batches in acks.items():
            if generation is not None and not self._custody.holds(tp, generation):
                outcomes[tp] = self._result(tp, batches, ErrorCode.NETWORK_EXCEPTION, GONE)
            else:
                parts.setdefault(self._custody.homes.get(tp, NOBODY), {})[tp] = batches
        several = await asyncio.gather(*(self._send(node_id, part) for node_id, part in parts.items()))
        return [result for results in several for result in results]

    async def _send(self, node_id: int, part: Acks) -> list[AckResult]:
        """One try. LEFT: nothing was done. NETWORK_EXCEPTION: in doubt."""
        client = self._client_of(node_id)
        if client is None:
            return [self._result(tp, batches, ErrorCode.LEADER_NOT_AVAILABLE, MOVING) for tp, batches in part.items()]
        return await client.acknowledger.send(part)

    # --- what has to wait ---------------------------------------------------------------------------------------

    async def _go_on(
        self, results: Sequence[AckResult], generation: int | None, since: int, on_late: Late | None
    ) -> dict[TopicPartition, AckResult]:
        """The outcomes that need not wait, and without `on_late` all of them. since: what was taken at the start."""
        outcomes: dict[TopicPartition, AckResult] = {}
        late: list[AckResult] = []
        for result in results:
            if all(RENEW.issuperset(batch.types) for batch in result.acks):
                outcomes[result.tp] = result._replace(error=ErrorCode.LEADER_NOT_AVAILABLE, message=MOVING)
            else:
                late.append(result)
        if on_late is None:
            found = await asyncio.gather(*(self._outcome(result, generation, since) for result in late))
            outcomes.update((result.tp, result) for result in found)
            return outcomes
        for result in late:
            telling = self._tell(result, generation, since, on_late)
            task = asyncio.create_task(telling, name="late acknowledgement")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return outcomes

    async def _tell(self, result: AckResult, generation: int | None, since: int, on_late: Late) -> None:
        on_late(await self._outcome(result, generation, since))

    async def _outcome(self, result: AckResult, generation: int | None, since: int) -> AckResult:
        """What becomes of it at the partition's next homes."""
        self._waiting += 1
        try:
            for _ in range(TRIES_MAX):
                if not await self._home(result.tp) or not self._may_go_on(result, generation, since):
                    break
                (result,) = await self._send(self._custody.homes[result.tp], {result.tp: result.acks})
                if result.error is not ErrorCode.NETWORK_EXCEPTION and result.error not in LEFT:
                    return result
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._none_waits.set()
        if result.error is ErrorCode.NETWORK_EXCEPTION:
            return result
        return result._replace(error=ErrorCode.NETWORK_EXCEPTION, message=STOPPED if self._stopped else GONE)

    def _may_go_on(self, result: AckResult, generation: int | None, since: int) -> bool:
        if generation is not None and not self._custody.holds(result.tp, generation):
            return False
        in_doubt = result.error is ErrorCode.NETWORK_EXCEPTION
        return not in_doubt or self._custody.unwritten(result.tp, result.acks, since)

    async def _home(self, tp: TopicPartition) -> bool:
        """Wait while a partition is adrift; whether it is at home then."""
        if tp in self._custody.adrift and not self._stopped:
            awaited = self._awaited.get(tp)
            if awaited is None:
                awaited = self._awaited[tp] = asyncio.get_running_loop().create_future()
            await asyncio.shield(awaited)
        return tp in self._custody.homes and not self._stopped

    def moved(self) -> None:
        """Partitions came home, or are nobody's business any more."""
        if self._awaited:
            self.give_up([tp for tp in self._awaited if tp not in self._custody.adrift])

    def give_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Let no acknowledgement of these wait any longer."""
        for tp in partitions:
            awaited = self._awaited.pop(tp, None)
            if awaited is not None:
                awaited.set_result(None)

    # --- closing ------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until none waits."""
        while self._waiting:
            self._none_waits.clear()
            await self._none_waits.wait()

    async def stop(self) -> None:
        """Nothing is sent any more; who waits is told that there is no outcome."""
        self._stopped = True
        self.give_up(tuple(self._awaited))
        await asyncio.gather(*self._tasks)

    def _result(self, tp: TopicPartition, batches: Batches, code: ErrorCode, message: str) -> AckResult:
        return AckResult(self._membership.topic_name(tp.topic_id), *tp, tuple(batches), code, message, 0.0)
