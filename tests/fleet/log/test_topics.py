"""Topics appear, grow, go and come back as others; a worker hears of it."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from flowshare.client.errors import Unsupported
from flowshare.fleet.log.settings import LogSettings
from flowshare.log.base import StorageError, UnknownTopic
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import LogBatch
from tests.fleet.log.faulty import LyingKafka
from tests.fleet.log.worlds import scenario, world


@scenario
async def test_a_topic_that_is_looked_for_is_looked_up():
    async with world() as w:
        told = []
        w.log.on_topics(told.append)
        await w.topic()
        assert "orders" not in w.log.topics()

        await w.until(lambda: "orders" in w.log.topics(), limit_s=0.5)

        assert told == [frozenset({"orders"})]
        assert w.log.topics()["orders"].partitions == 1
        assert list(w.log.topics()) == ["orders"]
        assert len(w.log.topics()) == 1
        with pytest.raises(KeyError):
            w.log.topics()["payments"]


@scenario
async def test_a_topic_that_comes_later_is_heard_of():
    async with world() as w:
        assert w.log.topics().get("orders") is None
        await w.passes(20)
        await w.topic()
        await w.until(lambda: "orders" in w.log.topics(), limit_s=6)


@scenario
async def test_a_name_that_no_topic_can_have_is_not_asked_for():
    async with world() as w:
        before = w.kafka.asked[m.MetadataRequest]
        for name in ("", "a b", "x" * 300, ".."):
            assert name not in w.log.topics()
        await w.passes(10)

        assert w.kafka.asked[m.MetadataRequest] == before


@scenario
async def test_names_that_are_asked_for_are_bounded():
    async with world(LogSettings(topics_max=10)) as w:
        await w.topic()
        await w.log.refresh(["orders"])
        for number in range(100):
            assert w.log.topics().get(f"none-{number}") is None
        await w.passes(6)

        assert len(w.log._topics._wanted) == 10
        assert "orders" in w.log.topics()


@scenario
async def test_topics_are_found_by_their_ids():
    async with world() as w:
        topic = await w.topic()
        await w.log.refresh(ids=[topic.topic_id, uuid.uuid4()])

        assert w.log.topics()["orders"].topic_id == topic.topic_id


@scenario
async def test_brokers_that_cannot_be_asked_by_id_are_asked_for_all():
    async with world(kafka=LyingKafka) as w:
        topic = await w.topic()
        await w.topic("payments")

        def refuse(answer):
            if len(answer.topics) == 1:
                raise Unsupported("Metadata by id needs version 12")
            return answer

        w.kafka.topics = refuse
        await w.log.refresh(ids=[topic.topic_id])

        assert list(w.log.topics()) == ["orders"]


@scenario
async def test_a_grown_topic_has_more_partitions_to_follow():
    async with world() as w:
        told = []
        await w.topic()
        await w.log.follow("orders", 0)
        w.log.on_topics(told.append)

        await w.kafka.storage.create_partitions("orders", 3)
        await w.log.follow("orders", 2)

        assert told == [frozenset({"orders"})]
        assert w.log.topics()["orders"].partitions == 3


@scenario
async def test_a_topic_is_gone_when_two_looks_do_not_find_it():
    async with world() as w:
        await w.topic()
        await w.log.follow("orders", 0)
        told = []
        w.log.on_topics(told.append)
        await w.kafka.storage.delete_topic("orders")

        await w.until(lambda: told, limit_s=8)

        assert "orders" not in w.log.topics()
        with pytest.raises(UnknownTopic):
            w.log.offsets("orders", 0)
        with pytest.raises(UnknownTopic):
            await w.log.read("orders", 0, 0, max_bytes=1)


@scenario
async def test_a_topic_that_one_look_does_not_find_stays():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        await w.log.follow("orders", 0)
        told = []
        w.log.on_topics(told.append)
        absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        def forgetful(answer):
            w.kafka.topics = lambda later: later
            return replace(answer, topics=tuple(replace(one, error=absent, topic_id=None) for one in answer.topics))

        w.kafka.topics = forgetful
        await w.log.refresh(["orders"])
        assert "orders" in w.log.topics()
        await w.passes(30)

        assert told == []
        await w.produce(b"x")
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 1)


@scenario
async def test_a_topic_made_anew_is_read_from_its_own_start():
    async with world() as w:
        told = []
        old = await w.topic()
        await w.fill(5)
        await w.log.follow("orders", 0)
        await w.log.follow("orders", 0)
        await w.read_all()
        w.log.on_topics(lambda names: told.append((names, w.log.topics()["orders"].topic_id)))
        await w.kafka.storage.delete_topic("orders")
        new = await w.topic()
        await w.produce(b"new")

        await w.until(lambda: told, limit_s=8)
        await w.until(lambda: w.log._registry.find("orders", 0).known)

        assert told == [(frozenset({"orders"}), new.topic_id)]
        assert old.topic_id != new.topic_id
        assert w.log.offsets("orders", 0).high_watermark == 1
        assert await w.read_all() == [LogBatch(0, 0)]
        await w.produce(b"more")
        await w.passes(0.01)
        assert await w.read_all(1) == [LogBatch(1, 1)]
        w.log.unfollow("orders", 0)
        assert w.log.offsets("orders", 0).high_watermark == 2, "two follow it, whichever topic it is"


@scenario
async def test_an_id_that_was_replaced_never_comes_back():
    async with world(kafka=LyingKafka) as w:
        old = await w.topic()
        await w.log.refresh(["orders"])
        await w.kafka.storage.delete_topic("orders")
        new = await w.topic()
        await w.log.refresh(["orders"])
        assert w.log.topics()["orders"].topic_id == new.topic_id

        w.kafka.topics = lambda answer: replace(
            answer, topics=tuple(replace(one, topic_id=old.topic_id) for one in answer.topics)
        )
        await w.passes(20)

        assert w.log.topics()["orders"].topic_id == new.topic_id


@scenario
async def test_a_topic_that_comes_back_is_read_by_those_who_followed_it():
    async with world() as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.kafka.storage.delete_topic("orders")
        await w.until(lambda: "orders" not in w.log.topics(), limit_s=8)
        await w.passes(10)

        await w.topic()
        await w.produce(b"x")
        await w.until(lambda: w.log._registry.find("orders", 0).known, limit_s=8)

        assert await w.read_all() == [LogBatch(0, 0)]


@scenario
async def test_a_topic_that_brokers_did_not_know_for_long_is_read_again_by_those_who_followed_it():
    async with world(kafka=LyingKafka) as w:
        topic = await w.topic()
        await w.log.follow("orders", 0)
        absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        w.kafka.topics = lambda answer: replace(
            answer, topics=tuple(replace(one, error=absent, topic_id=None) for one in answer.topics)
        )
        await w.until(lambda: "orders" not in w.log.topics(), limit_s=8)

        w.kafka.topics = lambda answer: answer
        await w.until(lambda: "orders" in w.log.topics(), limit_s=8)
        await w.until(lambda: w.log._registry.find("orders", 0).known, limit_s=1)
        await w.produce(b"x")
        await w.until(lambda: w.log.offsets("orders", 0).high_watermark == 1)

        assert w.log.topics()["orders"].topic_id == topic.topic_id
        assert await w.read_all() == [LogBatch(0, 0)]


@scenario
async def test_an_id_that_was_missing_and_then_replaced_never_comes_back():
    async with world(kafka=LyingKafka) as w:
        old = await w.topic()
        await w.log.refresh(["orders"])
        await w.kafka.storage.delete_topic("orders")
        await w.until(lambda: "orders" not in w.log.topics(), limit_s=8)
        new = await w.topic()
        await w.log.refresh(["orders"])

        w.kafka.topics = lambda answer: replace(
            answer, topics=tuple(replace(one, topic_id=old.topic_id) for one in answer.topics)
        )
        await w.passes(20)

        assert w.log.topics()["orders"].topic_id == new.topic_id


@scenario
async def test_a_leader_that_does_not_know_a_new_topic_yet_is_asked_again():
    async with world() as w:
        await w.topic()
        await w.log.follow("orders", 0)
        await w.kafka.storage.delete_topic("orders")
        new = await w.topic()
        w.kafka.refuse(m.ListOffsetsRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 3)

        await w.until(lambda: w.log.topics()["orders"].topic_id == new.topic_id, limit_s=8)
        await w.until(lambda: w.log._registry.find("orders", 0).known, limit_s=5)


@scenario
async def test_a_topic_that_may_not_be_seen_is_unknown_until_it_may():
    async with world(kafka=LyingKafka) as w:
        await w.topic()
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        w.kafka.topics = lambda answer: replace(
            answer, topics=tuple(replace(one, error=denied, topic_id=None) for one in answer.topics)
        )
        with pytest.raises(UnknownTopic, match="may not see it"):
            await w.log.follow("orders", 0)
        w.kafka.topics = lambda answer: answer
        await w.log.follow("orders", 0)


@scenario
async def test_whether_an_id_is_there_is_asked_twice_and_not_guessed():
    async with world(kafka=LyingKafka) as w:
        topic = await w.topic()
        looks = []

        def first_look_in_vain(answer: m.MetadataResponse) -> m.MetadataResponse:
            looks.append(answer)
            return replace(answer, topics=()) if len(looks) == 1 else answer

        w.kafka.topics = first_look_in_vain
        assert await w.log.exists(topic.topic_id)
        assert w.log.topics()["orders"].topic_id == topic.topic_id
        assert not await w.log.exists(uuid.uuid4())

        await w.kafka.storage.delete_topic("orders")
        await w.topic()
        await w.log.refresh(["orders"])
        w.kafka.topics = lambda answer: replace(
            answer, topics=tuple(replace(one, error=ErrorCode.NONE, topic_id=topic.topic_id) for one in answer.topics)
        )
        assert await w.log.exists(topic.topic_id), "a broker has it, though another one replaced it here"

        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        other = uuid.uuid4()
        w.kafka.topics = lambda answer: replace(
            answer, topics=(m.TopicMetadata(name="", error=denied, topic_id=other),)
        )
        with pytest.raises(StorageError, match="TOPIC_AUTHORIZATION_FAILED"):
            await w.log.exists(other)


@scenario
async def test_a_listener_that_fails_ends_no_look_and_keeps_nothing_from_the_others():
    async with world() as w:
        told = []

        def fail(_):
            raise ValueError("a fault of ours")

        w.log.on_topics(fail)
        w.log.on_topics(told.append)
        await w.topic()
        assert w.log.topics().get("orders") is None
        await w.until(lambda: "orders" in w.log.topics(), limit_s=8)
        await w.topic("payments")
        assert w.log.topics().get("payments") is None

        await w.until(lambda: "payments" in w.log.topics(), limit_s=8)

        assert told == [frozenset({"orders"}), frozenset({"payments"})]


@scenario
async def test_looks_go_on_after_brokers_were_away():
    async with world() as w:
        await w.topic()
        w.kafka.down = True
        await w.kafka.cut()
        with pytest.raises(StorageError):
            await w.log.refresh(["orders"])
        w.kafka.down = False

        await w.until(lambda: "orders" in w.log.topics(), limit_s=8)
        await asyncio.sleep(0)
