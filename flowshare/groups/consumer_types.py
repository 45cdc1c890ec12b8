"""Requests, answers and settings of groups of Kafka's consumer protocol (KIP-848), and the check of a heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from flowshare.core_errors import InvalidRequest, UnsupportedAssignor

Key = tuple[UUID, int]
"""A topic's id and a partition."""
SeenTopic = tuple[str, UUID, int]
"""A topic that exists: its name, its id, and its number of partitions."""

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_NOW: Final = -2
"""Epoch with which a static member leaves for now: its partitions stay its own until it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of the server for these groups, under the brokers' names; `…_min` and `…_max` bound what a group may
    set.

    Defaults are Kafka's, but for the bounds, for `size_max`, which has none there, and for the assignment interval.
    """

    session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms"""
    session_timeout_min_ms: int = 100
    session_timeout_max_ms: int = 3_600_000
    heartbeat_interval_ms: int = 5_000
    """group.consumer.heartbeat.interval.ms"""
    heartbeat_interval_min_ms: int = 10
    heartbeat_interval_max_ms: int = 3_600_000
    assignment_interval_ms: int = 0
    """group.consumer.assignment.interval.ms: least time between two computations of a group's assignment."""
    assignment_interval_min_ms: int = 0
    assignment_interval_max_ms: int = 15_000
    size_max: int = 1_000
    """group.consumer.max.size"""
    assignors: tuple[str, ...] = ("uniform", "range")
    """group.consumer.assignors: those that members may ask for; the first is used where no member asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupConfig:
    """Settings of one group in effect."""

    session_timeout_ms: int = 45_000
    """consumer.session.timeout.ms"""
    heartbeat_interval_ms: int = 5_000
    """consumer.heartbeat.interval.ms"""
    assignment_interval_ms: int = 0
    """consumer.assignment.interval.ms"""
    size_max: int = 1_000
    assignors: tuple[str, ...] = ("uniform", "range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A ConsumerGroupHeartbeat; None: as before."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    """−1: as before."""
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    """A regular expression that names of topics match as a whole; empty: none any more."""
    assignor: str | None = None
    owned: tuple[Key, ...] | None = None
    """Partitions that the member uses."""
    heard: bool = True
    """True if the member has certainly received the answer to its last heartbeat."""
    client_id: str = ""
    client_host: str = ""

    @property
    def leaves(self) -> bool:
        """True if the member leaves, for good or for now."""
        return self.member_epoch in (LEAVE, LEAVE_FOR_NOW)


class BeatAnswer(NamedTuple):
    """The answer to a heartbeat, sent once all changes are written."""

    member_epoch: int
    assignment: tuple[Key, ...] | None = None
    """Partitions that the member may use from now on; None: as before."""
    waits: bool = False
    """True: the member or others must give partitions up first, or the group is to be assigned anew."""


class ConsumerMemberView(NamedTuple):
    """A member as ConsumerGroupDescribe shows it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    assigned: tuple[Key, ...]
    target: tuple[Key, ...]


class ConsumerGroupView(NamedTuple):
    """A group as ConsumerGroupDescribe shows it."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberView, ...]


def check_beat(group_id: str, beat: Beat, assignors: tuple[str, ...]) -> None:
    """Check a heartbeat by itself. Raises: InvalidRequest, UnsupportedAssignor.

    Call it before a group is looked up: epoch 0 makes a group that does not exist.
    """
    for name, text in (
        ("group id", group_id),
        ("member id", beat.member_id),
        ("instance id", beat.instance_id),
        ("rack id", beat.rack_id),
    ):
        if text is not None and not text.strip():
            raise InvalidRequest(f"the {name} must not be empty")
    if beat.member_epoch < LEAVE_FOR_NOW:
        raise InvalidRequest(f"the member epoch {beat.member_epoch} is invalid; it must be -2 or more")
    if beat.member_epoch == LEAVE_FOR_NOW and beat.instance_id is None:
        raise InvalidRequest("only a member with an instance id leaves for now (epoch -2)")
    if beat.member_epoch == JOIN:
        _check_join(beat)
    if beat.assignor is not None and beat.assignor not in assignors:
        raise UnsupportedAssignor(f"assignor {beat.assignor!r} is not known here; known: {', '.join(assignors)}")


def _check_join(beat: Beat) -> None:
    if beat.rebalance_timeout_ms < 0:
        raise InvalidRequest("the rebalance timeout must be given when joining")
    if beat.owned is None or beat.owned:
        raise InvalidRequest("the owned partitions must be given when joining, and there must be none")
    if beat.topics is None and beat.pattern is None:
        raise InvalidRequest("the subscribed topic names or a regular expression must be given when joining")
