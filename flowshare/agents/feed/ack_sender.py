"""Sends an agent's acknowledgements: gathered as offsets, sent as ranges, one round of requests at a time.

What finishes while a round is under way waits for the next one, so an idle agent acknowledges at once and a busy one in
bulk. A request holds or fails per partition as a whole, so a partition that fails for one lost lock is halved until the
lost offsets stand alone; where there is an order, the answer says which ranges are not held (SG-18.12).

What happens calls, and no task waits for it: only what is sent again, by halves or later, is a task's. Invariants:
1. Of each partition and number under which records were acquired, its *key*, one request is under way, what comes of it
   included. Renewals go beside it.
2. A round is a request for each number (there is rarely more than one), of all keys that have none under way. The next
   one begins when the first node has answered, or `SLOW_S` later: a leader that stands still holds up no other's.
3. What waits has a request under way whose end sends it, a turn of the loop, or a time at which it is sent.
4. `unconfirmed` is what waits, what is under way, and what waits for another leader. Each offset is counted once.
5. No offset is twice in a request. One that is acknowledged again, before the first one has left, was acquired again:
   its lock had lapsed, and what was said of the earlier delivery counts as lost.

| | nothing under way | its own key under way | others in a round |
|---|---|---|---|
| an acknowledgement comes | goes a turn of the loop later, with what finishes together with it | waits | waits |
| that turn, or a fetch is about to leave | all goes; not while more is gathered | – | – |
| it was gathered, and no fetch came for a moment | all goes | – | – |
| many wait, or somebody waits for them | all goes | – | – |
| the request ends | – | as if one came and its turn were there | the same |
| it is slow | – | waits | the same |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.acknowledgements import (
    HALVED,
    LOST,
    NOT_DONE,
    RENEW,
    AckRange,
    AckRanges,
    Gathered,
    Key,
    can_halve,
    halves_of,
    ordered,
    outcomes_of,
)
from flowshare.protocol.errors import ErrorCode
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.agents.feed.members import Member
    from flowshare.agents.feed.spans import AckSpans, Told
    from flowshare.agents.run.stats import AgentStats
    from flowshare.client.session.ranges import AckResult
    from flowshare.clock import Clock, TimerHandle

logger = logging.getLogger("flowshare.agents")

FAILED: Final = "agent=%s: acknowledging failed; what was not confirmed may run again"
GATHER_S: Final = 0.005
"""What acknowledgements are gathered for on a broker: each of them is a write of its own there, and while it is under
way, the fetch that it rides on is held up."""
RIDE_S: Final = 0.005
"""How long what was gathered waits for a fetch to ride on. Where records come, fetches leave all the time, and a timer
would wake the loop for nothing."""
GATHERED_MAX: Final = 200
"""So many offsets are sent at once."""
SLOW_S: Final = 0.25
"""A request without an answer for so long holds up its own partitions only; before that, all: few and full ones cost
less."""
AGAIN: Final = "its lock had lapsed, and the record was acquired again"
TOLD: Final = {
    "lock_lost": "the lock was lost, the outcome is discarded",
    "unknown": "the acknowledgement is not known to hold, the record may run again",
}
"""Bad outcomes, and what is said of them."""
SHOWN: Final = 5
"""Ranges that a line names."""
HALVINGS_MAX: Final = 256
TRIES_MAX: Final = 4
BACKOFF_S: Final = 0.1
Refused = tuple[list[AckRange], "AckResult"]
"""What is to be sent again: of what one offset may have made fail the halves, what was not done as it is."""


class _Request:
    """One request. `acks`: what of it has no outcome yet. `stale`: what was left out of it (invariant 5)."""

    __slots__ = ("acks", "generation", "spans", "stale")

    def __init__(self, acks: AckRanges, stale: AckRanges, generation: int) -> None:
        self.spans: Told = {}
        self.acks = acks
        self.stale = stale
        self.generation = generation


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
        spans: AckSpans | None = None,
    ) -> None:
        """gather_s: least time between two requests, unless `GATHERED_MAX` offsets wait: where each is dear.

        spans: what tells of requests; None: nothing does.
        """
        self._spans = spans
        self._gather_s = gather_s
        self._sent_at = -gather_s
        self._hurry = False
        """Whether somebody waits for what is gathered."""
        self._agent = agent
        self._clock = clock
        self._stats = stats
        self._on_confirmed = on_confirmed
        self._member: Member | None = None
        self._pending: dict[Key, Gathered] = {}
        self._busy: set[Key] = set()
        """What has a request under way, or something of one that is sent again."""
        self._round: set[_Request] = set()
        """Requests without any answer that are not slow."""
        self._slow_timer: TimerHandle | None = None
        self._turn_due = False
        self._timer: TimerHandle | None = None
        self._stopped = False
        self._flushed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.unconfirmed = 0
        """Offsets that wait for their acknowledgement or its answer."""
        self.on_sent: Callable[[], object] | None = None
        """Called when what waited behind a round has left (`leaves_soon`)."""

    @property
    def leaves_soon(self) -> bool:
        """Whether something waits for the round that is under way, and leaves when that has ended or is slow."""
        return bool(self._pending) and bool(self._round)

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
        self._add(key, len(offsets))

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
        self._add(key, ack.size)

    def count(self, acks: Sequence[AckRange], result: AckResult) -> None:
        """Something was sent another way, and this became of it: it counts, and is told, as the rest."""
        self.unconfirmed += sum(ack.size for ack in acks)
        self._confirm((ack, result) for ack in acks)

    def ride(self) -> None:
        """A fetch is asked for right after this: send what was gathered, so that it rides on that."""
        self._send(rides=True)

    def _send(self, *, rides: bool = False) -> None:
        """Send what waits, unless more is gathered."""
        if self._member is None or self._stopped or not self._pending:
            return
        ready = [key for key in self._pending if key not in self._busy] if self._busy else list(self._pending)
        if not ready:
            return
        if self._round:
            if self._slow_timer is None:
                self._slow_timer = self._clock.call_later(SLOW_S, self._slow)
            return
        if self._gathers():
            return
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        requests = self._taken(ready)
        self._busy.update(ready)
        self._round.update(requests)
        for request in requests:
            self._begin(request, rides=rides)

    def _taken(self, ready: Iterable[Key]) -> list[_Request]:
        """What waits for these."""
        requests: dict[int, _Request] = {}
        for key in ready:
            tp, generation = key
            if generation not in requests:
                requests[generation] = _Request({}, {}, generation)
            request = requests[generation]
            request.acks[tp], stale = ordered(self._pending.pop(key))
            if stale:
                request.stale[tp] = stale
        return list(requests.values())

    def _gathers(self) -> bool:
        """Whether what waits is to wait for more."""
        if not self._gather_s:
            return False
        now_s = self._clock.monotonic()
        gathered_s = now_s - self._sent_at
        if gathered_s < self._gather_s and not self._hurry and self.unconfirmed < GATHERED_MAX:
            if self._timer is None:
                self._timer = self._clock.call_later(self._gather_s + RIDE_S - gathered_s, self._gathered)
            return True
        self._sent_at = now_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return False

    def _slow(self) -> None:
        """What is under way holds up no other partition any more."""
        self._slow_timer = None
        self._round.clear()
        self._send()
        if self.on_sent is not None:
            self.on_sent()

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
        for timer in (self._timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
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

    def _at(self, key: Key) -> Gathered:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = Gathered()
        return pending

    def _add(self, key: Key, count: int) -> None:
        self.unconfirmed += count
        if self._turn_due or self._member is None or key in self._busy:
            return  # that turn, the start or an outcome sends it
        if self._round:
            self._send()  # not now, but when the round is slow
        elif self._timer is None or self.unconfirmed >= GATHERED_MAX:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self._send()

    def _gathered(self) -> None:
        self._timer = None
        self._send()

    def _begin(self, request: _Request, *, rides: bool) -> None:
        """One request. Must not raise: others wait for theirs."""
        assert self._member is not None
        self._stats.acknowledgements += 1
        batches = {tp: [ack.batch() for ack in ranges] for tp, ranges in request.acks.items()}
        told, late = partial(self._told, request), partial(self._came_late, request)
        if self._spans is not None:
            request.spans = self._spans.begin(request.acks)
        try:
            self._member.begin_acknowledge(batches, told, generation=request.generation, on_late=late, rides=rides)
        except Exception:
            logger.exception(FAILED, self._agent)
            if self._spans is not None:
                self._spans.failed(request.spans)
            for tp, sent in request.acks.items():
                self._failed(chain(sent, request.stale.get(tp, ())))
                self._busy.discard((tp, request.generation))
            request.acks = {}
            self._end(request)

    def _told(self, request: _Request, results: list[AckResult]) -> None:
        """The outcomes of one request, but for those that come late."""
        self._send_rest(self._settle(request, results), request.generation)
        self._end(request)

    def _came_late(self, request: _Request, result: AckResult) -> None:
        """Of several partitions one has another leader, which has answered now."""
        self._send_rest(self._settle(request, [result]), request.generation)
        self._go_on()

    def _end(self, request: _Request) -> None:
        """A node has answered, or will not."""
        self._round.discard(request)
        self._go_on()

    def _go_on(self) -> None:
        """Something has its outcome."""
        if not self.unconfirmed:
            self._hurry = False
            self._flushed.set()
        self._send()
        if self.on_sent is not None:
            self.on_sent()

    def _settle(self, request: _Request, results: list[AckResult]) -> list[Refused]:
        """Confirm what has its outcome, and return what is to be sent again."""
        again: list[Refused] = []
        for result in results:
            sent = request.acks.pop(result.tp, None)
            if sent is None:
                continue  # it was counted as failed
            if self._spans is not None:
                self._spans.answered(request.spans, result)
            if result.tp in request.stale:
                lost = result._replace(error=ErrorCode.INVALID_RECORD_STATE, message=AGAIN, refused=())
                self._confirm((ack, lost) for ack in request.stale[result.tp])
            if not self._stopped and (
                result.error in NOT_DONE or (result.error in HALVED and can_halve(sent, result.error))
            ):
                again.append((sent, result))
            else:
                self._busy.discard((result.tp, request.generation))
                self._confirm(outcomes_of(sent, result))
        return again

    def _send_rest(self, again: list[Refused], generation: int) -> None:
        """Send what was refused once more."""
        if not again:
            return
        todo = deque(again)
        task = asyncio.create_task(self._finish(todo, generation), name=f"acks {self._agent}")
        self._tasks.add(task)

        def over(_: object) -> None:
            self._tasks.discard(task)
            self._failed(chain.from_iterable(sent for sent, _ in todo))  # it was cancelled: the agent stops
            self._busy.difference_update((result.tp, generation) for _, result in again)
            self._go_on()

        task.add_done_callback(over)

    async def _finish(self, todo: deque[Refused], generation: int) -> None:
        while todo:
            sent, result = todo[0]
            done = await self._sent_again(sent, result, generation)
            todo.popleft()
            self._confirm(done)

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
        if self._spans is None or any(ack.types == RENEW for ranges in acks.values() for ack in ranges):
            return await self._member.acknowledge(batches, generation=generation)
        spans = self._spans.begin(acks)
        try:
            results = await self._member.acknowledge(batches, generation=generation)
        except BaseException:
            self._spans.failed(spans)
            raise
        for result in results:
            self._spans.answered(spans, result)
        return results

    async def _send_again(self, key: Key, acks: list[AckRange], result: AckResult) -> list[tuple[AckRange, AckResult]]:
        """The server could not do it but holds the records still: a few more tries."""
        for attempt in range(1, TRIES_MAX):
            await self._clock.sleep(BACKOFF_S * 2**attempt)
            [result] = await self._request({key[0]: acks}, key[1])
            if result.error not in NOT_DONE:
                break
        return list(outcomes_of(acks, result))

    async def _send_halving(
        self, key: Key, acks: list[AckRange], *, first_failed: AckResult | None = None
    ) -> list[tuple[AckRange, AckResult]]:
        """Send; halve what is refused until it stands alone."""
        tp, generation = key
        done: list[tuple[AckRange, AckResult]] = []
        todo = [acks] if first_failed is None else list(reversed(halves_of(acks)))
        budget = HALVINGS_MAX
        while todo:
            part = todo.pop()
            [result] = await self._request({tp: part}, generation)
            budget -= 1
            if result.error in HALVED and budget > 0 and can_halve(part, result.error):
                todo.extend(reversed(halves_of(part)))
            else:
                done += outcomes_of(part, result)
        return done

    def _confirm(self, outcomes: Iterable[tuple[AckRange, AckResult]]) -> None:
        """Count what has its outcome; what has a bad one is told in one line, however many it is."""
        bad: dict[str, tuple[list[AckRange], AckResult]] = {}
        for ack, result in outcomes:
            how = self._count(ack, result)
            if self._spans is not None:
                self._spans.over(ack, result)
            if how in TOLD:
                bad.setdefault(how, ([], result))[0].append(ack)
            if self._on_confirmed is not None:
                try:
                    self._on_confirmed(ack, result, how)
                except Exception:  # the others are to be confirmed all the same
                    logger.exception("agent=%s: who is told of each outcome failed", self._agent)
        for how, (acks, result) in bad.items():
            self._warn(TOLD[how], acks, result)

    def _count(self, ack: AckRange, result: AckResult) -> str:
        """What became of a range."""
        self.unconfirmed -= ack.size
        if result.error is ErrorCode.NONE:
            setattr(self._stats, ack.counter, getattr(self._stats, ack.counter) + ack.size)
            return ack.counter
        if result.error in LOST or (
            result.error is ErrorCode.NETWORK_EXCEPTION and "outcome unknown" not in (result.message or "")
        ):  # for the latter nothing was sent: the connection is another one by now
            self._stats.lock_lost += ack.size
            return "lock_lost"
        self._stats.ack_unknown += ack.size
        return "unknown"

    def _warn(self, what: str, acks: list[AckRange], result: AckResult) -> None:
        at = ", ".join(f"{ack.first}" if ack.size == 1 else f"{ack.first}..{ack.last}" for ack in acks[:SHOWN])
        more = f" and {sum(ack.size for ack in acks[SHOWN:])} more" if len(acks) > SHOWN else ""
        logger.warning(
            "agent=%s record=%s-%d@%s%s: %s: %s %s",
            self._agent,
            result.topic,
            result.partition,
            at,
            more,
            what,
            result.error.name,
            result.message or "",
        )
