"""Committed offsets at the socket: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    FetchedOffset,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetResult,
    OffsetToCommit,
    TxnOffsetCommitRequest,
)
from flowshare.server import answers
from flowshare.server.answers import AnswerTooLarge
from flowshare.server.edge.base import Api, Operation, ResourceType
from flowshare.server.edge.forms import (
    NO_TIME,
    form,
    may_group,
    may_topic,
    milliseconds,
    once,
    topics_by_group,
    topics_of,
)

if TYPE_CHECKING:
    from flowshare.server.edge.base import Call, Peer
    from flowshare.server.edge.forms import Form
    from flowshare.server.failures import Refused

FIRST_BATCHED: Final = 8
"""First version of OffsetFetch that asks for several groups."""


class OffsetEdge:
    """What is committed for consumer groups."""

    def apis(self) -> Sequence[Api]:
        """The APIs of this family."""
        return (
            Api(key=ApiKey.OFFSET_COMMIT, lowest=2, highest=9, answer=self.commit),
            Api(key=ApiKey.OFFSET_FETCH, lowest=1, highest=9, answer=self.fetch),
            Api(key=ApiKey.OFFSET_DELETE, lowest=0, highest=0, answer=self.delete),
            # Version 5 would add the group to the transaction by itself (KIP-890); so far AddOffsetsToTxn does that.
            Api(key=ApiKey.TXN_OFFSET_COMMIT, lowest=0, highest=4, answer=self.commit_in_transaction),
        )

    async def commit(self, call: Call) -> Any:
        """OffsetCommit."""
        ask, version = call.request, call.version
        make = form("offset_commit", version)
        offsets, refused = await _to_commit(call.peer, ask)
        if not may_group(call.peer, Operation.READ, ask.group_id):
            return await _refused(make, "OffsetCommit", call, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if offsets:
            got = await call.peer.connection.send(
                OffsetCommitRequest(
                    group_id=ask.group_id,
                    member_id=ask.member_id,
                    instance_id=getattr(ask, "group_instance_id", None),
                    generation=int(ask.generation_id_or_member_epoch),
                    retention_ms=milliseconds(ask.retention_time) if version <= 4 else -1,
                    offsets=offsets,
                    version=version,
                )
            )
            refused += got.partitions
        return await _results(make, "OffsetCommit", call.peer, refused)

    async def commit_in_transaction(self, call: Call) -> Any:
        """TxnOffsetCommit."""
        ask, peer = call.request, call.peer
        make = form("txn_offset_commit", call.version)
        offsets, refused = await _to_commit(peer, ask)
        if not peer.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ask.transactional_id):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return await _refused(make, "TxnOffsetCommit", call, error)
        if not may_group(peer, Operation.READ, ask.group_id):
            return await _refused(make, "TxnOffsetCommit", call, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if offsets:
            got = await peer.connection.send(
                TxnOffsetCommitRequest(
                    transactional_id=ask.transactional_id,
                    group_id=ask.group_id,
                    producer_id=int(ask.producer_id),
                    producer_epoch=int(ask.producer_epoch),
                    member_id=getattr(ask, "member_id", ""),
                    instance_id=getattr(ask, "group_instance_id", None),
                    generation=int(getattr(ask, "generation_id", -1)),
                    offsets=offsets,
                )
            )
            refused += got.partitions
        return await _results(make, "TxnOffsetCommit", peer, refused)

    async def fetch(self, call: Call) -> Any:
        """OffsetFetch: of one group, or since version 8 of several."""
        ask, version = call.request, call.version
        make = form("offset_fetch", version)
        stable, room = version >= 7 and ask.require_stable, answers.room()
        if version >= FIRST_BATCHED:
            answered: list[Any] = []
            for group_id, named in topics_by_group(ask.groups).items():
                error, got = await _fetch(call.peer, group_id, named, require_stable=stable)
                told, before = partial(make, "OffsetFetchResponseGroup", group_id=group_id), room.built
                try:
                    answered.append(told(topics=await _fetched(make, call.peer, "s", got), error_code=error))
                except AnswerTooLarge as refusal:
                    room.without(before)
                    answered.append(room.freely(partial(_not_told, told), refusal))
            return make("OffsetFetchResponse", throttle_time=NO_TIME, groups=tuple(answered))
        error, got = await _fetch(call.peer, ask.group_id, ask.topics, require_stable=stable)
        if version < 2 and error is not ErrorCode.NONE:
            # No place for an error of the whole: at every partition then.
            places = await _places(call.peer, ask.topics or ())
            got = await call.peer.turns.each(lambda one: FetchedOffset(one[0], one[1], error=error), places)
        topics = await _fetched(make, call.peer, "", got)
        return make("OffsetFetchResponse", throttle_time=NO_TIME, topics=topics, error_code=error)

    async def delete(self, call: Call) -> Any:
        """OffsetDelete."""
        ask, peer = call.request, call.peer
        make = form("offset_delete", call.version)
        named: list[tuple[str, int]] = []
        refused: list[OffsetResult] = []
        for name, parts in (await once(peer.turns, ask.topics, "name", "partition_index")).items():
            allowed = may_topic(peer, Operation.READ, name)
            async for some in peer.turns.few(parts):
                if allowed:
                    named += ((name, int(number)) for number in some)
                else:
                    refused += (
                        OffsetResult(name, int(number), ErrorCode.TOPIC_AUTHORIZATION_FAILED) for number in some
                    )
        if not may_group(peer, Operation.DELETE, ask.group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return make("OffsetDeleteResponse", throttle_time=NO_TIME, error_code=error, topics=())
        got = await peer.connection.send(OffsetDeleteRequest(group_id=ask.group_id, partitions=tuple(named)))
        if got.error is not ErrorCode.NONE:
            return make("OffsetDeleteResponse", throttle_time=NO_TIME, error_code=got.error, topics=())
        return await _results(make, "OffsetDelete", peer, (*refused, *got.partitions))


async def _to_commit(peer: Peer, ask: Any) -> tuple[tuple[OffsetToCommit, ...], tuple[OffsetResult, ...]]:
    """What may be committed, and the results for what may not.

    It gives way; a right to a group or a transactional id is asked for afterwards.
    """
    offsets: list[OffsetToCommit] = []
    refused: list[OffsetResult] = []
    for name, parts in (await once(peer.turns, ask.topics, "name", "partition_index")).items():
        allowed = may_topic(peer, Operation.READ, name)
        async for some in peer.turns.few(parts.items()):
            if allowed:
                offsets += (_offset(name, number, one) for number, one in some)
            else:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                refused += (OffsetResult(name, int(number), error) for number, _ in some)
    return tuple(offsets), tuple(refused)


def _offset(topic: str, number: int, one: Any) -> OffsetToCommit:
    epoch = int(getattr(one, "committed_leader_epoch", -1))
    return OffsetToCommit(str(topic), int(number), int(one.committed_offset), epoch, one.committed_metadata)


async def _refused(make: Form, api: str, call: Call, error: ErrorCode) -> Any:
    """Everything is refused."""
    named = await once(call.peer.turns, call.request.topics, "name", "partition_index")
    results = (OffsetResult(name, int(number), error) for name, parts in named.items() for number in parts)
    return await _results(make, api, call.peer, results)


async def _results(make: Form, api: str, peer: Peer, results: Iterable[OffsetResult]) -> Any:
    part = f"{api}ResponsePartition"
    topics = await topics_of(
        peer.turns,
        ((one.topic, make(part, partition_index=one.partition, error_code=one.error)) for one in results),
        lambda topic, found: make(f"{api}ResponseTopic", name=topic, partitions=found),
    )
    return make(f"{api}Response", throttle_time=NO_TIME, error_code=ErrorCode.NONE, topics=topics)


def _not_told(told: Callable[..., Any], error: Refused) -> Any:
    return told(topics=(), error_code=error.code)


async def _places(peer: Peer, topics: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    """The partitions that an OffsetFetch asks for, each once."""
    found: dict[tuple[str, int], None] = {}
    for topic in topics:
        async for some in peer.turns.few(topic.partition_indexes):
            found.update(((str(topic.name), int(number)), None) for number in some)
    return tuple(found)


class _Sight:
    """Which topics the peer may see, asked once for each."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._seen: dict[str, bool] = {}

    def see(self, topic: str) -> bool:
        """Whether it may see the topic."""
        found = self._seen.get(topic)
        if found is None:
            found = self._seen[topic] = may_topic(self._peer, Operation.DESCRIBE, topic)
        return found


