"""`Commits`: a consumer's acknowledgements: gathered, sent in the background, their outcomes reported.

Acknowledgements of records acquired over a connection that ended fail without being sent (`ShareMember.acknowledge`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from flowshare.client.consumer.inflight import Held, Said, ShareRecord, ack_batches
from flowshare.client.errors import NO_COORDINATOR, ClientError, IllegalState, ServerError
from flowshare.client.session.member import ShareMember
from flowshare.client.session.ranges import AckResult, TopicIdPartition
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcknowledgeType
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowshare.clock import Clock
    from flowshare.protocol.messages import TopicPartition
    from flowshare.share.types import AckRange

K = TypeVar("K")
V = TypeVar("V")
Outcomes = dict[TopicIdPartition, ClientError | None]
CommitCallback = Callable[[Mapping[TopicIdPartition, frozenset[int]], ClientError | None], Awaitable[None] | None]
"""Called with one partition, the offsets that were acknowledged together, and the error or None."""

ASK_AGAIN: Final = NO_COORDINATOR | {ErrorCode.LEADER_NOT_AVAILABLE}
"""Errors with which nothing was done and nothing was lost: ask again."""
UNKNOWN: Final = "the consumer was closed before the answer; whether the acknowledgements hold is not known"
PAUSE_S: Final = 0.1
COUNT_MAX: Final = 1 << 31

BEHIND_S: Final = 0.05
"""How much later than a record whose release is delayed those come that are given back behind it."""
FREED_MAX: Final = 10_000
"""The most released records of a partition that are remembered, the newest."""
Place = tuple[str, int]
"""Topic and partition."""

logger = logging.getLogger(__name__)


class Freed:
    """A record that this consumer released.

    due_s: those behind it are not delivered before. given_back: the records that were given back because they come
    behind it.
    """

    __slots__ = ("due_s", "given_back")

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.given_back: set[int] = set()


class Commits(Generic[K, V]):
    """Acknowledgements of one consumer."""

    def __init__(self, member: ShareMember, *, clock: Clock, timeout_s: float) -> None:
        self._member = member
        self._clock = clock
        self._timeout_s = timeout_s
        self._held: dict[tuple[TopicIdPartition, int], Held[K, V]] = {}
        self._freed: dict[Place, dict[int, Freed]] = {}
        """Records that were released and have not been finished by this consumer since, by partition and offset."""
        self._sending: set[asyncio.Task[Outcomes]] = set()
        self._callback: CommitCallback | None = None
        self._completed: deque[tuple[TopicIdPartition, frozenset[int], ClientError | None]] = deque()
        self.renewals: set[asyncio.Task[Outcomes]] = set()
        self._unanswered: dict[asyncio.Task[Outcomes], tuple[TopicIdPartition, ...]] = {}
        """Running sends of acknowledgements whose outcome is not known yet, with their partitions."""
        self.in_callback = False
        self.sent = 0
        """The number of acknowledgements sent, with any outcome."""
        self.failed = 0
        """The number of those that do not hold, or may not hold."""

    # --- what is held -------------------------------------------------------------------------------------------

    def hold(self, source: TopicIdPartition, generation: int) -> Held[K, V]:
        """Return the holder of the records of this partition and connection."""
        held = self._held.get((source, generation))
        if held is None:
            held = self._held[source, generation] = Held(source, generation)
        return held

    def acknowledge(
        self, topic: str, partition: int, offset: int, type_: AcknowledgeType, *, delay_ms: int = 0
    ) -> None:
        """Set the acknowledge type of a record in hand. delay_ms: of a release. Raises: IllegalState, ValueError
        (GAP)."""
        if type_ is AcknowledgeType.GAP:
            raise ValueError("GAP is for offsets without a record; the consumer sends it by itself")
        held = self.holder(topic, partition, offset)
        if held is not None:
            held.acknowledge(offset, type_, delay_ms=delay_ms)
            return
        raise IllegalState(
            f"{topic}-{partition}@{offset} cannot be acknowledged: it is not in hand, was acknowledged already, or is "
            "being renewed (the next poll hands renewed records out again)"
        )

    def holder(self, topic: str, partition: int, offset: int) -> Held[K, V] | None:
        """Return the holder of a record in hand; None: it is not in hand."""
        for held in self._held.values():
            if held.source.topic == topic and held.source.partition == partition and offset in held.held:
                return held
        return None

    def first_in_hand(self, topic: str, partition: int) -> int | None:
        """Return the lowest offset of a partition's records in hand; None: there is none."""
        of = (held for held in self._held.values() if (held.source.topic, held.source.partition) == (topic, partition))
        return min((offset for held in of for offset in held.held), default=None)

    def comes_back_before(self, place: Place, offsets: Sequence[int], *, waited: bool) -> float | None:
        """Tell that an earlier record that this consumer released comes back first, by the seconds until all such may
        be there; None: there is none, or another member has it.

        A server delivers the lowest of the released records first: of records that were given back once another member
        has the earlier one where these come alone. waited: they waited at the server since; so give them back again.
        """
        first = min(offsets)
        before = {
            offset: freed
            for offset, freed in self._freed.get(place, {}).items()
            if offset < first and not self._has(place, offset)
        }
        if not before or not (waited or any(freed.given_back.isdisjoint(offsets) for freed in before.values())):
            return None
        for freed in before.values():
            freed.given_back.update(offsets)
        return max(0.0, max(freed.due_s for freed in before.values()) - self._clock.monotonic())

    def give_back(self, held: Held[K, V], acks: Sequence[AckRange]) -> None:
        """Release records that come back behind others."""
        types = {offset: AcknowledgeType.RELEASE for ack in acks for offset in range(ack.first, ack.last + 1)}
        delays = {offset: ack.delay_ms for ack in acks for offset in range(ack.first, ack.last + 1)}
        self._note_released((held.source.topic, held.source.partition), Said(types, delays), 0.0)
        self.send_own(held.source, held.generation, acks)

    def finished(self, place: Place, offsets: Iterable[int]) -> None:
        """Take in that this consumer finished records."""
        freed = self._freed.get(place)
        if freed:
            for offset in offsets:
                freed.pop(offset, None)

    def _has(self, place: Place, offset: int) -> bool:
        of = (held for held in self._held.values() if (held.source.topic, held.source.partition) == place)
        return any(held.has(offset) for held in of)

    def unacknowledged(self) -> int:
        """Return the number of records in hand that are not acknowledged."""
        return sum(held.unacknowledged() for held in self._held.values())

    @property
    def has_renewed(self) -> bool:
        """True if renewed records wait to be handed out again."""
        return any(held.renewed for held in self._held.values())

    def hand_out_renewed(self, count_max: int = COUNT_MAX) -> list[ShareRecord[K, V]]:
        """Return renewed records, which are in hand again, at most `count_max`."""
        records: list[ShareRecord[K, V]] = []
        for held in self._held.values():
            records += held.hand_out_renewed(count_max - len(records))
        return records

    # --- sending ------------------------------------------------------------------------------------------------

    def send(self, *, accept_rest: bool) -> None:
        """Begin to send the acknowledgements made. accept_rest: accept all other records in hand."""
        said: list[tuple[Held[K, V], Said]] = []
        for held in self._held.values():
            if accept_rest:
                held.acknowledge_rest(AcknowledgeType.ACCEPT)
            taken = held.take()
            if taken.types:
                said.append((held, taken))
        self._held = {key: held for key, held in self._held.items() if not held.idle}
        self._begin(said)

    def send_before(self, place: Place, end: int) -> None:
        """Begin to send the acknowledgements made for offsets of a partition before this one, but for renewals."""
        said: list[tuple[Held[K, V], Said]] = []
        for held in self._held.values():
            if (held.source.topic, held.source.partition) == place and held.types:
                taken = held.take_before(end)
                if taken.types:
                    said.append((held, taken))
        self._begin(said)

    def _begin(self, said: Sequence[tuple[Held[K, V], Said]]) -> None:
        if not said:
            return
        for held, taken in said:
            self._note_released((held.source.topic, held.source.partition), taken)
        renews = any(held.renewing for held, _ in said)
        sending = self._start(self._commit(said), self.renewals if renews else self._sending)
        self._unanswered[sending] = tuple(held.source for held, _ in said)
        sending.add_done_callback(self._unanswered.pop)

    def _note_released(self, place: Place, said: Said, behind_s: float = BEHIND_S) -> None:
        if AcknowledgeType.RELEASE not in said.types.values() and place not in self._freed:
            return
        freed, now_s = self._freed.setdefault(place, {}), self._clock.monotonic()
        for offset, type_ in said.types.items():
            freed.pop(offset, None)
            if type_ is AcknowledgeType.RELEASE:
                delay_ms = said.delays.get(offset, 0)
                freed[offset] = Freed(now_s + delay_ms / 1000 + behind_s if delay_ms else now_s)
        while len(freed) > FREED_MAX:
            del freed[next(iter(freed))]
        if not freed:
            del self._freed[place]

    async def send_and_wait(self, *, accept_rest: bool, timeout_s: float) -> Outcomes:
        """Send as `send`, and wait for the outcomes of all sends under way; a missing answer after `timeout_s` is an
        error."""
        self.send(accept_rest=accept_rest)
        under_way = dict(self._unanswered)
        await self._done(under_way, timeout_s)
        error = ClientError(f"no answer within {timeout_s:g} s; whether the acknowledgements hold is not known")
        outcomes: Outcomes = {}
        for task, sources in under_way.items():
            told = task.result() if task.done() else dict.fromkeys(sources, error)
            for source, problem in told.items():
                outcomes[source] = outcomes.get(source) or problem
        return outcomes

    def send_own(self, source: TopicIdPartition, generation: int, acks: Sequence[AckRange]) -> None:
        """Send the consumer's own acknowledgements (gaps, damaged batches); their outcomes are only logged."""
        self._start(self._commit_own(source, generation, acks), self._sending)

    async def finish(self, timeout_s: float) -> Outcomes:
        """Send the acknowledgements made and wait for all outcomes, at most `timeout_s` seconds: as `send_and_wait`."""
        until_s = self._clock.monotonic() + timeout_s
        try:
            outcomes = await self.send_and_wait(accept_rest=False, timeout_s=timeout_s)
            await self._done(self._sending, max(0.0, until_s - self._clock.monotonic()))
        finally:
            pending = self._sending | self.renewals
            if pending:
                logger.warning("closing without the answers to %d acknowledgement requests", len(pending))
            await cancelled(*pending)
        return outcomes

    async def _done(self, tasks: Collection[asyncio.Task[Outcomes]], timeout_s: float) -> None:
        """Wait until all tasks are done, at most `timeout_s` seconds."""
        if tasks:
            with suppress(TimeoutError):
                await self._clock.wait_for(asyncio.wait(set(tasks)), timeout_s)

    def _start(self, work: Awaitable[Outcomes], among: set[asyncio.Task[Outcomes]]) -> asyncio.Task[Outcomes]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        among.add(task)
        task.add_done_callback(among.discard)
        return task

    async def _commit(self, said: Sequence[tuple[Held[K, V], Said]]) -> Outcomes:
        outcomes: Outcomes = {}
        for generation in sorted({held.generation for held, _ in said}):
            part = [(held, taken.types) for held, taken in said if held.generation == generation]
            acks = {held.source.tp: ack_batches(*taken) for held, taken in said if held.generation == generation}
            self.sent += sum(len(types) for _, types in part)
            try:
                results = await self._ask(acks, generation)
            except asyncio.CancelledError:
                for held, types in part:
                    self._settle(held, types, ClientError(f"acknowledging {held.source}: {UNKNOWN}"))
                raise
            for held, types in part:
                error = _error(results[held.source.tp])
                self._settle(held, types, error)
                outcomes[held.source] = outcomes.get(held.source) or error
        return outcomes

    def _settle(self, held: Held[K, V], types: Mapping[int, AcknowledgeType], error: ClientError | None) -> None:
        renewals = [offset for offset, type_ in types.items() if type_ is AcknowledgeType.RENEW]
        held.settle_renewals(renewals, renewed=error is None)
        if held.renewed:
            self._held.setdefault((held.source, held.generation), held)
        if error is not None:
            self.failed += len(types)
            logger.warning("%s", error)
        if self._callback is not None:
            self._completed.append((held.source, frozenset(types), error))

    async def _commit_own(self, source: TopicIdPartition, generation: int, acks: Sequence[AckRange]) -> Outcomes:
        results = await self._ask({source.tp: tuple(acks)}, generation)
        error = _error(results[source.tp])
        if error is not None:
            logger.warning("gaps or damaged records: %s", error)
        return {source: error}

    async def _ask(
        self, acks: Mapping[TopicPartition, tuple[AckRange, ...]], generation: int
    ) -> dict[TopicPartition, AckResult]:
        """Send acknowledgements, and again those with an error in `ASK_AGAIN`, until all have another result or the
        time is over."""
        deadline_s = self._clock.monotonic() + self._timeout_s
        settled: dict[TopicPartition, AckResult] = {}
        open_acks = dict(acks)
        while True:
            for result in await self._member.acknowledge(open_acks, generation=generation):
                settled[result.tp] = result
            open_acks = {tp: said for tp, said in open_acks.items() if settled[tp].error in ASK_AGAIN}
            if not open_acks or self._clock.monotonic() + PAUSE_S >= deadline_s:
                return settled
            await self._clock.sleep(PAUSE_S)

    # --- telling ------------------------------------------------------------------------------------------------

    def set_callback(self, callback: CommitCallback | None) -> None:
        """Set the receiver of outcomes; None: no receiver."""
        self._callback = callback
        if callback is None:
            self._completed.clear()

    async def call_back(self) -> None:
        """Report the outcomes known by now to the callback. Raises: any error of the callback."""
        while self._completed and self._callback is not None:
            source, offsets, error = self._completed.popleft()
            self.in_callback = True
            try:
                told = self._callback({source: offsets}, error)
                if inspect.isawaitable(told):
                    await told
            finally:
                self.in_callback = False


def _error(result: AckResult) -> ClientError | None:
    if result.error is ErrorCode.NONE:
        return None
    return ServerError(result.error, result.message, about=f"acknowledging {result.topic}-{result.partition}")
