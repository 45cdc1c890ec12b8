"""A feeder's fetches: one after the other, and the next may leave before what the last one brought is read.

A broker takes 1 to 2 ms for a fetch with acknowledgements, reading 1,000 records 0.5 ms: in turns, each waits for the
other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

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
STEPS_TO_SOCKET: Final = 3
"""Turns of the loop from a fetch's task to its request's way to the socket."""


def number_of(fetched: Iterable[Fetched]) -> int:
    """How many offsets were acquired."""
    return sum(last - first + 1 for part in fetched for first, last, _ in part.acquired)


class Asker:
    """Fetches over one member; on the service loop."""

    def __init__(self, member: Member, *, name: str, clock: Clock) -> None:
        self._member = member
        self._name = name
        self._clock = clock
        self._ahead: asyncio.Task[list[Fetched]] | None = None
        self._record_bytes = 0

    @property
    def asked(self) -> bool:
        """Whether a fetch is under way that nobody has waited for yet."""
        return self._ahead is not None

    async def fetch(self, room: int) -> list[Fetched]:
        """What the fetch that left ahead brings, or one for `room` records. Raises: as the member's `fetch`."""
        ahead, self._ahead = self._ahead, None
        return await (ahead or self._fetch(room))

    async def send_ahead(self, room: int) -> None:
        """Let a fetch for `room` records leave now."""
        self._ahead = asyncio.create_task(self._fetch(room), name=f"fetch ahead {self._name}")
        for _ in range(STEPS_TO_SOCKET):
            await self._clock.sleep(0)

    async def stop(self) -> list[Fetched]:
        """No fetch any more; what the one ahead had brought. The member has what is still under way."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return []
        ahead.cancel()
        (found,) = await asyncio.gather(ahead, return_exceptions=True)
        return [] if isinstance(found, BaseException) else found

    async def _fetch(self, room: int) -> list[Fetched]:
        bytes_max = min(FETCH_BYTES_MAX, max(FETCH_BYTES_USUAL, 2 * room * self._record_bytes))
        fetched = await self._member.fetch(
            records_max=room, max_wait_s=FETCH_WAIT_S, bytes_max=bytes_max, mode=AcquireMode.RECORD_LIMIT
        )
        if fetched:
            self._record_bytes = sum(len(part.records) for part in fetched) // max(1, number_of(fetched))
        return fetched