async def _fetch(
    peer: Peer, group_id: str, topics: Iterable[Any] | None, *, require_stable: bool
) -> tuple[ErrorCode, tuple[FetchedOffset, ...]]:
    """One group's offsets; of topics that the peer may not see nothing is said unless it asks for them."""
    await peer.turns.take()
    if not may_group(peer, Operation.DESCRIBE, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, ()
    wanted, may = None, _Sight(peer)
    hidden: list[FetchedOffset] = []
    if topics is not None:
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        shown: list[tuple[str, int]] = []
        async for some in peer.turns.few(await _places(peer, topics)):
            shown += (one for one in some if may.see(one[0]))
            hidden += (FetchedOffset(*one, error=error) for one in some if not may.see(one[0]))
        wanted = tuple(shown)
    got = await peer.connection.send(
        OffsetFetchRequest(group_id=group_id, partitions=wanted, require_stable=require_stable)
    )
    if wanted is not None:
        return got.error, (*got.partitions, *hidden)
    found: list[FetchedOffset] = []
    async for told in peer.turns.few(got.partitions):
        found += (one for one in told if may.see(one.topic))
    return got.error, tuple(found)


async def _fetched(make: Form, peer: Peer, plural: str, partitions: Iterable[FetchedOffset]) -> tuple[Any, ...]:
    """Topics of an answer; `plural` tells the names of a batched answer's parts from those of a single one's."""

    def entry(one: FetchedOffset) -> tuple[str, Any]:
        return one.topic, make(
            f"OffsetFetchResponsePartition{plural}",
            partition_index=one.partition,
            committed_offset=one.offset,
            committed_leader_epoch=one.leader_epoch,
            metadata=one.metadata,
            error_code=one.error,
        )

    return await topics_of(
        peer.turns,
        map(entry, partitions),
        lambda topic, found: make(f"OffsetFetchResponseTopic{plural}", name=topic, partitions=found),
    )
