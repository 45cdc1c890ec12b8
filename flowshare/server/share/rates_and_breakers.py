"""`share.max.rate` and breakers on a server that leads all its share-partitions: it is leader and coordinator in one
(`share.rate`, `share.breaker`).

Every `TICK_S`, or later if no permit is due before, each group with a rate or a breaker, and a loaded share-partition,
gets the permits that have come since. Nothing ticks where no group has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.share.breaker import Breaker, BreakerRule, Told
from flowshare.share.rate import RateLeases, RateReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock, TimerHandle
    from flowshare.server.share.quotas import Quotas
    from flowshare.share.config import GroupConfig
    from flowshare.share.rate import Permits

TICK_S: Final = 0.02
TICK_MAX_S: Final = 0.2
"""Most seconds until a handed-out record is noticed; shorter than the time that fills the bucket."""
_HERE: Final = 0
_NOT_KNOWN: Final = Told()


class KeptBreaker(NamedTuple):
    """A group's breaker and its present rule."""

    breaker: Breaker
    rule: BreakerRule


class Pacing:
    """Lets records through by the groups' rates and breakers."""

    def __init__(self, config_of: Callable[[str], GroupConfig], clock: Clock) -> None:
        self._config_of = config_of
        self._clock = clock
        self._leases: dict[str, RateLeases] = {}
        self._breakers: dict[str, Breaker] = {}
        self._quotas: Quotas | None = None
        self._timer: TimerHandle | None = None

    def begin(self, quotas: Quotas) -> None:
        """Tick until no group has a rate or a breaker."""
        if self._timer is None:
            self._quotas = quotas
            self._timer = self._clock.call_later(0, self._tick)

    def breaker(self, group_id: str) -> KeptBreaker | None:
        """Return a group's breaker; None: it has none."""
        rule = self._config_of(group_id).breaker
        if rule is None:
            self._breakers.pop(group_id, None)
            return None
        breaker = self._breakers.get(group_id)
        if breaker is None:
            breaker = self._breakers[group_id] = Breaker(self._clock.steady_ms())
        return KeptBreaker(breaker, rule)

    def look(self) -> None:
        """Follow a possible change of a breaker at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._tick()

    def close(self) -> None:
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        assert self._quotas is not None
        self._quotas.ask_again()
        paced = self._quotas.paced
        for known in (self._leases, self._breakers):
            for group_id in known.keys() - paced.keys():
                del known[group_id]
        next_s = TICK_MAX_S
        for group_id, permits in paced.items():
            next_s = min(next_s, self._let_through(self._quotas, group_id, permits))
        if paced:
            self._timer = self._clock.call_later(max(TICK_S, next_s), self._tick)

    def _let_through(self, quotas: Quotas, group_id: str, permits: Permits) -> float:
        """Give one group its permits; return the seconds until the next ones."""
        now_ms, next_s = self._clock.steady_ms(), TICK_MAX_S
        kept = self.breaker(group_id)
        if kept is not None:
            report = permits.report_gate(_NOT_KNOWN)
            report = report._replace(wanting=permits.asked() or report.wanting)
            quotas.open_gate(group_id, kept.breaker.lease(_HERE, report, kept.rule, now_ms))
        rate = self._config_of(group_id).max_rate
        if rate is not None:
            leases = self._leases.get(group_id)
            if leases is None:
                leases = self._leases[group_id] = RateLeases(now_ms)
            report_rate = RateReport(permits.free or 0, 0, wanting=True)
            quotas.add(group_id, leases.grant(_HERE, report_rate, rate, now_ms))
            next_s = leases.next_s(rate)
        return next_s
