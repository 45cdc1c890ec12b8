"""The APIs of groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import CoreError, UnknownMemberId
from flowshare.groups.consumer_types import JOIN, Beat, check_beat
from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescription,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerMemberDescription,
    DescribedTopic,
    TopicPartition,
)
from flowshare.server.groups.patterns import Patterns
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.groups.consumer_group import ConsumerGroup
    from flowshare.groups.consumer_types import BeatAnswer, ConsumerMemberView, Key
    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.groups.entry import GroupEntry

QUICK_BEAT_MS: Final = 500
"""Longest heartbeat interval, in ms, of a member that waits for partitions, or is to give some up."""


class ConsumerMemberApis(Family):
    """Answers the requests of members, and about them."""

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups
        self._patterns = Patterns(lambda: groups.topics)

    @handles(ConsumerGroupHeartbeatRequest)
    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, connection: InProcess
    ) -> ConsumerGroupHeartbeatResponse:
        """Join, go on or leave; answered when all its changes are durable."""
        try:
            return await self._heartbeat(request, connection)
        except LogError as error:
            text = f"group {request.group_id} could not be written; try again: {error}"
            return ConsumerGroupHeartbeatResponse(
                error=ErrorCode.COORDINATOR_NOT_AVAILABLE, message=text, member_id=request.member_id
            )
        except EXPECTED as error:
            return refusal(ConsumerGroupHeartbeatResponse, error, member_id=request.member_id)

    async def _heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, connection: InProcess
    ) -> ConsumerGroupHeartbeatResponse:
        groups, party = self._groups, connection.counts_as()
        beat = _beat(request, connection)
        check_beat(request.group_id, beat, groups.assignors)
        if beat.pattern:
            self._patterns.check(beat.pattern)
        matching = await self._matching(request.group_id, beat, connection)
        if beat.member_epoch == JOIN:
            entry, group = groups.join_consumer(request.group_id, party)
        else:
            entry, group = groups.find_consumer_for_member(request.group_id)
        before = group.assignment_epoch
        try:
            answer = self._take(entry, group, beat, connection, matching)
        except (CoreError, Refused):
            groups.discard_void(entry)
            raise
        groups.rebalances += group.assignment_epoch != before
        groups.watch(entry)
        await groups.run(groups.write_members(entry, group))
        # A static member that left for now is a member still, but the next of its instance id has another member id.
        if not beat.leaves and beat.member_id in group.members:
            entry.heard[beat.member_id] = connection
        interval_ms = group.config.heartbeat_interval_ms
        return ConsumerGroupHeartbeatResponse(
            member_id=beat.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=min(interval_ms, QUICK_BEAT_MS) if answer.waits else interval_ms,
            assignment=None if answer.assignment is None else tuple(TopicPartition(*key) for key in answer.assignment),
        )

    async def _matching(self, group_id: str, beat: Beat, connection: InProcess) -> frozenset[str]:
        """Return the topics that the member's pattern matches, found in turns, and again if the pattern changed
        meanwhile.

        Raises: StateCorrupt
        """
        pattern, found = "", frozenset[str]()
        while (now := self._pattern(group_id, beat)) != pattern:
            turns = answers.turns(self._groups.clock)
            pattern, found = now, await self._patterns.matching(now, turns, connection.may_describe)
        return found

    def _pattern(self, group_id: str, beat: Beat) -> str:
        """Return the member's pattern after its heartbeat."""
        if beat.pattern is not None or beat.leaves:
            return beat.pattern or ""
        try:
            return self._groups.find_consumer_for_member(group_id)[1].pattern_of(beat)
        except UnknownMemberId:
            return ""  # the next use of the group says so, if it is to be there

    def _take(
        self, entry: GroupEntry, group: ConsumerGroup, beat: Beat, connection: InProcess, matching: frozenset[str]
    ) -> BeatAnswer:
        """Apply a heartbeat. Raises: CoreError, Refused (no room for it)."""
        self._groups.take(connection.counts_as(), group.growth(beat))
        # Of an answer on another connection nobody knows if it arrived.
        heard = entry.heard.pop(beat.member_id, None) is connection
        return group.heartbeat(
            replace(beat, heard=heard),
            topics=self._groups.topics,
            matching=lambda _pattern: matching,
            now_ms=self._groups.time_of(entry),
        )

    @handles(ConsumerGroupDescribeRequest)
    async def describe(self, request: ConsumerGroupDescribeRequest, _: InProcess) -> ConsumerGroupDescription:
        """Describe a group with its members, without topics that are gone."""
        try:
            group = self._groups.find_consumer(request.group_id)[1]
        except EXPECTED as error:
            return refusal(ConsumerGroupDescription, error, group_id=request.group_id)
        view = group.describe()
        return ConsumerGroupDescription(
            group_id=request.group_id,
            state=view.state,
            group_epoch=view.group_epoch,
            assignment_epoch=view.assignment_epoch,
            assignor=view.assignor,
            members=tuple(map(self._member, view.members)),
        )

    def _member(self, member: ConsumerMemberView) -> ConsumerMemberDescription:
        return ConsumerMemberDescription(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topics=member.topics,
            subscribed_pattern=member.pattern or None,
            assigned=self._topics(member.assigned),
            target=self._topics(member.target),
        )

    def _topics(self, keys: Iterable[Key]) -> tuple[DescribedTopic, ...]:
        found = (
            (topic_id, tuple(number for _, number in some)) for topic_id, some in groupby(keys, lambda key: key[0])
        )
        known = ((self._groups.topics.by_id(topic_id), numbers) for topic_id, numbers in found)
        return tuple(DescribedTopic(topic.topic_id, topic.name, numbers) for topic, numbers in known if topic)


def _beat(request: ConsumerGroupHeartbeatRequest, connection: InProcess) -> Beat:
    return Beat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=request.subscribed_topics,
        pattern=request.subscribed_pattern,
        assignor=request.assignor,
        owned=None if request.owned is None else tuple((one.topic_id, one.partition) for one in request.owned),
        client_id=connection.client_id,
        client_host=connection.host,
    )
