"""The settler: what is settled together, and what follows from each answer; over a member that answers as told."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed import settler as settling
from flowshare.agents.feed.ack_sender import AckSender
from flowshare.agents.feed.acknowledgements import ACCEPT, REJECT
from flowshare.agents.feed.settle_units import Ending, Unit
from flowshare.agents.feed.settler import Settler
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.run.stats import AgentStats
from flowshare.client.errors import DeliveryTimeout, RecordTooLarge, ServerError
from flowshare.client.producer.channel import TopicPlace
from flowshare.client.producer.message import Message
from flowshare.client.producer.outputs import OutputBatches, OutputFor
from flowshare.client.session.member import AckResult
from flowshare.client.settings import ProducerSettings
from flowshare.protocol.batches import decode_all
from flowshare.protocol.decoding import DecodedRecord
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import RefusedOutput, SettleOutput, TopicPartition
from flowshare.share.types import AckRange
from flowshare.testing import ManualClock
from flowshare.testing.clock import settle

TP = TopicPartition(uuid.UUID(int=1), 0)
OUT = uuid.UUID(int=2)
Answer = tuple[ErrorCode, tuple[tuple[int, int], ...], tuple[RefusedOutput, ...]]
WRITTEN: Answer = (ErrorCode.NONE, (), ())


def lost(*ranges: tuple[int, int]) -> Answer:
    return (ErrorCode.INVALID_RECORD_STATE, ranges, ())


def refused(*places: int, error: ErrorCode = ErrorCode.INVALID_RECORD) -> Answer:
    return (ErrorCode.INVALID_REQUEST, (), tuple(RefusedOutput(place, error, "so") for place in places))


class Producer:
    """Knows topics; `fails` says why another one is not found."""

    def __init__(self) -> None:
        self.settings = ProducerSettings(delivery_timeout=10.0)
        self.topics: dict[str, TopicPlace] = {"out": TopicPlace(4, OUT), "other": TopicPlace(1, OUT)}
        self.hidden: dict[str, TopicPlace] = {}
        self.asked: list[str] = []

    def known_topic(self, topic: str) -> TopicPlace | None:
        return self.topics.get(topic)

    async def topic(self, topic: str) -> TopicPlace:
        self.asked.append(topic)
        await asyncio.sleep(0)
        if topic not in self.hidden:
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=topic)
        self.topics[topic] = self.hidden[topic]
        return self.topics[topic]

    def forget_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)


class Member:
    """Answers settles with what it is given, in turn, then that they are written; waits for `gate` where there is."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[tuple[int, int, int]], list[tuple[str, int, list[bytes]]]]] = []
        self.attempts: list[list[int]] = []
        self.gate: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin_settle(
        self,
        tp: TopicPartition,
        acks: Sequence[AckRange],
        outputs: Sequence[SettleOutput],
        told: Callable[[list[AckResult]], object],
        *,
        generation: int | None = None,
    ) -> None:
        said = [(ack.first, ack.last, ack.types[0]) for ack in acks]
        there = [(one.topic, one.partition, [r.value or b"" for r in decode_all(one.records)]) for one in outputs]
        self.asked.append((said, there))
        self.attempts.append([ack.attempt for ack in acks])
        task = asyncio.ensure_future(self._answer(tp, acks, told))
        self._tasks.add(task)

    async def _answer(self, tp: TopicPartition, acks: Sequence[AckRange], told: Any) -> None:
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        error, ranges, outputs = self.answers.pop(0) if self.answers else WRITTEN
        told([AckResult("in", *tp, tuple(acks), error, "so", 0.0, ranges, ErrorCode.NONE, outputs)])

    @property
    def values(self) -> list[list[bytes]]:
        """Of each settle the outputs' values, sorted."""
        return [sorted(value for _, _, values in there for value in values) for _, there in self.asked]


