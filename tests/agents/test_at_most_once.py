"""Agents with at_most_once=True: a record is accepted before its handler begins, and never runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import OptionError
from flowshare.log.base import StorageError
from flowshare.ops.reading import partitions
from tests.agents.agents_kit import one_agent, run_agent, run_app
from tests.agents.processes import Processes

MOST: dict[str, Any] = {"at_most_once": True}


def test_a_record_whose_handler_fails_is_not_run_again_and_has_its_letter():
    ran: list[int] = []

    async def work(n: int) -> None:
        ran.append(n)
        if n % 2:
            raise ConnectionError("down")

    seen = run_agent(work, range(10), **MOST)

    assert sorted(ran) == list(range(10))
    assert [letter.attempts for letter in seen.dead] == [1] * 5
    assert Counter(seen.outcomes) == {"accepted": 5, "dead_lettered": 5}
    assert (seen.stats["accepted"], seen.stats["lost"], seen.stats["retried"]) == (10, 5, 0)


def test_what_a_handler_has_begun_was_accepted_and_no_more_than_handlers_have():
    begun: list[int] = []
    go = asyncio.Event()

    async def work(n: int) -> None:
        begun.append(n)
        await go.wait()

    app = one_agent(work, concurrency=3, **MOST)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            for n in range(50):
                await bus.send("in", n)
            await bus.advance(1.0)
            stats = app.host.runtimes["agent"].stats()
            assert len(begun) == 3
            assert stats["accepted"] == 3
            [row] = await partitions(bus.host.admin, {"t.agent": "share"}, 0)
            assert row.backlog == 47
            go.set()
            await bus.run_until_idle()
            assert sorted(begun) == list(range(50))

    fs.testing.run(main())


def test_what_was_not_accepted_goes_back_when_the_agent_is_paused():
    begun: list[int] = []
    go = asyncio.Event()

    async def work(n: int) -> None:
        begun.append(n)
        await go.wait()

    app = one_agent(work, concurrency=2, **MOST)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            for n in range(20):
                await bus.send("in", n)
            await bus.advance(1.0)
            app.share_agents["agent"].pause()
            go.set()
            await bus.advance(1.0)
            assert len(begun) == 2
            assert app.host.runtimes["agent"].stats()["outstanding"] == 0
            app.share_agents["agent"].resume()
            await bus.run_until_idle()
            assert sorted(begun) == list(range(20))

    fs.testing.run(main())


def test_a_record_whose_accept_cannot_be_written_is_not_run_before_it_is():
    ran: list[tuple[int, int]] = []

    async def work(n: int, delivery: fs.Delivery) -> None:
        ran.append((n, delivery.attempt))

    app = one_agent(work, lock_duration=15.0, **MOST)

    async def failing(bus: Any) -> None:
        storage = bus.host.backend._storage
        real, left = storage.write, 6

        async def write(writes: Any) -> None:
            nonlocal left
            if left:
                left -= 1
                assert not ran
                raise StorageError("no room")
            await real(writes)

        storage.write = write
        for n in range(5):
            await bus.send("in", n)

    run_app(app, (), during=failing)

    assert sorted(n for n, _ in ran) == [0, 1, 2, 3, 4]


def test_what_the_handler_returns_is_produced_and_what_cannot_be_becomes_a_letter():
    async def work(n: int) -> bytes:
        return b"x" * (3_000_000 if n == 1 else 10)

    seen = run_agent(work, range(3), sink="out", **MOST)

    assert len(seen.records("out")) == 2
    assert len(seen.dead) == 1
    assert seen.stats["lost"] == 1


def test_a_handler_that_is_ended_loses_its_record_and_says_so(caplog: pytest.LogCaptureFixture):
    async def work(n: int) -> None:
        await asyncio.Event().wait()

    app = one_agent(work, drain_timeout=1, **MOST)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1)
            await bus.advance(1.0)

    fs.testing.run(main())

    assert "lost, as it was accepted before it ran (at_most_once)" in caplog.text


def test_plain_functions_and_batches_run_each_record_once_as_well():
    ran: list[int] = []

    def one(n: int, delivery: fs.Delivery) -> None:
        assert delivery.renew().result()
        ran.append(n)

    async def many(rows: fs.Records[int]) -> None:
        for row in rows:
            ran.append(row.value)
            if row.value == 3:
                rows.reject(row, "three")

    assert run_agent(one, range(100), concurrency=4, **MOST).report.accepted == 100
    seen = run_agent(many, range(100), concurrency=2, batch=fs.Batch(7, within=0.1), **MOST)

    assert Counter(ran) == dict.fromkeys(range(100), 2)
    assert [letter.origin[2] for letter in seen.dead] == [3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exactly_once": True}, "contradict each other"),
        ({"retry": fs.Retry(max_attempts=2)}, "retry allows 2 attempts"),
        ({"order": "key"}, "both would run at once"),
        ({"at_most_once": 1}, "takes True or False"),
    ],
)
def test_what_contradicts_it_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(OptionError, match=said):
        one_agent(print, **{**MOST, **options})


APP = """
import os, asyncio
import flowshare as fs

app = fs.App("most", broker=os.environ["URL"])
journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.share_agent("in", concurrency=8, at_most_once=True)
async def work(n: int) -> None:
    os.write(journal, f"{n}\\n".encode())
    await asyncio.sleep(0.002)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_kills_run_nothing_twice_and_lose_no_more_than_handlers_had(tmp_path):
    records, kills, concurrency = 6_000, 6, 8
    (tmp_path / "most_app.py").write_text(APP)
    world = Processes(tmp_path, f"embedded://{tmp_path}/path")
    try:
        world.send("in", *(str(n).encode() for n in range(records)))
        for kill in range(1, kills + 1):
            worker = world.cli("worker", "most_app:app")
            world.wait(lambda kill=kill: len(world.notes()) >= kill * records // (kills + 2))
            worker.kill()
            worker.wait()
            world.started.remove(worker)
        worker = world.cli("worker", "most_app:app")

        def done() -> bool:
            lines = world.run("lag", "--app", "most_app:app", "--json")
            return '"backlog":0' in lines.replace(" ", "")

        world.wait(done)
        ran = Counter(int(words[0]) for words in world.notes())
    finally:
        world.close()

    assert max(ran.values()) == 1
    assert records - len(ran) <= kills * concurrency
