"""The room of an agent: how many records to ask for beside what it holds.

It is what the handlers finish soon, less what they have. Against a broker the record locks bound it too: they are
shared with the other members of the group, and a fetch takes a part of an agent's own, never all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flowshare.agents.acks import AckSender
    from flowshare.agents.crowd import Crowd
    from flowshare.agents.delays import Delays
    from flowshare.agents.held import Holdings
    from flowshare.agents.prefetch import Prefetch
    from flowshare.agents.reading import Reader

UNCONFIRMED_MAX: Final = 50_000
"""Acknowledgements without an answer; with so many nothing is asked for."""
FEW: Final = 32
"""Records of a fetch that are handed to the handlers before the next fetch leaves."""


class Room:
    """Says how many records to ask for; on the service loop."""

    __slots__ = ("_acks", "_delays", "_held", "_prefetch", "_reader", "crowd", "paused")

    def __init__(
        self, prefetch: Prefetch, held: Holdings, acks: AckSender, reader: Reader, delays: Delays | None
    ) -> None:
        """delays: holds records that no handler waits for, where servers have no delayed release."""
        self._prefetch = prefetch
        self._held = held
        self._acks = acks
        self._reader = reader
        self._delays = delays
        self.crowd: Crowd | None = None
        """Who shares the record locks; None where servers count what each member holds."""
        self.paused = False
        """Whether nothing is asked for. Set by any thread."""

    def more(self, unread: int = 0) -> int:
        """How many records to ask for; 0 when it is not worth asking.

        unread: records that were fetched and are not held yet.
        """
        target, held = self._target()
        room = target - held - unread
        if self.paused or room < max(1, target // 4) or self._acks.unconfirmed >= UNCONFIRMED_MAX:
            return 0
        return room if self.crowd is None else min(room, self.crowd.part)

    def ahead(self, unread: int) -> int:
        """The same before what came is read; 0 too where few came, which are read sooner than a fetch has left."""
        return self.more(unread) if unread > FEW else 0

    def whole(self, room: int) -> bool:
        """Whether batches may come whole: where no other member waits for its part, and they are no longer than it."""
        return self.crowd is not None and self.crowd.members == 1 and 0 < self._reader.batch_records <= room

    def _target(self) -> tuple[int, int]:
        """How many records to hold, and how many are held that handlers wait for."""
        if self.crowd is None or self._delays is None:
            return self._prefetch.target, self._held.outstanding
        self._delays.locks = self.crowd.share
        return min(self._prefetch.target, self.crowd.share), self._held.outstanding - self._delays.parked
