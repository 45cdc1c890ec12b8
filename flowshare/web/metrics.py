"""Prometheus metrics of one worker, read from the agents' counters on request: no cost per record.

Names follow Kafka's share-group metrics where there is one (RecordAcknowledgementsPerSec, AcquisitionLockTimeoutPerSec,
InFlightMessageCount, DeadLetterQueueRecordCount; SG-17.7). A registry of its own, so that an application's metrics and
flowshare's never collide.

`leading` gives the metrics of share-partitions that this process leads, and in a fleet of their slots.

`MergedMetrics` makes one page of several workers' metrics. A worker's names have the sums; metrics of a whole group
stand once; all others stand once more by worker, with the label `worker`, as `flowshare_worker_…`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from flowshare.share.breaker import BreakerState

if TYPE_CHECKING:
    from flowshare.agents.host.host import Host
    from flowshare.ops.load import LoadWatch

_ACKNOWLEDGEMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "accept": ("accepted",),
    "release": ("released", "retried", "cancelled", "unrun"),
    "reject": ("rejected", "dead_lettered"),
    "renew": ("renewed",),
    "gap": ("gaps",),
}
"""Acknowledge type (KIP-932) -> the agent's counters that sum up to it."""

_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "received": ("records_received", "Deliveries taken from the group."),
    "redelivered": ("records_redelivered", "Deliveries after the first of their record."),
    "lock_lost": ("acquisition_lock_timeouts", "Outcomes discarded because the acquisition lock had lapsed."),
    "ack_unknown": ("acknowledgements_unknown", "Acknowledgements whose result is unknown; the records may run again."),
    "lost": ("records_lost", "Records that were accepted before they ran (at_most_once), and failed or were ended."),
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
    "blocked": ("blocked_records", "Records that wait for another one of their key."),
    "most_blocked": ("most_blocked_records", "Of these, those that wait for the same one: the most there are."),
    "parked": ("parked_keys", "Keys whose records become dead letters unrun, until they are replayed or let go on."),
    "oldest_age_s": ("oldest_record_age_seconds", "Age of the oldest unfinished record."),
    "retention_left_s": (
        "retention_left_seconds",
        "Time until retention deletes the first unfinished record; none where it never will or nobody knows.",
    ),
}
_SHARING: Final[Mapping[str, tuple[str, str]]] = {
    "committed_ranges": ("committed_ranges", "Committed ranges behind the stable offset (cooperative groups)."),
    "span": ("committed_span", "Offsets from the stable one to the furthest committed one."),
    "held_keys": ("held_keys_ratio", "Part of the partition's keys that members hold, 0 to 1."),
    "blocked_handovers": ("blocked_handovers", "Ranges of keys that members wait for until others give them back."),
    "handover_wait_s": ("handover_wait_seconds", "For how long the longest of these waits goes on."),
}
_OVERLAPS: Final[Mapping[str, tuple[str, str]]] = {
    "overlaps": ("key_overlaps", "Keys taken from a member that did not give them back in time (overlap_after)."),
    "lapsed_claims": ("lapsed_claims", "Claims on keys whose lease ended: their member died or stood still."),
}
_REDELIVERIES: Final[Mapping[str, tuple[str, str]]] = {
    "redeliveries": ("redeliveries", "Deliveries after the first since the share-partition was loaded."),
}
_RATES: Final[Mapping[str, tuple[str, str]]] = {
    "arrival_rate": ("arriving_records_per_second", "New records of the topic."),
    "redelivery_rate": ("redeliveries_per_second", "Deliveries after the first of their record, of the whole group."),
    "needed_workers": ("needed_workers", "Workers that the topic keeps busy at the present rate, not rounded."),
}
_MEMBERS: Final[Mapping[str, tuple[str, str]]] = {"members": ("group_members", "Members of the group.")}
BREAKER_STATE: Final = "flowshare_breaker_state"
BREAKER_OPENED: Final = "flowshare_breaker_opened"
GROUP_WIDE: Final = {BREAKER_STATE, BREAKER_OPENED}.union(
    f"flowshare_{name}"
    for table in (_LAG, _SHARING, _REDELIVERIES, _OVERLAPS, _RATES, _MEMBERS)
    for name, _ in table.values()
)
"""Metrics of groups: every worker has the same values, so they must not be added up."""


