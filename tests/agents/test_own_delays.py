"""Agents where the server cannot delay a release and a record given back unrun costs an attempt, as on Kafka."""

from __future__ import annotations

import asyncio
import uuid

import pytest

import flowshare as fs
from flowshare.agents.feed import delays
from flowshare.agents.feed.delays import HOLD_S, OTHERS_S, REWRITE_S, UNREAD_S
from flowshare.agents.feed.reader import Reader
from flowshare.agents.handler.retry_headers import origin_of
from flowshare.backend.base import Capabilities, Feature, Leader
from flowshare.backend.memory import MemoryBackend
from flowshare.client.session.member import ShareMember
from tests.agents.agents_kit import one_agent, run_agent, run_app
from tests.batches import SPOILED, spoil


class Poor(Capabilities):
    """As Kafka's brokers, but for limits that an app may set."""

    own_limits = Feature(*Leader)


POOR = Poor(leader=Leader.BROKERS, settling=False)


@pytest.fixture(autouse=True)
def poor_backend(monkeypatch):
    monkeypatch.setattr(MemoryBackend, "capabilities", property(lambda _: POOR))


def failing(times, seen, retry_waits=None):
    async def handler(value: bytes, delivery: fs.Delivery) -> None:
        seen.append((delivery.topic, delivery.partition, delivery.offset, delivery.attempt, delivery.id))
        if retry_waits is not None:
            retry_waits.append(dict(delivery.headers))
        if delivery.attempt <= times:
            raise RuntimeError("not yet")

    return handler


def test_a_short_delay_holds_the_record_and_comes_as_the_next_attempt():
    seen = []

    result = run_agent(failing(1, seen), retry=fs.Retry(max_attempts=3, delay=HOLD_S))

    assert [one[3] for one in seen] == [1, 2]
    assert len({one[4] for one in seen}) == 1
    assert result.stats["retried"] == 1
    assert result.elapsed_s >= HOLD_S


def test_a_long_delay_goes_through_the_retry_topic_and_the_record_stays_itself():
    seen, headers = [], []

    result = run_agent(failing(1, seen, headers), retry=fs.Retry(max_attempts=3, delay=REWRITE_S - 1))

    assert [one[:4] for one in seen] == [("in", 0, 0, 1), ("in", 0, 0, 2)]
    assert len({one[4] for one in seen}) == 1, "the idempotency key is the same"
    assert headers == [{}, {}], "the handler does not see how it waited"
    assert result.stats["retried"] == 1
    assert result.elapsed_s >= REWRITE_S - 1


def test_a_record_older_than_what_the_retry_topic_takes_and_keeps_waits_there_and_has_its_own_time():
    seen = []

    async def handler(value: bytes, delivery: fs.Delivery) -> None:
        if value == b"x":
            delivery.send("in", b"old", timestamp=1_000.0)
            return
        seen.append(delivery.timestamp)
        raise RuntimeError("not yet")

    app = one_agent(handler, retry=fs.Retry(max_attempts=2, delay=REWRITE_S - 1))
    waited = []

    async def during(bus):
        hour = {"message.timestamp.before.max.ms": "3600000", "retention.ms": "3600000"}
        await bus.host.admin.alter_topic_configs("t.agent.retry", hour)
        await bus.advance(1)
        waited.extend(await bus.host.admin.read("t.agent.retry", 0, 0, limit=10))

    result = run_app(app, during=during)

    assert seen == [1_000.0, 1_000.0]
    assert [record.value for record in waited] == [b"old"]
    (letter,) = result.dead
    assert letter.header("timestamp") == "1000000"


