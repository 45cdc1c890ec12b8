"""What the leader of a share-partition has to know of its group: settings, members; it comes from the coordinator.

A leader asks before it loads a share-partition, and is told whenever the settings change. Views are ordered by
(epoch of the coordinator's claim, count of its changes), so that a late telling never undoes a newer one. Members that
were reported gone are remembered for a while, with the version at which they were: a share-partition that is being
loaded just then must not keep records for them, and one that is loaded later must, if they have joined again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.share.config import GroupConfig

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.share.config import ServerConfig

GONE_S: Final = 60.0
"""How long a member that is gone is remembered: longer than loading a share-partition takes."""
GONE_MAX: Final = 100_000


Version = tuple[int, int]
"""Epoch of the coordinator's claim, and its count; ascending."""


class GroupFacts(NamedTuple):
    """A group as its coordinator sees it."""

    group_id: str
    version: Version
    settings: Mapping[str, str]
    members: frozenset[str]

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {
            "group_id": self.group_id,
            "version": self.version,
            "settings": self.settings,
            "members": sorted(self.members),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> GroupFacts:
        """Raises: ValueError, KeyError, TypeError (it is none)."""
        epoch, count = told["version"]
        settings = {str(name): str(text) for name, text in dict(told["settings"]).items()}
        return cls(str(told["group_id"]), (int(epoch), int(count)), settings, frozenset(map(str, told["members"])))


class Views:
    """The views of a worker, by group."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._server = config
        self._clock = clock
        self._default = GroupConfig.effective({}, config)
        self._views: dict[str, GroupFacts] = {}
        self._acting: dict[str, GroupConfig] = {}
        self._gone: dict[tuple[str, str], tuple[float, Version]] = {}
        """Until when a member is remembered, and from which version of its group on it was gone."""

    def configure(self, server: ServerConfig) -> None:
        """The defaults and bounds of all groups are others from now on."""
        self._server = server
        self._default = GroupConfig.effective({}, server)
        self._acting = {name: GroupConfig.effective(view.settings, server) for name, view in self._views.items()}

    def learn(self, view: GroupFacts) -> bool:
        """Take over a view; whether it is newer than the one before. Settings that make no sense act as the default."""
        known = self._views.get(view.group_id)
        if known is not None and view.version < known.version:
            return False
        self._views[view.group_id] = view
        if known is None or known.settings != view.settings:
            self._acting[view.group_id] = GroupConfig.effective(view.settings, self._server)
        return known is None or view.version > known.version

    def config_of(self, group_id: str) -> GroupConfig:
        """Settings of a group, the default's while nothing is known."""
        return self._acting.get(group_id, self._default)

    def gone(self, group_id: str, member_id: str, version: Version) -> None:
        """A member is gone, as of this version of its group: it keeps nothing unless a newer one has it."""
        now_s = self._clock.monotonic()
        self._gone.pop((group_id, member_id), None)
        self._gone[group_id, member_id] = now_s + GONE_S, version
        while self._gone:
            first = next(iter(self._gone))
            if self._gone[first][0] > now_s and len(self._gone) <= GONE_MAX:
                break
            del self._gone[first]

    def is_back(self, group_id: str, member_id: str, version: Version) -> bool:
        """Whether a newer version of the group than this one is known, and has the member."""
        view = self._views.get(group_id)
        return view is not None and view.version > version and member_id in view.members

    def living(self, group_id: str) -> Container[str]:
        """Members of a group that keep what they hold."""
        view = self._views.get(group_id)
        if view is None:
            return frozenset()
        gone, never = self._gone, (0.0, (-1, -1))
        return frozenset(member for member in view.members if gone.get((group_id, member), never)[1] < view.version)
