"""Tests of the fences of cooperative agents: each delivery names the claim that it belongs to."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.cooperative.member import CooperativeFeed
from flowshare.client.cooperative.partitions import Partition
from flowshare.client.cooperative.scan import KeyScan, Progress
from flowshare.client.session.ranges import AckResult
from flowshare.cooperative.types import HASHES, WHOLE
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AcknowledgeType, AckRange
from flowshare.testing.clock import ManualClock

HALF = HASHES // 2
PLAN: Any = SimpleNamespace(records_max=10, heads=0, chain=1, max_wait_s=1.0)


async def nobody() -> Any:
    raise ConnectionRefusedError


def offsets(part: Any) -> list[int]:
    return [offset for first, last, _ in part.acquired for offset in range(first, last + 1)]


def fences(found: list[Any]) -> list[tuple[int, int, int]]:
    """Of each record: epoch, serial number and offset, in the order of the fences."""
    return sorted((part.fence[0], offset + part.fence[1], offset) for part in found for offset in offsets(part))


class Feeding:
    """A member that reaches nobody, and what it was told that it holds of one partition."""

    def __init__(self) -> None:
        app = fs.App("shop")

        @app.cooperative_agent("orders")
        async def bill(value: bytes) -> None:
            """Never called."""

        self.clock = ManualClock()
        self.feed = CooperativeFeed(nobody, bill, clock=self.clock)
        self.scan: KeyScan[Any] = KeyScan()
        self.scan.set_target(WHOLE)
        self.partition = Partition(("orders", 0), uuid.UUID(int=1), self.scan)
        self.partition.lease_end_s = self.clock.monotonic() + 60.0
        self.feed._member.partitions.add(self.partition)

    async def take(self) -> list[Any]:
        """Ask the feed once, wait, and return the fetched records."""
        arrived = asyncio.Event()
        self.feed.on_fetched(arrived.set)
        self.feed.ask(PLAN)
        await arrived.wait()
        self.feed.on_fetched(None)
        return self.feed.take_fetched()

    def give_back(self, *found: int) -> None:
        """The feed has given these offsets up."""
        self.feed.given_up(TopicPartition(*self.partition.key), found)


@pytest.mark.asyncio
async def test_records_of_claims_of_different_epochs_come_apart_each_with_its_own() -> None:
    one = Feeding()
    one.scan.held([(0, HALF, 3), (HALF, HASHES, 7)], Progress(0, 1, 0, 0), ())
    one.scan.scanned(0, 4, [(0, 1, "a"), (1, HALF, "b"), (2, 2, "c"), (3, HALF + 1, "d")])

    found = await one.take()

    assert {part.fence[0]: offsets(part) for part in found} == {3: [0, 2], 7: [1, 3]}


@pytest.mark.asyncio
async def test_each_repeat_of_a_delivery_has_a_higher_fence_under_the_same_claim_too() -> None:
    one = Feeding()
    one.scan.held([(0, HASHES, 3)], Progress(0, 1, 0, 0), ())
    one.scan.scanned(0, 5, [(offset, offset % 2, "x") for offset in range(5)])
    told = list[tuple[int, int, int]]()
    for again in (0, 1, 0, 0, 1):
        told += fences(await one.take())
        one.give_back(again)
    told += fences(await one.take())

    serials = [serial for _, serial, _ in told]
    assert serials == sorted(set(serials))
    assert [offset for *_, offset in told] == [0, 1, 0, 1, 0, 0, 1]


@pytest.mark.asyncio
async def test_what_begins_again_after_a_lost_lease_has_a_higher_fence_though_nobody_else_had_the_keys() -> None:
    one = Feeding()
    one.scan.held([(0, HASHES, 3)], Progress(0, 1, 0, 0), ())
    one.scan.scanned(0, 2, [(0, 1, "x"), (1, 2, "y")])
    before = fences(await one.take())
    one.scan.lose()
    one.scan.held([(0, HASHES, 3)], Progress(0, 1, 0, 0), ())
    one.scan.set_target(WHOLE)
    one.scan.scanned(0, 2, [(0, 1, "x"), (1, 2, "y")])

    after = fences(await one.take())

    assert min(after) > max(before)


@pytest.mark.asyncio
async def test_what_was_finished_and_whose_keys_are_lost_unanswered_is_not_said_to_be_committed() -> None:
    one = Feeding()
    one.scan.held([(0, HALF, 3), (HALF, HASHES, 7)], Progress(0, 1, 0, 0), ())
    one.scan.scanned(0, 2, [(0, 1, "a"), (1, HALF, "b")])
    await one.take()
    tp, told = TopicPartition(*one.partition.key), list[AckResult]()
    one.feed.begin_acknowledge({tp: (AckRange(0, 1, bytes([AcknowledgeType.ACCEPT])),)}, told.extend)
    batch = one.scan.commit()
    assert batch is not None
    progress = Progress(0, 1, 0, 0)
    one.feed._member.partitions.lost(one.partition, one.scan.held([(0, HALF, 3)], progress, None))
    assert not told
    one.scan.committed(batch, progress, [1])
    one.feed._member.partitions.changed()
    (result,) = told
    assert result.error is ErrorCode.NONE
    assert (result.refused, result.refusal) == (((1, 1),), ErrorCode.NETWORK_EXCEPTION)
    assert "outcome unknown" in str(result.message)
