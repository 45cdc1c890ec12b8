"""kill -9 of backend, server and members at random moments: what an accept confirmed stays, everything else comes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    Connection,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    SharePartitionRequest,
    TopicPartition,
)
from flowshare.share.types import AcknowledgeType, AckRange
from tests.killing import said_until_killed
from tests.server.crasher import ACCEPT, GROUP, main

KILLS = 10


class History:
    """The killed processes' reports, and the known deliveries of each record."""

    def __init__(self) -> None:
        self.tried: set[int] = set()
        self.accepted: set[int] = set()
        self.produced: set[int] = set()
        self.deliveries: dict[int, int] = {}

    def take(self, line: str) -> None:
        kind, first, last, *count = line.split()
        offsets = range(int(first), int(last) + 1)
        match kind:
            case "q":
                self.deliveries.update(dict.fromkeys(offsets, int(count[0])))
            case "t":
                self.tried.update(offsets)
            case "a":
                self.accepted.update(offsets)
            case "p":
                self.produced.update(offsets)
            case _:
                raise AssertionError(line)

    def check(self, end: int, delivered: dict[int, int]) -> None:
        assert self.produced <= set(range(end))
        assert not self.accepted & delivered.keys(), "a confirmed accept came again"
        gone = set(range(end)) - delivered.keys()
        assert gone <= self.tried, "a record was skipped"
        for offset, count in delivered.items():
            # One acquire may have been made durable that the process could not tell of any more.
            assert count - self.deliveries.get(offset, 0) in (1, 2), (offset, count, self.deliveries.get(offset, 0))
            self.deliveries[offset] = count - 1  # it is given back unrun


class Look:
    """Takes everything there is, as member after member: what a dead process held twice comes alone (quarantine)."""

    def __init__(self, connection: Connection, at: TopicPartition) -> None:
        self.connection = connection
        self.at = at
        self.delivered: dict[int, int] = {}
        self.holders: list[tuple[str, int, list[tuple[int, int]]]] = []

    async def take_all(self) -> None:
        while held := await self.take(f"look-{len(self.holders)}"):
            for first, last, count in held:
                assert self.delivered.keys().isdisjoint(range(first, last + 1))
                self.delivered.update(dict.fromkeys(range(first, last + 1), count))

    async def take(self, member_id: str) -> list[tuple[int, int, int]]:
        held: list[tuple[int, int, int]] = []
        for epoch in range(1_000):
            request = ShareFetchRequest(
                group_id=GROUP,
                member_id=member_id,
                session_epoch=epoch,
                max_wait_ms=0,
                max_records=100_000,
                max_bytes=0,
                partitions=() if epoch else (SharePartitionRequest(*self.at),),
            )
            answer = await self.connection.send(request)
            assert answer.error is ErrorCode.NONE, answer.message
            found = [tuple(taken) for part in answer.partitions for taken in part.acquired]
            if not found:
                self.holders.append((member_id, epoch + 1, [(first, last) for first, last, _ in held]))
                return held
            held += found
        raise AssertionError("there is no end to it")

    async def give_back(self, **fields) -> None:
        """End what is held and all sessions: unrun, unless `fields` say otherwise."""
        fields = fields or {"types": bytes((AcknowledgeType.RELEASE,)), "unrun": True}
        for member_id, _, held in self.holders:
            acks = tuple(AckRange(first, last, **fields) for first, last in sorted(held))
            answer = await self.connection.send(
                ShareAcknowledgeRequest(
                    group_id=GROUP,
                    member_id=member_id,
                    session_epoch=-1,
                    partitions=(SharePartitionRequest(*self.at, acks),),
                )
            )
            assert [part.error for part in answer.partitions] == [ErrorCode.NONE]


async def look(path: Path, *, finish: bool = False) -> tuple[int, dict[int, int]]:
    """Log end, and everything that is delivered now with its count; given back unrun, or with `finish` accepted."""
    backend = EmbeddedBackend(path)
    await backend.start()
    admin = ShareAdmin(lambda: backend.connect("look"), clock=LoopClock())
    topic_id = (await admin.describe_topic("t")).topic_id
    assert topic_id is not None
    end = (await admin.offsets("t", 0)).high_watermark
    taking = Look(await backend.connect("look"), TopicPartition(topic_id, 0))
    await taking.take_all()
    if finish:
        await taking.give_back(types=ACCEPT)
        (offsets,) = await admin.group_offsets(GROUP)
        assert (offsets.start_offset, offsets.lag) == (end, 0)
    else:
        await taking.give_back()
    await admin.close()
    await backend.close()
    return end, taking.delivered


def kill_repeatedly(path: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    history = History()
    for kill in range(kills):
        for line in said_until_killed(main, path, seed + kill, lines=chance.randint(1, 1_500)):
            history.take(line)
        history.check(*asyncio.run(look(path)))
    assert len(history.accepted) > 100
    end, delivered = asyncio.run(look(path, finish=True))
    history.check(end, delivered)
    assert asyncio.run(look(path)) == (end, {})


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_no_kill_loses_a_record_or_brings_back_an_accepted_one(tmp_path, seed):
    kill_repeatedly(tmp_path / "storage", seed, KILLS)
