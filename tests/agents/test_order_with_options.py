"""Order by key beside everything else that an agent or a group can be told: it holds, and nothing stands still."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.feed.locks import LockKeeper
from flowshare.agents.feed.prefetch import KeyPrefetch
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend.memory import MemoryBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Producer
from flowshare.protocol.batches import BatchBuilder
from flowshare.testing import Bus, LoopTimeClock
from tests.agents.agents_kit import one_agent
from tests.agents.test_codecs import Secrets
from tests.agents.test_order_end_to_end import KEYS, Journal, of_keys, run

# --- locks that cannot be renewed ---------------------------------------------------------------------------------

LOCK_S = 5.0


def cannot_renew(bus: Bus) -> None:
    """From now on nobody answers when locks are renewed."""

    async def no_answer(key: Any, ranges: Any) -> tuple[list[tuple[int, int]], float]:
        return [], 0.0

    bus.host.runtimes["agent"]._feeder._acks.renew = no_answer  # type: ignore[method-assign]


@pytest.mark.parametrize("renew", [True, False])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.flowshare
async def test_a_member_that_cannot_renew_cancels_its_handlers_and_begins_nothing_before_its_locks_lapse(
    renew: bool, batch: bool
):
    began: list[tuple[int, int, float]] = []
    cancelled: list[float] = []
    running = 0

    async def work(value: int, delivery: fs.Delivery) -> None:
        nonlocal running
        assert not running
        running += 1
        began.append((value, delivery.attempt, asyncio.get_running_loop().time()))
        try:
            await asyncio.sleep(20 if delivery.attempt == 1 and value == 0 else 0)
        except asyncio.CancelledError:
            cancelled.append(asyncio.get_running_loop().time())
            raise
        finally:
            running -= 1

    async def many(rows: fs.Records[int]) -> None:
        for row in rows:
            await work(row.value, row.delivery)

    timeout = None if renew else 4.9
    options: dict[str, Any] = {"lock_duration": LOCK_S, "renew": renew, "timeout": timeout, "order": "key"}
    app = one_agent(many if batch else work, **options, **({"batch": fs.Batch(1, within=0)} if batch else {}))
    async with fs.testing.harness(app) as bus:
        cannot_renew(bus)
        for value in range(3):
            await bus.send("in", value, key="a")
        report = await bus.run_until_idle()

    started = began[0][2]
    assert [LOCK_S * 0.9 <= at - started < LOCK_S for at in cancelled] == [True]
    assert [value for value, _, _ in began] == [0, 0, 1, 2]
    assert began[1][1] == 2
    assert began[1][2] - started >= LOCK_S
    assert report["agent"].accepted == 3


@pytest.mark.flowshare
async def test_what_waits_for_a_runner_is_not_begun_when_its_lock_may_be_gone():
    began: dict[int, list[float]] = defaultdict(list)

    async def handler(value: int) -> None:
        began[value].append(asyncio.get_running_loop().time())
        if value == 0 and len(began[0]) == 1:
            feeder = bus.host.runtimes["agent"]._feeder
            for chunk in feeder._held.live:
                chunk.deadline = 0.0  # as if nothing had looked at it in time

    async with fs.testing.harness(one_agent(handler, order="key", concurrency=1)) as bus:
        bus.host.runtimes["agent"].pause()
        await bus.advance(1)
        for key, value in [("a", 0), ("a", 1), ("b", 2)]:
            await bus.send("in", value, key=key)
        await bus.advance(1)
        bus.host.runtimes["agent"].resume()
        report = await bus.run_until_idle()

    attempts = [(one.offset, one.attempt) for one in report["agent"].settled if one.outcome == "accepted"]
    assert {value: len(times) for value, times in began.items()} == {0: 1, 1: 1, 2: 1}
    assert dict(attempts) == {0: 1, 1: 1, 2: 1}  # what nobody began costs no attempt


@pytest.mark.flowshare
async def test_what_is_lost_at_its_last_attempt_is_no_dead_letter_before_it_has_come_again():
    async def handler(value: int) -> None:
        await asyncio.sleep(20)

    options: dict[str, Any] = {"lock_duration": LOCK_S, "timeout": None, "retry": fs.Retry(max_attempts=1)}
    async with fs.testing.harness(one_agent(handler, order="key", **options)) as bus:
        cannot_renew(bus)
        await bus.send("in", 0, key="a")
        await bus.run_until_idle()
        letters = bus.dead_letters("agent")

    assert ["without an outcome" in letter.reason for letter in letters] == [True]


@pytest.mark.flowshare
async def test_a_handler_that_does_not_end_when_its_time_is_over_keeps_its_key():
    journal = Journal()
    stubborn = asyncio.Event()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        while value == 0 and not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue
        journal.leave(delivery, done=True)

    options: dict[str, Any] = {"lock_duration": LOCK_S, "timeout": 2.0}
    async with fs.testing.harness(one_agent(handler, order="key", **options)) as bus:
        for value, key in enumerate("aab"):
            await bus.send("in", value, key=key)
        await bus.advance(60)
        before = {key: [offset for offset, _ in began] for key, began in journal.began.items()}
        assert bus.host.runtimes["agent"].problems()
        stubborn.set()
        report = await bus.run_until_idle()

    assert before == {"a": [0], "b": [2]}
    assert journal.in_order()
    assert report["agent"].accepted == 3


# --- options of an agent -------------------------------------------------------------------------------------------


def sleeping(journal: Journal, seconds: float = 1.0) -> Any:
    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        done = False
        try:
            await asyncio.sleep(seconds)
            done = True
        finally:
            journal.leave(delivery, done=done)

    return handler


def test_a_limit_of_the_group_bounds_how_many_keys_run_and_changes_no_order():
    journal = Journal()

    seen = run(sleeping(journal), of_keys(60), concurrency=16, max_in_flight=2)

    assert journal.in_order()
    assert journal.most == 2
    assert seen.report.accepted == 60


@pytest.mark.parametrize("priority", ["new", "redeliveries"])
def test_the_priority_of_new_records_lets_none_pass_the_one_before_it_in_its_key(priority: str):
    journal = Journal()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        await asyncio.sleep(0.1)
        failed = value % 7 == 0 and delivery.attempt < 3
        journal.leave(delivery, done=not failed)
        if failed:
            raise ConnectionError("down")

    seen = run(handler, of_keys(70), priority=priority, max_in_flight=3, retry=fs.Retry(delay=0.5))

    assert journal.in_order()
    assert seen.report.accepted == 70


def test_a_handler_that_takes_too_long_comes_again_before_the_later_ones_of_its_key():
    journal = Journal()

    async def handler(value: int, delivery: fs.Delivery) -> None:
        journal.begin(delivery)
        done = False
        try:
            await asyncio.sleep(100 if value in {0, 11} and delivery.attempt == 1 else 0.1)
            done = True
        finally:
            journal.leave(delivery, done=done)

    seen = run(handler, of_keys(40), timeout=5, retry=fs.Retry(delay=2))

    assert journal.in_order()
    assert journal.began["a"][:2] == [(0, 1), (0, 2)]
    assert seen.stats["timed_out"] == 2
    assert seen.report.accepted == 40


def test_the_outputs_of_a_retried_batch_come_after_those_of_the_records_before():
    async def load(rows: fs.Records[int]) -> Any:
        kept = []
        for row in rows:
            if row.value % 10 == 3 and row.delivery.attempt == 1:
                rows.retry(row, ConnectionError("down"))
            kept.append(fs.Send("out", row.value))
        return kept if all(row.delivery.attempt > 1 or row.value % 10 != 3 for row in rows) else None

    seen = run(load, of_keys(60), batch=fs.Batch(10, within=0.1), retry=fs.Retry(delay=1))

    accepted = [one.offset for one in seen.report.settled if one.outcome == "accepted"]
    assert all([n for n in accepted if n % 5 == key] == list(range(key, 60, 5)) for key in range(5))


def test_a_rate_limit_changes_no_order():
    journal = Journal()

    seen = run(sleeping(journal, 0.01), of_keys(40), rate_limit="10/s", concurrency=4)

    assert journal.in_order()
    assert seen.report.accepted == 40
    assert seen.elapsed_s >= 2


def test_locks_are_renewed_through_a_whole_chain_of_slow_records():
    journal = Journal()

    seen = run(sleeping(journal, 4.0), [("a", number) for number in range(20)], lock_duration=5, concurrency=1)

    assert journal.in_order()
    assert {attempt for _, attempt in journal.began["a"]} == {1}
    assert seen.stats["renewed"] > 0


# --- the group ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def members(*handlers: Any, **options: Any) -> AsyncIterator[tuple[MemoryBackend, list[Host]]]:
    """One member of a group for each handler; on virtual time. They are started by who wants them."""
    clock = LoopTimeClock()
    backend = MemoryBackend(clock=clock)
    await backend.start()
    hosts: list[Host] = []
    for handler in handlers:
        app = one_agent(handler, **{"order": "key", **options})
        settings = HostSettings(threads=False, inline_threads=True, linger=0)
        hosts.append(Host(app, backend=backend, clock=clock, settings=settings))
    try:
        yield backend, hosts
    finally:
        for host in hosts:
            if host.state != "stopped":
                await host.stop()
        await backend.close()


async def produce(host: Host, records: Sequence[tuple[str | None, int]]) -> None:
    topic = host.app.topic("in")  # type: ignore[attr-defined]
    await asyncio.gather(*(topic.send(key=key, value=value) for key, value in records))


async def handled(journal: Journal, count: int, look_s: float = 0.5) -> None:
    async with asyncio.timeout(3600):
        while sum(map(len, journal.ended.values())) < count:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(look_s)


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.flowshare
async def test_two_members_share_the_keys_out_evenly_and_keep_their_order(limit: int | None):
    journal = Journal()
    done = [0, 0]

    def counting(number: int) -> Any:
        inner = sleeping(journal, 0.1)

        async def handler(value: int, delivery: fs.Delivery) -> None:
            await inner(value, delivery)
            done[number] += 1

        return handler

    async with members(counting(0), counting(1), concurrency=4, max_in_flight=limit) as (_, hosts):
        await hosts[0].start()
        await hosts[1].start()
        await produce(hosts[0], [(f"k{number % 40}", number) for number in range(800)])
        await handled(journal, 800)

    assert journal.in_order()
    assert min(done) >= 250


@pytest.mark.parametrize("keys", [1, 2, 4, 8])
@pytest.mark.flowshare
async def test_as_many_members_work_as_there_are_keys(keys: int):
    journal, count = Journal(), 120 * keys
    records = [(f"k{number % keys}", number) for number in range(count)]
    random.Random(7).shuffle(records)
    async with members(*[sleeping(journal, 0.05)] * 16, concurrency=1) as (_, hosts):
        await hosts[0].start()
        await produce(hosts[0], records)
        for host in hosts[1:]:
            await host.start()
        begun_s = asyncio.get_running_loop().time()
        await handled(journal, count, look_s=0.05)
        took_s = asyncio.get_running_loop().time() - begun_s

    assert journal.in_order()
    assert journal.most == keys
    assert took_s <= 6.3  # a key's 120 records of 50 ms each are 6 s


@pytest.mark.flowshare
async def test_a_group_that_is_paused_and_resumed_goes_on_in_order():
    journal = Journal()
    async with members(sleeping(journal)) as (_, [host]):
        await host.start()
        await produce(host, of_keys(200))
        await asyncio.sleep(2.5)
        await host.admin.pause_group("t.agent")
        await asyncio.sleep(60)
        before = sum(map(len, journal.ended.values()))
        await asyncio.sleep(60)
        assert 0 < sum(map(len, journal.ended.values())) == before < 200
        await host.admin.resume_group("t.agent")
        await handled(journal, 200)

    assert journal.in_order()


@pytest.mark.flowshare
async def test_offsets_that_are_set_back_are_handled_once_more_in_order():
    journal, again = Journal(), Journal()
    async with members(sleeping(journal), sleeping(again)) as (_, [first, second]):
        await first.start()
        await produce(first, of_keys(40))
        await handled(journal, 22)
        assert await first.drain(30)
        await first.runtimes["agent"].stop()
        await first.admin.reset_offsets("t.agent", to=7)
        await second.start()
        await handled(again, 33)

    assert journal.in_order()
    assert again.in_order()
    assert sorted(offset for offsets in again.ended.values() for offset in offsets) == list(range(7, 40))


@pytest.mark.flowshare
async def test_a_drain_hands_the_rest_of_each_key_to_the_next_member_in_order():
    journal = Journal()
    async with members(sleeping(journal), sleeping(journal), concurrency=2) as (_, [first, second]):
        await first.start()
        await produce(first, of_keys(50))
        await asyncio.sleep(3.5)
        assert await first.drain(30)
        await first.stop()
        between = {key: len(offsets) for key, offsets in journal.ended.items()}
        await second.start()
        await handled(journal, 50)

    assert 0 < sum(between.values()) < 50
    assert journal.in_order()
    assert {attempt for began in journal.began.values() for _, attempt in began} == {1}


@pytest.mark.flowshare
async def test_what_a_drain_cancels_is_the_first_that_the_next_member_gets_of_its_key():
    journal = Journal()
    async with members(sleeping(journal, 100.0), sleeping(journal)) as (_, [first, second]):
        await first.start()
        await produce(first, of_keys(20))
        await asyncio.sleep(1)
        assert not await first.drain(5)
        await first.stop()
        await second.start()
        await handled(journal, 20)

    assert journal.in_order()
    assert [began[:2] for began in journal.began.values()] == [[(key, 1), (key, 2)] for key in range(5)]


@pytest.mark.flowshare
async def test_what_compaction_took_away_holds_up_nothing():
    journal = Journal()
    async with members(sleeping(journal)) as (backend, [host]):
        storage = backend._storage
        assert storage is not None
        await storage.create_topic("in", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        for key, value in of_keys(30):
            builder = BatchBuilder()
            builder.add(key.encode(), b"%d" % value, timestamp_ms=1_000)
            await storage.append("in", 0, builder.build())
        await storage._compact()
        await host.start()
        await handled(journal, 5)
        await produce(host, of_keys(10))
        await handled(journal, 15)

    assert journal.in_order()
    assert journal.ended["a"][0] >= 25


@pytest.mark.flowshare
async def test_compaction_under_way_takes_nothing_out_of_turn():
    journal = Journal()
    async with members(sleeping(journal), concurrency=1) as (backend, [host]):
        storage = backend._storage
        assert storage is not None
        await storage.create_topic("in", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        for key, value in of_keys(30):
            builder = BatchBuilder()
            builder.add(key.encode(), b"%d" % value, timestamp_ms=1_000)
            await storage.append("in", 0, builder.build())
        await host.start()
        await asyncio.sleep(2.5)
        await storage._compact()
        async with asyncio.timeout(3600):
            while (await host.admin.group_offsets("t.agent"))[0].lag:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)

    assert journal.in_order()
    assert all(offsets[-1] == 25 + KEYS.index(key) for key, offsets in journal.ended.items())


@pytest.mark.flowshare
async def test_of_transactions_only_what_is_committed_is_handled_and_an_open_one_holds_its_partition_back():
    journal = Journal()
    async with members(sleeping(journal, 0.1)) as (backend, [host]):
        await host.start()
        await host.admin.alter_group_configs("t.agent", {"share.isolation.level": "read_committed"})
        producer = Producer(lambda: backend.connect("p"), clock=LoopTimeClock(), transactional_id="tx")
        await producer.begin()
        for number in range(3):
            await producer.send("in", b"%d" % number, key=b"a")
        await producer.abort()
        await producer.begin()
        for number in range(3, 6):
            await producer.send("in", b"%d" % number, key=b"a")
        await produce(host, [("a", 6), ("b", 7)])
        await asyncio.sleep(10)
        while_open = dict(journal.ended)
        await producer.commit()
        await handled(journal, 5)
        await producer.close()

    assert while_open == {}
    assert journal.in_order()
    assert (len(journal.ended["a"]), len(journal.ended["b"])) == (4, 1)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("key", fs.Header("customer"), "share.key.order of group t.agent cannot change while it has members"),
        (fs.Header("customer"), "key", "share.key.order of group t.agent cannot change while it has members"),
        (None, "key", "share.key.order of group t.agent cannot change while it has members"),
        ("key", None, "has 1 member and delivers in an order .*give all agents of the group order='key'"),
        (fs.Header("customer"), None, r"give all agents of the group order=fs.Header\('customer'\)"),
    ],
)
@pytest.mark.flowshare
async def test_two_members_of_one_group_with_different_orders_are_refused(first: Any, second: Any, words: str):
    journal = Journal()
    clock = LoopTimeClock()
    backend = MemoryBackend(clock=clock)
    await backend.start()
    settings = HostSettings(threads=False, inline_threads=True)
    apps = [one_agent(sleeping(journal), order=order) for order in (first, second)]
    hosts = [Host(app, backend=backend, clock=clock, settings=settings) for app in apps]
    try:
        await hosts[0].start()
        with pytest.raises(UsageError, match=words):
            await hosts[1].start()
        await produce(hosts[0], of_keys(10))
        await handled(journal, 10)
    finally:
        for host in hosts:
            await host.stop()
        await backend.close()


@pytest.mark.flowshare
async def test_of_two_members_with_different_orders_that_start_together_one_is_refused():
    journal = Journal()
    clock = LoopTimeClock()
    backend = MemoryBackend(clock=clock)
    await backend.start()
    settings = HostSettings(threads=False, inline_threads=True)
    apps = [one_agent(sleeping(journal), order=order) for order in ("key", fs.Header("customer"))]
    hosts = [Host(app, backend=backend, clock=clock, settings=settings) for app in apps]
    try:
        ends = await asyncio.gather(*(host.start() for host in hosts), return_exceptions=True)
        [refused] = [end for end in ends if end is not None]
        await hosts[ends.index(refused)].stop()
        [left] = (await hosts[ends.index(None)].admin.describe_group("t.agent")).members
    finally:
        for host in hosts:
            await host.stop()
        await backend.close()

    assert isinstance(refused, UsageError)
    assert "give all agents of the group the same order" in str(refused)
    assert left


@pytest.mark.flowshare
async def test_an_agent_that_asks_for_no_order_is_told_when_its_group_has_one(caplog: pytest.LogCaptureFixture):
    journal = Journal()
    async with members(sleeping(journal), order=None) as (backend, [host]):
        admin = ShareAdmin(lambda: backend.connect("admin"), clock=LoopTimeClock())
        await admin.alter_group_configs("t.agent", {"share.key.order": "key"})
        await admin.close()
        await host.start()
        await produce(host, of_keys(20))
        await handled(journal, 20)

    assert journal.in_order()
    assert "delivers in an order (share.key.order=key) that the agent does not ask for" in caplog.text


def test_two_agents_of_one_app_with_different_orders_are_refused_when_they_are_declared():
    app = fs.App("t")

    async def handler(value: int) -> None: ...

    app.share_agent("in", name="one", group="g", order="key")(handler)
    with pytest.raises(UsageError, match=r"share\.key\.order.*order='key' and order=None: give them the same"):
        app.share_agent("other", name="two", group="g")(handler)


async def paused(bus: Bus, *sent: tuple[str, Any]) -> None:
    """Let these come together, as by one fetch."""
    agent = bus.host.runtimes["agent"]
    agent.pause()
    await bus.advance(1)
    for key, value in sent:
        await bus.send("in", value, key=key)
    await bus.advance(1)
    agent.resume()


@pytest.mark.flowshare
@pytest.mark.parametrize("renews", [False, True])
async def test_without_renewals_handlers_have_their_timeout_and_nothing_dies_that_was_not_run(renews: bool):
    cut_short: list[int] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        if renews:
            assert await delivery.renew()
        try:
            await asyncio.sleep(4)
        except asyncio.CancelledError:
            cut_short.append(value)
            raise

    app = one_agent(handler, order="key", renew=False, timeout=5, lock_duration=10, retry=None)
    async with fs.testing.harness(app) as bus:
        await paused(bus, *(("k", value) for value in range(20)))
        report = await bus.run_until_idle()

    assert cut_short == []
    assert report["agent"].accepted == 20


@pytest.mark.flowshare
@pytest.mark.parametrize("order", ["key", None])
async def test_free_handlers_take_what_comes_however_few_they_are(order: str | None):
    began: dict[int, float] = {}

    async def handler(value: int) -> None:
        began[value] = asyncio.get_running_loop().time()
        await asyncio.sleep(3_600 if value < 1_000 else 1)

    async with fs.testing.harness(one_agent(handler, order=order, concurrency=16)) as bus:
        for number in range(5):
            await bus.send("in", 2_000 + number, key=f"w{number}")
            await bus.advance(3)
        for number in range(14):
            await bus.send("in", number, key=f"k{number}")
        await bus.advance(20)
        assert sum(value < 1_000 for value in began) == 14
        sent_s = bus.clock.monotonic()
        await bus.send("in", 5_000, key="other")
        await bus.advance(10)
        assert began[5_000] - sent_s < 1
        await bus.run_until_idle(limit=20_000)


@pytest.mark.flowshare
@pytest.mark.parametrize("after", ["continue", "park"])
async def test_a_value_that_cannot_be_read_waits_in_its_batch_for_the_records_before_it(after: str):
    calls: list[list[int]] = []

    async def load(rows: fs.Records[int]) -> None:
        calls.append([row.delivery.offset for row in rows])
        await asyncio.sleep(1)

    app = one_agent(load, order="key", batch=fs.Batch(10, within=0.1), after_dead_letter=after)
    async with fs.testing.harness(app) as bus:
        began_s = bus.clock.monotonic()
        await paused(bus, *(("k", value) for value in (1, 2, "bad", 4, 5)))
        report = await bus.run_until_idle()
        letters = bus.dead_letters("agent")
        took_s = bus.clock.monotonic() - began_s

    assert calls == ([[0, 1], [3, 4]] if after == "continue" else [[0, 1]])
    assert [one.origin[2] for one in letters] == ([2] if after == "continue" else [2, 3, 4])
    assert all(one.outcome != "lock_lost" for one in report["agent"].settled)
    assert took_s < 10


@pytest.mark.flowshare
async def test_a_record_of_a_batch_is_not_rejected_before_the_outputs_of_those_before_it_are_written():
    async def load(rows: fs.Records[int]) -> list[fs.Send]:
        for row in rows:
            if row.value == 1:
                rows.reject(row, "poison")
        return [fs.Send("out", row.value) for row in rows if row.value != 1]

    async with fs.testing.harness(one_agent(load, order="key", batch=fs.Batch(10, within=0.1))) as bus:
        send, loop = bus.host.producer.send_nowait, asyncio.get_running_loop()

        def slowly(topic: str, *args: Any, **fields: Any) -> asyncio.Future[Any]:
            sent = send(topic, *args, **fields)
            if topic != "out":
                return sent
            later = loop.create_future()
            sent.add_done_callback(lambda done: loop.call_later(0.05, later.set_result, done.result()))
            return later

        bus.host.producer.send_nowait = slowly
        await paused(bus, *(("k", value) for value in range(4)))
        began_s = bus.clock.monotonic()
        report = await bus.run_until_idle()
        letters = bus.dead_letters("agent")
        took_s = bus.clock.monotonic() - began_s

    assert [one.origin[2] for one in letters] == [1]
    assert all(one.outcome != "lock_lost" for one in report["agent"].settled)
    assert took_s < 10


@pytest.mark.flowshare
async def test_no_chains_are_fetched_for_handlers_that_have_outputs_or_are_slow():
    async def sends(value: int) -> fs.Send:
        return fs.Send("out", value)

    async def slow(value: int) -> None:
        await asyncio.sleep(1.5)

    for handler, keys in ((sends, 1), (slow, 4)):
        async with fs.testing.harness(one_agent(handler, order="key", concurrency=keys)) as bus:
            await paused(bus, *((f"k{value % keys}", value) for value in range(100)))
            await bus.run_until_idle()
            stats = bus.host.runtimes["agent"].stats()
        assert stats["accepted"] == 100
        assert stats["received"] < 300  # some more before their speed is known


@pytest.mark.flowshare
async def test_what_a_handler_goes_on_with_without_its_lock_holds_up_its_key_in_its_own_process():
    running: list[tuple[int, int]] = []
    beside: list[tuple[int, int]] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        me = (value, delivery.attempt)
        beside.extend(running)
        running.append(me)
        until_s = asyncio.get_running_loop().time() + (60 if me == (0, 1) else 0.3)
        while (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):  # as a `def` handler, which cannot be cancelled
                await asyncio.sleep(left_s)
        running.remove(me)

    async with fs.testing.harness(one_agent(handler, order="key", lock_duration=10)) as bus:
        acks = bus.host.runtimes["agent"]._feeder._acks

        async def no_answer(key: Any, ranges: Any) -> tuple[list[tuple[int, int]], float]:
            return [], 0.0

        acks.renew = no_answer
        await paused(bus, ("k", 0), ("k", 1), ("k", 2), ("other", 3))
        report = await bus.run_until_idle()

    assert beside == [(0, 1)]  # the other key's, which waits for nobody
    assert report["agent"].accepted == 4


@pytest.mark.flowshare
async def test_a_leader_that_does_not_answer_holds_up_no_renewals_at_others():
    cut_short: list[int] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        try:
            await asyncio.sleep(15)
        except asyncio.CancelledError:
            cut_short.append(delivery.partition)
            raise

    app = fs.App("t", topic_partitions=2)
    app.share_agent("in", name="agent", order="key", lock_duration=10)(handler)
    async with fs.testing.harness(app) as bus:
        acks, clock = bus.host.runtimes["agent"]._feeder._acks, bus.clock
        renew, silent = acks.renew, list[int]()

        async def slowly(key: Any, ranges: Any) -> Any:
            if not silent:
                silent.append(key[0].partition)
            if key[0].partition in silent and not cut_short:
                await clock.sleep(7)
            return await renew(key, ranges)

        acks.renew = slowly
        for number in range(6):
            await bus.send("in", number, key=f"k{number}")
        await bus.advance(13)
        assert set(cut_short) == set(silent)
        await bus.run_until_idle()


def test_who_was_stuck_is_given_work_again_as_soon_as_its_loop_gets_on():
    probed: list[Any] = []
    freed: list[None] = []
    prefetch = KeyPrefetch(16)
    pool = SimpleNamespace(busy=1, runners=[None] * 16, probe=probed.append)
    held = SimpleNamespace(buffered=1, followers=0, give_back=lambda: None, freed=lambda: freed.append(None))
    agent = SimpleNamespace(options=SimpleNamespace(batch=None))
    keeper = LockKeeper(agent, pool=pool, held=held, acks=None, prefetch=prefetch, clock=None)  # type: ignore[arg-type]

    keeper._look_for_stuck_handlers(1.5)
    assert (prefetch.stuck, prefetch.target) == (True, 1)
    held.buffered = 0
    keeper._look_for_stuck_handlers(1.75)
    assert prefetch.stuck
    probed.pop()()
    assert (prefetch.stuck, prefetch.target, len(freed)) == (False, 16, 1)


@pytest.mark.flowshare
async def test_a_record_that_loses_its_lock_takes_its_batch_with_it_at_the_cost_of_its_own_attempt_alone():
    began: dict[int, list[int]] = defaultdict(list)

    async def load(rows: fs.Records[int]) -> None:
        first = not began
        for row in rows:
            began[row.value].append(row.delivery.attempt)
        if first:
            await asyncio.sleep(40)

    options: dict[str, Any] = {"batch": fs.Batch(4, within=0.5), "retry": fs.Retry(max_attempts=2)}
    app = one_agent(load, order="key", **options)
    async with fs.testing.harness(app) as bus:
        await paused(bus, ("a", 0), ("b", 1), ("c", 2), ("b", 3))
        await bus.advance(2)
        assert dict(began) == {0: [1], 1: [1], 2: [1], 3: [1]}
        await bus.host.admin.intervene("t.agent", "in", 0, [(0, 0)], "release")
        report = await bus.run_until_idle()
        stats = bus.host.runtimes["agent"].stats()

    assert dict(began) == {0: [1, 2], 1: [1, 1], 2: [1, 1], 3: [1, 1]}
    assert report["agent"].accepted == 4
    assert (stats["retried"], stats["dead_lettered"], stats["handler_errors"]) == (0, 0, 0)


@pytest.mark.flowshare
async def test_a_batch_whose_record_loses_its_lock_while_it_waits_for_a_schema_comes_again_and_its_runner_goes_on():
    codec, got = Secrets(*[ConnectionError("refused")] * 1000), []

    async def load(rows: fs.Records[str]) -> None:
        got.extend((row.value, row.delivery.attempt) for row in rows)

    app = one_agent(load, order="key", batch=fs.Batch(3, within=0.5), concurrency=1, value_codec=codec)
    async with fs.testing.harness(app) as bus:
        await paused(bus, ("k", b"a0"), ("l", b"a1"), ("l", b"a2"))
        await bus.advance(2)
        await bus.host.admin.intervene("t.agent", "in", 0, [(0, 0)], "release")
        await bus.advance(30)
        codec.outages.clear()
        report = await bus.run_until_idle()

    assert sorted(got) == [("apple 0", 2), ("apple 1", 1), ("apple 2", 1)]
    assert report["agent"].accepted == 3


@pytest.mark.flowshare
@pytest.mark.parametrize("keys", [1, 4])
async def test_batches_stay_as_large_as_they_get_however_slow_their_handler_is(keys: int):
    sizes: list[int] = []

    async def load(rows: fs.Records[int]) -> None:
        sizes.append(len(rows))
        await asyncio.sleep(2)

    async with fs.testing.harness(one_agent(load, order="key", batch=fs.Batch(100, within=0.1))) as bus:
        await paused(bus, *((f"k{number % keys}", number) for number in range(320)))
        await bus.run_until_idle()

    assert sum(sizes) == 320
    assert len(sizes) <= 320 / (16 * keys) + 3


@pytest.mark.flowshare
async def test_an_output_now_and_then_costs_chains_for_a_while_only():
    async def handler(value: int) -> fs.Send | None:
        return fs.Send("out", value) if value == 100 else None

    async with fs.testing.harness(one_agent(handler, order="key")) as bus:
        await paused(bus, *(("k", number) for number in range(1_000)))
        await bus.run_until_idle()
        stats = bus.host.runtimes["agent"].stats()

    assert stats["accepted"] == 1_000
    assert stats["fetches"] < 150


def test_a_batch_that_may_wait_for_longer_than_its_lock_allows_is_refused():
    async def load(rows: fs.Records[int]) -> None:
        """Does nothing."""

    with pytest.raises(OptionError, match=r"wait for 6 s in a batch \(within\)"):
        one_agent(load, order="key", batch=fs.Batch(10, within=6), renew=False, timeout=5, lock_duration=10)


@pytest.mark.flowshare
async def test_a_timeout_beyond_the_groups_own_lock_keeps_no_record_from_its_handler():
    calls: list[int] = []

    async def handler(value: int) -> None:
        calls.append(value)

    app = one_agent(handler, order="key", renew=False, timeout=20)
    async with fs.testing.harness(app) as bus:
        lock = {"share.record.lock.duration.ms": "15000"}
        await bus.host.admin.alter_group_configs(app.share_agents["agent"].group, lock)
        await bus.advance(1)
        await bus.send("in", 1, key="k")
        await bus.run_until_idle()

    assert calls == [1]
