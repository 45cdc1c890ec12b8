"""One process that runs an app: the service loop with backend, producer and members, the handler loop with the app.

Start: service thread → backend → producer and admin → health pages → the app (resources, Faust's own agents and tables,
timers, tasks, web) → share agents.
Stop: share agents drain first, while producer and connections still work (Faust flushes its producer before its
children stop, which loses what handlers produce meanwhile) → Faust's own agents do → the app → members leave → producer
→ backend → service thread.
With `threads=False` both loops are the running one.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from flowshare.agents.feed.backend_limits import asked_of
from flowshare.agents.feed.members import member_ids
from flowshare.agents.handler.errors import AppFailed, UsageError
from flowshare.agents.handler.texts import named
from flowshare.agents.host import inflight
from flowshare.agents.host.lease import Lease
from flowshare.agents.host.outage import Outage
from flowshare.agents.host.outbox import Outbox
from flowshare.agents.host.runtime import AgentRuntime
from flowshare.agents.host.service import ServiceLoop
from flowshare.agents.host.watchdog import Watchdog
from flowshare.agents.run.pool import Environment
from flowshare.agents.telemetry import active as telemetry
from flowshare.clock import Clock, LoopClock
from flowshare.garbage import Tuning
from flowshare.optimized import refusal

if TYPE_CHECKING:
    from flowshare.agents.cooperative.agent import CooperativeAgent
    from flowshare.agents.feed.acknowledgements import Observer
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.host.candidate import LeaseCandidate
    from flowshare.agents.host.lease import LeaseGuard
    from flowshare.agents.kmq.agent import KmqAgent
    from flowshare.agents.telemetry.sending import TracedProducer
    from flowshare.agents.telemetry.telemetry import Telemetry
    from flowshare.backend.base import Backend, BackendError
    from flowshare.backend.url import BrokerUrl
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.producer.producer import Producer
    from flowshare.client.settings import ProducerSettings

T = TypeVar("T")

logger = logging.getLogger("flowshare.host")

_HOOK_LIMIT_S: Final = 10.0
_CLOSE_LIMIT_S: Final = 2.0


class HostedStreams(Protocol):
    """Faust's own agents, streams and tables, as the host uses them."""

    running: bool

    async def drain(self) -> None:
        """Read nothing more, wait until records already read are handled."""

    def problems(self, now_s: float) -> list[str]:
        """Return the agents and streams that keep crashing, one sentence each."""


class HostedJobs(Protocol):
    """The app's timers, cron jobs and tasks, as the host uses them."""

    failure: AppFailed | None


class HostedApp(Protocol):
    """The app that the host runs, as the host uses it; implemented by `agents.app.App`."""

    app_id: str
    conf: Any
    crash_reason: BaseException | None
    host: Host | None
    lease_guard: LeaseGuard
    share_agents: dict[str, ShareAgent]
    kmq_agents: dict[str, KmqAgent]
    cooperative_agents: dict[str, CooperativeAgent]

    @property
    def streams(self) -> HostedStreams:
        """Faust's own agents, streams and tables."""

    @property
    def jobs(self) -> HostedJobs:
        """The app's timers, cron jobs and tasks."""

    @property
    def broker_address(self) -> BrokerUrl:
        """The broker's URL. Raises: UsageError when the app has no broker."""

    @property
    def producer_settings(self) -> ProducerSettings | None:
        """The app's settings for its producer; None: no settings."""

    def declared(self, topic: str) -> Any | None:
        """Return the app's declaration of a topic; None: the app declares none."""

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that handlers get when the process stops."""

    def finalize(self) -> None:
        """End the declarations."""

    async def start(self) -> None:
        """Start all but the share agents."""

    async def stop(self) -> None:
        """Stop the app."""

    async def wait_until_stopped(self) -> None:
        """Wait until the app has stopped or crashed."""


class ServicePart(Protocol):
    """A part beside the agents, on the service loop, or beside a supervisor: health pages."""

    async def start(self) -> str:
        """Begin; return the part's `host:port`, or an empty text."""

    async def close(self) -> None:
        """End."""


