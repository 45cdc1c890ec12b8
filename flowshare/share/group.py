"""One share group: members, epochs, assignment (docs/share-groups.md, SG-12).

The group epoch rises with every change of members, subscriptions or subscribed topics; the target assignment is
computed for a group epoch; a member jumps to it at its own next heartbeat, with no step of revoking, because
partitions are shared. Better than Kafka's brokers in one point: partitions that have no state yet are reported
(`Heartbeat.to_initialize`) and assigned in the same answer, so a new member can fetch at once (SG-12.9). So the caller
writes the state of those share-partitions and the group before it answers, and calls `initialize_failed` when it could
not.

A member's jump may be written later, once for many of them. Invariant: the epoch that any member was told is at most
the assignment epoch that is written. So a group read from the store believes a member's first word of a later jump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from flowshare.core_errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    NonEmptyGroup,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from flowshare.share.assignor import assign
from flowshare.share.config import GroupConfig
from flowshare.share.group_state import (
    MEMBER_BYTES,
    GroupState,
    Key,
    Member,
    ToInitialize,
    TopicInfo,
    decode_group,
    encode_group,
    subscription_size,
)

__all__ = [
    "GroupView",
    "Heartbeat",
    "Member",
    "ShareGroup",
    "ToInitialize",
    "TopicInfo",
    "check_heartbeat",
    "subscription_growth",
]

JOIN: Final = 0
LEAVE: Final = -1
ASSIGNOR: Final = "simple"


class Heartbeat(NamedTuple):
    """The answer to a heartbeat, with the state that the caller has to write first."""

    member_epoch: int
    assignment: tuple[Key, ...] | None
    """None: unchanged."""
    to_initialize: tuple[ToInitialize, ...]
    left: bool
    changed: bool
    """True: write the group before answering the member."""
    jumped: bool = False
    """True: the member's epoch differs from the written one; write the group some time."""


