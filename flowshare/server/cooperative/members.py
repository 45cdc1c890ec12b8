"""Answers to members of cooperative groups: hold keys, commit records.

Rights are Kafka's, as for a consumer: READ on the group, which the edge checks, and READ on each topic, which is
checked here through the connection. Each partition gets its own answer; a refused partition refuses no other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.cooperative.claims import CLAIMS_MAX
from flowshare.cooperative.types import LEASE_MS_MAX, LEASE_MS_MIN, DrainMode, StartEntry, Terms
from flowshare.core_errors import FencedStateEpoch, InvalidRequest
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import (
    BlockedKeys,
    CommittedPartition,
    CooperativeCommitRequest,
    CooperativeCommitResponse,
    CooperativeHoldRequest,
    CooperativeHoldResponse,
    HeldKeys,
    HeldPartition,
)
from flowshare.server.cooperative.coordinator import MEMBER_BYTES, Begin
from flowshare.server.cooperative.owner import CLAIM_BYTES, RANGE_BYTES
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal
from flowshare.share.session import check_ids

if TYPE_CHECKING:
    from flowshare.cooperative.partition import Progress
    from flowshare.cooperative.types import Entry
    from flowshare.protocol.messages.cooperative import PartitionCommit, WantedKeys
    from flowshare.server.cooperative.coordinator import CooperativeGroups, Group, Place
    from flowshare.server.cooperative.owner import PartitionOwner

R = TypeVar("R")

PARTITIONS_MAX: Final = 1_000
"""Partitions that one request may name."""
KEY_RANGES_MAX: Final = CLAIMS_MAX
"""Ranges of keys of one `hold`, in all partitions."""
COMMIT_RANGES_MAX: Final = 10_000
"""Ranges of offsets of one commit, and entries, in all partitions: a member sends more in several requests."""
ANSWER_RANGES_MAX: Final = 120_000
"""Committed ranges in one answer; what does not fit is asked for by `CooperativeOffsetsRequest`."""
DRAIN_MS_MAX: Final = 86_400_000


class CooperativeMembers(Family):
    """Answers members."""

    def __init__(self, groups: CooperativeGroups) -> None:
        self._groups = groups
        self._stats = groups.stats
        self._clock = groups.clock

    # --- hold ---------------------------------------------------------------------------------------------------

    @handles(CooperativeHoldRequest, CooperativeHoldResponse)
    async def hold(self, request: CooperativeHoldRequest, connection: InProcess) -> CooperativeHoldResponse:
        """Renew, give back and get keys."""
        self._stats.holds += 1
        group_id, member = check_ids(request.group_id, request.member_id)
        terms = _terms(request)
        _check_count(len(request.partitions), PARTITIONS_MAX, "partitions")
        _check_count(sum(len(part.keys) for part in request.partitions), KEY_RANGES_MAX, "ranges of keys")
        _check_once((part.topic_id, part.partition) for part in request.partitions)
        group = self._groups.find(group_id, connection.counts_as())
        if member not in group.members:
            self._groups.take(connection.counts_as(), MEMBER_BYTES)
        now_ms = self._clock.steady_ms()
        group.called(member, request.sequence, now_ms + terms.lease_ms, now_ms)
        ask = _Hold(self._groups, group, request, terms, connection)
        told = tuple(await _each(ask.hold, request.partitions))
        await ask.left()
        self._groups.expect(group.owners.values())
        return CooperativeHoldResponse(lease_ms=terms.lease_ms, partitions=_fitting(told))

    # --- commit -------------------------------------------------------------------------------------------------

    @handles(CooperativeCommitRequest, CooperativeCommitResponse)
    async def commit(self, request: CooperativeCommitRequest, connection: InProcess) -> CooperativeCommitResponse:
        """Commit records; what the member does not hold any more is fenced."""
        self._stats.commits += 1
        group_id, member = check_ids(request.group_id, request.member_id)
        _check_count(len(request.partitions), PARTITIONS_MAX, "partitions")
        _check_count(sum(len(part.entries) for part in request.partitions), COMMIT_RANGES_MAX, "entries")
        ranges = sum(_size(entry) for part in request.partitions for entry in part.entries)
        _check_count(ranges, COMMIT_RANGES_MAX, "ranges of offsets")
        party = connection.counts_as()
        group = self._groups.find(group_id, party)
        self._groups.take(party, RANGE_BYTES * ranges)

        async def one(part: PartitionCommit) -> CommittedPartition:
            try:
                await check_readable(self._groups, (part.topic_id, part.partition), connection)
                owner = await self._owner(group, (part.topic_id, part.partition), party)
                if owner is None:
                    raise FencedStateEpoch("nothing is kept of the partition: the group was deleted, or never held it")
                answer = await owner.commit(member, part.reset_epoch, part.entries)
            except EXPECTED as error:
                return refused(CommittedPartition, part, error)
            return CommittedPartition(**progress_of(owner, answer.progress), fenced=answer.fenced)

        return CooperativeCommitResponse(partitions=tuple(await _each(one, request.partitions)))

    async def _owner(self, group: Group, place: Place, party: str | None) -> PartitionOwner | None:
        owner = group.owners.get(place)
        return owner if owner is not None else await self._groups.open(group, place, party, None)


class _Hold:
    """One `hold`, partition by partition."""

    def __init__(
        self,
        groups: CooperativeGroups,
        group: Group,
        request: CooperativeHoldRequest,
        terms: Terms,
        connection: InProcess,
    ) -> None:
        self._groups, self._group, self._request, self._terms = groups, group, request, terms
        self._connection = connection
        self._named = {(part.topic_id, part.partition) for part in request.partitions}
        self._leaves = [
            asyncio.ensure_future(self._leave(owner))
            for place, owner in tuple(group.owners.items())
            if place not in self._named and self._is_there(owner)
        ]

    async def hold(self, part: WantedKeys) -> HeldPartition:
        """Answer for one wanted partition; the partitions that the request does not name were freed before."""
        request, groups, place = self._request, self._groups, (part.topic_id, part.partition)
        try:
            await check_readable(groups, place, self._connection)
            party = self._connection.counts_as()
            begin = Begin(request.auto_offset_reset, part.committed)
            owner = await groups.open(self._group, place, party, begin if part.keys else None)
            if owner is None:  # nothing is stored, and nothing is wanted
                return HeldPartition(topic_id=part.topic_id, partition=part.partition)
            more = len(part.keys) - len(owner.partition.claims.of(request.member_id))
            groups.take(party, CLAIM_BYTES * max(0, more))
            answer = await owner.hold(
                request.member_id,
                request.generation,
                request.sequence,
                part.keys,
                terms=self._terms,
                committed=part.committed,
            )
        except EXPECTED as error:
            return refused(HeldPartition, part, error)
        return HeldPartition(
            **progress_of(owner, answer.progress),
            held=tuple(HeldKeys(claim.first, claim.end, claim.epoch) for claim in answer.held),
            granted=tuple((one.first, one.end) for one in answer.granted),
            blocked=tuple(BlockedKeys(one.first, one.end, one.holder) for one in answer.blocked),
            superseded=answer.superseded,
            ranges=answer.ranges,
            pending=answer.pending,
            horizon=answer.horizon,
            reaches=answer.begun.reaches,
            starts=answer.begun.starts,
        )

    def _is_there(self, owner: PartitionOwner) -> bool:
        return self._request.member_id in owner.partition.claims.state.members

    async def _leave(self, owner: PartitionOwner) -> None:
        with contextlib.suppress(*EXPECTED):  # the next call of the member says it again, or its lease ends
            await owner.leave(self._request.member_id)

    async def left(self) -> None:
        """Wait until what is not named is free."""
        for leaving in self._leaves:
            await leaving


# --- what answers are made of -----------------------------------------------------------------------------------------


def progress_of(owner: PartitionOwner, progress: Progress) -> dict[str, Any]:
    """The fields of `PartitionProgress`."""
    bounds = owner.bounds()
    return {
        "topic_id": owner.key.topic_id,
        "partition": owner.key.partition,
        "stable": progress.stable,
        "reset_epoch": progress.reset_epoch,
        "count": progress.range_count,
        "furthest": progress.furthest,
        "log_start": -1 if bounds is None else bounds.log_start,
        "log_end": -1 if bounds is None else bounds.high_watermark,
    }


def refused(make: Callable[..., R], part: Any, error: BaseException) -> R:
    """The answer for one partition that says why there is none."""
    return refusal(make, error, topic_id=part.topic_id, partition=part.partition)


async def check_readable(groups: CooperativeGroups, place: Place, connection: InProcess) -> None:
    """Check that there is such a partition and that the connection's peer may read its topic.

    Raises: UnknownTopicId, UnknownTopicOrPartition, LogError, Refused.
    """
    topic = await groups.topic(place)
    may_read = connection.may_read
    if may_read is not None and not may_read(topic.name):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"READ on topic {topic.name} is not allowed")


def _fitting(parts: tuple[HeldPartition, ...]) -> tuple[HeldPartition, ...]:
    """The answers, without those committed ranges for which there is no room."""
    room = ANSWER_RANGES_MAX
    fitting: list[HeldPartition] = []
    for part in parts:
        size = 0 if part.ranges is None else len(part.ranges.firsts)
        fitting.append(part if size <= room else replace(part, ranges=None, reaches=(), starts=()))
        room -= size if size <= room else 0
    return tuple(fitting)


def _size(entry: Entry) -> int:
    return len(entry.starts if isinstance(entry, StartEntry) else entry.ranges)


def _terms(request: CooperativeHoldRequest) -> Terms:
    """Raises: InvalidRequest."""
    _check_lease(request.lease_ms)
    try:
        mode = DrainMode(request.mode)
    except ValueError:
        raise InvalidRequest(f"a mode is strict or available, not {request.mode!r}") from None
    if not 0 <= request.drain_timeout_ms <= DRAIN_MS_MAX:
        raise InvalidRequest(f"a drain time-out has 0 to {DRAIN_MS_MAX} ms, not {request.drain_timeout_ms}")
    return Terms(
        lease_ms=request.lease_ms,
        mode=mode,
        drain_timeout_ms=request.drain_timeout_ms,
        exact_starts=request.exact_starts,
    )


def _check_lease(lease_ms: int) -> None:
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest(f"a lease has {LEASE_MS_MIN} to {LEASE_MS_MAX} ms, not {lease_ms}")


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise InvalidRequest(f"one request has at most {most} {what}, not {count}: send it in parts")


def _check_once(places: Iterable[object]) -> None:
    named = list(places)
    if len(set(named)) < len(named):
        raise InvalidRequest("a partition is named twice: name it once, with all that is wanted of it")


async def _each(ask: Callable[[Any], Awaitable[R]], parts: Sequence[Any]) -> list[R]:
    """All at once, begun in their order."""
    if len(parts) == 1:
        return [await ask(parts[0])]
    return list(await asyncio.gather(*map(ask, parts)))
