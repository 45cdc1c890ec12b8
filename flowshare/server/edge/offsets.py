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
    by_topic,
    form,
    may_group,
    may_topic,
    milliseconds,
    once,
    topics_by_group,
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
        offsets, refused = _to_commit(call.peer, ask)
        if not may_group(call.peer, Operation.READ, ask.group_id):
            return _results(make, "OffsetCommit", _all(ask, ErrorCode.GROUP_AUTHORIZATION_FAILED))
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
        return _results(make, "OffsetCommit", refused)

    async def commit_in_transaction(self, call: Call) -> Any:
        """TxnOffsetCommit."""
        ask, peer = call.request, call.peer
        make = form("txn_offset_commit", call.version)
        offsets, refused = _to_commit(peer, ask)
        if not peer.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ask.transactional_id):
            return _results(make, "TxnOffsetCommit", _all(ask, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        if not may_group(peer, Operation.READ, ask.group_id):
            return _results(make, "TxnOffsetCommit", _all(ask, ErrorCode.GROUP_AUTHORIZATION_FAILED))
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
        return _results(make, "TxnOffsetCommit", refused)

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
            got = tuple(FetchedOffset(*one, error=error) for one in _places(ask.topics or ()))
        topics = await _fetched(make, call.peer, "", got)
        return make("OffsetFetchResponse", throttle_time=NO_TIME, topics=topics, error_code=error)

    async def delete(self, call: Call) -> Any:
        """OffsetDelete."""
        ask = call.request
        make = form("offset_delete", call.version)
        if not may_group(call.peer, Operation.DELETE, ask.group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return make("OffsetDeleteResponse", throttle_time=NO_TIME, error_code=error, topics=())
        named = [
            (name, int(number))
            for name, parts in once(ask.topics, "name", "partition_index").items()
            for number in parts
        ]
        allowed = {topic: may_topic(call.peer, Operation.READ, topic) for topic, _ in named}
        refused = tuple(
            OffsetResult(*one, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for one in named if not allowed[one[0]]
        )
        got = await call.peer.connection.send(
            OffsetDeleteRequest(group_id=ask.group_id, partitions=tuple(one for one in named if allowed[one[0]]))
        )
        if got.error is not ErrorCode.NONE:
            return make("OffsetDeleteResponse", throttle_time=NO_TIME, error_code=got.error, topics=())
        return _results(make, "OffsetDelete", refused + got.partitions)


def _to_commit(peer: Peer, ask: Any) -> tuple[tuple[OffsetToCommit, ...], tuple[OffsetResult, ...]]:
    """What may be committed, and the results for what may not."""
    offsets: list[OffsetToCommit] = []
    refused: list[OffsetResult] = []
    for name, parts in once(ask.topics, "name", "partition_index").items():
        if not may_topic(peer, Operation.READ, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused += (OffsetResult(name, int(number), error) for number in parts)
            continue
        offsets += (
            OffsetToCommit(
                str(name),
                int(number),
                int(one.committed_offset),
                int(getattr(one, "committed_leader_epoch", -1)),
                one.committed_metadata,
            )
            for number, one in parts.items()
        )
    return tuple(offsets), tuple(refused)


def _all(ask: Any, error: ErrorCode) -> tuple[OffsetResult, ...]:
    return tuple(
        OffsetResult(name, int(number), error)
        for name, parts in once(ask.topics, "name", "partition_index").items()
        for number in parts
    )


def _results(make: Form, api: str, results: Iterable[OffsetResult]) -> Any:
    topics = tuple(
        make(
            f"{api}ResponseTopic",
            name=topic,
            partitions=tuple(
                make(f"{api}ResponsePartition", partition_index=one.partition, error_code=one.error) for one in found
            ),
        )
        for topic, found in by_topic((one.topic, one) for one in results).items()
    )
    return make(f"{api}Response", throttle_time=NO_TIME, error_code=ErrorCode.NONE, topics=topics)


def _not_told(told: Callable[..., Any], error: Refused) -> Any:
    return told(topics=(), error_code=error.code)


def _places(topics: Iterable[Any]) -> list[tuple[str, int]]:
    """The partitions that an OffsetFetch asks for, each once."""
    return list(dict.fromkeys((str(topic.name), int(number)) for topic in topics for number in topic.partition_indexes))


async def _fetch(
    peer: Peer, group_id: str, topics: Iterable[Any] | None, *, require_stable: bool
) -> tuple[ErrorCode, tuple[FetchedOffset, ...]]:
    """One group's offsets; of topics that the peer may not see nothing is said unless it asks for them."""
    await peer.turns.take()
    if not may_group(peer, Operation.DESCRIBE, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, ()
    wanted = None
    hidden: list[FetchedOffset] = []
    if topics is not None:
        named = _places(topics)
        seen = {topic: may_topic(peer, Operation.DESCRIBE, topic) for topic, _ in named}
        wanted = tuple(one for one in named if seen[one[0]])
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        hidden = [FetchedOffset(*one, error=error) for one in named if not seen[one[0]]]
    got = await peer.connection.send(
        OffsetFetchRequest(group_id=group_id, partitions=wanted, require_stable=require_stable)
    )
    found = [one for one in got.partitions if wanted is not None or may_topic(peer, Operation.DESCRIBE, one.topic)]
    return got.error, (*found, *hidden)


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

    return tuple(
        make(f"OffsetFetchResponseTopic{plural}", name=topic, partitions=tuple(found))
        for topic, found in by_topic(await peer.turns.each(entry, partitions)).items()
    )
