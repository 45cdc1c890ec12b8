"""Faust's own agents and tables beside share agents: on an embedded path through Faust's own transport."""

from __future__ import annotations

import ast
import asyncio
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.backend.base import KafkaAddress
from flowshare.backend.path_login import client_security
from flowshare.client.net.security import Security
from flowshare.log.owner import read_owner
from tests.agents.processes import Processes
from tests.waiting import LIMIT_S, until


class Order(fs.Record, serializer="json"):
    """Value type of the agents below."""

    customer: str
    amount: int


# --- what does not run ------------------------------------------------------------------------------------------------


def agent_of(app: fs.App) -> None:
    @app.agent(app.topic("in"))
    async def own(stream: Any) -> None: ...


def table_of(app: fs.App) -> None:
    app.Table("counts", default=int)


def stream_of(app: fs.App) -> None:
    app.stream(app.topic("in"))


@pytest.mark.parametrize("declare", [agent_of, table_of, stream_of])
def test_on_memory_fausts_streams_are_refused_with_what_to_use(declare: Callable[[fs.App], None]) -> None:
    app = fs.App("t", broker="memory://")

    async def main() -> None:
        declare(app)
        async with app.running():
            raise AssertionError("must not start")

    with pytest.raises(UsageError, match=r"do not run on the memory backend: .*embedded:///path.*@app.share_agent"):
        asyncio.run(main())


def test_a_stream_that_a_running_app_begins_on_memory_is_refused_as_well() -> None:
    app = fs.App("t", broker="memory://")

    async def main() -> None:
        async with app.running():
            app.stream(app.topic("in"))

    with pytest.raises(UsageError, match="do not run on the memory backend: a stream"):
        asyncio.run(main())


def test_fausts_own_worker_is_told_to_leave_it_to_flowshares() -> None:
    app = fs.App("t", broker="memory://")
    agent_of(app)

    with pytest.raises(UsageError, match="flowshare worker"):
        asyncio.run(app.start())


@pytest.mark.parametrize("name", ["broker_consumer", "broker_producer", "broker_credentials", "ssl_context"])
def test_a_broker_setting_of_fausts_points_to_the_url(name: str) -> None:
    with pytest.raises((UsageError, OptionError), match=f"{name} has no effect here.*broker's URL"):
        fs.App("t", broker="memory://", **{name: "kafka://elsewhere"})


# --- what does not start ----------------------------------------------------------------------------------------------


def test_an_app_of_share_agents_starts_nothing_of_kafkas(tmp_path: Path) -> None:
    app = fs.App("t", broker=f"embedded://{tmp_path}/log")

    @app.share_agent("in")
    async def handle(value: bytes) -> None: ...

    async def main() -> tuple[set[str], set[str], list[str]]:
        async with app.running():
            host = app.host
            assert host is not None
            topics = await host.service.call(lambda: host.admin.list_topics())
            groups = await host.service.call(lambda: host.admin.list_groups())
            children = [type(child).__name__ for child in app._children]
            return {topic.name for topic in topics}, {group.group_id for group in groups}, children

    topics, groups, children = asyncio.run(main())

    assert topics == {"in", "t.handle.dlq"}
    assert groups == {"t.handle"}
    assert children == []
    assert (app._consumer, app._transport, app._producer) == (None, None, None)
    assert not {"topics", "tables", "_leader_assignor", "_fetcher"} & set(app.__dict__)


# --- what Faust is told -----------------------------------------------------------------------------------------------


def test_fausts_transport_takes_address_and_login_from_the_brokers_url() -> None:
    from flowshare.agents.faust.streams import tell

    app = fs.App("t", broker="kafka://ann@one:9092,two:9093?security=SASL_PLAINTEXT")
    security = Security(protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="ann", password="secret")

    tell(app, KafkaAddress(hosts=("one:9092", "two:9093"), security=security))

    assert [f"{url.host}:{url.port}" for url in app.transport.url] == ["one:9092", "two:9093"]
    login = app.conf.broker_credentials
    assert (login.username, login.password, login.mechanism.value) == ("ann", "secret", "SCRAM-SHA-256")
    assert login.protocol.value == "SASL_PLAINTEXT"


def test_types_of_share_agents_are_decoded_for_fausts_agents_too() -> None:
    app = fs.App("t", broker="memory://")
    loads = app.serializers.loads_value

    assert loads(str, b"plain") == "plain"
    assert loads(dict[str, int], b'{"a": 1}') == {"a": 1}
    assert loads(Order, b'{"customer": "ann", "amount": 3}') == Order(customer="ann", amount=3)
    assert loads(int, b"5") == 5
    assert loads(dict, None) is None
    assert app.serializers.dumps_value(str, "plain") == b"plain"
    assert app.serializers.dumps_value(None, "text") == b'"text"'


