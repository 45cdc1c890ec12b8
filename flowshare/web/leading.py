"""Metrics of what this process leads: share-partitions, and in a fleet the slots they lie in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "share_partitions": ("led_share_partitions", "Share-partitions that are loaded here."),
    "sessions": ("share_sessions", "Share sessions with this process."),
    "parked": ("share_fetches_parked", "Fetches that wait for records, or look for some."),
    "slots": ("fleet_slots_led", "Slots of the fleet's state that this worker leads."),
}
COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "lock_timeouts": ("led_acquisition_lock_timeouts", "Acquisition locks of records led here that lapsed."),
    "records_acquired": ("led_records_acquired", "Records handed out."),
    "redeliveries": ("led_redeliveries", "Records handed out that had been before."),
    "state_writes": ("state_writes", "Writes of share-partition state."),
    "failed_state_writes": ("state_writes_failed", "Writes of share-partition state that were refused or fenced."),
    "loads": ("share_partition_loads", "Share-partitions read from the store."),
    "failed_loads": ("share_partition_loads_failed", "Share-partitions that could not be loaded."),
    "dead_letters": ("led_dead_letters", "Records that the leader copied to a dead-letter topic."),
    "failed_dead_letters": ("led_dead_letters_failed", "Records that it could not copy."),
    "log_cuts": ("log_truncations", "Times a log had lost records that were handed out before."),
    "records_lost": ("log_records_lost", "Offsets that were lost so."),
    "slots_claimed": ("fleet_slots_claimed", "Claims of slots."),
    "slots_lost": ("fleet_slots_lost", "Slots that another worker claimed, or whose log could not be relied on."),
}


def leading(stats: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of a backend's stats (`Backend.stats`); none when nothing is led here."""
    for key, (name, text) in GAUGES.items():
        if key in stats:
            yield GaugeMetricFamily(f"flowshare_{name}", text, value=stats[key])
    for key, (name, text) in COUNTERS.items():
        if key in stats:
            yield CounterMetricFamily(f"flowshare_{name}", text, value=stats[key])
