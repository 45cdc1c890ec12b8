"""The app around the agents: broker, hooks, timers, pages, sending, leading, running again."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Any

import aiohttp
import pytest

import flowshare as fs
from flowshare.agents.feed.stalls import of_configs, of_offsets
from flowshare.agents.handler.errors import UsageError
from flowshare.protocol.messages import SharePartitionOffsets
from flowshare.share.types import BlockedKey
from tests.waiting import until


async def nothing(value: bytes) -> None: ...


def app_with_agent(**options: Any) -> fs.App:
    app = fs.App("t", broker="memory://", **options)
    app.share_agent("in", name="agent")(nothing)
    return app


def test_faust_never_sees_the_brokers_url():
    app = fs.App("t", broker="embedded:///tmp/shop")

    assert app.broker_url == "embedded:///tmp/shop"
    assert "embedded" not in str(app.conf.broker)


def test_a_broker_url_that_cannot_be_read_is_refused_at_import():
    with pytest.raises(UsageError, match=r"App\('t'\): "):
        fs.App("t", broker="embeded:///tmp/x")


def test_an_app_without_broker_says_what_to_write():
    with pytest.raises(UsageError, match="has no broker: write"):
        _ = fs.App("t").broker_url


def test_the_environment_replaces_the_broker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLOWSHARE_BROKER", "memory://")

    assert fs.App("t", broker="embedded:///tmp/x").broker_url == "memory://"


def test_hooks_run_on_the_handler_loop_around_everything_else():
    events: list[str] = []
    app = app_with_agent()

    @app.on_start
    async def first() -> None:
        events.append("start")

    @app.on_start
    def second(given: fs.App) -> None:
        assert given is app
        events.append("start 2")

    @app.on_drain
    async def close() -> None:
        await app.topic("out").send(value="bye")
        events.append("drained")

    @app.on_drain
    def close_first() -> None:
        events.append("drained first")

    async def main() -> None:
        async with app.running():
            events.append("running")

    asyncio.run(main())

    assert events == ["start", "start 2", "running", "drained first", "drained"]


def test_timers_tasks_and_leader_timers_run():
    ran: list[str] = []
    app = app_with_agent()

    @app.timer(0.02)
    async def often() -> None:
        ran.append("timer")

    @app.timer(0.02, on_leader=True)
    async def leading() -> None:
        ran.append("leader")

    @app.task
    async def once() -> None:
        ran.append("task")

    @app.crontab("* * * * *", on_leader=True)
    async def cron() -> None: ...

    async def main() -> None:
        async with app.running():
            await until(lambda: {"timer", "leader", "task"} <= set(ran))

    asyncio.run(main())

    assert {"timer", "leader", "task"} <= set(ran)


def test_an_app_without_agents_holds_its_lease_where_one_process_uses_the_broker():
    app = fs.App("t", broker="memory://")

    async def main() -> None:
        assert not app.is_leader()
        async with app.running():
            assert app.is_leader()

    asyncio.run(main())


def test_no_kafka_client_is_imported_for_an_app_of_share_agents():
    app = app_with_agent()

    async def main() -> None:
        async with app.running():
            assert app._consumer is None
            assert app._transport is None

    asyncio.run(main())


def test_an_app_can_run_again_on_another_loop():
    app = app_with_agent()
    starts: list[int] = []

    @app.on_start
    async def started() -> None:
        starts.append(1)

    async def main() -> None:
        async with app.running():
            await app.topic("in").send(value="x")
            await until(lambda: app.host.runtimes["agent"].stats()["accepted"])

    asyncio.run(main())
    asyncio.run(main())

    assert starts == [1, 1]


def paged(name: str, **options: Any) -> fs.App:
    app = app_with_agent(**options)

    @app.page("/hello/")
    async def hello(page: Any, request: Any) -> Any:
        return page.json({"hello": name})

    return app


@pytest.mark.slow
def test_every_process_serves_the_apps_pages_on_a_port_of_its_own():
    async def main() -> list[Any]:
        one, two = paged("one"), paged("two")
        async with one.running(), two.running(), aiohttp.ClientSession() as session:
            found = []
            for app in (one, two):
                async with session.get(f"{app.conf.canonical_url}/hello/") as answer:
                    found.append(await answer.json())
            return found

    assert asyncio.run(main()) == [{"hello": "one"}, {"hello": "two"}]


@pytest.mark.slow
def test_a_port_for_pages_that_is_taken_is_refused_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        app = paged("one", web_port=taken.getsockname()[1])

        async def main() -> None:
            async with app.running():
                raise AssertionError("must not start")

        with pytest.raises(UsageError, match=r"cannot be served on 127\.0\.0\.1:.*leave web_port out for a free port"):
            asyncio.run(main())


def test_commands_of_the_app_are_fausts():
    app = app_with_agent()

    @app.command()
    async def greet(self: Any) -> None:
        """Say hello."""

    assert greet.__name__ == "greet"


def test_an_error_in_an_on_start_function_stops_the_start():
    app = app_with_agent()

    @app.on_start
    async def failing() -> None:
        raise ConnectionError("no database")

    async def main() -> None:
        async with app.running():
            raise AssertionError("must not start")

    with pytest.raises(ConnectionError, match="no database"):
        asyncio.run(main())


def test_fausts_own_agents_are_refused_at_start():
    app = app_with_agent()

    @app.agent(app.topic("other"))
    async def old(stream: Any) -> None: ...

    async def main() -> None:
        async with app.running():
            raise AssertionError("must not start")

    with pytest.raises(UsageError, match=r"Faust's own agents, streams and tables do not run on the memory"):
        asyncio.run(main())


def test_sending_without_a_running_app_says_what_to_do():
    app = app_with_agent()

    with pytest.raises(UsageError, match="does not run, so nothing can be sent"):
        asyncio.run(app.topic("in").send(value=1))


def test_send_returns_when_the_record_is_confirmed():
    app = fs.App("t", broker="memory://")
    topic = app.topic("out")

    async def main() -> None:
        async with app.running():
            future = await topic.send(value={"n": 1}, key="k", headers={"a": "b"})
            assert future.done()
            assert future.result().offset == 0
            assert (await future).offset == 0
            place = await topic.send_soon(value=2)
            assert place.offset == 1
            await app.send("out", value=3)
            await app.send(topic, value=4)
            await topic.declare()
            await app.producer.send_and_wait("out", None, b"5", None, None, None)
            read = await app.host.service.call(lambda: app.host.admin.read("out", 0))
            assert [record.value for record in read] == [b'{"n":1}', b"2", b"3", b"4", b"5"]
            assert (read[0].key, read[0].headers) == (b"k", (("a", b"b"),))

    asyncio.run(main())


def test_an_unknown_topic_that_may_not_be_made_stops_the_start():
    app = app_with_agent(topic_allow_declare=False)

    async def main() -> None:
        async with app.running():
            raise AssertionError("must not start")

    with pytest.raises((UsageError, ExceptionGroup)) as caught:
        asyncio.run(main())
    assert "flowshare topics create in" in _text(caught.value)


def test_topics_are_made_with_their_settings_and_groups_get_theirs():
    app = fs.App("t", broker="memory://")
    app.share_agent(app.topic("in", partitions=3), name="agent", lock_duration=12, start="latest")(nothing)

    async def main() -> None:
        async with app.running():
            admin, call = app.host.admin, app.host.service.call
            assert (await call(lambda: admin.describe_topic("in"))).partitions == 3
            configs = {one.name: one.value for one in await call(lambda: admin.group_configs("t.agent"))}
            assert configs["share.auto.offset.reset"] == "latest"
            assert configs["share.record.lock.duration.ms"] == "12000"
            assert configs["share.delivery.count.limit"] == "10"
            assert configs["share.dead.letter.on"] == "limit"
            assert configs["errors.deadletterqueue.topic.name"] == "t.agent.dlq"
            assert configs["errors.deadletterqueue.copy.record.enable"] == "true"

    asyncio.run(main())


@pytest.mark.flowshare
async def test_a_renamed_function_is_warned_of(caplog: pytest.LogCaptureFixture):
    app = app_with_agent()

    async with fs.testing.harness(app) as bus:
        admin = bus.host.admin
        await bus.send("in", 1)
        bus.host.runtimes["agent"].pause()
        await bus.advance(1)
        old = fs.App("t")
        old.share_agent("in", name="older")(nothing)
        from flowshare.agents.feed.setup import _warn_of_older_group

        async with _running_on(old, bus):
            pass
        caplog.clear()
        await _warn_of_older_group(app.share_agents["agent"], admin)

    assert "Was the function renamed?" in caplog.text


@pytest.mark.flowshare
async def test_a_renamed_function_is_warned_of_before_it_runs_again_what_the_old_one_finished(
    caplog: pytest.LogCaptureFixture,
):
    from flowshare.agents.host.host import Host, HostSettings

    old, new = (fs.App("t") for _ in range(2))
    old.share_agent("in", name="older")(nothing)
    new.share_agent("in", name="newer")(nothing)
    async with fs.testing.harness(old) as bus:
        await bus.send("in", 1)
        await bus.run_until_idle()
        await bus.host.service.call(bus.host.runtimes["older"].stop)
        inline = HostSettings(threads=False, inline_threads=True)
        for _ in range(2):
            host = Host(new, backend=bus.host.backend, clock=bus.clock, settings=inline)
            await host.start()
            await host.stop()

    [told] = [one.getMessage() for one in caplog.records if "renamed" in one.getMessage()]
    assert "group t.older has no member and finished records of the same topic" in told
    assert "on which the new group begins anew (start earliest)" in told
    assert "pass group='t.older'" in told


class _running_on:  # noqa: N801 - reads as a function
    """A second app on the harness's backend, paused so that its backlog stays."""

    def __init__(self, app: fs.App, bus: Any) -> None:
        from flowshare.agents.host.host import Host, HostSettings

        self._host = Host(
            app, backend=bus.host.backend, clock=bus.clock, settings=HostSettings(threads=False, inline_threads=True)
        )

    async def __aenter__(self) -> None:
        await self._host.start()
        self._host.runtimes["older"].pause()

    async def __aexit__(self, *error: object) -> None:
        await self._host.stop()


