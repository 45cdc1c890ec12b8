"""The group's ordinary committed offset, which is the stable offset for every tool.

Where the server that keeps a group's state is its coordinator, too, it writes both in one piece, and nothing is done
here. In a fleet the offset is Kafka's: a member says what stands there when it begins with a partition, so that an
administrator's reset counts, and whoever holds hash 0 keeps it at the stable offset. Who has written it for the first
time says so once more: else a group that is deleted at the brokers afterwards looks like one
of which nothing was ever committed there, and what its members had committed would come back with its name.

Which of the two it is shows by itself: what is read after the server told a stable offset is at that or beyond where it
writes both. Three times in a row, with the stable offset further each time, and it is not looked at any more.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError, check
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import OffsetFetchRequest, OffsetToCommit
from flowshare.protocol.messages.cooperative import STABLE_METADATA, GroupOffset, offset_of

if TYPE_CHECKING:
    from flowshare.client.cooperative.assigning import Place
    from flowshare.client.cooperative.partitions import Partition, Partitions
    from flowshare.client.net.link import Link
    from flowshare.clock import Clock

EXACT_AFTER: Final = 3
LOOK_S: Final = 1.0
"""How often the group's ordinary offset is looked at."""
REFRESH_S: float = 86_400.0
"""How often a member that is in no round of the group commits its ordinary offsets again, though they are where they
were: Kafka lets what such a one committed expire, counted from then (offsets.retention.minutes, 7 days)."""
LIMIT_S: Final = 5.0

logger = logging.getLogger(__name__)


class OrdinaryOffsets:
    """One member's reads and commits of the group's ordinary offsets.

    mine: tells if this member keeps a partition's ordinary offset. commit: commits in the name of the group's member.
    ages: True if the offsets expire while the member lives, because it takes part in no rebalance of the group.
    """

    def __init__(
        self,
        link: Link,
        partitions: Partitions,
        group_id: str,
        *,
        clock: Clock,
        mine: Callable[[Partition], bool],
        commit: Callable[[Sequence[OffsetToCommit]], Awaitable[object]],
        ages: bool,
    ) -> None:
        self._link = link
        self._partitions = partitions
        self._group_id = group_id
        self._clock = clock
        self._mine = mine
        self._commit = commit
        self._exact = 0
        self._written = False
        self._refresh_at_s = clock.monotonic() + REFRESH_S if ages else math.inf

    async def committed(self, places: Iterable[Place]) -> dict[Place, GroupOffset]:
        """Return the partitions' committed offsets; −1: none. Raises: ServerError, OSError, ClientError."""
        asked = tuple(places)
        answer = await self._link.send(OffsetFetchRequest(group_id=self._group_id, partitions=asked))
        check(answer.error, answer.message, f"group {self._group_id}: committed offsets")
        found = {
            (one.topic, one.partition): GroupOffset(one.offset, one.metadata or "")
            for one in answer.partitions
            if one.error is ErrorCode.NONE
        }
        return {place: found.get(place, GroupOffset(-1)) for place in asked}

    async def follow_loop(self) -> None:
        """Look now and then, until the server is seen to write them itself."""
        while not self._server_writes:
            await self._clock.sleep(LOOK_S)
            await self.follow()
        await asyncio.Event().wait()

    async def follow(self) -> None:
        """Have the ordinary offsets of the group be the stable ones, where that is this member's to see to."""
        mine = [one for one in self._partitions if self._mine(one) and self._partitions.live(one)]
        try:
            now_s = self._clock.monotonic()
            again = now_s >= self._refresh_at_s
            await self._clock.wait_for(self._follow(mine, again=again), LIMIT_S)
            self._refresh_at_s = now_s + REFRESH_S if again else self._refresh_at_s
            if any(not one.begun for one in mine):
                self._partitions.to_hold.set()
        except (OSError, ClientError, TimeoutError) as error:
            logger.debug("group=%s: its ordinary offsets are not the stable ones yet: %s", self._group_id, error)

    @property
    def _server_writes(self) -> bool:
        """True if the server writes the ordinary offsets itself."""
        return self._exact >= EXACT_AFTER and not self._written

    async def _follow(self, partitions: Sequence[Partition], *, again: bool) -> None:
        """Keep them at the stable offsets, where the server does not. again: commit those that are there, too.

        Raises: ServerError, OSError, ClientError.
        """
        moved = [one for one in partitions if again or one.scan.progress.stable != one.mirrored]
        if not moved or self._server_writes:
            return
        stable = {one: (one.scan.progress.stable, one.stable_metadata) for one in moved}
        there = await self.committed([one.place for one in moved])
        behind: list[OffsetToCommit] = []
        for one, (offset, said) in stable.items():
            found = offset_of(one.topic_id, there[one.place])
            ours = found.offset < 0 or found.metadata.startswith(STABLE_METADATA)
            if ours and found.offset < offset + again:
                behind.append(OffsetToCommit(*one.place, offset, metadata=said))
        if behind:
            self._written = True
            await self._commit(behind)
            written = {(one.topic, one.partition) for one in behind}
            for partition in moved:
                if partition.place in written and not partition.shown:
                    partition.shown, partition.begun = True, False
        else:
            self._exact += 1
        for partition in moved:
            partition.mirrored = stable[partition][0]
