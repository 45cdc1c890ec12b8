"""Who takes what is there for all: bytes of requests, connections, share sessions, names, partitions."""

from __future__ import annotations

import asyncio
import struct
import uuid
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace as Part
from typing import Any

from flowshare.protocol.kafka import ApiKey
from tests.attack.answers import KIB, MIB, TOPIC, WITHIN_S, Line

GONE = (OSError, asyncio.IncompleteReadError, TimeoutError, struct.error)
AT_ONCE = 100
"""Requests on their way to the server."""


async def _lines(host: str, port: int, count: int) -> list[Line]:
    """Connections, as many as can be had."""
    made = await asyncio.gather(*(Line.to(host, port) for _ in range(count)), return_exceptions=True)
    return [line for line in made if isinstance(line, Line)]


async def unfinished_requests(
    host: str, port: int, *, count: int = 300, size: int = MIB, seconds: float = 5.0, trickle: int = 1
) -> int:
    """Produce requests over `count` connections of which all but a part of `size` bytes comes, and then `trickle`
    bytes now and again; how many connections were left at the end.
    """
    lines = await _lines(host, port, count)
    start = struct.pack(">ihh", size + 64 * KIB, ApiKey.PRODUCE, 7) + bytes(size)
    for line in lines:
        line.writer.write(start)
    for _ in range(int(seconds * 5)):
        await asyncio.sleep(0.2)
        for line in lines:
            if not line.writer.transport.is_closing():
                line.writer.write(bytes(trickle))
    left = sum(not line.writer.transport.is_closing() for line in lines)
    for line in lines:
        line.close()
    return left


async def all_connections(host: str, port: int, *, count: int = 2_100, seconds: float = 3.0) -> int:
    """Connections of one address that say nothing; how many there were."""
    lines = await _lines(host, port, count)
    await asyncio.sleep(seconds)
    for line in lines:
        line.close()
    return len(lines)


async def all_share_sessions(host: str, port: int, *, count: int = 2_100, seconds: float = 1.0) -> int:
    """Share sessions over one connection; how many were opened."""
    line, opened = await Line.to(host, port), 0
    with suppress(*GONE):
        async with asyncio.timeout(WITHIN_S):
            beat = {"group_id": "taken", "member_id": str(uuid.uuid4()), "member_epoch": 0, "rack_id": None}
            await line.ask("share_group_heartbeat", 1, **beat, subscribed_topic_names=[TOPIC])
            for _ in range(count):
                told = await line.ask("share_fetch", 1, **_opening("taken"))
                opened += not int(told.error_code)
            await asyncio.sleep(seconds)
    line.close()
    return opened


def _opening(group_id: str) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "member_id": str(uuid.uuid4()),
        "share_session_epoch": 0,
        "max_wait": timedelta(0),
        "min_bytes": 0,
        "max_bytes": 0,
        "max_records": 0,
        "batch_size": 0,
        "topics": [],
        "forgotten_topics_data": [],
    }


async def all_names(host: str, port: int, *, count: int = 10_000) -> int:
    """Consumer groups, share groups and transactional ids, so many of each; how many requests were answered."""
    line, answered = await Line.to(host, port), 0
    offset = Part(partition_index=0, committed_offset=0, committed_metadata="")
    commit = {
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": timedelta(milliseconds=-1),
        "topics": [Part(name=TOPIC, partitions=[offset])],
    }
    with suppress(*GONE):
        async with asyncio.timeout(WITHIN_S):
            for number in range(count):
                name = f"mine-{number}"
                line.tell("offset_commit", 2, group_id=name, **commit)
                timeout = timedelta(seconds=60)
                line.tell("init_producer_id", 1, transactional_id=name, transaction_timeout=timeout)
                beat = {"group_id": f"share-{name}", "member_id": str(uuid.uuid4()), "member_epoch": 0}
                line.tell("share_group_heartbeat", 1, **beat, rack_id=None, subscribed_topic_names=[TOPIC])
                while line.sent - answered > AT_ONCE:
                    await line.frame()
                    answered += 1
            while answered < line.sent:
                await line.frame()
                answered += 1
    line.close()
    return answered


async def many_partitions(host: str, port: int, *, topics: int = 10, partitions: int = 10_000) -> int:
    """So many partitions by one request, and more to the topics that there are by another; how many were made."""
    line, made = await Line.to(host, port), 0
    names = [f"wide-{uuid.uuid4()}" for _ in range(topics)]
    with suppress(*GONE):
        async with asyncio.timeout(WITHIN_S):
            wide = [
                Part(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
                for name in names
            ]
            told = await line.ask(
                "create_topics", 5, topics=wide, timeout=timedelta(seconds=WITHIN_S), validate_only=False
            )
            made += sum(partitions for topic in told.topics if not int(topic.error_code))
            wide = [
                Part(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
                for name in (f"{name}-b" for name in names)
            ]
            await line.ask("create_topics", 5, topics=wide, timeout=timedelta(seconds=WITHIN_S), validate_only=False)
            more = [Part(name=topic.name, count=partitions, assignments=None) for topic in wide]
            told = await line.ask(
                "create_partitions", 1, topics=more, timeout=timedelta(seconds=WITHIN_S), validate_only=False
            )
            made += sum(partitions for topic in told.results if not int(topic.error_code))
    line.close()
    return made
