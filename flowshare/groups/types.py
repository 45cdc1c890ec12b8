"""Requests, answers and settings of classic groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from flowshare.core_errors import CoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicConfig:
    """Settings of the server for classic groups, under the brokers' names.

    Defaults are Kafka's, but for `size_max`, which has no bound there, and the delay of the first rebalance: that of
    the server.properties that comes with Kafka for development.
    """

    session_timeout_min_ms: int = 6_000
    """group.min.session.timeout.ms"""
    session_timeout_max_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    initial_rebalance_delay_ms: int = 0
    """group.initial.rebalance.delay.ms: how long the first rebalance of an empty group waits for more members."""
    size_max: int = 1_000
    """group.max.size"""
    groups_max: int = 10_000
    """group.max.groups"""
    new_member_timeout_ms: int = 300_000
    """Time that a new member may wait in a rebalance: it sends no heartbeats, so it may be gone."""
    offset_metadata_max: int = 4_096
    """offset.metadata.max.bytes"""
    offsets_retention_minutes: int = 10_080
    """offsets.retention.minutes: how long the offsets of a group without members are kept."""
    retention_check_interval_ms: int = 600_000
    """offsets.retention.check.interval.ms"""

    @property
    def offsets_retention_ms(self) -> int:
        """offsets.retention.minutes in milliseconds."""
        return self.offsets_retention_minutes * 60_000


class Supported(NamedTuple):
    """A protocol (for consumers: an assignor) that a member supports, with its metadata for the leader."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request. `known_id_required`: version 4 on; `can_skip_assignment`: version 9 on."""

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Supported, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    known_id_required: bool = True
    can_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    """A member in the form that the leader is told."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer that ends a join. If it has an `error`, only `member_id` counts beside it."""

    error: CoreError | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The answer that ends a sync."""

    error: CoreError | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class TicketAnswer(NamedTuple):
    """An answer for the request that brought `ticket`."""

    ticket: int
    answer: JoinAnswer | SyncAnswer


class GroupStep(NamedTuple):
    """The result of a call to the group: the answers to send, the state to write, the assignments to make durable."""

    answers: tuple[TicketAnswer, ...] = ()
    """Answers to send when `write` is durable."""
    write: bytes | None = None
    """The group's state to store from now on; None: as before."""
    assign: int | None = None
    """The generation whose assignments are in `write`: call `assigned` or `not_assigned` after the write."""
    refusal: CoreError | None = None
    """The error of the request itself, which is refused although it changed the group."""


class MemberView(NamedTuple):
    """A member as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class ClassicView(NamedTuple):
    """A group as DescribeGroups shows it."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[MemberView, ...]
