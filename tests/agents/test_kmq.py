"""Agents of KMQ queues: their options, and the life of a record between its markers, on a memory log."""

from __future__ import annotations

import asyncio
import functools

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host, HostSettings
from flowshare.agents.kmq import feeder
from flowshare.agents.kmq.agent import REFUSED
from flowshare.agents.kmq.unmarked_records import Ahead
from flowshare.backend.memory import MemoryBackend
from flowshare.client.errors import NotConnected
from flowshare.client.groups.consumer import GroupConsumer
from flowshare.client.groups.reading import read_log
from flowshare.client.producer.message import Message
from flowshare.kmq.markers import decode
from flowshare.ops.load import LoadWatch
from flowshare.testing.clock import ManualClock, settle
from tests.batches import SPOILED, spoil
from tests.client.worlds import within


def app_of(fun, **options):
    app = fs.App("t", broker="memory://", topic_partitions=options.pop("partitions", 1))
    options.setdefault("redeliver_after", 3.0)
    app.kmq_agent("q", markers="m", name="agent", **options)(fun)
    return app


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", sorted(REFUSED))
def test_an_option_that_says_nothing_on_a_queue_is_refused_with_why(option):
    app = fs.App("t", broker="memory://")

    with pytest.raises(fs.errors.OptionError, match=f"{option} says nothing on a KMQ queue: ..."):
        app.kmq_agent("q", markers="m", **{option: None})(lambda value: None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "markers takes the topic"),
        ({"markers": "q"}, "is the topic that it reads"),
        ({"markers": "m", "timeout": 30}, "timeout"),
        ({"markers": "m", "redeliver_after": 0}, "a millisecond or more"),
        ({"markers": "m", "redeliver_after": "soon"}, "redeliver_after takes seconds"),
        ({"markers": "m", "tracker": 3}, "True or False"),
        ({"markers": "m", "concurency": 3}, "Did you mean 'concurrency'"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_taken(options, said):
    app = fs.App("t", broker="memory://")

    with pytest.raises(fs.errors.OptionError, match=said):

        @app.kmq_agent("q", **options)
        def agent(value: bytes) -> None: ...


def test_a_queue_is_one_topic_and_a_name_and_a_group_are_for_one_agent():
    app = fs.App("t", broker="memory://")

    @app.share_agent("in", group="g")
    def agent(value: bytes) -> None: ...

    with pytest.raises(fs.errors.UsageError, match="one topic"):
        app.kmq_agent(["q", "p"], markers="m")(lambda value: None)
    with pytest.raises(fs.errors.UsageError, match="'agent' already"):
        app.kmq_agent("q", markers="m", name="agent")(agent.fun)
    with pytest.raises(fs.errors.UsageError, match="share group 'g'"):
        app.kmq_agent("q", markers="m", name="other", group="g")(agent.fun)


def test_calling_an_agent_calls_its_function():
    app = fs.App("t", broker="memory://")

    @app.kmq_agent("q", markers="m")
    def double(value: bytes) -> bytes:
        return value * 2

    assert double(b"a") == b"aa"
    assert app.kmq_agents["double"].describe()["markers"] == "m"


# --- what was read ahead ----------------------------------------------------------------------------------------------


class Offset:
    def __init__(self, offset):
        self.offset = offset


def offsets(taken):
    return [(one.place[1], [record.offset for record in one.records], one.next) for one in taken]


def test_partitions_take_turns_and_commit_behind_what_was_taken():
    ahead = Ahead()
    ahead.add(("q", 0), [Offset(one) for one in (0, 1, 4)], None, 9)
    ahead.add(("q", 1), [Offset(7)], None, 8)

    assert offsets(ahead.take(2)) == [(0, [0], 1), (1, [7], 8)]
    assert len(ahead) == 2
    assert offsets(ahead.take(10)) == [(0, [1, 4], 9)]
    assert (offsets(ahead.take(10)), len(ahead)) == ([], 0)


def test_what_is_put_back_comes_first_with_its_attempts():
    ahead = Ahead()
    ahead.add(("q", 0), [Offset(one) for one in range(4)], [1, 2, 1, 1], 4)
    taken = ahead.take(2)

    ahead.put_back(taken)
    [again] = ahead.take(10)
    assert ([record.offset for record in again.records], again.attempts, again.next) == ([0, 1, 2, 3], [1, 2, 1, 1], 4)


def test_a_partition_without_records_is_passed_once():
    ahead = Ahead()
    ahead.add(("q", 0), [], None, 5)

    assert ahead.passed() == {("q", 0): 5}
    assert ahead.passed() == {}


# --- from marker to marker --------------------------------------------------------------------------------------------


class Run:
    """An app at work, on a clock that stands still."""

    def __init__(self, app, clock):
        self.clock = clock
        self.host = Host(
            app,
            backend=MemoryBackend(clock=clock),
            clock=clock,
            settings=HostSettings(threads=False, inline_threads=True, linger=0),
        )

    @property
    def agent(self):
        return self.host.runtimes["agent"]

    async def send(self, *values, **options):
        await self.host.producer.send_many("q", [Message(value, **options) for value in values])

    async def until(self, look, limit_s=60.0):
        end_s = self.clock.monotonic() + limit_s
        while not look():
            assert self.clock.monotonic() < end_s
            await self.clock.sleep(0.05)

    async def records(self, topic, partition=0):
        return await self.host.admin.read(topic, partition, limit=10_000)

    async def markers(self, partition=0):
        """(message, whether it begins) in the order of the log."""
        found = [decode(record.key, record.value) for record in await self.records("m", partition)]
        return [(one.offset, one.after_ms is not None) for one in found]


def kmq(app, work, limit_s=300.0):
    async def main():
        clock = ManualClock()
        run = Run(app, clock)
        await run.host._backend.start()
        try:
            await within(clock, 60, run.host.start())
            await within(clock, limit_s, work(run))
        finally:
            await within(clock, 60, run.host.finish())
            await run.host._backend.close()
            await settle()

    asyncio.run(main())


def test_a_record_is_marked_committed_handled_and_ended():
    seen = []

    async def handle(value: bytes, delivery: fs.Delivery) -> None:
        marked = await run_[0].markers()
        committed = await run_[0].host.admin.committed_offsets("t.agent")
        seen.append((value, delivery.attempt, marked, [one.offset for one in committed]))

    run_ = []

    async def work(run):
        run_.append(run)
        await run.send(b"a")
        await run.until(lambda: run.agent.stats()["accepted"] == 1)
        assert seen == [(b"a", 1, [(0, True)], [1])]
        assert await run.markers() == [(0, True), (0, False)]
        [start, _] = await run.records("m")
        assert start.value.hex() == "010000000000000bb8"
        assert run.agent.idle

    kmq(app_of(handle), work)


def test_partitions_that_are_added_to_queue_and_markers_are_read_soon():
    seen = []

    async def handle(value: bytes, delivery: fs.Delivery) -> None:
        seen.append((value, delivery.partition))

    async def work(run):
        await run.clock.sleep(1)  # it has begun at latest
        await run.send(b"a")
        await run.until(lambda: seen)
        for topic in ("m", "q"):
            await run.host.admin.create_partitions(topic, 2)
        await run.send(b"new", partition=1)
        await run.until(lambda: len(seen) == 2)
        assert seen == [(b"a", 0), (b"new", 1)]
        await run.until(lambda: run.agent.idle)
        assert await run.markers(1) == [(0, True), (0, False)]

    kmq(app_of(handle, start="latest"), work)


def test_a_partition_that_gets_its_leader_later_costs_no_record_that_was_read_ahead(monkeypatch):
    gate, led, seen = asyncio.Event(), asyncio.Event(), []
    offset_of = GroupConsumer._offset

    async def offset(self, place, *more, **options):
        if place[1] == 1 and not led.is_set():
            raise NotConnected("leader of q-1: nobody is")
        return await offset_of(self, place, *more, **options)

    async def handle(value: bytes) -> None:
        await gate.wait()
        seen.append(value)

    async def work(run):
        values = [b"%d" % number for number in range(300)]
        await run.send(*values, partition=0)
        await run.send(b"late", partition=1)
        own = run.agent._feeder
        await run.until(lambda: len(own._ahead))
        led.set()
        await run.until(lambda: ("q", 1) in own._consumer.positions)
        gate.set()
        await run.until(lambda: len(seen) == 301)
        assert sorted(seen) == sorted([*values, b"late"])

    monkeypatch.setattr(GroupConsumer, "_offset", offset)
    kmq(app_of(handle, partitions=2, tracker=False, redeliver_after=300.0), work)


def test_a_poisoned_record_is_delivered_exactly_four_times_and_the_others_once():
    seen = []

    async def handle(value: bytes, delivery: fs.Delivery) -> None:
        seen.append((value, delivery.attempt))
        if value == b"poison":
            raise ValueError(value)

    async def work(run):
        await run.send(b"a", b"poison", b"b", key=b"k", headers=[("app", b"x")])
        tracker = run.agent._feeder.tracker
        await run.until(lambda: tracker.counts.undelivered == 1)
        await run.clock.sleep(30)
        assert sorted(seen) == [(b"a", 1), (b"b", 1), *((b"poison", attempt) for attempt in (1, 2, 3, 4))]
        [letter] = await run.records("q__undelivered")
        assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"poison", ("app", b"x"))
        assert run.agent.stats()["redelivered"] == 3
        assert (tracker.open, tracker.counts.lost) == (0, 0)

    kmq(app_of(handle, tracker=True), work)


