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

from flowshare.agents.feed.limits import asked_of
from flowshare.agents.feed.members import member_ids
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.texts import named
from flowshare.agents.host import inflight
from flowshare.agents.host.lease import Lease
from flowshare.agents.host.outage import Outage
from flowshare.agents.host.outbox import Outbox
from flowshare.agents.host.runtime import AgentRuntime
from flowshare.agents.host.service import ServiceLoop
from flowshare.agents.host.watchdog import Watchdog
from flowshare.agents.run.pool import Environment
from flowshare.agents.scale import lag
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
    """What a host asks of Faust's own agents, streams and tables."""

    running: bool

    async def drain(self) -> None:
        """Read nothing more, wait until what was read is handled."""

    def problems(self, now_s: float) -> list[str]:
        """What keeps crashing, one sentence each."""


class HostedApp(Protocol):
    """What a host asks of the app that it runs, `agents.app.App`."""

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
    def broker_address(self) -> BrokerUrl:
        """Where the log is. Raises: UsageError when the app has no broker."""

    @property
    def producer_settings(self) -> ProducerSettings | None:
        """What the app says of its producer."""

    def declared(self, topic: str) -> Any | None:
        """What the app says of a topic; None: nothing."""

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that handlers get when the process stops."""

    def finalize(self) -> None:
        """Nothing more is declared."""

    async def start(self) -> None:
        """Start all but the share agents."""

    async def stop(self) -> None:
        """Stop it again."""

    async def wait_until_stopped(self) -> None:
        """Wait until it has stopped or crashed."""


class ServicePart(Protocol):
    """Something that lives beside the agents, on the service loop, or beside a supervisor: health pages."""

    async def start(self) -> str:
        """Begin; returns the `host:port` it answers on, or an empty text."""

    async def close(self) -> None:
        """End."""


PartFactory = Callable[["Host"], ServicePart]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """How a host runs its app.

    threads: a service thread beside the handler loop; False puts everything on the running loop (test kit).
    watchdog: watch the handler loop (needs threads), and whether the broker answers.
    inline_threads: run `def` handlers on the handler loop (test kit).
    patience_s: how long others come first when nobody leads an embedded path.
    lead: share in leading the groups, where the workers do; False leaves it to others.
    sends_only: the producer alone: no agents, timers or pages, no member of a group, and nothing that is led but an
        embedded path that nobody else leads.
    linger: seconds that the producer waits to fill a batch; None is its default (test kit: 0).
    streams: run Faust's own agents, streams and tables, if the app has some; False leaves them out (test kit).
    trackers: run a tracker of each KMQ queue, whatever its agent says (test kit).
    prepare: called on a thread of its own when the app has started (its `on_start` functions), before its agents do.
    member_id: begins the ids of the agents' members (`feed.members.member_ids`), so that others can tell whose they
        are; None draws them.
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
    prepare: Callable[[], object] | None = None
    member_id: str | None = None