def test_a_very_long_delay_is_written_anew_until_it_is_due():
    seen = []
    app = one_agent(failing(1, seen), retry=fs.Retry(max_attempts=3, delay=100))
    waited = []

    async def during(bus):
        await bus.advance(99)
        waited.extend(bus.records("t.agent.retry"))
        assert len(seen) == 1

    run_app(app, during=during)

    assert [one[3] for one in seen] == [1, 2]
    origins = [origin_of(record.headers.items()) for record in waited]
    assert len(origins) > 1
    assert {(one.attempts, one.offset, one.due_ms) for one in origins} == {(1, 0, origins[0].due_ms)}


def test_the_dead_letter_names_the_record_that_died_not_where_it_waited():
    result = run_agent(failing(9, []), retry=fs.Retry(max_attempts=3, delay=REWRITE_S - 1))

    (letter,) = result.dead
    assert (letter.origin, letter.attempts) == (("in", 0, 0), 3)


def test_no_more_than_a_quarter_of_the_locks_is_held_the_rest_waits_in_the_topic(monkeypatch):
    monkeypatch.setattr("flowshare.agents.feed.prefetch.GroupSize.locks", property(lambda _: 8))
    seen = []
    app = one_agent(failing(1, seen), retry=fs.Retry(max_attempts=3, delay=2), concurrency=6)
    waited = []

    async def during(bus):
        await bus.advance(1)
        waited.extend(bus.records("t.agent.retry"))

    run_app(app, [b"x"] * 6, during=during)

    assert len(waited) == 4
    assert sorted(one[2:4] for one in seen) == sorted((offset, attempt) for offset in range(6) for attempt in (1, 2))


def test_a_record_that_many_others_have_passed_makes_way_for_its_partition(monkeypatch):
    monkeypatch.setattr("flowshare.agents.feed.prefetch.GroupSize.locks", property(lambda _: 40))
    seen, waited = [], []

    async def handler(value: bytes, delivery: fs.Delivery) -> None:
        seen.append((delivery.offset, delivery.attempt))
        if value == b"bad" and delivery.attempt == 1:
            raise RuntimeError("not yet")

    app = one_agent(handler, retry=fs.Retry(max_attempts=3, delay=HOLD_S))

    async def during(bus):
        await bus.advance(0.5)
        assert bus.records("t.agent.retry") == []
        for _ in range(30):
            await bus.send("in", b"x")
        await bus.advance(1)
        waited.extend(bus.records("t.agent.retry"))

    run_app(app, [b"bad"], during=during)

    assert len(waited) == 1
    assert (0, 2) in seen


@pytest.mark.flowshare
async def test_a_worker_that_stops_leaves_what_it_held_to_the_retry_topic():
    seen = []
    app = one_agent(failing(1, seen), retry=fs.Retry(max_attempts=3, delay=HOLD_S))
    waited = []

    async def during(bus):
        await bus.advance(0.5)
        began_s = bus.clock.monotonic()
        assert await app.host.drain(25), "all of it is settled"
        assert bus.clock.monotonic() - began_s < 5, "the copy, which came to the stopping worker, is left to others"
        await bus.advance(0)
        waited.extend(bus.records("t.agent.retry"))

    async with fs.testing.harness(app) as bus:
        await bus.send("in", b"x")
        await during(bus)

    assert len(waited) == 1


@pytest.mark.flowshare
async def test_the_lock_of_a_record_that_waits_in_the_retry_topic_is_renewed_by_an_idle_worker():
    runs = []

    async def handler(value: bytes, delivery: fs.Delivery) -> None:
        runs.append(delivery.attempt)
        await app.host.clock.sleep(20)

    app = one_agent(handler, retry=fs.Retry(max_attempts=5, delay=20), concurrency=3)

    async with fs.testing.harness(app) as bus:
        topic_id = (await app.host.producer.topic("in")).topic_id
        due_ms = bus.clock.now_ms() + 20_000
        place = {"topic": "in", "topic_id": topic_id, "partition": 0, "offset": 7, "attempts": 1, "due": due_ms}
        copied = {f"flowshare.retry.{name}": str(value).encode() for name, value in (place | {"timestamp": 1}).items()}
        await bus.send("t.agent.retry", b"x", headers=copied)
        report = await bus.run_until_idle(limit=600)

    assert runs == [2]
    assert report["agent"].accepted == 1


