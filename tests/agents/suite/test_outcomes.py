"""Every row of the outcome table (README, "What happens to a record") on every backend."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed import completion as settle
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.client.producer.producer import Message
from tests.agents.suite.places import LIMIT_S, Place, headers, values
from tests.waiting import until

pytestmark = pytest.mark.asyncio


async def test_a_handler_that_returns_accepts_its_record(place: Place) -> None:
    async def fine(value: bytes) -> None: ...

    async with place.running(place.agent(fine)) as [worker]:
        await worker.send(place.topic, b"a", b"b", b"c")
        outcomes = await worker.ended(3)
        offsets = await worker.ask(lambda admin: admin.group_offsets(place.group, [place.topic]))

    assert outcomes == ["accepted"] * 3
    assert [part.lag for part in offsets] == [0]


async def test_a_returned_value_is_in_the_sink_when_its_record_is_accepted(place: Place) -> None:
    async def double(value: int) -> int:
        return 2 * value

    out = place.unique("out")
    async with place.running(place.agent(double, sink=[out])) as [worker]:
        await worker.send(place.topic, b"1", b"2")
        await worker.ended(2)
        sent = await worker.read(out)

    assert sorted(values(sent)) == [b"2", b"4"]


async def test_sends_are_produced_with_key_and_headers_before_the_accept(place: Place) -> None:
    out, log = place.unique("out"), place.unique("log")

    async def split(value: int) -> list[fs.Send]:
        many = [fs.Send(out, {"n": n}, key=f"k{n}", headers={"h": "v"}) for n in range(value)]
        return [*many, fs.Send(log, "split")]

    async with place.running(place.agent(split)) as [worker]:
        await worker.send(place.topic, b"2")
        await worker.ended(1)
        sent, logged = await worker.read(out), await worker.read(log)

    assert [(one.key, one.value, tuple(one.headers)) for one in sent] == [
        (b"k0", b'{"n":0}', (("h", b"v"),)),
        (b"k1", b'{"n":1}', (("h", b"v"),)),
    ]
    assert len(logged) == 1


async def test_an_output_that_is_too_large_is_a_dead_letter(place: Place) -> None:
    async def blow_up(value: bytes) -> bytes:
        return bytes(3 << 20)

    async with place.running(place.agent(blow_up, sink=[place.unique("out")])) as [worker]:
        await worker.send(place.topic, b"small")
        outcomes = await worker.ended(1)
        [letter] = await worker.dead()

    assert outcomes == ["dead_lettered"]
    assert letter.value == b"small"
    assert b"an output could not be produced" in (headers(letter)["flowshare.dlq.reason"] or b"")


@pytest.mark.parametrize("raised", [True, False])
async def test_a_release_comes_again_after_its_delay(place: Place, raised: bool) -> None:
    runs: list[tuple[int, float]] = []

    async def later(value: bytes, delivery: fs.Delivery) -> Any:
        runs.append((delivery.attempt, time.monotonic()))
        if delivery.attempt > 1:
            return None
        if raised:
            raise fs.Release(delay=0.2)
        return fs.Release(delay=0.2)

    async with place.running(place.agent(later)) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)

    assert outcomes == ["released", "accepted"]
    assert [attempt for attempt, _ in runs] == [1, 2]
    assert runs[1][1] - runs[0][1] >= 0.2


@pytest.mark.slow
async def test_a_failing_record_is_tried_again_with_the_policys_delays(place: Place) -> None:
    attempts: list[int] = []

    async def flaky(value: bytes, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt < 4:
            raise ConnectionError("down")

    retry = fs.Retry(5, delay=fs.exponential(0.05, jitter=False))
    async with place.running(place.agent(flaky, retry=retry)) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)
        delays = [one.delay_s for one in worker.settled]

    assert outcomes == ["retried", "retried", "retried", "accepted"]
    assert attempts == [1, 2, 3, 4]
    assert delays == [0.05, 0.1, 0.2, 0.0]


async def test_attempts_used_up_are_a_dead_letter_that_tells_everything(place: Place) -> None:
    attempts: list[int] = []

    async def broken(value: bytes, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)
        raise RuntimeError("always")

    async with place.running(place.agent(broken, retry=fs.Retry(3, delay=0.05))) as [worker]:
        await worker.send(
            place.topic, Message(b"payload", key=b"k", headers=[("h", b"v")], timestamp=1_700_000_000.123)
        )
        outcomes = await worker.ended(1)
        [letter] = await worker.dead()

    told = headers(letter, "flowshare.dlq.")
    assert attempts == [1, 2, 3]
    assert outcomes == ["retried", "retried", "dead_lettered"]
    assert (letter.key, letter.value, headers(letter)["h"]) == (b"k", b"payload", b"v")
    assert told["reason"] == b"attempts used up (3): RuntimeError: always"
    assert told["exception"] == b"builtins.RuntimeError"
    assert b'raise RuntimeError("always")' in (told["trace"] or b"")
    assert (told["topic"], told["partition"], told["offset"]) == (place.topic.encode(), b"0", b"0")
    assert (told["attempts"], told["agent"], told["group"]) == (b"3", b"work", place.group.encode())
    assert told["timestamp"] == b"1700000000123"


async def test_a_record_that_is_given_back_every_time_ends_as_a_dead_letter(place: Place) -> None:
    async def never_now(value: bytes) -> fs.Release:
        return fs.Release(delay=0.05)

    async with place.running(place.agent(never_now, retry=fs.Retry(3))) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)
        [letter] = await worker.dead()

    assert outcomes == ["released", "released", "dead_lettered"]
    assert headers(letter)["flowshare.dlq.reason"] == b"attempts used up (3): given back by fs.Release"


@pytest.mark.parametrize("raised", [True, False])
async def test_reject_is_a_dead_letter_with_its_reason(place: Place, raised: bool) -> None:
    async def refuse(value: bytes) -> Any:
        if raised:
            raise fs.Reject("no such customer")
        return fs.Reject("no such customer")

    async with place.running(place.agent(refuse)) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)
        [letter] = await worker.dead()

    assert outcomes == ["dead_lettered"]
    assert headers(letter)["flowshare.dlq.reason"] == b"no such customer"


async def test_exceptions_in_reject_and_outside_retry_on_are_dead_letters_at_once(place: Place) -> None:
    async def bad(value: str) -> None:
        raise {"reject": KeyError, "outside": ValueError}[value]("no")

    agent = place.agent(bad, reject=(KeyError,), retry=fs.Retry(on=(ConnectionError,)))
    async with place.running(agent) as [worker]:
        await worker.send(place.topic, b"reject", b"outside")
        outcomes = await worker.ended(2)
        letters = {letter.value: headers(letter)["flowshare.dlq.reason"] for letter in await worker.dead()}

    assert outcomes == ["dead_lettered", "dead_lettered"]
    assert letters == {
        b"reject": b"rejected because of KeyError: 'no'",
        b"outside": b"not to be retried: ValueError: no",
    }


async def test_without_dead_letter_a_reject_is_logged_with_its_record(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad(value: bytes) -> None:
        raise fs.Reject("no")

    async with place.running(place.agent(bad, dead_letter=None)) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)

    assert outcomes == ["rejected"]
    assert any(f"{place.topic}-0@0" in one.message and one.levelno == logging.ERROR for one in caplog.records)


@pytest.mark.slow
async def test_a_dead_letter_that_cannot_be_written_keeps_its_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "DEAD_LETTER_DELAY_S", 0.2)
    dead = place.unique("dead")
    app = place.app()

    @app.share_agent(
        place.topic, name="work", retry=fs.Retry(2), dead_letter=app.topic(dead, config={"max.message.bytes": "300"})
    )
    async def work(value: bytes) -> None:
        raise fs.Reject("no")

    async with place.running(app) as [worker]:
        await worker.send(place.topic, b"x" * 200)
        await until(lambda: worker.stats()["dead_letter_failed"] >= 3)
        assert not set(worker.outcomes()) & {"rejected", "dead_lettered"}
        problems = worker.host.ready()
        await worker.ask(lambda admin: admin.alter_topic_configs(dead, {"max.message.bytes": "100000"}))
        await worker.ended(1)
        letters = await worker.dead()

    assert len(letters) == 1
    assert any("the dead letter for" in problem for problem in problems)


async def test_a_timeout_is_tried_again_like_an_exception(place: Place) -> None:
    async def slow(value: bytes, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            await asyncio.Event().wait()

    agent = place.agent(slow, timeout=0.1, retry=fs.Retry(delay=0.05))
    async with place.running(agent) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)
        reasons = [one.reason for one in worker.settled]
        stats = worker.stats()

    assert outcomes == ["retried", "accepted"]
    assert reasons[0] == "TimeoutError: the handler took longer than its timeout of 0.1 s"
    assert stats["timed_out"] == 1


async def test_a_def_handler_past_its_timeout_keeps_its_record_until_it_ends(place: Place) -> None:
    go_on = threading.Event()
    runs: list[bytes] = []

    def slow(value: bytes) -> None:
        runs.append(value)
        go_on.wait(LIMIT_S)

    async with place.running(place.agent(slow, timeout=0.1)) as [worker]:
        await worker.send(place.topic, b"x")
        await until(lambda: worker.host.runtimes["work"].problems() != [])
        problems = worker.host.runtimes["work"].problems()
        go_on.set()
        outcomes = await worker.ended(1)

    assert "runs past its timeout of 0.1 s and cannot be stopped" in problems[0]
    assert (outcomes, runs) == (["accepted"], [b"x"])


async def test_def_handlers_run_beside_each_other_with_the_same_outcomes(place: Place) -> None:
    together = threading.Barrier(3, timeout=LIMIT_S)

    def work(value: int, delivery: fs.Delivery) -> int | None:
        if delivery.attempt == 1:
            together.wait()
        if value == 1 and delivery.attempt == 1:
            raise ConnectionError("down")
        if value == 2:
            raise fs.Reject("two")
        return value

    out = place.unique("out")
    agent = place.agent(work, sink=[out], concurrency=3, retry=fs.Retry(delay=0.05))
    async with place.running(agent) as [worker]:
        await worker.send(place.topic, b"0", b"1", b"2")
        outcomes = await worker.ended(3)
        sent = await worker.read(out)

    assert sorted(outcomes) == ["accepted", "accepted", "dead_lettered", "retried"]
    assert sorted(values(sent)) == [b"0", b"1"]


async def test_a_poisonous_record_runs_as_often_as_it_may_and_is_dead_lettered_unrun(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def as_after_a_crash(agent: Any, error: BaseException, attempt: int, *, ending: bool = False) -> Outcome:
        return Outcome(OutcomeKind.RELEASE, error)  # it costs an attempt and has no outcome

    monkeypatch.setattr("flowshare.agents.run.pool.of_exception", as_after_a_crash)

    async def poisoned(value: bytes, delivery: fs.Delivery) -> None:
        ran.append(delivery.attempt)
        raise asyncio.CancelledError

    async with place.running(place.agent(poisoned, retry=fs.Retry(3))) as [worker]:
        await worker.send(place.topic, b"x")
        outcomes = await worker.ended(1)
        [letter] = await worker.dead()

    assert ran == [1, 2, 3]
    assert outcomes == ["released"] * 3 + ["dead_lettered"]
    assert (headers(letter)["flowshare.dlq.reason"] or b"").startswith(b"attempts used up (4 of 3) without an outcome")


async def test_a_record_whose_workers_died_each_time_is_dead_lettered_unrun(place: Place) -> None:
    ran: list[bytes] = []

    async def never(value: bytes) -> None:
        ran.append(value)

    async with place.outside() as (_, _, producer):
        await producer.send(place.topic, b"x")
    await place.die_with_a_record(times=2)
    async with place.running(place.agent(never, retry=fs.Retry(2))) as [worker]:
        await worker.ended(1)
        [letter] = await worker.dead()

    assert ran == []
    assert headers(letter)["flowshare.dlq.attempts"] == b"3"
