"""Answers to tools about cooperative groups: offsets, a reset, a deletion. A member that has to read all of R asks
here, too.

Rights are Kafka's: DESCRIBE on group and topics to look, READ on both to reset, DELETE on the group to delete it. The
edge checks them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from flowshare.cooperative.attempts import Begun
from flowshare.cooperative.types import OffsetColumns
from flowshare.core_errors import CoreError, InvalidRequest, UnknownTopicOrPartition
from flowshare.log.base import UnknownTopic
from flowshare.protocol.messages.cooperative import (
    CooperativeDeleteRequest,
    CooperativeDeleteResponse,
    CooperativeOffsetsRequest,
    CooperativeOffsetsResponse,
    CooperativeResetRequest,
    CooperativeResetResponse,
    PartitionOffsets,
    ToldClaim,
    ToldWait,
)
from flowshare.server.cooperative.coordinator import Begin
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.cooperative.claims import Claims
    from flowshare.cooperative.types import Claim
    from flowshare.log.base import Topic
    from flowshare.server.cooperative.coordinator import CooperativeGroups, Place

RANGES_MAX: Final = 60_000
"""Committed ranges in one answer."""
PARTITIONS_MAX: Final = 10_000
CLAIMS_TOLD_MAX: Final = 1_000
"""Claims of a partition that are told."""


class CooperativeTools(Family):
    """Answers tools."""

    def __init__(self, groups: CooperativeGroups) -> None:
        self._groups = groups

    @handles(CooperativeOffsetsRequest, CooperativeOffsetsResponse)
    async def offsets(self, request: CooperativeOffsetsRequest, _: InProcess) -> CooperativeOffsetsResponse:
        """How far a group is, partition by partition; of what it has no state of, nothing is told."""
        self._groups.check(request.group_id)
        room = RANGES_MAX
        told: list[PartitionOffsets] = []
        for topic, partition in await self._asked(request):
            try:
                part = await self._told(request, topic, partition, room)
            except EXPECTED as error:
                at = {"topic": topic.name, "topic_id": topic.topic_id, "partition": partition}
                told.append(refusal(PartitionOffsets, error, **at))
                continue
            if part is not None:
                told.append(part)
                room -= 0 if part.ranges is None else len(part.ranges.firsts)
        return CooperativeOffsetsResponse(partitions=tuple(told))

    @handles(CooperativeResetRequest, CooperativeResetResponse)
    async def reset(self, request: CooperativeResetRequest, connection: InProcess) -> CooperativeResetResponse:
        """Begin a partition anew. Refused while members hold something of it."""
        groups, party = self._groups, connection.counts_as()
        topic = groups.topics.by_name(request.topic)
        if topic is None or not 0 <= request.partition < topic.partitions:
            raise UnknownTopicOrPartition(f"there is no partition {request.partition} of topic {request.topic!r}")
        group = groups.find(request.group_id, party)
        owner = await groups.open(group, (topic.topic_id, request.partition), party, Begin("earliest"))
        assert owner is not None, "it begins where there is none"
        bounds = owner.bounds()
        if bounds is not None and not bounds.log_start <= request.offset <= bounds.high_watermark:
            raise InvalidRequest(
                f"{topic.name}-{request.partition} has offsets {bounds.log_start} to {bounds.high_watermark}, not "
                f"{request.offset}"
            )
        return CooperativeResetResponse(reset_epoch=(await owner.reset(request.offset)).reset_epoch)

    @handles(CooperativeDeleteRequest, CooperativeDeleteResponse)
    async def delete(self, request: CooperativeDeleteRequest, _: InProcess) -> CooperativeDeleteResponse:
        """Delete a group, or what is kept of some partitions of it. Refused while members hold something."""
        groups = self._groups
        groups.check(request.group_id)
        places: set[Place] | None = None
        if request.topics is not None:
            topics = ((groups.topics.by_name(name), numbers) for name, numbers in request.topics.items())
            places = {(topic.topic_id, number) for topic, numbers in topics if topic is not None for number in numbers}
        await groups.delete_asked(request.group_id, places)
        return CooperativeDeleteResponse()

    async def _asked(self, request: CooperativeOffsetsRequest) -> list[tuple[Topic, int]]:
        """The partitions that are asked for, as far as there are such."""
        topics = self._groups.topics
        if request.topics is None:
            places = await self._groups.places(request.group_id)
            found = [(topics.by_id(topic_id), partition) for topic_id, partition in places]
        else:
            if sum(map(len, request.topics.values())) > PARTITIONS_MAX:
                raise InvalidRequest(f"ask for at most {PARTITIONS_MAX} partitions at once")
            found = [
                (topics.by_name(name), number) for name, numbers in request.topics.items() for number in set(numbers)
            ]
        there = [(topic, number) for topic, number in found if topic is not None and 0 <= number < topic.partitions]
        return sorted(there, key=lambda one: (one[0].name, one[1]))

    async def _told(
        self, request: CooperativeOffsetsRequest, topic: Topic, partition: int, room: int
    ) -> PartitionOffsets | None:
        found = await self._groups.peek(request.group_id, (topic.topic_id, partition))
        if found is None:
            return None
        state, columns, owner = found.state, None, found.owner
        progress = (state.offsets.stable, state.offsets.reset_epoch, state.offsets.count, state.offsets.furthest)
        claims, unstable, more = state.claims.state.claims, state.pending.unstable, False
        ahead, begun = state.offsets.ahead, Begun()
        if owner is not None:
            read = await owner.read(ranges=request.ranges_from is not None)
            progress, unstable, columns, claims, begun = read
        elif request.ranges_from is not None:
            columns, begun = state.offsets.columns, state.attempts.begun
        if columns is not None and request.ranges_from is not None:
            columns, more = _page(columns, request.ranges_from, room)
        start, end = await self._bounds(topic, partition)
        stable, reset_epoch, count, furthest = progress
        counts = state.claims.state.counts
        return PartitionOffsets(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition,
            stable=stable,
            reset_epoch=reset_epoch,
            count=count,
            furthest=furthest,
            log_start=start,
            log_end=end,
            ranges=columns,
            more=more,
            unstable=unstable,
            claims=_claims(claims),
            reaches=begun.reaches,
            starts=begun.starts,
            waits=_waits(state.claims, self._groups.clock.steady_ms()),
            unfinished=-1 if end < 0 else max(0, end - stable - ahead),
            blocked=counts.blocked,
            lapsed=counts.lapsed,
            overlaps=counts.taken,
        )

    async def _bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        try:
            bounds = await self._groups.bounds(topic.name, partition)
        except (UnknownTopic, CoreError):
            return -1, -1
        return bounds.log_start, bounds.high_watermark


def _page(columns: OffsetColumns, first: int, room: int) -> tuple[OffsetColumns, bool]:
    """Ranges from one that begins at `first` or behind it, as many as there is room for; whether there are more."""
    at = bisect_left(columns.firsts, first)
    end = at + max(room, 0)
    return OffsetColumns(columns.firsts[at:end], columns.ends[at:end]), end < len(columns.firsts)


def _claims(found: Sequence[Claim]) -> tuple[ToldClaim, ...]:
    return tuple(ToldClaim(one.first, one.end, one.member, one.epoch) for one in found[:CLAIMS_TOLD_MAX])


def _waits(claims: Claims, now_ms: int) -> tuple[ToldWait, ...]:
    """Who waits for whom."""
    found = [
        ToldWait(one.first, one.end, member, one.holder, max(0, now_ms - one.since_ms))
        for member, standing in claims.state.members.items()
        for one in standing.waits
    ]
    return tuple(sorted(found)[:CLAIMS_TOLD_MAX])
