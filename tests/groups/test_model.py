"""A classic group under whatever members and time may do, by Hypothesis.

What must hold whatever happens: the invariants of `states`; no request is answered twice; all that are told of one
generation are told the same, and its leader of exactly its members; an assignment is what the leader of that
generation sent, and only once it is durable; generations rise; and when everybody falls silent, every request is
answered and the group becomes Empty. Committed offsets are held to a dictionary and a list of open transactions.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowshare.core_errors import CoreError, InvalidProducerEpoch
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import OffsetPartition, TransactionalProducer
from flowshare.groups.states import ClassicState
from flowshare.groups.stored import decode_group
from flowshare.groups.types import JoinAnswer
from tests.groups.builders import World
from tests.groups.invariants import check

NAMES = (None, None, "a", "b")
PROTOCOLS = (("x",), ("x", "y"), ("y", "x"))
numbers = st.integers(0, 7)


class GroupMachine(RuleBasedStateMachine):
    """Drives a group as its members and the server would."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(size_max=4, initial_rebalance_delay_ms=500, new_member_timeout_ms=30_000)
        self.asked: dict[int, str] = {}
        self.answered: set[int] = set()
        self.ids: dict[str, str | None] = {}
        """Everyone that was ever told an id -> its group.instance.id."""
        self.told: dict[int, dict[str, JoinAnswer]] = {}
        self.sent: dict[int, dict[str, bytes]] = {}
        self.open_write = None
        self.generation = 0

    # -- rules ----------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), protocols=st.sampled_from(PROTOCOLS), topics=st.sampled_from((("t",), ("u",))))
    def join_new(self, name, protocols, topics) -> None:
        self.join("", name, protocols, topics)

    @precondition(lambda self: self.ids)
    @rule(number=numbers, protocols=st.sampled_from(PROTOCOLS), topics=st.sampled_from((("t",), ("u",))))
    def join_again(self, number, protocols, topics) -> None:
        member_id = self.somebody(number)
        self.join(member_id, self.ids[member_id], protocols, topics)

    @precondition(lambda self: self.ids)
    @rule(number=numbers, stale=st.booleans())
    def sync(self, number, stale) -> None:
        member_id = self.somebody(number)
        group = self.world.group
        generation = group.generation - stale
        members = [one.member_id for one in group.describe().members]
        plan = {one: f"{generation} {one} {len(self.asked)}".encode() for one in members}
        try:
            step = group.sync(
                member_id=member_id,
                instance_id=self.ids[member_id],
                generation=generation,
                assignments=plan,
                ticket=len(self.asked),
                now_ms=self.world.now_ms,
            )
        except CoreError:
            return
        self.asked[len(self.asked)] = member_id
        if step.assign is not None:
            self.sent[step.assign] = plan
        self.take(step)

    @precondition(lambda self: self.open_write is not None)
    @rule(durable=st.booleans())
    def written(self, durable) -> None:
        step, self.open_write = self.open_write, None
        if durable:
            self.world.stored = step.write
        done = self.world.group.assigned if durable else self.world.group.not_assigned
        self.take(done(step.assign, self.world.now_ms))

    @precondition(lambda self: self.ids)
    @rule(number=numbers)
    def beat(self, number) -> None:
        member_id = self.somebody(number)
        try:
            self.world.beat(member_id, instance=self.ids[member_id])
        except CoreError:
            return

    @precondition(lambda self: self.ids)
    @rule(number=numbers)
    def leave(self, number) -> None:
        member_id = self.somebody(number)
        try:
            step = self.world.group.leave(
                member_id=member_id, instance_id=self.ids[member_id], now_ms=self.world.now_ms
            )
        except CoreError:
            return
        self.take(step)

    @rule(duration_ms=st.sampled_from((1, 400, 3_000, 9_999, 40_000)))
    def wait(self, duration_ms) -> None:
        self.pass_time(duration_ms)

    @precondition(lambda self: self.open_write is None)
    @rule()
    def restart(self) -> None:
        world = self.world
        stored = decode_group(world.stored) if world.stored else None
        world.group = ClassicGroup("g", config=world.config, state=stored, now_ms=world.now_ms)
        expected = ClassicState.STABLE if stored is not None and stored.members else ClassicState.EMPTY
        assert world.group.state is expected
        self.generation = world.group.generation
        self.told.clear()
        self.answered.update(self.asked)  # Their sockets are gone.

    # -- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def invariants_hold(self) -> None:
        group = self.world.group
        check(group)
        assert group.generation >= self.generation
        self.generation = group.generation

    def teardown(self) -> None:
        if self.open_write is not None:
            self.written(durable=False)
        for _ in range(20):
            self.pass_time(60_000)
        assert self.world.group.state is ClassicState.EMPTY
        assert not self.world.group.awaits_member
        assert self.world.group.next_deadline_ms() is None
        assert self.answered == set(self.asked)

    # -- helpers ----------------------------------------------------------------------------------------------

    def somebody(self, number):
        return sorted(self.ids)[number % len(self.ids)]

    def join(self, member_id, name, protocols, topics) -> None:
        self.world._tickets = iter([len(self.asked)])
        before = self.world.settle
        self.world.settle = self.take
        self.asked[len(self.asked)] = member_id
        try:
            self.world.ask(member_id, instance=name, protocols=protocols, topics=topics, known_id_required=True)
        except CoreError as error:
            self.answered.add(len(self.asked) - 1)
            if getattr(error, "member_id", None):
                self.ids[error.member_id] = name
        finally:
            self.world.settle = before

    def take(self, step) -> None:
        if step.refusal is not None:
            self.answered.add(len(self.asked) - 1)
        for ticket, answer in step.answers:
            assert ticket in self.asked
            assert ticket not in self.answered
            self.answered.add(ticket)
            if answer.error is None:
                self.check_answer(ticket, answer)
        if step.assign is not None:
            assert self.open_write is None or self.open_write.assign != step.assign
            self.open_write = step
        elif step.write is not None:
            self.world.stored = step.write

    def check_answer(self, ticket, answer) -> None:
        group = self.world.group
        if not isinstance(answer, JoinAnswer):
            plan = self.sent[group.generation]
            # Of a static member that came back its former id was in the plan.
            assert answer.assignment in {plan.get(self.asked[ticket], b""), *plan.values(), b""}
            return
        members = {one.member_id for one in group.describe().members}
        assert answer.generation == group.generation
        assert answer.member_id in members
        self.ids[answer.member_id] = next(
            one.instance_id for one in group.describe().members if one.member_id == answer.member_id
        )
        told = self.told.setdefault(answer.generation, {})
        for other in told.values():
            assert other.protocol_name == answer.protocol_name
        told[answer.member_id] = answer
        if answer.members:
            assert answer.leader == answer.member_id == group.leader
            assert {one.member_id for one in answer.members} == members

    def pass_time(self, duration_ms) -> None:
        world = self.world
        end_ms = world.now_ms + duration_ms
        while (due_ms := world.group.next_deadline_ms()) is not None and due_ms <= end_ms:
            world.now_ms = max(world.now_ms, due_ms)
            self.take(world.group.expire(world.now_ms))
        world.now_ms = end_ms


