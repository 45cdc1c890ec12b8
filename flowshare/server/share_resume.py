"""ShareResume, flowshare's own: a member that comes back after its leader was replaced says what it holds.

The new leader has read from the store what each member had acquired. Of that the member knows all but what was in an
answer that died with the old leader: that goes back at once, unrun, instead of waiting for its lock to lapse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.protocol.messages import HeldRanges, ShareResumeRequest, ShareResumeResponse
from flowshare.server.failures import EXPECTED, failure
from flowshare.server.state import ShareKey
from flowshare.share.errors import InvalidRequest
from flowshare.share.session import check_ids
from flowshare.share.types import AcquiredRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flowshare.server.connection import Handlers, InProcess
    from flowshare.server.owner import Owner
    from flowshare.server.partitions import Partitions

PARTITIONS_MAX: Final = 10_000
Range = tuple[int, int]


class ShareResuming:
    """Answers ShareResume."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def handlers(self) -> Handlers:
        """What this family answers."""
        return {ShareResumeRequest: self.resume}

    async def resume(self, request: ShareResumeRequest, _: InProcess) -> ShareResumeResponse:
        """Tell what is still the member's, and take back what it does not know of."""
        try:
            group_id, member_id = check_ids(request.group_id, request.member_id)
            if len(request.partitions) > PARTITIONS_MAX:
                raise InvalidRequest(f"a member resumes at most {PARTITIONS_MAX} partitions")
            kept = [await self._resume(group_id, member_id, part) for part in request.partitions]
        except EXPECTED as error:
            code, message = failure(error)
            return ShareResumeResponse(error=code, message=message)
        return ShareResumeResponse(partitions=tuple(part for part in kept if part.ranges))

    async def _resume(self, group_id: str, member_id: str, told: HeldRanges) -> HeldRanges:
        key = ShareKey(group_id, told.topic_id, told.partition)
        if not self._partitions.knows(key):
            return HeldRanges(told.topic_id, told.partition)
        owner = await self._partitions.open(key)
        held = merged(_of_member(owner, member_id))
        stray = minus(held, told.ranges)
        if stray:
            owner.hand_back(member_id, [AcquiredRange(first, last, 0) for first, last in stray])
        return HeldRanges(told.topic_id, told.partition, tuple(minus(held, stray)))


def _of_member(owner: Owner, member_id: str) -> Iterable[Range]:
    return ((run.first, run.last) for run in owner.partition.in_flight() if run.member_id == member_id)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Ascending ranges with those joined that touch."""
    joined: list[Range] = []
    for first, last in ranges:
        if joined and first == joined[-1][1] + 1:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def minus(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """What of `ranges` is in none of `taken`; both ascending and disjoint."""
    left: list[Range] = []
    at = 0
    for first, last in ranges:
        while at < len(taken) and taken[at][1] < first:
            at += 1
        look = at
        while look < len(taken) and taken[look][0] <= last:
            if taken[look][0] > first:
                left.append((first, taken[look][0] - 1))
            first = max(first, taken[look][1] + 1)
            look += 1
        if first <= last:
            left.append((first, last))
    return left
