"""`Membership`: one member of a classic group, without I/O and without a clock: of a consumer group, of a fleet's slot
group, or of an app's lease group.

    OUT ──joined──▶ JOINED ──synced──▶ IN ──a heartbeat says that there is a new round──▶ OUT, as a known member
     ▲                │                │
     └── gone, or of an old round ─────┘        a refusal that an operator has to mend: `GroupRefused`

The member may rely on its assignment from the answer to SyncGroup on, for `session_timeout` after its last good
heartbeat was *sent* (`sure`): the coordinator counts from the arrival of the heartbeat.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from flowshare.client.errors import ClientError, NotConnected
from flowshare.groups.types import Supported
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitRequest,
    OffsetToCommit,
    SyncGroupRequest,
    SyncGroupResponse,
)
from flowshare.slots.consumer_protocol import Assignment, Partitions, decode_assignment

PROTOCOL_TYPE: Final = "consumer"
"""Kafka's tools show the assignments of groups of this type."""
AGAIN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
ADVICE: Final = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "its login needs READ on this group",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the brokers allow no such session timeout (group.min.session.timeout.ms)",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members assign partitions in another way, or it is a group of another "
    "kind: give this one a name of its own",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the brokers' group.max.size does not allow more members",
    ErrorCode.INVALID_GROUP_ID: "give it another name",
    ErrorCode.FENCED_INSTANCE_ID: "another process has joined under the same instance id: give each its own",
}


class GroupRefused(ClientError):
    """A consumer group refuses the member, until an operator mends the named cause."""


class GenerationOver(ClientError):
    """The member is out of the group, or its generation is over: other members may read the uncommitted records
    again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings in seconds, under the names of Kafka's consumers.

    session_timeout: time after which a dead member is noticed. heartbeat_interval: between two heartbeats.
    rebalance_timeout: the longest wait of a new round for members (max.poll.interval.ms, as far as that is about
    rounds). instance_id: a lasting name (group.instance.id): a member that joins under it takes over from its last
    holder at once.
    """

    session_timeout: float = 10.0
    heartbeat_interval: float = 1.0
    rebalance_timeout: float = 6.0
    instance_id: str | None = None


class Generation(NamedTuple):
    """A round of the group, and this member's assignment in it."""

    number: int
    member_id: str
    partitions: Partitions
    user_data: bytes = b""

    @property
    def places(self) -> list[tuple[str, int]]:
        """Return topics and partitions, in order."""
        return [(topic, one) for topic, ones in sorted(self.partitions.items()) for one in sorted(ones)]


class Verdict(enum.Enum):
    """The reaction to an error of a group's coordinator."""

    GOOD = enum.auto()
    JOIN_AGAIN = enum.auto()
    GONE = enum.auto()
    """The group has given the member up: it joins again as a new one."""


class Membership:
    """The state of one member of a group, as the member knows it.

    protocol: the name of its assignor. protocol_type: the kind of the group. advice: errors that trying again does not
    mend, and what an operator has to do.
    """

    def __init__(
        self,
        group_id: str,
        *,
        protocol: str,
        settings: GroupSettings,
        protocol_type: str = PROTOCOL_TYPE,
        advice: Mapping[ErrorCode, str] = ADVICE,
    ) -> None:
        self.group_id = group_id
        self.protocol = protocol
        self.settings = settings
        self._protocol_type = protocol_type
        self._advice = advice
        self.member_id = ""
        self.generation: Generation | None = None
        self.number = -1
        """The number of the last round."""
        self._proved_s: float | None = None

    # --- what is asked ------------------------------------------------------------------------------------------

    def join(self, metadata: bytes) -> JoinGroupRequest:
        """Return the request for a new round, or for the one under way. metadata: for the round's leader."""
        return JoinGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.settings.instance_id,
            protocol_type=self._protocol_type,
            protocols=(Supported(self.protocol, metadata),),
            session_timeout_ms=round(self.settings.session_timeout * 1000),
            rebalance_timeout_ms=round(self.settings.rebalance_timeout * 1000),
        )

    def sync(self, joined: JoinGroupResponse, assignments: Sequence[tuple[str, bytes]] = ()) -> SyncGroupRequest:
        """Return the request for the assignment. assignments: of all members, if this one leads the round."""
        return SyncGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.settings.instance_id,
            generation=self.number,
            protocol_type=self._protocol_type,
            protocol_name=joined.protocol_name,
            assignments=tuple(assignments),
        )

    def beat(self) -> HeartbeatRequest:
        """Return a heartbeat."""
        return HeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.settings.instance_id,
            generation=self.number,
        )

    def leave(self, *, for_good: bool = False) -> LeaveGroupRequest | None:
        """Return the request to leave; None: the member is in no group, or keeps its place by its instance id, unless
        `for_good`."""
        instance_id = self.settings.instance_id
        if not self.member_id or (instance_id is not None and not for_good):
            return None
        return LeaveGroupRequest(group_id=self.group_id, members=(LeavingMember(self.member_id, instance_id),))

    def commit(self, generation: Generation, offsets: Sequence[OffsetToCommit]) -> OffsetCommitRequest:
        """Return the request to commit offsets that were read in a generation."""
        return OffsetCommitRequest(
            group_id=self.group_id,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
            generation=generation.number,
            offsets=tuple(offsets),
        )

    # --- what is answered ---------------------------------------------------------------------------------------

    def joined(self, answer: JoinGroupResponse) -> Verdict:
        """Take in the answer to `join`. Raises: GroupRefused, NotConnected."""
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return Verdict.JOIN_AGAIN
        verdict = self.verdict(answer.error)
        if verdict is Verdict.GOOD:
            self.member_id, self.number = answer.member_id, answer.generation
        return verdict

    def synced(self, answer: SyncGroupResponse, sent_s: float) -> Generation | None:
        """Take in the answer to `sync`, which was sent at `sent_s`; None: join again.

        Raises: GroupRefused, NotConnected, MembershipError (the leader's assignment cannot be read).
        """
        if self.verdict(answer.error) is not Verdict.GOOD:
            return None
        given = decode_assignment(answer.assignment) if answer.assignment else Assignment({}, b"")
        self.generation = Generation(self.number, self.member_id, given.partitions, given.user_data)
        self.proved(sent_s)
        return self.generation

    def verdict(self, error: ErrorCode) -> Verdict:
        """Judge an error of the coordinator. Raises: GroupRefused, NotConnected (not now)."""
        if error is ErrorCode.NONE:
            return Verdict.GOOD
        if error in AGAIN:
            return Verdict.JOIN_AGAIN
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self._proved_s = None
            return Verdict.GONE
        if error in self._advice:
            self._proved_s = None
            raise GroupRefused(f"group {self.group_id}: {error.name}: {self._advice[error]}")
        raise NotConnected(f"group {self.group_id}: {error.name}")

    # --- what is known ------------------------------------------------------------------------------------------

    def proved(self, sent_s: float) -> None:
        """Take in that a heartbeat, sent at `sent_s`, was answered well."""
        self._proved_s = sent_s if self._proved_s is None else max(self._proved_s, sent_s)

    def sure(self, now_s: float) -> bool:
        """Tell if no other member can have got this member's assignment."""
        return self._proved_s is not None and now_s < self._proved_s + self.settings.session_timeout

    def over(self) -> None:
        """End the generation."""
        self.generation = None
