"""How what workers tell each other travels: lists and numbers that JSON has, checked when they are read."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import SharePartitionOffsets
from flowshare.server.state import ShareKey
from flowshare.share.group import ToInitialize
from flowshare.share.types import PartitionState, RecordState, StateRun


def tell_first(item: ToInitialize) -> list[Any]:
    """A share-partition that is to get its first state."""
    return [item.topic_id.hex, item.partition, item.start_offset, item.state_epoch]


def first_of(told: Sequence[Any]) -> ToInitialize:
    """What `tell_first` told. Raises: ValueError, TypeError."""
    topic_id, partition, start, epoch = told
    return ToInitialize(uuid.UUID(topic_id), int(partition), int(start), int(epoch))


def tell_state(key: ShareKey, state: PartitionState | None) -> list[Any]:
    """A share-partition that is to begin anew, or (None) to be forgotten. Of its runs only finished ones travel."""
    start: list[Any] | None = None
    if state is not None:
        start = [state.state_epoch, state.start_offset]
        if state.runs:
            start.append([[run.first, run.last] for run in state.runs if run.state.terminal])
    return [key.group_id, key.topic_id.hex, key.partition, start]


def state_of(told: Sequence[Any]) -> tuple[ShareKey, PartitionState | None]:
    """What `tell_state` told. Raises: ValueError, TypeError."""
    group_id, topic_id, partition, start = told
    key = key_of((group_id, topic_id, partition))
    if start is None:
        return key, None
    epoch, offset, *finished = start
    runs = tuple(
        StateRun(int(first), int(last), RecordState.ACKNOWLEDGED, 1)
        for first, last in (finished[0] if finished else ())
    )
    return key, PartitionState(
        state_epoch=int(epoch),
        start_offset=int(offset),
        delivery_complete_count=sum(run.last - run.first + 1 for run in runs),
        runs=runs,
    )


def key_of(told: Sequence[Any]) -> ShareKey:
    """A share-partition's key. Raises: ValueError, TypeError."""
    group_id, topic_id, partition = told
    return ShareKey(str(group_id), uuid.UUID(topic_id), int(partition))


def tell_offsets(part: SharePartitionOffsets) -> list[Any]:
    """Where a share-partition stands."""
    return [
        part.topic,
        None if part.topic_id is None else part.topic_id.hex,
        part.partition,
        part.start_offset,
        part.leader_epoch,
        part.lag,
        part.in_flight,
        part.delayed,
        part.redeliveries,
        part.oldest_ms,
        int(part.error),
        part.message,
    ]


def offsets_of(told: Sequence[Any]) -> SharePartitionOffsets:
    """What `tell_offsets` told. Raises: ValueError, TypeError."""
    topic, topic_id, partition, start, epoch, lag, in_flight, delayed, redeliveries, oldest_ms, error, message = told
    return SharePartitionOffsets(
        topic=topic,
        topic_id=None if topic_id is None else uuid.UUID(topic_id),
        partition=partition,
        start_offset=start,
        leader_epoch=epoch,
        lag=lag,
        in_flight=in_flight,
        delayed=delayed,
        redeliveries=redeliveries,
        oldest_ms=oldest_ms,
        error=ErrorCode.known(int(error)),
        message=message,
    )