@pytest.mark.parametrize("kind", ["raises", "rejects", "releases", "cannot be decoded", "times out"])
def test_what_is_not_accepted_has_no_end_marker(kind):
    async def handle(value: dict) -> None:
        if kind == "times out":
            await asyncio.Event().wait()
        raise {"raises": ValueError(), "rejects": fs.Reject("no"), "releases": fs.Release(1)}[kind]

    async def work(run):
        await run.send(b"{" if kind == "cannot be decoded" else b"{}")
        await run.until(lambda: run.agent.stats()["retried"] + run.agent.stats()["released"] == 1)
        await run.clock.sleep(10)
        assert await run.markers() == [(0, True)]
        assert run.agent.idle

    kmq(app_of(handle, timeout=1), work)


def test_outputs_are_confirmed_before_the_end_marker_and_without_them_there_is_none(monkeypatch):
    def handle(value: bytes) -> bytes:
        return value * 2

    async def work(run):
        await run.send(b"a")
        await run.until(lambda: run.agent.stats()["accepted"] == 1)
        [out] = await run.records("out")
        assert out.value == b"aa"
        await run.send(b"x" * 600_000)
        await run.until(lambda: run.agent.stats()["send_failed"] == 1)
        assert await run.markers() == [(0, True), (0, False), (1, True)]

    kmq(app_of(handle, sink="out"), work)


