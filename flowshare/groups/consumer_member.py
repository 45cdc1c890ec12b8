"""A member of a group of Kafka's consumer protocol, and its next step towards its target (KIP-848).

The table of steps is in `consumer_group`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Final
from uuid import UUID

from flowshare.groups.consumer_types import LEAVE_FOR_NOW, Key

MEMBER_BYTES: Final = 1_000
"""The memory of a member beside the parts counted apart, in bytes, about."""
NAME_BYTES: Final = 100
KEY_BYTES: Final = 150
"""The memory of a partition in a member, and in the table of owners, in bytes, about."""


class MemberState(enum.Enum):
    """The place of a member on its way to its target."""

    STABLE = "stable"
    """The member has the partitions of its epoch."""
    UNREVOKED = "unrevoked"
    """The member is to give partitions up, and has not said yet that it did."""
    UNRELEASED = "unreleased"
    """The member is at the target's epoch; others have not yet given up all its partitions."""


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    """One member. `epoch` is the one it was told last; `previous_epoch` is still accepted, as that answer may be
    lost."""

    member_id: str
    instance_id: str | None = None
    """group.instance.id of a static member."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] = ()
    """Topics subscribed by name."""
    pattern: str = ""
    matched: frozenset[str] = frozenset()
    """The topics that match the pattern and that the member may know of."""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: dict[Key, int] = field(default_factory=dict[Key, int])
    """Partitions that the member may use, and the epoch since which."""
    revoking: frozenset[Key] = frozenset()
    """Partitions that the member must give up."""
    reported: frozenset[Key] | None = None
    """Partitions that the member last reported as in use; None: no report since the group was read from the store."""
    target: frozenset[Key] = frozenset()
    deadline_ms: int = 0
    """The time at which its session times out."""
    revoke_due_ms: int | None = None
    """The deadline for giving up `revoking`."""

    @property
    def away(self) -> bool:
        """True if the member is static, has left for now, and is to come back."""
        return self.epoch == LEAVE_FOR_NOW

    @property
    def subscribed(self) -> frozenset[str]:
        """All topics that it reads, by name or by its pattern."""
        return self.matched.union(self.topics)

    @property
    def owned(self) -> Iterable[Key]:
        """All partitions that no other member may be given."""
        return (*self.assigned, *self.revoking)

    @property
    def size(self) -> int:
        """The memory of the member in bytes, about."""
        keys = len(self.assigned) + len(self.revoking) + len(self.target)
        return MEMBER_BYTES + subscription_size(self.topics, self.pattern) + KEY_BYTES * keys


def subscription_size(topics: Collection[str], pattern: str) -> int:
    """Return the memory of a subscription in bytes, about."""
    return NAME_BYTES * len(topics) + sum(map(getsizeof, topics)) + getsizeof(pattern)


def reconcile(
    member: ConsumerMember,
    *,
    assignment_epoch: int,
    reads: frozenset[UUID],
    owner_of: Callable[[Key], str | None],
    gave_up: bool,
    has_nothing: bool,
    resubscribed: bool,
) -> None:
    """Take the step of the table that a heartbeat of `member` leads to.

    reads: ids of the topics that it subscribes to; gave_up: it knows of `revoking` and uses none of that any more;
    has_nothing: it begins anew; resubscribed: it has just changed its subscription.
    """
    match member.state:
        case MemberState.UNREVOKED if not gave_up:
            if resubscribed:
                _take_unread(member, reads)
            return
        case MemberState.UNREVOKED:
            epoch = min(member.epoch + 1, assignment_epoch)
        case MemberState.STABLE if member.epoch == assignment_epoch and not resubscribed:
            return
        case _:
            epoch = member.epoch
    wanted = {key for key in member.target if key[0] in reads}
    kept = {key: since for key, since in member.assigned.items() if key in wanted}
    lost = frozenset(key for key in member.assigned if key not in wanted)
    if lost and not has_nothing:
        member.state, member.epoch = MemberState.UNREVOKED, epoch
        member.assigned, member.revoking = kept, lost
        return
    missing = wanted.difference(kept)
    free = {key for key in missing if owner_of(key) in (None, member.member_id)}
    member.state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    member.epoch, member.revoking = assignment_epoch, frozenset()
    member.assigned = {**kept, **dict.fromkeys(sorted(free), assignment_epoch)}


def _take_unread(member: ConsumerMember, reads: frozenset[UUID]) -> None:
    """Add to `revoking` the partitions of topics to which the member no longer subscribes. A new target has to wait."""
    lost = frozenset(key for key in member.assigned if key[0] not in reads)
    member.revoking |= lost
    member.assigned = {key: since for key, since in member.assigned.items() if key not in lost}