class Page(Collector):
    """Metrics as text, collected on request."""

    def describe(self) -> Iterable[Metric]:
        return ()  # names are fixed; collecting at registration would only cost time

    def text(self) -> bytes:
        """Return the Prometheus text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


class Metrics(Page):
    """Metrics of one host. load: its findings about the groups; a scrape asks no broker."""

    def __init__(self, host: Host, load: LoadWatch) -> None:
        self._host = host
        self._load = load

    def collect(self) -> Iterable[Metric]:
        yield from self._agents()
        yield from self._share_partitions()
        yield from self._groups()
        yield from self._process()
        yield from leading(self._host.led())

    def _agents(self) -> Iterable[Metric]:
        stats = [((name, runtime.agent.group), runtime.stats()) for name, runtime in list(self._host.runtimes.items())]
        yield _acknowledgements(stats)
        yield from families(CounterMetricFamily, _COUNTERS, ("agent", "group"), stats)
        yield from families(GaugeMetricFamily, _GAUGES, ("agent", "group"), stats)
        yield self._handler_times()
        yield self._exceptions()
        yield from self._breakers()

    def _handler_times(self) -> Metric:
        family = HistogramMetricFamily(
            "flowshare_handler_seconds", "Time a handler took for a record (or a batch).", labels=("agent", "group")
        )
        for name, runtime in list(self._host.runtimes.items()):
            times = runtime.handler_times
            family.add_metric((name, runtime.agent.group), times.cumulative(), times.sum_s)
        return family

    def _exceptions(self) -> Metric:
        family = CounterMetricFamily(
            "flowshare_handler_exceptions",
            "Exceptions out of handlers, by type.",
            labels=("agent", "group", "exception"),
        )
        for name, runtime in list(self._host.runtimes.items()):
            for kind, count in runtime.exceptions.items():
                family.add_metric((name, runtime.agent.group, kind), count)
        return family

    def _breakers(self) -> Iterable[Metric]:
        """Yield the metrics of the groups' breakers, as agents with a breaker hear of them."""
        state = GaugeMetricFamily(BREAKER_STATE, "1 for the state of the group's breaker.", labels=("group", "state"))
        opened = CounterMetricFamily(BREAKER_OPENED, "Times that the group's breaker opened.", labels=("group",))
        for group, heard in {
            runtime.agent.group: heard
            for runtime in list(self._host.runtimes.values())
            if (heard := runtime.breaker) is not None
        }.items():
            for one in BreakerState:
                state.add_metric((group, str(one)), float(one is heard.state))
            opened.add_metric((group,), heard.opened)
        yield state
        yield opened

    def _share_partitions(self) -> Iterable[Metric]:
        labels = ("group", "topic", "partition")
        rows = [((one.group, one.topic, str(one.partition)), one._asdict()) for one in self._load.seen.partitions]
        yield from families(GaugeMetricFamily, _LAG, labels, rows)
        yield from families(CounterMetricFamily, _REDELIVERIES, labels, rows)
        sharing = [one for one in rows if one[1]["held_keys"] is not None]
        if sharing:
            yield from families(GaugeMetricFamily, _SHARING, labels, sharing)
            yield from families(CounterMetricFamily, _OVERLAPS, labels, sharing)

    def _groups(self) -> Iterable[Metric]:
        topics = [((row["agent"], row["group"], row["topic"]), row) for row in self._load.topics()]
        yield from families(GaugeMetricFamily, _RATES, ("agent", "group", "topic"), topics)
        members = [((one.name,), {"members": one.members}) for one in self._load.seen.groups.values()]
        yield from families(GaugeMetricFamily, _MEMBERS, ("group",), members)

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


def families(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    table: Mapping[str, tuple[str, str]],
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Mapping[str, Any]]],
    *,
    prefix: str = "flowshare_",
) -> Iterable[Metric]:
    """Yield a family for each entry of the table (key of a figure: name, text), with each row's figure.

    rows: their labels' values and their figures; None or below 0: not known. prefix: of the names.
    """
    for key, (name, text) in table.items():
        family = kind(f"{prefix}{name}", text, labels=labels)
        for values, figures in rows:
            if (figure := figures[key]) is not None and figure >= 0:
                family.add_metric(values, figure)
        yield family


