"""ShareResume, flowshare's own (SG-11.9): a member that comes back after its leader was replaced tells which records it
holds.

The new leader has read from the store the records that each member had acquired. The member knows all of them but those
of an answer that died with the old leader: those go back at once, unrun, instead of waiting for their locks to lapse.
So do, as deliveries that count, records that the member let go of because there was no leader for the lock's time.
Partitions that a worker of a fleet does not lead, or cannot tell of while a settle is not decided, are named, so that
the member asks anew: silence would mean that the member holds nothing.

Of a topic that the caller may not read nothing is told and nothing is released: its locks lapse.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import InvalidRequest, UnknownTopicId, UnknownTopicOrPartition
from flowshare.log.base import NotDecided, NotLed
from flowshare.protocol.messages import HeldRanges, ShareResumeRequest, ShareResumeResponse, TopicPartition
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import Refused
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.acknowledge import check_readable
from flowshare.share.ranges import merged, minus
from flowshare.share.session import check_ids
from flowshare.share.types import AcquiredRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.partitions import Partitions

PARTITIONS_MAX: Final = 10_000
LOADS_AT_ONCE: Final = 64


class ShareResuming(Family):
    """Answers ShareResume."""

    def __init__(
        self,
        partitions: Partitions,
        topics: TopicIndex,
        resumed: Callable[[str, str], object] = lambda _, __: None,
    ) -> None:
        """resumed: called with each member's group and id before anything is looked up."""
        self._partitions = partitions
        self._topics = topics
        self._resumed = resumed

    @handles(ShareResumeRequest, ShareResumeResponse)
    async def resume(self, request: ShareResumeRequest, connection: InProcess) -> ShareResumeResponse:
        """Return the records that are still the member's, and release those that it does not know of."""
        group_id, member_id = check_ids(request.group_id, request.member_id)
        self._resumed(group_id, member_id)
        if len(request.partitions) > PARTITIONS_MAX:
            raise InvalidRequest(f"a member resumes at most {PARTITIONS_MAX} partitions")
        kept, elsewhere = list[HeldRanges](), list[TopicPartition]()
        for at in range(0, len(request.partitions), LOADS_AT_ONCE):
            parts = self._readable(request.partitions[at : at + LOADS_AT_ONCE], connection)
            found = await asyncio.gather(
                *(self._resume(group_id, member_id, part) for part in parts), return_exceptions=True
            )
            for part, answer in zip(parts, found, strict=True):
                if isinstance(answer, NotLed | NotDecided):  # asked for again, and nothing else waits for it
                    elsewhere.append(TopicPartition(part.topic_id, part.partition))
                elif isinstance(answer, UnknownTopicId | UnknownTopicOrPartition):
                    continue  # deleted: none of its records is anybody's
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    kept.append(answer)
        return ShareResumeResponse(partitions=tuple(part for part in kept if part.ranges), elsewhere=tuple(elsewhere))

    def _readable(self, partitions: Iterable[HeldRanges], connection: InProcess) -> list[HeldRanges]:
        """Return the partitions that the connection's peer may read."""
        found: list[HeldRanges] = []
        for part in partitions:
            with contextlib.suppress(Refused):
                check_readable(self._topics.by_id(part.topic_id), connection.may_read)
                found.append(part)
        return found

    async def _resume(self, group_id: str, member_id: str, told: HeldRanges) -> HeldRanges:
        """Resume one partition. Raises: NotLed, EXPECTED.

        A member tells once which records it let go of: the next leader is to find them counted, so that is durable
        first.
        """
        key = ShareKey(group_id, told.topic_id, told.partition)
        self._partitions.check_led(key)
        if not self._partitions.knows(key):
            return HeldRanges(told.topic_id, told.partition)
        owner = await self._partitions.open(key)
        await owner.all_known()  # records told as held are taken for not written, and sent again (SG-19.4)
        held = merged((run.first, run.last) for run in owner.partition.in_flight() if run.member_id == member_id)
        stray = minus(held, told.ranges)
        unseen = minus(stray, told.lapsed)
        owner.hand_back(member_id, _acquired(unseen))
        counted = owner.hand_back(member_id, _acquired(minus(stray, unseen)), unrun=False)
        if counted is not None:
            await counted
        return HeldRanges(told.topic_id, told.partition, tuple(minus(held, stray)))


def _acquired(ranges: Iterable[tuple[int, int]]) -> list[AcquiredRange]:
    return [AcquiredRange(first, last, 0) for first, last in ranges]