PartFactory = Callable[["Host"], ServicePart]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of a host for its app.

    threads: a service thread beside the handler loop; False puts everything on the running loop (test kit).
    watchdog: watch the handler loop (needs threads), and the broker's answers.
    inline_threads: run `def` handlers on the handler loop (test kit).
    patience_s: seconds that others come first when nobody leads an embedded path.
    lead: share in leading the groups, where the workers do; False leaves it to others.
    sends_only: the producer alone: no agents, timers or pages, no member of a group; it leads only an embedded path
    that nobody else leads.
    linger: seconds that the producer waits to fill a batch; None is its default (test kit: 0).
    streams: run Faust's own agents, streams and tables, if the app has some; False leaves them out (test kit).
    trackers: run a tracker of each KMQ queue, whatever its agent says (test kit).
    virtual_time: a test moves the clock, see `Environment`.
    prepare: called on a thread of its own when the app has started (its `on_start` functions), before its agents do.
    supervisor: `host:port` of the pages of this worker's supervisor; empty: no supervisor.
    member_id: prefix of the agents' member ids (`feed.members.member_ids`), so that others know the owner; None draws
    them.
    """

    threads: bool = True
    watchdog: bool = False
    inline_threads: bool = False
    linger: float | None = None
    patience_s: float = 0.0
    lead: bool = True
    sends_only: bool = False
    streams: bool = True
    trackers: bool = False
    virtual_time: bool = False
    prepare: Callable[[], object] | None = None
    supervisor: str = ""
    member_id: str | None = None


class Host:
    """Runs one app in this process. All methods run on the handler loop unless they say otherwise.

    backend: of the log; None opens the app's broker URL.
    clock: rules all of flowshare's waiting. observer: called with every settled record. random: source of the jitter of
    retry delays.
    parts: made and started on the service loop once the backend answers.
    """

    def __init__(
        self,
        app: HostedApp,
        *,
        backend: Backend | None = None,
        clock: Clock | None = None,
        settings: HostSettings | None = None,
        observer: Observer | None = None,
        random: random_module.Random | None = None,
        parts: Sequence[PartFactory] = (),
    ) -> None:
        self.app = app
        self.clock: Clock = clock or LoopClock()
        self.settings = settings or HostSettings()
        self.runtimes: dict[str, AgentRuntime] = {}
        """Runtime of each agent by its name."""
        self.service = ServiceLoop(threads=self.settings.threads)
        self.watchdog = Watchdog(self.clock) if self.settings.watchdog and self.settings.threads else None
        self.address = ""
        """Address of the health pages, `host:port`."""
        self.state = "new"
        """new, starting, running, draining, stopped."""
        self.was_running = False
        """True if the host was running once."""
        self.lost: BackendError | None = None
        """Reason why the groups' place is gone for good, so that this process can do nothing more."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called when the groups' place is gone, on the service loop."""
        self.on_failed: Callable[[], object] = lambda: None
        """Called when a task of the app has ended with an error, on the handler loop."""
        self._backend = backend
        self._own_backend = backend is None
        self._observer = observer
        self._random = random or random_module.Random()  # noqa: S311 - jitter, not a secret
        self._part_factories = tuple(parts)
        self._parts: list[ServicePart] = []
        self._producer: Producer | None = None
        self._admin: ShareAdmin | None = None
        self._telemetry: Telemetry | None = None
        self._outbox: Outbox | None = None
        self._candidate: LeaseCandidate | None = None
        self._outage: Outage | None = None
        self._drained: asyncio.Future[bool] | None = None
        self._app_started = False
        self._crash: BaseException | None = None
        """Crash of Faust's part of the app, while it ran."""
        self._handler_thread = 0
        self._tuning = Tuning()

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; when it returns, the agents fetch.

        Raises: the error of the part that refused, after all started parts were stopped again (StorageHeld,
        StorageDamaged, a refused broker URL, a missing topic, an agent's option, an error in an `on_start` function;
        UsageError under python -O).
        """
        problem = refusal()
        if problem is not None:
            raise UsageError(problem)
        self.state = "starting"
        self.handler_loop = asyncio.get_running_loop()
        self._handler_thread = threading.get_ident()
        self.service.start()
        if self.watchdog is not None:
            self.watchdog.beat_from_here()
        try:
            await self.service.call(self._start_service)
            self.app.host = self
            if self.settings.sends_only:
                self.app.finalize()
                self.state = "running"
                return
            self._app_started = True
            await self.app.start()
            if self.settings.prepare is not None:
                await asyncio.to_thread(self.settings.prepare)
            if self.settings.threads:
                self._tuning.apply()
            await self.service.call(self._start_agents)
        except BaseException:
            await self.stop()
            raise
        if self.state == "starting":
            self.state = "running"
            self.was_running = True

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Stop fetching, let handlers finish, acknowledge; from any loop, and once: later calls get the first one's
        result.

        timeout_s: seconds for all of it; None is the longest `drain_timeout` of the app's agents. Handlers get a little
        less, so that the later steps fit in too. Returns True if all handlers finished by themselves; others are
        cancelled and their records released.
        """
        return await self.service.call(lambda: self._drain(timeout_s))

    async def finish(self) -> None:
        """Drain, then stop."""
        await self.drain()
        await self.stop()

    async def stop(self) -> None:
        """Stop everything, without waiting for handlers (`drain` first for that). Safe to call twice."""
        if self.state == "stopped":
            return
        self._begin_to_end()
        if self._app_started:
            await self._stop_app()
        if self.service.running:
            await self.service.call(self.close_service)
        if self.watchdog is not None:
            self.watchdog.stop()
        self.app.host = None
        self.service.stop()
        self._tuning.undo()
        self.state = "stopped"

    async def close_service(self) -> None:
        """Close members, producer and backend. On the service loop: also when the handler loop is blocked."""
        await self._limited("stopping the agents", *(runtime.stop() for runtime in self.runtimes.values()))
        self.app.lease_guard.leave()
        closing = [
            ("leaving the lease group", self._candidate),
            *(("closing the health pages", part) for part in self._parts),
            ("closing the producer", self._producer),
            ("ending the questions to the broker", self._outage),
            ("closing the admin client", self._admin),
        ]
        self._candidate, self._parts, self._producer, self._outage, self._admin = None, [], None, None, None
        for what, one in closing:
            if one is not None:
                await self._limited(what, one.close())
        if self._telemetry is not None:
            ended, self._telemetry = self._telemetry, None
            await asyncio.to_thread(ended.close)
        if self._backend is not None and self._own_backend:
            backend, self._backend = self._backend, None
            await backend.close()

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def producer(self) -> Producer:
        """The process's producer, for the service loop. Raises: RuntimeError when the host does not run."""
        return _running(self._producer)

    @property
    def sender(self) -> Producer | TracedProducer:
        """The sender of single records: the producer, with telemetry if there is some. Raises: as `producer`."""
        return self.producer if self._telemetry is None else self._telemetry.sends(self.producer)

    @property
    def maybe_producer(self) -> Producer | None:
        """The process's producer, or None when the host does not run."""
        return self._producer

    @property
    def admin(self) -> ShareAdmin:
        """The process's admin client, for the service loop. Raises: RuntimeError when the host does not run."""
        return _running(self._admin)

    @property
    def outbox(self) -> Outbox:
        """The producer, for any loop. Raises: RuntimeError when the host does not run."""
        return _running(self._outbox)

    @property
    def backend(self) -> Backend:
        """The backend of the log. Raises: RuntimeError when the host does not run."""
        return _running(self._backend)

    def led(self) -> Mapping[str, Any]:
        """Return counters and gauges of share-partitions led here; empty when none are. On the service loop."""
        return {} if self._backend is None else self._backend.stats()

    def live(self) -> tuple[str, ...]:
        """Return the reasons to restart this process; empty when it is well. From any thread."""
        if self.watchdog is not None and not self.watchdog.live():
            return (f"the handler loop has been blocked for {self.watchdog.stalled_s():.0f} s",)
        return ()

    def ready(self) -> tuple[str, ...]:
        """Return the reasons why this process does not work now; empty when it does. From any thread."""
        reasons = [*self.live()]
        if self.state != "running":
            reasons.append(f"the worker is {self.state}")
        if not reasons and self.watchdog is not None and not self.watchdog.ready():
            reasons.append(f"the handler loop has been blocked for {self.watchdog.stalled_s():.0f} s")
        for name, runtime in self.runtimes.items():
            reasons.extend(f"{name}: {problem}" for problem in runtime.problems())
        reasons.extend(self.app.streams.problems(self.clock.monotonic()))
        if (failed := self.failure()) is not None:
            reasons.append(str(failed))
        if self.lost is not None:
            reasons.append(str(self.lost))
        elif self._outage is not None and (away := self._outage.problem()) is not None:
            reasons.append(away)
        return tuple(reasons)

    def failure(self) -> AppFailed | None:
        """Return the error for an app that does not run whole: a task ended with an error, or Faust's part crashed."""
        crash = self._crash if self.state in {"draining", "stopped"} else self.app.crash_reason
        if self.app.jobs.failure is not None or crash is None:
            return self.app.jobs.failure
        failed = AppFailed(f"the app crashed: {named(crash)}")
        failed.__cause__ = crash
        return failed

    def in_flight(self, *, stacks: bool = False) -> list[dict[str, Any]]:
        """Return the records in handlers, oldest first; with `stacks`, also where each handler is. From any thread."""
        found = [record for runtime in self.runtimes.values() for record in runtime.in_flight()]
        return inflight.rows(found, handler_thread=self._handler_thread, stacks=stacks)

    def in_hand(self) -> list[dict[str, Any]]:
        """Return each agent's held records and the last exception of its handlers. From any thread."""
        return [runtime.in_hand() for runtime in list(self.runtimes.values())]

    # --- on the service loop ---------------------------------------------------------------------------------------

    async def _start_service(self) -> None:
        from flowshare.backend import YIELD_PATIENCE_S, open_backend
        from flowshare.client.admin.admin import ShareAdmin
        from flowshare.client.producer.producer import Producer

        if self._backend is None:
            self._backend = open_backend(
                self.app.broker_address,
                clock=self.clock,
                patience_s=YIELD_PATIENCE_S if self.settings.sends_only else self.settings.patience_s,
                yields=self.settings.sends_only,
                lead=self.settings.lead,
                asked=asked_of(self.app.share_agents.values()),
                cooperative=[agent.group for agent in self.app.cooperative_agents.values()],
                share_groups=bool(self.app.share_agents or self.app.cooperative_agents) or not self.app.kmq_agents,
            )
            self._backend.on_lost(self._lose)
            await self._backend.start()
        self._producer = Producer(
            self._connect,
            clock=self.clock,
            linger=self.settings.linger,
            settings=self.app.producer_settings,
            client_id=str(self.app.conf.id),
            declared=self._declared,
        )
        self._admin = ShareAdmin(self._connect, clock=self.clock)
        self._find_telemetry()
        self._outbox = Outbox(self.sender, self.service.loop)
        if not self.settings.sends_only:
            self._seek_lease()
        if self.watchdog is not None:
            self.watchdog.watch_from_here()
            if self.backend.kind != "memory":
                where = f"the broker at {self.app.broker_address}"
                self._outage = Outage(self._admin.ping, clock=self.clock, where=where)
                self._outage.start()

    def _lose(self, error: BackendError) -> None:
        self.lost = error
        self.on_lost()

    def _seek_lease(self) -> None:
        """Ask for the app's lease, at once or when something wants the lease."""
        guard, loop = self.app.lease_guard, self.service.loop
        guard.lease, guard.clock = Lease(), self.clock
        if self.backend.kind == "memory":
            guard.lease.keep()  # no other process reaches the memory backend
            return
        guard.join(lambda: loop.call_soon_threadsafe(self._be_candidate, guard.lease))

    def _be_candidate(self, lease: Lease) -> None:
        """Become a candidate for the lease; its module, which most apps do not need, is imported then."""
        from flowshare.agents.host.candidate import LeaseCandidate

        if self._candidate is None and self._backend is not None:
            self._candidate = LeaseCandidate(self.app.app_id, lease, connect=self._connect, clock=self.clock)
            self._candidate.start()

    def _declared(self, topic: str) -> tuple[int, dict[str, str]] | None:
        """Return the app's declaration of a topic, for a first record that finds no topic."""
        from flowshare.agents.feed.setup import declaration

        found = self.app.declared(topic)
        return None if found is None else declaration(found, self.app.conf.topic_partitions)

    async def _connect(self) -> Any:
        return await self.backend.connect(str(self.app.conf.id))

    def _find_telemetry(self) -> None:
        """Find telemetry, if the application has set it up by now."""
        if self._telemetry is None:
            self._telemetry = telemetry.find(client_id=str(self.app.conf.id), backend=self.backend.kind)

    async def _start_agents(self) -> None:
        self._find_telemetry()  # an `on_start` function may have set it up
        self.outbox.send_by(self.sender)
        prefix = self.settings.member_id
        ids = {} if prefix is None else member_ids(prefix, self.app.share_agents)
        environment = Environment(
            clock=self.clock,
            service_loop=self.service.loop,
            handler_loop=self.handler_loop,
            connect=self._connect,
            capabilities=self.backend.capabilities,
            producer=self.producer,
            admin=self.admin,
            random=self._random,
            inline_threads=self.settings.inline_threads,
            trackers=self.settings.trackers,
            virtual_time=self.settings.virtual_time,
            telemetry=self._telemetry,
        )
        for name, agent in self.app.share_agents.items():
            self.runtimes[name] = AgentRuntime(agent, environment, observer=self._observer, member_id=ids.get(name))
        for name, agent in self.app.cooperative_agents.items():
            self.runtimes[name] = AgentRuntime(agent, environment, observer=self._observer)
        for name, queue_agent in self.app.kmq_agents.items():
            self.runtimes[name] = AgentRuntime(queue_agent, environment, observer=self._observer)
        try:
            async with asyncio.TaskGroup() as group:
                for runtime in self.runtimes.values():
                    group.create_task(runtime.start())
        except ExceptionGroup as several:
            raise several.exceptions[0] from several.exceptions[0].__cause__  # the others' starts were cancelled
        for factory in self._part_factories:
            part = factory(self)
            self._parts.append(part)
            self.address = await part.start() or self.address
        if self.address:
            await self.backend.set_address(self.address, self.settings.supervisor)

    async def _drain(self, timeout_s: float | None) -> bool:
        if self._drained is None:
            self._begin_to_end()
            limit = self.app.drain_timeout_s if timeout_s is None else timeout_s
            self._drained = asyncio.ensure_future(self._drain_agents(limit - min(1.0, limit / 5)))
        return await asyncio.shield(self._drained)

    def _begin_to_end(self) -> None:
        """Note the begin of a drain or stop: the end of Faust's part is no crash from now on."""
        if self.state != "draining":
            self._crash = self.app.crash_reason
            self.state = "draining"

    async def _drain_agents(self, limit_s: float) -> bool:
        end_s = self.clock.monotonic() + limit_s
        results = await asyncio.gather(
            *(runtime.drain(limit_s) for runtime in self.runtimes.values()), return_exceptions=True
        )
        for error in results:
            if isinstance(error, BaseException):
                logger.error("draining failed: %s", named(error), exc_info=error)
        streams = await self._drain_streams(end_s - self.clock.monotonic())
        return streams and all(result is True for result in results)

    async def _drain_streams(self, limit_s: float) -> bool:
        """Let Faust's own agents finish; return True if they did."""
        if not self.app.streams.running:
            return True
        drained = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.app.streams.drain(), self.handler_loop))
        try:
            await self.clock.wait_for(drained, max(limit_s, 0.1))
        except TimeoutError:
            logger.warning("Faust's agents did not finish within their time; what they had not, they get again")
            return False
        except Exception:
            logger.exception("draining Faust's agents failed")
            return False
        return True

    async def _limited(self, what: str, *steps: Any) -> None:
        """Run the steps at once for a limited time; errors are logged, as the shutdown must try every step."""
        if not steps:
            return
        try:
            results = await self.clock.wait_for(asyncio.gather(*steps, return_exceptions=True), _CLOSE_LIMIT_S)
        except TimeoutError:
            logger.warning("%s took longer than %.0f s and was given up", what, _CLOSE_LIMIT_S)
            return
        for error in results:
            if isinstance(error, BaseException):
                logger.error("%s failed: %s", what, named(error), exc_info=error)

    # --- the app, on the handler loop ------------------------------------------------------------------------------

    async def _stop_app(self) -> None:
        self._app_started = False
        try:
            await self.clock.wait_for(self.app.stop(), _HOOK_LIMIT_S)
        except TimeoutError:
            logger.warning("stopping the app took longer than %.0f s and was given up", _HOOK_LIMIT_S)
        except Exception:
            logger.exception("stopping the app failed")


