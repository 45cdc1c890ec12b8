"""Health, metrics and lists of a fleet, at its driver: the pages of a worker (`flowshare.web`), of all of them.

Counters and gauges have a worker's names and are sums. By worker, with the label `worker` (its slot), they are there
once more under `flowshare_worker_…`, so that nobody adds both up. `/workers` lists the slots.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from flowshare.agents import lag
from flowshare.agents.gate import PageSettings
from flowshare.web.server import Handler, WebServer, json_answer, kept_answer, rows_answer, verdict_of

if TYPE_CHECKING:
    from aiohttp import web

    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.app import App
    from flowshare.agents.host import Host
    from flowshare.agents.rates import HandlerLook
    from flowshare.backend.base import Backend
    from flowshare.client.admin import ShareAdmin
    from flowshare.clock import Clock
    from flowshare.spark.figures import Figures, Times
    from flowshare.spark.fleet import FleetOnSpark

logger = logging.getLogger("flowshare.spark")

STATE: Final = frozenset({"state"})
"""Texts of `/workers` that are no names."""
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


class AgentOfFleet:
    """One agent of all workers, as far as the pages ask an `AgentRuntime`."""

    def __init__(self, agent: ShareAgent, figures: Figures, clock: Clock) -> None:
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

    def handler_look(self) -> HandlerLook:
        """What handlers have done, for `LoadWatch`."""
        return self._figures.look(self.agent.name, self._clock.monotonic())


class FleetView:
    """A fleet as the pages see a `Host`."""

    watchdog = None
    maybe_producer = None

    def __init__(self, app: App, fleet: FleetOnSpark, backend: Backend, admin: ShareAdmin, clock: Clock) -> None:
        self.fleet = fleet
        self.backend = backend
        self.admin = admin
        self.clock = clock
        self.runtimes = {name: AgentOfFleet(one, fleet.figures, clock) for name, one in app.share_agents.items()}

    def led(self) -> Mapping[str, Any]:
        """What the driver leads."""
        return self.backend.stats()

    def live(self) -> tuple[str, ...]:
        """Nothing that a restart would cure is known of."""
        return ()

    def ready(self) -> tuple[str, ...]:
        """Why the fleet does not work."""
        return self.fleet.problems()

    async def lag(self, *, all_groups: bool = False) -> list[dict[str, Any]]:
        """As `Host.lag`."""
        if all_groups:
            groups = [group.group_id for group in await self.admin.list_groups()]
        else:
            groups = list(dict.fromkeys(one.agent.group for one in self.runtimes.values()))
        return await lag.rows(self.admin, groups, self.clock.now_ms())

    async def drain(self, _timeout_s: float | None = None) -> bool:
        """Have all workers drain, within the time that the fleet was given; the driver goes on without any."""
        return await self.fleet.drain()


class FleetPages(WebServer):
    """Serves the pages of one fleet."""

    def __init__(self, view: FleetView, settings: PageSettings | None = None) -> None:
        super().__init__(cast("Host", view), settings)
        self._view = view
        self._workers = CollectorRegistry()
        self._workers.register(_Workers(view.fleet, view.runtimes))

    async def report(self, target_age_s: float) -> dict[str, Any]:
        """What `/scale` says, for an `Autoscaler`."""
        return self._watched.report(target_age_s)

    def _routes(self) -> dict[str, Handler]:
        return {**super()._routes(), "/workers": self._rows}

    async def _rows(self, request: web.Request) -> web.Response:
        return rows_answer(request, self._view.fleet.rows(), keep=STATE)

    async def _in_flight(self, request: web.Request) -> web.Response:
        if "stacks" in request.query and verdict_of(request).operator:
            return json_answer(await self._view.fleet.in_flight(stacks=True))
        return await kept_answer(request, self._kept, "inflight", self._records)

    async def _records(self) -> list[dict[str, Any]]:
        return await self._view.fleet.in_flight(stacks=False)

    async def _text(self) -> bytes:
        return await super()._text() + generate_latest(self._workers)


class _Workers(Collector):
    """Metrics by worker."""

    def __init__(self, fleet: FleetOnSpark, agents: Mapping[str, AgentOfFleet]) -> None:
        self._fleet = fleet
        self._agents = agents

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        rows = self._fleet.rows()
        states = GaugeMetricFamily("flowshare_workers", "Workers of the fleet.", labels=("state",))
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
        figures = self._fleet.figures
        found = [
            ((str(slot), name, one.agent.group), figures.of(slot, name), figures.times(name, slot))
            for slot in figures.slots
            for name, one in self._agents.items()
        ]
        for key, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"flowshare_worker_{name}", text, labels=labels)
            for values, sums, _ in found:
                counter.add_metric(values, sums[key])
            yield counter
        for key, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"flowshare_worker_{name}", text, labels=labels)
            for values, sums, _ in found:
                gauge.add_metric(values, sums[key])
            yield gauge
        times = HistogramMetricFamily("flowshare_worker_handler_seconds", "Time a handler took.", labels=labels)
        for values, _, one in found:
            times.add_metric(values, one.cumulative(), one.sum_s)
        yield times
