"""The steps of a classic group from one generation to the next: join phase, sync phase, and their ends.

`ClassicGroup` checks requests and calls this; the answers that become due are collected here until `take`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flowshare.core_errors import (
    CoordinatorNotAvailable,
    CoreError,
    FencedInstanceId,
    RebalanceInProgress,
    StateCorrupt,
    UnknownMemberId,
)
from flowshare.groups.members import ClassicMember, Members
from flowshare.groups.states import ClassicState, Trigger, step
from flowshare.groups.stored import ClassicGroupState
from flowshare.groups.subscription import CONSUMER, all_subscribed_topics
from flowshare.groups.types import ClassicConfig, GroupStep, JoinAnswer, JoinedMember, SyncAnswer, TicketAnswer

AWAY_MS_MIN: Final = 1_000
"""The least wait, in ms, for static members that are all away, before the next look."""


class Phases:
    """State, generation, members and deadlines of one group."""

    def __init__(self, config: ClassicConfig) -> None:
        self.config = config
        self.state = ClassicState.EMPTY
        self.state_since_ms: int | None = None
        """The time since which the group is in its state; None: not known (stored by an old release, or never
        written)."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed: frozenset[str] | None = None
        """The topics that members of the current generation read; None: not known."""
        self.members = Members()
        self.pending: dict[str, int] = {}
        """Ids given to members that have not come back with them -> the time until which they may."""
        self.join_due_ms: int | None = None
        self.sync_due_ms: int | None = None
        self._initial_left_ms: int | None = None
        """Time, in ms, by which the first rebalance of an empty group may still be extended; None: no such
        rebalance."""
        self.came_in_delay = False
        """True if a new member joined while the first rebalance was waiting for more members."""
        self._assigning: Mapping[str, bytes] | None = None
        """Assignments that are being written."""
        self._answers: list[TicketAnswer] = []
        self._write = False
        self._assign: int | None = None

    def take(self, encode: Callable[[], bytes]) -> GroupStep:
        """Return the answers, the write and the assignment that became due since the last call."""
        made = GroupStep(tuple(self._answers), encode() if self._write else None, self._assign)
        self._answers, self._write, self._assign = [], False, None
        return made

    @property
    def consumers(self) -> bool:
        """True if the members are consumers, whose metadata tell their topics."""
        return self.protocol_type == CONSUMER

    # --- answers ------------------------------------------------------------------------------------------------

    def answer_join(self, member: ClassicMember, answer: JoinAnswer) -> None:
        """Answer a member's waiting join, if any."""
        if member.joining is not None:
            self._answers.append(TicketAnswer(member.joining, answer))
            member.joining = None

    def answer_sync(self, member: ClassicMember, *, error: CoreError | None = None) -> None:
        """Answer a member's waiting sync, if any."""
        if member.syncing is not None:
            self._answers.append(TicketAnswer(member.syncing, self.sync_answer(member, error)))
            member.syncing = None

    def answer(self, ticket: int, answer: JoinAnswer | SyncAnswer) -> None:
        """Answer a request at once."""
        self._answers.append(TicketAnswer(ticket, answer))

    def sync_answer(self, member: ClassicMember, error: CoreError | None = None) -> SyncAnswer:
        """Return the member's assignment, or an error."""
        if error is not None:
            return SyncAnswer(error=error)
        return SyncAnswer(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def join_answer(self, member: ClassicMember) -> JoinAnswer:
        """Return the answer with the current generation, with all members for the leader."""
        assert self.members.leader is not None
        leads = self.members.leader == member.member_id
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader,
            members=self.joined_members() if leads else (),
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return all members with their metadata for the chosen protocol."""
        name = self.protocol_name or ""
        return tuple(JoinedMember(one.member_id, one.instance_id, one.metadata(name)) for one in self.members)

    def fence(self, member: ClassicMember) -> None:
        """End the waiting requests of a static member that another process took over."""
        error = FencedInstanceId(f"another process joined with the group.instance.id {member.instance_id}")
        self.answer_join(member, JoinAnswer(error=error, member_id=member.member_id))
        self.answer_sync(member, error=error)

    def put_off(self, now_ms: int, by_ms: int) -> None:
        """Give members, and phases, whose time would be over now `by_ms` more, because nobody read their requests."""

        def later(due_ms: int | None) -> int | None:
            return due_ms if due_ms is None or due_ms > now_ms else now_ms + by_ms

        for member in self.members:
            member.deadline_ms = later(member.deadline_ms)
        self.pending = {member_id: later(due_ms) or due_ms for member_id, due_ms in self.pending.items()}
        self.join_due_ms, self.sync_due_ms = later(self.join_due_ms), later(self.sync_due_ms)

    # --- the store ----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Ask for the group to be stored as it is now."""
        self._write = True

    def stored(self) -> ClassicGroupState:
        """Return the group in its form to be stored now, with the assignments that are being written."""
        assignments = self._assigning
        return ClassicGroupState(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader,
            state_since_ms=self.state_since_ms,
            members=tuple(
                one.durable(one.assignment if assignments is None else assignments[one.member_id])
                for one in self.members
            ),
        )

    def load(self, state: ClassicGroupState, now_ms: int) -> None:
        """Take over the stored state. Raises StateCorrupt."""
        self.generation = state.generation
        self.protocol_type, self.protocol_name = state.protocol_type, state.protocol_name
        self.state_since_ms = state.state_since_ms
        for one in state.members:
            twice = one.member_id in self.members or (
                one.instance_id is not None and self.members.of_instance(one.instance_id) is not None
            )
            if twice or state.protocol_name not in {name for name, _ in one.protocols}:
                raise StateCorrupt(f"stored group has a member {one.member_id!r} twice or without its protocol")
            member = one.durable(one.assignment)
            self.members.add(member)
            self.touch(member, now_ms)
        if len(self.members):
            self.state = ClassicState.STABLE
            if state.leader is not None and state.leader in self.members:
                self.members.leader = state.leader
        if state.protocol_type is not None:
            self.see_subscriptions()

    # --- join phase ---------------------------------------------------------------------------------------------

    def touch(self, member: ClassicMember, now_ms: int) -> None:
        """Note that a member was heard of."""
        if member.joining is None and member.syncing is None:
            member.deadline_ms = now_ms + member.session_timeout_ms

    def wait_join(self, member: ClassicMember, ticket: int, now_ms: int) -> None:
        """Let a member's join wait; an earlier waiting join of it is answered."""
        self.answer_join(member, JoinAnswer(error=RebalanceInProgress("a later join replaced this one")))
        member.joining = ticket
        member.deadline_ms = now_ms + self.config.new_member_timeout_ms if member.new else None

    def rebalance(self, now_ms: int) -> None:
        """Begin a join phase, or end the one under way if all have joined."""
        if self.state is not ClassicState.PREPARING:
            self._prepare(now_ms)
        if self._initial_left_ms is None or not len(self.members):
            self._complete_if_joined(now_ms)
        elif self.join_due_ms == now_ms:
            self.join_phase_due(now_ms)

    def remove(self, member: ClassicMember, now_ms: int) -> None:
        """Let a member go and rebalance."""
        self.drop(member)
        self.rebalance(now_ms)

    def drop(self, member: ClassicMember) -> None:
        """Let a member go; call `rebalance` next."""
        error = UnknownMemberId(f"member {member.member_id} was removed from the group")
        self.answer_join(member, JoinAnswer(error=error, member_id=member.member_id))
        self.answer_sync(member, error=error)
        self.members.remove(member)

    def _prepare(self, now_ms: int) -> None:
        self._withdraw(RebalanceInProgress("the group rebalances again"), now_ms)
        self.sync_due_ms = None
        first = self.state is ClassicState.EMPTY
        self.state = step(self.state, Trigger.REBALANCE)
        self.state_since_ms = now_ms
        limit_ms = self._join_limit_ms(now_ms)
        if first:
            delay_ms = min(self.config.initial_rebalance_delay_ms, limit_ms)
            self._initial_left_ms = limit_ms - delay_ms
            self.came_in_delay = False
            self.join_due_ms = now_ms + delay_ms
        else:
            self.join_due_ms = now_ms + limit_ms

    def _join_limit_ms(self, now_ms: int) -> int:
        """Return the time, in ms, that members have to join."""
        return max([self.members.rebalance_timeout_ms(), *(due - now_ms for due in self.pending.values())])

    def _complete_if_joined(self, now_ms: int) -> None:
        if not self.pending and all(member.joining is not None for member in self.members):
            self._complete(now_ms)

    def join_phase_due(self, now_ms: int) -> None:
        """End the join phase at its deadline, or go on if it is a first one and members still come."""
        if self._initial_left_ms and self.came_in_delay:
            delay_ms = min(self.config.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self.came_in_delay = False
            self.join_due_ms = now_ms + delay_ms
        else:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """End the join phase with the members that joined; static members may be away."""
        for member in self.members:
            if member.joining is None and member.instance_id is None:
                self.drop(member)
        if len(self.members) and not self.members.elect_joined_leader():
            self.join_due_ms = now_ms + max(AWAY_MS_MIN, self._join_limit_ms(now_ms))
            return
        self.join_due_ms = self._initial_left_ms = None
        self.generation += 1
        self.state_since_ms = now_ms
        if not len(self.members):
            self.state = step(self.state, Trigger.GONE)
            self.protocol_name = None
            self.see_subscriptions()
            self.write()
            return
        self.state = step(self.state, Trigger.JOINED)
        self.protocol_name = self.members.vote()
        self.see_subscriptions()
        self.sync_due_ms = now_ms + self.members.rebalance_timeout_ms()
        for member in self.members:
            self.answer_join(member, self.join_answer(member))
            member.assignment = b""
            member.new = False
            member.sync_missing = True
            self.touch(member, now_ms)

    def see_subscriptions(self) -> None:
        """Find out the topics that the members of this generation read."""
        if not len(self.members):
            self.subscribed = frozenset()
        elif self.consumers:
            name = self.protocol_name or ""
            self.subscribed = all_subscribed_topics(member.metadata(name) for member in self.members)
        else:
            self.subscribed = None

    # --- sync phase ---------------------------------------------------------------------------------------------

    def wait_sync(self, member: ClassicMember, ticket: int) -> None:
        """Let a member's sync wait; an earlier waiting sync of it is answered."""
        self.answer_sync(member, error=RebalanceInProgress("a later sync replaced this one"))
        member.syncing = ticket
        member.deadline_ms = None
        self.synced(member)

    def synced(self, member: ClassicMember) -> None:
        """Note that a member has asked for its assignment."""
        member.sync_missing = False
        if not any(one.sync_missing for one in self.members):
            self.sync_due_ms = None

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Ask for the leader's assignments to be written; a sync repeated meanwhile does not change them."""
        if self._assigning is None:
            self._assigning = {member.member_id: assignments.get(member.member_id, b"") for member in self.members}
            self._assign = self.generation
            self.write()

    def assigned(self, generation: int, now_ms: int) -> None:
        """Give out the assignments, which are durable; do nothing if the group rebalances again already."""
        if self.state is not ClassicState.COMPLETING or self.generation != generation or self._assigning is None:
            return
        self.state = step(self.state, Trigger.ASSIGNED)
        self.state_since_ms = now_ms
        for member in self.members:
            member.assignment = self._assigning[member.member_id]
            if member.syncing is not None:
                self.answer_sync(member)
                self.touch(member, now_ms)
        self._assigning = None

    def not_assigned(self, generation: int, now_ms: int) -> None:
        """Make the members join again, because the assignments could not be written."""
        if self.state is ClassicState.COMPLETING and self.generation == generation:
            self._withdraw(CoordinatorNotAvailable("the group's assignments could not be written"), now_ms)
            self.rebalance(now_ms)

    def sync_phase_due(self, now_ms: int) -> None:
        """Remove the members that never asked for their assignment."""
        self.sync_due_ms = None
        for member in self.members:
            if member.sync_missing:
                self.drop(member)
        self.rebalance(now_ms)

    def _withdraw(self, error: CoreError, now_ms: int) -> None:
        """Forget the assignments of this generation and tell the members that wait for them."""
        self._assigning = None
        for member in self.members:
            member.assignment = b""
            member.sync_missing = False
            if member.syncing is not None:
                self.answer_sync(member, error=error)
                self.touch(member, now_ms)
