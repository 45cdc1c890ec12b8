"""A feeder's fetches: one after the other, and the next may leave before what the last one brought is read.

A broker takes 1 to 2 ms for a fetch with acknowledgements, reading 1,000 records 0.5 ms: in turns, each waits for the
other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.client.fetching import Plan
from flowshare.share.types import AcquireMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.agents.pair import Member
    from flowshare.client.member import Fetched
    from flowshare.clock import Clock

FETCH_BYTES_MAX: Final = 16 << 20
FETCH_BYTES_USUAL: Final = 1 << 20
"""What a fetch allows as long as its records need no more: a broker looks at every batch of what it may send."""
FETCH_WAIT_S: Final = 0.5


def number_of(fetched: Iterable[Fetched]) -> int:
    """How many offsets were acquired."""
    return sum(last - first + 1 for part in fetched for first, last, _ in part.acquired)


class Asker:
    """Fetches over one member; on the service loop."""

    def __init__(self, member: Member, *, clock: Clock) -> None:
        self._member = member
        self._clock = clock
        self._record_bytes = 0
        self.asked = False
        """Whether a fetch is under way that nobody has waited for yet."""

    async def fetch(self, room: int, *, whole: bool = False) -> list[Fetched]:
        """What the fetch that left ahead brings, or one for `room` records. Raises: ServerError, Closed.

        whole: record batches may come whole, with more records than there is room for; a part of one costs the
        broker and the member as many bytes as all of it.
        When it is cancelled, what was under way is left to the member's `last_fetch`.
        """
        if not self.asked:
            self._ask(room, whole)
        self.asked = False
        fetched = await self._member.fetched()
        if fetched:
            self._record_bytes = sum(len(part.records) for part in fetched) // max(1, number_of(fetched))
        return fetched

    async def send_ahead(self, room: int, *, whole: bool = False) -> None:
        """Let a fetch for `room` records leave now. Raises: ServerError, Closed."""
        self._ask(room, whole)
        self.asked = True
        await self._clock.sleep(0)

    def _ask(self, room: int, whole: bool) -> None:
        mode = AcquireMode.BATCH_OPTIMIZED if whole else AcquireMode.RECORD_LIMIT
        bytes_max = min(FETCH_BYTES_MAX, max(FETCH_BYTES_USUAL, 2 * room * self._record_bytes))
        self._member.ask(Plan(room, room, FETCH_WAIT_S, bytes_max, mode))
