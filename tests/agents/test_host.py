"""An app on two loops, on a log in memory: starting, sending, draining, stopping, and failing to start."""

import asyncio
import threading

import pytest

import flowshare as fs
from flowshare.agents.handler import errors as fs_errors
from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend.memory import MemoryBackend
from flowshare.log.base import StorageHeld
from tests.agents.agents_kit import positions
from tests.waiting import LIMIT_S, until


class Part:
    """A part of the service loop that notes where it lives."""

    address = "127.0.0.1:1"

    def __init__(self, seen):
        self.seen = seen

    async def start(self):
        self.seen.append(("part", threading.current_thread().name))
        return self.address

    async def close(self):
        self.seen.append(("part closed", threading.current_thread().name))


def make_app(name="shop", **options):
    app = fs.App(name, broker="memory://")
    app.seen = asyncio.Queue()

    @app.share_agent("orders", drain_timeout=5, **options)
    async def bill(order: dict) -> None:
        await app.seen.put((order, threading.current_thread()))

    return app


async def told(app, count=1):
    return [await asyncio.wait_for(app.seen.get(), 10) for _ in range(count)]


def test_handlers_run_on_the_calling_loop_and_the_rest_on_the_service_loop():
    app, seen = make_app(), []

    async def main():
        host = Host(app, parts=[lambda _host: Part(seen)])
        await host.start()
        await app.topic("orders").send(value={"id": 1})
        [(order, thread)] = await told(app)
        assert host.ready() == ()
        assert host.address == Part.address
        assert await host.drain(5)
        rows = await host.service.call(lambda: positions(host))
        await host.stop()
        return order, thread, rows, host

    order, thread, rows, host = asyncio.run(main())

    assert order == {"id": 1}
    assert thread is threading.main_thread()
    assert [name for _, name in seen] == ["flowshare-service"] * 2
    assert [(row.group, row.backlog, row.finished) for row in rows] == [("shop.bill", 0, 1)]
    assert host.state == "stopped"
    assert "flowshare-service" not in [one.name for one in threading.enumerate()]


def test_one_loop_is_enough():
    app = make_app()

    async def main():
        host = Host(app, settings=HostSettings(threads=False, inline_threads=True))
        await host.start()
        await app.topic("orders").send(value={"id": 1})
        [(_, thread)] = await told(app)
        assert host.service.loop is asyncio.get_running_loop()
        await host.drain(5)
        await host.stop()
        return thread

    assert asyncio.run(main()) is threading.main_thread()


def test_a_producer_is_not_timed_out_by_a_blocked_handler_loop():
    app = make_app()

    async def main():
        host = Host(app)
        await host.start()
        futures = [await host.outbox.enqueue(ProducerRecord("other", b"x", None, (), None, None)) for _ in range(10)]
        host.service.submit(host.producer.flush).result(LIMIT_S)  # blocks this loop
        assert host.producer.buffered_bytes == 0
        offsets = [done.offset for done in await asyncio.gather(*futures)]
        await host.stop()
        return offsets

    assert asyncio.run(main()) == list(range(10))


def test_resources_open_before_the_first_record_and_close_after_the_last():
    app, order = make_app(), []

    @app.on_start
    async def open_pool():
        order.append("open")

    @app.on_drain
    async def close_pool():
        await app.topic("goodbyes").send(value={"sending": "still works"})
        order.append("close")

    async def main():
        host = Host(app)
        await host.start()
        await app.topic("orders").send(value={"id": 1})
        await told(app)
        order.append("handled")
        await host.drain(5)
        await host.stop()

    asyncio.run(main())

    assert order == ["open", "handled", "close"]


def test_a_failing_on_start_function_stops_what_had_started():
    app = make_app()

    @app.on_start
    async def broken():
        raise LookupError("no database")

    host = Host(app)
    with pytest.raises(LookupError, match="no database"):
        asyncio.run(host.start())

    assert host.state == "stopped"
    assert app.host is None
    assert "flowshare-service" not in [one.name for one in threading.enumerate()]


def test_a_backend_that_is_held_is_said_as_it_is():
    class Held(MemoryBackend):
        async def start(self):
            raise StorageHeld("/data/shop is held by process 12 on box")

    app = make_app()

    async def main(monkey):
        monkey.setattr("flowshare.backend.open_backend", lambda _url, clock, **_: Held(clock=clock))
        host = Host(app)
        try:
            await host.start()
        finally:
            assert host.state == "stopped"

    with pytest.MonkeyPatch.context() as monkey, pytest.raises(StorageHeld, match="process 12"):
        asyncio.run(main(monkey))


def test_draining_twice_is_draining_once():
    app = make_app()

    async def main():
        host = Host(app)
        await host.start()
        first, second = await asyncio.gather(host.drain(5), host.drain(0))
        assert any("draining" in reason for reason in host.ready())
        await host.stop()
        await host.stop()
        return first, second

    assert asyncio.run(main()) == (True, True)


def test_an_app_runs_inside_a_script():
    app = make_app()

    async def main():
        async with app.running():
            await app.topic("orders").send(value={"id": 1})
            await told(app)
        assert app.host is None

    asyncio.run(main())


def test_what_is_in_flight_is_shown_with_its_stack():
    app = fs.App("shop", broker="memory://")
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.share_agent("orders")
    async def bill(order: dict) -> None:
        begun.set()
        await go_on.wait()

    async def main():
        host = Host(app)
        await host.start()
        await app.topic("orders").send(value={"id": 1})
        await asyncio.wait_for(begun.wait(), LIMIT_S)
        rows = await until(  # it waits a moment after it has begun
            lambda: host.service.call(lambda: asyncio.to_thread(host.in_flight, stacks=True)),
            good=lambda rows: "await go_on.wait()" in rows[0]["stack"],
        )
        go_on.set()
        await host.drain(5)
        await host.stop()
        return rows

    [row] = asyncio.run(main())

    assert (row["agent"], row["topic"], row["offset"], row["attempt"]) == ("bill", "orders", 0, 1)
    assert row["lock_left_s"] > 20
    assert "await go_on.wait()" in row["stack"]
    assert "flowshare/agents" not in row["stack"]


def test_an_app_that_runs_is_not_run_again():
    app = make_app()

    async def main():
        async with app.running():
            with pytest.raises(fs_errors.UsageError, match="runs already in this process"):
                async with app.running():
                    pass
            await app.topic("orders").send(value={"id": 1})
            await told(app)

    asyncio.run(main())


def test_fausts_worker_is_told_that_it_runs_no_share_agents():
    app = make_app()

    with pytest.raises(fs_errors.UsageError, match="use `flowshare worker"):
        asyncio.run(app.start())
