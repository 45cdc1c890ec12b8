"""Every row of the outcome table (README, "What happens to a record"): what a handler's result becomes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.client.errors import RecordTooLarge
from tests.agents.agents_kit import one_agent, run_agent, run_app


def test_a_handler_that_returns_accepts_its_record():
    seen = run_agent(_nothing, [b"a", b"b"])

    assert seen.outcomes == ["accepted", "accepted"]
    assert seen.report.attempts == [1, 1]


def test_a_returned_value_goes_to_the_sink_before_the_accept():
    async def double(value: int) -> int:
        return 2 * value

    seen = run_agent(double, [1, 2], sink=["out"])

    assert sorted(record.value for record in seen.out) == [2, 4]
    assert seen.report.accepted == 2


def test_a_value_without_a_sink_is_warned_of_once(caplog: pytest.LogCaptureFixture):
    async def echo(value: int) -> int:
        return value

    seen = run_agent(echo, [1, 2, 3])

    assert seen.report.accepted == 3
    assert sum("has no sink" in record.message for record in caplog.records) == 1


def test_sends_are_produced_with_key_and_headers_then_the_record_is_accepted():
    async def split(value: dict) -> list[fs.Send]:
        return [fs.Send("out", {"n": n}, key=f"k{n}", headers={"h": "v"}) for n in range(value["n"])]

    seen = run_agent(split, [{"n": 2}])

    assert [(record.key, record.value, record.headers) for record in seen.out] == [
        (b"k0", {"n": 0}, {"h": b"v"}),
        (b"k1", {"n": 1}, {"h": b"v"}),
    ]
    assert seen.report.accepted == 1


@pytest.mark.parametrize("raised", [True, False])
def test_a_release_comes_again_after_its_delay(raised: bool):
    async def later(value: bytes, delivery: fs.Delivery) -> Any:
        if delivery.attempt > 1:
            return None
        if raised:
            raise fs.Release(delay=30)
        return fs.Release(delay=30)

    seen = run_agent(later)

    assert seen.outcomes == ["released", "accepted"]
    assert seen.report.attempts == [1, 2]
    assert seen.elapsed_s >= 30


def test_a_bare_class_that_is_returned_means_what_it_would_if_it_were_raised():
    async def never(value: int) -> Any:
        return fs.Reject

    async def none_of_them(records: fs.Records[int]) -> Any:
        return fs.Reject

    assert run_agent(never, [1, 2]).outcomes == ["dead_lettered", "dead_lettered"]
    assert run_agent(none_of_them, [1, 2], batch=fs.Batch(2)).outcomes == ["dead_lettered", "dead_lettered"]


def test_a_record_that_is_given_back_every_time_ends_as_a_dead_letter_that_says_so():
    ran: list[int] = []

    async def never_now(value: bytes, delivery: fs.Delivery) -> fs.Release:
        ran.append(delivery.attempt)
        return fs.Release(delay=60)

    seen = run_agent(never_now, retry=fs.Retry(3))

    assert ran == [1, 2, 3]
    assert seen.outcomes == ["released", "released", "dead_lettered"]
    assert seen.dead[0].reason == "attempts used up (3): given back by fs.Release"


def test_an_exception_in_retry_on_is_tried_again_with_the_delay_of_the_policy():
    async def flaky(value: bytes, delivery: fs.Delivery) -> None:
        if delivery.attempt < 3:
            raise ConnectionError("down")

    seen = run_agent(flaky, retry=fs.Retry(5, delay=fs.exponential(10, jitter=False)))

    assert seen.outcomes == ["retried", "retried", "accepted"]
    assert seen.report.delays == [10, 20]
    assert seen.elapsed_s >= 30


def test_a_timeout_is_tried_again_like_an_exception():
    async def slow(value: bytes, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            await asyncio.sleep(1000)

    seen = run_agent(slow, timeout=5)

    assert seen.outcomes == ["retried", "accepted"]
    assert "TimeoutError" in seen.report.reasons[0]
    assert seen.stats["timed_out"] == 1


def test_a_timeout_outside_retry_on_goes_to_the_dead_letter():
    async def slow(value: bytes) -> None:
        await asyncio.sleep(1000)

    seen = run_agent(slow, timeout=5, retry=fs.Retry(on=(ConnectionError,)))

    assert seen.outcomes == ["dead_lettered"]


def test_an_exception_in_reject_goes_to_the_dead_letter_at_once():
    async def bad(value: bytes) -> None:
        raise KeyError("id")

    seen = run_agent(bad, reject=(KeyError,))

    assert seen.outcomes == ["dead_lettered"]
    [letter] = seen.dead
    assert letter.headers["flowshare.dlq.exception"] == b"builtins.KeyError"


@pytest.mark.parametrize("raised", [True, False])
def test_reject_goes_to_the_dead_letter_with_its_reason(raised: bool):
    async def bad(value: bytes) -> Any:
        if raised:
            raise fs.Reject("no such customer")
        return fs.Reject("no such customer")

    seen = run_agent(bad)

    assert seen.outcomes == ["dead_lettered"]
    assert seen.dead[0].headers["flowshare.dlq.reason"] == b"no such customer"


@pytest.mark.parametrize("how", ["raised", "returned", "row", "released"])
def test_a_rejection_that_no_error_tells_of_is_one_line_in_the_log(how: str, caplog: pytest.LogCaptureFixture):
    said = "y" * 100_000

    async def bad(value: int) -> Any:
        if how == "raised":
            raise fs.Reject(said)
        return fs.Release() if how == "released" else fs.Reject(said)

    async def batch(rows: fs.Records[int]) -> None:
        rows.reject(rows[0], said)

    with caplog.at_level("INFO", "flowshare.agents"):
        if how == "row":
            run_agent(batch, [1], batch=fs.Batch(1))
        else:
            run_agent(bad, [1], retry=fs.Retry(max_attempts=1))

    [line] = [record for record in caplog.records if "record=in-0@0" in record.getMessage()]
    assert line.levelname == "INFO"
    assert ("attempts used up (1): given back by fs.Release" if how == "released" else "yyy") in line.getMessage()
    assert len(line.getMessage()) < 1_200


def test_an_exception_outside_retry_on_goes_to_the_dead_letter_at_once():
    async def bad(value: bytes) -> None:
        raise ValueError("never")

    seen = run_agent(bad, retry=fs.Retry(on=(ConnectionError,)))

    assert seen.outcomes == ["dead_lettered"]
    assert seen.report.attempts == [1]


def test_an_undecodable_record_goes_to_the_dead_letter_unrun():
    async def typed(value: dict) -> None:
        raise AssertionError("must not run")

    seen = run_agent(typed, [b"{broken"])

    assert seen.outcomes == ["dead_lettered"]
    assert b"undecodable" in seen.dead[0].headers["flowshare.dlq.reason"]


def test_attempts_used_up_go_to_the_dead_letter_with_key_value_and_origin():
    async def bad(value: bytes) -> None:
        raise RuntimeError("always")

    seen = run_agent(bad, [b"payload"], retry=fs.Retry(3, delay=1))

    assert seen.outcomes == ["retried", "retried", "dead_lettered"]
    [letter] = seen.dead
    headers = {name.removeprefix("flowshare.dlq."): value for name, value in letter.headers.items()}
    assert letter.value == b"payload" or letter.value == "payload"
    assert headers["topic"] == b"in"
    assert (headers["partition"], headers["offset"], headers["attempts"]) == (b"0", b"0", b"3")
    assert (headers["agent"], headers["group"]) == (b"agent", b"t.agent")
    assert b"RuntimeError: always" in headers["trace"]
    assert headers["timestamp"].isdigit()


def test_a_record_that_arrives_with_too_many_attempts_is_dead_lettered_unrun(monkeypatch: pytest.MonkeyPatch):
    ran: list[int] = []

    async def crashing(value: bytes, delivery: fs.Delivery) -> Any:
        ran.append(delivery.attempt)
        raise asyncio.CancelledError

    def as_after_a_crash(agent: Any, error: BaseException, attempt: int, *, ending: bool = False) -> Outcome:
        return Outcome(OutcomeKind.RELEASE, error)  # it costs an attempt and has no outcome

    monkeypatch.setattr("flowshare.agents.run.pool.of_exception", as_after_a_crash)

    seen = run_agent(crashing, retry=fs.Retry(3))

    assert ran == [1, 2, 3]
    assert seen.outcomes[-1] == "dead_lettered"
    assert b"without an outcome" in seen.dead[0].headers["flowshare.dlq.reason"]


def test_without_dead_letter_a_reject_is_logged_with_the_record(caplog: pytest.LogCaptureFixture):
    async def bad(value: bytes) -> None:
        raise fs.Reject("no")

    seen = run_agent(bad, dead_letter=None)

    assert seen.outcomes == ["rejected"]
    assert any("in-0@0" in one.message and one.levelno == logging.ERROR for one in caplog.records)


def test_a_sink_that_cannot_be_produced_is_like_a_retried_exception(monkeypatch: pytest.MonkeyPatch):
    async def echo(value: int) -> int:
        return value

    seen = _with_failing_topic(monkeypatch, echo, "out", ConnectionError("no leader"), times=2, sink=["out"])

    assert seen.outcomes == ["retried", "retried", "accepted"]
    assert len(seen.out) == 1
    assert seen.stats["send_failed"] == 2


def test_an_output_that_is_too_large_goes_to_the_dead_letter(monkeypatch: pytest.MonkeyPatch):
    async def echo(value: int) -> int:
        return value

    seen = _with_failing_topic(monkeypatch, echo, "out", RecordTooLarge("too large"), times=1, sink=["out"])

    assert seen.outcomes == ["dead_lettered"]


def test_an_output_that_cannot_be_encoded_is_an_exception_of_the_handler():
    async def bad(value: int) -> object:
        return object()

    seen = run_agent(bad, [1], sink=["out"], retry=fs.Retry(2, delay=1))

    assert seen.outcomes == ["retried", "dead_lettered"]


def test_a_dead_letter_that_cannot_be_produced_releases_and_never_rejects(monkeypatch: pytest.MonkeyPatch):
    async def bad(value: int) -> None:
        raise fs.Reject("no")

    seen = _with_failing_topic(monkeypatch, bad, "t.agent.dlq", ConnectionError("down"), times=2)

    assert seen.outcomes == ["released", "released", "dead_lettered"]
    assert seen.report.delays == [10, 10]


def test_a_dead_letter_outage_longer_than_the_attempts_loses_nothing(monkeypatch: pytest.MonkeyPatch):
    async def bad(value: int) -> None:
        raise ValueError("no")

    seen = _with_failing_topic(
        monkeypatch, bad, "t.agent.dlq", ConnectionError("down"), times=30, retry=fs.Retry(2, delay=1)
    )

    assert seen.outcomes[-1] == "dead_lettered"
    assert len(seen.dead) == 1


class Unusual(BaseException):
    """No Exception."""


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, Unusual])
def test_what_is_no_exception_is_tried_again_as_one_and_named_in_its_dead_letter(error: type[BaseException]):
    async def leaving(value: bytes) -> None:
        raise error

    seen = run_agent(leaving, retry=fs.Retry(max_attempts=2, delay=5))

    assert seen.outcomes == ["retried", "dead_lettered"]
    assert seen.dead[0].headers["flowshare.dlq.exception"].decode().endswith(error.__qualname__)


def test_a_retry_says_which_of_how_many_attempts_it_was_and_when_the_next_one_is(caplog: pytest.LogCaptureFixture):
    async def failing(value: bytes) -> None:
        raise ValueError("x" * 100_000)

    run_agent(failing, retry=fs.Retry(max_attempts=2, delay=5))

    again, dead = [record.getMessage() for record in caplog.records if "attempt=" in record.getMessage()]
    assert "attempt=1 of 2: tried again in 5 s: ValueError: xxx" in again
    assert "test_outcome_table.py" in again
    assert "attempts used up (2)" in dead
    assert max(len(again), len(dead)) < 2_000


def test_a_rejection_that_the_app_expects_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture):
    async def refusing(value: bytes) -> None:
        raise ValueError("no customer")

    with caplog.at_level("INFO"):
        seen = run_agent(refusing, reject=(ValueError,))

    [line] = [record for record in caplog.records if "no customer" in record.getMessage()]
    assert (line.levelname, line.exc_info) == ("INFO", None)
    assert seen.outcomes == ["dead_lettered"]


def test_a_tombstone_is_passed_as_none_when_the_annotation_allows_it():
    got: list[Any] = []

    async def take(value: dict | None) -> None:
        got.append(value)

    seen = run_agent(take, [None, {"n": 1}])

    assert got == [None, {"n": 1}]
    assert seen.report.accepted == 2


@pytest.mark.parametrize("annotation", [bytes, dict, str])
def test_a_tombstone_goes_to_the_dead_letter_when_the_annotation_forbids_it(annotation: type):
    async def take(value: Any) -> None:
        raise AssertionError("must not run")

    take.__annotations__["value"] = annotation
    seen = run_agent(take, [None])

    assert seen.outcomes == ["dead_lettered"]
    assert b"does not allow None" in seen.dead[0].headers["flowshare.dlq.reason"]


def test_an_outcome_after_the_lock_was_lost_is_discarded_and_the_record_runs_again():
    runs: list[int] = []
    app: fs.App

    async def losing(value: bytes, delivery: fs.Delivery) -> None:
        runs.append(delivery.attempt)
        if len(runs) == 1:
            await app.host.runtimes["agent"]._feeder._member._link.current.close()
            await asyncio.sleep(3)

    app = one_agent(losing)
    seen = run_app(app)

    assert len(runs) == 2
    assert seen.report.accepted == 1
    assert seen.stats["lock_lost"] == 1


async def _nothing(value: bytes) -> None:
    return None


def _with_failing_topic(
    monkeypatch: pytest.MonkeyPatch, fun: Any, topic: str, error: Exception, *, times: int, **options: Any
) -> Any:
    """Run the agent on one record while the first `times` records for `topic` cannot be produced."""
    left = times

    async def fail(bus: Any) -> None:
        producer = bus.host.producer
        real = producer.send_nowait

        def send_nowait(name: str, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if name == topic and left > 0:
                left -= 1
                raise error
            return real(name, *args, **kwargs)

        monkeypatch.setattr(producer, "send_nowait", send_nowait)
        await bus.send("in", 1)

    return run_agent(fun, [], during=fail, **options)