def _acknowledgements(stats: Iterable[tuple[tuple[str, str], Mapping[str, float]]]) -> Metric:
    family = CounterMetricFamily(
        "flowshare_record_acknowledgements", "Acknowledged records by type.", labels=("agent", "group", "type")
    )
    for (agent, group), values in stats:
        for kind, names in _ACKNOWLEDGEMENTS.items():
            family.add_metric((agent, group, kind), sum(values[name] for name in names))
    return family


GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "share_partitions": ("led_share_partitions", "Share-partitions that are loaded here."),
    "sessions": ("share_sessions", "Share sessions with this process."),
    "parked": ("share_fetches_parked", "Fetches that wait for records, or look for some."),
    "slots": ("fleet_slots_led", "Slots of the fleet's state that this worker leads."),
    "output_transactions_undecided": ("output_transactions_undecided", "Transactions whose end was not answered yet."),
    "output_partitions_resting": ("output_partitions_resting", "Partitions that take no outputs in at the moment."),
    "in_flight": ("led_in_flight_messages", "Acquired records of what is led here."),
    "connections": ("served_connections", "Connections of clients and of this process's own members."),
}
COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "fetches": ("led_share_fetch_requests", "ShareFetch requests to this process."),
    "failed_fetches": ("led_share_fetch_requests_failed", "Those that were refused as a whole."),
    "acknowledges": ("led_share_acknowledgement_requests", "ShareAcknowledge requests to this process."),
    "failed_acknowledges": ("led_share_acknowledgement_requests_failed", "Those that were refused as a whole."),
    "acks_refused": ("led_acknowledgements_refused", "Parts of requests whose acknowledgements were refused."),
    "sessions_opened": ("share_sessions_opened", "Share sessions that were opened."),
    "sessions_evicted": ("share_sessions_evicted", "Those that ended with their connection, or their member's time."),
    "sessions_refused": ("share_sessions_refused", "Those that found no room (group.share.max.share.sessions)."),
    "lock_timeouts": ("led_acquisition_lock_timeouts", "Acquisition locks of records led here that lapsed."),
    "records_acquired": ("led_records_acquired", "Records handed out."),
    "redeliveries": ("led_redeliveries", "Records handed out that had been before."),
    "state_writes": ("state_writes", "Writes of share-partition state."),
    "failed_state_writes": ("state_writes_failed", "Writes of share-partition state that were refused or fenced."),
    "loads": ("share_partition_loads", "Share-partitions read from the store."),
    "failed_loads": ("share_partition_loads_failed", "Share-partitions that could not be loaded."),
    "dead_letters": ("led_dead_letters", "Records that the leader copied to a dead-letter topic."),
    "failed_dead_letters": ("led_dead_letters_failed", "Records that it could not copy."),
    "offsets_expired": ("expired_offsets", "Committed offsets of consumer groups that expired."),
    "log_cuts": ("log_truncations", "Times a log had lost records that were handed out before."),
    "records_lost": ("log_records_lost", "Offsets that were lost so."),
    "settles": ("led_settles", "Settles with outputs that were asked for."),
    "failed_settles": ("led_settles_failed", "Those that were refused or could not be written."),
    "output_transactions": ("output_transactions", "Transactions with outputs that were committed."),
    "output_transactions_aborted": ("output_transactions_aborted", "Transactions with outputs that were aborted."),
    "slots_claimed": ("fleet_slots_claimed", "Claims of slots."),
    "slots_lost": ("fleet_slots_lost", "Slots that another worker claimed, or whose log could not be relied on."),
}


def leading(stats: Mapping[str, Any]) -> Iterable[Metric]:
    """Yield metrics of a backend's stats (`Backend.stats`); none if nothing is led here."""
    for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        yield from families(kind, {key: about for key, about in table.items() if key in stats}, (), [((), stats)])
    if "acks" in stats:
        yield _led_acknowledgements(stats["acks"])
        yield from _led_groups(stats)
        yield from _histograms(HISTOGRAMS, stats)
    if "rate_limited_s" in stats:
        yield _led_rates(stats["rate_limited_s"])
    cooperative = stats.get("cooperative")
    if cooperative is not None:
        yield from families(CounterMetricFamily, COOPERATIVE, (), [((), cooperative)])
        yield from _histograms(COOPERATIVE_HISTOGRAMS, cooperative)


def _led_acknowledgements(acks: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "flowshare_led_record_acknowledgements", "Records acknowledged here, by type.", labels=("type",)
    )
    for kind, count in acks.items():
        family.add_metric((kind,), count)
    return family