def test_what_others_write_into_a_retry_topic_is_a_dead_letter_not_run():
    seen = []
    app = one_agent(failing(0, seen))

    async def during(bus):
        await bus.send("t.agent.retry", b"stray")

    result = run_app(app, during=during)

    assert len(seen) == 1
    (letter,) = result.dead
    assert (letter.value, letter.origin, letter.attempts) == (b"stray", ("t.agent.retry", 0, 0), 1)
    assert "only flowshare writes to a retry topic" in letter.reason
    assert (result.stats["dead_lettered"], result.stats["rejected"]) == (1, 0)


def of_two_topics(seen):
    """An app of two agents in one group, each with a topic of its own: both fetch from the retry topic."""
    app = fs.App("t")
    for name, topic in (("one", "a"), ("other", "b")):
        app.share_agent(topic, name=name, group="g", retry=fs.Retry(max_attempts=3, delay=HOLD_S + 5))(failing(1, seen))
    return app


def test_a_record_that_waits_for_another_agent_of_the_group_runs_there_with_all_its_attempts(caplog):
    seen = []

    async def main():
        app = of_two_topics(seen)
        async with fs.testing.harness(app) as bus:
            for topic in "aabbaabb":
                await bus.send(topic, b"x")
            await bus.run_until_idle()
            return [bus.host.runtimes[name].stats() for name in ("one", "other")], bus.records("g.dlq")

    stats, dead = fs.testing.run(main())

    assert sorted((one[0], one[2], one[3]) for one in seen) == [
        (topic, offset, attempt) for topic in "ab" for offset in range(4) for attempt in (1, 2)
    ]
    assert [(one["accepted"], one["retried"], one["rejected"]) for one in stats] == [(4, 4, 0)] * 2
    assert dead == []
    assert caplog.text.count("does not read") == 2, "each agent says so once"


@pytest.mark.flowshare
async def test_a_record_whose_agent_is_away_waits_in_the_retry_topic_until_it_is_back():
    seen, app = [], of_two_topics([])

    async with fs.testing.harness(app) as bus:
        one, other = (bus.host.runtimes[name] for name in ("one", "other"))
        await bus.send("a", b"x")
        await bus.advance(1)
        one.pause()
        await bus.advance(600)
        copies = len(bus.records("g.retry"))
        one.resume()
        other.pause()
        await bus.advance(2 * REWRITE_S)
        seen.extend((one.stats()["accepted"], other.stats()["rejected"]))

    assert seen == [1, 0]
    assert copies < 600 / OTHERS_S[1] + 5, "it is written anew now and then only"


def of_another(due_ms):
    """Headers of a record that waits for an agent that reads `another`."""
    place = {"topic": "another", "topic_id": uuid.UUID(int=1), "partition": 0, "offset": 7, "attempts": 1}
    said = place | {"due": due_ms, "timestamp": 1}
    return {f"flowshare.retry.{name}": str(value).encode() for name, value in said.items()}


@pytest.mark.flowshare
@pytest.mark.parametrize("letters", [True, False])
async def test_a_record_whose_agent_never_comes_is_a_dead_letter_a_day_after_it_was_due(monkeypatch, letters):
    monkeypatch.setattr(delays, "ROUNDS", 8)
    app = one_agent(failing(0, []), **({} if letters else {"dead_letter": None}))

    async with fs.testing.harness(app) as bus:
        late = bus.clock.now_ms() - round(UNREAD_S * 1000)
        for key, due_ms in ((b"late", late), (b"new", bus.clock.now_ms())):
            await bus.send("t.agent.retry", b"x", key=key, headers=of_another(due_ms))
        await bus.advance(100)
        assert bus.records("t.agent.dlq") == [], "other agents of the group may be about to start"
        await bus.advance(60)
        found = [(one.key, dict(one.headers)) for one in bus.records("t.agent.dlq")]
        copies = len(bus.records("t.agent.retry"))
        await bus.advance(60)

        assert [key for key, _ in found] == ([b"late"] if letters else [])
        for _, headers in found:
            place = [headers[f"flowshare.dlq.{name}"] for name in ("topic", "offset")]
            assert place == [b"another", b"7"]
            assert "was due 24 h ago, and no agent of group t.agent that reads another" in (
                headers["flowshare.dlq.reason"].decode()
            )
        assert len(bus.records("t.agent.retry")) > copies, "what is not over yet goes on waiting"


