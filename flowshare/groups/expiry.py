"""The expiry of committed offsets, and of the groups that go with them (KIP-211).

    group                                                  offsets looked at          age counts from
    had members, Empty                                     all                        when it became Empty; if that is
                                                                                      not known, the commit
    consumers, Stable, their topics are known              of topics without readers  the commit
    other, with members (rebalancing, Connect, unknown)    none
    never had members (simple consumers)                   all                        the commit
    of the consumer protocol (KIP-848), in any state       of topics without readers  the commit

An offset expires when its age reaches the retention, or, if it was committed with a time of its own, at that time. An
offset that an open transaction is about to replace is kept. The group goes when it is Empty, has no offsets left, and
no transaction is open.

So a group of the consumer protocol has no time of grace: offsets committed longer ago than the retention go as soon as
its last member has left. Kafka does so, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowshare.groups.consumer_group import ConsumerGroup
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import Committed, OffsetPartition, Offsets
from flowshare.groups.states import ClassicState


def expired(
    group: ClassicGroup | ConsumerGroup,
    offsets: Offsets,
    partitions: Iterable[OffsetPartition],
    *,
    now_ms: int,
    retention_ms: int,
    ahead_ms: int = 0,
) -> tuple[OffsetPartition, ...]:
    """Return the `partitions` whose offsets are to be removed now.

    now_ms: by the clock that stamps offsets. ahead_ms: how far that clock is ahead of the group's.
    """
    committed = offsets.committed
    return tuple(
        partition
        for partition in partitions
        if (value := committed.get(partition)) is not None
        and _looked_at(group, partition.topic)
        and _is_old(value, _base_ms(group, value, ahead_ms), now_ms, retention_ms)
        and not offsets.unstable(partition)
    )


def group_expires(group: ClassicGroup | ConsumerGroup, offsets: Offsets) -> bool:
    """True if the group is to be removed too, once its expired offsets are removed."""
    if isinstance(group, ConsumerGroup):
        return group.empty and not offsets
    return group.state is ClassicState.EMPTY and not offsets and not group.awaits_member


def _looked_at(group: ClassicGroup | ConsumerGroup, topic: str) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.reads(topic)
    if group.state is ClassicState.EMPTY:
        return True
    return group.state is ClassicState.STABLE and group.subscribed is not None and topic not in group.subscribed


def _base_ms(group: ClassicGroup | ConsumerGroup, value: Committed, ahead_ms: int) -> int:
    if isinstance(group, ConsumerGroup):
        return value.commit_ms
    had_members = group.protocol_type is not None
    if group.state is ClassicState.EMPTY and had_members and group.state_since_ms is not None:
        return group.state_since_ms + ahead_ms
    return value.commit_ms


def _is_old(value: Committed, base_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_ms is not None:
        return now_ms >= value.expire_ms
    return now_ms - base_ms >= retention_ms
