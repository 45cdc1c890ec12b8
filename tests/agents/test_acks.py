"""Acknowledgements: ranges, halving, what is lost and what is unknown; over a member that only writes down."""

from __future__ import annotations

import asyncio
import functools
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowshare as fs
from flowshare.agents.feed.ack_sender import GATHERED_MAX, SLOW_S, AckSender
from flowshare.agents.feed.acknowledgements import ACCEPT, GAP, REJECT, RELEASE
from flowshare.agents.handler.chunk import runs
from flowshare.agents.run.stats import AgentStats
from flowshare.client.session.member import AckResult
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AckRange
from flowshare.testing import ManualClock
from flowshare.testing.clock import settle
from tests.waiting import until

TP = TopicPartition(uuid.UUID(int=1), 0)
OTHER = TopicPartition(uuid.UUID(int=1), 1)
Answer = Callable[[TopicPartition, list[AckRange]], ErrorCode]


class WritingMember:
    """Answers acknowledgements as told, and keeps them."""

    def __init__(self, answer: Answer | None = None, refused: tuple[tuple[int, int], ...] = ()) -> None:
        """refused: without an error."""
        self.requests: list[dict[TopicPartition, list[AckRange]]] = []
        self.refused = refused
        self.gate: asyncio.Event | None = None
        self._answer = answer or (lambda tp, batches: ErrorCode.NONE)

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        generation: int | None = None,
        on_late: Callable[[AckResult], object] | None = None,
    ) -> list[AckResult]:
        self.requests.append({tp: list(batches) for tp, batches in acks.items()})
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        return [
            AckResult(
                "in",
                tp.topic_id,
                tp.partition,
                tuple(batches),
                self._answer(tp, list(batches)),
                "said so",
                9.0,
                self.refused,
                ErrorCode.INVALID_RECORD_STATE if self.refused else ErrorCode.NONE,
            )
            for tp, batches in acks.items()
        ]

    def begin_acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        told: Callable[[list[AckResult]], object],
        *,
        generation: int | None = None,
        on_late: Callable[[AckResult], object] | None = None,
        rides: bool = False,
    ) -> None:
        task = asyncio.ensure_future(self.acknowledge(acks, generation=generation, on_late=on_late))
        task.add_done_callback(lambda done: told(done.result()))

    @property
    def sent(self) -> list[tuple[int, int, bytes]]:
        return [
            (one.first, one.last, one.types) for made in self.requests for batches in made.values() for one in batches
        ]


def acking(
    answer: Answer | None, act: Callable[[AckSender, WritingMember], Any]
) -> tuple[WritingMember, AgentStats, list[tuple[AckRange, str]]]:
    """Run `act` on a sender over a fake member until everything is settled."""
    member, stats, confirmed = WritingMember(answer), AgentStats(), list[tuple[AckRange, str]]()

    async def main() -> None:
        clock = ManualClock()
        sender = AckSender("agent", clock, stats, lambda ack, _, how: confirmed.append((ack, how)))
        sender.start(member)  # type: ignore[arg-type]
        made = act(sender, member)
        if asyncio.iscoroutine(made):
            await made
        settling = asyncio.ensure_future(sender.flush())
        while not settling.done():
            await clock.advance(1)
        await sender.stop()

    fs.testing.run(main())
    return member, stats, confirmed


def test_contiguous_offsets_become_one_range_and_gaps_are_not_bridged():
    member, stats, _ = acking(None, lambda sender, _: sender.accept((TP, 0), [5, 3, 4, 8, 9, 1]))

    assert member.sent == [(1, 1, ACCEPT), (3, 5, ACCEPT), (8, 9, ACCEPT)]
    assert stats.accepted == 6


@given(st.sets(st.integers(0, 60)))
def test_runs_cover_exactly_the_offsets(offsets: set[int]):
    found = runs(sorted(offsets))

    assert [offset for first, last in found for offset in range(first, last + 1)] == sorted(offsets)
    assert all(after[0] > before[1] + 1 for before, after in itertools.pairwise(found))