class GroupView(NamedTuple):
    """A group as ShareGroupDescribe shows it."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[Member, ...]


def subscription_growth(member: Member | None, topics: tuple[str, ...] | None) -> int:
    """Return about how many more bytes a member takes with this subscription. member None: a new member; topics None:
    unchanged."""
    if member is None:
        return MEMBER_BYTES + subscription_size(frozenset(topics or ()))
    if topics is None:
        return 0
    return subscription_size(frozenset(topics)) - subscription_size(member.subscribed)


class ShareGroup:
    """A share group as its coordinator keeps it: takes heartbeats, assigns share-partitions, returns the state to
    write.

    `config` may be replaced at any time; deadlines follow from the members' next heartbeats.
    """

    def __init__(self, group_id: str, *, config: GroupConfig, state: GroupState | None = None) -> None:
        self.group_id = group_id
        self.config = config
        self._state = GroupState() if state is None else state
        self._computed_ms: int | None = None
        self._subscriptions = Counter(name for m in self._state.members.values() for name in m.subscribed)
        self._recheck = True
        """Partitions without state may exist although the topics look as before."""
        self._unheard = set(self._state.members)  # members not heard from since the group was read from the store

    @property
    def group_epoch(self) -> int:
        """The number that rises with every change (SG-12.3)."""
        return self._state.group_epoch

    @property
    def assignment_epoch(self) -> int:
        """The group epoch that the target assignment was computed for."""
        return self._state.assignment_epoch

    @property
    def state(self) -> str:
        """`Empty` without members, else `Stable` (SG-12.11)."""
        return "Stable" if self._state.members else "Empty"

    @property
    def members(self) -> Mapping[str, Member]:
        """Members by id, in order of joining."""
        return self._state.members

    @property
    def subscribed(self) -> frozenset[str]:
        """Topics that at least one member subscribes to, whether they exist or not."""
        return frozenset(self._subscriptions)

    @property
    def initialized(self) -> frozenset[Key]:
        """Share-partitions that the group has state for."""
        return frozenset(self._state.initialized)

    @property
    def empty_since_ms(self) -> int | None:
        """The time since which the group has had no member; None while it has one."""
        return self._state.empty_since_ms

    @property
    def expires_ms(self) -> int | None:
        """The time at which the group's state is to be deleted (SG-12.11; KIP-211's rule for offsets); None: not
        planned.

        Kafka keeps share groups for ever, and so does flowshare unless `share.retention.ms` is set. The time runs from
        the last member's leaving or an administrator's last reset of offsets, whichever is later, and stops when a
        member joins.
        """
        since_ms, retention_ms = self._state.empty_since_ms, self.config.retention_ms
        return None if since_ms is None or retention_ms is None else since_ms + retention_ms

    @property
    def size(self) -> int:
        """The memory that the members and their subscriptions take, in bytes, about."""
        members = self._state.members
        return MEMBER_BYTES * len(members) + sum(subscription_size(one.subscribed) for one in members.values())

    # --- members ------------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        *,
        member_id: str,
        member_epoch: int,
        rack_id: str | None,
        subscribed_topics: tuple[str, ...] | None,
        client_id: str,
        client_host: str,
        topics: Mapping[str, TopicInfo],
        now_ms: int,
        worker: int | None = None,
    ) -> Heartbeat:
        """Take one heartbeat: join or rejoin (epoch 0), go on, or leave (−1). Applied at once.

        `topics` has at least every subscribed topic that exists, by name. worker: see `Member`.
        Raises InvalidRequest, UnknownMemberId, FencedMemberEpoch, GroupMaxSizeReached; nothing is changed then.
        """
        check_heartbeat(self.group_id, member_id, member_epoch, rack_id, subscribed_topics)
        if member_epoch == LEAVE:
            self._find(member_id)
            self.remove((member_id,), now_ms)
            return Heartbeat(LEAVE, None, (), left=True, changed=True)
        self._check_epoch(member_id, member_epoch)
        epochs_before = self.group_epoch, self.assignment_epoch
        member, urgent = self._update(member_id, rack_id, subscribed_topics)
        epoch_before = member.epoch
        client = client_id, client_host, worker
        renamed = (member.client_id, member.client_host, member.worker) != client
        member.client_id, member.client_host, member.worker = client
        member.deadline_ms = now_ms + self.config.session_timeout_ms
        to_initialize = self._see(topics, bump=urgent)
        self._compute_if_due(now_ms, at_once=urgent)
        moved = self._reconcile(member, member_epoch)
        # A member at its previous epoch has not got the last answer, so it is told everything again (SG-12.6).
        full = member_epoch < epoch_before or member_epoch == JOIN or subscribed_topics is not None
        return Heartbeat(
            member.epoch,
            member.assignment if full or moved else None,
            to_initialize,
            left=False,
            changed=renamed or (self.group_epoch, self.assignment_epoch) != epochs_before,
            jumped=member.epoch != epoch_before,
        )

    def expire(self, now_ms: int) -> tuple[str, ...]:
        """Remove members that were silent for too long, as if each had left (SG-12.7). Write the group if the result is
        not empty."""
        gone = tuple(m.member_id for m in self._state.members.values() if m.deadline_ms <= now_ms)
        self.remove(gone, now_ms)
        return gone

    def remove(self, member_ids: Iterable[str], now_ms: int) -> None:
        """Remove members that left, timed out or died; the others get their partitions at their next heartbeats."""
        state = self._state
        for member_id in member_ids:
            self._subscribe(state.members[member_id], ())
            del state.members[member_id]
            state.target.pop(member_id, None)
            state.group_epoch += 1
            if not state.members:
                state.empty_since_ms = now_ms

    def at_workers(self, gone: Callable[[int], bool]) -> tuple[str, ...]:
        """Return the members that live in the processes of workers that are `gone`."""
        return tuple(m.member_id for m in self._state.members.values() if m.worker is not None and gone(m.worker))

    def expect_by(self, member_id: str, due_ms: int) -> None:
        """Let a member whose connection is gone time out at `due_ms` at the latest, unless a heartbeat comes before."""
        member = self._state.members.get(member_id)
        if member is not None:
            member.deadline_ms = min(member.deadline_ms, due_ms)

    def put_off(self, now_ms: int, by_ms: int) -> None:
        """Give members that would time out now `by_ms` more, because the group's keeper did not listen."""
        for member in self._state.members.values():
            if member.deadline_ms <= now_ms:
                member.deadline_ms = now_ms + by_ms

    def next_deadline_ms(self) -> int | None:
        """Return the time at which the next session ends; None without members."""
        return min((member.deadline_ms for member in self._state.members.values()), default=None)

    def describe(self) -> GroupView:
        """Return the group and its members as they are now; `assignment` is the partitions that each member was
        told."""
        return GroupView(
            self.group_id,
            self.state,
            self.group_epoch,
            self.assignment_epoch,
            ASSIGNOR,
            tuple(replace(member) for member in self._state.members.values()),
        )

    # --- administration -----------------------------------------------------------------------------------------

    def require_empty(self) -> None:
        """Check that the group is empty, so that an administrator may change it. Raises NonEmptyGroup."""
        if self._state.members:
            raise NonEmptyGroup(
                f"group {self.group_id} has {len(self._state.members)} members; stop them first, then try again"
            )

    def prepare_reset(self, topic: TopicInfo, partition: int) -> int:
        """Prepare AlterShareGroupOffsets: return the state epoch to initialise a share-partition with.

        The epoch is higher than any before, which fences the present leader (SG-13.2). Then call `reset`.
        Raises NonEmptyGroup, UnknownTopicOrPartition; nothing is changed then.
        """
        self.require_empty()
        if not 0 <= partition < topic.partitions:
            raise UnknownTopicOrPartition(f"topic {topic.name} has no partition {partition}")
        self._state.group_epoch += 1
        return self._state.group_epoch

    def reset(self, chosen: Iterable[tuple[TopicInfo, int]], *, now_ms: int) -> list[ToInitialize]:
        """Note that these share-partitions have states; write the group with their states, or after them.

        Returns those that had none, for `initialize_failed` if the group cannot be written.
        """
        state = self._state
        fresh: list[ToInitialize] = []
        for topic, partition in chosen:
            if (topic.topic_id, partition) not in state.initialized:
                fresh.append(ToInitialize(topic.topic_id, partition, -1, state.group_epoch))
            state.initialized.add((topic.topic_id, partition))
            state.known.setdefault(topic.topic_id, topic.partitions)
        state.empty_since_ms = now_ms
        self._recheck = True
        return fresh

    def topic_deleted(self, topic_id: UUID) -> tuple[Key, ...]:
        """Forget a topic that was deleted, or whose offsets were (SG-9.3, SG-13.3). Return the share-partitions whose
        state is to be deleted, if any; then write the group."""
        state = self._state
        keys = tuple(sorted(key for key in state.initialized if key[0] == topic_id))
        state.initialized.difference_update(keys)
        state.known.pop(topic_id, None)
        self._recheck = True
        return keys

    def initialize_failed(self, failed: Iterable[ToInitialize]) -> None:
        """Take back share-partitions whose states could not be written: a later heartbeat reports them again."""
        self._state.begin_later(failed)
        self._recheck = True

    # --- persistence --------------------------------------------------------------------------------------------

    def encode(self, unwritten: Iterable[ToInitialize] = (), *, ahead_ms: int = 0) -> bytes:
        """Encode the group for the store: epochs, members, assignments, initialised share-partitions.

        unwritten: share-partitions without written state; a heartbeat reports them again after a crash.
        ahead_ms: how far the stored times are ahead of this clock.
        """
        state = self._state.without(unwritten)
        if state.empty_since_ms is not None:
            state.empty_since_ms += ahead_ms
        return encode_group(state)

    @classmethod
    def decode(cls, data: bytes, *, group_id: str, config: GroupConfig, now_ms: int, ahead_ms: int = 0) -> ShareGroup:
        """Decode the group that `encode` wrote; every member has a whole session timeout again.

        ahead_ms: how far the stored times are ahead of this clock. Raises StateCorrupt.
        """
        state = decode_group(data)
        if state.empty_since_ms is not None:
            state.empty_since_ms = min(state.empty_since_ms - ahead_ms, now_ms)
        for member in state.members.values():
            member.deadline_ms = now_ms + config.session_timeout_ms
        return cls(group_id, config=config, state=state)

    # --- steps of a heartbeat -----------------------------------------------------------------------------------

    def _find(self, member_id: str) -> Member:
        member = self._state.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"group {self.group_id} has no member {member_id}; join again with epoch 0")
        return member

    def _check_epoch(self, member_id: str, epoch: int) -> None:
        """Check that a member may join, or go on with this epoch (SG-12.2, SG-12.8)."""
        if epoch == JOIN:
            if member_id not in self._state.members and len(self._state.members) >= self.config.group_max_size:
                raise GroupMaxSizeReached(
                    f"group {self.group_id} has {len(self._state.members)} members already (group.share.max.size)"
                )
            self._unheard.discard(member_id)
            return
        member = self._find(member_id)
        if member_id in self._unheard and member.epoch < epoch <= self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch  # the member was told more than was written
        self._unheard.discard(member_id)
        if epoch not in (member.epoch, member.previous_epoch):
            raise FencedMemberEpoch(f"member epoch is {epoch}, expected {member.epoch}; join again with epoch 0")

    def _update(self, member_id: str, rack_id: str | None, topics: tuple[str, ...] | None) -> tuple[Member, bool]:
        """Take over a member's rack and subscription; return True if its assignment depends on the change."""
        state = self._state
        member = state.members.get(member_id)
        urgent = member is None
        if member is None:
            member = state.members[member_id] = Member(member_id=member_id)
            state.empty_since_ms = None
        if rack_id is not None and rack_id != member.rack_id:
            member.rack_id = rack_id
            urgent = True
        if topics is not None and set(topics) != set(member.subscribed):
            self._subscribe(member, topics)
            urgent = True
        return member, urgent

    def _subscribe(self, member: Member, topics: tuple[str, ...]) -> None:
        """Replace a member's subscription; topics without subscribers are no longer counted."""
        self._subscriptions.subtract(member.subscribed)
        member.subscribed = tuple(sorted(set(topics)))
        self._subscriptions.update(member.subscribed)
        self._subscriptions = +self._subscriptions

    def _see(self, topics: Mapping[str, TopicInfo], *, bump: bool) -> tuple[ToInitialize, ...]:
        """Look at the subscribed topics; raise the group epoch (SG-12.3) if they changed, or if `bump` is set. Return
        the share-partitions to initialise."""
        state = self._state
        seen = {name: topics[name] for name in sorted(self._subscriptions) if name in topics}
        missing: list[Key] = []
        if self._recheck or seen != state.metadata:
            keys = ((info.topic_id, p) for info in seen.values() for p in range(info.partitions))
            missing = [key for key in keys if key not in state.initialized]
        if bump or missing or seen != state.metadata:
            state.group_epoch += 1
        state.metadata = seen
        self._recheck = False
        items = tuple(
            ToInitialize(topic_id, p, 0 if p >= state.known.get(topic_id, p + 1) else -1, state.group_epoch)
            for topic_id, p in missing
        )
        state.initialized.update(missing)
        for info in seen.values():
            state.known[info.topic_id] = max(info.partitions, state.known.get(info.topic_id, 0))
        return items

    def _compute_if_due(self, now_ms: int, *, at_once: bool) -> None:
        """Compute the target assignment for the group epoch, not more often than its interval allows (SG-12.4)."""
        state = self._state
        if state.assignment_epoch == state.group_epoch:
            return
        recent = self._computed_ms is not None and 0 <= now_ms - self._computed_ms < self.config.assignment_interval_ms
        if recent and not at_once:
            return
        ids: dict[tuple[str, ...], frozenset[UUID]] = {}
        for member in state.members.values():
            if member.subscribed not in ids:
                names = [name for name in member.subscribed if name in state.metadata]
                ids[member.subscribed] = frozenset(state.metadata[name].topic_id for name in names)
        # `_see` has just initialised all missing partitions, so every partition in the metadata can be assigned.
        assignable = {info.topic_id: range(info.partitions) for info in state.metadata.values()}
        subscriptions = {member.member_id: ids[member.subscribed] for member in state.members.values()}
        state.target = assign(subscriptions, assignable, state.target)
        state.assignment_epoch = state.group_epoch
        self._computed_ms = now_ms

    def _reconcile(self, member: Member, said: int) -> bool:
        """Let a member jump to the target assignment (SG-12.5); return True if its partitions changed.

        said: the epoch that the member knows of. The member may repeat an epoch: answers are lost, or never leave when
        the group cannot be written.
        """
        target = self._state.target[member.member_id]
        if member.epoch != self.assignment_epoch:
            member.previous_epoch = member.epoch if said == JOIN else said
            member.epoch = self.assignment_epoch
        moved = target != member.assignment
        member.assignment = target
        return moved


def check_heartbeat(
    group_id: str,
    member_id: str,
    member_epoch: int,
    rack_id: str | None,
    subscribed_topics: tuple[str, ...] | None,
) -> None:
    """Check a heartbeat by itself (SG-12.1). Raises InvalidRequest.

    Call it before a group is looked up: epoch 0 makes a group that does not exist, any other epoch is GroupIdNotFound.
    """
    if not group_id:
        raise InvalidRequest("the group id must not be empty")
    if not member_id:
        raise InvalidRequest("the member id must not be empty")
    if member_epoch < LEAVE:
        raise InvalidRequest(f"the member epoch {member_epoch} is invalid; it must be -1 or more")
    if rack_id is not None and not rack_id:
        raise InvalidRequest("the rack id must not be empty; leave it out instead")
    if member_epoch == JOIN and not subscribed_topics:
        raise InvalidRequest("the subscribed topic names must be given when joining")
