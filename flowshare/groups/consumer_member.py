"""A member of a group of Kafka's consumer protocol, and its next step towards what it is to have (KIP-848).

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
"""About what a member takes in memory beside what is counted apart."""
NAME_BYTES: Final = 100
KEY_BYTES: Final = 150
"""About what a partition takes in a member, and in the table of owners."""


class MemberState(enum.Enum):
    """Where a member stands on its way to its target."""

    STABLE = "stable"
    """It has what the epoch that it was told gives it."""
    UNREVOKED = "unrevoked"
    """It is to give partitions up, and has not said yet that it did."""
    UNRELEASED = "unreleased"
    """It is at the target's epoch; others have not given up yet all that it is to get."""


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    """One member. `epoch` is what it was told last; `previous_epoch` is accepted still: that answer may be lost."""

    member_id: str
    instance_id: str | None = None
    """group.instance.id of a static member."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] = ()
    """Subscribed by name."""
    pattern: str = ""
    matched: frozenset[str] = frozenset()
    """The topics that match the pattern and that the member may know of."""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: dict[Key, int] = field(default_factory=dict[Key, int])
    """What it may use, and the epoch that it may since."""
    revoking: frozenset[Key] = frozenset()
    """What it is to give up."""
    reported: frozenset[Key] | None = None
    """What it said last that it uses; None: it has not said so since the group was read from the store."""
    target: frozenset[Key] = frozenset()
    deadline_ms: int = 0
    """When its session times out."""
    revoke_due_ms: int | None = None
    """Until when it is to have given up `revoking`."""

    @property
    def away(self) -> bool:
        """Whether it is a static member that is to come back."""
        return self.epoch == LEAVE_FOR_NOW

    @property
    def subscribed(self) -> frozenset[str]:
        """All topics that it reads, by name or by its pattern."""
        return self.matched.union(self.topics)

    @property
    def owned(self) -> Iterable[Key]:
        """What nobody else may be given."""
        return (*self.assigned, *self.revoking)

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        keys = len(self.assigned) + len(self.revoking) + len(self.target)
        return MEMBER_BYTES + subscription_size(self.topics, self.pattern) + KEY_BYTES * keys


def subscription_size(topics: Collection[str], pattern: str) -> int:
    """About how many bytes a subscription takes in memory."""
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
    has_nothing: it begins anew; resubscribed: it has just changed what it subscribes to.
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
    """What it does not subscribe to any more is to be given up beside the rest; a new target has to wait."""
    lost = frozenset(key for key in member.assigned if key[0] not in reads)
    member.revoking |= lost
    member.assigned = {key: since for key, since in member.assigned.items() if key not in lost}