def test_ranges_of_all_types_are_sent_in_offset_order():
    def act(sender: AckSender, _: WritingMember) -> None:
        sender.acknowledge((TP, 0), AckRange(7, 7, RELEASE, 50, counter="retried"))
        sender.accept((TP, 0), [9, 6])
        sender.acknowledge((TP, 0), AckRange(1, 4, GAP, counter="gaps"))
        sender.acknowledge((TP, 0), AckRange(8, 8, REJECT, counter="dead_lettered"))

    member, stats, _ = acking(None, act)

    assert member.sent == [(1, 4, GAP), (6, 6, ACCEPT), (7, 7, RELEASE), (8, 8, REJECT), (9, 9, ACCEPT)]
    assert (stats.gaps, stats.accepted, stats.retried, stats.dead_lettered) == (4, 2, 1, 1)
    assert member.requests[0][TP][2].delay_ms == 50


def test_what_finishes_while_a_request_is_under_way_goes_in_one_next_request():
    async def act(sender: AckSender, member: WritingMember) -> None:
        member.gate = asyncio.Event()
        sender.accept((TP, 0), [0])
        await until(lambda: member.requests)
        for offset in range(1, 50):
            sender.accept((TP, 0), [offset])
        member.gate.set()

    member, _, _ = acking(None, act)

    assert member.sent == [(0, 0, ACCEPT), (1, 49, ACCEPT)]


def test_a_lost_lock_among_many_loses_only_itself():
    def answer(tp: TopicPartition, batches: list[AckRange]) -> ErrorCode:
        hit = any(one.first <= 37 <= one.last for one in batches)
        return ErrorCode.INVALID_RECORD_STATE if hit else ErrorCode.NONE

    member, stats, confirmed = acking(answer, lambda sender, _: sender.accept((TP, 0), list(range(100))))

    assert (stats.accepted, stats.lock_lost) == (99, 1)
    assert [ack.first for ack, how in confirmed if how == "lock_lost"] == [37]
    assert len(member.requests) < 20


class MovingMember(WritingMember):
    """A member of a fleet, where one partition's next leader answers when told."""

    def __init__(self, answer: Answer | None = None) -> None:
        super().__init__(answer)
        self.late: list[Callable[[], object]] = []

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        generation: int | None = None,
        on_late: Callable[[AckResult], object] | None = None,
    ) -> list[AckResult]:
        results = await super().acknowledge(acks, generation=generation)
        assert on_late is not None or OTHER not in acks or self.late
        for result in results:
            if on_late is not None and result.tp == OTHER:
                self.late.append(functools.partial(on_late, result))
        return [result for result in results if on_late is None or result.tp != OTHER]


@pytest.mark.flowshare
async def test_a_partition_without_a_leader_holds_up_no_other():
    def lost(tp: TopicPartition, batches: list[AckRange]) -> ErrorCode:
        hit = tp == OTHER and any(one.first <= 7 <= one.last for one in batches)
        return ErrorCode.INVALID_RECORD_STATE if hit else ErrorCode.NONE

    member, stats = MovingMember(lost), AgentStats()
    sender = AckSender("agent", ManualClock(), stats)
    sender.start(member)  # type: ignore[arg-type]
    sender.accept((TP, 0), [1, 2])
    sender.accept((OTHER, 0), [5, 6, 7])
    await settle()
    assert (stats.accepted, sender.unconfirmed) == (2, 3)
    settling = asyncio.ensure_future(sender.flush())
    sender.accept((TP, 0), [3])
    await settle()
    assert (stats.accepted, sender.unconfirmed) == (3, 3)
    assert not settling.done()

    for late in member.late:
        late()
    await settle()

    assert (stats.accepted, stats.lock_lost, sender.unconfirmed) == (5, 1, 0)
    await settling
    await sender.stop()


@pytest.mark.flowshare
@pytest.mark.parametrize("begun", [False, True])
async def test_what_waits_for_a_leader_when_the_agent_stops_is_not_sent_again(begun: bool):
    member, stats = MovingMember(lambda tp, batches: ErrorCode.KAFKA_STORAGE_ERROR), AgentStats()
    sender = AckSender("agent", ManualClock(), stats)
    sender.start(member)  # type: ignore[arg-type]
    sender.accept((OTHER, 0), [5])
    await settle()
    if begun:
        member.late[0]()
    await sender.stop()
    if not begun:
        member.late[0]()
    sender.accept((OTHER, 0), [6])
    await settle()

    assert (stats.accepted, len(member.requests)) == (0, 1)
    assert (stats.ack_unknown, sender.unconfirmed) == (1, 1), "6 is left to the closing of the session"


