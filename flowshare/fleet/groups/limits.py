"""A group's `share.max.in.flight`, `share.max.rate` and breaker over a whole fleet: its coordinator leases a part of
each to every leader, in one round (`share.leases`, `share.rate`, `share.breaker`).

A leader that has share-partitions of such a group reports ten times a second; without a valid lease it hands out
nothing. Records that a leader took over with a slot count as its own at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ClientError
from flowshare.fleet.directory import NOBODY
from flowshare.fleet.messages import LeaseRequest, LeaseResponse
from flowshare.server.runtime.failures import Refused
from flowshare.server.share.rates_and_breakers import KeptBreaker
from flowshare.share.breaker import Breaker, BreakerState, Gate, GateReport, Told
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

REPORT_S: Final = 0.1
"""Pause between two reports of a leader that hands records out."""
ASK_S: Final = 1.0

logger = logging.getLogger(__name__)


class _Report(NamedTuple):
    """Report of a leader about one group."""

    in_flight: Report
    rate: RateReport
    gate: GateReport

    def beside(self, gate: Gate) -> _Report:
        """Return the report for a breaker that is not closed: only a leader that is let through wants parts of the
        other limits; other leaders' parts would be missing where they can be used."""
        if gate.told.state is BreakerState.CLOSED:
            return self
        wanting = gate.more > 0
        return self._replace(
            in_flight=self.in_flight._replace(wanting=wanting), rate=self.rate._replace(wanting=wanting)
        )


class _Given(NamedTuple):
    """Leases and breaker of one group at its coordinator."""

    in_flight: Leases
    rate: RateLeases
    breaker: Breaker


class _Known(NamedTuple):
    """State of a breaker as a leader was told it, and the time of the telling."""

    told: Told
    at_ms: int

    def at(self, now_ms: int) -> Told:
        """Return the present state."""
        return self.told._replace(left_ms=max(0, self.told.left_ms - (now_ms - self.at_ms)))


