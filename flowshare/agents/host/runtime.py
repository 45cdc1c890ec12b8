"""One agent at work in one process: the seam between agents and whatever hosts them (`agents/host.py`, the test kit).

A runtime lives on two loops. On the *service loop* its `Feeder` fetches, renews, produces and acknowledges; on the
*handler loop* its pool runs application code. Both may be the same loop (test kit), then nothing crosses a thread.
Who hosts a runtime calls `start`, `drain` and `stop` on the service loop, in this order, and may call everything
else from any thread.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from flowshare.agents.feeder import Feeder
from flowshare.agents.pool import make_pool
from flowshare.agents.rates import HandlerLook
from flowshare.agents.stats import AgentStats
from flowshare.backend.capabilities import MEMORY

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.times import HandlerTimes
    from flowshare.backend.base import Capabilities
    from flowshare.client.admin import ShareAdmin
    from flowshare.client.producing import RecordProducer
    from flowshare.clock import Clock
    from flowshare.protocol.messages import Connection

BLOCKED_S: Final = 0.5
"""How long the end waits for a handler loop that may be blocked."""


class InFlight(NamedTuple):
    """A record that a handler works on now."""

    agent: str
    topic: str
    partition: int
    offset: int
    attempt: int
    age_s: float
    lock_left_s: float
    task: asyncio.Task[None] | None
    """The pool task that awaits the handler, for `task.get_stack()`; None for a `def` handler in a thread."""
    thread_id: int | None
    """The handler's thread, for `sys._current_frames()`; None for an `async def` handler."""


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


class Observer(Protocol):
    """Is called on the service loop for each settled record; costs time per record, so for tests only."""

    def __call__(self, settled: Settled) -> None:
        """One delivery is settled."""


