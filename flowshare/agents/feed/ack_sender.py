"""`AckSender` sends an agent's acknowledgements: gathered as offsets, sent as ranges, one round of requests at a time.

Records that finish while a round is under way wait for the next one, so an idle agent acknowledges at once and a busy
agent in bulk. A request succeeds or fails per partition as a whole, so a partition that fails for one lost lock is
halved until the lost offsets stand alone; with an order, the answer names the ranges that are not held (SG-18.12).

Events call methods, and no task waits for them; a task only sends refused ranges again, by halves or later. Invariants:
1. Of each *key* (partition, and generation under which records were acquired) one request is under way, until its
outcome is handled. Renewals go beside it. 2. A round has one request for each generation (there is rarely more than
one), of all keys without a request. The next round begins when the first node has answered, or `SLOW_S` later: a leader
that stands still holds up no other's. 3. Each waiting acknowledgement has an event that sends it: a request's end, a
turn of the loop, or a timer. 4. `unconfirmed` counts each offset once: waiting, under way, or waiting for another
leader. 5. No offset is twice in a request. An offset that is acknowledged again before the first acknowledgement has
left was acquired again: its lock had lapsed, and the outcome of the earlier delivery counts as lost.

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
    AckRanges,
    Gathered,
    Key,
    can_halve,
    halves_of,
    ordered,
    outcomes_of,
)
from flowshare.backoff import USUAL
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange
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
"""Least time in seconds between two requests to a broker, in which acknowledgements are gathered.

A broker writes each request by itself, and holds up the fetch behind that request meanwhile.
"""
RIDE_S: Final = 0.005
"""Seconds that gathered acknowledgements wait for a fetch to ride on. While records come, fetches leave all the time,
and a timer would wake the loop for nothing."""
GATHERED_MAX: Final = 200
"""Number of offsets that are sent at once."""
SLOW_S: Final = 0.25
"""Seconds after which an unanswered request holds up only its own partitions; before, all: few full requests cost
less."""
AGAIN: Final = "its lock had lapsed, and the record was acquired again"
TOLD: Final = {
    "lock_lost": "the lock was lost, the outcome is discarded",
    "unknown": "the acknowledgement is not known to hold, the record may run again",
}
"""Bad outcomes, with their text."""
SHOWN: Final = 5
"""Most ranges that a log line names."""
HALVINGS_MAX: Final = 256
TRIES_MAX: Final = 4
Refused = tuple[list[AckRange], "AckResult"]
"""Ranges to send again, with the answer that refused them.

