"""The parts of the feeder: reading batches, what is held and lost, dead letters, full buffers, the server's limit."""

from __future__ import annotations

import uuid
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed.ack_sender import AckSender
from flowshare.agents.feed.acknowledgements import RELEASE
from flowshare.agents.feed.dead_letter import PREFIX, dead_letter, without_trace
from flowshare.agents.feed.locks import HeldRecords
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.handler.texts import TRACE_MAX
from flowshare.agents.run.stats import AgentStats
from flowshare.client.errors import BufferFull, RecordTooLarge
from flowshare.client.session.member import ShareMember
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import DecodedRecord, LastBatch, decode_raw
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AckRange, AcquiredRange
from flowshare.testing import Bus, ManualClock
from tests.agents.agents_kit import one_agent, run_agent, run_app
from tests.batches import place

TP = TopicPartition(uuid.UUID(int=1), 0)


def batch(first: int, count: int) -> bytes:
    builder = BatchBuilder()
    for n in range(count):
        builder.add(None, b"%d" % (first + n), (), timestamp_ms=1)
    return place(builder.build(), first)


def chunk_of(first: int, last: int) -> Chunk:
    decoded = decode_raw(batch(first, last - first + 1), [AcquiredRange(first, last, 1)])
    return Chunk("agent", "in", TP, decoded.runs, decode=None, deadline=30.0, generation=0, arrived=0.0)


# --- reading ----------------------------------------------------------------------------------------------------


def test_single_records_out_of_one_batch_are_read_once():
    decode, records = partial(decode_raw, last=LastBatch()), batch(10, 100)

    found = [decode(records, [AcquiredRange(n, n, 2)]).runs for n in (10, 55, 109)]

    assert [[(raw.offset, raw.value, count) for raw in raws] for [(raws, count)] in found] == [
        [(10, b"10", 2)],
        [(55, b"55", 2)],
        [(109, b"109", 2)],
    ]


def test_a_batch_that_reaches_into_the_next_answer_is_read_once():
    decode, whole, torn = partial(decode_raw, last=LastBatch()), batch(0, 5), batch(5, 5)

    before = decode(whole + torn, [AcquiredRange(0, 6, 1)]).records
    after = decode(torn + batch(10, 5), [AcquiredRange(6, 12, 1)]).records

    assert [raw.offset for raw in after] == [6, 7, 8, 9, 10, 11, 12]
    assert after[0] is before[-1]


def test_a_kept_batch_is_not_taken_for_another_one_at_its_place():
    decode = partial(decode_raw, last=LastBatch())
    decode(batch(0, 5), [AcquiredRange(0, 0, 1)])

    decoded = decode(batch(0, 3), [AcquiredRange(1, 2, 1)])

    assert [(raw.offset, raw.value) for raw in decoded.records] == [(1, b"1"), (2, b"2")]


def test_gaps_are_found_in_a_kept_batch_too():
    decode, records = partial(decode_raw, last=LastBatch()), batch(0, 5) + batch(8, 2)
    decode(records, [AcquiredRange(0, 0, 1)])

    decoded = decode(records, [AcquiredRange(4, 9, 1)])

    assert [one.offset for one in decoded.records] == [4, 8, 9]
    assert decoded.gaps == [(5, 7)]


def test_damaged_bytes_are_reported_record_by_record_not_kept():
    decode, records = partial(decode_raw, last=LastBatch()), bytearray(batch(0, 5))
    records[-1] ^= 0xFF

    decoded = decode(bytes(records), [AcquiredRange(1, 2, 1)])

    assert decoded.records == []
    assert [(first, last) for first, last, _ in decoded.corrupt] == [(1, 2)]


# --- what is held -----------------------------------------------------------------------------------------------


class Ledger:
    """HeldRecords over a sender that is never started."""

    def __init__(self) -> None:
        self.stats, self.fed = AgentStats(), list[Chunk]()
        self.acks = AckSender("agent", ManualClock(), self.stats)
        self.held = HeldRecords(self.acks, self.stats, self.fed.extend, lambda: None)

    def releases(self) -> list[tuple[int, int]]:
        return [
            (ack.first, ack.last)
            for pending in self.acks._pending.values()
            for ack in pending.others
            if ack.types == RELEASE and ack.unrun
        ]


def test_what_was_not_begun_goes_back_in_ranges_and_what_runs_stays():
    ledger, chunk = Ledger(), chunk_of(0, 9)
    ledger.held.add(chunk)
    begun = [chunk.records.pop().offset for _ in range(3)]

    ledger.held.give_back()

    assert begun == [0, 1, 2]
    assert ledger.releases() == [(3, 9)]
    assert ledger.held.outstanding == 3
    assert chunk.unfinished() == [0, 1, 2]


def test_lost_records_that_wait_are_dropped_and_the_others_go_on():
    ledger, chunk = Ledger(), chunk_of(0, 5)
    ledger.held.add(chunk)
    running = chunk.records.pop()

    ledger.held.lose(chunk, [running.offset, 2, 3])

    assert [record.offset for record in chunk.records] == [5, 4, 1]
    assert ledger.fed == [chunk]
    assert ledger.held.outstanding == 4
    assert ledger.held.without_lost(chunk, [running.offset, 1]) == [1]
    assert ledger.stats.lock_lost == 3