@pytest.mark.flowshare
async def test_what_finishes_in_a_partition_whose_leader_has_not_answered_waits_for_that_answer():
    member, stats = MovingMember(), AgentStats()
    sender = AckSender("agent", ManualClock(), stats)
    sender.start(member)  # type: ignore[arg-type]
    sender.accept((OTHER, 0), [5])
    await settle()

    sender.accept((OTHER, 0), [6])
    await settle()
    assert len(member.requests) == 1

    member.late[0]()
    await settle()
    assert [(one.first, one.last) for made in member.requests for one in made[OTHER]] == [(5, 5), (6, 6)]
    await sender.stop()


@pytest.mark.flowshare
async def test_a_request_that_is_slow_holds_up_no_other_partition():
    member, stats, clock = WritingMember(), AgentStats(), ManualClock()
    sender = AckSender("agent", clock, stats)
    sender.start(member)  # type: ignore[arg-type]
    member.gate = asyncio.Event()
    sender.accept((TP, 0), [1])
    await settle()
    sender.accept((TP, 0), [2])
    sender.accept((OTHER, 0), [1])
    await settle()
    assert len(member.requests) == 1

    await clock.advance(SLOW_S)

    assert [list(made) for made in member.requests] == [[TP], [OTHER]]
    member.gate.set()
    await sender.flush()
    assert (stats.accepted, len(member.requests)) == (3, 3)
    await sender.stop()


def test_of_two_deliveries_of_a_record_the_last_one_is_acknowledged_and_the_other_is_lost(
    caplog: pytest.LogCaptureFixture,
):
    def act(sender: AckSender, _: WritingMember) -> None:
        sender.accept((TP, 0), [4, 5, 6], 1)
        sender.acknowledge((TP, 0), AckRange(5, 5, RELEASE, attempt=2, counter="retried"))
        sender.accept((TP, 0), [5], 3)

    member, stats, confirmed = acking(None, act)

    assert [(one.first, one.last, one.types, one.attempt) for one in member.requests[0][TP]] == [
        (4, 4, ACCEPT, 1),
        (5, 5, ACCEPT, 3),
        (6, 6, ACCEPT, 1),
    ]
    assert (stats.accepted, stats.retried, stats.lock_lost) == (3, 0, 2)
    assert sorted((ack.attempt, how) for ack, how in confirmed if ack.first == 5) == [
        (1, "lock_lost"),
        (2, "lock_lost"),
        (3, "accepted"),
    ]
    assert "its lock had lapsed" in caplog.text


def test_what_is_lost_together_is_told_in_one_line(caplog: pytest.LogCaptureFixture):
    acking(
        lambda tp, batches: ErrorCode.UNKNOWN_SERVER_ERROR,
        lambda sender, _: sender.accept((TP, 0), [*range(0, 20, 2), 30, 31]),
    )

    [line] = [record.getMessage() for record in caplog.records if "may run again" in record.getMessage()]
    assert "record=in-0@0, 2, 4, 6, 8 and 7 more: " in line


def test_a_record_that_was_accepted_twice_accepts_none_that_was_not():
    member, stats, _ = acking(None, lambda sender, _: sender.accept((TP, 0), [5, 7, 5]))

    assert member.sent == [(5, 5, ACCEPT), (7, 7, ACCEPT)]
    assert (stats.accepted, stats.lock_lost) == (2, 1)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.sampled_from([ACCEPT, RELEASE])), max_size=20))
def test_a_request_says_each_offset_once_and_only_what_was_said_of_it(said: list[tuple[int, int, bytes]]):
    def act(sender: AckSender, _: WritingMember) -> None:
        for offset, attempt, types in said:
            if types == ACCEPT:
                sender.accept((TP, 0), [offset], attempt)
            else:
                sender.acknowledge((TP, 0), AckRange(offset, offset, types, attempt=attempt, counter="released"))

    member, stats, confirmed = acking(None, act)

    sent = [
        (offset, one.attempt, one.types)
        for made in member.requests
        for one in made[TP]
        for offset in range(one.first, one.last + 1)
    ]
    assert [offset for offset, _, _ in sent] == sorted({offset for offset, _, _ in said})
    for offset, attempt, types in sent:
        assert (offset, attempt, types) in said
        assert attempt == max(other for at, other, _ in said if at == offset)
    assert sum(ack.size for ack, _ in confirmed) == len(said) == stats.accepted + stats.released + stats.lock_lost


