"""The members of a classic group: their protocols, their leader, and their vote for a protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Final

from flowshare.core_errors import FencedInstanceId, UnknownMemberId
from flowshare.groups.types import Supported

MEMBER_BYTES: Final = 1_000
"""The memory of a member beside its protocols and assignment, in bytes, about."""
PROTOCOL_BYTES: Final = 100


def protocols_size(protocols: Iterable[Supported]) -> int:
    """Return the memory of protocols in bytes, about."""
    size = 0
    for name, metadata in protocols:
        size += PROTOCOL_BYTES + getsizeof(name) + len(metadata)
    return size


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """One member; `joining` and `syncing` are tickets of requests that wait for their answer."""

    member_id: str
    instance_id: str | None = None
    """group.instance.id of a static member."""
    client_id: str = ""
    client_host: str = ""
    protocols: tuple[Supported, ...] = ()
    """Protocols in order of preference."""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    assignment: bytes = b""
    deadline_ms: int | None = None
    """The time of its removal unless it is heard of; None while it waits for an answer."""
    joining: int | None = None
    syncing: int | None = None
    sync_missing: bool = False
    """True while it has not asked for its assignment of this generation."""
    new: bool = False
    """True until it has seen a generation; before, it sends no heartbeats."""

    @property
    def size(self) -> int:
        """The memory of the member in bytes, about."""
        return (
            MEMBER_BYTES
            + 3 * getsizeof(self.member_id)  # as a key, too, and begun with the client's id
            + protocols_size(self.protocols)
            + len(self.assignment)
        )

    def durable(self, assignment: bytes) -> ClassicMember:
        """Return the member as it is stored, with this assignment and without its waiting requests and deadlines."""
        return replace(
            self, assignment=assignment, deadline_ms=None, joining=None, syncing=None, sync_missing=False, new=False
        )

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata that the member gave for a protocol; empty if the member does not support it."""
        return next((one.metadata for one in self.protocols if one.name == protocol), b"")


class Members:
    """The members of one group by id, in order of joining; the first is the leader until it goes."""

    def __init__(self) -> None:
        self._members: dict[str, ClassicMember] = {}
        self._instances: dict[str, str] = {}
        self.leader: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(tuple(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    @property
    def size(self) -> int:
        """The memory of all members in bytes, about."""
        return sum([member.size for member in self._members.values()])

    def get(self, member_id: str) -> ClassicMember | None:
        """Return the member with this id; None: none."""
        return self._members.get(member_id)

    def of_instance(self, instance_id: str) -> ClassicMember | None:
        """Return the member that has this group.instance.id now."""
        member_id = self._instances.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def find(self, group_id: str, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return the member that a request names. Raises UnknownMemberId, FencedInstanceId."""
        if instance_id is not None:
            owner = self._instances.get(instance_id)
            if owner is None:
                raise UnknownMemberId(f"group {group_id} has no member with the group.instance.id {instance_id}")
            if owner != member_id:
                raise FencedInstanceId(
                    f"another process joined group {group_id} with the group.instance.id {instance_id}; "
                    "give each process its own"
                )
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"group {group_id} has no member {member_id!r}; join again")
        return member

    def add(self, member: ClassicMember) -> None:
        """Take in a member."""
        assert member.member_id not in self._members
        assert member.instance_id is None or member.instance_id not in self._instances
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: ClassicMember) -> None:
        """Let a member go; the next in order leads if it was the leader."""
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def rename(self, member: ClassicMember, member_id: str) -> ClassicMember:
        """Put a static member that came back in the place of its former self."""
        renamed = replace(member, member_id=member_id)
        self._members = {
            (member_id if one is member else key): (renamed if one is member else one)
            for key, one in self._members.items()
        }
        assert member.instance_id is not None
        self._instances[member.instance_id] = member_id
        if self.leader == member.member_id:
            self.leader = member_id
        return renamed

    def elect_joined_leader(self) -> bool:
        """Choose a leader that has (re)joined; False if no member has."""
        if self.leader is not None and self._members[self.leader].joining is not None:
            return True
        joined = next((member.member_id for member in self if member.joining is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def candidates(self, without: ClassicMember | None = None) -> frozenset[str]:
        """Return the protocols that all members (but `without`) support."""
        others = [member for member in self if member is not without]
        known = Counter(name for member in others for name in {one.name for one in member.protocols})
        return frozenset(name for name, count in known.items() if count == len(others))

    def vote(self) -> str:
        """Return the protocol that most members prefer among those that all support; of equals the first that was
        named."""
        candidates = self.candidates()
        votes = Counter(next(one.name for one in member.protocols if one.name in candidates) for member in self)
        return max(votes, key=lambda name: votes[name])

    def rebalance_timeout_ms(self) -> int:
        """Return the longest of the members' rebalance timeouts, in ms."""
        return max((member.rebalance_timeout_ms for member in self), default=0)
