"""A group's `share.max.in.flight` over a whole fleet: its coordinator leases each leader a part (`share.leases`).

A leader that has share-partitions of such a group reports ten times a second; without a valid lease it hands out
nothing. Records that a leader took over with a slot count as its own at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError
from flowshare.fleet.directory import NOBODY
from flowshare.server.runtime.failures import Refused
from flowshare.share.leases import LEASE_MS, Leases, Report
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.facts import KnownGroups
    from flowshare.fleet.peers import Peers
    from flowshare.server.share.service import ShareService
    from flowshare.share.config import GroupConfig

LEASE: Final = "fleet_lease"
"""{"group_id", "node", "in_flight", "wanting", "leased"} -> {"lease"}."""
REPORT_S: Final = 0.1
"""Pause between two reports of a leader that hands records out."""
ASK_S: Final = 1.0

Body = dict[str, Any]

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class FleetLimits:
    """Both sides of one worker. `service` is set by who makes both.

    check: raises Refused when a group is not coordinated here.
    """

    directory: Directory
    peers: Peers
    known_groups: KnownGroups
    check: Callable[[str], None]
    clock: Clock
    service: ShareService = field(init=False)
    _leased: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]], init=False)
    _given: dict[tuple[str, int], Leases] = field(default_factory=dict[tuple[str, int], Leases], init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin to report."""
        self._task = asyncio.create_task(self._run(), name="leases of group limits")

    async def close(self) -> None:
        """Report no more."""
        await cancelled(self._task)

    # --- as leader ----------------------------------------------------------------------------------------------

    def acting(self, config: GroupConfig, group_id: str) -> GroupConfig:
        """A group's settings with what this worker was leased of its limit."""
        if config.max_in_flight is None:
            return config
        return replace(config, max_in_flight=self._lease(group_id))

    def _lease(self, group_id: str) -> int:
        lease, until_s = self._leased.get(group_id, (0, 0.0))
        return lease if self.clock.monotonic() < until_s else 0

    async def _run(self) -> None:
        while True:
            partitions = self.service.partitions
            limited = [
                group
                for group in partitions.groups()
                if self.known_groups.config_of(group).max_in_flight is not None and partitions.owners(group)
            ]
            if limited:
                await asyncio.gather(*(self._renew(group) for group in limited))
            for group_id in self._leased.keys() - set(limited):
                del self._leased[group_id]
            await self.clock.sleep(REPORT_S)

    async def _renew(self, group_id: str) -> None:
        before = self._lease(group_id)
        quota = self.service.partitions.quota(group_id)
        report = Report(
            in_flight=0 if quota is None else quota.in_flight,
            wanting=quota is not None and quota.wanting,
            leased=before,
        )
        asked_s = self.clock.monotonic()
        try:
            lease = await self._ask(group_id, report)
        except (OSError, ClientError, Refused) as error:
            logger.debug("no lease of the limit of group %s: %s", group_id, error)
        else:
            self._leased[group_id] = lease, asked_s + LEASE_MS / 1000
        acting = before if quota is None else quota.allotment.limit
        if self._lease(group_id) != acting:  # one that ran out while this slept, too
            self.service.partitions.configure(group_id)

    async def _ask(self, group_id: str, report: Report) -> int:
        """Raises: OSError, ClientError, Refused."""
        place = self.directory.place
        me = 0 if place is None else place.node_id
        node = self.directory.group_leader(group_id)
        if place is None or node in (NOBODY, me):
            return self._grant(group_id, me, report)
        answer = await self.peers.call(node, LEASE, limit_s=ASK_S, group_id=group_id, node=me, **report._asdict())
        return int(answer["lease"])

    # --- as coordinator -----------------------------------------------------------------------------------------

    async def answer(self, body: Body) -> Body:
        """A leader's report. Raises: Refused."""
        report = Report(int(body["in_flight"]), bool(body["wanting"]), int(body["leased"]))
        return {"lease": self._grant(str(body["group_id"]), int(body["node"]), report)}

    def _grant(self, group_id: str, node: int, report: Report) -> int:
        """Raises: Refused."""
        self.check(group_id)
        limit = self.service.configs.acting(group_id).max_in_flight
        if limit is None:
            return report.in_flight  # its settings have changed; the leader hears of it
        key = group_id, self.directory.group_epoch(group_id)
        now_ms = int(self.clock.monotonic() * 1000)
        leases = self._given.get(key)
        if leases is None:
            for old in [one for one in self._given if one[0] == group_id]:
                del self._given[old]
            leases = self._given[key] = Leases(begun_ms=now_ms)
        return leases.grant(node, report, limit, now_ms)