def test_after_another_connection_nothing_old_is_held_or_given_back():
    ledger, chunk = Ledger(), chunk_of(0, 5)
    ledger.held.add(chunk)

    ledger.held.look(SimpleNamespace(generation=1, holds=lambda tp, generation: generation == 1))

    assert chunk.records == []
    assert ledger.releases() == []
    assert ledger.held.outstanding == 0


# --- dead letters -----------------------------------------------------------------------------------------------


def letter_for(error: BaseException | None, **record: Any) -> Any:
    made = DecodedRecord(5, 99, b"k", b"v", record.get("headers", ()), 3)
    return dead_letter("dlq", "g", chunk_of(5, 5), made, Outcome(OutcomeKind.DEAD, error, "because"))


def test_a_dead_letter_keeps_the_record_and_replaces_older_dead_letter_headers():
    letter = letter_for(None, headers=(("mine", b"1"), (PREFIX + "reason", b"older")))

    assert (letter.key, letter.value) == (b"k", b"v")
    assert [value for name, value in letter.headers if name == PREFIX + "reason"] == [b"because"]
    assert ("mine", b"1") in letter.headers


def test_a_long_trace_keeps_its_end():
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("x" * 20_000 + "the end")

    with pytest.raises(ValueError, match="the end") as caught:
        deep(50)
    headers = dict(letter_for(caught.value).headers)

    assert len(headers[PREFIX + "trace"] or b"") <= TRACE_MAX + 10
    assert (headers[PREFIX + "trace"] or b"").rstrip().endswith(b"the end")
    assert PREFIX + "trace" not in dict(without_trace(letter_for(caught.value)).headers)


def test_a_dead_letter_that_is_too_large_goes_without_its_trace(monkeypatch: pytest.MonkeyPatch):
    async def bad(value: int) -> None:
        raise KeyError("x")

    async def during(bus: Bus) -> None:
        real = bus.host.producer.send_nowait

        def send_nowait(topic: str, value: Any, **kwargs: Any) -> Any:
            if topic == "t.agent.dlq" and PREFIX + "trace" in dict(kwargs["headers"]):
                raise RecordTooLarge("too large")
            return real(topic, value, **kwargs)

        monkeypatch.setattr(bus.host.producer, "send_nowait", send_nowait)
        await bus.send("in", 1)

    seen = run_agent(bad, [], during=during, reject=(KeyError,))

    assert seen.outcomes == ["dead_lettered"]
    assert PREFIX + "trace" not in seen.dead[0].headers


# --- full buffers, the server's limit ---------------------------------------------------------------------------


def test_outputs_wait_while_the_producers_buffer_is_full(monkeypatch: pytest.MonkeyPatch):
    async def echo(value: int) -> int:
        return value

    full = 20

    async def during(bus: Bus) -> None:
        real = bus.host.producer.send_nowait

        def send_nowait(topic: str, *args: Any, **kwargs: Any) -> Any:
            nonlocal full
            if topic == "out" and full > 0:
                full -= 1
                raise BufferFull("full")
            return real(topic, *args, **kwargs)

        monkeypatch.setattr(bus.host.producer, "send_nowait", send_nowait)
        for value in range(10):
            await bus.send("in", value)

    seen = run_agent(echo, [], during=during, sink=["out"])

    assert seen.report.accepted == 10
    assert sorted(record.value for record in seen.out) == list(range(10))


def test_what_the_delivery_limit_archives_is_dead_lettered_by_the_server():
    async def never(value: int) -> None:
        raise AssertionError("must not run")

    app = one_agent(never, retry=fs.Retry(2))

    async def crash_again_and_again(bus: Bus) -> None:
        bus.host.runtimes["agent"].pause()
        await bus.send("in", 7)
        await bus.advance(1)
        member = ShareMember(bus.host._connect, group_id="t.agent", topics=["in"], clock=bus.clock)
        await member.start()
        limit = app.share_agents["agent"].options.delivery_count_limit
        for _ in range(limit):
            [fetched] = await member.fetch(records_max=10)
            await member.acknowledge({fetched.tp: [AckRange(one.first, one.last, RELEASE) for one in fetched.acquired]})
        await member.close()
        await bus.advance(5)

    seen = run_app(app, [], during=crash_again_and_again)

    assert [letter.value for letter in seen.dead] == [7]


def test_a_handler_that_kills_its_worker_each_time_ends_in_the_dead_letters():
    async def never(value: int) -> None:
        raise AssertionError("must not run")

    app = one_agent(never, retry=fs.Retry(2))

    async def crash(bus: Bus) -> None:
        runtime = bus.host.runtimes["agent"]
        runtime.pause()
        await bus.send("in", 7)
        await bus.advance(1)
        for _ in range(2):
            member = ShareMember(bus.host._connect, group_id="t.agent", topics=["in"], clock=bus.clock)
            await member.start()
            [fetched] = await member.fetch(records_max=10)
            assert fetched.acquired
            await member._link.current.close()  # the process is gone: no acknowledgement, no close
            await member._membership.stop()
            await bus.advance(1)
        runtime.resume()

    seen = run_app(app, [], during=crash)

    assert seen.outcomes[-1] == "dead_lettered"
    assert seen.report.attempts[-1] == 3
    assert b"without an outcome" in seen.dead[0].headers[PREFIX + "reason"]