# --- why nothing arrives ----------------------------------------------------------------------------------------


def offsets(**given: Any) -> SharePartitionOffsets:
    return SharePartitionOffsets(topic="in", topic_id=None, partition=0, start_offset=0, **given)


@pytest.mark.parametrize(
    ("given", "assigned", "said", "normal"),
    [
        ({"lag": 0}, True, "every record of the topic is finished", True),
        ({"lag": 5}, False, "assigned to other members", True),
        ({"lag": 5, "in_flight": 5}, True, "all 5 unfinished records are taken: 5 are in flight", True),
        ({"lag": 5, "in_flight": 5, "blocked": 4}, True, "4 of 5 unfinished records wait for another one", True),
        ({"lag": 5, "in_flight": 2, "delayed": 3}, True, "3 wait for their retry delay", True),
        ({"lag": 5, "delayed": 5}, True, "all 5 unfinished records wait for their retry delay", True),
        ({"lag": 9, "in_flight": 5}, True, "share.partition.max.record.locks", False),
        ({"lag": 9}, True, "the group hands none out", False),
        (
            {"lag": 9, "in_flight": 2, "blocked": 7},
            True,
            "7 of 9 unfinished records wait for another one of their",
            True,
        ),
        (
            {"lag": 9, "in_flight": 1, "blocked": 3, "stuck": (BlockedKey(4, 3, "ACQUIRED", "m"),)},
            True,
            "3 of them for in-0@4 (acquired); the window (share.partition.max.window) may be full",
            False,
        ),
        ({"lag": 9, "in_flight": -1, "delayed": -1}, True, "9 records are unfinished, and brokers do not tell", False),
    ],
)
def test_a_stall_explains_itself(given: dict[str, Any], assigned: bool, said: str, normal: bool):
    reason = of_offsets([offsets(**given)], assigned={("in", 0)} if assigned else {("in", 1)})

    assert said in reason.text
    assert reason.normal is normal


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"share.paused": "true"}, "the group is paused; `flowshare groups resume g`"),
        ({"share.max.in.flight": "5", "share.paused": "false"}, "max_in_flight=5 allows no more"),
        ({"share.max.in.flight": "6"}, None),
        ({"share.max.rate": "10/m"}, "max_rate=10/m hands out no more at present"),
        ({"share.max.rate": "0"}, None),
        ({}, None),
    ],
)
def test_a_stall_is_explained_by_the_groups_settings(configs: dict[str, str], said: str | None):
    reason = of_configs("g", configs, 5)

    assert (reason is not None) == (said is not None)
    if reason is not None and said is not None:
        assert said in reason.text
        assert reason.normal