@pytest.mark.flowshare
async def test_records_that_nobody_could_run_for_a_day_are_run_by_their_own_agent_when_the_brokers_are_back(
    monkeypatch,
):
    monkeypatch.setattr(delays, "UNREAD_S", 20)
    seen = []
    app = of_two_topics(seen)

    async with fs.testing.harness(app) as bus:
        agents = [bus.host.runtimes[name] for name in ("one", "other")]
        for _ in range(4):
            await bus.send("b", b"x")
        await bus.advance(2)
        for agent in agents:
            agent.pause()
        await bus.advance(40)
        for agent in agents:
            agent.resume()
        await bus.advance(60)

        assert sorted(one[2] for one in seen if one[3] == 2) == list(range(4))
        assert bus.records("g.dlq") == []


@pytest.mark.parametrize("options", [{}, {"batch": fs.Batch(2, within=0.1)}])
def test_what_cannot_be_read_in_a_retry_topic_is_a_dead_letter_and_those_beside_it_are_handled(options, monkeypatch):
    seen = []
    fetched = ShareMember.take_fetched

    def damaged(self):
        return [part._replace(records=spoil(part.records)) for part in fetched(self)]

    monkeypatch.setattr(ShareMember, "take_fetched", damaged)

    async def one(value: int) -> None:
        seen.append(value)

    async def several(rows: fs.Records[int]) -> None:
        seen.extend(rows.values())

    async def during(bus):
        await bus.send("t.agent.retry", b"stray")
        await bus.send("t.agent.retry", b"5", headers=dict([SPOILED]))

    result = run_app(one_agent(several if "batch" in options else one, **options), [1, 2, 3], during=during)

    assert sorted(seen) == [1, 2, 3]
    stray, letter = result.dead
    assert (stray.value, stray.origin) == (b"stray", ("t.agent.retry", 0, 0))
    assert (letter.origin, letter.attempts) == (("t.agent.retry", 0, 1), 1)
    assert "the stored bytes cannot be read" in letter.reason
    assert (result.stats["accepted"], result.stats["dead_lettered"], result.stats["rejected"]) == (3, 2, 0)


def test_batches_of_a_retry_topic_that_are_too_much_at_once_are_read_one_after_the_other(monkeypatch):
    monkeypatch.setattr("flowshare.agents.feed.feeder.ANSWER_BYTES_MAX", 1)
    seen, later = [], []
    put_off = Reader._unread

    def reads_later(self, part, lazy):
        later.append(part.topic)
        return put_off(self, part, lazy)

    monkeypatch.setattr(Reader, "_unread", reads_later)
    app = one_agent(failing(1, seen), retry=fs.Retry(max_attempts=3, delay=HOLD_S + 5))

    async def during(bus):
        await bus.advance(1)
        app.host.runtimes["agent"].pause()
        await bus.advance(REWRITE_S)
        app.host.runtimes["agent"].resume()

    run_app(app, [b"x"] * 4, during=during)

    assert "t.agent.retry" in later
    assert sorted(one[2:4] for one in seen) == sorted((offset, attempt) for offset in range(4) for attempt in (1, 2))


