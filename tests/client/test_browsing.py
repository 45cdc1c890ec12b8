"""`admin.browse`, `records` and `intervene`: of share groups, cooperative groups and Kafka's own."""

from __future__ import annotations

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.errors import ServerError, Unsupported
from flowshare.client.net.tcp import open_tcp
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.log.memory import MemoryStorage
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.net.listener import Listener
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.share.types import RecordState, StateRun
from tests.client.fakes import ORDERS, FakeServer
from tests.client.sockets import raw_call
from tests.client.test_wire import joined, new_topic, served
from tests.client.worlds import within, world_on
from tests.server.edge.kit import Rights

pytestmark = pytest.mark.asyncio


def batch(keys):
    builder = BatchBuilder()
    for key in keys:
        builder.add(bytes([key]), b"v", [], timestamp_ms=1_000)
    return builder.build()


def runs(page):
    return [(one.first, one.last, one.state) for one in page.runs]


async def held(world, count):
    """A consumer that holds the first records."""
    await world.send(*[b"%d" % number for number in range(count)])
    consumer = world.consumer(member_id="m1")
    await within(world.clock, 1, consumer.poll(1))
    return consumer


async def test_a_share_group_is_browsed_page_by_page(clock):
    async with world_on(clock) as world:
        await held(world, 5)

        page = await world.admin.browse("g", "orders", 0)
        pages = [one async for one in world.admin.browse_all("g", "orders", 0, limit=1)]

        assert (page.kind, page.loaded, page.initialised, page.unknown) == ("share", True, True, "")
        assert runs(page) == [(0, 4, "acquired")]
        assert [runs(one) for one in pages] == [[(0, 4, "acquired")]]
        assert page.runs[0].member_id == "m1"
        assert runs(await world.admin.browse("g", "orders", 0, from_offset=3)) == [(3, 4, "acquired")]
        assert (await world.admin.browse("g", "orders", 0, states=["available"])).runs == ()


async def test_pages_are_bounded_in_number(clock):
    async with world_on(clock) as world:
        await held(world, 5)
        await world.admin.intervene("g", "orders", 0, [(1, 1), (3, 3)], "release")

        pages = [one async for one in world.admin.browse_all("g", "orders", 0, limit=1, pages_max=2)]

        assert [runs(one) for one in pages] == [[(0, 0, "acquired")], [(1, 1, "available")]]
        assert pages[-1].next == 2


async def test_what_nobody_has_loaded_says_what_is_not_known_of_it(clock):
    async with world_on(clock) as world:
        consumer = await held(world, 5)
        await consumer.close()
        world.server.share.partitions.drop_idle("g")

        page = await world.admin.browse("g", "orders", 0)

        assert (page.loaded, runs(page)) == (False, [(0, 4, "available")])
        assert await world.admin.places("g") == [("orders", 0)]
        assert world.server.share.partitions.owners() == []
        assert "nobody has loaded" in page.unknown


