"""One agent at work in one process: the seam between agents and their host (`agents/host/host.py`, the test kit).

A runtime lives on two loops. On the *service loop* its `Feeder` fetches, renews, produces and acknowledges; on the
*handler loop* its pool runs application code. Both may be the same loop (test kit), then nothing crosses a thread.
The host of a runtime calls `start`, `drain` and `stop` on the service loop, in this order, and may call everything
else from any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from flowshare.agents.cooperative.agent import CooperativeAgent
from flowshare.agents.feed.acknowledgements import Observer
from flowshare.agents.feed.feeder import Feeder
from flowshare.agents.feed.outcome_watch import HeardBreaker
from flowshare.agents.handler.agent import ShareAgent
from flowshare.agents.host.inflight import RunningHandler
from flowshare.agents.kmq.agent import KmqAgent
from flowshare.agents.run.pool import Environment, Pool, Runner, make_pool
from flowshare.agents.run.stats import HandlerLook, HandlerTimes

if TYPE_CHECKING:
    from flowshare.agents.kmq.feeder import KmqFeeder

BLOCKED_S: Final = 0.5
"""Seconds that the end waits for a handler loop that may be blocked."""


class AgentRuntime:
    """Runs one agent until it is stopped.

    agent: the decorated function with its options (`app.share_agents[name]`, `app.kmq_agents[name]`).
    environment: loops, clock and clients of the process; both loops must run when `start` is awaited.
    observer: called with every settled record (test kit).
    member_id: id of its member in the group; None draws one.
    """

    def __init__(
        self,
        agent: ShareAgent,
        environment: Environment,
        *,
        observer: Observer | None = None,
        member_id: str | None = None,
    ) -> None:
        self.agent = agent
        self._clock = environment.clock
        self._service_loop = environment.service_loop
        self._handler_loop = environment.handler_loop
        self._pool = make_pool(agent, environment)
        self._feeder: Feeder | KmqFeeder = (
            _kmq_feeder(agent, self._pool, environment, observer=observer)
            if isinstance(agent, KmqAgent)
            else _cooperative_feeder(agent, self._pool, environment, observer=observer, member_id=member_id)
            if isinstance(agent, CooperativeAgent)
            else Feeder(agent, self._pool, environment, observer=observer, member_id=member_id)
        )

    @property
    def runners(self) -> Sequence[Runner]:
        """Places where the agent's handler runs, at work or not."""
        return self._pool.runners

    @property
    def handler_times(self) -> HandlerTimes:
        """Durations of handler calls."""
        return self._pool.times

    @property
    def exceptions(self) -> dict[str, int]:
        """Number of exceptions that handlers raised, by type."""
        return self._pool.exceptions.copy()

    @property
    def breaker(self) -> HeardBreaker | None:
        """The state of the group's breaker, as the agent heard it; None: the agent has no breaker."""
        return self._feeder.breaker if isinstance(self._feeder, Feeder) else None

    @property
    def paused(self) -> bool:
        """True if the agent is paused."""
        return self._feeder.paused

    @property
    def idle(self) -> bool:
        """True if no record is buffered, running or waiting for its acknowledgement here."""
        return self._feeder.idle

    async def finished(self) -> bool:
        """Tell if a queue that only this process sees is finished: no records, no markers of its own tracker."""
        return not isinstance(self.agent, KmqAgent) or await cast("KmqFeeder", self._feeder).finished()

    def problems(self) -> list[str]:
        """Return the reasons why the agent is not healthy, one sentence each."""
        return [*self._pool.problems(), *self._feeder.problems()]

    async def start(self) -> None:
        """Check and make the agent's topics and group settings, join the group, begin to fetch.

        Raises: UsageError with what to do when the topic is missing and may not be made, or a setting is refused.
        """
        await self._on_handler_loop(self._pool.start)
        await self._feeder.start()

    def pause(self) -> None:
        """Stop fetching and release records that no handler has begun; running handlers finish."""
        self._feeder.pause()

    def resume(self) -> None:
        """Fetch again after `pause`."""
        self._feeder.resume()

    def heartbeat(self) -> None:
        """Ask the group at once for this member's partitions, as after another member's end; from any thread."""
        if not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(self._feeder.heartbeat)

    def in_flight(self) -> list[RunningHandler]:
        """Return the records that handlers work on now. A snapshot; safe from any thread."""
        now = self._clock.monotonic()
        return [
            RunningHandler(
                self.agent.name,
                chunk.topic,
                chunk.partition,
                chunk.place(record.offset),
                record.delivery_count,
                max(0.0, now - runner.started),
                chunk.deadline - now,
                runner.task,
                runner.thread_id,
            )
            for runner in self._pool.running()
            for chunk, record in runner.records()
        ]

    def in_hand(self) -> dict[str, Any]:
        """Return the number of held records, the age of the oldest, and the last exception of handlers with its age;
        from any thread.

        The result is a row of `/agents`, as `ops.in_hand` reads it.
        """
        now_s, arrived_s, raised = self._clock.monotonic(), self._feeder.arrived_s, self._pool.exceptions.last
        return {
            "agent": self.agent.name,
            "group": self.agent.group,
            "held": self._feeder.outstanding,
            "oldest_s": None if arrived_s is None else round(max(0.0, now_s - arrived_s), 3),
            "exception": raised and raised.kind,
            "message": raised and raised.text,
            "raised_s": raised and round(max(0.0, now_s - raised.at_s), 3),
        }

    def stats(self) -> dict[str, float]:
        """Return counters since the start and current gauges, by name (see `AgentStats`)."""
        return {
            **self._pool.stats.counters(),
            "running": float(self._pool.busy),
            "buffered": float(self._feeder.buffered),
            "outstanding": float(self._feeder.outstanding),
            "prefetch_target": float(self._feeder.target),
            "overdue": float(self._pool.overdue),
            "paused": float(self._feeder.paused),
        }

    def handler_look(self) -> HandlerLook:
        """Return the handlers' working time and outcomes since the start (`rates.HandlerCost`)."""
        return HandlerLook(
            at_s=self._clock.monotonic(),
            busy_s=self._pool.times.sum_s + self._pool.working_s(),
            settled=self._pool.stats.settled,
            again=self._pool.stats.again,
            running=self._pool.busy,
        )

    async def drain(self, timeout_s: float) -> bool:
        """Stop fetching, release records that were not begun, let handlers finish for `timeout_s` seconds, acknowledge.

        Handlers that are still running then are cancelled and their records released. Returns True if all finished by
        themselves.
        """
        self._pool.draining()
        finished = await self._feeder.drain(timeout_s)
        if not finished and await self._on_handler_loop(self._pool.cancel, limit_s=BLOCKED_S):
            await self._feeder.wait_idle(limit_s=1.0)
        return finished

    async def stop(self) -> None:
        """Release the rest, leave the group, end all tasks. Safe to call twice, and without `drain`.

        With an order the handlers end first, as the next record of a key begins elsewhere when its lock is released; a
        handler that does not end keeps its lock until that lapses.
        """
        if self.agent.options.order is None and self.agent.group_type != "cooperative":
            await self._feeder.close()
            await self._on_handler_loop(self._pool.stop, limit_s=BLOCKED_S)
        else:
            await self._on_handler_loop(self._pool.stop, limit_s=BLOCKED_S)
            await self._feeder.close(goes_on=self._pool.busy > 0)

    async def _on_handler_loop(
        self, function: Callable[[], Coroutine[Any, Any, None]], limit_s: float | None = None
    ) -> bool:
        """Run a coroutine function on the handler loop, which may be blocked, for a limited time.

        Returns True if it ended in time.
        """

        if self._handler_loop is asyncio.get_running_loop():
            called: asyncio.Future[None] = asyncio.ensure_future(function())
        else:
            called = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(), self._handler_loop))
        try:
            await self._clock.wait_for(called, limit_s)
        except TimeoutError:
            return False
        return True


def _kmq_feeder(agent: KmqAgent, pool: Pool, environment: Environment, *, observer: Observer | None) -> KmqFeeder:
    """Make the feeder of a KMQ agent; imported here, because most apps have no such agent."""
    from flowshare.agents.kmq.feeder import KmqFeeder

    return KmqFeeder(agent, pool, environment, observer=observer)


def _cooperative_feeder(
    agent: CooperativeAgent,
    pool: Pool,
    environment: Environment,
    *,
    observer: Observer | None,
    member_id: str | None,
) -> Feeder:
    """Make the feeder of a cooperative agent."""
    from flowshare.agents.cooperative.feeder import CooperativeFeeder

    return CooperativeFeeder(agent, pool, environment, observer=observer, member_id=member_id)
