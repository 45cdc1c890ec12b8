"""Acknowledgements of one agent: gathered as offsets, sent as ranges, one request under way at a time.

What finishes while a request is under way waits for the next one, so an idle agent acknowledges at once and a busy
one in bulk. Ranges are runs of contiguous finished offsets with one type; they never bridge an unfinished offset.
A request holds or fails per partition as a whole, so a partition that fails for one lost lock is halved until the
lost offsets stand alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.handler.chunk import runs
from flowshare.client.errors import NO_COORDINATOR
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import AckBatch, TopicPartition
from flowshare.share.types import AcknowledgeType
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.agents.feed.members import Member
    from flowshare.agents.run.stats import AgentStats
    from flowshare.client.session.ranges import AckResult
    from flowshare.client.session.shell import Late
    from flowshare.clock import Clock

logger = logging.getLogger("flowshare.agents")

ACCEPT: Final = bytes((AcknowledgeType.ACCEPT,))
RELEASE: Final = bytes((AcknowledgeType.RELEASE,))
REJECT: Final = bytes((AcknowledgeType.REJECT,))
GAP: Final = bytes((AcknowledgeType.GAP,))
RENEW: Final = bytes((AcknowledgeType.RENEW,))

LOST: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD_STATE,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
"""Errors that say that the lock is gone; a partition's new leader knows nothing of those that the old one gave."""
HALVED: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
"""Errors that one offset of many may have caused."""
NOT_DONE: Final = NO_COORDINATOR | {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE}
"""Errors after which the records are still held and the same acknowledgement may be sent again."""
GATHER_S: Final = 0.005
"""What acknowledgements are gathered for on a broker: each of them is a write of its own there, and while it is under
way, the fetch that it rides on is held up."""
GATHERED_MAX: Final = 200
"""So many offsets are sent at once."""
HALVINGS_MAX: Final = 256
TRIES_MAX: Final = 4
BACKOFF_S: Final = 0.1


class AckRange(NamedTuple):
    """One range with one type; `counter` is the field of `AgentStats` that it counts in when confirmed."""

    first: int
    last: int
    types: bytes
    delay_ms: int
    unrun: bool
    counter: str

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1

    def batch(self) -> AckBatch:
        """As the client takes it."""
        return AckBatch(self.first, self.last, self.types, self.delay_ms, self.unrun)

    def halves(self) -> tuple[AckRange, AckRange]:
        """The two halves of a range."""
        middle = (self.first + self.last) // 2
        return self._replace(last=middle), self._replace(first=middle + 1)


class Settled(NamedTuple):
    """What became of one delivery, told to an observer after it is confirmed."""

    agent: str
    topic: str
    partition: int
    offset: int
    attempt: int
    outcome: str
    """accepted, released, retried, dead_lettered, rejected, lock_lost, unknown or unrun."""
    reason: str
    delay_s: float


Observer = Callable[[Settled], None]
"""Is called on the service loop for each settled record; costs time per record, so for tests only."""


class OutcomeReporter:
    """Tells an observer what became of each delivery once that is confirmed; on the service loop."""

    def __init__(self, agent: str, observer: Observer) -> None:
        self._agent = agent
        self._observer = observer
        self._noted: dict[tuple[TopicPartition, int], tuple[int, str, float]] = {}

    def note(self, tp: TopicPartition, offset: int, attempt: int, reason: str = "", delay_s: float = 0.0) -> None:
        """A record's acknowledgement is about to be sent."""
        self._noted[tp, offset] = (attempt, reason, delay_s)

    def confirmed(self, ack: AckRange, result: AckResult, how: str) -> None:
        """A range was answered; `how`: what became of it, `lock_lost` and `unknown` when it was not confirmed."""
        topic, partition = result.topic, result.partition
        for offset in range(ack.first, ack.last + 1):
            attempt, reason, delay_s = self._noted.pop((result.tp, offset), (0, "", 0.0))
            self._observer(Settled(self._agent, topic, partition, offset, attempt, how, reason, delay_s))


class _Pending:
    __slots__ = ("accepted", "others")

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.others: list[AckRange] = []

    @property
    def size(self) -> int:
        return len(self.accepted) + sum(ack.size for ack in self.others)


Key = tuple[TopicPartition, int]
"""Partition and generation (of the connection over which the records were acquired)."""


