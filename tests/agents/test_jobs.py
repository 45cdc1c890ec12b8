"""Timers, cron jobs and tasks beside the agents: when they run, and what their errors cost."""

from __future__ import annotations

import asyncio
import functools
import logging
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

import flowshare as fs
import flowshare.testing
from flowshare.agents.faust.jobs import Jobs, interval_of, job_of
from flowshare.testing.clock import ManualClock
from tests.waiting import until


def bare() -> fs.App:
    return fs.App("t", broker="memory://")


class Late(ManualClock):
    """Sleeps end early at first, as an event loop's timers do."""

    def __init__(self, early_s: float, start_ms: int = 1_700_000_000_000) -> None:
        super().__init__(start_ms)
        self.early_s = early_s
        self.slept: list[float] = []

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        await super().sleep(delay_s - self.early_s if delay_s > self.early_s else delay_s)


class Hosted:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.failed = 0

    def on_failed(self) -> None:
        self.failed += 1


async def test_run(app: fs.App, clock: ManualClock, seconds: float) -> Hosted:
    """Run the app's jobs alone, for so long by the clock."""
    app.host = host = Hosted(clock)  # type: ignore[assignment]
    tasks = [asyncio.ensure_future(begin()) for begin in app._app_tasks]
    try:
        await clock.advance(seconds)
    finally:
        app.host = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return host


test_run.__test__ = False  # type: ignore[attr-defined]


def test_a_cron_job_whose_timer_fires_early_runs_once_for_each_local_time():
    app, clock, ran = bare(), Late(0.0013), []

    @app.crontab("* * * * * */5")
    async def often() -> None:
        ran.append(clock.now_ms())

    asyncio.run(test_run(app, clock, 60))

    assert [at % 5000 for at in ran] == [0] * 12
    assert len(set(ran)) == 12


