"""Acknowledgements of one agent: gathered as offsets, sent as ranges, one round of requests at a time.

What finishes while a round is under way waits for the next one, so an idle agent acknowledges at once and a busy
one in bulk. Ranges are runs of contiguous finished offsets with one type; they never bridge an unfinished offset.
A request holds or fails per partition as a whole, so a partition that fails for one lost lock is halved until the
lost offsets stand alone. Where there is an order, each range says which delivery it means, and the answer which are not
held: what does not hold is told at once (SG-18.12).

What happens calls, and no task waits for it: only what is sent again, by halves or later, is a task's. Invariants:
1. One round is under way at a time: a request for each number under which records were acquired (there is rarely more
   than one), what comes of it included. Renewals, and what another leader refuses later, go beside it.
2. What waits has a round under way whose end sends it, a turn of the loop, or a time at which it is sent.
3. `unconfirmed` is what waits, what is under way, and what waits for another leader. Each offset is counted once.

| | nothing under way | a round under way |
|---|---|---|
| an acknowledgement comes | goes a turn of the loop later, with what finishes together with it | waits |
| that turn, or a fetch is about to leave | all goes; not while more is gathered | – |
| it was gathered, and no fetch came for a moment | all goes | – |
| many wait, or somebody waits for them | all goes | – |
| the round ends | – | as if one came and its turn were there |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.handler.chunk import runs
from flowshare.client.errors import NO_COORDINATOR
from flowshare.client.session.ranges import cut
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import AckBatch, TopicPartition
from flowshare.share.types import AcknowledgeType
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.agents.feed.members import Member
    from flowshare.agents.run.stats import AgentStats
    from flowshare.client.session.ranges import AckResult
    from flowshare.clock import Clock, TimerHandle

logger = logging.getLogger("flowshare.agents")
FAILED: Final = "agent=%s: acknowledging failed; what was not confirmed may run again"

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
RIDE_S: Final = 0.005
"""How long what was gathered waits for a fetch to ride on. Where records come, fetches leave all the time, and a timer
would wake the loop for nothing."""
GATHERED_MAX: Final = 200
"""So many offsets are sent at once."""
HALVINGS_MAX: Final = 256
TRIES_MAX: Final = 4
BACKOFF_S: Final = 0.1


class AckRange(NamedTuple):
    """One range with one type; `counter` is the field of `AgentStats` that it counts in when confirmed. `attempt`: as
    `AckBatch.attempt`."""

    first: int
    last: int
    types: bytes
    delay_ms: int
    unrun: bool
    counter: str
    attempt: int = 0

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1

    def batch(self) -> AckBatch:
        """As the client takes it."""
        return AckBatch(self.first, self.last, self.types, self.delay_ms, self.unrun, attempt=self.attempt)

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
        self.accepted: dict[int, list[int]] = {}
        """By attempt."""
        self.others: list[AckRange] = []

    @property
    def size(self) -> int:
        return sum(map(len, self.accepted.values())) + sum(ack.size for ack in self.others)


Key = tuple[TopicPartition, int]
"""Partition and generation (of the connection over which the records were acquired)."""
AckRanges = dict[TopicPartition, list[AckRange]]
Refused = tuple[list[AckRange], "AckResult"]
"""What is to be sent again: of what one offset may have made fail the halves, what was not done as it is."""


class _Request:
    """One request. `acks`: what of it has no outcome yet."""

    __slots__ = ("acks", "ended", "generation")

    def __init__(self, acks: AckRanges, generation: int) -> None:
        self.acks = acks
        self.generation = generation
        self.ended = False

    def take_all(self) -> list[list[AckRange]]:
        """What has no outcome: it will get none."""
        acks, self.acks = self.acks, {}
        return list(acks.values())


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
        self._hurry = False
        """Whether somebody waits for what is gathered."""
        self._agent = agent
        self._clock = clock
        self._stats = stats
        self._on_confirmed = on_confirmed
        self._member: Member | None = None
        self._pending: dict[Key, _Pending] = {}
        self._under_way = 0
        """Requests of the round that has not ended."""
        self._turn_due = False
        self._timer: TimerHandle | None = None
        self._stopped = False
        self._flushed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.unconfirmed = 0
        """Offsets that wait for their acknowledgement or its answer."""

    def start(self, member: Member) -> None:
        """Begin to send over this member."""
        self._member = member
        self._send()

    def accept(self, key: Key, offsets: list[int], attempt: int = 0) -> None:
        """Accept these offsets (in any order). attempt: as `AckBatch.attempt`, here and below."""
        accepted = self._at(key).accepted
        if attempt in accepted:
            accepted[attempt] += offsets
        else:
            accepted[attempt] = list(offsets)
        self._add(len(offsets))

    def acknowledge(
        self,
        key: Key,
        first: int,
        last: int,
        types: bytes,
        counter: str,
        *,
        delay_ms: int = 0,
        unrun: bool = False,
        attempt: int = 0,
    ) -> None:
        """Acknowledge a range in another way."""
        ack = AckRange(first, last, types, delay_ms, unrun, counter, attempt)
        self._at(key).others.append(ack)
        self._add(ack.size)

    def ride(self) -> None:
        """A fetch is asked for right after this: send what was gathered, so that it rides on that."""
        self._send(rides=True)

    def _send(self, *, rides: bool = False) -> None:
        """Send what waits, unless more is gathered."""
        if self._member is None or self._stopped or self._under_way or not self._pending:
            return
        if self._gather_s:
            now_s = self._clock.monotonic()
            gathered_s = now_s - self._sent_at
            if gathered_s < self._gather_s and not self._hurry and self.unconfirmed < GATHERED_MAX:
                if self._timer is None:
                    self._timer = self._clock.call_later(self._gather_s + RIDE_S - gathered_s, self._gathered)
                return
            self._sent_at = now_s
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        pending, self._pending = self._pending, {}
        by_generation: dict[int, AckRanges] = {}
        for (tp, generation), gathered in pending.items():
            by_generation.setdefault(generation, {})[tp] = _ordered(gathered)
        self._under_way = len(by_generation)
        for generation, acks in by_generation.items():
            self._begin(acks, generation, rides=rides)

    async def flush(self) -> None:
        """Wait until everything gathered so far has its answer."""
        while self.unconfirmed:
            self._hurry = True
            self._flushed.clear()
            self._send()
            if self.unconfirmed:
                await self._flushed.wait()

    async def stop(self) -> None:
        """End; what is not sent is left to the closing of the session."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await cancelled(*self._tasks)

    async def renew(self, key: Key, ranges: Sequence[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], float]:
        """Renew locks now; returns the ranges that are lost and the new deadline (0: unknown).

        ranges: first and last offset, attempt; ascending.
        """
        acks = [AckRange(first, last, RENEW, 0, False, "renewed", attempt) for first, last, attempt in ranges]
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
        if self._under_way or self._turn_due or self._member is None:
            return  # an outcome, that turn or the start sends it
        if self._timer is None or self.unconfirmed >= GATHERED_MAX:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self._send()

    def _gathered(self) -> None:
        self._timer = None
        self._send()

    def _begin(self, acks: AckRanges, generation: int, *, rides: bool) -> None:
        """One request. Must not raise: others wait for theirs."""
        assert self._member is not None
        self._stats.acknowledgements += 1
        batches = {tp: [ack.batch() for ack in ranges] for tp, ranges in acks.items()}
        request = _Request(acks, generation)
        told, late = partial(self._told, request), partial(self._came_late, request)
        try:
            self._member.begin_acknowledge(batches, told, generation=generation, on_late=late, rides=rides)
        except Exception:
            logger.exception(FAILED, self._agent)
            self._failed(chain.from_iterable(request.take_all()))
            self._end(request)

    def _told(self, request: _Request, results: list[AckResult]) -> None:
        """The outcomes of one request, but for those that come late."""
        self._send_rest(self._settle(request, results), request.generation, partial(self._end, request))

    def _came_late(self, request: _Request, result: AckResult) -> None:
        """The leader of one of several partitions was another one, which has answered now."""
        self._send_rest(self._settle(request, [result]), request.generation, self._look_if_flushed)

    def _end(self, request: _Request) -> None:
        """One request is done with; once."""
        if request.ended:
            return
        request.ended = True
        self._under_way -= 1
        self._look_if_flushed()
        self._send()

    def _look_if_flushed(self) -> None:
        if not self.unconfirmed:
            self._hurry = False
            self._flushed.set()

    def _settle(self, request: _Request, results: list[AckResult]) -> list[Refused]:
        """Confirm what has its outcome, and return what is to be sent again."""
        again: list[Refused] = []
        for result in results:
            sent = request.acks.pop(result.tp, None)
            if sent is None:
                continue  # it was counted as failed
            if not self._stopped and (result.error in NOT_DONE or (result.error in HALVED and _can_halve(sent))):
                again.append((sent, result))
            else:
                for ack, part in _outcomes(sent, result):
                    self._confirm(ack, part)
        return again

    def _send_rest(self, again: list[Refused], generation: int, then: Callable[[], None]) -> None:
        """Send what was refused once more, then go on."""
        if not again:
            then()
            return
        todo = deque(again)
        task = asyncio.create_task(self._finish(todo, generation), name=f"acks {self._agent}")
        self._tasks.add(task)

        def over(_: object) -> None:
            self._tasks.discard(task)
            self._failed(chain.from_iterable(sent for sent, _ in todo))  # it was cancelled: the agent stops
            then()

        task.add_done_callback(over)

    async def _finish(self, todo: deque[Refused], generation: int) -> None:
        while todo:
            sent, result = todo[0]
            done = await self._sent_again(sent, result, generation)
            todo.popleft()
            for ack, part in done:
                self._confirm(ack, part)

    async def _sent_again(
        self, sent: list[AckRange], result: AckResult, generation: int
    ) -> list[tuple[AckRange, AckResult]]:
        key = (result.tp, generation)
        try:
            if result.error in NOT_DONE:
                return await self._send_again(key, sent, result)
            return await self._send_halving(key, sent, first_failed=result)
        except Exception:
            logger.exception(FAILED, self._agent)
            self._failed(sent)
            return []

    def _failed(self, acks: Iterable[AckRange]) -> None:
        """The records stay locked until their locks lapse, then they run again: late, but never lost."""
        count = sum(ack.size for ack in acks)
        self.unconfirmed -= count
        self._stats.ack_unknown += count

    async def _request(self, acks: AckRanges, generation: int) -> list[AckResult]:
        assert self._member is not None
        self._stats.acknowledgements += 1
        batches = {tp: [ack.batch() for ack in ranges] for tp, ranges in acks.items()}
        return await self._member.acknowledge(batches, generation=generation)

    async def _send_again(self, key: Key, acks: list[AckRange], result: AckResult) -> list[tuple[AckRange, AckResult]]:
        """The server could not do it but holds the records still: a few more tries."""
        for attempt in range(1, TRIES_MAX):
            await self._clock.sleep(BACKOFF_S * 2**attempt)
            [result] = await self._request({key[0]: acks}, key[1])
            if result.error not in NOT_DONE:
                break
        return list(_outcomes(acks, result))

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
            if result.error in HALVED and budget > 0 and _can_halve(part):
                todo.extend(reversed(_halves(part)))
            else:
                done += _outcomes(part, result)
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
            try:
                self._on_confirmed(ack, result, how)
            except Exception:  # the others are to be confirmed all the same
                logger.exception("agent=%s: who is told of each outcome failed", self._agent)

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
    acks: list[AckRange] = []
    for attempt, offsets in gathered.accepted.items():
        offsets.sort()
        acks += [AckRange(first, last, ACCEPT, 0, False, "accepted", attempt) for first, last in runs(offsets)]
    if gathered.others or len(gathered.accepted) > 1:
        acks += gathered.others
        acks.sort()
    return acks


def _can_halve(acks: list[AckRange]) -> bool:
    return (len(acks) > 1 or acks[0].size > 1) and not any(ack.attempt for ack in acks)


def _outcomes(acks: list[AckRange], result: AckResult) -> Iterator[tuple[AckRange, AckResult]]:
    """What became of each range, in pieces where some of it is refused."""
    if not result.refused:
        for ack in acks:
            yield ack, result
        return
    held = result._replace(refused=())
    refused = held._replace(error=result.refusal, lock_deadline=0.0)
    for ack in acks:
        for first, last, is_refused in cut(ack.first, ack.last, result.refused):
            yield ack._replace(first=first, last=last), refused if is_refused else held


def _halves(acks: list[AckRange]) -> list[list[AckRange]]:
    if len(acks) > 1:
        middle = len(acks) // 2
        return [acks[:middle], acks[middle:]]
    return [[half] for half in acks[0].halves()]
