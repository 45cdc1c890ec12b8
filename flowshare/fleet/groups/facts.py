"""Facts about groups: the coordinators of groups give them out, the leaders of share-partitions take them in.

The leader of a share-partition must know its group's settings and members. It asks the coordinator before it loads a
share-partition, and is told whenever the settings change. Facts are ordered by (epoch of the coordinator's claim, count
of its changes), so that late facts never undo newer ones.

Members that were reported gone are remembered for a while, with the version at which they were gone. A share-partition
that is being loaded at that moment must not keep records for such members. One that is loaded later must, if the
members have joined again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Container
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import CoreError
from flowshare.fleet.directory import NOBODY
from flowshare.fleet.messages import FactsChanged, FactsRequest, GroupFacts, Version
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused
from flowshare.share.config import KEY_ORDER, GroupConfig

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.server.share.service import ShareService
    from flowshare.share.config import ServerConfig

ANSWERED_S: Final = 2.0
"""Time, in s, that a change of settings waits for leaders to confirm that they follow it; telling goes on after
that."""
ORDERED_S: Final = 4.0
"""The same time for a change of the order of keys, within CALL_S: a leader that does not follow it yet would hand out
one key to several members, so the change is not confirmed."""
NEWS_S: Final = 30.0
"""Time, in s, for which changed settings are told to new leaders; longer than any worker is behind with the map."""
NEWS_MAX: Final = 1_000


class FleetGroups:
    """Both sides of one worker, coordinator and leader. The maker sets `service`."""

    def __init__(self, *, directory: Directory, peers: Peers, known_groups: KnownGroups) -> None:
        self._directory = directory
        self._peers = peers
        self._known_groups = known_groups
        self._changes = itertools.count(1)
        self._leading: frozenset[int] = frozenset()
        self._to_order: dict[str, set[asyncio.Task[None]]] = {}
        """Messages about a group's new order of keys that are not answered yet."""
        self._news: deque[tuple[str, float]] = deque(maxlen=NEWS_MAX)
        self.service: ShareService
        directory.on_change(self._tell_new_leaders)

    # --- as coordinator -----------------------------------------------------------------------------------------

    def facts(self, group_id: str) -> GroupFacts:
        """Return the facts of a group that is coordinated here. Raises Refused (it is not), StateCorrupt."""
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
        """Return the next version of a group that is coordinated here."""
        return self._directory.group_epoch(group_id), next(self._changes)

    async def configured(self, group_id: str) -> None:
        """Tell all leaders that a group's settings have changed; those reached in time follow them on return.

        Raises: Refused (not all leaders have heard of a new order of keys yet).
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
        """Tell all leaders a group's settings, which changed, or which are coordinated here since just now."""
        facts = self._facts(group_id)
        before = self._known_groups.config_of(group_id).key_order
        self._known_groups.learn(facts)
        self._news.append((group_id, self.service.clock.monotonic() + NEWS_S))
        tellings = self._peers.tell_leaders(FactsChanged(facts=facts))
        if self._known_groups.config_of(group_id).key_order != before:
            for telling in tellings:
                self._to_order.setdefault(group_id, set()).add(telling)
                telling.add_done_callback(partial(self._has_order, group_id))
        return tellings

    def _has_order(self, group_id: str, telling: asyncio.Task[None]) -> None:
        """Note that a leader has heard of a group's order, has left, or was told in vain until the end of the tries."""
        left = self._to_order.get(group_id, set())
        left.discard(telling)
        if not left:
            self._to_order.pop(group_id, None)

    def _tell_new_leaders(self) -> None:
        """Tell new leaders recent changes: they may have asked before a change that only others were told."""
        before, self._leading = self._leading, self._directory.leading
        added = self._leading - before
        if not added:
            return
        now_s = self.service.clock.monotonic()
        for group_id in {group_id for group_id, until_s in self._news if until_s > now_s}:
            try:
                facts = self.facts(group_id)
            except (Refused, CoreError):
                continue  # the group is coordinated elsewhere by now, or cannot be read
            for node_id in added:
                self._peers.tell(node_id, FactsChanged(facts=facts))

    # --- as leader ----------------------------------------------------------------------------------------------

    async def ask(self, group_id: str) -> GroupFacts:
        """Return a group's facts from its coordinator. Raises OSError, ClientError, Refused."""
        node = self._directory.group_leader(group_id)
        if node == NOBODY or self._directory.is_me(node):
            return self.facts(group_id)
        facts = (await self._peers.call(node, FactsRequest(group_id=group_id))).facts
        assert facts is not None  # as the coordinator did not refuse
        return facts

    def told(self, facts: GroupFacts) -> None:
        """Take in the coordinator's facts; loaded share-partitions follow them."""
        if self._known_groups.learn(facts):
            self.service.partitions.configure(facts.group_id)

    def member_gone(self, group_id: str, member_id: str, version: Version, *, died: bool) -> None:
        """Release a member that is gone, as of this version of its group, by the coordinator's word."""
        if self._known_groups.is_back(group_id, member_id, version):
            return  # told late: the member got its present records since
        self._known_groups.gone(group_id, member_id, version)
        self.service.local.release_member(group_id, member_id, died=died)


