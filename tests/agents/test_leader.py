"""Tests of `on_leader` in one process: the lease group, and the fate of running functions when the lease lapses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import flowshare as fs
from flowshare.agents.host.candidate import SESSION_S, LeaseCandidate, leader_group
from flowshare.agents.host.lease import HELD_S, WAIT_S, Lease, LeaseGuard, Moment
from flowshare.backend.memory import MemoryBackend
from flowshare.groups.types import Supported
from flowshare.protocol.messages import JoinGroupRequest
from flowshare.testing.clock import LoopTimeClock, ManualClock

CLOCK = LoopTimeClock()


def held(lease: Lease) -> bool:
    return lease.held(Moment(CLOCK.monotonic(), CLOCK.now_ms()))


class Fleet:
    """Candidates of one app at one broker; a connection can be cut."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self.leases: list[Lease] = []
        self.candidates: list[LeaseCandidate] = []
        self.cut: set[int] = set()
        self._connections: dict[int, list[object]] = {}

    def add(self) -> int:
        number = len(self.leases)
        lease = Lease()

        async def connect():
            if number in self.cut:
                raise ConnectionError("cut")
            connection = await self._backend.connect(f"worker-{number}")
            self._connections.setdefault(number, []).append(connection)
            return connection

        candidate = LeaseCandidate("shop", lease, connect=connect, clock=CLOCK)
        candidate.start()
        self.leases.append(lease)
        self.candidates.append(candidate)
        return number

    async def cut_off(self, number: int) -> None:
        """As a kill would: it says nothing any more."""
        self.cut.add(number)
        for connection in self._connections[number]:
            await connection.close()

    @property
    def holders(self) -> list[int]:
        return [number for number, lease in enumerate(self.leases) if held(lease)]

    async def watch(self, seconds: float) -> list[list[int]]:
        """Who held it, each time that it changed."""
        seen = [self.holders]
        until_s = CLOCK.monotonic() + seconds
        while CLOCK.monotonic() < until_s:
            await CLOCK.sleep(0.05)
            if self.holders != seen[-1]:
                seen.append(self.holders)
            assert len(self.holders) <= 1
        return seen


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    backend = MemoryBackend(clock=CLOCK)
    await backend.start()
    made = Fleet(backend)
    try:
        yield made
    finally:
        for candidate in made.candidates:
            await candidate.close()
        await backend.close()


@pytest.mark.flowshare
async def test_the_first_process_holds_the_lease_and_joins_take_it_from_nobody():
    async with fleet() as made:
        made.add()
        assert (await made.watch(6))[-1] == [0]
        for _ in range(4):
            made.add()
            assert await made.watch(4) == [[0]]


@pytest.mark.flowshare
async def test_three_processes_that_start_at_once_make_one_holder():
    async with fleet() as made:
        for _ in range(3):
            made.add()
        seen = await made.watch(30)
        assert len(seen) == 2
        assert len(made.holders) == 1


@pytest.mark.flowshare
async def test_a_process_that_ends_is_followed_by_another_after_the_wait():
    async with fleet() as made:
        made.add()
        await made.watch(6)
        made.add()
        await made.watch(4)
        await made.candidates[0].close()
        assert made.holders == []
        assert await made.watch(WAIT_S - 0.1) == [[]]
        assert (await made.watch(3))[-1] == [1]


@pytest.mark.flowshare
async def test_a_process_that_is_cut_off_holds_it_no_longer_when_another_one_gets_it():
    async with fleet() as made:
        made.add()
        await made.watch(6)
        made.add()
        await made.watch(4)
        await made.cut_off(0)
        assert await made.watch(HELD_S + SESSION_S + WAIT_S + 4) == [[0], [], [1]]
        made.cut.clear()
        assert await made.watch(20) == [[1]], "who comes back takes it from nobody"


@pytest.mark.flowshare
async def test_a_short_outage_of_the_broker_costs_the_lease_for_as_long_and_no_other_gets_it():
    async with fleet() as made:
        made.add()
        await made.watch(6)
        await made.cut_off(0)
        await made.watch(HELD_S - 2)
        assert made.holders == [0]
        made.cut.clear()
        assert await made.watch(10) == [[0]]


