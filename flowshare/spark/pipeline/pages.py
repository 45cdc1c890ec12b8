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

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from flowshare.clock import LoopClock
from flowshare.spark.source.microbatches import TROUBLES
from flowshare.web.metrics import Page, families
from flowshare.web.server import STATE, Handler, Pages, rows_answer

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client.metrics_core import Metric

    from flowshare.agents.pages.gate import PageSettings
    from flowshare.spark.pipeline.supervisor import PipelineSupervisor

COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    name: (name, text)
    for name, text in {
        "records": "Records of micro-batches that ended.",
        "batches": "Micro-batches with records that ended.",
        **TROUBLES,
        "failures": "Times a query failed and was started again, or given up.",
    }.items()
}
GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "rate": ("records_per_second", "Records a second while the last batch ran."),
    "batch_s": ("batch_seconds", "How long the last batch took."),
    "backlog": ("backlog_records", "Records that the group has not finished."),
    "running": ("running", "1 while its query runs."),
}
WELL: Final = frozenset({"running", "ended"})


class PipelinePages(Pages):
    """Serves a supervisor's pages on its loop."""

    def __init__(self, supervisor: PipelineSupervisor, settings: PageSettings | None = None) -> None:
        super().__init__(settings, LoopClock())
        self._supervisor = supervisor

    def _routes(self) -> dict[str, Handler]:
        return {**super()._routes(), "/pipelines": self._pipelines}

    async def _reasons(self) -> list[str]:
        return [f"pipeline {one.name} is {one.state}" for one in self._supervisor.figures if one.state not in WELL]

    async def _text(self) -> bytes:
        return _PipelineMetrics(self._supervisor).text()

    async def _pipelines(self, request: web.Request) -> web.Response:
        return rows_answer(request, [asdict(one) for one in self._supervisor.figures], keep=STATE)


class _PipelineMetrics(Page):
    def __init__(self, supervisor: PipelineSupervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        labels = ("pipeline", "group")
        rows = [
            ((one.name, one.group), {**asdict(one), "running": one.state == "running"})
            for one in self._supervisor.figures
        ]
        yield from families(CounterMetricFamily, COUNTERS, labels, rows, prefix="flowshare_pipeline_")
        yield from families(GaugeMetricFamily, GAUGES, labels, rows, prefix="flowshare_pipeline_")
