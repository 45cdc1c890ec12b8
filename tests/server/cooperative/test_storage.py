"""A storage that fails for a while, and a server that ends at any write: nothing that was answered is lost."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import stable_metadata
from flowshare.server.server import Server
from flowshare.testing.clock import settle
from tests.server.cooperative.world import LEASE_MS, LOWER, NONE, UPPER, WHOLE, cooperative

pytestmark = pytest.mark.asyncio
FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE


async def refuse():
    raise StorageError("the disk is full")


async def killed(w, *members) -> None:
    """The server ends without writing anything more, and another one begins."""
    w.storage.before_write = refuse
    await w.server.close()
    w.storage.before_write = None
    w.server = Server(storage=w.storage, config=w.config, clock=w.clock, classic=w.classic)
    await w.start()
    for member in members:
        w.again(member)


async def test_a_commit_that_cannot_be_written_is_refused_and_can_be_made_again():
    async with cooperative() as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 5))
        w.storage.before_write = refuse
        told = await m.commits(m.entry((5, 9), (20, 30)))
        w.storage.before_write = None

        assert told.error is FAILED
        assert await w.state() == (5, [])
        assert await w.offset() == (5, stable_metadata(m.epochs[0], m.topic_id))
        assert await m.commit((5, 9), (20, 30)) == (9, 1, 30)


async def doubtful(w, asked):
    """Return the answer to a request whose write is stored but reported as failed."""
    write = w.storage.write

    async def stored(writes):
        await write(writes)
        raise StorageError("nobody knows whether it is stored")

    w.storage.write = stored
    try:
        return await asked
    finally:
        w.storage.write = write


@pytest.mark.parametrize("restarts", [1, 2])
async def test_a_commit_that_failed_and_is_stored_all_the_same_takes_nothing_away_of_what_was_answered(restarts):
    async with cooperative() as w:
        m = w.member("m")
        await m.hold(WHOLE)
        assert await m.commit((0, 43), (45, 48)) == (43, 1, 48)
        assert (await doubtful(w, m.commits(m.entry((43, 45))))).error is FAILED
        assert await m.commit((43, 44)) == (44, 1, 48)
        for _ in range(restarts):
            await killed(w, m)

        assert await w.state() == (44, [(45, 48)])
        assert await w.offset() == (44, stable_metadata(m.epochs[0], m.topic_id))


async def test_a_reset_that_failed_and_is_stored_all_the_same_takes_no_later_commit_away():
    async with cooperative() as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 5), (60, 70))
        await m.leaves()
        assert (await doubtful(w, w.reset(20))).error is FAILED
        assert (await m.hold(WHOLE)).stable == 5
        assert await m.commit((30, 40)) == (5, 2, 70)
        await killed(w, m)

        assert await w.state() == (5, [(30, 40), (60, 70)])
        assert await w.offset() == (5, stable_metadata(m.epochs[0], m.topic_id))
        assert (await m.hold(WHOLE)).stable == 5


async def test_keys_that_could_not_be_given_durably_are_given_to_nobody():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await b.hold(UPPER)
        w.storage.before_write = refuse
        (refused,) = (await a.asks({0: LOWER})).partitions
        w.storage.before_write = None

        assert refused.error is FAILED
        assert (await w.told()).claims[0].member_id == "b"
        assert [tuple(one[:2]) for one in (await b.hold(WHOLE)).held] == list(WHOLE)


async def test_what_was_decided_on_top_of_a_failed_write_fails_with_it():
    async with cooperative() as w:
        m = w.member("m")
        await m.hold(WHOLE)
        fails, gate = [True], asyncio.Event()

        async def first_fails():
            if fails:
                fails.clear()
                await gate.wait()
                raise StorageError("the disk is full")

        w.storage.before_write = first_fails
        first = asyncio.ensure_future(m.commits(m.entry((0, 5))))
        await settle()
        second = asyncio.ensure_future(m.commits(m.entry((5, 9))))
        third = asyncio.ensure_future(w.told())
        await settle()
        gate.set()

        assert [(await first).error, (await second).error, (await third).error] == [FAILED] * 3
        assert await w.state() == (0, [])
        assert await m.commit((0, 9)) == (9, 0, 9)


async def test_one_partition_goes_on_while_the_write_of_another_one_fails():
    async with cooperative(partitions=2) as w:
        m = w.member("m")
        await m.asks({0: WHOLE, 1: WHOLE})
        gate, fails = asyncio.Event(), [True]

        async def first_fails():
            if fails:
                fails.clear()
                await gate.wait()
                raise StorageError("the disk is full")

        w.storage.before_write = first_fails
        first = asyncio.ensure_future(m.commits(m.entry((0, 5), at=0), at=0))
        await settle()
        second = asyncio.ensure_future(m.commits(m.entry((0, 5), at=1), at=1))
        await settle()
        gate.set()

        assert [(await first).error, (await second).error] == [FAILED, NONE]
        assert [(await w.state(0))[0], (await w.state(1))[0]] == [0, 5]


async def test_a_first_state_that_cannot_be_written_is_not_there():
    async with cooperative() as w:
        m = w.member("m")
        w.storage.before_write = refuse
        (refused,) = (await m.asks({0: WHOLE})).partitions
        w.storage.before_write = None

        assert refused.error is FAILED
        assert (await w.stored(), await w.offset()) == ([], (-1, ""))
        assert (await m.hold(WHOLE)).stable == 0


async def test_a_lease_that_ends_while_nothing_can_be_written_ends_all_the_same():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        zombie = a.entry((0, 5))
        w.storage.before_write = refuse
        await w.clock.advance(LEASE_MS / 1000 + 1)
        await settle()
        refused = (await b.asks({0: WHOLE})).partitions[0]
        late = await a.commits(zombie)
        w.storage.before_write = None
        await b.hold(WHOLE)

        assert refused.error is FAILED
        assert late.error is FAILED or late.fenced == (0,)
        assert (await a.commits(zombie)).fenced == (0,)


async def test_an_administrators_reset_that_could_not_be_followed_durably_is_followed_later():
    async with cooperative() as w:
        m = w.member("m")
        await m.hold(WHOLE)
        await m.commit((0, 50))
        await m.leaves()
        await w.set_offset(20)
        w.storage.before_write = refuse
        (refused,) = (await m.asks({0: WHOLE})).partitions
        w.storage.before_write = None

        assert refused.error is FAILED
        assert await w.offset() == (20, "")
        assert (await m.hold(WHOLE)).stable == 20


class History:
    """A short one: hold, commits, a gap that is filled, a share that moves; and what was answered of it."""

    def __init__(self, w) -> None:
        self.a, self.b = w.member("a"), w.member("b")
        self.done: set[int] = set()
        self.tried: set[int] = set()

    async def commit(self, member, *ranges) -> None:
        if not member.held.get(0):
            return
        offsets = {offset for one in ranges for offset in range(*one)}
        self.tried |= offsets
        answer = await member.commits(member.entry(*ranges))
        if answer.error is NONE and not answer.fenced:
            self.done |= offsets

    async def run(self) -> None:
        a, b = self.a, self.b
        await a.asks({0: WHOLE})
        await self.commit(a, (5, 10), (20, 30))
        await self.commit(a, (0, 5))
        await self.commit(a, (12, 14), (16, 18))
        await a.asks({0: LOWER})
        b.generation = 2
        await b.asks({0: UPPER})
        await asyncio.gather(self.commit(a, (10, 12)), self.commit(b, (14, 16)), self.commit(b, (40, 50)))
        await self.commit(a, (18, 20))


@pytest.mark.parametrize("told", [False, True], ids=["before it is written", "after it is written"])
@pytest.mark.parametrize("number", range(10))
async def test_a_server_that_ends_at_any_write_keeps_what_it_answered(number, told):
    """number: at which write of the history."""
    async with cooperative() as w:
        history = History(w)
        write, left, ended = w.storage.write, [number], list[bool]()

        async def ends(writes):
            if not ended and left[0]:
                left[0] -= 1
                await write(writes)
                return
            if not ended and told:
                await write(writes)
            ended.append(True)
            raise StorageError("the process is gone")

        w.storage.write = ends
        await history.run()
        w.storage.write = write
        await killed(w, history.a, history.b)

        state = await w.told()
        found, claims = set[int](), ()
        if state is not None:
            found = set(range(state.stable)).union(*(range(*one) for one in state.ranges.pairs()))
            claims = state.claims
            assert (await w.offset())[0] == state.stable
        assert history.done <= found <= history.tried
        edges = sorted((one.first, one.end) for one in claims)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(edges))
