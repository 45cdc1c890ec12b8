"""Handlers that end by what is no `Exception`, and exceptions that cannot say what they are."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed.ack_sender import AckSender
from flowshare.agents.feed.completion import Completion
from flowshare.agents.handler.texts import REASON_MAX, TRACE_MAX, named, said, shown, trace
from flowshare.agents.host.service import ServiceLoop, run_through
from flowshare.clock import new_loop
from tests.agents.agents_kit import run_agent, run_app
from tests.agents.test_threads import app_of, threaded

TWICE = fs.Retry(max_attempts=2, delay=1)
ODD = [GeneratorExit, StopIteration, StopAsyncIteration, SystemExit, KeyboardInterrupt]


def _raise(error: Any) -> Any:
    raise error


def _takes(handler: Any, batch: Any) -> Any:
    """The handler, which takes a number, or a batch of them."""
    handler.__annotations__["value"] = int if batch is None else fs.Records[int]
    return handler


# --- what handlers raise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("batch", [None, fs.Batch(10)])
@pytest.mark.parametrize("plain", [True, False])
def test_whatever_a_handler_raises_is_tried_again_and_named_in_its_dead_letter(
    error: type[BaseException], batch: Any, plain: bool
):
    async def failing(value: Any) -> None:
        raise error

    def failing_plainly(value: Any) -> None:
        raise error

    seen = run_agent(_takes(failing_plainly if plain else failing, batch), [1], retry=TWICE, batch=batch, limit_s=100)

    assert seen.outcomes == ["retried", "dead_lettered"]
    assert error.__name__ in seen.dead[0].headers["flowshare.dlq.trace"].decode()


@pytest.mark.parametrize("error", ODD)
def test_whatever_middleware_raises_is_tried_again_and_named_in_its_dead_letter(error: type[BaseException]):
    async def handler(value: bytes) -> None:
        return None

    async def around(delivery: fs.Delivery, call_next: Any) -> Any:
        await call_next()
        raise error

    seen = run_agent(handler, middleware=[around], retry=TWICE, limit_s=100)

    assert seen.outcomes == ["retried", "dead_lettered"]
    assert error.__name__ in seen.dead[0].headers["flowshare.dlq.trace"].decode()


@pytest.mark.parametrize("error", ODD)
def test_whatever_an_output_raises_as_it_is_encoded_is_the_handlers_failure(error: type[BaseException]):
    class Broken(dict[str, bytes]):
        def items(self) -> Any:
            raise error

    async def handler(value: bytes) -> Any:
        return fs.Send("out", b"x", headers=Broken(a=b""))

    seen = run_agent(handler, retry=TWICE, limit_s=100)

    assert seen.outcomes == ["retried", "dead_lettered"]


@pytest.mark.parametrize("batch", [None, fs.Batch(10)])
@pytest.mark.parametrize("error", ODD)
def test_whatever_a_decoder_raises_becomes_an_outcome(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], batch: Any
):
    async def handler(value: Any) -> None:
        raise AssertionError("must not run")

    app = fs.App("t")
    agent = app.share_agent("in", name="agent", retry=TWICE, batch=batch)(_takes(handler, batch))
    monkeypatch.setattr(agent, "decoder", lambda topic: lambda raw: _raise(error))

    seen = run_app(app, limit_s=100)

    assert seen.outcomes[-1] == "dead_lettered"


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("batch", [None, fs.Batch(10, within=0)])
def test_whatever_a_def_handler_raises_in_its_thread_leaves_the_thread_at_work(error: type[BaseException], batch: Any):
    def handler(value: Any) -> None:
        raise error

    _, stats = threaded(
        app_of(_takes(handler, batch), batch=batch, concurrency=1, retry=fs.Retry(max_attempts=2, delay=0)),
        [1, 2],
        lambda stats: stats["dead_lettered"] == 2,
    )

    assert stats["handler_errors"] >= 2


@pytest.mark.parametrize("error", ODD)
def test_whatever_a_decoder_raises_leaves_a_thread_at_work(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]):
    def handler(value: Any) -> None:
        raise AssertionError("must not run")

    app = app_of(handler, concurrency=1, retry=fs.Retry(max_attempts=2, delay=0))
    monkeypatch.setattr(app.share_agents["agent"], "decoder", lambda topic: lambda raw: _raise(error))

    threaded(app, [1, 2], lambda stats: stats["dead_lettered"] == 2)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_def_handler_raises_passes_its_async_middleware_and_no_loop_ends(error: type[BaseException]):
    saw: list[type[BaseException]] = []

    def handler(value: Any) -> None:
        raise error

    async def around(delivery: fs.Delivery, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException as raised:
            saw.append(type(raised))
            raise

    app = app_of(handler, concurrency=1, retry=fs.Retry(max_attempts=1), middleware=[around])
    threaded(app, [1, 2], lambda stats: stats["dead_lettered"] == 2)

    assert saw == [error, error]


def test_a_delay_function_that_exits_delays_by_a_second():
    async def failing(value: bytes) -> None:
        raise ValueError("no")

    seen = run_agent(failing, retry=fs.Retry(max_attempts=2, delay=lambda attempt: _raise(SystemExit)))

    assert seen.outcomes == ["retried", "dead_lettered"]
    assert seen.report.delays == [1]


def test_a_drain_function_that_exits_keeps_no_other_from_running(caplog: pytest.LogCaptureFixture):
    ran: list[str] = []
    app = fs.App("t")

    @app.on_drain
    def first_declared() -> None:
        ran.append("first")

    for error in (*ODD, asyncio.CancelledError):
        app.on_drain(lambda error=error: _raise(error))

    @app.share_agent("in", name="agent")
    async def handler(value: bytes) -> None:
        return None

    seen = run_app(app)

    assert seen.outcomes == ["accepted"]
    assert ran == ["first"]


def test_a_handler_whose_task_is_destroyed_ends_as_any_coroutine_does():
    closed: list[str] = []

    async def main() -> None:
        from flowshare.agents.run.async_pool import is_closing
        from flowshare.agents.run.pool import Runner

        runner = Runner(0)

        async def work() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except BaseException as error:
                closed.append("closing" if is_closing(runner, error) else "raised")
                raise

        coroutine = work()
        coroutine.send(None)
        coroutine.close()

    asyncio.run(main())

    assert closed == ["closing"]


# --- what their tasks raise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, fs.Batch(10)])
def test_awaiting_a_task_that_was_closed_from_within_leaves_the_slot_at_work(batch: Any):
    async def handler(value: Any) -> None:
        await asyncio.create_task(_later(GeneratorExit()))

    seen = run_agent(_takes(handler, batch), [1], retry=TWICE, batch=batch, limit_s=100)

    assert seen.outcomes == ["retried", "dead_lettered"]


async def _in_a_group(error: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_later(error))
        group.create_task(asyncio.sleep(1000))


async def _gathered(error: BaseException) -> None:
    await asyncio.gather(_later(error), asyncio.sleep(0))


async def _awaited(error: BaseException) -> None:
    await asyncio.create_task(_later(error))


async def _later(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize("begin", [_in_a_group, _gathered, _awaited])
def test_an_exit_in_a_task_of_a_handler_is_its_records_failure(begin: Any, caplog: pytest.LogCaptureFixture):
    async def handler(value: bytes) -> None:
        await begin(SystemExit(9))

    seen = run_agent(handler, retry=TWICE)

    assert seen.outcomes == ["retried", "dead_lettered"]
    assert seen.dead[0].headers["flowshare.dlq.exception"] == b"builtins.SystemExit"
    assert seen.dead[0].reason == "attempts used up (2): SystemExit: 9"
    assert any("a task or a callback of the application raised SystemExit: 9" in one.message for one in caplog.records)


@pytest.mark.parametrize("factory", [new_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_loop_goes_on_after_an_exit_in_a_task_and_in_a_callback(
    factory: Callable[[], asyncio.AbstractEventLoop], error: type[BaseException]
):
    caught: list[str] = []
    passed = 0
    another = asyncio.Event()

    def count() -> None:
        nonlocal passed
        passed += 1
        another.set()

    async def until_passed(wanted: int) -> None:
        while passed < wanted:  # a loop may run a turn to its end before it lets an exception through
            another.clear()
            await another.wait()

    async def main() -> str:
        loop = asyncio.get_running_loop()
        for begin in (_in_a_group, _gathered, _awaited):
            try:
                await begin(error("own"))
            except (SystemExit, KeyboardInterrupt) as own:
                caught.append(str(own))
        await until_passed(3)
        loop.call_soon(_raise, error)
        await until_passed(4)
        loop.call_later(0, _raise, error)
        await until_passed(5)
        return "done"

    before = signal.signal(signal.SIGINT, lambda number, frame: None)  # as a worker takes it over
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            loop = runner.get_loop()
            assert run_through(loop, loop.create_task(main()), again=count) == "done"
    finally:
        signal.signal(signal.SIGINT, before)

    assert caught == ["own"] * 3


def test_a_ctrl_c_that_nobody_took_over_ends_the_loop():
    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(1000)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with asyncio.Runner() as runner:
            task = runner.get_loop().create_task(main())
            with pytest.raises(KeyboardInterrupt):
                run_through(runner.get_loop(), task)
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_exit_of_the_main_task_itself_is_passed_on():
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(_later(SystemExit(4)))
        with pytest.raises(SystemExit):
            run_through(runner.get_loop(), task)


def test_the_service_loop_goes_on_after_an_exit():
    async def main() -> str:
        service = ServiceLoop()
        service.start()
        service.loop.call_soon_threadsafe(_raise, SystemExit)
        try:
            return await service.call(_answer)
        finally:
            service.stop()

    assert asyncio.run(main()) == "here"


async def _answer() -> str:
    return "here"


# --- what exceptions say ------------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> Any:
        return 7

    __repr__ = __str__


class Odd(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        raise ValueError("no")

    __len__ = __getitem__  # type: ignore[assignment]
    encode = __getitem__  # type: ignore[assignment]


class OddText(Exception):
    def __str__(self) -> str:
        return Odd("odd")


class Half(Exception):
    def __str__(self) -> str:
        return "half \ud83d"


class Long(Exception):
    def __str__(self) -> str:
        return "x" * 1_000_000


MUTES = [Mute, NoText, OddText, Long]


@pytest.mark.parametrize("error", [*MUTES, Half])
@pytest.mark.parametrize("make", [said, shown, named, trace])
def test_a_text_of_an_exception_is_made_whatever_it_does_and_is_short(
    make: Callable[[Any], str], error: type[Exception]
):
    text = make(error())

    assert type(text) is str
    assert text
    assert len(text) <= (TRACE_MAX + 1 if make is trace else REASON_MAX)
    text.encode()


@pytest.mark.parametrize("error", MUTES)
@pytest.mark.parametrize("batch", [None, fs.Batch(10)])
@pytest.mark.parametrize("options", [{}, {"reject": (Exception,)}, {"retry": fs.Retry(on=(OSError,))}])
def test_an_exception_that_cannot_say_what_it_is_ends_as_a_dead_letter(
    error: type[Exception], batch: Any, options: dict[str, Any]
):
    async def handler(value: Any) -> None:
        raise error

    seen = run_agent(_takes(handler, batch), [1], batch=batch, **{"retry": TWICE, **options}, limit_s=100)

    assert seen.outcomes[-1] == "dead_lettered"
    assert seen.dead[0].headers["flowshare.dlq.exception"].decode().endswith(error.__name__)
    assert len(seen.dead[0].reason) <= REASON_MAX


@pytest.mark.parametrize("error", MUTES)
def test_an_exception_of_a_thread_that_cannot_say_what_it_is_ends_as_a_dead_letter(error: type[Exception]):
    def handler(value: Any) -> None:
        raise error

    app = app_of(handler, concurrency=1, retry=fs.Retry(max_attempts=2, delay=0))
    threaded(app, [1, 2], lambda stats: stats["dead_lettered"] == 2)


@pytest.mark.parametrize("error", MUTES)
@pytest.mark.parametrize("batch", [None, fs.Batch(10)])
def test_a_decoders_error_that_cannot_say_what_it_is_ends_as_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], batch: Any
):
    async def handler(value: Any) -> None:
        raise AssertionError("must not run")

    app = fs.App("t")
    agent = app.share_agent("in", name="agent", batch=batch)(_takes(handler, batch))
    monkeypatch.setattr(agent, "decoder", lambda topic: lambda raw: _raise(error()))

    assert run_app(app, limit_s=100).outcomes == ["dead_lettered"]


@pytest.mark.parametrize("error", MUTES)
def test_a_reason_that_cannot_say_what_it_is_rejects_all_the_same(error: type[Exception]):
    async def batch(rows: fs.Records[int]) -> None:
        rows.reject(rows[0], error())

    async def single(value: int) -> Any:
        raise fs.Reject(error())  # type: ignore[arg-type]

    assert run_agent(batch, [1], batch=fs.Batch(10)).outcomes == ["dead_lettered"]
    assert run_agent(single, [1]).outcomes == ["dead_lettered"]


def test_a_release_that_was_made_by_halves_is_a_failure_like_others():
    class Later(fs.Release):
        def __init__(self) -> None:  # forgets what it inherits
            pass

    class Never(fs.Reject):
        def __init__(self) -> None:
            pass

    async def handler(value: bytes) -> None:
        raise Later if value == b"later" else Never

    seen = run_agent(handler, [b"later", b"never"], retry=TWICE, limit_s=100)

    assert sorted(seen.outcomes) == ["dead_lettered", "dead_lettered", "retried", "retried"]


def test_a_refused_output_that_cannot_be_shown_is_a_failure_like_others():
    class Order:
        def __repr__(self) -> str:
            raise KeyError("no")

    async def handler(value: bytes) -> Any:
        return Order()

    seen = run_agent(handler, sink=["out"], retry=TWICE, limit_s=100)

    assert seen.outcomes == ["retried", "dead_lettered"]


def _generator(value: bytes) -> Any:
    return (one for one in [5])


@pytest.mark.parametrize("make", [lambda _: 5, _generator])
@pytest.mark.parametrize("plain", [True, False])
def test_an_output_that_cannot_be_encoded_is_logged_and_counted_as_a_handlers_error(
    make: Callable[[Any], Any], plain: bool, caplog: pytest.LogCaptureFixture
):
    app = fs.App("t", broker="memory://")
    sink = app.topic("out", value_type=dict)

    async def handler(value: bytes) -> Any:
        return make(value)

    def in_thread(value: bytes) -> Any:
        return make(value)

    app.share_agent("in", name="agent", sink=sink, retry=None)(in_thread if plain else handler)
    _, stats = threaded(app, [b"x"], lambda stats: stats["dead_lettered"] == 1)

    [line] = [one for one in caplog.records if one.name == "flowshare.agents" and one.levelno == logging.ERROR]
    assert "in-0@0" in line.getMessage()
    assert stats["handler_errors"] == 1


# --- what carrying an outcome out raises --------------------------------------------------------------------------


def test_an_outcome_that_cannot_be_carried_out_leaves_those_beside_it_alone(monkeypatch: pytest.MonkeyPatch):
    carry_out, failed = Completion._complete, list[int]()

    def fails_once(self: Completion, chunk: Any, record: Any, outcome: Any) -> None:
        if record.offset == 1 and not failed:
            failed.append(1)
            raise RuntimeError("injected")
        carry_out(self, chunk, record, outcome)

    monkeypatch.setattr(Completion, "_complete", fails_once)

    async def handler(value: int) -> fs.Send:
        return fs.Send("out", value)

    seen = run_agent(handler, [0, 1, 2], limit_s=100)

    assert sorted(seen.outcomes) == ["accepted", "accepted", "accepted", "released"]


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), -1.0])
def test_a_delay_that_is_no_time_holds_up_no_record(delay: float):
    async def failing(value: int) -> None:
        if value == 1:
            raise RuntimeError("bad")

    retry = fs.Retry(max_attempts=2, delay=lambda _: delay)
    seen = run_agent(failing, [0, 1, 2], retry=retry, limit_s=31 * 86_400.0)

    assert sorted(seen.outcomes) == ["accepted", "accepted", "dead_lettered", "retried"]


def test_an_error_behind_a_records_acknowledgement_decides_it_no_second_time(monkeypatch: pytest.MonkeyPatch):
    acknowledge, failed = AckSender.acknowledge, list[int]()

    def fails_once(self: AckSender, *args: Any, **given: Any) -> None:
        acknowledge(self, *args, **given)
        if not failed:
            failed.append(1)
            raise RuntimeError("injected")

    monkeypatch.setattr(AckSender, "acknowledge", fails_once)

    async def failing_once(value: int) -> None:
        if not failed:
            raise RuntimeError("bad")

    seen = run_agent(failing_once, [0], retry=TWICE, limit_s=100)

    assert seen.outcomes == ["retried", "accepted"]
    assert seen.stats["outstanding"] == 0


def test_a_last_attempt_whose_outcome_cannot_be_carried_out_is_the_handlers_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
):
    carry_out, failed = Completion._complete, list[int]()

    def fails_once(self: Completion, *args: Any) -> None:
        if not failed:
            failed.append(1)
            raise RuntimeError("injected")
        carry_out(self, *args)

    monkeypatch.setattr(Completion, "_complete", fails_once)

    async def failing(value: int) -> None:
        raise ValueError("the handler's own")

    seen = run_agent(failing, [0], retry=fs.Retry(max_attempts=1), limit_s=100)

    assert "the handler's own" in seen.dead[0].reason