def test_a_cron_job_of_every_minute_runs_once_a_minute_while_clocks_go_back():
    app, clock, ran = bare(), ManualClock(1_792_889_920_000), []  # 2026-10-25 02:58:40 in Berlin, for the first time

    @app.crontab("* * * * *", timezone=ZoneInfo("Europe/Berlin"))
    async def often() -> None:
        ran.append(clock.now_ms() // 60_000)

    asyncio.run(test_run(app, clock, 3600))

    assert ran == list(range(ran[0], ran[0] + 60))


def test_a_clock_that_is_set_back_a_little_runs_nothing_twice_and_by_days_begins_anew():
    app, clock, ran = bare(), ManualClock(1_700_000_010_000), []

    @app.crontab("* * * * *")
    async def often() -> None:
        ran.append(clock.now_ms() // 60_000)

    async def main() -> None:
        app.host = Hosted(clock)  # type: ignore[assignment]
        task = asyncio.ensure_future(app._app_tasks[0]())
        await clock.advance(60)
        clock.set_wall(-100)
        await clock.advance(140)
        assert len(ran) == len(set(ran)) == 2
        clock.set_wall(-86_400)
        await clock.advance(240)
        assert len(ran) == len(set(ran)) >= 4
        before = len(ran)
        clock.set_wall(2 * 86_400)
        await clock.advance(20)
        assert len(ran) <= before + 1
        await clock.advance(60)
        assert before + 1 <= len(ran) <= before + 2  # one for all that was missed
        task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [ValueError("no disk"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["timer", "cron job"])
def test_an_error_in_a_tick_costs_that_tick_and_is_logged_by_name(kind, error, caplog):
    app, clock, ran = bare(), ManualClock(), []

    @(app.timer(10) if kind == "timer" else app.crontab("* * * * * */10"))
    async def sweep_the_floor() -> None:
        ran.append(clock.monotonic())
        if len(ran) == 2:
            raise error

    with caplog.at_level(logging.ERROR):
        host = asyncio.run(test_run(app, clock, 50))

    assert len(ran) == 5
    assert not host.failed
    assert app.jobs.failure is None
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.getMessage().startswith(f"{kind} sweep_the_floor failed: {type(error).__name__}")
    assert line.exc_info is not None


def test_a_timer_leaves_out_what_falls_due_while_it_runs(caplog):
    app, clock, ran = bare(), ManualClock(), []

    @app.timer(timedelta(seconds=10), name="slow one")
    async def slow() -> None:
        ran.append(clock.monotonic())
        await clock.sleep(25 if len(ran) == 1 else 1)

    asyncio.run(test_run(app, clock, 61))

    assert ran == [10, 40, 50, 60]
    assert [record.getMessage() for record in caplog.records if "interval" in record.getMessage()] == [
        "timer slow one: a tick took longer than its interval of 10.0 s; what fell due meanwhile is left out"
    ]


@pytest.mark.parametrize("kind", ["timer", "cron job"])
def test_a_function_that_returns_what_is_to_be_awaited_is_awaited(kind):
    app, clock, ran = bare(), ManualClock(), []

    async def body(text: str) -> None:
        await asyncio.sleep(0)
        ran.append(text)

    @functools.wraps(body)
    def wrapper(*args: object) -> object:
        return body("wrapped")

    declare = app.timer(10) if kind == "timer" else app.crontab("* * * * * */10")
    declare(functools.partial(body, "partial"))
    declare(lambda: body("lambda"))
    declare(lambda given: body(given.app_id))
    asyncio.run(test_run(app, clock, 10))

    assert sorted(ran) == ["lambda", "partial", "t"]


@pytest.mark.parametrize("interval", ["5", 0, -1, float("nan"), float("inf"), None, True, timedelta(0)])
def test_an_interval_that_is_none_is_refused_at_import_by_the_timers_name(interval):
    app = bare()

    with pytest.raises(fs.errors.OptionError, match="timer heartbeat: an interval is a number of seconds"):

        @app.timer(interval)
        async def heartbeat() -> None: ...


def test_a_zone_that_is_none_and_a_generator_are_refused_at_import_by_name():
    app = bare()

    with pytest.raises(fs.errors.OptionError, match="cron job nightly: timezone='Europe/Berlim' is no time zone"):

        @app.crontab("0 9 * * *", timezone="Europe/Berlim")
        async def nightly() -> None: ...

    with pytest.raises(fs.errors.OptionError, match="task feed is no function to await"):

        @app.task
        async def feed():
            yield 1


def test_a_task_that_fails_is_told_by_name_and_ends_the_block_by_it(caplog):
    app, ran = bare(), []

    @app.timer(0.01)
    async def often() -> None:
        ran.append(1)

    @app.task
    async def poll_the_bank() -> None:
        raise ConnectionError("bank is closed")

    async def main() -> None:
        async with app.running():
            await until(lambda: app.jobs.failure)
            before = len(ran)
            await until(lambda: len(ran) > before + 2)  # the others go on
            assert any("task poll_the_bank failed" in text for text in app.host.ready())

    with pytest.raises(fs.errors.AppFailed, match="task poll_the_bank failed: ConnectionError: bank is closed") as told:
        asyncio.run(main())

    assert isinstance(told.value.__cause__, ConnectionError)
    assert any("task poll_the_bank failed" in record.getMessage() for record in caplog.records)


def test_what_the_block_itself_raises_is_not_hidden_by_a_task_that_failed():
    app = bare()

    @app.task()
    async def poll() -> None:
        raise ConnectionError

    async def main() -> None:
        async with app.running():
            await until(lambda: app.jobs.failure)
            raise LookupError("the block's")

    with pytest.raises(LookupError):
        asyncio.run(main())


def test_an_app_whose_task_failed_can_run_again():
    app, fails = bare(), [True, False]

    @app.task
    async def poll() -> None:
        if fails.pop(0):
            raise ConnectionError

    async def main() -> None:
        async with app.running():
            await until(lambda: app.jobs.failure or not fails)

    with pytest.raises(fs.errors.AppFailed):
        asyncio.run(main())
    asyncio.run(main())


def test_timers_run_in_every_test_of_an_app_each_on_a_loop_of_its_own():
    app, ran = bare(), []

    @app.timer(10)
    async def often() -> None:
        ran.append(1)

    @app.crontab("* * * * *", on_leader=True)
    async def each_minute() -> None:
        ran.append(2)

    async def test() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.advance(61)

    for begin in (asyncio.run, fs.testing.run, asyncio.run):
        ran.clear()
        begin(test())
        assert (ran.count(1), ran.count(2)) == (6, 1)


def test_users_own_sleep_by_the_app_works_on_the_second_loop():
    app, ran = bare(), []

    @app.task
    async def doze() -> None:
        while not app.should_stop:
            await app.sleep(0.001)
            ran.append(1)

    async def main() -> None:
        ran.clear()
        async with app.running():
            await until(lambda: len(ran) > 2)

    asyncio.run(main())
    asyncio.run(main())


def test_a_job_names_what_has_no_name():
    app = bare()

    class Sweeper:
        async def __call__(self) -> None: ...

    assert str(job_of(app, "timer", Sweeper(), name=None, on_leader=False, traced=True)) == "timer Sweeper"
    assert isinstance(app.jobs, Jobs)
    assert interval_of(timedelta(minutes=1)) == 60.0


def test_a_timer_or_cron_job_without_parentheses_is_refused_and_a_task_is_not():
    app = bare()

    async def sweep() -> None: ...

    with pytest.raises(fs.errors.UsageError, match=r"write @app\.timer\(interval=…\) above sweep"):
        app.timer(sweep)  # type: ignore[arg-type]
    with pytest.raises(fs.errors.UsageError, match=r"write @app\.crontab\('0 3 \* \* \*'\) above sweep"):
        app.crontab(sweep)  # type: ignore[arg-type]
    assert app.task(sweep) is app.task()(sweep) is sweep
    assert len(app._app_tasks) == 2
