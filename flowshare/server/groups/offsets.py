"""The APIs of committed offsets: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from flowshare.core_errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InconsistentGroupProtocol,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    StaleMemberEpoch,
)
from flowshare.groups.consumer_group import ConsumerGroup
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import Committed, OffsetPartition, TransactionalProducer
from flowshare.groups.subscription import CONSUMER
from flowshare.protocol.errors import ErrorCode, error_code
from flowshare.protocol.messages import (
    FetchedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetResult,
    TxnOffsetCommitRequest,
)
from flowshare.server.runtime import answers
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, failure, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.groups.offsets import Found
    from flowshare.protocol.messages import OffsetToCommit
    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.groups.entry import GroupEntry

    CommitRequest: TypeAlias = OffsetCommitRequest | TxnOffsetCommitRequest


class ClassicOffsetApis(Family):
    """Answers requests for committed offsets."""

    def __init__(self, groups: ConsumerGroups, *, check: Callable[[str, int, int, str], None]) -> None:
        """`check`(transactional id, producer id, epoch, group) raises an objection to a transaction's offsets."""
        self._groups = groups
        self._check = check

    # --- commit -------------------------------------------------------------------------------------------------

    @handles(OffsetCommitRequest)
    @handles(TxnOffsetCommitRequest)
    async def commit(self, request: CommitRequest, connection: InProcess) -> OffsetCommitResponse:
        """Commit offsets; confirmed when they are durable."""
        try:
            party = connection.counts_as()
            entry = self._entry_for_commit(request, party)
            results = await self._groups.run(self._commit(entry, request, party))
        except EXPECTED as error:
            code, message = failure(error)
            results = await answers.turns(self._groups.clock).each(
                lambda one: OffsetResult(one.topic, one.partition, code), request.offsets
            )
            return OffsetCommitResponse(message=message, partitions=results)
        return OffsetCommitResponse(partitions=results)

    def _entry_for_commit(self, request: CommitRequest, party: str | None) -> GroupEntry:
        """Return the group; a simple consumer's first commit makes it."""
        try:
            return self._groups.find(request.group_id)
        except GroupIdNotFound as error:
            if request.generation >= 0:
                if isinstance(request, OffsetCommitRequest) and request.version >= 9:
                    raise
                raise IllegalGeneration(str(error)) from None
        try:
            return self._groups.ensure(request.group_id, party)
        except InconsistentGroupProtocol as error:
            raise GroupIdNotFound(str(error)) from None

    async def _commit(self, entry: GroupEntry, request: CommitRequest, party: str | None) -> tuple[OffsetResult, ...]:
        try:
            async with entry.lock:
                return await self._commit_locked(entry, request, party)
        finally:
            self._groups.discard_void(entry)

    async def _commit_locked(
        self, entry: GroupEntry, request: CommitRequest, party: str | None
    ) -> tuple[OffsetResult, ...]:
        producer, retention_ms = None, -1
        if isinstance(request, TxnOffsetCommitRequest):
            producer = TransactionalProducer(request.producer_id, request.producer_epoch)
        else:
            retention_ms = request.retention_ms
        self._check_commit(entry, request)
        values: dict[OffsetPartition, Committed] = {}
        results: list[OffsetResult] = []
        growth = 0
        async for some in answers.turns(self._groups.clock).few(request.offsets):
            for one in some:
                made = self._value(entry, one, retention_ms)
                if isinstance(made, Committed):
                    partition = OffsetPartition(one.topic, one.partition)
                    values[partition] = made
                    growth += entry.offsets.growth(partition, made, producer)
                    made = ErrorCode.NONE
                results.append(OffsetResult(one.topic, one.partition, made))
        # Others ran: a member that might commit before may be fenced now, and the transaction have ended.
        changes = entry.offsets.commit(values, producer)
        self._groups.take(party, growth)
        await self._groups.write_offsets(entry, changes, lambda: self._check_commit(entry, request))
        return tuple(results)

    def _check_commit(self, entry: GroupEntry, request: CommitRequest) -> None:
        """Check a commit. Raises: CoreError."""
        transactional = isinstance(request, TxnOffsetCommitRequest)
        if isinstance(request, TxnOffsetCommitRequest):
            self._check(request.transactional_id, request.producer_id, request.producer_epoch, request.group_id)
        try:
            entry.group.check_commit(
                member_id=request.member_id,
                instance_id=request.instance_id,
                generation=request.generation,
                transactional=transactional,
                version=0 if isinstance(request, TxnOffsetCommitRequest) else request.version,
                partitions=[(one.topic, one.partition) for one in request.offsets],
                now_ms=self._groups.time_of(entry),
            )
        except StaleMemberEpoch as error:
            if transactional:  # producers do not know of stale epochs
                raise IllegalGeneration(str(error)) from None
            raise

    def _value(self, entry: GroupEntry, one: OffsetToCommit, retention_ms: int) -> Committed | ErrorCode:
        """Return the offset that is to be committed, or the error that refuses it."""
        topic = self._groups.topics.by_name(one.topic)
        if topic is None or not 0 <= one.partition < topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = one.metadata or ""
        if len(metadata.encode()) > self._groups.config.offset_metadata_max:
            return error_code(OffsetMetadataTooLarge())
        now_ms = self._groups.clock.now_ms()
        return Committed(
            offset=one.offset,
            leader_epoch=one.leader_epoch,
            metadata=metadata,
            commit_ms=now_ms,
            expire_ms=None if retention_ms < 0 else now_ms + retention_ms,
            topic_id=topic.topic_id,
            order=entry.offsets.next_order(),
        )

    # --- fetch --------------------------------------------------------------------------------------------------

    @handles(OffsetFetchRequest)
    async def fetch(self, request: OffsetFetchRequest, _: InProcess) -> OffsetFetchResponse:
        """Return committed offsets of the named partitions, or of all; −1 where there is none."""
        wanted = request.partitions
        try:
            entry = self._groups.find(request.group_id)
            if isinstance(entry.group, ConsumerGroup):
                entry.group.check_fetch(request.member_id, request.member_epoch)
        except GroupIdNotFound as error:
            if self._groups.is_share_group(request.group_id):
                return OffsetFetchResponse(error=error_code(error), message=str(error))
            none = await answers.turns(self._groups.clock).each(lambda one: FetchedOffset(*one), wanted or ())
            return OffsetFetchResponse(partitions=none)
        except EXPECTED as error:
            return refusal(OffsetFetchResponse, error)
        # As they are at one moment, even if commits come while the answer is made.
        told = partial(_fetched, counts=self._groups.counts, require_stable=request.require_stable)
        rows = await answers.turns(self._groups.clock).each(told, entry.offsets.of(wanted))
        if wanted is None:
            rows = tuple([row for row in rows if row != FetchedOffset(*row[:2])])
        return OffsetFetchResponse(partitions=rows)

    # --- delete -------------------------------------------------------------------------------------------------

    @handles(OffsetDeleteRequest, OffsetDeleteResponse)
    async def delete(self, request: OffsetDeleteRequest, _: InProcess) -> OffsetDeleteResponse:
        """Remove committed offsets of topics that the group's members do not read."""
        entry = self._groups.find(request.group_id)
        results = await self._groups.run(self._delete(entry, request))
        return OffsetDeleteResponse(partitions=results)

    async def _delete(self, entry: GroupEntry, request: OffsetDeleteRequest) -> tuple[OffsetResult, ...]:
        group = entry.group
        async with entry.lock:
            if not self._groups.holds(entry):
                raise GroupIdNotFound(f"group {group.group_id!r} was deleted meanwhile")
            if _reads_unknown(group):
                raise NonEmptyGroup(f"group {group.group_id} has members; it is not known what they read: stop them")
            gone: list[OffsetPartition] = []
            results: list[OffsetResult] = []
            async for some in answers.turns(self._groups.clock).few(request.partitions):
                for topic, number in some:
                    if group.reads(topic):
                        results.append(OffsetResult(topic, number, error_code(GroupSubscribedToTopic())))
                    else:
                        gone.append(OffsetPartition(topic, number))
                        results.append(OffsetResult(topic, number))
            topics = frozenset(one.topic for one in gone)

            def check() -> None:
                if _reads_unknown(group) or any(map(group.reads, topics)):
                    raise CoordinatorNotAvailable(f"group {group.group_id} got members meanwhile; try again")

            await self._groups.write_offsets(entry, entry.offsets.delete(gone), check)
        return tuple(results)


def _reads_unknown(group: ClassicGroup | ConsumerGroup) -> bool:
    """Return True if the topics that the group's members read are not known: the members are no consumers."""
    return isinstance(group, ClassicGroup) and not group.empty and group.protocol_type != CONSUMER


def _fetched(
    found: Found, *, counts: Callable[[tuple[str, int], Committed], bool], require_stable: bool
) -> FetchedOffset:
    partition, value, unstable = found
    if require_stable and unstable:
        return FetchedOffset(*partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if value is None or not counts(partition, value):
        return FetchedOffset(*partition)
    return FetchedOffset(*partition, value.offset, value.leader_epoch, value.metadata)
