"""Prometheus metrics of one worker, read from the agents' counters when they are asked for: nothing a record.

Names follow Kafka's share-group metrics where there is one (RecordAcknowledgementsPerSec, AcquisitionLockTimeoutPerSec,
InFlightMessageCount, DeadLetterQueueRecordCount; share-groups reference §7.1). A registry of its own, so that an
application's metrics and flowshare's never collide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from flowshare.web.leading import leading

if TYPE_CHECKING:
    from flowshare.agents.host import Host
    from flowshare.agents.load import LoadWatch

_ACKNOWLEDGEMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "accept": ("accepted",),
    "release": ("released", "retried", "cancelled", "unrun"),
    "reject": ("rejected", "dead_lettered"),
    "renew": ("renewed",),
    "gap": ("gaps",),
}
"""Acknowledge type (KIP-932) -> the agent's counters that make it up."""

_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "received": ("records_received", "Deliveries taken from the group."),
    "redelivered": ("records_redelivered", "Deliveries after the first of their record."),
    "lock_lost": ("acquisition_lock_timeouts", "Outcomes discarded because the acquisition lock had lapsed."),
    "ack_unknown": ("acknowledgements_unknown", "Acknowledgements whose result is unknown; the records may run again."),
    "dead_lettered": ("dead_letter_queue_records", "Records written to the dead-letter topic."),
    "dead_letter_failed": ("dead_letter_queue_failed_produces", "Dead letters that could not be produced."),
    "handler_errors": ("handler_errors", "Exceptions out of handlers."),
    "timed_out": ("handler_timeouts", "Handlers past their timeout."),
    "undecodable": ("records_undecodable", "Values that did not fit the handler's annotation."),
    "sent": ("producer_records_sent", "Records produced by sinks and Send, confirmed."),
    "send_failed": ("producer_records_failed", "Records of sinks and Send that could not be produced."),
    "fetches": ("share_fetch_requests", "ShareFetch requests."),
    "acknowledgements": ("share_acknowledgement_requests", "Requests that carried acknowledgements."),
}
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "running": ("handlers_running", "Handlers at work."),
    "buffered": ("records_buffered", "Acquired records that no handler has begun."),
    "overdue": ("handlers_overdue", "`def` handlers past their timeout, which cannot be stopped."),
    "paused": ("agent_paused", "1 while the agent is paused."),
}
_LAG: Final[Mapping[str, tuple[str, str]]] = {
    "backlog": ("backlog_records", "Records of the share-partition that are not finished (its lag)."),
    "in_flight": ("in_flight_messages", "Acquired records."),
    "delayed": ("delayed_records", "Released records whose delay has not passed."),
    "oldest_age_s": ("oldest_record_age_seconds", "Age of the oldest unfinished record."),
}


_RATES: Final[Mapping[str, tuple[str, str]]] = {
    "arrival_rate": ("arriving_records_per_second", "New records of the topic."),
    "redelivery_rate": ("redeliveries_per_second", "Deliveries after the first of their record, of the whole group."),
    "needed_workers": ("needed_workers", "Workers that the topic keeps busy at the present rate, not rounded."),
}


GROUP_WIDE: Final = frozenset(
    f"flowshare_{name}"
    for name in (
        *(name for name, _ in (*_LAG.values(), *_RATES.values())),
        "redeliveries",
        "retention_left_seconds",
        "group_members",
    )
)
"""Metrics of groups: every worker tells the same, so they are not to be added up."""


class Metrics:
    """Metrics of one host. load: what it found in the groups; a scrape asks nobody."""

    def __init__(self, host: Host, load: LoadWatch) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_HostCollector(host, load))

    def text(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)


