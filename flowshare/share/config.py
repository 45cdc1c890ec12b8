"""Settings of the server and of a share group, read through the tables of `config_tables.py`.

A group's overrides are checked when they are set (`GroupConfig.parse`); a stored value that lies outside the server's
bounds later is moved to the nearest bound when it is used (`GroupConfig.effective`, KIP-1240).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from flowshare.core_errors import InvalidConfig
from flowshare.share.breaker import BreakerRule
from flowshare.share.config_tables import BOUNDED, EMBEDDED_CONFIGS, GROUP_CONFIGS, SERVER_CONFIGS
from flowshare.share.rate import Rate
from flowshare.share.settings import Setting, duration_ms, read_fields, read_number, unknown
from flowshare.share.types import Limits, Priority

__all__ = [
    "DEAD_LETTER_BY",
    "DEAD_LETTER_CONFIGS",
    "DEAD_LETTER_TOPIC",
    "EMBEDDED_CONFIGS",
    "GROUP_CONFIGS",
    "KEY_ORDER",
    "SERVER_CONFIGS",
    "ConfigValue",
    "GroupConfig",
    "ServerConfig",
    "group_settings",
    "with_namer",
]

DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_CONFIGS: Final = frozenset(
    {DEAD_LETTER_TOPIC, "errors.deadletterqueue.copy.record.enable", "share.dead.letter.on"}
)
"""Settings that decide which records are copied where: the principal that changes one is answerable for all of them."""
KEY_ORDER: Final = "share.key.order"
ISOLATION: Final = "share.isolation.level"
PARK: Final = "park"
"""The value of share.key.after.dead.letter by which keys are parked."""
DEAD_LETTER_BY: Final = "errors.deadletterqueue.named.by"
"""Key beside a group's stored settings: host and principal of the client answerable for its dead letters. It cannot be
set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of a server, under Kafka's defaults; `…_min` and `…_max` bound what a group may set."""

    session_timeout_ms: int = 45_000
    session_timeout_min_ms: int = 45_000
    session_timeout_max_ms: int = 60_000
    heartbeat_interval_ms: int = 5_000
    heartbeat_interval_min_ms: int = 5_000
    heartbeat_interval_max_ms: int = 15_000
    assignment_interval_ms: int = 1_000
    assignment_interval_min_ms: int = 0
    assignment_interval_max_ms: int = 15_000
    delivery_count_limit: int = 5
    delivery_count_limit_min: int = 2
    delivery_count_limit_max: int = 10
    record_lock_duration_ms: int = 30_000
    record_lock_duration_min_ms: int = 15_000
    record_lock_duration_max_ms: int = 60_000
    partition_max_record_locks: int = 2_000
    partition_max_record_locks_min: int = 100
    partition_max_record_locks_max: int = 4_000
    group_max_size: int = 200
    share_sessions_max: int = 2_000
    connection_share_sessions_max: int = 100
    share_groups_max: int = 10_000
    coordinator_state_bytes: int = 134_217_728
    partitions_max: int = 50_000
    request_partitions_max: int = 10_000
    mutation_rate: int | None = 200
    """None is the value `unlimited`."""
    mutation_windows: int = 100
    mutation_window_s: int = 1
    assignor: str = "simple"
    partition_max_window: int | None = 200_000
    """None is the value `locks`."""
    retention_ms: int | None = None
    """None: for ever."""
    snapshot_updates_max: int = 500
    dead_letter_prefix: str = "dlq."
    dead_letter_auto_create: bool = False
    acquire_durable: bool = True
    return_grace_ms: int = 0
    """0: as in Kafka, no lock outlives the leader."""
    auto_create_topics: bool = True
    partitions_default: int = 1

    @classmethod
    def parse(cls, values: Mapping[str, str], *, table: Mapping[str, Setting] = SERVER_CONFIGS) -> ServerConfig:
        """Read settings by their Kafka names; missing ones have the table's default.

        Raises InvalidConfig for an unknown name, a value out of bounds, and values that contradict each other.
        """
        config = cls(**read_fields(values, table))
        _check_server(config, table)
        return config

    def changed(self, values: Mapping[str, str], *, table: Mapping[str, Setting]) -> ServerConfig:
        """Return the config with these settings changed. Raises InvalidConfig (as `parse`)."""
        for name in values:
            if name not in table:
                raise unknown(name, table)
        config = replace(self, **{table[name].field: table[name].parse(text) for name, text in values.items()})
        _check_server(config, EMBEDDED_CONFIGS)
        return config

    def values(self) -> tuple[ConfigValue, ...]:
        """Return all settings by name, with their values in effect; `is_default` when flowshare's own server has the
        value by itself."""
        listed: list[ConfigValue] = []
        for name, setting in sorted(EMBEDDED_CONFIGS.items()):
            value = getattr(self, setting.field)
            is_default = value == setting.parse(setting.default)
            listed.append(ConfigValue(name, setting.text(value), is_default, setting.doc))
        return tuple(listed)

    @classmethod
    def embedded(cls, values: Mapping[str, str] | None = None) -> ServerConfig:
        """Return the settings of flowshare's own server, whose groups have wider bounds: locks of 1 s to 1 h, and so
        on."""
        return cls.parse(values or {}, table=EMBEDDED_CONFIGS)