def test_a_dead_letter_that_cannot_be_written_is_tried_again_without_costing_attempts(monkeypatch):
    seen, refused = [], [2]
    from flowshare.client.producer.producer import Producer

    send_nowait = Producer.send_nowait

    def failing_at_first(self, topic, *args, **kwargs):
        if topic.endswith(".dlq") and refused[0]:
            refused[0] -= 1
            raise RuntimeError("no")
        return send_nowait(self, topic, *args, **kwargs)

    monkeypatch.setattr(Producer, "send_nowait", failing_at_first)

    result = run_agent(failing(9, seen), retry=None)

    assert [one[3] for one in seen] == [1]
    assert len(result.dead) == 1
    assert result.elapsed_s >= 20


def test_a_record_that_the_retry_topic_does_not_take_waits_with_its_lock_held(monkeypatch, caplog):
    seen, refused = [], []
    from flowshare.client.errors import RecordTooLarge
    from flowshare.client.producer.producer import Producer

    send_nowait = Producer.send_nowait

    def too_small(self, topic, *args, **kwargs):
        if topic.endswith(".retry"):
            refused.append(topic)
            raise RecordTooLarge("too large")
        return send_nowait(self, topic, *args, **kwargs)

    monkeypatch.setattr(Producer, "send_nowait", too_small)

    result = run_agent(failing(1, seen), retry=fs.Retry(max_attempts=3, delay=HOLD_S + 5))

    assert [one[3] for one in seen] == [1, 2]
    assert refused == ["t.agent.retry"]
    assert "goes on in 10 s" in caplog.text
    assert result.elapsed_s >= HOLD_S + 5


def test_a_worker_that_stops_finishes_what_it_fetched_ahead_as_giving_back_costs_an_attempt():
    seen = []

    async def handler(value: bytes, delivery: fs.Delivery) -> None:
        seen.append(delivery.offset)
        await asyncio.sleep(0.05)

    app = one_agent(handler, concurrency=1)

    async def main():
        async with fs.testing.harness(app) as bus:
            for _ in range(20):
                await bus.send("in", b"x")
            await bus.advance(0.52)
            ahead = app.host.runtimes["agent"].stats()["buffered"]
            task = asyncio.ensure_future(app.host.drain(20))
            await bus.advance(5)
            assert await task
            return ahead, app.host.runtimes["agent"].stats()

    ahead, stats = fs.testing.run(main())

    assert ahead > 0
    assert stats["unrun"] == 0
    assert stats["accepted"] == len(seen) < 20


@pytest.mark.parametrize("own", [True, False])
def test_each_dead_record_has_one_letter_where_the_brokers_write_one_of_each_reject(own):
    async def during(bus):
        await bus.host.admin.create_topic("brokers", partitions=1, exist_ok=True)
        await bus.host.admin.alter_group_configs("t.agent", {"errors.deadletterqueue.topic.name": "brokers"})
        for _ in range(3):
            await bus.send("in", b"x")

    result = run_app(
        one_agent(failing(9, []), retry=fs.Retry(max_attempts=1), dead_letter=True if own else None), (), during=during
    )

    assert (len(result.dead), len(result.records("brokers"))) == ((3, 0) if own else (0, 3))
    assert result.stats["dead_lettered" if own else "rejected"] == 3


@pytest.mark.flowshare
async def test_a_keyed_record_of_an_agent_that_reads_another_partition_of_the_retry_topic_gets_there():
    """By its key it would come to the same partition again and again."""
    app = one_agent(failing(0, []))
    async with fs.testing.harness(app) as bus:
        await app.host.admin.create_partitions("t.agent.retry", 3)
        app.host.producer.forget_topic("t.agent.retry")
        await bus.advance(2_000)  # members of a test ask seldom for their partitions
        await bus.send("t.agent.retry", b"x", key=b"k", headers=of_another(bus.clock.now_ms()))
        await bus.advance(6 * OTHERS_S[1])

        assert {one.partition for one in bus.records("t.agent.retry")} == {0, 1, 2}
