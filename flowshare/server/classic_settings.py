"""The settings of classic groups and committed offsets, under the names of Kafka's brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flowshare.groups.types import ClassicConfig
from flowshare.share.errors import InvalidConfig
from flowshare.share.settings import Setting, read_number, unknown

INT_MAX: Final = 2**31 - 1
_DEFAULTS: Final = ClassicConfig()


def _number(name: str, field: str, low: int, doc: str, high: int = INT_MAX) -> Setting:
    default = str(getattr(_DEFAULTS, field))
    return Setting(name=name, field=field, default=default, low=low, high=high, doc=doc, read=read_number)


CLASSIC_CONFIGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        _number("group.min.session.timeout.ms", "session_timeout_min_ms", 1, "Shortest session timeout of a member."),
        _number("group.max.session.timeout.ms", "session_timeout_max_ms", 1, "Longest session timeout of a member."),
        _number(
            "group.initial.rebalance.delay.ms",
            "initial_rebalance_delay_ms",
            0,
            "How long the first rebalance of an empty consumer group waits for more members.",
        ),
        _number("group.max.size", "size_max", 1, "Members a consumer group may have."),
        _number(
            "group.max.groups",
            "groups_max",
            1,
            "Consumer groups that may exist; one principal (without logins: address) makes no more than are left.",
        ),
        _number("offset.metadata.max.bytes", "offset_metadata_max", 0, "Longest metadata with a committed offset."),
        _number(
            "offsets.retention.minutes",
            "offsets_retention_minutes",
            1,
            "How long committed offsets are kept when the group has no members any more.",
        ),
        _number(
            "offsets.retention.check.interval.ms",
            "retention_check_interval_ms",
            1,
            "How often it is looked for offsets that are to go.",
        ),
    )
}
"""Name -> setting."""


def parse_classic(values: Mapping[str, str]) -> ClassicConfig:
    """Read settings by their names; what is not given has its default.

    Raises: InvalidConfig for an unknown name, a value out of bounds, and values that contradict each other.
    """
    for name in values:
        if name not in CLASSIC_CONFIGS:
            raise unknown(name, CLASSIC_CONFIGS)
    read: dict[str, Any] = {
        setting.field: setting.parse(values.get(name, setting.default)) for name, setting in CLASSIC_CONFIGS.items()
    }
    config = ClassicConfig(**read)
    if config.session_timeout_min_ms > config.session_timeout_max_ms:
        raise InvalidConfig(
            f"group.min.session.timeout.ms is {config.session_timeout_min_ms}; it must not exceed "
            f"group.max.session.timeout.ms, {config.session_timeout_max_ms}"
        )
    return config