def test_a_failure_of_one_partition_leaves_the_other_alone():
    def answer(tp: TopicPartition, batches: list[AckRange]) -> ErrorCode:
        return ErrorCode.INVALID_RECORD_STATE if tp == OTHER else ErrorCode.NONE

    def act(sender: AckSender, _: WritingMember) -> None:
        sender.accept((TP, 0), [1, 2])
        sender.accept((OTHER, 0), [1])

    _, stats, _ = acking(answer, act)

    assert (stats.accepted, stats.lock_lost) == (2, 1)


def test_a_result_that_is_unknown_is_counted_and_not_sent_again(caplog: pytest.LogCaptureFixture):
    member = None

    class Unknown(WritingMember):
        async def acknowledge(self, acks: Any, **_: Any) -> list[AckResult]:
            self.requests.append(dict(acks))
            return [
                AckResult("in", tp.topic_id, 0, tuple(made), ErrorCode.NETWORK_EXCEPTION, "outcome unknown: lost", 0.0)
                for tp, made in acks.items()
            ]

    stats = AgentStats()

    async def main() -> None:
        nonlocal member
        member = Unknown()
        sender = AckSender("agent", ManualClock(), stats)
        sender.start(member)  # type: ignore[arg-type]
        sender.accept((TP, 0), [1, 2, 3])
        await sender.flush()
        await sender.stop()

    fs.testing.run(main())

    assert member is not None
    assert (stats.ack_unknown, len(member.requests)) == (3, 1)
    assert "may run again" in caplog.text


def test_what_the_server_could_not_write_is_sent_again_while_the_records_are_held():
    failing = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR]

    member, stats, _ = acking(
        lambda tp, batches: failing.pop() if failing else ErrorCode.NONE,
        lambda sender, _: sender.accept((TP, 0), [1]),
    )

    assert (stats.accepted, len(member.requests)) == (1, 3)


def test_a_server_that_never_writes_ends_as_unknown():
    member, stats, _ = acking(
        lambda tp, batches: ErrorCode.KAFKA_STORAGE_ERROR, lambda sender, _: sender.accept((TP, 0), [1])
    )

    assert (stats.ack_unknown, stats.accepted) == (1, 0)
    assert len(member.requests) == 4


def test_acknowledgements_of_two_connections_go_in_requests_of_their_own():
    def act(sender: AckSender, _: WritingMember) -> None:
        sender.accept((TP, 1), [1])
        sender.accept((TP, 2), [2])

    member, _, _ = acking(None, act)

    assert [list(made) for made in member.requests] == [[TP], [TP]]


def test_records_of_different_attempts_are_acknowledged_in_batches_of_their_own_and_in_order():
    def act(sender: AckSender, _: WritingMember) -> None:
        sender.accept((TP, 1), [1, 4], 1)
        sender.accept((TP, 1), [3], 2)
        sender.accept((TP, 1), [0], 1)
        sender.acknowledge((TP, 1), AckRange(2, 2, RELEASE, attempt=2, counter="retried"))

    member, _, _ = acking(None, act)

    assert [(one.first, one.last, one.types, one.attempt) for one in member.requests[0][TP]] == [
        (0, 1, ACCEPT, 1),
        (2, 2, RELEASE, 2),
        (3, 3, ACCEPT, 2),
        (4, 4, ACCEPT, 1),
    ]


def test_renewing_finds_the_ranges_whose_locks_are_lost():
    found: list[Any] = []

    async def act(sender: AckSender, _: WritingMember) -> None:
        found.append(await sender.renew((TP, 0), [(0, 3, 0), (6, 6, 0)]))

    def answer(tp: TopicPartition, batches: list[AckRange]) -> ErrorCode:
        return ErrorCode.INVALID_RECORD_STATE if any(one.first <= 2 <= one.last for one in batches) else ErrorCode.NONE

    _, stats, _ = acking(answer, act)

    assert found == [([(2, 2)], 9.0)]
    assert stats.renewed == 4


