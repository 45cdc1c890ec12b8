"""What workers know of groups: facts given out by those who coordinate them, taken in by those who lead for them.

The leader of a share-partition has to know its group's settings and members. It asks the coordinator before it loads a
share-partition, and is told whenever the settings change. Facts are ordered by (epoch of the coordinator's claim, count
of its changes), so that a late telling never undoes a newer one. Members that were reported gone are remembered for a
while, with the version at which they were: a share-partition that is being loaded just then must not keep records for
them, and one that is loaded later must, if they have joined again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Container, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.core_errors import CoreError
from flowshare.fleet.directory import NOBODY
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused
from flowshare.share.config import KEY_ORDER, GroupConfig

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.server.share.service import ShareService
    from flowshare.share.config import ServerConfig

FACTS: Final = "fleet_facts"
"""{"group_id"} -> a group's facts; from its coordinator."""
HAS: Final = "fleet_has"
"""{"group_id"} -> {"exists"}: whether the fleet has a group; from its coordinator. Needs DESCRIBE on it, no more: the
workers of other fleets ask."""
SETTINGS: Final = "fleet_settings"
"""{facts} -> {}: a group's settings have changed."""
ANSWERED_S: Final = 2.0
"""How long a change of settings waits for leaders to say that they act by them; they are told on after that."""
ORDERED_S: Final = 4.0
"""The same for a change of the order of keys, within CALL_S: who does not act by it yet would hand out one key to
several members, so it is not confirmed."""
NEWS_S: Final = 30.0
"""How long changed settings are told to those who begin to lead; longer than any worker is behind with the map."""
NEWS_MAX: Final = 1_000


