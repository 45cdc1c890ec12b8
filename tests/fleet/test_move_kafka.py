"""Share groups go from a real Kafka's brokers to workers and back; a consumer group's offsets seed one on workers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Partition
from click.testing import CliRunner

import flowshare as fs
from flowshare.backend import open_backend, parse_broker
from flowshare.backend.base import BackendError
from flowshare.backend.blocking import BlockingShareConsumer
from flowshare.backend.group_location import mark_move
from flowshare.cli.groups import groups
from flowshare.cli.move import move_group
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.admin.seeding import plan_seeds
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.ops import Failure
from flowshare.share.types import AckRange

pytestmark = [pytest.mark.asyncio, pytest.mark.java]
LIMIT_S = 40.0


class Cluster:
    """A topic with ten records, one a batch, on a real Kafka, and a group's names there."""

    def __init__(self, kafka, unique) -> None:
        self.clock = LoopClock()
        self.topic, self.group, self.fleet = unique("orders"), unique("jobs"), unique("shop")
        self.hosts = ",".join(kafka.addresses)
        self.url = f"kafka://{self.hosts}?fleet={self.fleet}&slots=4"

    @asynccontextmanager
    async def opened(self, share, *, uses=True, **options):
        """uses: the group, as an app does; False: it only looks after things, as commands do."""
        asked = {self.group: ()} if uses else {}
        backend = open_backend(f"{self.url}&share={share}&listen=127.0.0.1:0", asked=asked, **options)
        await backend.start()
        admin = ShareAdmin(lambda: backend.connect("test"), clock=self.clock)
        try:
            yield backend, admin
        finally:
            await admin.close()
            await backend.close()

    async def fill(self):
        async with self.opened("native") as (backend, admin):
            await admin.create_topic(self.topic)
            producer = Producer(lambda: backend.connect("test"), clock=LoopClock())
            for number in range(10):
                await producer.send_many(self.topic, [Message(b"%d" % number)])
            await producer.close()

    async def work(self, backend, *finished, count):
        """A member that gets `count` records, accepts some, gives the others back; the offsets that it got."""
        member = ShareMember(lambda: backend.connect("m"), group_id=self.group, topics=[self.topic], clock=self.clock)
        await member.start()
        fetched, got = [], []
        async with asyncio.timeout(LIMIT_S):
            while len(got) < count:
                for one in await member.fetch(records_max=10, max_wait_s=0.5):
                    fetched.append(one)
                    got += [number for run in one.acquired for number in range(run.first, run.last + 1)]
        for one in fetched:
            acks = tuple(
                AckRange(number, number, b"\1" if number in finished else b"\2")
                for run in one.acquired
                for number in range(run.first, run.last + 1)
            )
            await member.acknowledge({one.tp: acks}, generation=one.generation)
        await member.close()
        return sorted(got)

    async def move(self, target, **options):
        wanted = {"execute": True, "keep": False, "yes": False, **options}
        return await move_group(parse_broker(self.url), self.group, target, None, **wanted)


@pytest_asyncio.fixture
async def cluster(kafka, unique):
    made = Cluster(kafka, unique)
    await made.fill()
    return made


async def test_a_group_goes_to_workers_with_what_it_finished_and_back_with_its_start(cluster):
    async with cluster.opened("native") as (native, admin):
        await admin.alter_group_configs(cluster.group, {"share.auto.offset.reset": "earliest"})
        await cluster.work(native, 0, 1, 4, 5, 8, count=10)

    dry = await cluster.move("workers", execute=False)
    async with cluster.opened("native") as (_, admin):
        topics = {topic.name for topic in await admin.list_topics()}
        assert f"__flowshare_state.{cluster.fleet}" not in topics, "what only looks makes no fleet"
    moved = await cluster.move("workers")

    assert [(one.start, one.finished, one.again) for one in moved.moves] == [(2, ((4, 5), (8, 8)), 0)]
    assert dry.moves == moved.moves
    async with cluster.opened("native", uses=False) as (_, admin):
        assert cluster.group not in {group.group_id for group in await admin.list_groups()}
    async with cluster.opened("workers", lead=True) as (workers, _):
        assert await cluster.work(workers, 3, count=5) == [2, 3, 6, 7, 9]

    with pytest.raises(Failure, match=r"4 finished records of group .* would run again .*--yes"):
        await cluster.move("native")
    async with cluster.opened("workers", lead=True):  # a worker leads the fleet while the command runs
        back = await cluster.move("native", yes=True, keep=True)
    assert [(one.start, one.again) for one in back.moves] == [(2, 4)]
    async with cluster.opened("native") as (native, _):
        assert await cluster.work(native, count=8) == [2, 3, 4, 5, 6, 7, 8, 9]


async def test_records_that_wait_for_a_retry_keep_a_group_where_it_is(cluster):
    async with cluster.opened("native") as (native, admin):
        waiting = f"{cluster.group}.retry"
        await admin.create_topic(waiting)
        producer = Producer(lambda: native.connect("test"), clock=LoopClock())
        await producer.send_many(waiting, [Message(b"later")])
        await producer.close()
        await admin.place_group(cluster.group, {(cluster.topic, 0): 3, (waiting, 0): 0})

        with pytest.raises(Failure, match="1 record waits in"):
            await cluster.move("workers")
        await admin.place_group(cluster.group, {(waiting, 0): 1})
        assert [one.topic for one in (await cluster.move("workers")).moves] == [cluster.topic]