def test_a_record_that_cannot_be_read_is_left_to_the_tracker_and_those_beside_it_are_handled(monkeypatch):
    seen = []

    async def handle(value: bytes) -> None:
        seen.append(value)

    async def work(run):
        good = [Message(b"0"), Message(b"1", None, (SPOILED,)), Message(b"2")]
        await run.host.producer.send_many("q", good)
        await run.until(lambda: run.agent.stats()["accepted"] + run.agent.stats()["undecodable"] == 3)
        await run.until(lambda: run.agent.idle)
        ends = [offset for offset, begins in await run.markers() if not begins]
        assert sorted(ends) == [0, 2]

    monkeypatch.setattr(feeder, "read_log", lambda data, *more: read_log(spoil(data), *more))
    kmq(app_of(handle), work)
    assert seen == [b"0", b"2"]


def test_a_batch_is_ended_record_by_record():
    seen = []

    async def handle(records: fs.Records[bytes]) -> None:
        seen.append(len(records))
        records.retry(b"1", ValueError())

    async def work(run):
        await run.send(*(b"%d" % index for index in range(4)))
        await run.until(lambda: run.agent.stats()["accepted"] == 3)
        assert {offset for offset, begins in await run.markers() if not begins} == {0, 2, 3}

    kmq(app_of(handle, batch=fs.Batch(4, within=1)), work)