@pytest.mark.flowshare
async def test_an_agent_of_a_paused_group_says_so(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "flowshare.agents")
    app = app_with_agent()

    async with fs.testing.harness(app) as bus:
        assert app.host is not None
        await app.host.admin.pause_group(app.share_agents["agent"].group)
        await bus.send("in", b"x")
        await bus.advance(60)

    [told] = [record.message for record in caplog.records if "nothing to handle" in record.message]
    assert "the group is paused" in told


@pytest.mark.flowshare
async def test_a_stall_is_told_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "flowshare.agents")
    app = app_with_agent()

    async with fs.testing.harness(app) as bus:
        await bus.advance(60)

    told = [record.message for record in caplog.records if "nothing to handle" in record.message]
    assert len(told) == 1
    assert "every record of the topic is finished" in told[0]


@pytest.mark.parametrize(
    ("options", "pause", "said"),
    [({}, True, "the agent is paused"), ({"rate_limit": "30/h"}, False, "rate_limit allows 30 records an hour")],
)
@pytest.mark.flowshare
async def test_a_pause_and_a_slow_rate_are_told_though_nothing_is_fetched(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], pause: bool, said: str
):
    caplog.set_level(logging.INFO, "flowshare.agents")
    app = fs.App("t")
    app.share_agent("in", name="agent", **options)(nothing)

    async with fs.testing.harness(app) as bus:
        if pause:
            bus.host.runtimes["agent"].pause()
        await bus.send("in", 1)
        await bus.send("in", 2)
        await bus.advance(30)

    assert sum(said in record.message for record in caplog.records) == 1


def test_importing_flowshare_is_cheap():
    import subprocess

    code = "import flowshare, sys; print([m for m in ('faust', 'aiokafka', 'kio', 'aiohttp') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert found.strip() == "[]"


def test_every_public_name_can_be_had():
    for name in fs.__all__:
        assert getattr(fs, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing_such'"):
        _ = fs.nothing_such


def _text(error: BaseException) -> str:
    return " ".join(map(_text, error.exceptions)) if isinstance(error, BaseExceptionGroup) else str(error)


def test_agents_of_one_group_that_want_different_settings_are_refused_at_import():
    app = fs.App("t", broker="memory://")

    @app.share_agent("orders", group="both", start="latest")
    async def one(value: bytes) -> None: ...

    @app.share_agent("mails", group="both", start="latest", max_in_flight=5)
    async def two(value: bytes) -> None: ...

    with pytest.raises(UsageError, match=r"want different ones: share\.auto\.offset\.reset \(latest and earliest\)"):

        @app.share_agent("clicks", group="both")
        async def three(value: bytes) -> None: ...
