"""What workers know of groups: facts given out by those who coordinate them, taken in by those who lead for them."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final

from flowshare.fleet.views import GroupFacts, Version, Views
from flowshare.server.failures import Refused
from flowshare.share.errors import ShareError
from flowshare.slots.places import group_slot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.server.share_service import ShareService

FACTS: Final = "fleet_facts"
"""{"group_id"} -> a group's facts; from its coordinator."""
HAS: Final = "fleet_has"
"""{"group_id"} -> {"exists"}: whether the fleet has a group; from its coordinator. Needs DESCRIBE on it, no more: the
workers of other fleets ask."""
SETTINGS: Final = "fleet_settings"
"""{facts} -> {}: a group's settings have changed."""
NEWS_S: Final = 30.0
"""How long changed settings are told to those who begin to lead; longer than any worker is behind with the map."""
NEWS_MAX: Final = 1_000


class FleetGroups:
    """Both sides of one worker. `service` is set by who makes both."""

    def __init__(self, *, directory: Directory, peers: Peers, views: Views) -> None:
        self._directory = directory
        self._peers = peers
        self._views = views
        self._changes = itertools.count(1)
        self._leading: frozenset[int] = frozenset()
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
        claim = self._directory.claim(group_slot(group_id, self._directory.slots))
        return 0 if claim is None else claim.epoch, next(self._changes)

    def configured(self, group_id: str) -> None:
        """A group's settings have changed: all leaders are told."""
        facts = self._facts(group_id)
        self._views.learn(facts)
        self._peers.tell_leaders(SETTINGS, **facts.to_json())
        self._news.append((group_id, self.service.clock.monotonic() + NEWS_S))

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
            except (Refused, ShareError):
                continue  # it is coordinated elsewhere by now, or cannot be read
            for node_id in added:
                self._peers.tell(node_id, SETTINGS, **facts.to_json())

    def took_up(self, group_ids: Iterable[str]) -> None:
        """Groups are coordinated here from now on: what their leaders know may be old."""
        for group_id in group_ids:
            self.configured(group_id)

    # --- as leader ----------------------------------------------------------------------------------------------

    async def ask(self, group_id: str) -> GroupFacts:
        """A group's facts from whoever coordinates it. Raises: OSError, ClientError, Refused."""
        node, _ = self._directory.leader(group_slot(group_id, self._directory.slots))
        place = self._directory.place
        if node < 0 or (place is not None and node == place.node_id):
            return self.facts(group_id)
        return GroupFacts.from_json(await self._peers.call(node, FACTS, group_id=group_id))

    def told(self, facts: GroupFacts) -> None:
        """The coordinator tells; share-partitions that are loaded follow."""
        if self._views.learn(facts):
            self.service.partitions.configure(facts.group_id)

    def member_gone(self, group_id: str, member_id: str, version: Version, *, died: bool) -> None:
        """The coordinator says that a member is gone, as of this version of its group."""
        if self._views.is_back(group_id, member_id, version):
            return  # told late: what it holds here it was given since
        self._views.gone(group_id, member_id, version)
        self.service.local.release_member(group_id, member_id, died=died)