def test_what_no_handler_has_begun_in_time_is_dropped_and_left_to_the_tracker():
    begun, free = [], asyncio.Event

    async def handle(value: bytes) -> None:
        begun.append(value)
        if value == b"0":
            await gate.wait()

    gate = free()

    async def work(run):
        await run.send(*(b"%d" % index for index in range(3)))
        await run.until(lambda: run.agent.stats()["lock_lost"] >= 1)
        dropped = int(run.agent.stats()["lock_lost"])
        assert begun == [b"0"]
        gate.set()
        await run.until(lambda: run.agent.stats()["accepted"] == 3 - dropped)

    kmq(app_of(handle, concurrency=1), work)


def test_a_worker_that_stops_handles_what_it_has_marked():
    begun = []

    async def handle(value: bytes) -> None:
        await clock[0].sleep(0.2)
        begun.append(value)

    clock = []

    async def work(run):
        clock.append(run.clock)
        await run.send(*(b"%d" % index for index in range(50)))
        await run.until(lambda: begun)
        assert await run.host.drain()
        starts = [offset for offset, begins in await run.markers() if begins]
        assert len(begun) == len(starts) == run.agent.stats()["accepted"]

    kmq(app_of(handle, concurrency=2), work)


def test_figures_of_share_groups_leave_an_agent_of_a_queue_out():
    async def handle(value: bytes) -> None: ...

    app = app_of(handle)
    app.share_agent("in", name="shared")(handle)

    async def work(run):
        host = run.host
        load = LoadWatch(host.runtimes, host.admin, host.backend.capabilities, clock=run.clock)
        await load.look()
        assert [row["agent"] for row in load.topics()] == ["shared"]
        assert list(load.seen.groups) == ["t.shared"]

    kmq(app, work)


def test_a_paused_agent_marks_nothing():
    async def handle(value: bytes) -> None: ...

    async def work(run):
        run.agent.pause()
        await run.clock.sleep(1)
        await run.send(*(b"%d" % index for index in range(50)))
        await run.clock.sleep(5)
        assert len(await run.markers()) <= 2 * 17
        run.agent.resume()
        await run.until(lambda: run.agent.stats()["accepted"] == 50)

    kmq(app_of(handle), work)


def test_a_rate_limit_bounds_what_is_marked():
    async def handle(value: bytes) -> None: ...

    async def work(run):
        await run.send(*(b"%d" % index for index in range(40)))
        began_s = run.clock.monotonic()
        await run.until(lambda: run.agent.stats()["accepted"] == 40)
        assert run.clock.monotonic() - began_s >= 2.5

    kmq(app_of(handle, rate_limit="10/s"), work)


def test_markers_with_other_partitions_than_the_queue_are_refused_at_the_start():
    async def handle(value: bytes) -> None: ...

    app = app_of(handle)

    async def main():
        clock = ManualClock()
        run = Run(app, clock)
        backend = run.host._backend
        await backend.start()
        from flowshare.client.admin.admin import ShareAdmin

        admin = ShareAdmin(functools.partial(backend.connect, "t"), clock=clock)
        await admin.create_topic("m", partitions=3)
        with pytest.raises(fs.errors.UsageError, match=r"KMQ agent agent: topic q has 1 partitions and m.*markers, 3"):
            await within(clock, 60, run.host.start())
        await admin.close()
        await backend.close()

    asyncio.run(main())
