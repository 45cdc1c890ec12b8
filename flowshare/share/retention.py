"""When the state of a share group without members expires (KIP-211's rule for offsets, applied to share groups).

Kafka keeps share groups for ever, and so does flowshare unless `share.retention.ms` is set. The time runs from when
the last member went, or from the last reset of offsets by an administrator, and ends when a member joins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class IdleGroup(NamedTuple):
    """What counts for one group. `empty_since_ms`: None while it has members; `retention_ms`: None for ever."""

    group_id: str
    empty_since_ms: int | None
    retention_ms: int | None


def expires_ms(group: IdleGroup) -> int | None:
    """When the group's state is to be deleted; None: not as things stand."""
    if group.empty_since_ms is None or group.retention_ms is None:
        return None
    return group.empty_since_ms + group.retention_ms


def expired(groups: Iterable[IdleGroup], now_ms: int) -> tuple[str, ...]:
    """The groups whose state is to be deleted now, in the order given."""
    return tuple(group.group_id for group in groups if (at := expires_ms(group)) is not None and at <= now_ms)


def next_expiry_ms(groups: Iterable[IdleGroup]) -> int | None:
    """When to look again; None when no group will expire as things stand."""
    return min((at for group in groups if (at := expires_ms(group)) is not None), default=None)
