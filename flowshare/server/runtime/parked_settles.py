"""`ParkedSettles`: settles of one partition that wait until all records before theirs are finished (`ordered`).

Nothing of a parked settle is decided, so nothing of it is there when it fails, and the member asks again.

    parked ──all before it is finished──→ its turn, in the order of the offsets
      ├──`SETTLE_WAIT_MS` are over──→ REQUEST_TIMED_OUT
      ├──the group is in a newer generation (cooperative groups)──→ REBALANCE_IN_PROGRESS
      └──something else has changed, or the partition is closed──→ looks again, and is told why
    `WAITING_MAX` wait ──→ THROTTLING_QUOTA_EXCEEDED: the member waits
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowshare.cooperative.pending import StableWait
from flowshare.core_errors import RebalanceInProgress
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.share import SETTLE_WAIT_MS
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.clock import Clock
    from flowshare.cooperative.ranges import Pair


class ParkedSettles:
    """The parked settles of one partition of one group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: StableWait[asyncio.Future[None]] = StableWait(wait_ms=SETTLE_WAIT_MS)
        self._generation = 0

    def __len__(self) -> int:
        return len(self._waits)

    async def turn(self, ranges: list[Pair], generation: int, until_ms: int) -> None:
        """Wait for the turn of these half-open ranges, or for something to change.

        Raises: BoundReached, RebalanceInProgress, Refused (it is not their turn until then).
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.park(future, ranges, generation, self._clock.steady_ms())
        try:
            await self._clock.wait_for(future, max(0, until_ms - self._clock.steady_ms()) / 1000)
        except TimeoutError:
            first = min(first for first, _ in ranges)
            raise Refused(
                ErrorCode.REQUEST_TIMED_OUT, f"not all records before offset {first} were finished in time; ask again"
            ) from None
        finally:
            self._waits.abort(future)

    def release(self, stable: int) -> None:
        """All records before this offset are finished: wake the settles that begin there or before."""
        _wake(self._waits.release(stable))

    def rebalanced(self, generation: int) -> None:
        """A member knows the group in this generation; a newer one than before fails whoever waits since an older."""
        if generation > self._generation:
            self._generation = generation
            for future in self._waits.fail_older(generation):
                if not future.done():
                    future.set_exception(RebalanceInProgress("the group has rebalanced; ask again"))

    def look(self) -> None:
        """Wake all parked settles: each sees whether it may go on waiting."""
        _wake(self._waits.expire(self._clock.steady_ms() + SETTLE_WAIT_MS))


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
