"""Reports of a member with a breaker to its group, and the group's answers (`share.breaker`). On the service loop.

The member counts its handlers' outcomes and reports them: failures at once, but at most every `GAP_S`; otherwise every
`QUIET_S`, so that the group knows that the member reports. While the breaker is not closed, the member asks more often,
and

- records that no handler has begun are released, without costing an attempt,
- records that failed are released without costing an attempt, too,
- a record fetched when it is time to try is a try: its outcome is counted apart, and decides. A failed try comes again
later than the next try, which should be another record. Records that come sooner left before the leader knew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.agents.handler.errors import UndecodableValue
from flowshare.agents.handler.outcomes import OutcomeKind
from flowshare.client.errors import ClientError
from flowshare.share.breaker import BreakerState
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.handler.outcomes import Outcome
    from flowshare.agents.run.pool import FinishedWork
    from flowshare.agents.telemetry.breakers import BreakerMetrics
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.session.member import Fetched
    from flowshare.clock import Clock
    from flowshare.protocol.messages import TopicPartition

logger = logging.getLogger("flowshare.agents")

GAP_S: Final = 0.1
QUIET_S: Final = 1.0
OPEN_S: Final = 0.25
"""Seconds between two reports while the breaker is not closed."""
TRIES_MAX: Final = 10_000
"""Most records that are remembered as tries: normally only one at a time is handed out."""
SOONER_S: Final = 1.0
"""Seconds before the announced time of the next try from which fetched records may be tries: answers take time."""
LAST_S: Final = 1.0
"""Seconds that a stopping member tries to send its last report."""
LATER: Final = 1.25
"""Factor: a failed try comes again after this many times the time that the breaker is open now."""


def _says_something(outcome: Outcome) -> bool:
    """Tell if a handler ended with this outcome; False if the record was released, or no handler ever saw it."""
    put_back = outcome.kind is OutcomeKind.RELEASE or outcome.unrun
    return not put_back and not isinstance(outcome.error, UndecodableValue)


class HeardBreaker(NamedTuple):
    """A group's breaker as a member hears of it. opened: how often it opened since the member began, failed tries
    included."""

    state: BreakerState = BreakerState.CLOSED
    opened: int = 0

    def hear(self, state: BreakerState, *, anew: bool) -> HeardBreaker:
        """Return the breaker in its reported state. anew: another open time than before; tries in between are not
        seen."""
        opens = state is not BreakerState.CLOSED and self.state is BreakerState.CLOSED
        again = state is BreakerState.OPEN and (anew or self.state is BreakerState.HALF_OPEN)
        return HeardBreaker(state, self.opened + (opens or again))


class OutcomeWatch:
    """Outcome reports of one agent in one process. on_open: called when the breaker is heard to be open. told: its
    telemetry."""

    def __init__(
        self,
        agent: ShareAgent,
        *,
        clock: Clock,
        admin: ShareAdmin,
        on_open: Callable[[], object],
        told: BreakerMetrics | None = None,
    ) -> None:
        assert agent.options.breaker is not None
        self._agent = agent
        self._rule = agent.options.breaker
        self._clock = clock
        self._admin = admin
        self._on_open = on_open
        self.heard = HeardBreaker()
        self._told = told
        self._why = ""
        self._open_s: float = 0.0
        self._until_s: float = 0.0
        """Time of the next try, as heard."""
        self._counts = [0, 0, 0, 0]
        """Counts as `share.breaker.Outcomes`."""
        self._reported = [0, 0, 0, 0]
        """Counts that the group knows."""
        self._member_id = ""
        self._tries: set[tuple[TopicPartition, int]] = set()
        self._in_vain: set[tuple[TopicPartition, int]] = set()
        """Failed tries that are not released yet."""
        self._failed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, member_id: str) -> None:
        """Begin to report."""
        if self._told is not None:
            self._told.hear(*self.heard)
        self._member_id = member_id
        self._task = asyncio.create_task(self._run(), name=f"outcomes of {self._agent.name}")

    async def stop(self) -> None:
        """Report failures and tries that were not reported yet; end."""
        task, self._task = self._task, None
        await cancelled(task)
        if task is not None and self._counts[1:] != self._reported[1:]:
            with contextlib.suppress(ClientError, OSError, TimeoutError):
                await self._clock.wait_for(self._report(), LAST_S)
        if self._told is not None:
            self._told.end()

    @property
    def _state(self) -> BreakerState:
        return self.heard.state

    @property
    def trouble(self) -> str | None:
        """Reason why nothing is handed out; None while the breaker is closed."""
        return None if self._state is BreakerState.CLOSED else f"the group's breaker is {self._state}: {self._why}"

    def spares(self, chunk: Chunk, outcome: Outcome) -> bool:
        """Tell if a failed record is released without costing an attempt."""
        return outcome.failed and self._state is not BreakerState.CLOSED and not chunk.is_accepted

    def least_s(self, chunk: Chunk, offset: int) -> float:
        """Return the least delay in seconds of a spared record: a failed try waits until there was another one."""
        if (chunk.tp, offset) not in self._in_vain:
            return 0.0
        self._in_vain.discard((chunk.tp, offset))
        first_s, most_s = self._rule.seconds
        return LATER * min(2 * max(self._open_s, first_s), most_s)

    def fetched(self, part: Fetched) -> None:
        """Note fetched records; while the breaker is not closed, and it is time to try, they are tries."""
        soon_s = self._until_s - min(SOONER_S, self._open_s / 2)
        may = self._state is not BreakerState.CLOSED and self._clock.monotonic() >= soon_s
        if may and len(self._tries) < TRIES_MAX:
            for first, last, _ in part.acquired:
                self._tries.update((part.tp, offset) for offset in range(first, min(last, first + TRIES_MAX) + 1))

    def ended(self, handed: FinishedWork) -> None:
        """Count the outcomes of handlers."""
        for chunk, accepted, others in handed:
            if self._tries:
                for offset in accepted:
                    self._count(chunk, offset, failed=False)
            else:
                self._counts[0] += len(accepted)
            for record, outcome in others:
                if _says_something(outcome):
                    self._count(chunk, record.offset, failed=outcome.failed)

    def _count(self, chunk: Chunk, offset: int, *, failed: bool) -> None:
        where = chunk.tp, offset
        tried = where in self._tries
        self._tries.discard(where)
        if tried and failed:
            self._in_vain.add(where)
        self._counts[2 * tried + failed] += 1
        if failed or tried:
            self._failed.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(ClientError, OSError):  # the next report includes it
                await self._report()
            await self._clock.sleep(GAP_S)
            pause_s = (QUIET_S if self._state is BreakerState.CLOSED else OPEN_S) - GAP_S
            with contextlib.suppress(TimeoutError):
                await self._clock.wait_for(self._failed.wait(), pause_s)
            self._failed.clear()

    async def _report(self) -> None:
        succeeded, failed, tried_succeeded, tried_failed = counts = list(self._counts)
        counted = (succeeded, failed, tried_succeeded, tried_failed)
        left_ms = max(0, round(1000 * (self._until_s - self._clock.monotonic())))
        known = (self._state, left_ms, round(1000 * self._open_s))
        told = await self._admin.report_outcomes(self._agent.group, self._member_id, counted, known)
        self._reported = counts
        until_s = self._clock.monotonic() + told.left_ms / 1000
        anew = until_s - self._until_s > told.open_ms / 2000
        before, self.heard = self._state, self.heard.hear(BreakerState(told.state), anew=anew)
        if self._told is not None:
            self._told.hear(*self.heard)
        self._why, self._open_s = told.why, told.open_ms / 1000
        self._until_s = until_s
        if self._state is BreakerState.CLOSED:
            self._in_vain.clear()
        if before is BreakerState.CLOSED and self._state is not BreakerState.CLOSED:
            logger.warning(
                "agent=%s group=%s: the group's breaker is %s, as %s: nothing is handed out, and what fails costs no "
                "attempt; one record is tried in %.3g s",
                self._agent.name,
                self._agent.group,
                self._state,
                told.why,
                told.left_ms / 1000,
            )
            self._on_open()
        elif before is not BreakerState.CLOSED and self._state is BreakerState.CLOSED:
            logger.warning(
                "agent=%s group=%s: the group's breaker is closed again", self._agent.name, self._agent.group
            )
