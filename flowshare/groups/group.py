"""One classic consumer group: its members' requests, checked and answered (Kafka protocol, KIP-62, KIP-345, KIP-394).

Calls are applied at once. Their effects come back as a `GroupStep`: answers, also to requests that waited, and the
state to store before those answers go out. A request that is refused raises a `CoreError` and changes nothing; a
waiting request ends with the `error` of its answer. Requests that may wait bring a ticket, a number of the caller's.
Deadlines are data: `next_deadline_ms`, `expire`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from sys import getsizeof

from flowshare.core_errors import (
    CoordinatorNotAvailable,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from flowshare.groups.members import MEMBER_BYTES, ClassicMember, protocols_size
from flowshare.groups.phases import Phases
from flowshare.groups.states import ClassicState, Trigger, step
from flowshare.groups.stored import ClassicGroupState, encode_group
from flowshare.groups.types import ClassicConfig, ClassicView, GroupStep, Join, MemberView


class ClassicGroup:
    """A classic group as its coordinator keeps it: takes joins, syncs, heartbeats and commits.

    state: its stored state; its members have a whole session timeout again.
    """

    def __init__(
        self,
        group_id: str,
        *,
        config: ClassicConfig,
        state: ClassicGroupState | None = None,
        now_ms: int = 0,
        ahead_ms: int = 0,
    ) -> None:
        self.group_id = group_id
        self.ahead_ms = ahead_ms
        """How far the stored times are ahead of this clock."""
        self._config = config
        self._phases = Phases(config)
        if state is not None:
            if state.state_since_ms is not None:
                state = replace(state, state_since_ms=min(state.state_since_ms - ahead_ms, now_ms))
            self._phases.load(state, now_ms)

    @property
    def state(self) -> ClassicState:
        """The group's present state."""
        return self._phases.state

    @property
    def state_since_ms(self) -> int | None:
        """The time since which it is in that state; None: not known."""
        return self._phases.state_since_ms

    @property
    def generation(self) -> int:
        """The number that rises with each completed join phase."""
        return self._phases.generation

    @property
    def protocol_type(self) -> str | None:
        """Protocol type of the group's last members; None: the group never had members (a simple consumer only commits
        offsets)."""
        return self._phases.protocol_type

    @property
    def leader(self) -> str | None:
        """The member that computes assignments."""
        return self._phases.members.leader

    @property
    def member_count(self) -> int:
        """Number of members."""
        return len(self._phases.members)

    @property
    def empty(self) -> bool:
        """True if the group has no members and waits for none."""
        return self.state is ClassicState.EMPTY

    @property
    def awaits_member(self) -> bool:
        """True if a new member that was given its id has not joined with it yet."""
        return bool(self._phases.pending)

    @property
    def subscribed(self) -> frozenset[str] | None:
        """The topics that the members read; None: not known."""
        return self._phases.subscribed

    def reads(self, topic: str) -> bool:
        """True if members read the topic, or may read it because their topics are not known."""
        subscribed = self._phases.subscribed
        return self._phases.consumers if subscribed is None else topic in subscribed

    # --- size ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The memory of its members, and of awaited ones, in bytes, about."""
        phases = self._phases
        awaited = sum(map(getsizeof, phases.pending)) + MEMBER_BYTES * len(phases.pending) if phases.pending else 0
        return awaited + phases.members.size

    def join_growth(self, request: Join) -> int:
        """Return about how many more bytes the group takes after a join."""
        phases = self._phases
        member = phases.members.get(request.member_id)
        if member is None and request.instance_id is not None:
            member = phases.members.of_instance(request.instance_id)
        if member is not None:
            return protocols_size(request.protocols) - protocols_size(member.protocols)
        if request.member_id and request.member_id not in phases.pending:
            return 0  # the join is refused
        named = 3 * getsizeof(request.member_id or request.instance_id or request.client_id)
        if not request.member_id and request.known_id_required and request.instance_id is None:
            return MEMBER_BYTES + named
        return MEMBER_BYTES + named + protocols_size(request.protocols)

    def sync_growth(self, member_id: str, assignments: Mapping[str, bytes]) -> int:
        """Return about how many more bytes the group takes after a sync."""
        if self.state is not ClassicState.COMPLETING or self.leader != member_id:
            return 0
        members = self._phases.members
        return sum(len(assignments.get(one.member_id, b"")) - len(one.assignment) for one in members)

    # --- joining ------------------------------------------------------------------------------------------------

    def join(self, request: Join, *, ticket: int, new_id: str, now_ms: int) -> GroupStep:
        """Take a JoinGroup; it is answered when the join phase is over. `new_id` makes a new member's id unique.

        Raises: InvalidSessionTimeout, InconsistentGroupProtocol, GroupMaxSizeReached, MemberIdRequired,
        UnknownMemberId, FencedInstanceId, CoordinatorNotAvailable
        """
        phases = self._phases
        if self.state is ClassicState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is being deleted; try again")
        _check_join(self.group_id, phases, request)
        if not _has_room(phases, request.member_id):
            return self._turn_away(request.member_id, now_ms)
        known = None if request.instance_id is None else phases.members.of_instance(request.instance_id)
        if not request.member_id and known is not None:
            self._replace(known, request, ticket, new_id, now_ms)
        elif not request.member_id or (request.member_id in phases.pending and known is None):
            self._join_new(request, ticket, new_id, now_ms)
        else:
            member = phases.members.find(self.group_id, request.member_id, request.instance_id)
            self._rejoin(member, request, ticket, now_ms)
        return self._step()

    def _turn_away(self, member_id: str, now_ms: int) -> GroupStep:
        """Refuse a member for which there is no room, and let it go if it was one."""
        full = f"group {self.group_id} has {self._config.size_max} members already (group.max.size)"
        member = self._phases.members.get(member_id)
        gone = self._phases.pending.pop(member_id, None)
        if member is None and gone is None:
            raise GroupMaxSizeReached(full)
        if member is not None:
            self._phases.remove(member, now_ms)
        made = self._step()
        return made._replace(refusal=GroupMaxSizeReached(full))

    def _join_new(self, request: Join, ticket: int, new_id: str, now_ms: int) -> None:
        phases = self._phases
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{new_id}"
        if not request.member_id and request.known_id_required and request.instance_id is None:
            phases.pending[member_id] = now_ms + request.session_timeout_ms
            raise MemberIdRequired(member_id)
        phases.pending.pop(member_id, None)
        if self.state is ClassicState.PREPARING:
            phases.came_in_delay = True
        member = ClassicMember(member_id=member_id, instance_id=request.instance_id, new=True)
        self._take_over(member, request)
        phases.protocol_type = request.protocol_type
        phases.members.add(member)
        phases.wait_join(member, ticket, now_ms)
        phases.rebalance(now_ms)

    def _rejoin(self, member: ClassicMember, request: Join, ticket: int, now_ms: int) -> None:
        phases = self._phases
        same = member.protocols == request.protocols
        settled = same and (
            self.state is ClassicState.COMPLETING
            or (self.state is ClassicState.STABLE and self.leader != member.member_id)
        )
        if settled:  # The member has not got its answer: send it once more.
            self._take_over(member, request)
            phases.touch(member, now_ms)
            phases.answer(ticket, phases.join_answer(member))
            return
        self._take_over(member, request)
        phases.wait_join(member, ticket, now_ms)
        phases.rebalance(now_ms)

    def _replace(self, former: ClassicMember, request: Join, ticket: int, new_id: str, now_ms: int) -> None:
        """Give a static member that came back its place under a new id; the group goes on as before if possible."""
        phases = self._phases
        led = self.leader
        phases.fence(former)
        member = phases.members.rename(former, f"{request.instance_id}-{new_id}")
        self._take_over(member, request)
        phases.touch(member, now_ms)
        if self.state is not ClassicState.STABLE or phases.members.vote() != phases.protocol_name:
            phases.wait_join(member, ticket, now_ms)
            phases.rebalance(now_ms)
            return
        answer = phases.join_answer(member)
        if not request.can_skip_assignment:
            # Told that it leads, it would assign anew; told of its former id as leader, it takes its old assignment.
            answer = replace(answer, leader=led or "", members=())
        else:
            answer = replace(answer, skip_assignment=self.leader == member.member_id)
        phases.answer(ticket, answer)
        phases.write()

    def _take_over(self, member: ClassicMember, request: Join) -> None:
        member.client_id, member.client_host = request.client_id, request.client_host
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = (
            request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        )

    # --- the other requests of members --------------------------------------------------------------------------

    def sync(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignments: Mapping[str, bytes],
        ticket: int,
        now_ms: int,
    ) -> GroupStep:
        """Take a SyncGroup; it is answered when the leader's assignments are durable.

        Raises: UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol, RebalanceInProgress
        """
        phases = self._phases
        member = self._find(member_id, instance_id, generation)
        if protocol_type not in (None, phases.protocol_type) or (
            # A group in its join phase has the protocol of the former generation.
            protocol_name not in (None, phases.protocol_name)
        ):
            raise InconsistentGroupProtocol(
                f"group {self.group_id} uses {phases.protocol_type} {phases.protocol_name}, "
                f"not {protocol_type} {protocol_name}"
            )
        if self.state is ClassicState.PREPARING:
            raise RebalanceInProgress(f"group {self.group_id} rebalances; join again")
        if self.state is ClassicState.STABLE:
            phases.synced(member)
            phases.touch(member, now_ms)
            phases.answer(ticket, phases.sync_answer(member))
            return self._step()
        phases.wait_sync(member, ticket)
        if self.leader == member_id:
            phases.assign(assignments)
        return self._step()

    def assigned(self, generation: int, now_ms: int) -> GroupStep:
        """Note that the assignments of `GroupStep.assign` are durable: the members get them."""
        self._phases.assigned(generation, now_ms)
        return self._step()

    def not_assigned(self, generation: int, now_ms: int) -> GroupStep:
        """Note that the assignments of `GroupStep.assign` could not be written: the members are told to join again."""
        self._phases.not_assigned(generation, now_ms)
        return self._step()

    def heartbeat(self, *, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """Take a Heartbeat.

        Raises: RebalanceInProgress (it counted all the same), UnknownMemberId, FencedInstanceId, IllegalGeneration
        """
        member = self._find(member_id, instance_id, generation)
        self._phases.touch(member, now_ms)
        if self.state is ClassicState.PREPARING:
            raise RebalanceInProgress(f"group {self.group_id} rebalances; join again")

    def leave(self, *, member_id: str, instance_id: str | None, now_ms: int) -> GroupStep:
        """Let a member go; a member with a group.instance.id may be named by that alone.

        Raises: UnknownMemberId, FencedInstanceId
        """
        phases = self._phases
        if member_id in phases.pending:
            self._forget_pending(member_id, now_ms)
            return self._step()
        if not member_id and instance_id is not None:
            member = phases.members.of_instance(instance_id)
            if member is None:
                raise UnknownMemberId(f"group {self.group_id} has no member with group.instance.id {instance_id}")
        else:
            member = phases.members.find(self.group_id, member_id, instance_id)
        phases.remove(member, now_ms)
        return self._step()

    def check_commit(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        transactional: bool = False,
        version: int = 0,
        partitions: Iterable[tuple[str, int]] = (),
        now_ms: int,
    ) -> None:
        """Check that a member may commit offsets; the member's commit counts as a heartbeat.

        version, partitions: not used here.

        Raises: UnknownMemberId, FencedInstanceId, IllegalGeneration, RebalanceInProgress, CoordinatorNotAvailable
        """
        del version, partitions
        if self.state is ClassicState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is being deleted; try again")
        if generation < 0 and not member_id and instance_id is None:
            if not transactional and self.state is not ClassicState.EMPTY:
                raise UnknownMemberId(
                    f"group {self.group_id} has members; offsets are set from outside only while it has none"
                )
            return
        if generation < 0 and self.state is ClassicState.EMPTY:
            return
        member = self._find(member_id, instance_id, generation)
        self._phases.touch(member, now_ms)
        if not transactional and self.state is ClassicState.COMPLETING:
            raise RebalanceInProgress(f"group {self.group_id} rebalances; commit when the assignment has come")

    # --- time and administration --------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `expire` is due; None: not planned."""
        phases = self._phases
        dues = [phases.join_due_ms, phases.sync_due_ms, *phases.pending.values()]
        dues += [member.deadline_ms for member in phases.members]
        return min((due for due in dues if due is not None), default=None)

    def expire(self, now_ms: int) -> GroupStep:
        """Remove members that were silent for too long, and end phases that took too long."""
        phases = self._phases
        for member_id in [one for one, due_ms in phases.pending.items() if due_ms <= now_ms]:
            self._forget_pending(member_id, now_ms)
        for member in phases.members:
            due = member.deadline_ms is not None and member.deadline_ms <= now_ms
            if due and phases.members.get(member.member_id) is member:
                phases.remove(member, now_ms)
        if phases.join_due_ms is not None and phases.join_due_ms <= now_ms:
            phases.join_phase_due(now_ms)
        if phases.sync_due_ms is not None and phases.sync_due_ms <= now_ms:
            phases.sync_phase_due(now_ms)
        return self._step()

    def put_off(self, now_ms: int, by_ms: int) -> None:
        """Give members, and phases, whose time would be over now `by_ms` more, because the group's keeper did not
        listen."""
        self._phases.put_off(now_ms, by_ms)

    def require_empty(self) -> None:
        """Check that the group may be deleted. Raises NonEmptyGroup while there are members."""
        if self.state is not ClassicState.EMPTY:
            raise NonEmptyGroup(
                f"group {self.group_id} is {self.state.value} with {len(self._phases.members)} members; "
                "stop them first, then try again"
            )

    def delete(self) -> None:
        """Make an empty group Dead: no member can join or commit any more. Raises NonEmptyGroup."""
        self.require_empty()
        self._phases.state = step(self.state, Trigger.DELETE)

    def durable(self) -> ClassicGroupState:
        """Return the durable state of the group as it is now."""
        state = self._phases.stored()
        if state.state_since_ms is None:
            return state
        return replace(state, state_since_ms=state.state_since_ms + self.ahead_ms)

    def describe(self) -> ClassicView:
        """Return the group as DescribeGroups shows it: protocol, metadata and assignments in Stable only."""
        phases = self._phases
        protocol = (phases.protocol_name or "") if self.state is ClassicState.STABLE else ""
        return ClassicView(
            self.group_id,
            self.state.value,
            phases.protocol_type or "",
            protocol,
            tuple(
                MemberView(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.client_host,
                    one.metadata(protocol) if protocol else b"",
                    one.assignment,
                )
                for one in phases.members
            ),
        )

    # --- helpers ------------------------------------------------------------------------------------------------

    def _find(self, member_id: str, instance_id: str | None, generation: int) -> ClassicMember:
        if self.state is ClassicState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is being deleted; try again")
        member = self._phases.members.find(self.group_id, member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration(f"group {self.group_id} is at generation {self.generation}, not {generation}")
        return member

    def _forget_pending(self, member_id: str, now_ms: int) -> None:
        del self._phases.pending[member_id]
        if self.state is ClassicState.PREPARING:
            self._phases.rebalance(now_ms)

    def _step(self) -> GroupStep:
        return self._phases.take(lambda: encode_group(self.durable()))


def _check_join(group_id: str, phases: Phases, request: Join) -> None:
    """Check a join against the server's bounds and the other members.

    Raises InvalidSessionTimeout, InconsistentGroupProtocol.
    """
    low, high = phases.config.session_timeout_min_ms, phases.config.session_timeout_max_ms
    if not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeout(
            f"session.timeout.ms is {request.session_timeout_ms}; the server takes {low} to {high} "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms)"
        )
    if not request.protocol_type or not request.protocols:
        raise InconsistentGroupProtocol("a join needs a protocol type and at least one protocol")
    members = phases.members
    rejoining = members.get(request.member_id)
    if rejoining is None and request.instance_id is not None:
        rejoining = members.of_instance(request.instance_id)
    if not len(members):
        return
    if request.protocol_type != phases.protocol_type:
        raise InconsistentGroupProtocol(
            f"the members of group {group_id} are of type {phases.protocol_type}, not {request.protocol_type}"
        )
    others = members.candidates(without=rejoining)
    if len(members) > (rejoining is not None) and not others & {one.name for one in request.protocols}:
        raise InconsistentGroupProtocol(
            f"group {group_id} uses {', '.join(sorted(others))}; the joining member supports none of these "
            "(partition.assignment.strategy)"
        )


def _has_room(phases: Phases, member_id: str) -> bool:
    """True if a member may join, or stay, under group.max.size. The members that are awaited have the same bound."""
    size_max = phases.config.size_max
    member = phases.members.get(member_id)
    if member is None and member_id not in phases.pending and len(phases.pending) >= size_max:
        return False
    if phases.state is ClassicState.PREPARING:
        joined = sum(one.joining is not None for one in phases.members)
        return (member is not None and member.joining is not None) or joined < size_max
    return member is not None or len(phases.members) < size_max