async def test_a_group_on_workers_begins_where_a_consumer_group_is(cluster):
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.hosts, group_id=f"{cluster.group}-etl", enable_auto_commit=False
    )
    await consumer.start()
    consumer.assign([Partition(cluster.topic, 0)])
    await consumer.commit({Partition(cluster.topic, 0): 6})
    await consumer.stop()

    async with cluster.opened("workers", lead=True) as (workers, admin):
        plan = await plan_seeds(admin, f"{cluster.group}-etl")
        assert [(seed.committed, seed.start) for seed in plan.seeds] == [(6, 6)]
        assert await admin.consumer_members(f"{cluster.group}-etl") == 0
        await admin.place_group(cluster.group, {(seed.topic, seed.partition): seed.start for seed in plan.seeds})
        assert await cluster.work(workers, count=4) == [6, 7, 8, 9]


# --- a start in the wrong place --------------------------------------------------------------------------------------


async def refused(cluster, share, match, **options):
    with pytest.raises(BackendError, match=match):
        async with cluster.opened(share, **options):
            pass


async def forget_mark(cluster):
    """As before there were marks, or where the topic of marks was lost."""
    async with cluster.opened("native", uses=False) as (backend, admin):
        producer = Producer(lambda: backend.connect("test"), clock=LoopClock())
        await mark_move(admin, producer, cluster.group, None)
        await producer.close()


async def begin(cluster, *finished):
    async with cluster.opened("native") as (native, admin):
        await admin.alter_group_configs(cluster.group, {"share.auto.offset.reset": "earliest"})
        await cluster.work(native, *finished, count=10)


async def test_a_group_that_was_moved_is_begun_anew_nowhere(cluster):
    await begin(cluster, 0, 1, 2, 3)
    await cluster.move("workers")

    await refused(cluster, "native", r"was moved to the workers of fleet .*flowshare groups move .* --to native")
    with pytest.raises(BackendError, match="was moved to the workers"):
        await asyncio.to_thread(
            BlockingShareConsumer, f"{cluster.url}&share=native", topics=[cluster.topic], group_id=cluster.group
        )
    with pytest.raises(BackendError, match="was moved to the workers"):  # a program that knows nothing of the fleet
        async with fs.ShareConsumer(f"kafka://{cluster.hosts}", [cluster.topic], group_id=cluster.group):
            pass
    async with cluster.opened("auto", lead=True) as (workers, _):
        assert workers.kind == "workers"
        assert await cluster.work(workers, count=6) == [4, 5, 6, 7, 8, 9]

    await cluster.move("native", yes=True)
    await refused(cluster, "workers", "was moved to the brokers", lead=True)
    async with cluster.opened("auto", lead=True) as (native, _):
        assert native.kind == "native", "although the fleet has a state topic"
        assert await cluster.work(native, count=6) == [4, 5, 6, 7, 8, 9]
    async with fs.ShareAdmin(f"kafka://{cluster.hosts}?fleet={cluster.fleet}") as admin:  # as commands do: no group
        assert await admin.group_offsets(cluster.group)


async def test_without_marks_what_is_there_decides(cluster):
    await begin(cluster, 0, 1)
    await refused(cluster, "workers", r"lives with the brokers.*groups move .* --to workers", lead=True)
    await cluster.move("workers")
    await forget_mark(cluster)

    await refused(cluster, "native", r"lives with the workers of fleet .*groups move .* --to native")
    async with fs.Broker(f"kafka://{cluster.hosts}") as broker:
        with pytest.raises(BackendError, match=f"lives with the workers of fleet {cluster.fleet}"):
            await fs.ShareConsumer(broker, [cluster.topic], group_id=cluster.group).poll(30.0)

    await cluster.move("native", yes=True, keep=True)
    await forget_mark(cluster)
    for share in ("native", "workers", "auto"):
        await refused(cluster, share, "nothing says which one is right")


async def test_a_consumer_group_of_the_name_is_not_passed_over(cluster):
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.hosts, group_id=cluster.group, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([Partition(cluster.topic, 0)])
    await consumer.commit({Partition(cluster.topic, 0): 6})
    await consumer.stop()

    await refused(cluster, "workers", f"groups seed NAME --from-consumer-group {cluster.group}", lead=True)


async def test_ten_moves_back_and_forth_run_nothing_twice(cluster):
    await begin(cluster, 0)
    for number in range(1, 10):
        target = "workers" if number % 2 else "native"
        await cluster.move(target, yes=True)
        other = "native" if number % 2 else "workers"
        await refused(cluster, other, "was moved to", lead=other == "workers")
        async with cluster.opened("auto", lead=True) as (backend, _):
            assert backend.kind == target
            assert await cluster.work(backend, number, count=10 - number) == list(range(number, 10))


async def delete(cluster, share):
    done = await asyncio.to_thread(
        CliRunner().invoke, groups, ["delete", cluster.group, "--yes", "--broker", f"{cluster.url}&share={share}"]
    )
    assert done.exit_code == 0, done.output
    return done.output


async def test_a_group_that_was_deleted_where_it_was_moved_to_may_begin_anew(cluster):
    await begin(cluster, 0)
    await cluster.move("workers")
    assert f"deleted group {cluster.group}" in await delete(cluster, "workers")
    await begin(cluster, 0, 1)

    await cluster.move("workers")
    await cluster.move("native", yes=True)
    async with cluster.opened("native") as (_, admin):
        await admin.delete_group(cluster.group)  # by somebody else's tool
    await refused(cluster, "workers", "was moved to the brokers", lead=True)
    assert "the mark that it was moved here is deleted" in await delete(cluster, "native")
    async with cluster.opened("workers", lead=True) as (workers, admin):
        await admin.alter_group_configs(cluster.group, {"share.auto.offset.reset": "earliest"})
        assert await cluster.work(workers, count=10) == list(range(10))