GONE_S: Final = 60.0
"""Time, in s, for which a member that is gone is remembered: longer than loading a share-partition takes."""
GONE_MAX: Final = 100_000


class KnownGroups:
    """Facts about the groups for which a worker leads share-partitions."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._server = config
        self._clock = clock
        self._default = GroupConfig.effective({}, config)
        self._facts: dict[str, GroupFacts] = {}
        self._acting: dict[str, GroupConfig] = {}
        self._gone: dict[tuple[str, str], tuple[float, Version]] = {}
        """(group, member) -> the time until which the member is remembered, and the version at which it was gone."""

    def configure(self, server: ServerConfig) -> None:
        """Replace the defaults and bounds of all groups."""
        self._server = server
        self._default = GroupConfig.effective({}, server)
        self._acting = {name: GroupConfig.effective(facts.settings, server) for name, facts in self._facts.items()}

    def learn(self, facts: GroupFacts) -> bool:
        """Take over facts; True if they are newer than the known ones. Unusable settings act as the default."""
        known = self._facts.get(facts.group_id)
        if known is not None and facts.version < known.version:
            return False
        self._facts[facts.group_id] = facts
        if known is None or known.settings != facts.settings:
            self._acting[facts.group_id] = GroupConfig.effective(facts.settings, self._server)
        return known is None or facts.version > known.version

    def config_of(self, group_id: str) -> GroupConfig:
        """Return the settings of a group, the default's while none are known."""
        return self._acting.get(group_id, self._default)

    def gone(self, group_id: str, member_id: str, version: Version) -> None:
        """Note that a member is gone, as of this version of its group: it keeps no records unless a newer version has
        it."""
        now_s = self._clock.monotonic()
        self._gone.pop((group_id, member_id), None)
        self._gone[group_id, member_id] = now_s + GONE_S, version
        while self._gone:
            first = next(iter(self._gone))
            if self._gone[first][0] > now_s and len(self._gone) <= GONE_MAX:
                break
            del self._gone[first]

    def is_back(self, group_id: str, member_id: str, version: Version) -> bool:
        """True if a newer version of the group than this one is known, and has the member."""
        facts = self._facts.get(group_id)
        return facts is not None and facts.version > version and member_id in facts.members

    def living(self, group_id: str) -> Container[str]:
        """Return the members of a group that keep their records."""
        facts = self._facts.get(group_id)
        if facts is None:
            return frozenset()
        gone, never = self._gone, (0.0, (-1, -1))
        return frozenset(member for member in facts.members if gone.get((group_id, member), never)[1] < facts.version)