def test_a_fault_while_acknowledging_is_logged_and_the_next_ones_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    stats, confirmed = AgentStats(), list[tuple[int, str]]()

    class Faulty(WritingMember):
        def begin_acknowledge(self, acks: Any, told: Any, **more: Any) -> None:
            if acks[TP][0].first == 1:
                raise RuntimeError("a fault of ours")
            super().begin_acknowledge(acks, told, **more)

    async def main() -> None:
        sender = AckSender("agent", ManualClock(), stats, lambda ack, _, how: confirmed.append((ack.first, how)))
        sender.start(Faulty())  # type: ignore[arg-type]
        sender.accept((TP, 0), [1, 2])
        await settle()
        sender.accept((TP, 0), [7])
        await sender.flush()
        await sender.stop()

    fs.testing.run(main())

    assert (stats.ack_unknown, stats.accepted) == (2, 1)
    assert confirmed == [(7, "accepted")]
    assert "what was not confirmed may run again" in caplog.text


def test_a_fault_while_halving_is_logged_and_the_next_ones_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    def answer(tp: TopicPartition, batches: list[AckRange]) -> ErrorCode:
        if batches[0].first == batches[-1].last == 1:
            raise RuntimeError("a fault of ours")
        return ErrorCode.INVALID_RECORD_STATE if batches[0].first == 1 else ErrorCode.NONE

    async def act(sender: AckSender, member: WritingMember) -> None:
        sender.accept((TP, 0), [1, 2])
        await settle()
        sender.accept((TP, 0), [7])

    _, stats, confirmed = acking(answer, act)

    assert (stats.ack_unknown, stats.accepted) == (2, 1)
    assert [(ack.first, how) for ack, how in confirmed] == [(7, "accepted")]
    assert "what was not confirmed may run again" in caplog.text


def test_who_is_told_of_outcomes_and_fails_keeps_none_from_being_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the observer")

    async def main() -> None:
        sender = AckSender("agent", ManualClock(), stats, fail)
        sender.start(WritingMember())  # type: ignore[arg-type]
        sender.accept((TP, 0), [1, 3])
        await sender.flush()
        await sender.stop()

    stats = AgentStats()
    fs.testing.run(main())

    assert stats.accepted == 2
    assert "a fault of the observer" in caplog.text


@pytest.mark.flowshare
@pytest.mark.parametrize("told_first", [False, True])
async def test_outcomes_that_are_told_twice_count_once(told_first: bool, caplog: pytest.LogCaptureFixture):
    class Faulty(WritingMember):
        def begin_acknowledge(self, acks: Any, told: Any, **_: Any) -> None:
            self.requests.append(dict(acks))
            self.tell = lambda: told(
                [AckResult("in", *tp, tuple(made), ErrorCode.NONE, None, 9.0) for tp, made in acks.items()]
            )
            if told_first:
                self.tell()
            if len(self.requests) == 1:
                raise RuntimeError("a fault of ours, with the request under way")

    member, stats = Faulty(), AgentStats()
    sender = AckSender("agent", ManualClock(), stats)
    sender.start(member)  # type: ignore[arg-type]
    sender.accept((TP, 0), [1, 2])
    await settle()
    member.tell()

    assert (stats.accepted, stats.ack_unknown) == ((2, 0) if told_first else (0, 2))
    assert sender.unconfirmed == 0
    sender.accept((TP, 0), [3])
    await settle()
    member.tell()
    assert (sender.unconfirmed, len(member.requests)) == (0, 2)
    assert "a fault of ours" in caplog.text
    await sender.stop()


class Prompt(WritingMember):
    """Knows each outcome before the call returns, as of what no connection is left for."""

    def begin_acknowledge(self, acks: Any, told: Any, **_: Any) -> None:
        self.requests.append(dict(acks))
        told([AckResult("in", *tp, tuple(made), ErrorCode.NONE, None, 9.0) for tp, made in acks.items()])


def test_outcomes_that_are_known_at_once_leave_nothing_under_way() -> None:
    stats = AgentStats()

    async def main() -> None:
        member, sender = Prompt(), AckSender("agent", ManualClock(), stats)
        sender.accept((TP, 0), [1])
        sender.accept((TP, 1), [2])
        sender.start(member)  # type: ignore[arg-type]
        assert (sender.unconfirmed, len(member.requests)) == (0, 2)
        await sender.flush()
        sender.accept((TP, 1), [3])
        sender.ride()
        assert (sender.unconfirmed, len(member.requests)) == (0, 3)
        await sender.stop()

    fs.testing.run(main())

    assert stats.accepted == 3