@asynccontextmanager
async def hosted(app: HostedApp, *, sends_only: bool) -> AsyncIterator[Host]:
    """Run an app inside the block, on the running loop; its agents drain at the end.

    sends_only: as in `HostSettings`. Raises: UsageError when the app runs already, the errors of `Host.start`, and at
    the end of the block AppFailed, when a part of the app has ended with an error meanwhile.
    """
    if app.host is not None:
        raise UsageError(_runs_already(app, app.host))
    host = Host(app, settings=HostSettings(sends_only=sends_only, lead=not sends_only))
    await host.start()
    try:
        yield host
    finally:
        await host.finish()
    if (failed := host.failure()) is not None:
        raise failed


def _runs_already(app: HostedApp, host: Host) -> str:
    """Describe what already runs the app in this process, and what to do."""
    if host.settings.sends_only:
        return (
            f"App({app.app_id!r}) sends in this process already, inside another `async with app.sending():`: its "
            "topics send here, too, so leave the inner one out; what runs agents begins when that one has ended"
        )
    return (
        f"App({app.app_id!r}) runs already in this process, and one app runs once at a time; its topics send here "
        "as they are, without `app.sending()`"
    )


def _running(value: T | None) -> T:
    if value is None:
        raise RuntimeError("the app does not run: use `flowshare worker`, or `async with app.sending()` to send")
    return value