Ranges that one offset may have made fail are sent in halves; ranges that the server did not carry out are sent
unchanged.
"""


class _Request:
    """One request. acks: ranges without an outcome yet. stale: ranges that were left out (invariant 5)."""

    __slots__ = ("acks", "generation", "spans", "stale")

    def __init__(self, acks: AckRanges, stale: AckRanges, generation: int) -> None:
        self.spans: Told = {}
        self.acks = acks
        self.stale = stale
        self.generation = generation


class AckSender:
    """Gathers and sends acknowledgements, and handles refused ones; on the service loop."""

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
        """gather_s: least seconds between two requests, where requests are expensive; `GATHERED_MAX` waiting offsets go
        at once.

        spans: records requests in telemetry; None: no telemetry.
        """
        self._spans = spans
        self._gather_s = gather_s
        self._sent_at = -gather_s
        self._hurry = False
        """True if a caller waits for the gathered acknowledgements."""
        self._agent = agent
        self._clock = clock
        self._stats = stats
        self._on_confirmed = on_confirmed
        self._member: Member | None = None
        self._pending: dict[Key, Gathered] = {}
        self._busy: set[Key] = set()
        """Keys with a request under way, or with a part that is sent again."""
        self._round: set[_Request] = set()
        """Requests without an answer yet that are not slow."""
        self._slow_timer: TimerHandle | None = None
        self._turn_due = False
        self._timer: TimerHandle | None = None
        self._stopped = False
        self._flushed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.unconfirmed = 0
        """Number of offsets that wait for their acknowledgement or its answer."""
        self.on_answered: Callable[[], object] | None = None
        """Called when fewer acknowledgements are without an answer, or those that waited behind a round have left
        (`leaves_soon`)."""

    @property
    def leaves_soon(self) -> bool:
        """True if acknowledgements wait for the round under way; they leave when the round has ended or is slow."""
        return bool(self._pending) and bool(self._round)

    def start(self, member: Member) -> None:
        """Begin to send over this member."""
        self._member = member
        self._send()

    def accept(self, key: Key, offsets: list[int], attempt: int = 0) -> None:
        """Accept these offsets (in any order). attempt: as `AckRange.attempt`, here and below."""
        accepted = self._at(key).accepted
        if attempt in accepted:
            accepted[attempt] += offsets
        else:
            accepted[attempt] = list(offsets)
        self._add(key, len(offsets))

    def acknowledge(self, key: Key, ack: AckRange) -> None:
        """Acknowledge a range with types other than accept."""
        self._at(key).others.append(ack)
        self._add(key, ack.size)

    def count(self, acks: Sequence[AckRange], result: AckResult) -> None:
        """Count and report ranges that were sent in another way, with their result, as the rest."""
        self.unconfirmed += sum(ack.size for ack in acks)
        self._confirm((ack, result) for ack in acks)

    def ride(self) -> None:
        """Send gathered acknowledgements now, so that they ride on the fetch that is asked for next."""
        self._send(rides=True)

    def _send(self, *, rides: bool = False) -> None:
        """Send waiting acknowledgements, unless more should be gathered first."""
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
        """Take the waiting acknowledgements of these keys, as requests."""
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
        """Tell if the waiting acknowledgements should wait for more; if not, note the time of sending."""
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
        """Stop waiting for a slow round: from now on its requests hold up only their own partitions."""
        self._slow_timer = None
        self._round.clear()
        self._send()
        if self.on_answered is not None:
            self.on_answered()

    async def flush(self) -> None:
        """Wait until all acknowledgements gathered so far have their answers."""
        while self.unconfirmed:
            self._hurry = True
            self._flushed.clear()
            self._send()
            if self.unconfirmed:
                await self._flushed.wait()

    async def stop(self) -> None:
        """End; unsent acknowledgements are left to the closing of the session."""
        self._stopped = True
        for timer in (self._timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
        await cancelled(*self._tasks)

    async def renew(self, key: Key, ranges: Sequence[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], float]:
        """Renew locks now; returns the ranges that are lost and the new deadline (0: unknown).

        ranges: first and last offset, attempt; ascending.
        """
        acks = [AckRange(first, last, RENEW, attempt=attempt, counter="renewed") for first, last, attempt in ranges]
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
            return  # the pending turn, the start or an outcome sends it
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
        """Begin one request. Must not raise: other requests wait for their turn."""
        assert self._member is not None
        self._stats.acknowledgements += 1
        told, late = partial(self._told, request), partial(self._came_late, request)
        if self._spans is not None:
            request.spans = self._spans.begin(request.acks)
        try:
            self._member.begin_acknowledge(request.acks, told, generation=request.generation, on_late=late, rides=rides)
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
        """Handle the outcomes of one request, but for late ones."""
        self._send_rest(self._settle(request, results), request.generation)
        self._end(request)

    def _came_late(self, request: _Request, result: AckResult) -> None:
        """Handle a late answer: one of several partitions had another leader, which has answered now."""
        self._send_rest(self._settle(request, [result]), request.generation)
        self._go_on()

    def _end(self, request: _Request) -> None:
        """Take a request out of the round: a node has answered, or will not."""
        self._round.discard(request)
        self._go_on()

    def _go_on(self) -> None:
        """Go on after an outcome."""
        if not self.unconfirmed:
            self._hurry = False
            self._flushed.set()
        self._send()
        if self.on_answered is not None:
            self.on_answered()

    def _settle(self, request: _Request, results: list[AckResult]) -> list[Refused]:
        """Confirm ranges that have their outcome, and return the ranges to send again."""
        again: list[Refused] = []
        for result in results:
            sent = request.acks.pop(result.tp, None)
            if sent is None:
                continue  # already counted as failed
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
        """Send refused ranges once more."""
        if not again:
            return
        todo = deque(again)
        task = asyncio.create_task(self._finish(todo, generation), name=f"acks {self._agent}")
        self._tasks.add(task)

        def over(_: object) -> None:
            self._tasks.discard(task)
            self._failed(chain.from_iterable(sent for sent, _ in todo))  # cancelled: the agent stops
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
        """Count ranges as unknown: their records stay locked until the locks lapse, then run again: late, but never
        lost."""
        count = sum(ack.size for ack in acks)
        self.unconfirmed -= count
        self._stats.ack_unknown += count

    async def _request(self, acks: AckRanges, generation: int) -> list[AckResult]:
        assert self._member is not None
        self._stats.acknowledgements += 1
        if self._spans is None or any(ack.types == RENEW for ranges in acks.values() for ack in ranges):
            return await self._member.acknowledge(acks, generation=generation)
        spans = self._spans.begin(acks)
        try:
            results = await self._member.acknowledge(acks, generation=generation)
        except BaseException:
            self._spans.failed(spans)
            raise
        for result in results:
            self._spans.answered(spans, result)
        return results

    async def _send_again(self, key: Key, acks: list[AckRange], result: AckResult) -> list[tuple[AckRange, AckResult]]:
        """Try a few more times: the server could not carry it out, but still holds the records."""
        for attempt in range(1, TRIES_MAX):
            await self._clock.sleep(USUAL.after(1 + attempt))
            [result] = await self._request({key[0]: acks}, key[1])
            if result.error not in NOT_DONE:
                break
        return list(outcomes_of(acks, result))

    async def _send_halving(
        self, key: Key, acks: list[AckRange], *, first_failed: AckResult | None = None
    ) -> list[tuple[AckRange, AckResult]]:
        """Send ranges; halve refused ones until the lost offsets stand alone."""
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
        """Count ranges that have their outcome; log bad outcomes in one line of each kind."""
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
        """Count a range's outcome and return its name."""
        self.unconfirmed -= ack.size
        if result.error is ErrorCode.NONE:
            setattr(self._stats, ack.counter, getattr(self._stats, ack.counter) + ack.size)
            return ack.counter
        if result.error in LOST or (
            result.error is ErrorCode.NETWORK_EXCEPTION and "outcome unknown" not in (result.message or "")
        ):  # for the latter nothing was sent: the connection was replaced
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