@asynccontextmanager
async def gathering() -> AsyncIterator[tuple[AckSender, WritingMember, ManualClock]]:
    """A sender that gathers for 5 ms, over a fake member."""
    clock, member = ManualClock(), WritingMember(None)
    sender = AckSender("agent", clock, AgentStats(), gather_s=0.005)
    sender.start(member)  # type: ignore[arg-type]
    yield sender, member, clock
    await sender.stop()


@pytest.mark.flowshare
async def test_where_requests_are_dear_the_first_goes_at_once_and_what_follows_is_gathered():
    async with gathering() as (sender, member, clock):
        for offset in range(3):
            sender.accept((TP, 0), [offset])
            await clock.advance(0.001)
        assert member.sent == [(0, 0, ACCEPT)]
        await clock.advance(0.0071)
        assert member.sent == [(0, 0, ACCEPT), (1, 2, ACCEPT)]

        await clock.advance(1)
        sender.accept((TP, 0), [3])
        await settle()
        assert member.sent[2:] == [(3, 3, ACCEPT)]


@pytest.mark.flowshare
async def test_what_was_gathered_goes_with_the_next_fetch_and_at_no_time_of_its_own():
    async with gathering() as (sender, member, clock):
        sender.accept((TP, 0), [0])
        await clock.advance(0.004)
        sender.accept((TP, 0), [1])
        sender.ride()
        await settle()
        assert member.sent == [(0, 0, ACCEPT)]
        await clock.advance(0.001)
        sender.ride()
        await settle()
        assert member.sent == [(0, 0, ACCEPT), (1, 1, ACCEPT)]


@pytest.mark.flowshare
async def test_many_are_not_gathered_for_long():
    async with gathering() as (sender, member, _):
        sender.accept((TP, 0), [0])
        await settle()
        sender.accept((TP, 0), [1])
        await settle()
        sender.accept((TP, 0), list(range(2, 2 + GATHERED_MAX)))
        await settle()
        assert member.sent == [(0, 0, ACCEPT), (1, 1 + GATHERED_MAX, ACCEPT)]


@pytest.mark.flowshare
async def test_who_waits_until_all_is_settled_does_not_wait_for_more_to_gather():
    async with gathering() as (sender, member, _):
        sender.accept((TP, 0), [0])
        await settle()
        sender.accept((TP, 0), [1])
        await settle()
        settling = asyncio.ensure_future(sender.flush())
        await settle()
        assert settling.done()
        assert member.sent == [(0, 0, ACCEPT), (1, 1, ACCEPT)]


# --- with an order, where each range says which delivery it means --------------------------------------------------


def test_what_the_answer_refuses_is_lost_and_the_rest_holds_in_one_request():
    def act(sender: AckSender, member: WritingMember) -> None:
        member.refused = ((2, 3), (7, 7))
        sender.accept((TP, 0), list(range(6)), 1)
        sender.acknowledge((TP, 0), AckRange(7, 7, RELEASE, attempt=2, counter="released"))

    member, stats, confirmed = acking(None, act)

    assert len(member.requests) == 1
    assert (stats.accepted, stats.released, stats.lock_lost) == (4, 0, 3)
    assert sorted((ack.first, ack.last, how) for ack, how in confirmed) == [
        (0, 1, "accepted"),
        (2, 3, "lock_lost"),
        (4, 5, "accepted"),
        (7, 7, "lock_lost"),
    ]


def test_what_is_refused_as_a_whole_is_not_halved_when_each_range_was_decided_by_itself():
    member, stats, _ = acking(
        lambda *_: ErrorCode.INVALID_RECORD_STATE, lambda sender, _: sender.accept((TP, 0), [1, 3, 4], 1)
    )

    assert len(member.requests) == 1
    assert stats.lock_lost == 3


def test_of_locks_that_are_renewed_those_that_are_refused_are_told():
    async def act(sender: AckSender, member: WritingMember) -> None:
        member.refused = ((2, 3), (7, 7))
        assert await sender.renew((TP, 0), [(0, 4, 1), (6, 7, 2)]) == ([(2, 3), (7, 7)], 9.0)

    member, stats, _ = acking(None, act)

    assert len(member.requests) == 1
    assert stats.renewed == 4