class OffsetsMachine(RuleBasedStateMachine):
    """Commits, transactions and deletions against dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.committed: dict[int, tuple[int, int]] = {}
        """Partition -> (when in the order of commits, offset)."""
        self.open: dict[int, tuple[int, dict[int, tuple[int, int]]]] = {}
        self.count = 0

    @rule(partition=st.integers(0, 2))
    def commit(self, partition) -> None:
        self.count += 1
        self.world.commit(number=partition, offset=self.count)
        self.committed[partition] = (self.count, self.count)

    @rule(partition=st.integers(0, 2), producer=st.integers(0, 2), epoch=st.integers(0, 2))
    def commit_in_transaction(self, partition, producer, epoch) -> None:
        self.count += 1
        known, offsets = self.open.get(producer, (epoch, {}))
        try:
            self.world.commit(number=partition, offset=self.count, producer=TransactionalProducer(producer, epoch))
        except InvalidProducerEpoch:
            assert epoch < known
            return
        assert epoch >= known
        self.open[producer] = (epoch, {**offsets, partition: (self.count, self.count)})

    @rule(producer=st.integers(0, 2), epoch=st.integers(0, 2), committed=st.booleans())
    def end(self, producer, epoch, committed) -> None:
        self.world.complete(producer, committed=committed, epoch=epoch)
        if producer not in self.open or self.open[producer][0] > epoch:
            return
        _, offsets = self.open.pop(producer)
        for partition, made in offsets.items():
            if committed:
                self.committed[partition] = max(made, self.committed.get(partition, made))

    @rule(partition=st.integers(0, 2))
    def delete(self, partition) -> None:
        self.world.offsets.apply(self.world.offsets.delete([OffsetPartition("t", partition)]))
        self.committed.pop(partition, None)
        for producer, (epoch, offsets) in tuple(self.open.items()):
            kept = {one: made for one, made in offsets.items() if one != partition}
            if kept:
                self.open[producer] = (epoch, kept)
            else:
                del self.open[producer]

    @invariant()
    def the_same_is_committed(self) -> None:
        offsets = self.world.offsets
        note(f"{self.committed} {self.open}")
        assert {one.number: value.offset for one, value in offsets.committed.items()} == {
            partition: offset for partition, (_, offset) in self.committed.items()
        }
        assert set(offsets._pending) == set(self.open)
        for partition in range(3):
            pending = any(partition in found for _, found in self.open.values())
            assert offsets.unstable(OffsetPartition("t", partition)) == pending


examples = int(os.environ.get("MODEL_EXAMPLES", "60"))
GroupMachine.TestCase.settings = settings(
    max_examples=examples,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    derandomize="MODEL_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
OffsetsMachine.TestCase.settings = GroupMachine.TestCase.settings
TestGroup = pytest.mark.slow(GroupMachine.TestCase)
TestOffsets = pytest.mark.slow(OffsetsMachine.TestCase)
