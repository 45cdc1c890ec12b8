"""The group's ordinary committed offset, which is the stable offset for every tool.

Where the server that keeps a group's state is its coordinator, too, it writes both in one piece, and nothing is done
here. In a fleet the offset is Kafka's: a member says what stands there when it begins with a partition, so that an
administrator's reset counts, and whoever holds hash 0 (in free mode anybody) keeps it at the stable offset. Who has
written it for the first time says so once more: else a group that is deleted at the brokers afterwards looks like one
of which nothing was ever committed there, and what its members had committed would come back with its name.

Which of the two it is shows by itself: what is read after the server told a stable offset is at that or beyond where it
writes both. Three times in a row, with the stable offset further each time, and it is not looked at any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import check
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import OffsetFetchRequest, OffsetToCommit
from flowshare.protocol.messages.cooperative import STABLE_METADATA, GroupOffset, stable_metadata

if TYPE_CHECKING:
    from flowshare.client.cooperative.assigning import Place
    from flowshare.client.cooperative.partitions import Partition
    from flowshare.client.net.link import Link

EXACT_AFTER: Final = 3


class OrdinaryOffsets:
    """What a member sees and does of them. commit: in the name of the group's member."""

    def __init__(
        self, link: Link, group_id: str, commit: Callable[[Sequence[OffsetToCommit]], Awaitable[object]]
    ) -> None:
        self._link = link
        self._group_id = group_id
        self._commit = commit
        self._exact = 0
        self._written = False

    @property
    def settled(self) -> bool:
        """Whether the server writes them itself."""
        return self._exact >= EXACT_AFTER and not self._written

    async def committed(self, places: Iterable[Place]) -> dict[Place, GroupOffset]:
        """What is committed. Raises: ServerError, OSError, ClientError."""
        asked = tuple(places)
        answer = await self._link.send(OffsetFetchRequest(group_id=self._group_id, partitions=asked))
        check(answer.error, answer.message, f"group {self._group_id}: committed offsets")
        found = {
            (one.topic, one.partition): GroupOffset(one.offset, one.metadata or "")
            for one in answer.partitions
            if one.error is ErrorCode.NONE
        }
        return {place: found.get(place, GroupOffset(-1)) for place in asked}

    async def follow(self, partitions: Sequence[Partition]) -> None:
        """Keep them at the stable offsets, where the server does not. Raises: ServerError, OSError, ClientError."""
        moved = [one for one in partitions if one.scan.progress.stable != one.mirrored]
        if not moved or self.settled:
            return
        stable = {one.place: one.scan.progress for one in moved}
        there = await self.committed(stable)
        behind: list[OffsetToCommit] = []
        for place, progress in stable.items():
            offset, metadata = there[place]
            ours = offset < 0 or metadata.startswith(STABLE_METADATA)
            if ours and offset < progress.stable:
                said = stable_metadata(progress.reset_epoch)
                behind.append(OffsetToCommit(*place, progress.stable, metadata=said))
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
            partition.mirrored = stable[partition.place].stable