def _check_server(config: ServerConfig, table: Mapping[str, Setting]) -> None:
    for setting in table.values():
        if not setting.name.startswith("group.share.min."):
            continue
        base = f"group.share.{setting.name.removeprefix('group.share.min.')}"
        lowest = getattr(config, setting.field)
        value = getattr(config, table[base].field)
        highest = getattr(config, table[base.replace("group.share.", "group.share.max.", 1)].field)
        if not lowest <= value <= highest:
            raise InvalidConfig(
                f"{base} is {value}; it must lie between its min and max settings, {lowest} to {highest}"
            )
    if config.share_sessions_max < config.group_max_size:
        raise InvalidConfig(
            f"group.share.max.share.sessions is {config.share_sessions_max}; it must be at least group.share.max.size, "
            f"{config.group_max_size}"
        )
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise InvalidConfig(
            f"group.share.heartbeat.interval.ms is {config.heartbeat_interval_ms}; it must be below "
            f"group.share.session.timeout.ms, {config.session_timeout_ms}"
        )


class ConfigValue(NamedTuple):
    """One setting of a group with its value in effect: DescribeConfigs' answer."""

    name: str
    value: str
    is_default: bool
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of one share group as they act now; build it with `parse` or `effective`."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    partition_max_record_locks: int = 2_000
    auto_offset_reset: str = "latest"
    isolation_level: str = "read_uncommitted"
    renew_acknowledge_enable: bool = True
    partition_max_window: int | None = 200_000
    """None is the value `locks`."""
    retention_ms: int | None = None
    """None: for ever."""
    dead_letter_topic: str = ""
    dead_letter_copy_record: bool = False
    dead_letter_on: str = "all"
    after_dead_letter: str = "continue"
    dead_letter_by: tuple[str, str] | None = None
    """Principal and host of the client that named the dead-letter topic; None: the server's own process."""
    paused: bool = False
    max_in_flight: int | None = None
    """None: no limit."""
    max_rate: Rate | None = None
    """None: no limit."""
    breaker_percent: int = 0
    """0: no breaker."""
    breaker_window: int = 20
    breaker_open_ms: int = 30_000
    breaker_open_max_ms: int = 300_000
    delivery_priority: str = "redeliveries"
    key_order: str = ""
    """`key`, `header:<name>`, or empty: no order."""
    group_max_size: int = 200

    @classmethod
    def parse(cls, overrides: Mapping[str, str], server: ServerConfig) -> GroupConfig:
        """Check a group's settings against the server's bounds and complete them with its defaults.

        Raises InvalidConfig for an unknown name, a value out of bounds, and values that contradict each other.
        """
        table = group_settings(server)
        config = cls(group_max_size=server.group_max_size, **read_fields(overrides, table))
        if config.session_timeout_ms <= config.heartbeat_interval_ms:
            raise InvalidConfig(
                f"share.session.timeout.ms is {config.session_timeout_ms}; it must exceed share.heartbeat.interval.ms, "
                f"{config.heartbeat_interval_ms}"
            )
        if config.after_dead_letter == PARK and not config.key_order:
            raise InvalidConfig(
                "share.key.after.dead.letter is park and share.key.order is not set, so there are no keys to park: set "
                "both of them or none"
            )
        problem = _dead_letter_problem(config.dead_letter_topic, server)
        if problem:
            raise InvalidConfig(f"errors.deadletterqueue.topic.name is {config.dead_letter_topic!r}; {problem}")
        return config

    @classmethod
    def effective(cls, stored: Mapping[str, str], server: ServerConfig) -> GroupConfig:
        """Return the stored settings as they act under the server's bounds of today. Never raises (SG-13.5).

        Numbers out of bounds are moved to the nearest bound; an unreadable or unknown setting has its default.
        """
        values: dict[str, Any] = {}
        for name, setting in group_settings(server).items():
            try:
                values[setting.field] = _clamped(setting, stored.get(name, setting.default))
            except InvalidConfig:
                values[setting.field] = setting.parse(setting.default)
        by = _named_by(stored.get(DEAD_LETTER_BY))
        config = cls(group_max_size=server.group_max_size, dead_letter_by=by, **values)
        if _dead_letter_problem(config.dead_letter_topic, server):
            config = replace(config, dead_letter_topic="")
        if config.session_timeout_ms <= config.heartbeat_interval_ms:
            config = replace(config, heartbeat_interval_ms=max(1, config.session_timeout_ms // 3))
        return config

    @property
    def reset_duration_ms(self) -> int | None:
        """The span, in ms, that `by_duration:` goes back; None for `earliest` and `latest`."""
        strategy, colon, duration = self.auto_offset_reset.partition(":")
        return duration_ms(duration) if strategy == "by_duration" and colon else None

    @property
    def breaker(self) -> BreakerRule | None:
        """The rule of the group's breaker; None: no breaker."""
        if not self.breaker_percent:
            return None
        return BreakerRule(
            percent=self.breaker_percent,
            of=self.breaker_window,
            open_ms=self.breaker_open_ms,
            open_max_ms=max(self.breaker_open_ms, self.breaker_open_max_ms),
            probe_ms=self.record_lock_duration_ms,
        )

    def limits(self, *, has_parked: bool = False) -> Limits:
        """Return the limits of a share-partition of the group. has_parked: it has parked keys. Then a record that is
        rejected, or reaches its limit, becomes ARCHIVING before its key goes on, whatever the group does with keys by
        now."""
        dead_letters = bool(self.dead_letter_topic)
        parks = bool(self.key_order) and (has_parked or self.after_dead_letter == PARK)
        return Limits(
            lock_duration_ms=self.record_lock_duration_ms,
            delivery_count_max=self.delivery_count_limit,
            record_locks_max=self.partition_max_record_locks,
            window_max=self.partition_max_window,
            renew_enabled=self.renew_acknowledge_enable,
            dead_letter_on_limit=dead_letters or parks,
            dead_letter_on_reject=parks or (dead_letters and self.dead_letter_on == "all"),
            paused=self.paused,
            priority=Priority(self.delivery_priority),
        )

    def values(self, stored: Mapping[str, str]) -> tuple[ConfigValue, ...]:
        """Return all settings by name, with their values in effect; `is_default` when `stored` does not set them."""
        return tuple(
            ConfigValue(name, setting.text(getattr(self, setting.field)), name not in stored, setting.doc)
            for name, setting in sorted(GROUP_CONFIGS.items())
        )


def with_namer(
    settings: Mapping[str, str], changes: Container[str], known: str | None, by: tuple[str, str] | None
) -> dict[str, str]:
    """Return a group's settings as they are stored: with the client answerable for its dead letters, when it has any.

    This is the last client that changed one of `DEAD_LETTER_CONFIGS`, `by` (None: the server's own process); when
    `changes` has none of them, it stays `known`.
    """
    stored = dict(settings)
    text = known
    if any(name in changes for name in DEAD_LETTER_CONFIGS):
        text = None if by is None else f"{by[1]} {by[0]}"
    if text is not None and stored.get(DEAD_LETTER_TOPIC):
        stored[DEAD_LETTER_BY] = text
    return stored


def group_settings(server: ServerConfig) -> dict[str, Setting]:
    """Return `GROUP_CONFIGS` with the defaults and bounds of one server."""
    table = dict(GROUP_CONFIGS)
    for name, _ in BOUNDED:
        setting = GROUP_CONFIGS[name]
        stem = setting.field.removesuffix("_ms")
        unit = "_ms" if setting.field.endswith("_ms") else ""
        table[name] = replace(
            setting,
            default=str(getattr(server, setting.field)),
            low=getattr(server, f"{stem}_min{unit}"),
            high=getattr(server, f"{stem}_max{unit}"),
        )
    window = "locks" if server.partition_max_window is None else str(server.partition_max_window)
    retention = "-1" if server.retention_ms is None else str(server.retention_ms)
    table["share.partition.max.window"] = replace(table["share.partition.max.window"], default=window)
    table["share.retention.ms"] = replace(table["share.retention.ms"], default=retention)
    return table


def _clamped(setting: Setting, text: str) -> Any:
    """Return the value of a stored text; a number out of bounds becomes the nearest bound."""
    value = replace(setting, low=None, high=None).parse(text)
    if setting.read is not read_number or value is None:
        return value
    assert setting.low is not None  # Every number has a lower bound.
    value = max(value, setting.low)
    return value if setting.high is None else min(value, setting.high)


def _named_by(text: str | None) -> tuple[str, str] | None:
    """Return principal and host of `with_namer`'s text; a malformed text gives a principal without any right."""
    if text is None:
        return None
    host, _, principal = text.partition(" ")
    return principal, host


def _dead_letter_problem(topic: str, server: ServerConfig) -> str:
    """Return the reason why a topic cannot take dead letters (SG-15.1); empty when it can, or none is named."""
    if not topic:
        return ""
    if topic.startswith("__"):
        return "names that start with __ are for internal topics"
    if not topic.startswith(server.dead_letter_prefix):
        return f"it must start with {server.dead_letter_prefix!r} (errors.deadletterqueue.topic.name.prefix)"
    return ""
