"""Requests whose answers are dear: one name many times, answers that nobody reads, long looks one behind the other."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace as Part
from typing import Any

from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.kafka import read_response, write_request
from tests.server.edge.kit import build

WITHIN_S = 60.0
"""An attack gives up then."""
KIB = 1024
MIB = 1024 * KIB
GROUP = "attacked"
TOPIC = "attacked"


class Line:
    """One connection of an attacker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent = 0

    @classmethod
    async def to(cls, host: str, port: int) -> Line:
        """A new connection."""
        return cls(*await asyncio.open_connection(host, port))

    def tell(self, name: str, version: int, /, **values: Any) -> None:
        """Send a request and wait for nothing."""
        self.sent += 1
        self.writer.write(write_request(self.sent, "attacker", build(name, version, **values)))

    async def frame(self) -> bytes:
        """The next answer's bytes."""
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, name: str, version: int, /, **values: Any) -> Any:
        """Send a request and read its answer."""
        self.tell(name, version, **values)
        return read_response(name, version, await self.frame())[1]

    def close(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


async def prepare(host: str, port: int, *, groups: int = 0, records: int = 0) -> None:
    """Create the targets of the attacks: a group with one fat member, a topic with `records` records of 1 MiB, small
    groups."""
    line = await Line.to(host, port)
    topic = Part(name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    await line.ask("create_topics", 5, topics=[topic], timeout=timedelta(seconds=5), validate_only=False)
    for _ in range(records):
        topic = Part(name=TOPIC, partition_data=[Part(index=0, records=_batch(960 * KIB))])
        await line.ask("produce", 7, transactional_id=None, acks=-1, timeout=timedelta(seconds=5), topic_data=[topic])
    await _fat_member(line)
    for number in range(groups):
        line.tell("offset_commit", 2, **_commit(f"small-{number}"))
        if number % 20 == 19:
            for _ in range(20):
                await line.frame()
    line.close()


async def _fat_member(line: Line) -> None:
    joined = await line.ask(
        "join_group",
        1,
        group_id=GROUP,
        session_timeout=timedelta(seconds=300),
        rebalance_timeout=timedelta(seconds=300),
        member_id="",
        protocol_type="consumer",
        protocols=[Part(name="range", metadata=bytes(200 * KIB))],
    )
    await line.ask(
        "sync_group",
        1,
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[Part(member_id=joined.member_id, assignment=bytes(800 * KIB))],
    )


def _commit(group_id: str) -> dict[str, Any]:
    offset = Part(partition_index=0, committed_offset=0, committed_metadata="")
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": timedelta(milliseconds=-1),
        "topics": [Part(name=TOPIC, partitions=[offset])],
    }


def _batch(size: int) -> bytes:
    builder = BatchBuilder()
    builder.add(None, bytes(size), [], timestamp_ms=1_000)
    return builder.build()


REPEATED: dict[str, tuple[int, Any]] = {
    "describe_groups": (5, lambda n: {"groups": [GROUP] * n, "include_authorized_operations": False}),
    "offset_fetch": (
        8,
        lambda n: {"groups": [Part(group_id=f"small-{0}", topics=None)] * n, "require_stable": False},
    ),
    "share_group_describe": (1, lambda n: {"group_ids": [GROUP] * n, "include_authorized_operations": False}),
    "describe_producers": (0, lambda n: {"topics": [Part(name=TOPIC, partition_indexes=[0] * n)]}),
    "describe_configs": (
        4,
        lambda n: {
            "resources": [
                Part(resource_type=2, resource_name=TOPIC, configuration_keys=None if i % 2 else [f"{i}"])
                for i in range(n)
            ],
            "include_synonyms": True,
            "include_documentation": True,
        },
    ),
}


async def repeated_names(host: str, port: int, *, api: str = "describe_groups", count: int = 5_000) -> int:
    """One name `count` times; the answer's bytes, 0: none came."""
    version, fields = REPEATED[api]
    line = await Line.to(host, port)
    line.tell(api, version, **fields(count))
    size = 0
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            (size,) = struct.unpack(">i", await line.reader.readexactly(4))
            left = size
            while left > 0 and (got := await line.reader.read(MIB)):
                left -= len(got)
    line.close()
    return size


async def unread_fetches(host: str, port: int, *, count: int = 32, size: int = 64 * MIB, seconds: float = 5.0) -> int:
    """So many fetches of `size` bytes, one behind the other, none of whose answers is read; how many were sent."""
    line = await Line.to(host, port)
    line.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(count):
        part = Part(partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=size)
        line.tell(
            "fetch",
            11,
            replica_id=-1,
            max_wait=timedelta(milliseconds=500),
            min_bytes=1,
            max_bytes=size,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[Part(topic=TOPIC, partitions=[part])],
            forgotten_topics_data=[],
            rack_id="",
        )
    await asyncio.sleep(seconds)
    line.close()
    return count


async def pipelined_looks(host: str, port: int, *, count: int = 128) -> int:
    """So many ListGroups one behind the other over all the groups there are; how many were answered."""
    line = await Line.to(host, port)
    for _ in range(count):
        line.tell("list_groups", 4, states_filter=[])
    return await _answered(line, count)


async def unknown_settings(host: str, port: int, *, count: int = 128, each: int = 100) -> int:
    """Settings that do not exist, for `each` resources in `count` requests one behind the other; how many were
    answered.
    """
    line = await Line.to(host, port)
    near = "errors.deadletterqueue.topics.name."
    configs = [Part(name=near + "x" * 40, config_operation=0, value="1")]
    for _ in range(count):
        resources = [Part(resource_type=32, resource_name=f"g{one}", configs=configs) for one in range(each)]
        line.tell("incremental_alter_configs", 0, resources=resources, validate_only=True)
    return await _answered(line, count)


async def _answered(line: Line, count: int) -> int:
    answered = 0
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            while answered < count:
                await line.frame()
                answered += 1
    line.close()
    return answered