class World:
    """A settler and what it is given."""

    def __init__(self, member: Member, records: int = 20, *, ordered: bool = False) -> None:
        self.member = member
        self.clock = ManualClock()
        self.stats = AgentStats()
        self.producer = Producer()
        self.decided: list[int] = []
        self.failed: list[tuple[int, BaseException]] = []
        self.back: list[int] = []
        self.told: list[tuple[int, int, str]] = []
        acks = AckSender("agent", self.clock, self.stats, lambda ack, _, how: self.told.append((*ack[:2], how)))
        self.settler = Settler(
            "agent",
            clock=self.clock,
            producer=self.producer,  # type: ignore[arg-type]
            acks=acks,
            stats=self.stats,
            on_decided=lambda chunk, records, reason: self.decided.extend(record.offset for record in records),
            ordered=ordered,
        )
        raws: Any = [DecodedRecord(offset, 0, None, b"", (), 1) for offset in range(records)]
        self.chunk = Chunk("agent", "in", TP, [(raws, 1)], decode=None, deadline=9e9, generation=3, arrived=0.0)

    def record(self, offset: int) -> DecodedRecord:
        return DecodedRecord(offset, 0, None, b"", (), 1)

    def unit(self, *offsets: int, sends: Sequence[ProducerRecord] | None = None, **fields: Any) -> Unit:
        outputs = [out(b"%d" % offset) for offset in offsets] if sends is None else sends
        ending = Ending(
            **{"types": ACCEPT, "counter": "accepted", **fields},
            failed=lambda records, error: self.failed.append((records[0][1].offset, error)),
            given_back=lambda kept: self.back.extend(record.offset for _, record in kept),
        )
        return Unit([(self.chunk, self.record(offset)) for offset in offsets], outputs, ending)

    def add(self, *offsets: int, **fields: Any) -> None:
        self.settler.add(self.unit(*offsets, **fields))


def out(value: bytes, *, key: bytes | None = b"f", topic: str = "out", partition: int | None = None) -> ProducerRecord:
    return ProducerRecord(topic, value, key, (), partition, None)


def settled(member: Member, act: Callable[[World], Any], *, advance_s: float = 0.0, ordered: bool = False) -> World:
    """Let `act` add units, and the settler do all it can; then some time pass."""
    world = World(member, ordered=ordered)

    async def main() -> None:
        world.settler.start(member)  # type: ignore[arg-type]
        made = act(world)
        if asyncio.iscoroutine(made):
            await made
        await settle()
        passed = 0.0
        while passed < advance_s:
            await world.clock.advance(0.05)
            passed += 0.05
        await settle()
        await world.settler.stop()

    fs.testing.run(main())
    assert not world.chunk.settling or member.gate is not None
    assert (world.settler.records, world.settler._bytes) == (0, 0) or member.gate is not None
    return world


def add_all(*offsets: int) -> Callable[[World], None]:
    def act(world: World) -> None:
        for offset in offsets:
            world.add(offset)

    return act


def test_what_comes_in_one_turn_is_settled_in_one_step_with_a_batch_for_each_partition():
    world = settled(Member(), add_all(0, 1, 2, 5))

    assert world.member.asked == [([(0, 2, 1), (5, 5, 1)], [("out", 3, [b"0", b"1", b"2", b"5"])])]
    assert (world.decided, world.stats.accepted, world.stats.sent) == ([0, 1, 2, 5], 4, 4)


def test_accepts_and_rejects_go_together_and_count_apart():
    def act(world: World) -> None:
        world.add(0)
        world.add(1, types=REJECT, counter="dead_lettered", reason="why")
        world.add(2)

    world = settled(Member(), act)

    assert [said for said, _ in world.member.asked] == [[(0, 0, 1), (1, 1, 3), (2, 2, 1)]]
    assert (world.stats.accepted, world.stats.dead_lettered, world.stats.sent) == (2, 1, 2)


def test_with_an_order_a_settle_says_of_which_deliveries_it_is():
    def act(world: World) -> None:
        raws: Any = [world.record(offset) for offset in range(3)]
        world.chunk = Chunk(
            "agent",
            "in",
            TP,
            [(raws[:2], 1), (raws[2:], 4)],
            decode=None,
            deadline=9e9,
            generation=3,
            arrived=0.0,
            fence=(5, 0),
        )
        for offset in (2, 0, 1):
            world.add(offset)

    world = settled(Member(), act)

    assert [said for said, _ in world.member.asked] == [[(0, 1, 1), (2, 2, 1)]]
    assert world.member.attempts == [[1, 4]]