class _HostCollector(Collector):
    def __init__(self, host: Host, load: LoadWatch) -> None:
        self._host = host
        self._load = load

    def describe(self) -> Iterable[Metric]:
        return ()  # names are fixed; collecting at registration would only cost time

    def collect(self) -> Iterable[Metric]:
        yield from self._agents()
        yield from self._share_partitions()
        yield from self._groups()
        yield from self._process()
        yield from leading(self._host.led())

    def _agents(self) -> Iterable[Metric]:
        stats = {(name, runtime.agent.group): runtime.stats() for name, runtime in list(self._host.runtimes.items())}
        yield _acknowledgements(stats)
        for key, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"flowshare_{name}", text, labels=("agent", "group"))
            for labels, values in stats.items():
                counter.add_metric(labels, values[key])
            yield counter
        for key, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"flowshare_{name}", text, labels=("agent", "group"))
            for labels, values in stats.items():
                gauge.add_metric(labels, values[key])
            yield gauge
        yield self._handler_times()

    def _handler_times(self) -> Metric:
        family = HistogramMetricFamily(
            "flowshare_handler_seconds", "Time a handler took for a record (or a batch).", labels=("agent", "group")
        )
        for name, runtime in list(self._host.runtimes.items()):
            times = runtime.handler_times
            family.add_metric((name, runtime.agent.group), times.cumulative(), times.sum_s)
        return family

    def _share_partitions(self) -> Iterable[Metric]:
        labels = ("group", "topic", "partition")
        rows = self._load.rows
        for key, (name, text) in _LAG.items():
            gauge = GaugeMetricFamily(f"flowshare_{name}", text, labels=labels)
            for row in rows:
                if (value := row[key]) is not None and value >= 0:
                    gauge.add_metric(_where(row), value)
            yield gauge
        redeliveries = CounterMetricFamily(
            "flowshare_redeliveries", "Deliveries after the first since the share-partition was loaded.", labels=labels
        )
        for row in rows:
            if row["redeliveries"] is not None:
                redeliveries.add_metric(_where(row), row["redeliveries"])
        yield redeliveries
        retention = GaugeMetricFamily(
            "flowshare_retention_left_seconds",
            "Time until retention deletes the first unfinished record; none where it never will or nobody knows.",
            labels=labels,
        )
        for row in rows:
            if row["retention_left_s"] is not None:
                retention.add_metric(_where(row), row["retention_left_s"])
        yield retention

    def _groups(self) -> Iterable[Metric]:
        rows = self._load.topics()
        for key, (name, text) in _RATES.items():
            gauge = GaugeMetricFamily(f"flowshare_{name}", text, labels=("agent", "group", "topic"))
            for row in rows:
                if row[key] is not None:
                    gauge.add_metric((row["agent"], row["group"], row["topic"]), row[key])
            yield gauge
        members = GaugeMetricFamily("flowshare_group_members", "Members of the share group.", labels=("group",))
        for group, count in self._load.members.items():
            if count is not None:
                members.add_metric((group,), count)
        yield members

    def _process(self) -> Iterable[Metric]:
        host = self._host
        yield GaugeMetricFamily("flowshare_ready", "1 when /ready answers 200.", value=float(not host.ready()))
        if host.watchdog is not None:
            yield CounterMetricFamily(
                "flowshare_handler_loop_stalls", "Times the handler loop stood still.", value=host.watchdog.stalls
            )
            yield GaugeMetricFamily(
                "flowshare_handler_loop_stalled_seconds",
                "How long the handler loop has been blocked.",
                value=host.watchdog.stalled_s(),
            )
        if (producer := host.maybe_producer) is not None:
            yield GaugeMetricFamily(
                "flowshare_producer_buffered_bytes",
                "Bytes of records that wait for their confirmation.",
                value=producer.buffered_bytes,
            )


def _acknowledgements(stats: Mapping[tuple[str, str], Mapping[str, float]]) -> Metric:
    family = CounterMetricFamily(
        "flowshare_record_acknowledgements", "Acknowledged records by type.", labels=("agent", "group", "type")
    )
    for (agent, group), values in stats.items():
        for kind, names in _ACKNOWLEDGEMENTS.items():
            family.add_metric((agent, group, kind), sum(values[name] for name in names))
    return family


def _where(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["group"], row["topic"], str(row["partition"])