@pytest.mark.parametrize(
    ("arguments", "more", "error"),
    [
        (("none", "orders", 0), {}, ErrorCode.GROUP_ID_NOT_FOUND),
        (("g", "none", 0), {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("g", "orders", 7), {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("g", "orders", 0), {"limit": 10_001}, ErrorCode.INVALID_REQUEST),
        (("g", "orders", 0), {"limit": 0}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_browsed_is_said(clock, arguments, more, error):
    async with world_on(clock) as world:
        await held(world, 1)
        with pytest.raises(ServerError) as refused:
            await world.admin.browse(*arguments, **more)

        assert refused.value.code is error


async def test_wrong_arguments_are_refused_where_they_are_given(clock):
    async with world_on(clock) as world:
        with pytest.raises(ValueError, match="there is no state 'lost'"):
            await world.admin.browse("g", "orders", 0, states=["lost"])
        with pytest.raises(ValueError, match="act must be"):
            await world.admin.intervene("g", "orders", 0, [(0, 0)], "burn")
        with pytest.raises(TypeError, match="ranges must be"):
            await world.admin.records("orders", 0, [1, 2])
        for ranges in ([(3, 1)], [(0, 2), (1, 4)], [(4, 5), (0, 1)], [(-1, 2)]):
            with pytest.raises(ValueError, match="ascending and disjoint"):
                await world.admin.records("orders", 0, ranges)


async def test_records_are_read_at_their_offsets_with_what_the_log_has_no_more(clock):
    async with world_on(clock) as world:
        for number in range(6):
            await world.send(b"%d" % number)
        await world.admin.delete_records("orders", 0, 2)

        page = await world.admin.records("orders", 0, [(0, 3), (5, 9)])

        assert [(one.offset, one.value, one.transaction) for one in page.records] == [
            (2, b"2", ""),
            (3, b"3", ""),
            (5, b"5", ""),
        ]
        assert (page.missing, page.next) == (((0, 1), (6, 9)), None)


async def test_records_end_where_there_are_enough_bytes_and_go_on_from_there(clock):
    async with world_on(clock) as world:
        for number in range(6):
            await world.send(b"%d" % number)
        found, first = [], 0
        while first is not None:
            page = await world.admin.records("orders", 0, [(first, 5)], max_bytes=1)
            found += [one.offset for one in page.records]
            first = page.next
            assert page.missing == ()

        assert found == [0, 1, 2, 3, 4, 5]


async def test_what_became_of_a_records_transaction_is_told(clock):
    async with world_on(clock) as world:
        senders = []
        for name, ends in (("a", "commit"), ("b", "abort"), ("c", None)):
            sender = Producer(world.connect, clock=clock, linger=0, transactional_id=name)
            senders.append(sender)
            await within(clock, 5, sender.begin())
            await within(clock, 5, sender.send_many("orders", [Message(name.encode(), partition=0)]))
            if ends is not None:
                await within(clock, 5, getattr(sender, ends)())
        await world.send(b"plain")

        page = await world.admin.records("orders", 0, [(0, 9)])

        assert [(one.value, one.transaction) for one in page.records] == [
            (b"a", "committed"),
            (b"b", "aborted"),
            (b"c", "open"),
            (b"plain", ""),
        ]
        for sender in senders:
            await within(clock, 20, sender.close())


async def test_what_was_done_is_told_for_each_range(clock):
    async with world_on(clock) as world:
        await held(world, 5)

        found = await world.admin.intervene("g", "orders", 0, [(0, 1), (4, 6)], "reject", dry_run=True)
        assert [tuple(one) for one in found] == [(0, 1, 2, 0, 0, 0, 0), (4, 6, 1, 2, 0, 0, 0)]
        assert await world.admin.intervene("g", "orders", 0, [(0, 1), (4, 6)], "reject") == found
        assert runs(await world.admin.browse("g", "orders", 0)) == [(2, 3, "acquired"), (4, 4, "archived")]
        with pytest.raises(ServerError, match=r"errors\.deadletterqueue\.topic\.name"):
            await world.admin.intervene("g", "orders", 0, [(2, 2)], "dead_letter")


async def test_a_cooperative_group_is_browsed_in_the_same_form(clock):
    async with world_on(clock) as world:
        keys = (b"a", b"b", b"c", b"d")
        await world.producer.send_many("orders", [Message(b"1", key=key, partition=0) for key in keys])
        consumer = CooperativeConsumer(world.connect, group_id="c", clock=clock)
        consumer.subscribe(["orders"])
        seen = 0
        while seen < 4:
            for record in await within(clock, 10, consumer.poll(5.0)):
                seen += 1
                if record.offset in (1, 2):
                    consumer.commit(record)
        await within(clock, 10, consumer.commit_sync())

        assert await world.admin.places("c") == [("orders", 0)]
        page = await world.admin.browse("c", "orders", 0)

        assert (page.kind, page.start_offset, page.end_offset, page.log_end) == ("cooperative", 0, 3, 4)
        assert runs(page) == [(0, 0, "claimed"), (1, 2, "committed")]
        assert page.runs[0].member_id
        assert {one.member_id for one in page.claims} == {page.runs[0].member_id}
        assert runs(await world.admin.browse("c", "orders", 0, states=["committed"])) == [(1, 2, "committed")]
        with pytest.raises(Unsupported, match="cooperative group"):
            await world.admin.intervene("c", "orders", 0, [(0, 0)], "release")
        await within(clock, 10, consumer.close())


def native(server, *, state):
    """A broker of Kafka's that leads the group itself."""
    part = m.SharePartitionOffsets(topic="orders", topic_id=ORDERS, partition=0, start_offset=2, lag=5)
    server.then(m.ShareBrowseRequest, Unsupported("it is no flowshare server"))
    server.then(m.DescribeShareGroupOffsetsRequest, m.DescribeShareGroupOffsetsResponse(partitions=(part,)))
    for offset in (0, 9, 9):
        server.then(m.ListOffsetsRequest, m.ListOffsetsResponse(offset=offset))
    server.then(m.ListOffsetsRequest, m.ListOffsetsResponse(offset=9))
    server.then(m.ReadShareGroupStateRequest, state)


async def test_of_kafkas_own_groups_it_is_said_what_the_brokers_do_not_tell(clock):
    server = FakeServer()
    stored = (
        StateRun(2, 3, RecordState.AVAILABLE, 1),
        StateRun(4, 4, RecordState.ACKNOWLEDGED, 1),
        StateRun(5, 5, RecordState.ARCHIVED, 5),
    )
    native(server, state=m.ShareGroupStateResponse(state=m.PartitionState(start_offset=2, runs=stored)))
    admin = ShareAdmin(server.connect, clock=clock)

    page = await admin.browse("g", "orders", 0)

    assert (page.kind, page.loaded, page.start_offset, page.end_offset) == ("native", False, 2, 6)
    assert runs(page) == [(2, 3, "available"), (4, 4, "acknowledged"), (5, 5, "archived")]
    assert "do not tell which member holds a record" in page.unknown
    await admin.close()


async def test_where_the_brokers_state_may_not_be_read_that_is_said(clock):
    server = FakeServer()
    native(server, state=m.ShareGroupStateResponse(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    admin = ShareAdmin(server.connect, clock=clock)

    page = await admin.browse("g", "orders", 0)

    assert (page.start_offset, page.runs) == (2, ())
    assert "CLUSTER_ACTION" in page.unknown
    await admin.close()


async def test_it_crosses_a_socket():
    async with served(None) as connection:
        topic, topic_id = await new_topic(connection)
        configs = {"share.auto.offset.reset": "earliest", "share.key.order": "key"}
        await connection.send(m.IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=configs))
        member, _ = await joined(connection, "g", topic)
        await connection.send(m.ProduceRequest(topic=topic, partition=0, records=batch(b"aab")))
        part = m.SharePartitionRequest(topic_id, 0)
        await connection.send(m.ShareFetchRequest(group_id="g", member_id=member, session_epoch=0, partitions=(part,)))

        async def connect():
            return connection

        admin = ShareAdmin(connect, clock=LoopClock())
        page = await admin.browse("g", topic, 0)
        assert [(one.first, one.last, one.state, one.member_id, one.head) for one in page.runs] == [
            (0, 0, "acquired", member, -1),
            (1, 1, "blocked", "", 0),
            (2, 2, "acquired", member, -1),
        ]
        assert (page.order, page.loaded, page.log_end) == ("key", True, 3)
        (found,) = await admin.intervene("g", topic, 0, [(0, 2)], "release")
        assert tuple(found) == (0, 2, 2, 0, 0, 0, 1)
        assert await admin.places("g") == [(topic, 0)]
        (row,) = (await admin.watch().look()).values()
        assert (row.group_id, row.topic, row.start_offset, row.log_end, row.lag) == ("g", topic, 0, 3, 3)
        with pytest.raises(ServerError) as refused:
            await admin.browse("none", topic, 0)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("call", "fields", "why"),
    [
        ("share_browse", {}, "required field `group_id`"),
        ("share_browse", {"group_id": "g", "topic": "t", "partition": True}, r"`bool` - at `\$.partition`"),
        ("share_browse", {"group_id": "g", "topic": "t", "partition": 0, "states": "acquired"}, "Expected `array`"),
        ("share_changes", {"server": "x" * 40_000}, "length <= 4096"),
        ("share_intervene", {"group_id": "g", "topic": "t", "partition": 0}, "required field `act`"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(call, fields, why):
    async with served(None) as connection:
        with pytest.raises(ServerError, match=why) as refused:
            await raw_call(connection, call, **fields)

        assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "ranges",
    [[], [1], [[1]], [[1, 2, 3]], [[2, 1]], [["0", 1]], [[0, 1], [1, 2]], [[-1, 2]], [[0, 10_000]], [[0, 0]] * 1_001],
)
async def test_ranges_that_make_no_sense_are_refused(ranges):
    async with served(None) as connection:
        with pytest.raises(ServerError) as refused:
            await raw_call(
                connection,
                "share_intervene",
                group_id="g",
                topic="t",
                partition=0,
                act="now",
                ranges=ranges,
                dry_run=False,
            )

        assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("denied", "works"),
    [
        ((), {"places", "browse", "records", "intervene"}),
        ((Operation.READ, ResourceType.TOPIC, "t"), {"places", "browse"}),
        ((Operation.READ, ResourceType.GROUP, "g"), {"places", "browse", "records"}),
        ((Operation.DESCRIBE, ResourceType.GROUP, "g"), {"records", "intervene"}),
        ((Operation.DESCRIBE, ResourceType.TOPIC, "t"), {"records", "intervene", "nothing to name"}),
    ],
    ids=["all", "no bytes", "acts on nothing", "not the group", "not the topic"],
)
async def test_a_viewer_sees_what_it_may_describe_and_bytes_only_of_what_it_may_read(denied, works):
    clock = LoopClock()
    server = Server(storage=MemoryStorage(clock), config=ServerConfig.embedded(), clock=clock)
    await server.start()
    here = ShareAdmin(lambda: _inside(server), clock=clock)
    await here.create_topic("t")
    await here.place_group("g", {("t", 0): 0})
    producer = Producer(lambda: _inside(server), clock=clock, linger=0)
    await producer.send_many("t", [Message(b"secret", partition=0)])
    listener = Listener(server, clock=clock, authorizer=Rights(*([denied] if denied else [])))
    host, port = await listener.start("127.0.0.1", 0)
    line = await open_tcp(host, port, client_id="viewer", clock=clock, settings=LinkSettings())

    async def outside():
        return line

    admin = ShareAdmin(outside, clock=clock)
    asked = {
        "places": lambda: admin.places("g"),
        "browse": lambda: admin.browse("g", "t", 0),
        "records": lambda: admin.records("t", 0, [(0, 0)]),
        "intervene": lambda: admin.intervene("g", "t", 0, [(0, 0)], "release"),
    }
    done, refused = {}, set()
    for name, ask in asked.items():
        try:
            done[name] = await ask()
        except ServerError as error:
            refused.add(error.code)

    assert refused <= {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    if "nothing to name" in works:
        assert done.pop("places") == []
    assert set(done) == works - {"nothing to name"}
    await admin.close()
    await producer.close()
    await here.close()
    await listener.close()
    await server.close()


async def _inside(server):
    return server.connect(client_id="inside")