def test_one_settle_of_a_partition_is_under_way_and_the_rest_gathers():
    member = Member()

    async def act(world: World) -> None:
        member.gate = asyncio.Event()
        world.add(0)
        await settle()
        world.add(1)
        await settle()
        world.add(2)
        assert world.chunk.renewable() == list(range(1, 20))
        await settle()
        gate, member.gate = member.gate, None
        gate.set()
        await settle()

    settled(member, act)

    assert member.values == [[b"0"], [b"1", b"2"]]


def test_records_that_are_not_held_any_more_are_lost_and_the_others_are_settled_without_them():
    world = settled(Member(lost((1, 2))), add_all(0, 1, 2, 3))

    assert world.member.values == [[b"0", b"1", b"2", b"3"], [b"0", b"3"]]
    assert (world.stats.accepted, world.stats.lock_lost) == (2, 2)
    assert sorted(world.decided) == [0, 1, 2, 3]


def test_a_batch_that_lost_a_record_is_void_and_its_others_go_back():
    world = settled(Member(lost((1, 1))), lambda world: world.add(0, 1, 2))

    assert len(world.member.asked) == 1
    assert (world.back, world.stats.lock_lost, world.stats.accepted) == ([0, 2], 1, 0)


def test_a_refusal_that_names_none_of_what_was_asked_ends_all_of_it():
    world = settled(Member(lost((90, 95))), add_all(0, 1))

    assert len(world.member.asked) == 1
    assert world.decided == [0, 1]
    assert world.stats.lock_lost == 2


def test_an_output_that_is_refused_fails_its_own_record_and_nobody_elses():
    def act(world: World) -> None:
        for offset in range(3):
            world.add(offset)
        world.add(3, sends=[out(b"bad", topic="other")])

    world = settled(Member(refused(1)), act)

    assert world.member.values[1] == [b"0", b"1", b"2"]
    assert [offset for offset, _ in world.failed] == [3]
    assert world.decided == [0, 1, 2]


def test_who_is_to_blame_for_a_refused_batch_of_many_is_found_by_settling_each_alone():
    bad = refused(0)
    world = settled(Member(bad, WRITTEN, bad, WRITTEN), add_all(0, 1, 2))

    assert world.member.values == [[b"0", b"1", b"2"], [b"0"], [b"1"], [b"2"]]
    assert [offset for offset, _ in world.failed] == [1]
    assert world.decided == [0, 2]


def test_a_batch_that_is_too_large_is_made_smaller_until_it_fits():
    def act(world: World) -> None:
        for offset in range(8):
            world.add(offset, sends=[out(b"%d" % offset * 400)])

    large = refused(0, error=ErrorCode.MESSAGE_TOO_LARGE)
    world = settled(Member(large, large), act)

    batches = [len(there) for _, there in world.member.asked]
    assert batches[0] == 1
    assert batches[-1] > 1
    assert world.stats.accepted == 8


def test_a_batch_that_is_too_large_is_made_smaller_once_however_many_records_are_in_it():
    def act(world: World) -> None:
        for offset in range(16):
            world.add(offset, sends=[out(b"%d" % (offset % 10) * 2_000)])

    world = settled(Member(refused(0, error=ErrorCode.MESSAGE_TOO_LARGE)), act)

    assert 14_000 < world.settler._batch_bytes["out"] < 18_000
    assert world.stats.accepted == 16


def test_a_topic_that_takes_hardly_anything_gets_what_each_record_sent_by_itself():
    def act(world: World) -> None:
        world.add(0)
        world.add(1)
        world.add(2, sends=[out(b"2"), out(b"2")])

    large = refused(0, error=ErrorCode.MESSAGE_TOO_LARGE)
    world = settled(Member(large, WRITTEN, WRITTEN, large), act)

    assert world.stats.accepted == 2
    assert world.member.values == [[b"0", b"1", b"2", b"2"], [b"0"], [b"1"], [b"2", b"2"]]
    assert [offset for offset, _ in world.failed] == [2]


