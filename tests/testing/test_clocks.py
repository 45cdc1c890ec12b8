"""The test kit's clocks: time moves when told, in order, and virtual loops neither wait nor hang."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.testing.clock import LoopTimeClock, ManualClock
from flowshare.testing.virtual import Deadlock, run


def test_timers_run_at_their_own_times_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        clock = ManualClock()
        seen: list[tuple[str, float]] = []
        clock.call_later(2, lambda: seen.append(("b", clock.monotonic())))
        clock.call_later(1, lambda: seen.append(("a", clock.monotonic())))
        clock.call_later(3, lambda: seen.append(("never", 0))).cancel()

        await clock.advance(5)
        return [*seen, ("end", clock.monotonic())]

    assert asyncio.run(main()) == [("a", 1.0), ("b", 2.0), ("end", 5.0)]


def test_a_sleeper_that_sleeps_again_wakes_within_one_advance() -> None:
    async def main() -> list[float]:
        clock = ManualClock()
        seen: list[float] = []

        async def sleeper() -> None:
            for _ in range(3):
                await clock.sleep(10)
                seen.append(clock.monotonic())

        task = asyncio.create_task(sleeper())
        await clock.advance(30)
        await task
        return seen

    assert asyncio.run(main()) == [10.0, 20.0, 30.0]


def test_wait_for_raises_timeout_error_when_the_clock_passes_the_limit_and_not_before() -> None:
    async def main() -> str:
        clock = ManualClock()
        waiting = asyncio.create_task(clock.wait_for(asyncio.Event().wait(), 5))
        await clock.advance(4.999)
        assert not waiting.done()
        await clock.advance(0.001)
        with pytest.raises(TimeoutError):
            await waiting
        return await clock.wait_for(asyncio.sleep(0, "in time"), 5)

    assert asyncio.run(main()) == "in time"


def test_a_virtual_loop_sleeps_an_hour_at_once_and_its_clock_follows() -> None:
    async def main() -> tuple[float, int]:
        clock = LoopTimeClock()
        started_ms = clock.now_ms()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time(), clock.now_ms() - started_ms

    assert run(main()) == (3600.0, 3_600_000)


def test_waiting_for_ever_on_a_virtual_loop_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run(main())


@pytest.mark.flowshare
async def test_the_marker_runs_a_test_on_a_virtual_loop(tmp_path: object) -> None:
    await asyncio.sleep(86_400)

    assert tmp_path
    assert asyncio.get_running_loop().time() == 86_400
