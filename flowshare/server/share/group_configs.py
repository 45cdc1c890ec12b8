"""Settings of share groups: as set, and as they act; a group can be configured before it exists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import orjson

from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.coordinator import group_id_of
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.one_at_a_time import OneAtATime
from flowshare.share.config import DEAD_LETTER_BY, GROUP_CONFIGS, GroupConfig, with_namer
from flowshare.share.settings import unknown

if TYPE_CHECKING:
    from flowshare.log.base import Storage
    from flowshare.server.runtime.coordinator import Damage
    from flowshare.share.config import ServerConfig

PREFIX: Final = b"c/"
CONFIGURED_MAX: Final = 10_000
"""Most groups with settings of their own."""


class GroupConfigs:
    """All groups' settings, stored under their group ids."""

    def __init__(self, storage: Storage, server: ServerConfig, damage: Damage) -> None:
        self._storage = storage
        self._server = server
        self._damage = damage
        self._stored: dict[str, dict[str, str]] = {}
        self._acting: dict[str, GroupConfig] = {}
        self._altering = OneAtATime()
        self._default = GroupConfig.effective({}, server)

    async def start(self) -> None:
        """Read the stored settings. Raises: LogError."""
        self.take_up(await self._storage.scan(PREFIX))

    def configure(self, server: ServerConfig) -> None:
        """Apply the server's changed defaults and bounds."""
        self._server = server
        self._default = GroupConfig.effective({}, server)
        self._acting = {group_id: GroupConfig.effective(stored, server) for group_id, stored in self._stored.items()}

    def take_up(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the settings in these store entries."""
        for key, value in entries:
            group_id = group_id_of(key, PREFIX)
            if not group_id:  # without a name: a fleet's own (`fleet.groups.settings`)
                continue
            try:
                stored = {str(name): str(text) for name, text in orjson.loads(value).items()}
            except (ValueError, AttributeError) as error:
                self._damage.add(group_id, key, f"its settings: {error}")
            else:
                self._keep(group_id, stored)

    async def lay_down(self, mine: Callable[[str], bool]) -> None:
        """Forget the settings of these groups, once changes under way are done; stored settings stay."""
        await self._altering.over(mine)
        for group_id in [one for one in self._stored if mine(one)]:
            self._keep(group_id, {})

    def check(self, group_id: str) -> None:
        """Check that the group's settings are known. Raises: StateCorrupt (the stored ones cannot be read)."""
        self._damage.check(group_id)

    def acting(self, group_id: str) -> GroupConfig:
        """Return a group's settings with the server's defaults and bounds."""
        return self._acting.get(group_id, self._default)

    @property
    def configured(self) -> Collection[str]:
        """Groups with settings of their own."""
        return self._stored.keys()

    def stored(self, group_id: str) -> Mapping[str, str]:
        """Return the settings that were set for a group."""
        return self._stored.get(group_id, {})

    async def alter(
        self,
        group_id: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool,
        by: tuple[str, str] | None = None,
    ) -> None:
        """Set (None: unset) settings of a group, all or none; without a change nothing is written.

        by: principal and host of the peer, kept beside the settings of dead letters (`server.share.dead_letters`);
        None: the server's own process.
        Raises: InvalidConfig, Refused, StateCorrupt (the stored settings cannot be read), LogError
        """
        async with self._altering.of(group_id):  # else a concurrent call would write without these changes
            await self._alter(group_id, changes, validate_only=validate_only, by=by)

    async def _alter(
        self, group_id: str, changes: Mapping[str, str | None], *, validate_only: bool, by: tuple[str, str] | None
    ) -> None:
        self._damage.check(group_id)
        for name in changes:
            if name not in GROUP_CONFIGS:
                raise unknown(name, GROUP_CONFIGS)
        stored = self.stored(group_id)
        merged = {**{name: text for name, text in stored.items() if name != DEAD_LETTER_BY}, **changes}
        wanted = {name: text for name, text in merged.items() if text is not None}
        GroupConfig.parse(wanted, self._server)
        wanted = with_namer(wanted, changes, stored.get(DEAD_LETTER_BY), by)
        if validate_only or wanted == stored:
            return
        if group_id not in self._stored and len(self._stored) >= CONFIGURED_MAX:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"{CONFIGURED_MAX} groups have settings; remove some first")
        value = orjson.dumps(wanted) if wanted else None
        await self._storage.write([(PREFIX + group_id.encode(), value)])
        self._keep(group_id, wanted)

    def _keep(self, group_id: str, stored: dict[str, str]) -> None:
        if stored:
            self._stored[group_id] = stored
            self._acting[group_id] = GroupConfig.effective(stored, self._server)
        else:
            self._stored.pop(group_id, None)
            self._acting.pop(group_id, None)
