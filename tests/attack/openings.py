"""Attacks with input that a server must open or match itself: batches of very many records for groups with an order,
patterns of topics with large programs."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import suppress
from datetime import timedelta
from functools import cache
from types import SimpleNamespace as Part
from typing import Any

from flowshare.clock import LoopClock
from flowshare.protocol.batches import BatchBuilder
from tests.attack.answers import MIB, WITHIN_S, Line

GONE = (OSError, asyncio.IncompleteReadError, TimeoutError)
CROWDED, NAMED = "crowded", "named-"
SIZES = (65_000, 300_000, 1_000_000)
CLOCK = LoopClock()


@cache
def crowd(count: int) -> bytes:
    """A batch of so many records with nothing but keys of a letter, compressed."""
    builder = BatchBuilder(size_max=1 << 30, compression="zstd")
    for number in range(min(count, 65_000)):
        builder.add(b"%c" % (97 + number % 26), b"", timestamp_ms=CLOCK.now_ms())
    if count > 65_000:
        builder.add_values([b""] * (count - 65_000), 0, timestamp_ms=CLOCK.now_ms())
    return builder.build()


async def topics(line: Line, names: list[str]) -> None:
    """Make topics that are not there."""
    made = [Part(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in names]
    await line.ask("create_topics", 5, topics=made, timeout=timedelta(seconds=30), validate_only=False)


async def crowds_in_order(host: str, port: int) -> int:
    """A new group with an order over batches of up to a million records; how many of its fetches were answered."""
    line, answered, name = await Line.to(host, port), 0, f"{CROWDED}-{uuid.uuid4()}"
    with suppress(*GONE):
        async with asyncio.timeout(WITHIN_S):
            await topics(line, [name])
            for size in SIZES:
                data = Part(name=name, partition_data=[Part(index=0, records=crowd(size))])
                await line.ask(
                    "produce", 7, transactional_id=None, acks=-1, timeout=timedelta(seconds=30), topic_data=[data]
                )
            configs = [
                Part(name="share.key.order", config_operation=0, value="key"),
                Part(name="share.auto.offset.reset", config_operation=0, value="earliest"),
            ]
            group = Part(resource_type=32, resource_name=name, configs=configs)
            await line.ask("incremental_alter_configs", 1, resources=[group], validate_only=False)
            told = await line.ask("metadata", 12, **_metadata(name))
            topic_id, member = told.topics[0].topic_id, str(uuid.uuid4())
            beat = {"group_id": name, "member_id": member, "member_epoch": 0, "rack_id": None}
            await line.ask("share_group_heartbeat", 1, **beat, subscribed_topic_names=[name])
            for epoch in range(4):
                await line.ask("share_fetch", 1, **_fetch(name, member, topic_id, epoch))
                answered += 1
    line.close()
    return answered


def _metadata(name: str) -> dict[str, Any]:
    return {
        "topics": [Part(topic_id=uuid.UUID(int=0), name=name)],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


def _fetch(group: str, member: str, topic_id: uuid.UUID, epoch: int) -> dict[str, Any]:
    part = Part(partition_index=0, partition_max_bytes=MIB, acknowledgement_batches=[])
    return {
        "group_id": group,
        "member_id": member,
        "share_session_epoch": epoch,
        "max_wait": timedelta(milliseconds=100),
        "min_bytes": 1,
        "max_bytes": MIB,
        "max_records": 500,
        "batch_size": 500,
        "topics": [Part(topic_id=topic_id, partitions=[part])],
        "forgotten_topics_data": [],
    }


async def large_patterns(host: str, port: int, *, names: int = 200, count: int = 8) -> int:
    """Patterns of topics as dear as they may be, each another one, over many long names; how many were answered."""
    line, answered = await Line.to(host, port), 0
    with suppress(*GONE):
        async with asyncio.timeout(WITHIN_S):
            await topics(line, [f"{NAMED}{number}-".ljust(249, "a") for number in range(names)])
            for _ in range(count):
                pattern = f"(?:[a-z]?[a-m]?.?){{{random.randrange(200, 320)}}}x{random.randrange(1 << 30)}"
                for told in ("(.?){1000}.{0,999}x", pattern):
                    await line.ask("consumer_group_heartbeat", 1, **_beat(told))
                    answered += 1
    line.close()
    return answered


def _beat(pattern: str) -> dict[str, Any]:
    return {
        "group_id": f"patterns-{uuid.uuid4()}",
        "member_id": str(uuid.uuid4()),
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(seconds=60),
        "subscribed_topic_names": [],
        "subscribed_topic_regex": pattern,
        "server_assignor": None,
        "topic_partitions": [],
    }