class Host:
    """Runs one app in this process. All methods on the handler loop unless they say otherwise.

    backend: where the log is; None opens the app's broker URL.
    clock: rules all of flowshare's waiting. observer: told of every settled record. random: source of the jitter of
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
        """Where the health pages answer, `host:port`."""
        self.state = "new"
        """new, starting, running, draining, stopped."""
        self.was_running = False
        """Whether everything was up once."""
        self.lost: BackendError | None = None
        """Why the place of the groups is gone for good, and with it all that this process could do."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called then, on the service loop."""
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
        self._handler_thread = 0
        self._tuning = Tuning()

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; when it returns, the agents fetch.

        Raises: what refused, after everything that had started was stopped again (StorageHeld, StorageDamaged, a
        refused broker URL, a missing topic, an agent's option, an error in an `on_start` function; UsageError under
        python -O).
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
        """Fetch no more, let handlers finish, acknowledge; from any loop, and once: later calls get the first's result.

        timeout_s: seconds for all of it; None is the longest `drain_timeout` of the app's agents. Handlers get a
        little less, so that what follows fits in too. Returns whether all handlers finished by themselves; those that
        did not are cancelled and their records released.
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
        self.state = "draining"
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
        """Members leave, producer and backend close. On the service loop: also when the handler loop is blocked."""
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
        """What sends a record by itself: the producer, with telemetry where there is some. Raises: as `producer`."""
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
        """Where the log is. Raises: RuntimeError when the host does not run."""
        return _running(self._backend)

    def led(self) -> Mapping[str, Any]:
        """Counters and gauges of what this process leads; empty when it leads nothing. On the service loop."""
        return {} if self._backend is None else self._backend.stats()

    def live(self) -> tuple[str, ...]:
        """Why this process should be restarted; empty when it is well. From any thread."""
        if self.watchdog is not None and not self.watchdog.live():
            return (f"the handler loop has been blocked for {self.watchdog.stalled_s():.0f} s",)
        return ()

    def ready(self) -> tuple[str, ...]:
        """Why this process does not work right now; empty when it does. From any thread."""
        reasons = [*self.live()]
        if self.state != "running":
            reasons.append(f"the worker is {self.state}")
        if not reasons and self.watchdog is not None and not self.watchdog.ready():
            reasons.append(f"the handler loop has been blocked for {self.watchdog.stalled_s():.0f} s")
        for name, runtime in self.runtimes.items():
            reasons.extend(f"{name}: {problem}" for problem in runtime.problems())
        reasons.extend(self.app.streams.problems(self.clock.monotonic()))
        if self.lost is not None:
            reasons.append(str(self.lost))
        elif self._outage is not None and (away := self._outage.problem()) is not None:
            reasons.append(away)
        return tuple(reasons)

    def in_flight(self, *, stacks: bool = False) -> list[dict[str, Any]]:
        """What the handlers work on, oldest first; with `stacks` where each of them is. From any thread."""
        found = [record for runtime in self.runtimes.values() for record in runtime.in_flight()]
        return inflight.rows(found, handler_thread=self._handler_thread, stacks=stacks)

    def in_hand(self) -> list[dict[str, Any]]:
        """What each agent holds, and what its handlers raised last. From any thread."""
        return [runtime.in_hand() for runtime in list(self.runtimes.values())]

    async def lag(self, *, all_groups: bool = False) -> list[dict[str, Any]]:
        """Backlog, in flight, oldest age and redeliveries of each share-partition of the agents' groups.

        all_groups: of every share or cooperative group that the backend knows. On the service loop. Empty while the
        host does not run.
        """
        if self._admin is None:
            return []
        agents = [runtime.agent for runtime in self.runtimes.values()]
        groups = lag.Groups.of(agents) if not all_groups else lag.every_group(self.backend.capabilities)
        return await lag.rows(self._admin, groups, self.clock.now_ms())

    # --- on the service loop ---------------------------------------------------------------------------------------

    async def _start_service(self) -> None:
        from flowshare.backend import open_backend
        from flowshare.client.admin.admin import ShareAdmin
        from flowshare.client.producer.producer import Producer

        if self._backend is None:
            self._backend = open_backend(
                self.app.broker_address,
                clock=self.clock,
                patience_s=self.settings.patience_s,
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
        """Ask for the app's lease, now or when something wants it."""
        guard, loop = self.app.lease_guard, self.service.loop
        guard.lease, guard.clock = Lease(), self.clock
        if self.backend.kind == "memory":
            guard.lease.keep()  # no other process reaches it
            return
        guard.join(lambda: loop.call_soon_threadsafe(self._be_candidate, guard.lease))

    def _be_candidate(self, lease: Lease) -> None:
        """Something asks for the lease; what most apps do without is imported then."""
        from flowshare.agents.host.candidate import LeaseCandidate

        if self._candidate is None and self._backend is not None:
            self._candidate = LeaseCandidate(self.app.app_id, lease, connect=self._connect, clock=self.clock)
            self._candidate.start()

    def _declared(self, topic: str) -> tuple[int, dict[str, str]] | None:
        """How the app declares a topic, for a first record that finds none."""
        from flowshare.agents.feed.setup import declaration

        found = self.app.declared(topic)
        return None if found is None else declaration(found, self.app.conf.topic_partitions)

    async def _connect(self) -> Any:
        return await self.backend.connect(str(self.app.conf.id))

    def _find_telemetry(self) -> None:
        """Telemetry, if the application has set it up by now."""
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
            await self.backend.set_address(self.address)

    async def _drain(self, timeout_s: float | None) -> bool:
        if self._drained is None:
            self.state = "draining"
            limit = self.app.drain_timeout_s if timeout_s is None else timeout_s
            self._drained = asyncio.ensure_future(self._drain_agents(limit - min(1.0, limit / 5)))
        return await asyncio.shield(self._drained)

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
        """Let Faust's own agents finish; whether they did."""
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
        """Run the steps at once for a limited time; errors are logged, as all has to be tried on the way out."""
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

    sends_only: as in `HostSettings`. Raises: UsageError when the app runs already, and what `Host.start` raises.
    """
    if app.host is not None:
        raise UsageError(_runs_already(app, app.host))
    host = Host(app, settings=HostSettings(sends_only=sends_only, lead=not sends_only))
    await host.start()
    try:
        yield host
    finally:
        await host.finish()


def _runs_already(app: HostedApp, host: Host) -> str:
    """What runs the app here, in words, and what to do."""
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
