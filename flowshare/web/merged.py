"""One page of metrics from those of several workers.

Under a worker's names stand sums; what is the whole group's stands once; by worker everything else stands once more,
with the label `worker`, as `flowshare_worker_…`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from flowshare.web.leading import leading
from flowshare.web.metrics import GROUP_WIDE

READY: Final = "flowshare_ready"
Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name of a sample and its labels."""


class MergedMetrics(Collector):
    """Of a supervisor's workers."""

    def __init__(
        self, texts: Mapping[int, str], *, states: Mapping[str, int], ready: bool, led: Mapping[str, Any]
    ) -> None:
        """texts: the workers' pages, by number. states: how many workers are in each. ready: what /ready says.

        led: stats of what the supervisor leads (`Backend.stats`).
        """
        self._states = states
        self._ready = ready
        self._sums: dict[str, dict[Series, float]] = {}
        self._about: dict[str, tuple[str, str]] = {}
        self._by_worker: dict[str, Metric] = {}
        for number, text in sorted(texts.items()):
            for family in text_string_to_metric_families(text):
                self._add(family)
                if family.name not in GROUP_WIDE:
                    self._add_of_worker(number, family)
        for family in leading(led):
            self._add(family)
        self._sums.pop(READY, None)  # that all together are ready is no sum

    def text(self) -> bytes:
        """The Prometheus text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        workers = GaugeMetricFamily("flowshare_workers", "Workers of the supervisor.", labels=("state",))
        for state, count in self._states.items():
            workers.add_metric((state,), count)
        yield workers
        yield GaugeMetricFamily(READY, "1 when /ready answers 200.", value=float(self._ready))
        for name, found in self._sums.items():
            metric = Metric(name, *self._about[name])
            for (sample, labels), value in found.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
        yield from self._by_worker.values()

    def _add(self, family: Metric) -> None:
        self._about[family.name] = family.documentation, family.type
        found = self._sums.setdefault(family.name, {})
        for sample in family.samples:
            series = sample.name, tuple(sorted(sample.labels.items()))
            if family.name in GROUP_WIDE:
                found.setdefault(series, sample.value)
            else:
                found[series] = found.get(series, 0.0) + sample.value

    def _add_of_worker(self, number: int, family: Metric) -> None:
        name = _of_worker(family.name)
        metric = self._by_worker.setdefault(name, Metric(name, family.documentation, family.type))
        for sample in family.samples:
            metric.add_sample(_of_worker(sample.name), {**sample.labels, "worker": str(number)}, sample.value)


def _of_worker(name: str) -> str:
    return name.replace("flowshare_", "flowshare_worker_", 1)
