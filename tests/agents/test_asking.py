"""Fetches that leave before what the last one brought is read."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.agents.asking import Asker, number_of
from flowshare.client.errors import Closed
from flowshare.client.fetching import Plan
from flowshare.client.ranges import Fetched
from flowshare.clock import LoopClock
from flowshare.share.types import AcquiredRange, AcquireMode
from tests.agents.test_feeder_parts import TP

pytestmark = pytest.mark.asyncio


class Member:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: asyncio.Queue[list[Fetched] | Exception] = asyncio.Queue()

    def ask(self, plan: Plan) -> None:
        self.asked.append(plan.records_max)
        self.bytes_max = plan.bytes_max
        self.mode = plan.mode

    async def fetched(self):
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


def fetched(first: int, last: int, *, size: int = 0) -> Fetched:
    return Fetched("in", TP.topic_id, TP.partition, bytes(size), (AcquiredRange(first, last, 1),), 30.0, 0)


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def asker(member):
    return Asker(member, clock=LoopClock())


async def test_a_fetch_ahead_has_left_when_its_sending_returns_and_the_next_fetch_takes_what_it_brings(member, asker):
    await asker.send_ahead(7)
    assert (member.asked, asker.asked) == ([7], True)
    member.answers.put_nowait([fetched(0, 4)])

    found = await asker.fetch(9)

    assert number_of(found) == 5
    assert (member.asked, asker.asked) == ([7], False)


async def test_a_fetch_ahead_that_fails_fails_the_fetch_that_waits_for_it_and_no_other(member, asker):
    await asker.send_ahead(7)
    member.answers.put_nowait(Closed("gone"))
    with pytest.raises(Closed):
        await asker.fetch(1)

    member.answers.put_nowait([fetched(0, 0)])

    assert number_of(await asker.fetch(1)) == 1


async def test_a_fetch_allows_the_bytes_that_its_records_need_within_bounds(member, asker):
    allowed = []
    for size in (0, 10 * 100_000, 10 << 20, 0):
        member.answers.put_nowait([fetched(0, 9, size=size)])
        await asker.fetch(20)
        allowed.append(member.bytes_max)

    assert allowed == [1 << 20, 1 << 20, 40 * 100_000, 16 << 20]


@pytest.mark.parametrize(("whole", "mode"), [(True, AcquireMode.BATCH_OPTIMIZED), (False, AcquireMode.RECORD_LIMIT)])
async def test_a_fetch_now_or_ahead_asks_for_whole_batches_when_they_may_come_whole(member, asker, whole, mode):
    member.answers.put_nowait([])
    await asker.fetch(7, whole=whole)
    assert member.mode is mode

    member.mode = None
    await asker.send_ahead(7, whole=whole)

    assert member.mode is mode
