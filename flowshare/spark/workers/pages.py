"""Health, metrics and lists of all workers on Spark, at the driver: a worker's pages (`flowshare.web`) for all of them.

Counters and gauges have a worker's names and are sums. With the label `worker` (its number) they have other names,
`flowshare_worker_…`, so that a query does not add up both. `/workers` lists the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from flowshare.agents.pages.gate import PageSettings
from flowshare.web.metrics import Page, families
from flowshare.web.server import STATE, Handler, WebServer, rows_answer

if TYPE_CHECKING:
    from aiohttp import web

    from flowshare.agents.app.app import App
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.host.host import Host
    from flowshare.agents.run.stats import HandlerLook
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
    """One agent of all workers, with the parts of `AgentRuntime` that the pages use."""

    def __init__(self, agent: ShareAgent, figures: WorkerFigures, clock: Clock) -> None:
        self.agent = agent
        self._figures = figures
        self._clock = clock

    def stats(self) -> dict[str, float]:
        """Return counters and gauges, summed."""
        return self._figures.stats(self.agent.name)

    @property
    def handler_times(self) -> Times:
        """The durations of handler calls."""
        return self._figures.times(self.agent.name)

    @property
    def exceptions(self) -> dict[str, int]:
        """Empty: executors do not report types of exceptions."""
        return {}

    @property
    def breaker(self) -> None:
        """None: executors do not report the breaker's state."""
        return

    def handler_look(self) -> HandlerLook:
        """Return the work of the handlers so far, for `LoadWatch`."""
        return self._figures.look(self.agent.name, self._clock.monotonic())


class WorkersView:
    """All workers with the parts of `Host` that the pages use."""

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
        """Return figures of the share-partitions that the driver leads."""
        return self.backend.stats()

    def live(self) -> tuple[str, ...]:
        """Return no problem: none is known that a restart would cure."""
        return ()

    def ready(self) -> tuple[str, ...]:
        """Return the reasons why no worker works."""
        return self.supervisor.problems()

    def in_hand(self) -> list[dict[str, Any]]:
        """Return no rows: executors do not report them."""
        return []

    async def drain(self, _timeout_s: float | None = None) -> bool:
        """Have all workers drain, within the supervisor's time; the driver goes on without workers."""
        return await self.supervisor.drain()


class WorkersPages(WebServer):
    """Serves the pages of all workers."""

    def __init__(self, view: WorkersView, settings: PageSettings | None = None) -> None:
        super().__init__(cast("Host", view), settings)
        self._view = view
        self._workers = _WorkersMetrics(view.supervisor, view.runtimes)

    async def report(self, target_age_s: float) -> dict[str, Any]:
        """Return the content of `/scale`, for an `Autoscaler`."""
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
