"""Programs that only send: no agent runs in them, whatever the app declares."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow


def make_app(path):
    app = fs.App("sends", broker=f"embedded://{path}/log")
    orders, seen = app.topic("orders", value_type=str), []

    @app.share_agent(orders)
    async def handle(order: str) -> None:
        seen.append(order)

    @app.timer(interval=0.01)
    async def tick() -> None:
        seen.append("tick")

    return app, orders, seen


async def handled(app, seen, count):
    """Run a worker of the app until so many values were handled, and return the values, sorted."""
    async with app.running():
        await until(lambda: len([one for one in seen if one != "tick"]) >= count)
    return sorted(one for one in seen if one != "tick")


@pytest.mark.asyncio
async def test_a_program_that_sends_handles_nothing_and_what_it_sent_is_there(tmp_path):
    app, orders, seen = make_app(tmp_path)
    async with app.sending():
        place = (await orders.send(value="a")).result()
        orders.send_soon(value="b")
        again = await orders.send(value="c")
        groups = await app.host.service.call(app.host.admin.list_groups)
    assert (place.offset, again.result().offset) == (0, 2)
    assert seen == []
    assert groups == []
    assert app.host is None

    assert await handled(app, seen, 3) == ["a", "b", "c"]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.asyncio
async def test_a_first_record_makes_the_topic_as_the_app_declares_it(tmp_path, sync):
    app = fs.App("sends", broker=f"embedded://{tmp_path}/log")
    moves = app.topic("moves", value_type=str, partitions=3, config={"max.message.bytes": "2000000"})
    if sync:
        await asyncio.to_thread(moves.send_sync, value="a")
        await app.sending_thread.give_way()
    async with app.sending():
        await moves.send(value="a")
        topic = await app.host.service.call(lambda: app.host.admin.describe_topic("moves"))
        entries = await app.host.service.call(lambda: app.host.admin.topic_configs("moves"))

    assert topic.partitions == 3
    assert {one.name: one.value for one in entries}["max.message.bytes"] == "2000000"


@pytest.mark.asyncio
async def test_a_program_sends_while_a_worker_leads_the_path(tmp_path):
    app, _, seen = make_app(tmp_path)
    script = f"""
        import asyncio, flowshare as fs
        app = fs.App("sends", broker="embedded://{tmp_path}/log")
        orders = app.topic("orders", value_type=str)
        async def main():
            async with app.sending():
                await orders.send(value="from elsewhere")
        asyncio.run(main())
    """
    async with app.running():
        sender = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(script))
        assert await sender.wait() == 0
        await until(lambda: "from elsewhere" in seen)


def test_threads_send_without_an_event_loop(tmp_path):
    app, orders, seen = make_app(tmp_path)
    places = []
    threads = [
        threading.Thread(target=lambda number=number: places.append(orders.send_sync(value=f"{number}")))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    asyncio.run(app.sending_thread.give_way())

    assert sorted(place.offset for place in places) == list(range(8))
    assert asyncio.run(handled(app, seen, 8)) == [f"{number}" for number in range(8)]


def test_a_script_that_sends_ends_by_itself_with_all_of_it_sent(tmp_path):
    script = f"""
        import flowshare as fs
        app = fs.App("sends", broker="embedded://{tmp_path}/log")
        orders = app.topic("orders", value_type=str)
        print(orders.send_sync(value="x", key=b"k").offset)
        print(orders.send_sync(value="y").offset)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1"]), done.stderr


@pytest.mark.asyncio
async def test_send_sync_is_refused_on_an_event_loop_with_what_to_write(tmp_path):
    _, orders, _ = make_app(tmp_path)

    with pytest.raises(UsageError, match=r"write `await topic.send\(…\)`"):
        orders.send_sync(value="x")


@pytest.mark.asyncio
async def test_a_plain_handler_sends_through_the_worker_that_runs_it(tmp_path):
    app, orders, _ = make_app(tmp_path)
    loud = app.topic("loud", value_type=str)
    sent = threading.Event()

    @app.share_agent(orders, group="shout")
    def shout(order: str) -> None:
        loud.send_sync(value=order.upper())
        sent.set()

    async with app.running(), asyncio.timeout(LIMIT_S):
        await orders.send(value="hello")
        await asyncio.to_thread(sent.wait, 10)
        records = await app.host.service.call(lambda: app.host.admin.read("loud", 0))
    assert [record.value for record in records] == [b"HELLO"]


def test_a_broker_that_is_not_reached_is_told_within_the_time_that_was_given():
    script = """
        import flowshare as fs
        app = fs.App("sends", broker="kafka://127.0.0.1:1?share=native")
        app.topic("orders", value_type=str).send_sync(value="x", timeout=1.0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr.splitlines()[-1]


@pytest.mark.asyncio
async def test_an_app_that_does_not_run_says_how_to_send(tmp_path):
    _, orders, _ = make_app(tmp_path)

    with pytest.raises(UsageError, match=r"async with app.sending\(\).*topic.send_sync"):
        await orders.send(value="x")


@pytest.mark.asyncio
async def test_an_app_runs_and_sends_after_a_thread_of_it_had_sent(tmp_path):
    app, orders, seen = make_app(tmp_path)
    place = await asyncio.to_thread(orders.send_sync, value="a")

    assert await handled(app, seen, 1) == ["a"]
    async with app.sending():
        again = await asyncio.to_thread(orders.send_sync, value="b")
    last = await asyncio.to_thread(orders.send_sync, value="c")

    assert (place.offset, again.offset, last.offset) == (0, 1, 2)
    async with app.sending():  # ends the thread, too
        assert [one for one in threading.enumerate() if one.name == "flowshare sending"] == []


@pytest.mark.asyncio
async def test_a_harness_runs_an_app_of_which_a_thread_had_sent(tmp_path):
    app, orders, seen = make_app(tmp_path)
    await asyncio.to_thread(orders.send_sync, value="to the broker")

    async with fs.testing.harness(app) as bus:
        await bus.send(orders, "to the harness")
        await bus.run_until_idle()

    assert "to the harness" in seen
    assert "to the broker" not in seen


@pytest.mark.asyncio
async def test_an_app_that_sends_or_runs_already_says_which_of_both_and_what_to_do(tmp_path):
    app, orders, _ = make_app(tmp_path)
    async with app.sending():
        with pytest.raises(UsageError, match=r"sends in this process already.*leave the inner one out"):
            async with app.sending():
                pass
        with pytest.raises(UsageError, match=r"sends in this process already"):
            async with app.running():
                pass
        assert (await orders.send(value="still sends")).result().offset == 0
    async with app.running():
        with pytest.raises(UsageError, match=r"runs already in this process.*topics send here as they are"):
            async with app.sending():
                pass