class AgentRuntime:
    """Runs one share agent until it is stopped.

    agent: the decorated function with its options (`app.share_agents[name]`).
    clock: rules all of flowshare's own waiting.
    service_loop, handler_loop: see the module's text; both must run when `start` is awaited.
    connect: opens a connection to the backend.
    producer, admin: shared by all agents of the process, live on the service loop.
    capabilities: what the backend can do.
    random: source of the jitter of retry delays.
    inline_threads: run `def` handlers on the handler loop instead of in threads (test kit).
    observer: told of every settled record (test kit).
    member_id: id of its member in the group; None draws one.
    """

    def __init__(
        self,
        agent: ShareAgent,
        *,
        clock: Clock,
        service_loop: asyncio.AbstractEventLoop,
        handler_loop: asyncio.AbstractEventLoop,
        connect: Callable[[], Awaitable[Connection]],
        producer: RecordProducer,
        admin: ShareAdmin,
        capabilities: Capabilities = MEMORY,
        random: random_module.Random | None = None,
        inline_threads: bool = False,
        observer: Observer | None = None,
        member_id: str | None = None,
    ) -> None:
        self.agent = agent
        self.stats_counters = AgentStats()
        self._clock = clock
        self._service_loop = service_loop
        self._handler_loop = handler_loop
        self._pool = make_pool(
            agent,
            clock=clock,
            service_loop=service_loop,
            handler_loop=handler_loop,
            inline_threads=inline_threads,
            stats=self.stats_counters,
        )
        self._feeder = Feeder(
            agent,
            self._pool,
            clock=clock,
            service_loop=service_loop,
            handler_loop=handler_loop,
            connect=connect,
            producer=producer,
            admin=admin,
            capabilities=capabilities,
            random=random or random_module.Random(),  # noqa: S311 - jitter, not a secret
            stats=self.stats_counters,
            observer=observer,
            member_id=member_id,
        )

    @property
    def member_id(self) -> str | None:
        """Id of this process's member in the agent's group; None before it joined."""
        return self._feeder.member_id

    @property
    def handler_times(self) -> HandlerTimes:
        """How long handler calls took."""
        return self._pool.times

    @property
    def paused(self) -> bool:
        """Whether `pause` is in force."""
        return self._feeder.paused

    @property
    def idle(self) -> bool:
        """Whether no record is buffered, running or waiting for its acknowledgement here."""
        return self._feeder.idle

    @property
    def healthy(self) -> bool:
        """False while a `def` handler runs past its timeout, or the member cannot reach its group."""
        return not self.problems()

    def problems(self) -> list[str]:
        """Why the agent is not healthy, one sentence each."""
        return [*self._pool.problems(), *self._feeder.problems()]

    async def start(self) -> None:
        """Check and make what the agent needs (topics, group settings), join the group, begin to fetch.

        Raises: UsageError with what to do when the topic is missing and may not be made, or a setting is refused.
        """
        await self._on_handler_loop(self._pool.start)
        await self._feeder.start()

    def pause(self) -> None:
        """Stop fetching and give back what no handler has begun; running handlers finish."""
        self._feeder.pause()

    def resume(self) -> None:
        """Fetch again after `pause`."""
        self._feeder.resume()

    def heartbeat(self) -> None:
        """Ask the group at once for this member's partitions, as after another member's end; from any thread."""
        if not self._service_loop.is_closed():
            self._service_loop.call_soon_threadsafe(self._feeder.heartbeat)

    def in_flight(self) -> list[InFlight]:
        """What handlers work on now. A snapshot; safe from any thread."""
        now = self._clock.monotonic()
        return [
            InFlight(
                self.agent.name,
                chunk.topic,
                chunk.partition,
                chunk.place(record.offset),
                record.delivery_count,
                max(0.0, now - slot.started),
                chunk.deadline - now,
                slot.task,
                slot.thread_id,
            )
            for slot in self._pool.running()
            for chunk, record in slot.records()
        ]

    def stats(self) -> dict[str, float]:
        """Counters since the start and gauges of now, by name (see `AgentStats`)."""
        return {
            **self.stats_counters.counters(),
            "running": float(self._pool.busy),
            "buffered": float(self._feeder.buffered),
            "outstanding": float(self._feeder.outstanding),
            "prefetch_target": float(self._feeder.target),
            "overdue": float(self._pool.overdue),
            "paused": float(self._feeder.paused),
        }

    def handler_look(self) -> HandlerLook:
        """How long handlers have worked since the start, and what came of it (`rates.HandlerCost`)."""
        return HandlerLook(
            at_s=self._clock.monotonic(),
            busy_s=self._pool.times.sum_s + self._pool.working_s(),
            settled=self.stats_counters.settled,
            again=self.stats_counters.again,
            running=self._pool.busy,
        )

    async def drain(self, timeout_s: float) -> bool:
        """Fetch no more, give back what was not begun, let handlers finish for `timeout_s` seconds, acknowledge.

        Handlers that are still running then are cancelled and their records released. Returns whether all finished
        by themselves.
        """
        finished = await self._feeder.drain(timeout_s)
        if not finished and await self._on_handler_loop(self._pool.cancel, limit_s=BLOCKED_S):
            await self._feeder.settle(limit_s=1.0)
        return finished

    async def stop(self) -> None:
        """Release whatever is left, leave the group, end all tasks. Safe to call twice, and without `drain`."""
        await self._feeder.close()
        await self._on_handler_loop(self._pool.stop, limit_s=BLOCKED_S)

    async def _on_handler_loop(self, function: Callable[[], Awaitable[None]], limit_s: float | None = None) -> bool:
        """Run a coroutine function on the handler loop, wherever that is, for a limited time: it may be blocked.

        Returns whether it ended in time.
        """

        async def call() -> None:
            await function()

        same = self._handler_loop is asyncio.get_running_loop()
        called = (
            asyncio.ensure_future(call())
            if same
            else asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._handler_loop))
        )
        try:
            await self._clock.wait_for(called, limit_s)
        except TimeoutError:
            return False
        return True
