"""A group's `share.max.in.flight` and `share.max.rate` over a whole fleet: its coordinator leases each leader a part of
both, in one round (`share.leases`, `share.rate`).

A leader that has share-partitions of such a group reports ten times a second; without a valid lease it hands out
nothing. Records that a leader took over with a slot count as its own at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.errors import ClientError
from flowshare.fleet.directory import NOBODY
from flowshare.server.runtime.failures import Refused
from flowshare.share.leases import LEASE_MS, Leases, Report
from flowshare.share.rate import RateLeases, RateReport
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.groups.facts import KnownGroups
    from flowshare.fleet.peers import Peers
    from flowshare.server.share.quotas import Quota
    from flowshare.server.share.service import ShareService
    from flowshare.share.config import GroupConfig

LEASE: Final = "fleet_lease"
"""{"group_id", "node", and the fields of `Report` and `RateReport`} -> {"lease", "more"}, as `Granted`."""
REPORT_S: Final = 0.1
"""Pause between two reports of a leader that hands records out."""
ASK_S: Final = 1.0

Body = dict[str, Any]

logger = logging.getLogger(__name__)


class Granted(NamedTuple):
    """lease: records that a leader may have in flight. more: so many more it may hand out."""

    lease: int
    more: int


class _Given(NamedTuple):
    """What a coordinator has leased of one group."""

    in_flight: Leases
    rate: RateLeases


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
    _given: dict[tuple[str, int], _Given] = field(default_factory=dict[tuple[str, int], _Given], init=False)
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
            limited = [group for group in partitions.groups() if self._is_limited(group) and partitions.owners(group)]
            if limited:
                await asyncio.gather(*(self._renew(group) for group in limited))
            for group_id in self._leased.keys() - set(limited):
                del self._leased[group_id]
            await self.clock.sleep(REPORT_S)

    def _is_limited(self, group_id: str) -> bool:
        config = self.known_groups.config_of(group_id)
        return config.max_in_flight is not None or config.max_rate is not None

    async def _renew(self, group_id: str) -> None:
        before = self._lease(group_id)
        quota = self.service.partitions.quota(group_id)
        report, rate = self._report(quota, before)
        asked_s = self.clock.monotonic()
        try:
            granted = await self._ask(group_id, report, rate)
        except (OSError, ClientError, Refused) as error:
            logger.debug("no lease of the limits of group %s: %s", group_id, error)
        else:
            self._leased[group_id] = granted.lease, asked_s + LEASE_MS / 1000
            self.service.partitions.let_through(group_id, granted.more)
        if group_id not in self._leased or self.clock.monotonic() >= self._leased[group_id][1]:
            self._hold_back(quota)
        acting = before if quota is None else quota.allotment.limit
        if acting is not None and self._lease(group_id) != acting:  # one that ran out while this slept, too
            self.service.partitions.configure(group_id)

    def _report(self, quota: Quota | None, leased: int) -> tuple[Report, RateReport]:
        if quota is None:
            return Report(0, False, leased), RateReport(0, 0, False)
        rate = RateReport(0, 0, False) if quota.permits is None else quota.permits.report()
        return Report(quota.in_flight, quota.wanting, leased), rate

    def _hold_back(self, quota: Quota | None) -> None:
        """What was let through is void: its coordinator counts it as spent."""
        if quota is not None and quota.permits is not None:
            quota.permits.free = 0

    async def _ask(self, group_id: str, report: Report, rate: RateReport) -> Granted:
        """Raises: OSError, ClientError, Refused."""
        place = self.directory.place
        me = 0 if place is None else place.node_id
        node = self.directory.group_leader(group_id)
        if place is None or node in (NOBODY, me):
            return self._grant(group_id, me, report, rate)
        fields = {**report._asdict(), **_fields(rate)}
        answer = await self.peers.call(node, LEASE, limit_s=ASK_S, group_id=group_id, node=me, **fields)
        return Granted(int(answer["lease"]), int(answer["more"]))

    # --- as coordinator -----------------------------------------------------------------------------------------

    async def answer(self, body: Body) -> Body:
        """A leader's report. Raises: Refused."""
        report = Report(int(body["in_flight"]), bool(body["wanting"]), int(body["leased"]))
        rate = RateReport(int(body["held"]), int(body["back"]), bool(body["lacking"]))
        return self._grant(str(body["group_id"]), int(body["node"]), report, rate)._asdict()

    def _grant(self, group_id: str, node: int, report: Report, rate: RateReport) -> Granted:
        """Raises: Refused."""
        self.check(group_id)
        config = self.service.configs.acting(group_id)
        if config.max_in_flight is None and config.max_rate is None:
            return Granted(report.in_flight, 0)  # its settings have changed; the leader hears of it
        key = group_id, self.directory.group_epoch(group_id)
        now_ms = int(self.clock.monotonic() * 1000)
        given = self._given.get(key)
        if given is None:
            for old in [one for one in self._given if one[0] == group_id]:
                del self._given[old]
            given = self._given[key] = _Given(Leases(begun_ms=now_ms), RateLeases(begun_ms=now_ms))
        lease, more = report.in_flight, 0
        if config.max_in_flight is not None:
            lease = given.in_flight.grant(node, report, config.max_in_flight, now_ms)
        if config.max_rate is not None:
            more = given.rate.grant(node, rate, config.max_rate, now_ms)
        return Granted(lease, more)


def _fields(rate: RateReport) -> Body:
    return {"held": rate.held, "back": rate.back, "lacking": rate.wanting}
