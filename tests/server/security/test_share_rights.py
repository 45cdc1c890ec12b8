"""Tests of the requests that ACLs refuse a member of a share group (SG-16.1, SG-16.2), by scenario numbers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from flowshare.protocol.batches import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import module
from flowshare.protocol.messages import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)
from tests.server.security.broker import Secured, Talk, secured
from tests.server.world import EARLIEST

pytestmark = pytest.mark.asyncio

ACLS = """
allow User:alice read topic t1
allow User:alice read group g
allow User:bob read topic t1
allow User:bob describe group g
"""


def wanted(side: str, *topics: UUID, types: tuple[int, ...] = ()):
    """Partition 0 of topics, with an acknowledgement of offset 0."""
    made = module(f"share_{side}", 2, "request")
    batch = made.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=types)
    partition = "FetchPartition" if side == "fetch" else "AcknowledgePartition"
    topic = "FetchTopic" if side == "fetch" else "AcknowledgeTopic"
    return tuple(
        getattr(made, topic)(
            topic_id=topic_id,
            partitions=(
                getattr(made, partition)(partition_index=0, acknowledgement_batches=(batch,) if types else ()),
            ),
        )
        for topic_id in topics
    )


async def fetch(talk: Talk, *topics: UUID, group: str = "g", epoch: int = 0):
    """ShareFetch v2, waiting for nothing."""
    return await talk.ask(
        "share_fetch",
        2,
        group_id=group,
        member_id="m1",
        share_session_epoch=epoch,
        max_wait=timedelta(),
        min_bytes=0,
        max_bytes=1 << 20,
        max_records=500,
        batch_size=500,
        share_acquire_mode=0,
        is_renew_ack=False,
        topics=wanted("fetch", *topics),
        forgotten_topics_data=(),
    )


async def acknowledge(talk: Talk, *topics: UUID, epoch: int = 1, types: tuple[int, ...] = (1,)):
    """ShareAcknowledge v2 of offset 0."""
    return await talk.ask(
        "share_acknowledge",
        2,
        group_id="g",
        member_id="m1",
        share_session_epoch=epoch,
        is_renew_ack=False,
        topics=wanted("acknowledge", *topics, types=types),
    )


async def heartbeat(talk: Talk, *topics: str):
    """A member joins."""
    return await talk.ask(
        "share_group_heartbeat",
        1,
        group_id="g",
        member_id="m1",
        member_epoch=0,
        rack_id=None,
        subscribed_topic_names=topics,
    )


def code(answer) -> ErrorCode:
    return ErrorCode(int(answer.error_code))


def codes(answer) -> dict[UUID, ErrorCode]:
    """By topic, of partition 0."""
    return {topic.topic_id: code(topic.partitions[0]) for topic in answer.responses}


async def start_at_the_beginning(broker: Secured) -> None:
    connection = broker.server.connect(client_id="test")
    await connection.send(IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=EARLIEST))
    await connection.close()


async def test_v06_without_read_on_the_group_nothing_is_fetched_or_acknowledged(tmp_path: Path) -> None:
    async with secured(tmp_path, acls=ACLS) as broker:
        t1 = await broker.topic("t1", 3)
        talk = await broker.as_user("bob", "builder")

        for answer in (await fetch(talk, t1), await acknowledge(talk, t1)):
            assert code(answer) is ErrorCode.GROUP_AUTHORIZATION_FAILED
            assert answer.acquisition_lock_timeout == timedelta()
            assert not answer.responses
        assert code(await heartbeat(talk, "t1")) is ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_v07_topics_that_may_be_read_are_fetched_beside_others(tmp_path: Path) -> None:
    async with secured(tmp_path, acls=ACLS) as broker:
        t1, t2 = await broker.topic("t1", 3), await broker.topic("t2", 3)
        await start_at_the_beginning(broker)
        talk = await broker.as_user("alice", "wonder land")

        answer = await fetch(talk, t1, t2)

        assert code(answer) is ErrorCode.NONE
        assert codes(answer) == {t1: ErrorCode.NONE, t2: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        acquired = {topic.topic_id: topic.partitions[0].acquired_records for topic in answer.responses}
        assert [(one.first_offset, one.last_offset) for one in acquired[t1]] == [(0, 2)]
        assert not acquired[t2]

        answer = await acknowledge(talk, t1, t2)
        assert codes(answer) == {t1: ErrorCode.NONE, t2: ErrorCode.TOPIC_AUTHORIZATION_FAILED}


async def test_a_member_may_subscribe_to_what_it_may_describe(tmp_path: Path) -> None:
    async with secured(tmp_path, acls=ACLS) as broker:
        await broker.topic("t1")
        await broker.topic("t2")
        talk = await broker.as_user("alice", "wonder land")

        assert code(await heartbeat(talk, "t1", "t2")) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert code(await heartbeat(talk, "t1")) is ErrorCode.NONE


async def test_v03_a_partition_that_is_led_elsewhere_comes_with_where(tmp_path: Path) -> None:
    """A broker by itself leads everything; what a server knows of another leader has to reach the client."""

    async def elsewhere(request: ShareFetchRequest, connection: object) -> ShareFetchResponse:
        del connection
        (wanted,) = request.partitions
        partition = FetchedPartition(
            topic_id=wanted.topic_id, partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(2, 5)
        )
        return ShareFetchResponse(
            lock_timeout_ms=30_000, partitions=(partition,), node_endpoints={2: ("other.example", 9093)}
        )

    async with secured(tmp_path) as broker:
        t1 = await broker.topic("t1")
        broker.server._handlers[ShareFetchRequest] = elsewhere
        answer = await fetch(await broker.as_user(), t1)

    ((topic,), (endpoint,)) = answer.responses, answer.node_endpoints
    leader = topic.partitions[0].current_leader
    assert codes(answer) == {t1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert (leader.leader_id, leader.leader_epoch) == (2, 5)
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "other.example", 9093)
    assert answer.acquisition_lock_timeout == timedelta(seconds=30)


DEAD_LETTER_ACLS = (
    ACLS
    + """
