"""What a delivery of a cooperative agent says of the claim that it is under."""

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
from flowshare.cooperative.types import HASHES, WHOLE
from flowshare.testing.clock import ManualClock

HALF = HASHES // 2
PLAN: Any = SimpleNamespace(records_max=10, heads=0, chain=1, max_wait_s=1.0)


async def nobody() -> Any:
    raise ConnectionRefusedError


@pytest.mark.asyncio
async def test_records_of_claims_of_different_epochs_come_apart_each_with_its_own() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders")
    async def bill(value: bytes) -> None:
        """Never called."""

    clock = ManualClock()
    feed = CooperativeFeed(nobody, bill, clock=clock)
    scan: KeyScan[Any] = KeyScan()
    scan.set_target(WHOLE)
    scan.held([(0, HALF, 3), (HALF, HASHES, 7)], Progress(0, 1, 0, 0), ())
    scan.scanned(0, 4, [(0, 1, "a"), (1, HALF, "b"), (2, 2, "c"), (3, HALF + 1, "d")])
    partition = Partition(("orders", 0), uuid.UUID(int=1), scan)
    partition.lease_end_s = clock.monotonic() + 60.0
    feed._member.partitions.add(partition)

    arrived = asyncio.Event()
    feed.on_fetched(arrived.set)
    feed.ask(PLAN)
    await arrived.wait()
    found = feed.take_fetched()

    told = {
        part.fence: [offset for first, last, _ in part.acquired for offset in range(first, last + 1)] for part in found
    }
    assert told == {(3, 0): [0, 2], (7, 0): [1, 3]}
