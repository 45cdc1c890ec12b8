"""One group of Kafka's consumer protocol (KIP-848): heartbeats alone, and the server assigns.

Three epochs that never fall. The *group epoch* rises with each change of members, subscriptions or subscribed topics;
the *assignment epoch* is the group epoch that the target assignment was made for; a *member's epoch* is the assignment
epoch that it has come to, at its own heartbeats:

    state        trigger, at a heartbeat of the member                       next state, and the member's answer
    (none)       JOIN, epoch 0                                               as STABLE, at epoch 0
    STABLE       its target is at another epoch, or it subscribes to
                 other topics, and it has to give partitions up              UNREVOKED, its epoch; those that it keeps
                 the same, nothing to give up, all its new ones are free     STABLE, assignment epoch; all of them
                 the same, some of them are still another member's           UNRELEASED, assignment epoch; the free ones
    UNREVOKED    it uses some of those to give up, or may not have
                 heard of them yet                                           UNREVOKED, as before
                 it has heard, and uses none of them any more                as from STABLE, at most one epoch further
    UNRELEASED   any                                                         as from STABLE
    any          LEAVE (−1); silence for the session timeout; UNREVOKED for longer than its rebalance timeout
                                                                             (none); its partitions are free
    any          LEAVE_FOR_NOW (−2) of a static member                       STABLE, at epoch −2; its partitions wait
                                                                             for the next with its instance id

Invariants, which hold between any two calls (`tests/groups/consumer_world.py` asserts them):

1. No partition is with two members: no other member is given a partition that a member may use (`assigned`) or is to
   give up (`revoking`), until that member says that it does not use it any more, or is no member any more.
2. A member uses only partitions `assigned` to it or `revoking`, as long as it has not been removed. Its requests are
   taken to come in the order in which they were sent.
3. Epochs rise. Changes are written before a member is told of them (`unwritten`), so a group that is read from the
   store knows each member at the epoch that it was told last, or at one that it would have been told next.
4. Only a member in UNREVOKED has partitions to give up, and it has a deadline for that.
5. Each instance id belongs to one member.

A member may name its former epoch once more, because the answer with the new one may be lost; it is told everything
again. A `heartbeat` that raises has changed nothing.

Stricter than Kafka in one point: a partition that a member does not use is freed only when the member has heard that it
is to give the partition up. A member that was told before to use the partition may be about to, and may have sent its
heartbeat meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NoReturn

from flowshare.core_errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    NonEmptyGroup,
    StaleMemberEpoch,
    StateCorrupt,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from flowshare.groups.assignors import ASSIGNORS, Reader
from flowshare.groups.consumer_member import MEMBER_BYTES, ConsumerMember, MemberState, reconcile, subscription_size
from flowshare.groups.consumer_stored import GroupEpochs, StoredConsumerGroup, encode_epochs, encode_member
from flowshare.groups.consumer_types import (
    JOIN,
    LEAVE_FOR_NOW,
    Beat,
    BeatAnswer,
    ConsumerGroupConfig,
    ConsumerGroupView,
    ConsumerMemberView,
    Key,
    SeenTopic,
)

EPOCHS: Final = ""
"""Name of the group's own entry among its members' entries."""
SIZE_A_MS: Final = 10
"""Members and partitions for which a new assignment waits one millisecond. Assigning takes some hundredths of that, so
groups of any size leave the server its time."""
COMMIT_SINCE: Final = 9
"""Version of OffsetCommit from which on a member may commit with its epoch."""


class ConsumerGroup:
    """A group as its coordinator keeps it: takes heartbeats, assigns partitions, returns the state to write.

    `config` may be replaced at any time; deadlines follow from the members' next heartbeats.
    """

    def __init__(
        self,
        group_id: str,
        *,
        config: ConsumerGroupConfig,
        stored: StoredConsumerGroup | None = None,
        epoch: int = 0,
        now_ms: int = 0,
    ) -> None:
        """stored: its stored state; its members have whole timeouts again. epoch: the first one of a new group.

        Raises: StateCorrupt
        """
        self.group_id = group_id
        self.config = config
        self._epochs = GroupEpochs(group_epoch=epoch, assignment_epoch=epoch) if stored is None else stored.epochs
        self._members: dict[str, ConsumerMember] = {}
        self._instances: dict[str, str] = {}
        self._owners: dict[Key, str] = {}
        self._subscriptions: Counter[str] = Counter()
        self._unwritten: dict[str, None] = {}
        self._computed_ms: int | None = None
        self._dead = False
        for member in () if stored is None else stored.members:
            if member.instance_id in self._instances or any(key in self._owners for key in member.owned):
                raise StateCorrupt(f"stored member {member.member_id!r} has what another one has, too")
            self._add(member)
            member.deadline_ms = now_ms + config.session_timeout_ms
            self._set_revoke_due(member, now_ms)
        self._unwritten.clear()

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def group_epoch(self) -> int:
        """The number that rises with every change."""
        return self._epochs.group_epoch

    @property
    def assignment_epoch(self) -> int:
        """The group epoch that the target assignment was made for."""
        return self._epochs.assignment_epoch

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        """Members by id, in order of joining."""
        return self._members

    @property
    def empty(self) -> bool:
        """True if the group has no members."""
        return not self._members

    @property
    def state(self) -> str:
        """The group's state by Kafka's name."""
        epochs = self._epochs
        if not self._members:
            return "Empty"
        if epochs.group_epoch > epochs.assignment_epoch:
            return "Assigning"
        there = (MemberState.STABLE, epochs.assignment_epoch)
        return "Stable" if all((one.state, one.epoch) == there for one in self._members.values()) else "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; without such members the server's first."""
        asked = Counter(one.assignor for one in self._members.values() if one.assignor in self.config.assignors)
        return str(max(asked, key=lambda name: asked[name])) if asked else self.config.assignors[0]

    @property
    def size(self) -> int:
        """The memory of its members in bytes, about."""
        return sum([member.size for member in self._members.values()])

    def reads(self, topic: str) -> bool:
        """True if members read the topic."""
        return topic in self._subscriptions

    def growth(self, beat: Beat) -> int:
        """Return about how many more bytes the group takes after a heartbeat, assignments aside."""
        member = self._members.get(beat.member_id)
        if beat.leaves or (member is None and beat.member_epoch != JOIN):
            return 0
        after = subscription_size(beat.topics or (), beat.pattern or "")
        if member is None:
            return MEMBER_BYTES + after
        if beat.topics is None and beat.pattern is None:
            return 0
        return after - subscription_size(member.topics, member.pattern)

    def describe(self) -> ConsumerGroupView:
        """Return the group and its members as they are now."""
        epochs = self._epochs
        return ConsumerGroupView(
            self.group_id,
            self.state,
            epochs.group_epoch,
            epochs.assignment_epoch,
            self.assignor,
            tuple(
                ConsumerMemberView(
                    one.member_id,
                    one.instance_id,
                    one.rack_id,
                    one.epoch,
                    one.client_id,
                    one.client_host,
                    tuple(sorted(one.topics)),
                    one.pattern,
                    tuple(sorted(one.assigned)),
                    tuple(sorted(one.target)),
                )
                for one in self._members.values()
            ),
        )

    # --- heartbeats -----------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        beat: Beat,
        *,
        topics: Mapping[str, SeenTopic],
        matching: Callable[[str], Collection[str]],
        now_ms: int,
    ) -> BeatAnswer:
        """Take one heartbeat, checked by `consumer_types.check_beat`: join or rejoin, go on, or leave.

        topics: at least every subscribed topic that exists, by name; matching: returns the topics that match a pattern
        and that this member may know of. Answer it when `unwritten` is written.

        Raises: UnknownMemberId, FencedMemberEpoch, FencedInstanceId, UnreleasedInstanceId, GroupMaxSizeReached,
        CoordinatorNotAvailable
        """
        self._require_alive()
        if beat.leaves:
            return self._leave(beat)
        member = self._find_or_join(beat)
        before, told = dict(member.assigned), member.epoch
        resubscribed = self._update(member, beat, matching)
        if beat.owned is not None:
            member.reported = frozenset(beat.owned)
        member.deadline_ms = now_ms + self.config.session_timeout_ms
        self._see(topics)
        self._compute_if_due(now_ms)
        self._advance(member, beat, now_ms, resubscribed=resubscribed)
        news = before.keys() != member.assigned.keys() or member.reported != member.assigned.keys()
        again = beat.member_epoch == JOIN or beat.member_epoch != told or not beat.heard
        assignment = tuple(sorted(member.assigned)) if news or again else None
        waits = member.state is not MemberState.STABLE or self.assignment_epoch < self.group_epoch
        return BeatAnswer(member.epoch, assignment, waits)

    def pattern_of(self, beat: Beat) -> str:
        """Return the pattern of topics that the member has if this heartbeat is accepted; "": none."""
        if beat.pattern is not None:
            return beat.pattern
        member = self._members.get(beat.member_id) or self._holder(beat)
        return member.pattern if member else ""

    def _holder(self, beat: Beat) -> ConsumerMember | None:
        """Return the member that has the heartbeat's instance id."""
        return None if beat.instance_id is None else self._members.get(self._instances.get(beat.instance_id, ""))

    def _find_or_join(self, beat: Beat) -> ConsumerMember:
        """Return the member of a heartbeat, made if it joins. Raises: as `heartbeat`."""
        member, holder = self._members.get(beat.member_id), self._holder(beat)
        if beat.member_epoch != JOIN:
            return self._known(beat, member, holder)
        if holder is not None and holder is not member:
            if not holder.away:
                raise UnreleasedInstanceId(
                    f"group.instance.id {beat.instance_id} is in use by member {holder.member_id} of group "
                    f"{self.group_id}; stop that process first, or wait for its session to time out"
                )
            if member is None:
                return self._replace(holder, beat)
        if member is not None:
            if beat.instance_id not in (None, member.instance_id):
                raise FencedInstanceId(f"member {beat.member_id} joined with another group.instance.id, or none")
            return member
        if len(self._members) >= self.config.size_max:
            raise GroupMaxSizeReached(
                f"group {self.group_id} has {len(self._members)} members already (group.consumer.max.size)"
            )
        member = ConsumerMember(member_id=beat.member_id, instance_id=beat.instance_id)
        self._add(member)
        return member

    def _known(self, beat: Beat, member: ConsumerMember | None, holder: ConsumerMember | None) -> ConsumerMember:
        """Return the member of a heartbeat that is no join, its epoch checked. Raises: as `heartbeat`."""
        if beat.instance_id is not None:
            self._check_instance(beat, holder)
        if member is None:
            self._unknown(beat.member_id)
        owned = None if beat.owned is None else frozenset(beat.owned)
        lost_answer = beat.member_epoch == member.previous_epoch and (
            owned is None or owned <= {*member.assigned, *member.revoking}
        )
        if member.away or (beat.member_epoch != member.epoch and not lost_answer):
            raise FencedMemberEpoch(
                f"member epoch is {beat.member_epoch}, expected {member.epoch}; give up all partitions and join again "
                "with epoch 0"
            )
        return member

    def _check_instance(self, beat: Beat, holder: ConsumerMember | None) -> None:
        if holder is None:
            raise UnknownMemberId(f"group {self.group_id} has no member with group.instance.id {beat.instance_id}")
        if holder.member_id != beat.member_id:
            raise FencedInstanceId(
                f"another process joined group {self.group_id} with the group.instance.id {beat.instance_id}; give "
                "each process its own"
            )

    def _replace(self, former: ConsumerMember, beat: Beat) -> ConsumerMember:
        """Give the place of a static member that left for now to its new id; it keeps its partitions."""
        member = replace(former, member_id=beat.member_id, epoch=0, previous_epoch=-1)
        self._remove(former)
        self._add(member)
        return member

    def _update(self, member: ConsumerMember, beat: Beat, matching: Callable[[str], Collection[str]]) -> bool:
        """Take over a member's facts; True if it subscribes to other topics now."""
        said, before, fresh = _said(member), member.subscribed, not member.deadline_ms
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.topics is not None:
            member.topics = tuple(dict.fromkeys(beat.topics))
        if beat.pattern is not None:
            member.pattern = beat.pattern
        reassigned = beat.assignor not in (None, member.assignor)
        if reassigned:
            member.assignor = beat.assignor
        member.matched = frozenset(matching(member.pattern)) if member.pattern else frozenset()
        if said != _said(member):
            self._unwritten[member.member_id] = None
        resubscribed = before != member.subscribed
        if resubscribed:
            self._count(before, -1)
            self._count(member.subscribed, 1)
        if fresh or resubscribed or reassigned:
            self._bump()
        return resubscribed

    def _see(self, topics: Mapping[str, SeenTopic]) -> None:
        """Look at the subscribed topics; a new, missing or grown topic is a change of the group."""
        seen = {name: topics[name] for name in sorted(self._subscriptions) if name in topics}
        if seen != self._epochs.topics:
            self._epochs.topics = seen
            self._bump()

    def _compute_if_due(self, now_ms: int) -> None:
        """Make the target assignment of the group epoch, not more often than its interval and its size allow."""
        epochs = self._epochs
        if epochs.assignment_epoch == epochs.group_epoch:
            return
        size = len(self._members) + sum(count for _, _, count in epochs.topics.values())
        interval_ms = max(self.config.assignment_interval_ms, size // SIZE_A_MS)
        if self._computed_ms is not None and 0 <= now_ms - self._computed_ms < interval_ms:
            return
        ids = {name: topic_id for name, topic_id, _ in epochs.topics.values()}
        readers = [
            Reader(
                one.member_id,
                frozenset(ids[name] for name in one.subscribed if name in ids),
                one.target,
                one.instance_id,
            )
            for one in self._members.values()
        ]
        partitions = {topic_id: count for _, topic_id, count in epochs.topics.values()}
        for member_id, target in ASSIGNORS[self.assignor](readers, partitions).items():
            self._aim(self._members[member_id], target)
        epochs.assignment_epoch = epochs.group_epoch
        self._unwritten[EPOCHS] = None
        self._computed_ms = now_ms

    def _aim(self, member: ConsumerMember, target: frozenset[Key]) -> None:
        if target == member.target:
            return
        member.target = target
        self._unwritten[member.member_id] = None
        if member.away:  # it uses nothing, so no other member has to wait for its return
            self._own(member, {key: since for key, since in member.assigned.items() if key in target})

    def _advance(self, member: ConsumerMember, beat: Beat, now_ms: int, *, resubscribed: bool) -> None:
        """Take the step of the table."""
        before = (member.epoch, member.state, member.assigned, member.revoking)
        ids = {name: topic_id for name, topic_id, _ in self._epochs.topics.values()}
        mine, joins = tuple(member.owned), beat.member_epoch == JOIN
        gave_up = member.reported is not None and member.reported.isdisjoint(member.revoking)
        reconcile(
            member,
            assignment_epoch=self.assignment_epoch,
            reads=frozenset(ids[name] for name in member.subscribed if name in ids),
            owner_of=self._owners.get,
            gave_up=joins or (beat.heard and beat.member_epoch == member.epoch and gave_up),
            has_nothing=joins,
            resubscribed=resubscribed,
        )
        if (member.epoch, member.state, member.assigned, member.revoking) == before:
            return
        self._unwritten[member.member_id] = None
        self._release(member.member_id, mine)
        self._claim(member)
        if member.epoch != before[0]:
            member.previous_epoch = beat.member_epoch
        if (member.epoch, member.state) != before[:2]:
            self._set_revoke_due(member, now_ms)

    def _set_revoke_due(self, member: ConsumerMember, now_ms: int) -> None:
        waits = member.state is MemberState.UNREVOKED
        member.revoke_due_ms = now_ms + max(0, member.rebalance_timeout_ms) if waits else None

    def _leave(self, beat: Beat) -> BeatAnswer:
        member = self._members.get(beat.member_id)
        if beat.instance_id is not None:
            holder = self._members.get(self._instances.get(beat.instance_id, ""))
            self._check_instance(beat, holder)
        if member is None:
            self._unknown(beat.member_id)
        if beat.member_epoch == LEAVE_FOR_NOW:
            self._own(member, member.assigned)
            member.epoch, member.previous_epoch, member.state = LEAVE_FOR_NOW, -1, MemberState.STABLE
            member.revoke_due_ms = None
            self._unwritten[member.member_id] = None
        else:
            self._remove(member)
            self._bump()
        return BeatAnswer(beat.member_epoch)

    def _unknown(self, member_id: str) -> NoReturn:
        raise UnknownMemberId(f"group {self.group_id} has no member {member_id}; join again with epoch 0")

    # --- members and what they own --------------------------------------------------------------------------------

    def _bump(self) -> None:
        self._epochs.group_epoch += 1
        self._unwritten[EPOCHS] = None

    def _add(self, member: ConsumerMember) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._instances, f"two members are {member.instance_id}"
            self._instances[member.instance_id] = member.member_id
        self._count(member.subscribed, 1)
        self._claim(member)
        self._unwritten[member.member_id] = None

    def _remove(self, member: ConsumerMember) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._count(member.subscribed, -1)
        self._release(member.member_id, member.owned)
        self._unwritten[member.member_id] = None

    def _count(self, topics: Iterable[str], by: int) -> None:
        for name in topics:
            self._subscriptions[name] += by
            if not self._subscriptions[name]:
                del self._subscriptions[name]

    def _own(self, member: ConsumerMember, assigned: dict[Key, int]) -> None:
        """Give a member these partitions, and none to give up."""
        self._release(member.member_id, member.owned)
        member.assigned, member.revoking = assigned, frozenset()
        self._claim(member)

    def _claim(self, member: ConsumerMember) -> None:
        for key in member.owned:
            former = self._owners.setdefault(key, member.member_id)
            assert former == member.member_id, f"{key} is with {former} and {member.member_id}"

    def _release(self, member_id: str, keys: Iterable[Key]) -> None:
        for key in keys:
            if self._owners.get(key) == member_id:
                del self._owners[key]

    # --- offsets --------------------------------------------------------------------------------------------------

    def check_commit(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        transactional: bool = False,
        version: int = COMMIT_SINCE,
        partitions: Iterable[tuple[str, int]] = (),
        now_ms: int = 0,
    ) -> None:
        """Check that a member may commit offsets of these partitions; `generation` is the member's epoch.

        A member with a newer epoch by now may still commit with its former epoch, for partitions that it has held
        without a break since then (KIP-1251).

        Raises: UnknownMemberId, FencedInstanceId, StaleMemberEpoch, UnsupportedVersion, CoordinatorNotAvailable
        """
        del now_ms  # a commit is no heartbeat here
        self._require_alive()
        nobody = not member_id and instance_id is None
        if generation < 0 and (not self._members or (transactional and nobody)):
            return
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberId(
                f"group {self.group_id} has no member {member_id!r}"
                + ("; offsets are set from outside only while it has no members" if generation < 0 else "")
            )
        if not transactional and version < COMMIT_SINCE:
            raise UnsupportedVersion(f"a member of group {self.group_id} commits with version {COMMIT_SINCE} or newer")
        if instance_id is not None and instance_id != member.instance_id:
            raise FencedInstanceId(f"member {member_id} has not the group.instance.id {instance_id}")
        if generation != member.epoch and not self._held_since(member, generation, partitions):
            raise StaleMemberEpoch(f"member epoch is {generation}, expected {member.epoch}; try again with that")

    def _held_since(self, member: ConsumerMember, epoch: int, partitions: Iterable[tuple[str, int]]) -> bool:
        """True if a member, past this epoch by now, has held all of these partitions without a break since then."""
        topics = self._epochs.topics
        keys = [(topics[name][1], number) if name in topics else None for name, number in partitions]
        since = [None if key is None else member.assigned.get(key) for key in keys]
        return 0 < epoch < member.epoch and bool(since) and all(one is not None and one <= epoch for one in since)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check that a member with this id and epoch may fetch offsets. Raises: UnknownMemberId, StaleMemberEpoch."""
        if member_id is None or epoch < 0:
            return
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"group {self.group_id} has no member {member_id!r}")
        if epoch != member.epoch:
            raise StaleMemberEpoch(f"member epoch is {epoch}, expected {member.epoch}; try again with that")

    # --- time and administration ----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `expire` is due; None: not planned."""
        dues = [member.deadline_ms for member in self._members.values()]
        dues += [due for one in self._members.values() if (due := one.revoke_due_ms) is not None]
        return min(dues, default=None)

    def expire(self, now_ms: int) -> tuple[str, ...]:
        """Remove members that were silent, or kept partitions to give up, for too long. Write the group then."""
        gone = [
            member
            for member in self._members.values()
            if member.deadline_ms <= now_ms or (member.revoke_due_ms is not None and member.revoke_due_ms <= now_ms)
        ]
        for member in gone:
            self._remove(member)
            self._bump()
        return tuple(member.member_id for member in gone)

    def put_off(self, now_ms: int, by_ms: int) -> None:
        """Give members that would time out now `by_ms` more, because the group's keeper did not listen."""
        for member in self._members.values():
            if member.deadline_ms <= now_ms:
                member.deadline_ms = now_ms + by_ms
            if member.revoke_due_ms is not None and member.revoke_due_ms <= now_ms:
                member.revoke_due_ms = now_ms + by_ms

    def require_empty(self) -> None:
        """Check that the group may be deleted. Raises NonEmptyGroup while there are members."""
        if self._members:
            raise NonEmptyGroup(
                f"group {self.group_id} is {self.state} with {len(self._members)} members; "
                "stop them first, then try again"
            )

    def delete(self) -> None:
        """Make an empty group dead: no member can join or commit any more. Raises NonEmptyGroup."""
        self.require_empty()
        self._dead = True

    def revive(self, unwritten: Iterable[str]) -> ConsumerGroup:
        """Return the group made alive again after a failed deletion. unwritten: its entries still to write."""
        stored = StoredConsumerGroup(epochs=self._epochs, members=())
        again = ConsumerGroup(self.group_id, config=self.config, stored=stored)
        again.not_written(unwritten)
        return again

    def _require_alive(self) -> None:
        if self._dead:
            raise CoordinatorNotAvailable(f"group {self.group_id} is being deleted; try again")

    # --- the store ------------------------------------------------------------------------------------------------

    def unwritten(self) -> dict[str, bytes | None]:
        """Return the entries to write before any member is told of the changes: one for the group (`EPOCHS`), and one
        for each member that changed. None stands for a member that is gone. All entries go in one write; such writes
        follow one another."""
        names, self._unwritten = self._unwritten, {}
        found: dict[str, bytes | None] = {}
        for name in names:
            if name == EPOCHS:
                found[name] = encode_epochs(self._epochs)
            else:
                member = self._members.get(name)
                found[name] = None if member is None else encode_member(member)
        return found

    def not_written(self, names: Iterable[str]) -> None:
        """Note that these entries of `unwritten` could not be written: they come again."""
        self._unwritten.update(dict.fromkeys(names))

    @property
    def to_write(self) -> bool:
        """True if there are changes that are neither written nor being written."""
        return bool(self._unwritten)


def _said(member: ConsumerMember) -> tuple[object, ...]:
    """Return the stored facts that a member has sent about itself."""
    names = (member.topics, member.pattern, member.matched, member.assignor)
    return (member.client_id, member.client_host, member.rack_id, member.rebalance_timeout_ms, *names)