allow User:bob alter_configs group g
allow User:bob write topic dlq.bob
deny User:bob read topic t1
"""
)


async def test_who_may_not_read_a_topic_gets_nothing_of_it_by_a_groups_dead_letters(tmp_path: Path) -> None:
    settings = {"errors.deadletterqueue.topic.name": "dlq.bob", "errors.deadletterqueue.copy.record.enable": "true"}
    async with secured(tmp_path, acls=DEAD_LETTER_ACLS) as broker:
        t1, _ = await broker.topic("t1", 1), await broker.topic("dlq.bob")
        await start_at_the_beginning(broker)
        bob = await broker.as_user("bob", "builder")
        made = module("incremental_alter_configs", 1, "request")
        configs = tuple(
            made.AlterableConfig(name=name, config_operation=0, value=value) for name, value in settings.items()
        )
        group = made.AlterConfigsResource(resource_type=32, resource_name="g", configs=configs)
        answer = await bob.ask("incremental_alter_configs", 1, resources=(group,), validate_only=False)
        assert code(answer.responses[0]) is ErrorCode.NONE

        alice = await broker.as_user("alice", "wonder land")
        await fetch(alice, t1)
        assert codes(await acknowledge(alice, t1, types=(3,))) == {t1: ErrorCode.NONE}

        connection = broker.server.connect(client_id="test")
        wanted_ = FetchRequest(partitions=(FetchPartition("dlq.bob", 0, 0),), max_wait_ms=10_000, min_bytes=1)
        (log,) = (await connection.send(wanted_)).partitions
        (letter,) = decode_all(log.records)
        assert (letter.key, letter.value) == (None, None)