def test_a_record_that_is_too_large_for_its_topic_has_failed():
    world = settled(Member(refused(0, error=ErrorCode.MESSAGE_TOO_LARGE)), add_all(4))

    [(offset, error)] = world.failed
    assert offset == 4
    assert isinstance(error, ServerError)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_record_that_is_larger_than_any_request_fails_before_it_is_sent():
    world = settled(Member(), lambda world: world.add(0, sends=[out(b"x" * 3_000_000)]))

    assert world.member.asked == []
    assert isinstance(world.failed[0][1], RecordTooLarge)


def test_a_topic_that_was_made_anew_is_looked_up_once_more():
    gone = refused(0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def act(world: World) -> None:
        world.producer.hidden["out"] = TopicPlace(1, uuid.UUID(int=9))
        world.add(0)

    world = settled(Member(gone), act)

    assert world.producer.asked == ["out"]
    assert [partition for _, there in world.member.asked for _, partition, _ in there] == [3, 0]
    assert world.stats.accepted == 1


def test_a_topic_that_is_refused_when_it_was_looked_up_anew_fails_what_was_meant_for_it():
    gone = refused(0, error=ErrorCode.UNKNOWN_TOPIC_ID)

    def act(world: World) -> None:
        world.producer.hidden["out"] = TopicPlace(1, uuid.UUID(int=9))
        world.add(0)

    world = settled(Member(gone, gone), act)

    assert (world.producer.asked, len(world.member.asked)) == (["out"], 2)
    assert [offset for offset, _ in world.failed] == [0]


def test_a_topic_that_is_gone_fails_what_was_meant_for_it_and_holds_up_nothing_else():
    def act(world: World) -> None:
        world.add(0, sends=[out(b"a", topic="nowhere")])
        world.add(1)

    world = settled(Member(), act)

    assert world.member.values == [[b"1"]]
    assert [offset for offset, _ in world.failed] == [0]


def test_a_topic_whose_look_up_breaks_fails_what_was_meant_for_it_and_holds_up_nothing_else():
    def act(world: World) -> None:
        async def breaks(topic: str) -> TopicPlace:
            raise ValueError(topic)

        world.producer.topic = breaks  # type: ignore[method-assign]
        world.add(0, sends=[out(b"lost", topic="odd")])
        world.add(1)

    world = settled(Member(), act)

    assert [(offset, type(error)) for offset, error in world.failed] == [(0, ValueError)]
    assert world.decided == [1]


def test_a_server_that_cannot_now_is_asked_again_later_each_time():
    full = (ErrorCode.KAFKA_STORAGE_ERROR, (), ())
    world = settled(Member(full, full, full), add_all(0, 1), advance_s=2.0)

    assert world.member.values == [[b"0", b"1"]] * 4
    assert world.stats.accepted == 2


def test_an_output_that_cannot_be_written_now_holds_up_only_its_own_record():
    def act(world: World) -> None:
        world.add(0, sends=[out(b"rests", topic="other")])
        world.add(1)

    rests = refused(0, error=ErrorCode.KAFKA_STORAGE_ERROR)
    world = settled(Member(rests), act, advance_s=1.0)

    assert world.member.values == [[b"1", b"rests"], [b"1"], [b"rests"]]
    assert world.stats.accepted == 2


def test_what_cannot_be_written_for_the_producers_time_has_failed():
    full = (ErrorCode.KAFKA_STORAGE_ERROR, (), ())
    world = settled(Member(*[full] * 100), add_all(0), advance_s=20.0)

    assert isinstance(world.failed[0][1], DeliveryTimeout)
    assert world.decided == []


@pytest.mark.parametrize("code", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_what_has_no_known_outcome_is_never_sent_again(code):
    world = settled(Member((code, (), ())), add_all(0, 1), advance_s=5.0)

    assert len(world.member.asked) == 1
    assert world.decided == [0, 1]
    assert world.stats.accepted == 0


def test_a_lost_record_is_not_sent_and_a_lost_one_of_a_batch_takes_the_others_back():
    def act(world: World) -> None:
        world.chunk.lost.add(1)
        world.add(0, 1)
        world.add(2)

    world = settled(Member(), act)

    assert world.member.values == [[b"2"]]
    assert world.back == [0]


def test_a_settle_has_no_more_than_so_many_records_and_bytes(monkeypatch):
    monkeypatch.setattr(settling, "SETTLE_RECORDS_MAX", 3)
    world = settled(Member(), add_all(*range(7)))
    assert [len(values) for values in world.member.values] == [3, 3, 1]

    monkeypatch.setattr(settling, "SETTLE_RECORDS_MAX", 5_000)
    monkeypatch.setattr(settling, "SETTLE_BYTES_MAX", 100)

    def act(world: World) -> None:
        for offset in range(3):
            world.add(offset, sends=[out(b"%060d" % offset)])

    world = settled(Member(), act)
    assert [len(values) for values in world.member.values] == [2, 1]


def test_a_settle_has_no_more_outputs_than_a_server_takes():
    def act(world: World) -> None:
        world.producer.topics["out"] = TopicPlace(6_000, OUT)
        for offset in range(2):
            places = range(3_000 * offset, 3_000 * (offset + 1))
            world.add(offset, sends=[out(b"x", partition=place) for place in places])

    world = settled(Member(), act)

    assert [len(there) for _, there in world.member.asked] == [3_000, 3_000]
    assert world.stats.accepted == 2


def test_a_record_that_was_acquired_again_is_settled_once_and_takes_no_other_with_it():
    def act(world: World) -> None:
        world.add(5)
        world.add(5, sends=[out(b"again")])
        world.add(7)

    world = settled(Member(WRITTEN, lost((5, 5))), act)

    assert [said for said, _ in world.member.asked] == [[(5, 5, 1)], [(5, 5, 1)], [(7, 7, 1)]]
    assert world.decided == [5, 5, 7]
    assert world.stats.accepted == 2


def test_what_a_member_cannot_send_fails_alone_and_holds_up_nothing():
    class Choosy(Member):
        def begin_settle(self, tp: TopicPartition, acks: Sequence[AckRange], *rest: Any, **fields: Any) -> None:
            if any(ack.first <= 1 <= ack.last for ack in acks):
                raise ValueError("not this one")
            super().begin_settle(tp, acks, *rest, **fields)

    world = settled(Choosy(), add_all(0, 1, 2))

    assert [offset for offset, _ in world.failed] == [1]
    assert world.decided == [0, 2]


@pytest.mark.parametrize(
    "bad",
    [
        ProducerRecord("out", b"bad", b"f", (), "3", None),  # type: ignore[arg-type]
        ProducerRecord("out", b"bad", b"f", (("a\udc80", b"1"),), None, None),
        ProducerRecord("out", "bad", b"f", (), None, None),  # type: ignore[arg-type]
        ProducerRecord("out", b"bad", b"f", (), None, "now"),  # type: ignore[arg-type]
    ],
    ids=["partition", "header", "value", "timestamp"],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_an_output_that_is_no_record_fails_its_own_record_and_nobody_elses(bad: ProducerRecord, ordered: bool):
    def act(world: World) -> None:
        for offset in range(3):
            world.add(offset)
        world.add(3, sends=[bad])
        world.add(4, sends=[out(b"4a"), bad._replace(topic="other"), out(b"4c")])
        world.add(5)

    world = settled(Member(), act, ordered=ordered)

    assert sorted(value for values in world.member.values for value in values) == [b"0", b"1", b"2", b"5"]
    assert sorted(world.decided) == [0, 1, 2, 5]
    assert [offset for offset, _ in world.failed] == [3, 4]


def test_an_output_that_fails_as_it_is_packed_is_not_written_with_those_of_others(monkeypatch: pytest.MonkeyPatch):
    add = OutputBatches.add

    def failing(self: OutputBatches[Unit], owner: Unit, topic: str, message: Message, size: int) -> None:
        add(self, owner, topic, message, size)
        if message.value == b"bad":
            raise ValueError("not this one")

    monkeypatch.setattr(OutputBatches, "add", failing)

    def act(world: World) -> None:
        world.add(0)
        world.add(1, sends=[out(b"fine"), out(b"bad")])
        world.add(2)

    world = settled(Member(), act)

    assert world.member.values == [[b"0", b"2"]]
    assert [(offset, str(error)) for offset, error in world.failed] == [(1, "not this one")]


def test_outputs_that_cannot_be_finished_are_tried_alone_and_hold_up_nothing(monkeypatch: pytest.MonkeyPatch):
    build = OutputBatches.build

    def failing(self: OutputBatches[Unit]) -> list[OutputFor[Unit]]:
        built = build(self)
        if any(unit.first == 1 for one in built for unit in one.owners):
            raise ValueError("not these")
        return built

    monkeypatch.setattr(OutputBatches, "build", failing)

    world = settled(Member(), add_all(0, 1, 2))

    assert [offset for offset, _ in world.failed] == [1]
    assert world.decided == [0, 2]


def test_records_without_a_key_go_to_one_partition_a_settle_and_another_with_the_next():
    async def act(world: World) -> None:
        for offset in range(8):
            world.add(offset, sends=[out(b"%d" % offset, key=None)])
            if offset % 2:
                await settle()

    world = settled(Member(), act)

    assert [[partition for _, partition, _ in there] for _, there in world.member.asked] == [[0], [1], [2], [3]]


def test_outputs_keep_the_order_of_their_records():
    world = settled(Member(), add_all(3, 4, 5, 6))

    assert world.member.asked[0][1] == [("out", 3, [b"3", b"4", b"5", b"6"])]


# --- outputs in the partition's order -------------------------------------------------------------------------------


def said(member: Member) -> list[list[tuple[int, int]]]:
    """Offsets of each settle."""
    return [[(first, last) for first, last, _ in acks] for acks, _ in member.asked]


async def begun(*offsets: int, answers: Sequence[Answer] = ()) -> World:
    """Ordered outputs of these, all under way that can be."""
    world = World(Member(*answers), records=500, ordered=True)
    world.member.gate = asyncio.Event()
    world.settler.start(world.member)
    for offset in offsets:
        world.add(offset)
    await settle()
    return world


@pytest.mark.asyncio
async def test_ordered_outputs_are_settled_run_by_run_and_all_runs_are_under_way() -> None:
    world = await begun(7, 3, 4, 10, 5, 8)

    assert said(world.member) == [[(3, 5)], [(7, 8)], [(10, 10)]]
    world.add(6)
    await settle()
    assert said(world.member)[3:] == [[(6, 6)]]


@pytest.mark.asyncio
async def test_ordered_settles_are_bounded_but_for_what_all_others_wait_for() -> None:
    offsets = range(2, 2 * settling.ORDERED_MAX + 20, 2)
    world = await begun(*offsets)
    assert len(world.member.asked) == settling.ORDERED_MAX

    world.add(2 * settling.ORDERED_MAX + 1)
    await settle()
    assert len(world.member.asked) == settling.ORDERED_MAX
    world.add(0)
    await settle()
    assert said(world.member)[-1] == [(0, 0)]
    assert world.member.gate is not None
    world.member.gate.set()
    await settle()
    assert sorted(world.decided) == sorted([*offsets, 0, 2 * settling.ORDERED_MAX + 1])


@pytest.mark.asyncio
async def test_what_waits_behind_the_bound_for_its_time_takes_no_turns_of_the_loop_meanwhile() -> None:
    offsets = range(2, 2 * settling.ORDERED_MAX + 2, 2)
    world = await begun(*offsets, answers=[(ErrorCode.KAFKA_STORAGE_ERROR, (), ())])
    gate, world.member.gate = world.member.gate, asyncio.Event()
    assert gate is not None
    gate.set()
    await settle()
    await world.clock.advance(20.0)
    for offset in range(301, 301 + 2 * settling.ORDERED_MAX, 2):
        world.add(offset)
    await settle()
    asked = len(world.member.asked)
    await world.clock.advance(60.0)
    assert len(world.member.asked) == asked
    assert said(world.member).count([(2, 2)]) == 2, "it was tried again when its time had come"