def _led_rates(waited_s: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(
        "flowshare_led_rate_limited_seconds",
        "Time in which fetches here waited for records that are there, as the group's share.max.rate left none.",
        labels=("group",),
    )
    for group, seconds in waited_s.items():
        family.add_metric((group,), seconds)
    return family


def _led_groups(stats: Mapping[str, Any]) -> Iterable[Metric]:
    """Yield groups that are coordinated here, by state, and the number of their new assignments."""
    groups = GaugeMetricFamily("flowshare_groups", "Groups that are coordinated here.", labels=("type", "state"))
    for state, count in stats["groups"].items():
        groups.add_metric(("share", state), count)
    for (kind, state), count in stats.get("consumer_groups", {}).items():
        groups.add_metric((kind, state), count)
    yield groups
    rebalances = CounterMetricFamily(
        "flowshare_group_rebalances", "Assignments of groups that were made anew here.", labels=("type",)
    )
    rebalances.add_metric(("share",), stats["rebalances"])
    if "consumer_rebalances" in stats:
        rebalances.add_metric(("consumer",), stats["consumer_rebalances"])
    yield rebalances


def _histograms(table: Mapping[str, tuple[str, str]], stats: Mapping[str, Any]) -> Iterable[Metric]:
    """Yield a histogram for each entry of the table (key: name, text)."""
    for key, (name, text) in table.items():
        family = HistogramMetricFamily(f"flowshare_{name}", text)
        cumulative, sum_s = stats[key]
        buckets = [("+Inf" if bound == float("inf") else str(bound), float(count)) for bound, count in cumulative]
        family.add_metric((), buckets, sum_s)
        yield family


HISTOGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "write_s": ("state_write_seconds", "Time a write of share-partition state took."),
    "load_s": ("share_partition_load_seconds", "Time a share-partition took to be read from the store."),
}
COOPERATIVE_HISTOGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "write_s": ("cooperative_state_write_seconds", "Time a write of the state of a cooperative group took."),
    "load_s": ("cooperative_partition_load_seconds", "Time a partition of a cooperative group took to be read."),
}


COOPERATIVE: Final[Mapping[str, tuple[str, str]]] = {
    "holds": ("cooperative_holds", "Requests of members of cooperative groups to hold keys, renewals included."),
    "commits": ("cooperative_commits", "Requests to commit records."),
    "settles": ("cooperative_settles", "Commits in one step with outputs."),
    "failed_settles": ("cooperative_settles_failed", "Those that were refused."),
    "parked": ("cooperative_settles_parked", "How often one waited for the offsets before its own."),
    "writes": ("cooperative_state_writes", "Writes of the state of cooperative groups."),
    "failed_writes": ("cooperative_state_writes_failed", "Those that were refused or fenced."),
    "loads": ("cooperative_partition_loads", "Partitions of cooperative groups read from the store."),
    "blocked": ("cooperative_blocked_keys", "Ranges of keys that were asked for while another member held them."),
    "overlaps": ("cooperative_overlaps", "Ranges of keys that were taken from a member before it gave them back."),
    "lapsed": ("cooperative_leases_lapsed", "Claims whose lease ended."),
    "fenced": ("cooperative_commits_fenced", "Entries of commits whose member held the keys no more."),
    "lost": ("cooperative_records_lost", "Records that were deleted before anybody had finished them."),
    "resets": ("cooperative_resets", "Partitions that began anew where somebody had set the group's offset."),
}
"""Metrics of `server.cooperative.stats`."""
READY: Final = "flowshare_ready"


class LedMetrics(Page):
    """Metrics of a process that leads and has no agents. stats: as of `leading`."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(READY, "1 when /ready answers 200.", value=1.0)
        yield from leading(self._stats)


Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name of a sample and its labels."""


class MergedMetrics(Page):
    """Metrics of a supervisor's workers."""

    def __init__(
        self, texts: Mapping[int, str], *, states: Mapping[str, int], ready: bool, led: Mapping[str, Any]
    ) -> None:
        """texts: the workers' pages, by number. states: number of workers in each state. ready: the result of /ready.

        led: stats of the supervisor's own leading (`Backend.stats`).
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
        self._sums.pop(READY, None)  # the readiness of all workers together is no sum

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
