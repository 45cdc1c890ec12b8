"""`share.max.rate` on a server that leads all its share-partitions: it is leader and coordinator in one (`share.rate`).

Every `TICK_S`, or later where nothing comes before, each group that has a rate and something loaded is let through what
has come since. Nothing ticks where no group has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.share.rate import RateLeases, RateReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock, TimerHandle
    from flowshare.server.share.quotas import Quotas
    from flowshare.share.config import GroupConfig

TICK_S: Final = 0.02
TICK_MAX_S: Final = 0.2
"""So late it is seen that something was handed out; sooner than what may come meanwhile fills the bucket."""
_HERE: Final = 0


class Pacing:
    """Lets records through by the groups' rates."""

    def __init__(self, config_of: Callable[[str], GroupConfig], clock: Clock) -> None:
        self._config_of = config_of
        self._clock = clock
        self._leases: dict[str, RateLeases] = {}
        self._quotas: Quotas | None = None
        self._timer: TimerHandle | None = None

    def begin(self, quotas: Quotas) -> None:
        """There is a group with a rate: tick until there is none."""
        if self._timer is None:
            self._quotas = quotas
            self._timer = self._clock.call_later(0, self._tick)

    def close(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        assert self._quotas is not None
        now_ms = self._clock.steady_ms()
        paced = self._quotas.paced
        for group_id in self._leases.keys() - paced.keys():
            del self._leases[group_id]
        next_s = TICK_MAX_S
        for group_id, permits in paced.items():
            rate = self._config_of(group_id).max_rate
            if rate is None:
                continue  # its share-partitions hear of it at once
            leases = self._leases.get(group_id)
            if leases is None:
                leases = self._leases[group_id] = RateLeases(now_ms)
            held = permits.free or 0
            self._quotas.add(group_id, leases.grant(_HERE, RateReport(held, 0, wanting=True), rate, now_ms))
            next_s = min(next_s, leases.next_s(rate))
        if paced:
            self._timer = self._clock.call_later(max(TICK_S, next_s), self._tick)
