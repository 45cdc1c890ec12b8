"""Settings of groups of the consumer protocol (KIP-848): as set, and as they act; a group can be configured before it
exists. Stored values outside the server's present bounds are moved to the nearest bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from flowshare.core_errors import InvalidConfig
from flowshare.groups.consumer_types import ConsumerConfig, ConsumerGroupConfig
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.coordinator import group_id_of
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.one_at_a_time import OneAtATime
from flowshare.share.config import ConfigValue
from flowshare.share.settings import Setting, by_name, number, read_fields, unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from flowshare.log.base import Storage
    from flowshare.server.runtime.coordinator import Damage

PREFIX: Final = b"kc/"
CONFIGURED_MAX: Final = 10_000
"""Most groups with settings of their own."""

CONSUMER_GROUP_CONFIGS: Final[Mapping[str, Setting]] = by_name(
    number(
        ConsumerConfig(),
        "consumer.session.timeout.ms",
        "session_timeout_ms",
        1,
        "How long a member with group.protocol=consumer may be silent before it is removed.",
    ),
    number(
        ConsumerConfig(),
        "consumer.heartbeat.interval.ms",
        "heartbeat_interval_ms",
        1,
        "How often members with group.protocol=consumer send a heartbeat.",
    ),
    number(
        ConsumerConfig(),
        "consumer.assignment.interval.ms",
        "assignment_interval_ms",
        0,
        "Least time between two computations of the assignment of members with group.protocol=consumer.",
    ),
)
"""Name -> setting of a group; the server's defaults and bounds apply."""


class ConsumerGroupConfigs:
    """All groups' settings, stored under their group ids."""

    def __init__(self, storage: Storage, server: ConsumerConfig) -> None:
        self.server = server
        self._storage = storage
        self._stored: dict[str, dict[str, str]] = {}
        self._acting: dict[str, ConsumerGroupConfig] = {}
        self._altering = OneAtATime()
        self._default = self._effective({})

    async def start(self, damage: Damage) -> None:
        """Read the stored settings. Raises: LogError."""
        for key, value in await self._storage.scan(PREFIX):
            group_id = group_id_of(key, PREFIX)
            if group_id is None:
                continue
            try:
                self._keep(group_id, {str(name): str(text) for name, text in orjson.loads(value).items()})
            except (ValueError, AttributeError) as error:
                damage.add(group_id, key, f"its settings: {error}")

    @property
    def configured(self) -> Collection[str]:
        """Groups with settings of their own."""
        return self._stored.keys()

    def acting(self, group_id: str) -> ConsumerGroupConfig:
        """Return a group's settings with the server's defaults and bounds."""
        return self._acting.get(group_id, self._default)

    def values(self, group_id: str) -> tuple[ConfigValue, ...]:
        """Return all of a group's settings by name as they act."""
        stored, acting = self._stored.get(group_id, {}), self.acting(group_id)
        return tuple(
            ConfigValue(name, setting.text(getattr(acting, setting.field)), name not in stored, setting.doc)
            for name, setting in CONSUMER_GROUP_CONFIGS.items()
        )

    async def alter(self, group_id: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set (None: unset) settings of a group, all or none; without a change nothing is written.

        Raises: InvalidConfig, Refused, LogError
        """
        async with self._altering.of(group_id):  # else a concurrent call would write without these changes
            await self._alter(group_id, changes, validate_only=validate_only)

    async def _alter(self, group_id: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        for name in changes:
            if name not in CONSUMER_GROUP_CONFIGS:
                raise unknown(name, CONSUMER_GROUP_CONFIGS)
        stored = self._stored.get(group_id, {})
        wanted = {name: text for name, text in {**stored, **changes}.items() if text is not None}
        values = read_fields(wanted, self._table())
        if values["heartbeat_interval_ms"] >= values["session_timeout_ms"]:
            raise InvalidConfig(
                f"consumer.session.timeout.ms is {values['session_timeout_ms']}; it must exceed "
                f"consumer.heartbeat.interval.ms, {values['heartbeat_interval_ms']}"
            )
        if validate_only or wanted == stored:
            return
        if not stored and len(self._stored) >= CONFIGURED_MAX:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"{CONFIGURED_MAX} groups have settings; remove some first")
        await self._storage.write([(PREFIX + group_id.encode(), orjson.dumps(wanted) if wanted else None)])
        self._keep(group_id, wanted)

    def _table(self) -> dict[str, Setting]:
        """Return the settings with the defaults and bounds of this server."""
        found: dict[str, Setting] = {}
        for name, setting in CONSUMER_GROUP_CONFIGS.items():
            stem = setting.field.removesuffix("_ms")
            low, high = getattr(self.server, f"{stem}_min_ms"), getattr(self.server, f"{stem}_max_ms")
            found[name] = replace(setting, default=str(getattr(self.server, setting.field)), low=low, high=high)
        return found

    def _effective(self, stored: Mapping[str, str]) -> ConsumerGroupConfig:
        """Read stored settings under the server's present bounds; never raises."""
        values: dict[str, int] = {}
        for name, setting in self._table().items():
            text = stored.get(name, setting.default)
            value = int(text) if text.isascii() and text.isdigit() else int(setting.default)
            assert setting.low is not None
            assert setting.high is not None
            values[setting.field] = min(max(value, setting.low), setting.high)
        if values["heartbeat_interval_ms"] >= values["session_timeout_ms"]:
            values["heartbeat_interval_ms"] = max(1, values["session_timeout_ms"] // 3)
        return ConsumerGroupConfig(size_max=self.server.size_max, assignors=self.server.assignors, **values)

    def _keep(self, group_id: str, stored: dict[str, str]) -> None:
        if stored:
            self._stored[group_id] = stored
            self._acting[group_id] = self._effective(stored)
        else:
            self._stored.pop(group_id, None)
            self._acting.pop(group_id, None)
