"""Settles of one partition that wait until all offsets before theirs are committed (`ordered`), before anything of them
is decided: so nothing is there of one that is failed here, and whoever asked asks again.

    parked ──all offsets before it are committed──→ its turn, in the order of the offsets
      ├──`PARK_MS` are over──→ REQUEST_TIMED_OUT
      ├──the group is in a newer generation──→ REBALANCE_IN_PROGRESS
      └──keys went to another member, or the partition is closed──→ looks again, and is told why
    `WAITING_MAX` wait ──→ THROTTLING_QUOTA_EXCEEDED: whoever asked waits
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from flowshare.cooperative.pending import StableWait
from flowshare.core_errors import RebalanceInProgress
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.clock import Clock
    from flowshare.cooperative.ranges import Pair

PARK_MS: Final = 5_000
"""How long one waits here; a member asks again at once."""


class ParkedSettles:
    """Those of one partition."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: StableWait[asyncio.Future[None]] = StableWait(wait_ms=PARK_MS)
        self._generation = 0

    def __len__(self) -> int:
        return len(self._waits)

    async def turn(self, ranges: list[Pair], generation: int, until_ms: int) -> None:
        """Wait for the turn of these, or for something to change.

        Raises: BoundReached, RebalanceInProgress, Refused (it is not their turn until then).
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.park(future, ranges, generation, self._clock.steady_ms())
        try:
            await self._clock.wait_for(future, max(0, until_ms - self._clock.steady_ms()) / 1000)
        except TimeoutError:
            first = min(first for first, _ in ranges)
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT, f"not all offsets before {first} were committed in time; ask again"
            ) from None
        finally:
            self._waits.abort(future)

    def release(self, stable: int) -> None:
        """All offsets before this one are committed."""
        _wake(self._waits.release(stable))

    def rebalanced(self, generation: int) -> None:
        """A member knows the group in this generation; a newer one than before fails whoever waits since an older."""
        if generation > self._generation:
            self._generation = generation
            for future in self._waits.fail_older(generation):
                if not future.done():
                    future.set_exception(RebalanceInProgress("the group has rebalanced; ask again"))

    def look(self) -> None:
        """Something else has changed: each sees whether it may wait still."""
        _wake(self._waits.expire(self._clock.steady_ms() + PARK_MS))


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