@dataclass(eq=False, kw_only=True)
class FleetLimits:
    """Both sides of one worker, coordinator and leader. The maker sets `service`.

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
    _told: dict[str, _Known] = field(default_factory=dict[str, _Known], init=False)
    _failing: set[str] = field(default_factory=set[str], init=False)
    """Groups whose leases cannot be renewed by a fault that does not pass by itself: logged once each."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin to report."""
        self._task = asyncio.create_task(self._run(), name="leases of group limits")

    async def close(self) -> None:
        """Stop reporting."""
        await cancelled(self._task)

    # --- as leader ----------------------------------------------------------------------------------------------

    def acting(self, config: GroupConfig, group_id: str) -> GroupConfig:
        """Return a group's settings with this worker's leased part of its limit."""
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
            for known in (self._leased, self._told):
                for group_id in known.keys() - set(limited):
                    del known[group_id]
            self._failing.intersection_update(limited)
            await self.clock.sleep(REPORT_S)

    def _is_limited(self, group_id: str) -> bool:
        config = self.known_groups.config_of(group_id)
        return config.max_in_flight is not None or config.max_rate is not None or config.breaker is not None

    async def _renew(self, group_id: str) -> None:
        before = self._lease(group_id)
        quota = self.service.partitions.quota(group_id)
        report = self._report(group_id, quota, before)
        asked_s = self.clock.monotonic()
        try:
            granted = await self._ask(group_id, report)
            self.service.partitions.open_gate(group_id, granted.gate)
            self.service.partitions.let_through(group_id, granted.more)
            self._told[group_id] = _Known(granted.gate.told, self.clock.steady_ms())
            self._leased[group_id] = granted.lease, asked_s + LEASE_MS / 1000  # last: only what was taken in counts
            self._failing.discard(group_id)
        except (OSError, ClientError, Refused) as error:
            logger.debug("no lease of the limits of group %s: %s", group_id, error)
        except Exception:  # it must not end the leases of all groups
            if group_id not in self._failing:
                self._failing.add(group_id)
                logger.exception(
                    "this worker hands out no records of group %s until its coordinator's answers can be used; "
                    "if the fleet's workers have several versions, give them one",
                    group_id,
                )
        if group_id not in self._leased or self.clock.monotonic() >= self._leased[group_id][1]:
            self._hold_back(quota)
        acting = before if quota is None else quota.allotment.limit
        if acting is not None and self._lease(group_id) != acting:  # also when a lease ran out during the sleep
            self.service.partitions.configure(group_id)

    def _report(self, group_id: str, quota: Quota | None, leased: int) -> _Report:
        if quota is None:
            return _Report(Report(0, False, leased), RateReport(0, 0, False), GateReport())
        in_flight, permits = Report(quota.in_flight, quota.wanting, leased), quota.permits
        if permits is None:
            return _Report(in_flight, RateReport(0, 0, False), GateReport())
        in_flight = in_flight._replace(used=permits.spent)
        quota.ask_again()
        known = self._told.get(group_id)
        gate = permits.report_gate(Told() if known is None else known.at(self.clock.steady_ms()))
        return _Report(in_flight, permits.report(full=quota.allotment.used_up), gate)

    def _hold_back(self, quota: Quota | None) -> None:
        """Void the unused permits of a group: the coordinator counts them as spent."""
        permits = None if quota is None else quota.permits
        if quota is None or permits is None:
            return
        permits.free = None if permits.free is None else 0
        permits.gate = 0 if quota.breaks else None

    async def _ask(self, group_id: str, report: _Report) -> LeaseResponse:
        """Ask the coordinator for a grant. Raises OSError, ClientError, Refused."""
        place = self.directory.place
        me = 0 if place is None else place.node_id
        node = self.directory.group_leader(group_id)
        if place is None or node in (NOBODY, me):
            return self._grant(group_id, me, report)
        asked = LeaseRequest(group_id=group_id, node=me, **report._asdict())
        return await self.peers.call(node, asked, limit_s=ASK_S)

    # --- as coordinator -----------------------------------------------------------------------------------------

    async def answer(self, request: LeaseRequest) -> LeaseResponse:
        """Answer a leader's report. Raises Refused."""
        return self._grant(request.group_id, request.node, _Report(request.in_flight, request.rate, request.gate))

    def breaker(self, group_id: str, /) -> KeptBreaker | None:
        """Return a group's breaker, for `server.share.groups`. Raises Refused."""
        self.check(group_id)
        rule = self.service.configs.acting(group_id).breaker
        if rule is None:
            self._forget_breaker(group_id)
            return None
        return KeptBreaker(self._given_of(group_id).breaker, rule)

    def _forget_breaker(self, group_id: str) -> None:
        """Close a breaker that was turned off: turned on again it is closed."""
        given = self._given.get((group_id, self.directory.group_epoch(group_id)))
        if given is not None:
            given.breaker.close()

    def _grant(self, group_id: str, node: int, report: _Report) -> LeaseResponse:
        """Return a grant. Raises Refused."""
        self.check(group_id)
        config = self.service.configs.acting(group_id)
        lease, more, gate = report.in_flight.in_flight, 0, Gate(Told())
        if config.breaker is None:
            self._forget_breaker(group_id)
        if config.max_in_flight is None and config.max_rate is None and config.breaker is None:
            # The group's settings have changed; the leader hears of them.
            return LeaseResponse(lease=lease, more=more, gate=gate)
        now_ms, given = self._now_ms(), self._given_of(group_id)
        if config.breaker is not None:
            gate = given.breaker.lease(node, report.gate, config.breaker, self.clock.steady_ms())
            report = report.beside(gate)
        if config.max_in_flight is not None:
            lease = given.in_flight.grant(node, report.in_flight, config.max_in_flight, now_ms)
        if config.max_rate is not None:
            more = given.rate.grant(node, report.rate, config.max_rate, now_ms)
        return LeaseResponse(lease=lease, more=more, gate=gate)

    def _given_of(self, group_id: str) -> _Given:
        """Return the leases that this coordinator gave for a group since it became its coordinator."""
        key = group_id, self.directory.group_epoch(group_id)
        given = self._given.get(key)
        if given is None:
            for old in [one for one in self._given if one[0] == group_id]:
                del self._given[old]
            now_ms = self._now_ms()
            given = self._given[key] = _Given(
                Leases(begun_ms=now_ms), RateLeases(begun_ms=now_ms), Breaker(begun_ms=self.clock.steady_ms())
            )
        return given

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)
