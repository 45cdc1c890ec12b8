"""A group's `share.max.in.flight` over a whole fleet: its coordinator leases each leader a part (`share.leases`).

A leader that has share-partitions of such a group reports ten times a second; without a valid lease it hands out
nothing. Records that a leader took over with a slot count as its own at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError
from flowshare.server.failures import Refused
from flowshare.share.leases import LEASE_MS, Leases, Report
from flowshare.slots.places import group_slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.fleet.views import Views
    from flowshare.server.share_service import ShareService
    from flowshare.share.config import GroupConfig

LEASE: Final = "fleet_lease"
"""{"group_id", "node", "in_flight", "wanting", "leased"} -> {"lease"}."""
REPORT_S: Final = 0.1
"""Pause between two reports of a leader that hands records out."""
ASK_S: Final = 1.0

Body = dict[str, Any]

logger = logging.getLogger(__name__)


class FleetLimits:
    """Both sides of one worker. `service` is set by who makes both.

    check: raises Refused when a group is not coordinated here.
    """

    def __init__(
        self, *, directory: Directory, peers: Peers, views: Views, check: Callable[[str], None], clock: Clock
    ) -> None:
        self._directory = directory
        self._peers = peers
        self._views = views
        self._check = check
        self._clock = clock
        self._leased: dict[str, tuple[int, float]] = {}
        self._given: dict[tuple[str, int], Leases] = {}
        self._task: asyncio.Task[None] | None = None
        self.service: ShareService

    def start(self) -> None:
        """Begin to report."""
        self._task = asyncio.create_task(self._run(), name="leases of group limits")

    async def close(self) -> None:
        """Report no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- as leader ----------------------------------------------------------------------------------------------

    def acting(self, config: GroupConfig, group_id: str) -> GroupConfig:
        """A group's settings with what this worker was leased of its limit."""
        if config.max_in_flight is None:
            return config
        return replace(config, max_in_flight=self._lease(group_id))

    def _lease(self, group_id: str) -> int:
        lease, until_s = self._leased.get(group_id, (0, 0.0))
        return lease if self._clock.monotonic() < until_s else 0

    async def _run(self) -> None:
        while True:
            partitions = self.service.partitions
            limited = [
                group
                for group in partitions.groups()
                if self._views.config_of(group).max_in_flight is not None and partitions.owners(group)
            ]
            if limited:
                await asyncio.gather(*(self._renew(group) for group in limited))
            for group_id in self._leased.keys() - set(limited):
                del self._leased[group_id]
            await self._clock.sleep(REPORT_S)

    async def _renew(self, group_id: str) -> None:
        before = self._lease(group_id)
        quota = self.service.partitions.quota(group_id)
        report = Report(
            in_flight=0 if quota is None else quota.in_flight,
            wanting=quota is not None and quota.wanting,
            leased=before,
        )
        asked_s = self._clock.monotonic()
        try:
            lease = await self._ask(group_id, report)
        except (OSError, ClientError, Refused) as error:
            logger.debug("no lease of the limit of group %s: %s", group_id, error)
        else:
            self._leased[group_id] = lease, asked_s + LEASE_MS / 1000
        if self._lease(group_id) != before:
            self.service.partitions.configure(group_id)

    async def _ask(self, group_id: str, report: Report) -> int:
        """Raises: OSError, ClientError, Refused."""
        place = self._directory.place
        node, _ = self._directory.leader(group_slot(group_id, self._directory.slots))
        if place is None or node < 0 or node == place.node_id:
            return self._grant(group_id, 0 if place is None else place.node_id, report)
        told = {"node": 0 if place is None else place.node_id, **report._asdict()}
        answer = await self._peers.call(node, LEASE, limit_s=ASK_S, group_id=group_id, **told)
        return int(answer["lease"])

    # --- as coordinator -----------------------------------------------------------------------------------------

    async def answer(self, body: Body) -> Body:
        """A leader's report. Raises: Refused."""
        report = Report(int(body["in_flight"]), bool(body["wanting"]), int(body["leased"]))
        return {"lease": self._grant(str(body["group_id"]), int(body["node"]), report)}

    def _grant(self, group_id: str, node: int, report: Report) -> int:
        """Raises: Refused."""
        self._check(group_id)
        limit = self.service.configs.acting(group_id).max_in_flight
        if limit is None:
            return report.in_flight  # its settings have changed; the leader hears of it
        claim = self._directory.claim(group_slot(group_id, self._directory.slots))
        key = group_id, 0 if claim is None else claim.epoch
        now_ms = int(self._clock.monotonic() * 1000)
        leases = self._given.get(key)
        if leases is None:
            for old in [one for one in self._given if one[0] == group_id]:
                del self._given[old]
            leases = self._given[key] = Leases(begun_ms=now_ms)
        return leases.grant(node, report, limit, now_ms)