# --- all together -----------------------------------------------------------------------------------------------------


class Classic:
    """An app with Faust's classic features, on orders that a share agent lets through."""

    def __init__(self, path: Path) -> None:
        self.app = app = fs.App("classic", broker=f"embedded://{path}/log", datadir=str(path), store="rocksdb://")
        self.orders = app.topic("orders", value_type=Order, partitions=2)
        self.good = app.topic("good", key_type=str, value_type=Order, partitions=2)
        self.customers = app.Table("customers", default=int, partitions=2)
        self.amounts = app.Table("amounts", default=int)
        self.lately = app.Table("lately", default=int).tumbling(timedelta(hours=1), expires=timedelta(hours=2))
        self.at_once: list[int] = []
        self.in_window: list[int] = []
        self.read: list[str] = []
        self.greeted: list[str] = []
        self.ticks = 0
        app.share_agent(self.orders, concurrency=8)(self.let_through)
        app.agent(self.good, name="per_customer")(self.per_customer)
        app.agent(self.good, name="count_at_once", concurrency=3)(self.count_at_once)
        app.agent(self.good, name="per_amount")(self.per_amount)
        self.double = app.agent(name="double")(self.doubled)
        self.greet = app.agent(name="greet", value_type=str)(self.greeting)
        app.task(self.reading)
        app.timer(interval=0.1)(self.tick)

    async def let_through(self, order: Order) -> fs.Send:
        return fs.Send(self.good, order, key=order.customer)

    async def per_customer(self, stream: Any) -> None:
        async for order in stream:
            self.customers[order.customer] += 1

    async def count_at_once(self, stream: Any) -> None:
        async for order in stream:
            await asyncio.sleep(0)
            self.at_once.append(order.amount)

    async def per_amount(self, stream: Any) -> None:
        async for order in stream.group_by(Order.amount, partitions=1):
            self.amounts[order.amount] += 1
            self.lately["all"] += 1
            self.in_window.append(self.lately["all"].current())

    async def doubled(self, stream: Any) -> Any:
        async for number in stream:
            yield number * 2

    async def greeting(self, stream: Any) -> None:
        async for name in stream:
            self.greeted.append(name)

    async def reading(self) -> None:
        async for order in self.app.stream(self.good):
            self.read.append(order.customer)

    async def tick(self) -> None:
        self.ticks += 1


@pytest.mark.slow
def test_fausts_classic_features_run_on_an_embedded_path(tmp_path: Path) -> None:
    async def main() -> Classic:
        classic = Classic(tmp_path)
        async with classic.app.running():
            for number in range(60):
                await classic.orders.send(value=Order(customer=f"c{number % 5}", amount=number % 3))
            await classic.greet.cast("ann")
            assert await asyncio.wait_for(classic.double.ask(21), LIMIT_S) == 42
            await until(lambda: sum(classic.customers.values()) >= 60, "orders per customer")
            await until(lambda: sum(classic.amounts.values()) >= 60, "orders per amount")
            await until(lambda: len(classic.at_once) >= 60, "an agent with concurrency")
            await until(lambda: max(classic.in_window) >= 60, "a window")
            deadline = time.monotonic() + LIMIT_S
            while not classic.read:  # a stream that begins while the app runs has what comes from then on
                await classic.orders.send(value=Order(customer="c0", amount=0))
                assert time.monotonic() < deadline, "a stream in a task"
            assert set(classic.customers.keys()) == {f"c{number}" for number in range(5)}
            assert set(classic.amounts.keys()) == {0, 1, 2}
        return classic

    classic = asyncio.run(main())

    assert set(classic.greeted) == {"ann"}, "at least once"
    assert classic.ticks
    assert list(tmp_path.rglob("customers-*.db")), "the tables' data is on disk"


@pytest.mark.slow
def test_records_that_were_on_their_way_at_a_seek_are_handled_once(tmp_path: Path) -> None:
    app = fs.App("seek", broker=f"embedded://{tmp_path}/log", broker_commit_interval=60.0)
    orders = app.topic("orders", value_type=int, partitions=2)
    seen: list[int] = []

    @app.agent(orders)
    async def count(stream: Any) -> None:
        async for number in stream:
            seen.append(number)

    async def main() -> None:
        async with app.running():
            for count in (10, 20):
                for number in range(count - 10, count):
                    await orders.send(value=number, partition=number % 2)
                await until(lambda count=count: len(seen) >= count, "the first orders")
                if count == 10:
                    await app.consumer.commit()
            await app.consumer.seek_to_committed()
            for number in range(20, 22):
                await orders.send(value=number, partition=number % 2)
            await until(lambda: {20, 21} <= set(seen), "the last orders")

    asyncio.run(main())

    assert sorted(seen) == list(range(22))


