"""Tests of a worker's measures of its groups' load, on virtual time: an app in memory, handlers of a known length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host
from flowshare.backend.base import NATIVE
from flowshare.client.errors import NotConnected, ServerError
from flowshare.ops.load import STALE_S, LoadWatch
from flowshare.protocol.errors import ErrorCode
from flowshare.testing import Bus


def watch_of(host: Host) -> LoadWatch:
    return LoadWatch(host.runtimes, host.admin, host.backend.capabilities, clock=host.clock)


def watched(
    call: Callable[[Bus, LoadWatch], Awaitable[None]], *, handler_s: float = 2.0, fails: int = 0, **options
) -> None:
    """Run an app whose agent takes `handler_s` for each record, and `call` beside it with a watch on it."""
    app = fs.App("shop")

    @app.share_agent("orders", concurrency=4, **options)
    async def bill(value: bytes, delivery: fs.Delivery) -> None:
        await asyncio.sleep(handler_s)
        if delivery.attempt <= fails:
            raise ValueError

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send("orders", b"first")
            await bus.advance(0.01)  # the group has a position, and the topic is there
            await call(bus, watch_of(bus.host))
            await bus.run_until_idle()

    fs.testing.run(main())


async def flow(bus: Bus, watch: LoadWatch, seconds: int, per_s: int = 0) -> None:
    """Let records come, a look each second."""
    for _ in range(seconds):
        for _ in range(per_s):
            await bus.send("orders", b"x")
        await bus.advance(1.0)
        await watch.look()


def test_a_steady_flow_needs_what_littles_law_says():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await flow(bus, watch, 40, per_s=1)

        report = watch.report()
        agent = report["agents"][0]
        assert agent["handler_s"] == pytest.approx(2.0, rel=0.1)
        assert agent["topics"][0]["arrival_rate"] == pytest.approx(1.0, rel=0.1)
        assert report["needed"] == pytest.approx(0.5, rel=0.15)
        assert (report["workers"], report["known"], report["members"]) == (1, True, 1)

    watched(call)


def test_a_backlog_needs_more_workers_the_sooner_it_is_to_be_gone():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await flow(bus, watch, 1, per_s=204)
        await flow(bus, watch, 30)

        topic = watch.topics()[0]
        waiting = topic["waiting"]
        assert waiting == topic["backlog"] - 4, "those in the handlers do not wait"
        assert watch.report(10)["needed"] == pytest.approx(waiting / 10 * 2 / 4, rel=0.1)
        assert watch.report(20)["needed"] == pytest.approx(waiting / 20 * 2 / 4, rel=0.1)

    watched(call)


def test_a_group_that_is_paused_needs_none_and_one_with_a_limit_as_many_as_it_keeps_busy():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await flow(bus, watch, 1, per_s=204)
        await flow(bus, watch, 30)
        group, admin = bus.host.app.share_agents["bill"].group, bus.host.admin
        assert watch.report(10)["workers"] > 3

        await admin.alter_group_configs(group, {"share.max.in.flight": "10"})
        await watch.look()
        assert (watch.report(10)["needed"], watch.report(10)["workers"]) == (2.5, 3)

        await admin.alter_group_configs(group, {"share.max.rate": "2/s", "share.max.in.flight": None})
        await watch.look()
        assert (watch.report(10)["needed"], watch.report(10)["workers"]) == (pytest.approx(1.0), 1)

        await admin.pause_group(group)
        await watch.look()
        assert (watch.report(10)["needed"], watch.report(10)["workers"]) == (0, 0)

        await admin.resume_group(group)

    watched(call)


@pytest.mark.parametrize("asked", [False, True])
def test_settings_that_are_not_there_or_not_shown_leave_the_rest_of_the_look(monkeypatch, asked):
    async def call(bus: Bus, watch: LoadWatch) -> None:
        asked_of: list[str] = []

        async def refused(group: str) -> None:
            asked_of.append(group)
            raise ServerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

        monkeypatch.setattr(bus.host.admin, "group_configs", refused)
        if not asked:
            monkeypatch.setattr(watch, "_capabilities", NATIVE)

        await flow(bus, watch, 1, per_s=204)
        await flow(bus, watch, 30)

        assert bool(asked_of) is asked
        assert watch.report(10)["known"] is True
        assert watch.report(10)["workers"] > 3, "nothing bounds it"

    watched(call)


def test_a_worker_that_measures_its_load_asks_for_no_breaker(monkeypatch):
    async def call(bus: Bus, watch: LoadWatch) -> None:
        asked: list[str] = []

        async def breaker(group: str) -> None:
            asked.append(group)
            raise ServerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

        monkeypatch.setattr(bus.host.admin, "breaker", breaker)
        await watch.look()
        assert (asked, len(watch.seen.groups)) == ([], 1)

    watched(call, breaker=fs.Breaker())


def test_retries_make_a_record_cost_more():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await flow(bus, watch, 60, per_s=1)

        [agent] = watch.report()["agents"]
        [topic] = agent["topics"]
        assert agent["handler_s"] == pytest.approx(2.0, rel=0.2)
        assert topic["redelivery_rate"] == pytest.approx(1.0, rel=0.2)

    watched(call, handler_s=1.0, fails=1, retry=fs.Retry(max_attempts=3, delay=1))


def test_until_it_is_known_the_workers_that_there_are_are_enough():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        assert watch.report()["known"] is False, "nobody has looked"
        await watch.look()

        report = watch.report()
        assert (report["workers"], report["known"], report["needed"]) == (1, False, None)

    watched(call)


def test_when_there_is_nothing_to_do_none_are_needed():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await flow(bus, watch, 30)

        assert watch.report()["needed"] == 0
        assert watch.report()["workers"] == 0

    watched(call)


def test_a_look_that_is_too_old_tells_nothing(monkeypatch):
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await flow(bus, watch, 30)
        watch.start()

        async def lost(*_: object) -> None:
            raise NotConnected("no server")

        monkeypatch.setattr("flowshare.ops.reading.partitions", lost)
        await bus.clock.sleep(STALE_S + 3)

        assert watch.seen.groups == {}
        assert watch.topics() == []
        assert watch.report()["known"] is False
        monkeypatch.undo()
        await bus.clock.sleep(10)
        assert watch.report()["known"] is True
        await watch.close()

    watched(call)


def test_what_retention_leaves_is_in_each_row():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await watch.look()
        assert watch.seen.partitions[0].retention == "kept for ever"
        await bus.host.admin.alter_topic_configs("orders", {"retention.ms": "60000"})
        await bus.advance(61)
        await flow(bus, watch, 2, per_s=1)

        [row] = watch.seen.partitions
        assert row.retention == "by retention.ms"
        assert row.retention_left_s == pytest.approx(60 - row.oldest_age_s)

    watched(call, handler_s=70.0)


def test_size_and_age_of_the_first_unfinished_record_are_read_from_the_log_when_they_are_needed():
    async def call(bus: Bus, watch: LoadWatch) -> None:
        await bus.host.admin.alter_topic_configs("orders", {"retention.bytes": "100000"})
        await flow(bus, watch, 5, per_s=2)

        [row] = watch.seen.partitions
        facts = await bus.host.admin.peek("orders", 0, row.start_offset)
        assert facts is not None
        assert row.retention == "by retention.bytes"
        behind = row.log_end - row.start_offset
        assert row.retention_left_s == pytest.approx(
            (100_000 - behind * facts.record_bytes) / facts.record_bytes / watch.topics()[0]["arrival_rate"]
        )
        assert await bus.host.admin.peek("orders", 0, row.log_end) is None

    watched(call, handler_s=70.0)


def test_a_cooperative_group_is_watched_as_a_share_group_is():
    app = fs.App("shop")

    @app.cooperative_agent("orders", concurrency=4)
    async def bill(value: bytes) -> None:
        await asyncio.sleep(2.0)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            watch = watch_of(bus.host)
            for second in range(40):
                await bus.send("orders", b"x", key=f"k{second}")
                await bus.advance(1.0)
                await watch.look()

            report = watch.report()
            assert report["needed"] == pytest.approx(0.5, rel=0.15)
            assert (report["workers"], report["known"], report["members"]) == (1, True, 1)
            assert {row.held_keys for row in watch.seen.partitions if row.holders} == {1.0}
            await bus.run_until_idle()

    fs.testing.run(main())


def test_members_that_take_whole_partitions_need_no_more_workers_than_there_are_of_these():
    app = fs.App("shop")

    @app.cooperative_agent(app.topic("orders", partitions=2), concurrency=4, shares=False)
    async def bill(value: bytes) -> None:
        await asyncio.sleep(2.0)

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            watch = watch_of(bus.host)
            for number in range(400):
                await bus.send("orders", b"x", key=f"k{number}")
            for _ in range(5):
                await bus.advance(1.0)
                await watch.look()

            assert watch.report(1)["workers"] == 2
            await bus.run_until_idle()

    fs.testing.run(main())
