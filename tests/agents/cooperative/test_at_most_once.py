"""Cooperative agents with at_most_once=True: a record is committed before its handler begins, and its key waits for the
handler all the same."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import OptionError
from flowshare.ops.reading import partitions
from flowshare.testing import run
from tests.agents.cooperative.test_workers import workers
from tests.agents.processes import Processes


def test_a_record_is_committed_when_its_handler_begins_and_its_key_waits_for_the_end() -> None:
    app = fs.App("shop")
    begun: list[int] = []
    go = asyncio.Event()

    @app.cooperative_agent("orders", concurrency=3, at_most_once=True)
    async def bill(value: dict[str, Any]) -> None:
        begun.append(value["n"])
        await go.wait()

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(20):
                await bus.send("orders", {"n": number}, key=f"k{number % 2}")
            await bus.advance(5.0)
            assert sorted(begun) == [0, 1], "one of each key"
            (row,) = await partitions(bus.host.admin, {bill.group: "cooperative"}, 0)
            assert row.start_offset == 2
            go.set()
            report = await bus.run_until_idle()
            assert report[bill].accepted == 20
            report[bill].assert_in_order()

    fs.testing.run(story())
    for key in (0, 1):
        assert [number for number in begun if number % 2 == key] == list(range(key, 20, 2))


def test_a_record_whose_handler_fails_is_not_run_again_and_has_its_letter() -> None:
    app = fs.App("shop")
    ran: list[int] = []

    @app.cooperative_agent("orders", at_most_once=True)
    async def bill(value: dict[str, Any]) -> None:
        ran.append(value["n"])
        if value["n"] % 2:
            raise ConnectionError("down")

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(10):
                await bus.send("orders", {"n": number}, key=f"k{number % 3}")
            report = await bus.run_until_idle()
            assert Counter(one.outcome for one in report[bill].settled) == {"accepted": 5, "dead_lettered": 5}
            assert [letter.attempts for letter in bus.dead_letters(bill)] == [1] * 5
            assert app.host.runtimes["bill"].stats()["lost"] == 5

    fs.testing.run(story())
    assert sorted(ran) == list(range(10))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"retry": fs.Retry(max_attempts=2)}, "retry allows 2 attempts"), ({"at_most_once": 1}, "takes True or False")],
)
def test_what_contradicts_it_is_refused(options: dict[str, Any], said: str) -> None:
    app = fs.App("shop")

    async def bill(value: bytes) -> None: ...

    with pytest.raises(OptionError, match=said):
        app.cooperative_agent("orders", **{"at_most_once": True, **options})(bill)


def test_when_a_lease_is_over_what_was_accepted_is_ended_before_others_go_on_with_its_key() -> None:
    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(60.0 if delivery.offset < 4 else 0.1)

    async def story() -> None:
        async with workers(body, concurrency=4, at_most_once=True) as group:
            await group.start("a")
            await asyncio.sleep(5)
            await group.send([f"k{number % 4}" for number in range(40)])
            await group.until(lambda: len(group.began) == 4)
            await group.start("b")
            group.cut.add("a")
            await group.until(lambda: len(group.ended) == 36)

            ran = Counter(offset for _, offset, _ in group.began)
            assert ran == dict.fromkeys(range(40), 1)
            assert {one.worker for one in group.ended} == {"b"}, "what a had begun was ended with its lease"
            group.check_order()

    run(story())


def test_a_worker_that_stops_in_order_loses_nothing_and_nothing_overtakes() -> None:
    async def body(delivery: fs.Delivery) -> None:
        await asyncio.sleep(1.0)

    async def story() -> None:
        async with workers(body, concurrency=4, at_most_once=True) as group:
            await group.start("a")
            await group.start("b")
            await asyncio.sleep(5)
            await group.send([f"k{number % 8}" for number in range(80)])
            await group.until(lambda: len(group.ended) > 10)
            await group.hosts.pop("a").finish()
            await group.until(lambda: len(group.ended) == 80)
            assert Counter(offset for _, offset, _ in group.began) == dict.fromkeys(range(80), 1)
            group.check_order()

    run(story())


APP = """
import os, asyncio
import flowshare as fs

app = fs.App("most", broker=os.environ["URL"])
journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.cooperative_agent("in", concurrency=8, at_most_once=True, lease=2)
async def work(n: int, delivery: fs.Delivery) -> None:
    os.write(journal, f"{n} {delivery.key.decode()}\\n".encode())
    await asyncio.sleep(0.002)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_kills_run_nothing_twice_lose_no_more_than_handlers_had_and_keep_the_order_of_keys(tmp_path) -> None:
    records, kills, concurrency = 3_000, 4, 8
    (tmp_path / "most_app.py").write_text(APP)
    world = Processes(tmp_path, f"embedded://{tmp_path}/path")

    async def send() -> None:
        async with fs.Producer(world.url) as producer:
            for n in range(records):
                producer.send_nowait("in", str(n).encode(), key=f"k{n % 40}".encode())

    try:
        asyncio.run(send())
        for kill in range(1, kills + 1):
            worker = world.cli("worker", "most_app:app")
            world.wait(lambda kill=kill: len(world.notes()) >= kill * records // (kills + 2))
            worker.kill()
            worker.wait()
            world.started.remove(worker)
        world.cli("worker", "most_app:app")

        def done() -> bool:
            return '"backlog":0' in world.run("lag", "--app", "most_app:app", "--json").replace(" ", "")

        world.wait(done)
        notes = world.notes()
    finally:
        world.close()

    ran = Counter(int(note[0]) for note in notes)
    assert max(ran.values()) == 1
    assert records - len(ran) <= kills * concurrency
    by_key: dict[str, list[int]] = defaultdict(list)
    for number, key in notes:
        by_key[key].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
