"""`Membership`: one member of a classic consumer group, without I/O and without a clock.

    OUT ──joined──▶ JOINED ──synced──▶ IN ──a heartbeat says that there is a new round──▶ OUT, as a known member
     ▲                │                │
     └── unknown, or of an old round ──┘        a refusal that somebody has to mend: `GroupRefused`

The member may count on what it was assigned from the answer to SyncGroup on, for `session_s` from when its last good
heartbeat was *sent* (`sure`): the coordinator reckons from when it got it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
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
    """A consumer group takes no such member, until somebody mends what the text says."""


class GenerationOver(ClientError):
    """The member is no member any more, or its generation is over: what it wanted to commit others may read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Seconds, under the names of Kafka's consumers.

    session_timeout: a member that dies is noticed after that. heartbeat_interval: between two heartbeats.
    rebalance_timeout: how long a new round waits for members (max.poll.interval.ms, as far as that is about rounds).
    instance_id: a lasting name (group.instance.id): who joins under it takes over at once from who had it.
    """

    session_timeout: float = 10.0
    heartbeat_interval: float = 1.0
    rebalance_timeout: float = 6.0
    instance_id: str | None = None


class Generation(NamedTuple):
    """A round of the group, and what this member is assigned in it."""

    number: int
    member_id: str
    partitions: Partitions
    user_data: bytes = b""

    @property
    def places(self) -> list[tuple[str, int]]:
        """Topics and partitions, in order."""
        return [(topic, one) for topic, ones in sorted(self.partitions.items()) for one in sorted(ones)]


class Verdict(enum.Enum):
    """What an error of a group's coordinator asks for."""

    GOOD = enum.auto()
    JOIN_AGAIN = enum.auto()


class Membership:
    """What one member knows of itself; protocol: the name of its assignor."""

    def __init__(self, group_id: str, *, protocol: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.protocol = protocol
        self.settings = settings
        self.member_id = ""
        self.generation: Generation | None = None
        self._number = -1
        self._proved_s: float | None = None

    # --- what is asked ------------------------------------------------------------------------------------------

    def join(self, subscription: bytes) -> JoinGroupRequest:
        """Ask for a new round, or for the one that is under way."""
        return JoinGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=(Supported(self.protocol, subscription),),
            session_timeout_ms=round(self.settings.session_timeout * 1000),
            rebalance_timeout_ms=round(self.settings.rebalance_timeout * 1000),
        )

    def sync(self, joined: JoinGroupResponse, assignments: Sequence[tuple[str, bytes]] = ()) -> SyncGroupRequest:
        """Ask for the assignment; assignments: of all members, if this one leads the round."""
        return SyncGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.settings.instance_id,
            generation=self._number,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=tuple(assignments),
        )

    def beat(self) -> HeartbeatRequest:
        """A heartbeat."""
        return HeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.settings.instance_id,
            generation=self._number,
        )

    def leave(self) -> LeaveGroupRequest | None:
        """Tell the group that the member goes; None: it is none, or one that keeps its place by its instance id."""
        if not self.member_id or self.settings.instance_id is not None:
            return None
        return LeaveGroupRequest(group_id=self.group_id, members=(LeavingMember(self.member_id),))

    def commit(self, generation: Generation, offsets: Sequence[OffsetToCommit]) -> OffsetCommitRequest:
        """Commit what was read in a generation."""
        return OffsetCommitRequest(
            group_id=self.group_id,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
            generation=generation.number,
            offsets=tuple(offsets),
        )

    # --- what is answered ---------------------------------------------------------------------------------------

    def joined(self, answer: JoinGroupResponse) -> Verdict:
        """The answer to `join`. Raises: GroupRefused, NotConnected."""
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return Verdict.JOIN_AGAIN
        verdict = self.verdict(answer.error)
        if verdict is Verdict.GOOD:
            self.member_id, self._number = answer.member_id, answer.generation
        return verdict

    def synced(self, answer: SyncGroupResponse, sent_s: float) -> Generation | None:
        """The answer to `sync`, which was sent then; None: join again.

        Raises: GroupRefused, NotConnected, MembershipError (the leader gives what nobody can read).
        """
        if self.verdict(answer.error) is not Verdict.GOOD:
            return None
        given = decode_assignment(answer.assignment) if answer.assignment else Assignment({}, b"")
        self.generation = Generation(self._number, self.member_id, given.partitions, given.user_data)
        self.proved(sent_s)
        return self.generation

    def verdict(self, error: ErrorCode) -> Verdict:
        """What an error means. Raises: GroupRefused, NotConnected (not now)."""
        if error is ErrorCode.NONE:
            return Verdict.GOOD
        if error in AGAIN:
            return Verdict.JOIN_AGAIN
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self._proved_s = None
            return Verdict.JOIN_AGAIN
        if error in ADVICE:
            self._proved_s = None
            raise GroupRefused(f"group {self.group_id}: {error.name}: {ADVICE[error]}")
        raise NotConnected(f"group {self.group_id}: {error.name}")

    # --- what is known ------------------------------------------------------------------------------------------

    def proved(self, sent_s: float) -> None:
        """A heartbeat, sent then, was answered well."""
        self._proved_s = sent_s if self._proved_s is None else max(self._proved_s, sent_s)

    def sure(self, now_s: float) -> bool:
        """Whether nobody else can have been assigned what this member was."""
        return self._proved_s is not None and now_s < self._proved_s + self.settings.session_timeout

    def over(self) -> None:
        """The generation is over."""
        self.generation = None
