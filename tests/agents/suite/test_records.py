"""Tests of the input of handlers, on every backend: values, tombstones, batches, and the fields of a delivery."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed import delays
from flowshare.client.producer.producer import Message
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ProduceRequest
from tests.agents.suite.places import Place, headers, values
from tests.batches import raw_batch, raw_record
from tests.waiting import until

pytestmark = pytest.mark.asyncio


async def test_an_undecodable_value_is_a_dead_letter_unrun(place: Place) -> None:
    got: list[Any] = []

    async def typed(value: dict[str, int]) -> None:
        got.append(value)

    async with place.running(place.agent(typed)) as [worker]:
        await worker.send(place.topic, b"{broken", b'{"n": "text"}', b'{"n": 1}')
        await worker.ended(3)
        letters = {letter.value: headers(letter)["flowshare.dlq.reason"] or b"" for letter in await worker.dead()}

    assert got == [{"n": 1}]
    assert set(letters) == {b"{broken", b'{"n": "text"}'}
    assert all(reason.startswith(b"undecodable: ") for reason in letters.values())


async def test_a_headers_name_that_is_no_utf_8_costs_no_record(place: Place) -> None:
    got: dict[bytes, tuple[tuple[str, bytes | None], ...]] = {}

    async def take(value: bytes, delivery: fs.Delivery) -> None:
        got[value] = delivery.headers
        if value == b"7":
            raise fs.Reject("as it is")

    rows = [raw_record(n, b"%d" % n) for n in range(10)]
    for n in (3, 7):
        rows[n] = raw_record(n, b"%d" % n, headers=[(b"na\xefve", b"x")])
    async with place.running(place.agent(take)) as [worker]:
        records = raw_batch(rows, timestamp_ms=LoopClock().now_ms())
        produce = ProduceRequest(topic=place.topic, partition=0, records=records)
        answer = await worker.host.service.call(lambda: worker.host.admin._link.send(produce))
        assert answer.error is ErrorCode.NONE
        await worker.ended(10)
        [letter] = await worker.dead()

    odd = (("na\N{REPLACEMENT CHARACTER}ve", b"x"),)
    assert got == {b"%d" % n: odd if n in {3, 7} else () for n in range(10)}
    assert (letter.value, letter.headers[:1]) == (b"7", odd)


async def test_a_tombstone_is_none_where_the_annotation_allows_it(place: Place) -> None:
    got: list[Any] = []

    async def take(value: dict[str, int] | None) -> None:
        got.append(value)

    async with place.running(place.agent(take, concurrency=1)) as [worker]:
        await worker.send(place.topic, None, b'{"n":1}')
        await worker.ended(2)

    assert got == [None, {"n": 1}]


async def test_a_tombstone_is_a_dead_letter_where_the_annotation_forbids_it(place: Place) -> None:
    async def take(value: dict[str, int]) -> None:
        raise AssertionError("must not run")

    async with place.running(place.agent(take)) as [worker]:
        await worker.send(place.topic, Message(None, key=b"gone"))
        await worker.ended(1)
        [letter] = await worker.dead()

    assert (letter.key, letter.value) == (b"gone", None)
    assert b"does not allow None" in (headers(letter)["flowshare.dlq.reason"] or b"")


@pytest.mark.slow
async def test_a_delivery_tells_the_same_of_its_record_at_every_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "HOLD_S", 0.1)  # the second attempt by the lock, the third by the retry topic
    told: list[tuple[Any, ...]] = []

    async def work(value: bytes, delivery: fs.Delivery) -> None:
        told.append(
            (
                delivery.attempt,
                (delivery.topic, delivery.partition, delivery.offset, delivery.id),
                (delivery.key, delivery.value, delivery.headers, delivery.timestamp),
            )
        )
        if delivery.attempt < 3:
            raise ConnectionError("down")

    def later(attempt: int) -> float:
        return 0.05 if attempt == 1 else 0.3

    async with place.running(place.agent(work, retry=fs.Retry(3, delay=later))) as [worker]:
        sent = [
            Message(b"%d" % n, key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000.123)
            for n in (0, 1)
        ]
        await worker.send(place.topic, *sent)
        await worker.ended(2)
        topic_id = (await worker.ask(lambda admin: admin.describe_topic(place.topic))).topic_id

    for offset in (0, 1):
        of_one = [one for one in told if one[1][2] == offset]
        assert [attempt for attempt, _, _ in of_one] == [1, 2, 3]
        assert {where for _, where, _ in of_one} == {(place.topic, 0, offset, f"{topic_id}:0:{offset}")}
        assert {what for _, _, what in of_one} == {
            (b"k", b"%d" % offset, (("h", b"1"), ("h", None)), 1_700_000_000.123)
        }


@pytest.mark.slow
async def test_a_long_delay_waits_where_the_backend_can_keep_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "HOLD_S", 0.1)
    attempts: list[int] = []

    async def later(value: bytes, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise fs.Release(delay=0.5)
        raise fs.Reject("enough")

    async with place.running(place.agent(later)) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)
        waited = await worker.read(f"{place.group}.retry")
        [letter] = await worker.dead()

    assert attempts == [1, 2]
    assert outcomes == ["released", "dead_lettered"]
    assert values(waited) == ([] if place.capabilities.delayed_release else [b"x"])
    told = headers(letter, "flowshare.dlq.")
    assert (told["topic"], told["offset"], told["attempts"]) == (place.topic.encode(), b"0", b"2")
    assert not headers(letter, "flowshare.retry.")


async def test_a_batch_is_handed_over_full_or_when_its_time_is_up(place: Place) -> None:
    batches: list[list[int]] = []

    async def work(rows: fs.Records[int]) -> None:
        batches.append([row.value for row in rows])

    agent = place.agent(work, batch=fs.Batch(4, within=0.2), concurrency=1)
    async with place.running(agent) as [worker]:
        await worker.send(place.topic, *(b"%d" % n for n in range(10)))
        await worker.ended(10)

    assert [n for batch in batches for n in batch] == list(range(10))
    assert max(map(len, batches)) <= 4


async def test_records_of_a_batch_end_each_in_its_own_way(place: Place) -> None:
    async def work(rows: fs.Records[int]) -> None:
        for row in rows:
            if row.delivery.attempt > 1:
                continue
            if row.value == 1:
                rows.reject(row, "one")
            elif row.value == 2:
                rows.release(row, delay=0.05)
            elif row.value == 3:
                rows.retry(row, ConnectionError("three"))

    agent = place.agent(work, batch=fs.Batch(10, within=0.1), retry=fs.Retry(delay=0.05))
    async with place.running(agent) as [worker]:
        await worker.send(place.topic, *(b"%d" % n for n in range(5)))
        outcomes = await worker.ended(5)
        [letter] = await worker.dead()

    assert sorted(outcomes) == ["accepted"] * 4 + ["dead_lettered", "released", "retried"]
    assert (letter.value, headers(letter)["flowshare.dlq.reason"]) == (b"1", b"one")


async def test_a_batch_that_raises_is_tried_again_as_a_whole(place: Place) -> None:
    attempts: list[int] = []

    def work(rows: fs.Records[bytes]) -> None:
        attempts.extend(row.delivery.attempt for row in rows)
        if rows[0].delivery.attempt == 1:
            raise ConnectionError("down")

    agent = place.agent(work, batch=fs.Batch(3, within=5), retry=fs.Retry(delay=0.05))
    async with place.running(agent) as [worker]:
        await worker.send(place.topic, b"a", b"b", b"c")
        outcomes = await worker.ended(3)

    assert sorted(outcomes) == ["accepted"] * 3 + ["retried"] * 3
    assert attempts == [1, 1, 1, 2, 2, 2]


async def test_several_agents_on_one_topic_get_every_record_each(place: Place) -> None:
    app = place.app()
    got: dict[str, list[bytes]] = {"first": [], "second": []}

    @app.share_agent(place.topic)
    async def first(value: bytes) -> None:
        got["first"].append(value)

    @app.share_agent(place.topic)
    async def second(value: bytes) -> None:
        got["second"].append(value)

    async with place.running(app) as [worker]:
        await worker.send(place.topic, b"a", b"b")
        await asyncio.gather(worker.ended(2, "first"), worker.ended(2, "second"))

    assert {name: sorted(of_one) for name, of_one in got.items()} == {name: [b"a", b"b"] for name in got}


async def test_one_agent_reads_several_topics(place: Place) -> None:
    app = place.app()
    got: set[tuple[str, bytes]] = set()
    topics = [place.unique("left"), place.unique("right")]

    @app.share_agent(*topics, name="work")
    async def work(value: bytes, delivery: fs.Delivery) -> None:
        got.add((delivery.topic, value))

    async with place.running(app) as [worker]:
        for topic in topics:
            await worker.send(topic, topic.encode())
        await worker.ended(2)

    assert got == {(topic, topic.encode()) for topic in topics}


@pytest.mark.slow
async def test_a_rate_limit_is_no_reason_to_lose_anything(place: Place) -> None:
    got: list[bytes] = []

    async def work(value: bytes) -> None:
        got.append(value)

    async with place.running(place.agent(work, rate_limit="200/s")) as [worker]:
        await worker.send(place.topic, *(b"%d" % n for n in range(60)))
        await until(lambda: len(got) >= 60)
        outcomes = await worker.ended(60)

    assert outcomes == ["accepted"] * 60
    assert sorted(map(int, got)) == list(range(60))
