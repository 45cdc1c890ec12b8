"""Health and metrics of `flowshare pipeline`.

/live      200 while the process serves
/ready     200 when every pipeline runs (or has ended, with --once), else 503 with the reasons
/metrics   Prometheus text
/pipelines JSON: state, rate, batch time and backlog of each
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from flowshare.agents.gate import PageSettings
from flowshare.agents.site import Site
from flowshare.clock import LoopClock
from flowshare.spark.driver import TROUBLES
from flowshare.web.server import NEEDS, TEXT, Kept, health, rows_answer

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from flowshare.spark.supervisor import PipelineSupervisor

COUNTERS: Final[Mapping[str, str]] = {
    "records": "Records of micro-batches that ended.",
    "batches": "Micro-batches with records that ended.",
    **TROUBLES,
    "failures": "Times a query failed and was started again, or given up.",
}
GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "rate": ("records_per_second", "Records a second while the last batch ran."),
    "batch_s": ("batch_seconds", "How long the last batch took."),
    "backlog": ("backlog_records", "Records that the group has not finished."),
}
STATE: Final = frozenset({"state"})
WELL: Final = frozenset({"running", "ended"})


class PipelinePages:
    """Serves a supervisor's pages on its loop."""

    def __init__(self, supervisor: PipelineSupervisor, settings: PageSettings | None = None) -> None:
        self._supervisor = supervisor
        self._settings = settings or PageSettings()
        self._site: Site | None = None
        self._kept = Kept(LoopClock())
        self._registry = CollectorRegistry()
        self._registry.register(_PipelineCollector(supervisor))

    async def start(self) -> str:
        """Listen; returns `host:port`. Raises: PagesError when the port is taken."""
        self._site = Site(self._settings, needs=NEEDS)
        return await self._site.open(
            [
                web.get("/live", self._live),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/pipelines", self._pipelines),
            ]
        )

    async def close(self) -> None:
        """Stop listening."""
        if self._site is not None:
            await self._site.close()

    async def _live(self, request: web.Request) -> web.Response:
        return health(request, ())

    async def _ready(self, request: web.Request) -> web.Response:
        reasons = [f"pipeline {one.name} is {one.state}" for one in self._supervisor.figures if one.state not in WELL]
        return health(request, reasons)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._kept.get("metrics", self._text), headers={"Content-Type": TEXT})

    async def _text(self) -> bytes:
        return generate_latest(self._registry)

    async def _pipelines(self, request: web.Request) -> web.Response:
        return rows_answer(request, [asdict(one) for one in self._supervisor.figures], keep=STATE)


class _PipelineCollector(Collector):
    def __init__(self, supervisor: PipelineSupervisor) -> None:
        self._supervisor = supervisor

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        rows = [(asdict(one), (one.name, one.group)) for one in self._supervisor.figures]
        for key, text in COUNTERS.items():
            counter = CounterMetricFamily(f"flowshare_pipeline_{key}", text, labels=("pipeline", "group"))
            for row, labels in rows:
                counter.add_metric(labels, row[key])
            yield counter
        for key, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(f"flowshare_pipeline_{name}", text, labels=("pipeline", "group"))
            for row, labels in rows:
                if row[key] >= 0:
                    gauge.add_metric(labels, row[key])
            yield gauge
        running = GaugeMetricFamily(
            "flowshare_pipeline_running", "1 while its query runs.", labels=("pipeline", "group")
        )
        for row, labels in rows:
            running.add_metric(labels, float(row["state"] == "running"))
        yield running
