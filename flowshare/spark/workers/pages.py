"""Health, metrics and lists of all workers on Spark, at the driver: the pages that a worker has (`flowshare.web`).

Counters and gauges have a worker's names and are sums. By worker, with the label `worker` (its number), they are there
once more under `flowshare_worker_…`, so that nobody adds both up. `/workers` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from flowshare.agents.pages.gate import PageSettings
from flowshare.agents.scale import lag
from flowshare.web.metrics import Page, families
from flowshare.web.server import STATE, Handler, WebServer, rows_answer

if TYPE_CHECKING:
    from aiohttp import web

    from flowshare.agents.app.app import App
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.host.host import Host
    from flowshare.agents.scale.rates import HandlerLook
    from flowshare.backend.base import Backend
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import Clock
    from flowshare.spark.workers.metrics import Times, WorkerFigures
    from flowshare.spark.workers.supervisor import SparkSupervisor


STATES: Final = ("waiting", "starting", "ready", "silent", "draining", "pausing")
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "received": ("records_received", "Deliveries taken from the group."),
    "accepted": ("records_accepted", "Deliveries whose accept is confirmed."),
    "handler_errors": ("handler_errors", "Exceptions out of handlers."),
    "redelivered": ("records_redelivered", "Deliveries after the first of their record."),
}
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "running": ("handlers_running", "Handlers at work."),
    "buffered": ("records_buffered", "Acquired records that no handler has begun."),
}


class AgentOfWorkers:
    """One agent of all workers, as far as the pages ask an `AgentRuntime`."""

    def __init__(self, agent: ShareAgent, figures: WorkerFigures, clock: Clock) -> None:
        self.agent = agent
        self._figures = figures
        self._clock = clock

    def stats(self) -> dict[str, float]:
        """Counters and gauges, summed."""
        return self._figures.stats(self.agent.name)

    @property
    def handler_times(self) -> Times:
        """How long handler calls took."""
        return self._figures.times(self.agent.name)

    @property
    def exceptions(self) -> dict[str, int]:
        """Executors do not tell their types."""
        return {}

    @property
    def breaker(self) -> None:
        """Executors do not tell what they hear of it."""
        return

    def handler_look(self) -> HandlerLook:
        """What handlers have done, for `LoadWatch`."""
        return self._figures.look(self.agent.name, self._clock.monotonic())


class WorkersView:
    """The workers as the pages see a `Host`."""

    watchdog = None
    maybe_producer = None

    def __init__(
        self, app: App, supervisor: SparkSupervisor, backend: Backend, admin: ShareAdmin, clock: Clock
    ) -> None:
        self.supervisor = supervisor
        self.backend = backend
        self.admin = admin
        self.clock = clock
        self.runtimes = {name: AgentOfWorkers(one, supervisor.figures, clock) for name, one in app.share_agents.items()}

    def led(self) -> Mapping[str, Any]:
        """What the driver leads."""
        return self.backend.stats()

    def live(self) -> tuple[str, ...]:
        """Nothing that a restart would cure is known of."""
        return ()

    def ready(self) -> tuple[str, ...]:
        """Why nothing works."""
        return self.supervisor.problems()

    async def lag(self, *, all_groups: bool = False) -> list[dict[str, Any]]:
        """As `Host.lag`."""
        agents = [one.agent for one in self.runtimes.values()]
        groups = lag.every_group(self.backend.capabilities) if all_groups else lag.Groups.of(agents)
        return await lag.rows(self.admin, groups, self.clock.now_ms())

    def in_hand(self) -> list[dict[str, Any]]:
        """Executors do not tell."""
        return []

    async def drain(self, _timeout_s: float | None = None) -> bool:
        """Have all workers drain, within the time that the supervisor was given; the driver goes on without any."""
        return await self.supervisor.drain()


class WorkersPages(WebServer):
    """Serves their pages."""

    def __init__(self, view: WorkersView, settings: PageSettings | None = None) -> None:
        super().__init__(cast("Host", view), settings)
        self._view = view
        self._workers = _WorkersMetrics(view.supervisor, view.runtimes)

    async def report(self, target_age_s: float) -> dict[str, Any]:
        """What `/scale` says, for an `Autoscaler`."""
        return self._watched.report(target_age_s)

    def _routes(self) -> dict[str, Handler]:
        return {**super()._routes(), "/workers": self._rows}

    async def _rows(self, request: web.Request) -> web.Response:
        return rows_answer(request, self._view.supervisor.rows(), keep=STATE)

    async def _records(self, *, stacks: bool = False) -> list[dict[str, Any]]:
        return await self._view.supervisor.in_flight(stacks=stacks)

    async def _text(self) -> bytes:
        return await super()._text() + self._workers.text()


class _WorkersMetrics(Page):
    """Metrics by worker."""

    def __init__(self, supervisor: SparkSupervisor, agents: Mapping[str, AgentOfWorkers]) -> None:
        self._supervisor = supervisor
        self._agents = agents

    def collect(self) -> Iterable[Metric]:
        rows = self._supervisor.rows()
        states = GaugeMetricFamily("flowshare_workers", "Workers on Spark.", labels=("state",))
        for state in STATES:
            states.add_metric((state,), sum(row["state"] == state for row in rows))
        yield states
        runs = CounterMetricFamily("flowshare_worker_runs", "Times that a worker was started.", labels=("worker",))
        for row in rows:
            runs.add_metric((str(row["worker"]),), row["runs"])
        yield runs
        yield from self._by_worker()

    def _by_worker(self) -> Iterable[Metric]:
        labels = ("worker", "agent", "group")
        figures = self._supervisor.figures
        found = [
            ((str(number), name, one.agent.group), figures.of(number, name), figures.times(name, number))
            for number in figures.numbers
            for name, one in self._agents.items()
        ]
        sums = [(values, figures) for values, figures, _ in found]
        yield from families(CounterMetricFamily, _COUNTERS, labels, sums, prefix="flowshare_worker_")
        yield from families(GaugeMetricFamily, _GAUGES, labels, sums, prefix="flowshare_worker_")
        times = HistogramMetricFamily("flowshare_worker_handler_seconds", "Time a handler took.", labels=labels)
        for values, _, one in found:
            times.add_metric(values, one.cumulative(), one.sum_s)
        yield times