@pytest.mark.slow
def test_what_was_handled_before_partitions_move_is_not_handled_again(tmp_path: Path) -> None:
    seen: list[int] = []
    half = asyncio.Event()

    def counting() -> tuple[fs.App, Any]:
        app = fs.App("moves", broker=f"embedded://{tmp_path}/log", broker_commit_interval=60.0)
        orders = app.topic("orders", value_type=int, partitions=2)

        @app.agent(orders)
        async def count(stream: Any) -> None:
            async for number in stream:
                seen.append(number)
                if len(seen) == 20:
                    half.set()

        return app, orders

    async def main() -> None:
        (first, orders), (second, _) = counting(), counting()
        async with first.running():
            for number in range(20):
                await orders.send(value=number, partition=number % 2)
            await half.wait()
            async with second.running():
                for number in range(20, 40):
                    await orders.send(value=number, partition=number % 2)
                await until(lambda: set(seen) == set(range(40)), "all orders")

    asyncio.run(main())

    assert sorted(seen) == list(range(40))


# --- processes --------------------------------------------------------------------------------------------------------


class Revenue(Processes):
    """The example's workers over one path, and what its agents have to come to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log"
        url = f"embedded://{self.path}"
        super().__init__(folder, url, FLOWSHARE_BROKER=url)
        self.expected: Counter[str] = Counter()

    def worker(self) -> subprocess.Popen[bytes]:
        return self.cli("worker", "examples.table_counts:app")

    def order(self, count: int) -> None:
        """Have the agents count that many orders more."""
        rows = [{"customer": f"c{number % 4}", "cents": 100 + number % 7} for number in range(count)]
        for row in rows:
            self.expected[str(row["customer"])] += int(row["cents"]) * 119 // 100
        self.send("orders", *(json.dumps(row).encode() for row in rows))

    def wait_total(self, *, twice: bool = False) -> None:
        """Until the last totals of the last worker are as they have to be; `twice`: or more, as records may come
        again."""

        def right() -> bool:
            shown = totals(self.log(self.started[-1]))
            return bool(shown) and (shown[-1] == self.expected or (twice and Counter(shown[-1]) >= self.expected))

        self.wait(right, str(self.expected))


def totals(output: str) -> list[dict[str, int]]:
    """Return the totals that a worker's timer has printed."""
    lines = [line for line in output.splitlines() if line.startswith("revenue {") and line.endswith("}")]
    return [ast.literal_eval(line.removeprefix("revenue ")) for line in lines]


@pytest.fixture
def revenue(tmp_path: Path) -> Iterator[Revenue]:
    with closing(Revenue(tmp_path)) as made:
        yield made


@pytest.mark.slow
def test_a_table_has_its_counts_again_after_kill_9(revenue: Revenue) -> None:
    revenue.order(200)
    first = revenue.worker()
    revenue.wait_total()
    asyncio.run(committed(revenue.path, 200))

    first.kill()
    first.wait()
    second = revenue.worker()
    revenue.wait_total()
    revenue.order(100)
    revenue.wait_total()

    second.send_signal(signal.SIGTERM)
    assert second.wait(LIMIT_S) == 0, revenue.log()


@pytest.mark.slow
def test_faust_goes_on_in_another_process_when_the_leader_of_the_path_is_killed(revenue: Revenue) -> None:
    revenue.order(100)
    first = revenue.worker()
    revenue.wait_total()
    second = revenue.worker()
    revenue.wait_log(second, "ready after")
    asyncio.run(committed(revenue.path, 100))

    first.kill()
    first.wait()
    revenue.wait(lambda: (owner := read_owner(revenue.path)) is not None and owner.pid == second.pid, "another leads")
    revenue.order(100)
    revenue.wait_total(twice=True)


async def committed(log: Path, count: int) -> None:
    """Until that many records are committed: what is not yet is counted again after a kill, at least once."""
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient

    owner = read_owner(log)
    assert owner is not None
    login = client_security(log).for_aiokafka()
    admin = AIOKafkaAdminClient(bootstrap_servers=owner.listener, **login)
    await admin.start()
    try:

        async def there() -> bool:
            offsets = await admin.list_consumer_group_offsets("revenue")
            found = offsets.get(TopicPartition("orders.priced", 0))
            return found is not None and found.offset >= count

        await until(there)
    finally:
        await admin.close()