def test_a_group_of_another_kind_under_its_name_is_told_with_what_to_do(caplog):
    async def main() -> None:
        async with fleet() as made:
            other = await made._backend.connect("other")
            joined = asyncio.ensure_future(
                other.send(
                    JoinGroupRequest(
                        group_id=leader_group("shop"),
                        member_id="",
                        instance_id="other",
                        protocol_type="consumer",
                        protocols=(Supported("range", b""),),
                        session_timeout_ms=60_000,
                    )
                )
            )
            await CLOCK.sleep(5)
            made.add()
            assert await made.watch(5) == [[]]
            joined.cancel()
            await asyncio.gather(joined, return_exceptions=True)

    with caplog.at_level("ERROR"):
        fs.testing.run(main())
    assert "INCONSISTENT_GROUP_PROTOCOL: there is a group of another kind under this name: delete it" in caplog.text


# --- what runs ------------------------------------------------------------------------------------------------------


class Held:
    """A leader whose lease a test gives and takes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leader = LeaseGuard()
        self.leader.clock = self.clock
        self.leader.join(lambda: None)

    def give(self) -> None:
        now = Moment(self.clock.monotonic(), self.clock.now_ms())
        self.leader.lease.name(1, asked=now, now=now)


@pytest.mark.asyncio
async def test_without_the_lease_nothing_is_run():
    held = Held()
    ran = []

    async def job() -> None:
        ran.append(1)

    guarded = held.leader.guard(job)
    await guarded()
    assert not ran
    held.give()
    await guarded()
    assert ran


@pytest.mark.asyncio
async def test_what_runs_when_the_lease_lapses_is_cancelled_where_it_waits(caplog):
    held = Held()
    held.give()
    ended = []

    async def job() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what cleans up may wait
            ended.append(1)

    running = asyncio.ensure_future(held.leader.guard(job)())
    await held.clock.advance(HELD_S - 0.1)
    assert not running.done()
    await held.clock.advance(0.2)
    await running
    assert ended
    assert "job was cancelled: this process holds the app's lease no more" in caplog.text


@pytest.mark.asyncio
async def test_a_lease_that_is_renewed_lets_it_go_on():
    held = Held()
    held.give()

    async def job() -> None:
        await held.clock.sleep(3 * HELD_S)

    running = asyncio.ensure_future(held.leader.guard(job)())
    for _ in range(3):
        await held.clock.advance(HELD_S - 1)
        assert not running.done()
        held.give()
    await held.clock.advance(HELD_S - 1)
    await running


@pytest.mark.asyncio
async def test_a_process_that_stood_still_takes_no_further_step():
    """The step is due already when the process goes on: no timer comes before it."""
    held = Held()
    held.give()
    steps = []

    async def job() -> None:
        for number in range(10):
            steps.append(number)
            await asyncio.sleep(0)

    running = asyncio.ensure_future(held.leader.guard(job)())
    while len(steps) < 3:  # noqa: ASYNC110 - it is one step further each time
        await asyncio.sleep(0)
    held.clock._elapsed_s += 60  # stood still: nothing ran meanwhile
    await running
    assert steps == [0, 1, 2]


@pytest.mark.asyncio
async def test_a_task_waits_for_the_lease_and_is_begun_again_when_it_was_lost():
    held = Held()
    began = []

    async def job() -> None:
        began.append(held.clock.monotonic())
        if len(began) < 2:
            await asyncio.Event().wait()

    running = asyncio.ensure_future(held.leader.guard_task(job)())
    await held.clock.advance(1)
    assert not began
    held.give()
    await held.clock.advance(HELD_S + 1)
    assert len(began) == 1
    held.give()
    await held.clock.advance(1)
    await running
    assert len(began) == 2


@pytest.mark.asyncio
async def test_errors_of_what_runs_are_its_own_and_a_stop_of_the_app_waits_for_its_end():
    held = Held()
    held.give()
    ended = []

    async def fails() -> None:
        raise ValueError("mine")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    with pytest.raises(ValueError, match="mine"):
        await held.leader.guard(fails)()
    running = asyncio.ensure_future(held.leader.guard(waits)())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended


@pytest.mark.asyncio
async def test_the_first_question_makes_the_process_ask_for_the_lease():
    leader = LeaseGuard()
    asked = []
    leader.join(lambda: asked.append(1))
    assert not asked
    assert not leader.held
    assert not leader.held
    assert asked == [1]