class AckSender:
    """Gathers and sends acknowledgements, and sees to what is refused; on the service loop."""

    def __init__(
        self,
        agent: str,
        clock: Clock,
        stats: AgentStats,
        on_confirmed: Callable[[AckRange, AckResult, str], None] | None = None,
        *,
        gather_s: float = 0.0,
    ) -> None:
        """gather_s: least time between two requests, unless `GATHERED_MAX` offsets wait: where each is dear."""
        self._gather_s = gather_s
        self._sent_at = -gather_s
        self._hurry = asyncio.Event()
        self._agent = agent
        self._clock = clock
        self._stats = stats
        self._on_confirmed = on_confirmed
        self._member: Member | None = None
        self._pending: dict[Key, _Pending] = {}
        self._wanted = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._task: asyncio.Task[None] | None = None
        self._late_tasks: set[asyncio.Task[None]] = set()
        self._late = 0
        """Offsets of which the outcome waits for another leader, in a fleet."""
        self.unconfirmed = 0
        """Offsets that wait for their acknowledgement or its answer."""

    def start(self, member: Member) -> None:
        """Begin to send over this member."""
        self._member = member
        self._task = asyncio.create_task(self._run(), name=f"acks {self._agent}")

    def accept(self, key: Key, offsets: list[int]) -> None:
        """Accept these offsets (in any order)."""
        self._at(key).accepted += offsets
        self._add(len(offsets))

    def acknowledge(
        self, key: Key, first: int, last: int, types: bytes, counter: str, *, delay_ms: int = 0, unrun: bool = False
    ) -> None:
        """Acknowledge a range in another way."""
        ack = AckRange(first, last, types, delay_ms, unrun, counter)
        self._at(key).others.append(ack)
        self._add(ack.size)

    async def flush(self) -> None:
        """Wait until everything gathered so far has its answer."""
        while self.unconfirmed:
            self._hurry.set()
            self._flushed.clear()
            await self._flushed.wait()

    async def stop(self) -> None:
        """End; what is not sent is left to the closing of the session."""
        task, self._task = self._task, None
        await cancelled(*self._late_tasks, task)

    async def renew(self, key: Key, ranges: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], float]:
        """Renew locks now; returns the ranges that are lost and the new deadline (0: unknown)."""
        acks = [AckRange(first, last, RENEW, 0, False, "renewed") for first, last in ranges]
        deadline, lost = 0.0, list[tuple[int, int]]()
        for ack, result in await self._send_halving(key, acks):
            if result.error is ErrorCode.NONE:
                deadline = result.lock_deadline
                self._stats.renewed += ack.size
            elif result.error in LOST:
                lost.append((ack.first, ack.last))
        return lost, deadline

    def _at(self, key: Key) -> _Pending:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending()
        return pending

    def _add(self, count: int) -> None:
        self.unconfirmed += count
        self._wanted.set()
        if self.unconfirmed >= GATHERED_MAX:
            self._hurry.set()

    async def _gather(self) -> None:
        """Wait until it is worth sending. Nothing is under way, so all that is unconfirmed waits here."""
        left_s = self._sent_at + self._gather_s - self._clock.monotonic()
        if left_s > 0 and self.unconfirmed < GATHERED_MAX:
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                await self._clock.wait_for(self._hurry.wait(), left_s)
        self._sent_at = self._clock.monotonic()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            if self._gather_s:
                await self._gather()
            self._wanted.clear()
            pending, self._pending = self._pending, {}
            try:
                await self._send(pending)
            except Exception:
                # The records stay locked until their locks lapse, then they run again: late, but never lost.
                waiting = sum(gathered.size for gathered in self._pending.values()) + self._late
                self._stats.ack_unknown += self.unconfirmed - waiting
                self.unconfirmed = waiting
                logger.exception("agent=%s: acknowledging failed; what was not confirmed may run again", self._agent)
            if not self.unconfirmed:
                self._flushed.set()

    async def _send(self, pending: dict[Key, _Pending]) -> None:
        """One request for each generation (there is rarely more than one), then what failed, by halves."""
        by_generation: dict[int, dict[TopicPartition, list[AckRange]]] = {}
        for (tp, generation), gathered in pending.items():
            by_generation.setdefault(generation, {})[tp] = _ordered(gathered)
        for generation, acks in by_generation.items():
            on_late = partial(self._came_late, acks, generation)
            results = await self._request(acks, generation, on_late)
            told = {result.tp for result in results}
            self._late += sum(ack.size for tp, sent in acks.items() if tp not in told for ack in sent)
            for result in results:
                await self._outcome(acks[result.tp], generation, result)

    async def _outcome(self, sent: list[AckRange], generation: int, result: AckResult) -> None:
        """What became of a partition's; what one range may have made fail is sent again by halves."""
        if result.error in HALVED and (len(sent) > 1 or sent[0].size > 1):
            for ack, part in await self._send_halving((result.tp, generation), sent, first_failed=result):
                self._confirm(ack, part)
        elif result.error in NOT_DONE:
            for ack, part in await self._send_again((result.tp, generation), sent, result):
                self._confirm(ack, part)
        else:
            for ack in sent:
                self._confirm(ack, result)

    def _came_late(self, acks: dict[TopicPartition, list[AckRange]], generation: int, result: AckResult) -> None:
        """The leader of one of several partitions was another one, which has answered now."""
        task = asyncio.create_task(self._finish_late(acks[result.tp], generation, result), name="late outcome")
        self._late_tasks.add(task)
        task.add_done_callback(self._late_tasks.discard)

    async def _finish_late(self, sent: list[AckRange], generation: int, result: AckResult) -> None:
        try:
            await self._outcome(sent, generation, result)
        finally:
            self._late -= sum(ack.size for ack in sent)
        if not self.unconfirmed:
            self._flushed.set()

    async def _request(
        self, acks: dict[TopicPartition, list[AckRange]], generation: int, on_late: Late | None = None
    ) -> list[AckResult]:
        assert self._member is not None
        self._stats.acknowledgements += 1
        batches = {tp: [ack.batch() for ack in ranges] for tp, ranges in acks.items()}
        return await self._member.acknowledge(batches, generation=generation, on_late=on_late)

    async def _send_again(self, key: Key, acks: list[AckRange], result: AckResult) -> list[tuple[AckRange, AckResult]]:
        """The server could not do it but holds the records still: a few more tries."""
        for attempt in range(1, TRIES_MAX):
            await self._clock.sleep(BACKOFF_S * 2**attempt)
            [result] = await self._request({key[0]: acks}, key[1])
            if result.error not in NOT_DONE:
                break
        return [(ack, result) for ack in acks]

    async def _send_halving(
        self, key: Key, acks: list[AckRange], *, first_failed: AckResult | None = None
    ) -> list[tuple[AckRange, AckResult]]:
        """Send; halve what is refused until it stands alone."""
        tp, generation = key
        done: list[tuple[AckRange, AckResult]] = []
        todo = [acks] if first_failed is None else list(reversed(_halves(acks)))
        budget = HALVINGS_MAX
        while todo:
            part = todo.pop()
            [result] = await self._request({tp: part}, generation)
            budget -= 1
            if result.error in HALVED and budget > 0 and (len(part) > 1 or part[0].size > 1):
                todo.extend(reversed(_halves(part)))
            else:
                done.extend((ack, result) for ack in part)
        return done

    def _confirm(self, ack: AckRange, result: AckResult) -> None:
        self.unconfirmed -= ack.size
        how = ack.counter
        if result.error is ErrorCode.NONE:
            setattr(self._stats, how, getattr(self._stats, how) + ack.size)
        elif result.error in LOST or (
            result.error is ErrorCode.NETWORK_EXCEPTION and "outcome unknown" not in (result.message or "")
        ):  # for the latter nothing was sent: the connection is another one by now
            how = "lock_lost"
            self._stats.lock_lost += ack.size
            self._warn("the lock was lost, the outcome is discarded", ack, result)
        else:
            how = "unknown"
            self._stats.ack_unknown += ack.size
            self._warn("the acknowledgement is not known to hold, the record may run again", ack, result)
        if self._on_confirmed is not None:
            self._on_confirmed(ack, result, how)

    def _warn(self, what: str, ack: AckRange, result: AckResult) -> None:
        at = f"{ack.first}" if ack.size == 1 else f"{ack.first}..{ack.last}"
        logger.warning(
            "agent=%s record=%s-%d@%s: %s: %s %s",
            self._agent,
            result.topic,
            result.partition,
            at,
            what,
            result.error.name,
            result.message or "",
        )


def _ordered(gathered: _Pending) -> list[AckRange]:
    """Ranges in offset order, as KIP-932 wants them."""
    gathered.accepted.sort()
    acks = [AckRange(first, last, ACCEPT, 0, False, "accepted") for first, last in runs(gathered.accepted)]
    if gathered.others:
        acks += gathered.others
        acks.sort()
    return acks


def _halves(acks: list[AckRange]) -> list[list[AckRange]]:
    if len(acks) > 1:
        middle = len(acks) // 2
        return [acks[:middle], acks[middle:]]
    return [[half] for half in acks[0].halves()]