class FleetGroups:
    """Both sides of one worker. `service` is set by who makes both."""

    def __init__(self, *, directory: Directory, peers: Peers, known_groups: KnownGroups) -> None:
        self._directory = directory
        self._peers = peers
        self._known_groups = known_groups
        self._changes = itertools.count(1)
        self._leading: frozenset[int] = frozenset()
        self._to_order: dict[str, set[asyncio.Task[None]]] = {}
        """Tellings of a group's new order of keys that are not answered yet."""
        self._news: deque[tuple[str, float]] = deque(maxlen=NEWS_MAX)
        self.service: ShareService
        directory.on_change(self._tell_new_leaders)

    # --- as coordinator -----------------------------------------------------------------------------------------

    def facts(self, group_id: str) -> GroupFacts:
        """A group that is coordinated here. Raises: Refused (it is not), StateCorrupt."""
        self.service.duties.check_coordinator(group_id)
        self.service.damage.check(group_id)
        return self._facts(group_id)

    def _facts(self, group_id: str) -> GroupFacts:
        service = self.service
        group = service.coordinator.groups.get(group_id)
        return GroupFacts(
            group_id,
            self.version(group_id),
            dict(service.configs.stored(group_id)),
            frozenset(() if group is None else group.members),
        )

    def version(self, group_id: str) -> Version:
        """The next one of a group that is coordinated here."""
        return self._directory.group_epoch(group_id), next(self._changes)

    async def configured(self, group_id: str) -> None:
        """A group's settings have changed: all leaders are told; those that are reached in time act by them now.

        Raises: Refused (of a new order of keys not all have heard yet).
        """
        tellings = self.tell(group_id)
        self.service.partitions.configure(group_id)
        to_order = self._to_order.get(group_id)
        if to_order:
            with suppress(TimeoutError):
                await self.service.clock.wait_for(asyncio.wait(set(to_order)), ORDERED_S)
        elif tellings:
            with suppress(TimeoutError):
                await self.service.clock.wait_for(asyncio.wait(tellings), ANSWERED_S)
        if to_order := self._to_order.get(group_id):
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{KEY_ORDER} of group {group_id} is set, but {len(to_order)} workers that lead for it have not "
                "answered yet, and would hand out records in the order of before: try again",
            )

    def tell(self, group_id: str) -> list[asyncio.Task[None]]:
        """Tell all leaders of a group's settings: they changed, or it is coordinated here since just now."""
        facts = self._facts(group_id)
        before = self._known_groups.config_of(group_id).key_order
        self._known_groups.learn(facts)
        self._news.append((group_id, self.service.clock.monotonic() + NEWS_S))
        tellings = self._peers.tell_leaders(SETTINGS, **facts.to_json())
        if self._known_groups.config_of(group_id).key_order != before:
            for telling in tellings:
                self._to_order.setdefault(group_id, set()).add(telling)
                telling.add_done_callback(partial(self._has_order, group_id))
        return tellings

    def _has_order(self, group_id: str, telling: asyncio.Task[None]) -> None:
        """A leader has heard of a group's order, has left, or was told in vain for as long as is tried."""
        left = self._to_order.get(group_id, set())
        left.discard(telling)
        if not left:
            self._to_order.pop(group_id, None)

    def _tell_new_leaders(self) -> None:
        """Who leads since just now may have asked before a change that this worker told to others only."""
        before, self._leading = self._leading, self._directory.leading
        added = self._leading - before
        if not added:
            return
        now_s = self.service.clock.monotonic()
        for group_id in {group_id for group_id, until_s in self._news if until_s > now_s}:
            try:
                facts = self.facts(group_id)
            except (Refused, CoreError):
                continue  # it is coordinated elsewhere by now, or cannot be read
            for node_id in added:
                self._peers.tell(node_id, SETTINGS, **facts.to_json())

    # --- as leader ----------------------------------------------------------------------------------------------

    async def ask(self, group_id: str) -> GroupFacts:
        """A group's facts from whoever coordinates it. Raises: OSError, ClientError, Refused."""
        node = self._directory.group_leader(group_id)
        if node == NOBODY or self._directory.is_me(node):
            return self.facts(group_id)
        return GroupFacts.from_json(await self._peers.call(node, FACTS, group_id=group_id))

    def told(self, facts: GroupFacts) -> None:
        """The coordinator tells; share-partitions that are loaded follow."""
        if self._known_groups.learn(facts):
            self.service.partitions.configure(facts.group_id)

    def member_gone(self, group_id: str, member_id: str, version: Version, *, died: bool) -> None:
        """The coordinator says that a member is gone, as of this version of its group."""
        if self._known_groups.is_back(group_id, member_id, version):
            return  # told late: what it holds here it was given since
        self._known_groups.gone(group_id, member_id, version)
        self.service.local.release_member(group_id, member_id, died=died)


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


class KnownGroups:
    """What a worker knows of the groups that it leads share-partitions for."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._server = config
        self._clock = clock
        self._default = GroupConfig.effective({}, config)
        self._facts: dict[str, GroupFacts] = {}
        self._acting: dict[str, GroupConfig] = {}
        self._gone: dict[tuple[str, str], tuple[float, Version]] = {}
        """Until when a member is remembered, and from which version of its group on it was gone."""

    def configure(self, server: ServerConfig) -> None:
        """The defaults and bounds of all groups are others from now on."""
        self._server = server
        self._default = GroupConfig.effective({}, server)
        self._acting = {name: GroupConfig.effective(facts.settings, server) for name, facts in self._facts.items()}

    def learn(self, facts: GroupFacts) -> bool:
        """Take over facts; whether it is newer than the one before. Settings that make no sense act as the default."""
        known = self._facts.get(facts.group_id)
        if known is not None and facts.version < known.version:
            return False
        self._facts[facts.group_id] = facts
        if known is None or known.settings != facts.settings:
            self._acting[facts.group_id] = GroupConfig.effective(facts.settings, self._server)
        return known is None or facts.version > known.version

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
        facts = self._facts.get(group_id)
        return facts is not None and facts.version > version and member_id in facts.members

    def living(self, group_id: str) -> Container[str]:
        """Members of a group that keep what they hold."""
        facts = self._facts.get(group_id)
        if facts is None:
            return frozenset()
        gone, never = self._gone, (0.0, (-1, -1))
        return frozenset(member for member in facts.members if gone.get((group_id, member), never)[1] < facts.version)
