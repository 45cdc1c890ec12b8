"""The admin client against the real server over a storage in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flowshare.backend.group_location import TOPIC as MARKS
from flowshare.client.admin.admin import OffsetReset, PartitionBounds, ShareAdmin
from flowshare.client.errors import ConnectionLost, ServerError
from flowshare.fleet.state.topic import state_topic
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.client.fakes import FakeServer
from tests.client.worlds import within, world_on

pytestmark = pytest.mark.asyncio


async def consumed(world, count):
    """Let the group accept the first `count` records."""
    consumer = world.consumer(member_id="m1")
    left = count
    while left > 0:
        left -= len(await within(world.clock, 1, consumer.poll(1)))
    await consumer.commit_sync()
    await consumer.close()


async def test_topics_are_created_described_grown_and_deleted(clock):
    async with world_on(clock) as world:
        await world.admin.create_topic("b", partitions=2, configs={"retention.ms": "5000"})
        await world.admin.create_topic("b", exist_ok=True)
        with pytest.raises(ServerError, match="TOPIC_ALREADY_EXISTS"):
            await world.admin.create_topic("b")
        await world.admin.create_partitions("b", 3)
        await world.admin.alter_topic_configs("b", {"retention.ms": "6000"})

        assert [topic.name for topic in await world.admin.list_topics()] == ["b", "orders"]
        assert (await world.admin.describe_topic("b")).partitions == 3
        assert ("retention.ms", "6000") in [(e.name, e.value) for e in await world.admin.topic_configs("b")]
        await world.admin.delete_topic("b")
        with pytest.raises(ServerError, match="topics ls"):
            await world.admin.describe_topic("b")


@pytest.mark.parametrize(
    ("topic", "lost"),
    [
        (state_topic("shop"), "all that the fleet shop knows: its groups begin anew"),
        (MARKS, "which groups were moved"),
        ("__consumer_offsets", "the committed offsets of all consumer groups"),
        ("__transaction_state", "which transactions are open"),
        ("__share_group_state", "where all share groups of the brokers stand"),
        ("__somebodys", "whatever its owner keeps in it"),
    ],
)
async def test_an_internal_topic_is_deleted_by_who_says_so_only(clock, topic, lost):
    server = FakeServer()
    server.then(m.DeleteTopicRequest, m.TopicResult(topic=topic))
    admin = ShareAdmin(server.connect, clock=clock)
    with pytest.raises(ServerError) as refused:
        await admin.delete_topic(topic)

    assert f"with it goes {lost}" in str(refused.value)
    assert str(refused.value).endswith(f"`flowshare topics delete {topic} --internal`")
    await admin.delete_topic(topic, internal=True)
    await admin.close()
    assert server.requests == [m.DeleteTopicRequest(name=topic)]


async def test_a_batch_that_a_broker_cut_off_at_the_end_of_its_answer_is_asked_for_again(clock, monkeypatch):
    """Kafka's brokers fill an answer up to its limit, whatever that does to the last batch."""
    async with world_on(clock) as world:
        for number in range(3):
            await world.send(b"%d" % number)
        whole = world.admin._fetch
        cut = iter([True])

        async def fetch(*arguments, **options):
            log = await whole(*arguments, **options)
            return replace(log, records=log.records[:-20]) if next(cut, False) else log

        monkeypatch.setattr(world.admin, "_fetch", fetch)

        assert [record.value for record in await world.admin.read("orders", 0)] == [b"0", b"1", b"2"]


async def test_records_are_read_from_an_offset_up_to_a_limit_without_a_group(clock):
    async with world_on(clock) as world:
        for number in range(5):
            await world.send(*[b"%d-%d" % (number, index) for index in range(4)])

        assert [r.value for r in await world.admin.read("orders", 0, 2, limit=4)] == [b"0-2", b"0-3", b"1-0", b"1-1"]
        assert len(await world.admin.read("orders", 0)) == 20
        assert await world.admin.read("orders", 0, 20) == []
        assert await world.admin.read("orders", 0, 99) == []
        assert await world.admin.delete_records("orders", 0, 18) == 18
        assert [r.offset for r in await world.admin.read("orders", 0)] == [18, 19]
        assert await world.admin.offsets("orders", 0) == PartitionBounds(18, 20)
        with pytest.raises(ServerError, match="UNKNOWN_TOPIC"):
            await world.admin.read("nothing", 0)


async def test_groups_are_listed_and_described_with_members_and_lag(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b")
        await consumed(world, 2)
        consumer = world.consumer(member_id="m2")
        await within(clock, 1, consumer.poll(0.1))

        found = await world.admin.describe_group("g")

        assert [(g.group_id, g.state) for g in await world.admin.list_groups()] == [("g", "Stable")]
        assert await world.admin.list_groups(states=["Empty"]) == []
        assert [(one.member_id, dict(one.assignment)) for one in found.members] == [("m2", {"orders": (0,)})]
        (part,) = await world.admin.group_offsets("g")
        assert (part.topic, part.start_offset, part.lag) == ("orders", 2, 0)
        with pytest.raises(ServerError, match="groups ls"):
            await world.admin.describe_group("nobody")


async def test_a_dry_run_shows_the_move_and_changes_nothing(clock):
    async with world_on(clock) as world:
        await world.send(b"a", b"b", b"c")
        await consumed(world, 3)

        moves = await world.admin.reset_offsets("g", to="earliest", dry_run=True)

        assert moves == [OffsetReset("orders", 0, 3, 0, 3)]
        assert (await world.admin.group_offsets("g"))[0].start_offset == 3


async def test_offsets_are_reset_to_an_end_an_offset_or_a_time(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        await clock.advance(100)
        moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        await world.send(b"b", b"c")
        await consumed(world, 3)

        async def moved(to):
            await world.admin.reset_offsets("g", to=to)
            return (await world.admin.group_offsets("g"))[0].start_offset

        assert [await moved(to) for to in ("earliest", "latest", 2, 99, moment)] == [0, 3, 2, 3, 1]
        with pytest.raises(ValueError, match="time zone"):
            await world.admin.reset_offsets("g", to=datetime(2026, 1, 1))  # noqa: DTZ001 (that is the point)
        again = await world.consumer().poll(1)
        assert [record.value for record in again] == [b"b", b"c"]


async def test_a_reset_names_topics_that_the_group_never_had(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        await consumed(world, 1)
        await world.admin.create_topic("more", partitions=2)

        moves = await world.admin.reset_offsets("g", to="latest", topics=["more"])

        assert [(move.topic, move.partition, move.after) for move in moves] == [("more", 0, 0), ("more", 1, 0)]


async def test_a_group_with_members_is_neither_moved_nor_deleted(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        await world.consumer().poll(1)

        with pytest.raises(ServerError, match="stop the group's members"):
            await world.admin.reset_offsets("g", to="earliest")
        with pytest.raises(ServerError, match="NON_EMPTY_GROUP"):
            await world.admin.delete_group("g")
        with pytest.raises(ServerError, match="NON_EMPTY_GROUP"):
            await world.admin.delete_offsets("g", ["orders"])


async def test_an_empty_group_forgets_a_topic_and_is_deleted(clock):
    async with world_on(clock) as world:
        await world.send(b"a")
        await consumed(world, 1)

        await world.admin.delete_offsets("g", ["orders"])
        assert await world.admin.group_offsets("g") == []
        await world.admin.delete_group("g")

        assert await world.admin.list_groups() == []


async def test_group_settings_are_checked_set_and_unset(clock):
    async with world_on(clock) as world:
        name = "share.record.lock.duration.ms"

        async def setting():
            return {e.name: (e.value, e.is_default) for e in await world.admin.group_configs("g")}[name]

        await world.admin.alter_group_configs("g", {name: "20000"}, dry_run=True)
        assert await setting() == ("30000", True)
        await world.admin.alter_group_configs("g", {name: "20000"})
        assert await setting() == ("20000", False)
        await world.admin.alter_group_configs("g", {name: None})
        assert await setting() == ("30000", True)
        with pytest.raises(ServerError, match=r"share\.record\.lock\.duration\.ms"):
            await world.admin.alter_group_configs("g", {"share.record.lock.duration": "1"})


def told(value, *, default=False):
    return m.DescribeConfigsResponse(
        entries=(m.ConfigEntry(name="share.auto.offset.reset", value=value, is_default=default),)
    )


async def test_a_setting_of_a_group_is_set_when_the_brokers_tell_it_and_not_when_they_say_yes(clock):
    """A share-partition begins once, where the setting says: at the end of the log, behind all that is there."""
    server = FakeServer()
    admin = ShareAdmin(server.connect, clock=clock)
    server.then(m.IncrementalAlterConfigsRequest, m.Response())
    server.then(m.DescribeConfigsRequest, told("latest", default=True), told("latest", default=True), told("earliest"))

    await within(clock, 5, admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"}))

    assert len(server.seen(m.DescribeConfigsRequest)) == 3
    await admin.close()


@pytest.mark.parametrize(
    "answer", [told("often"), m.DescribeConfigsResponse(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)]
)
async def test_a_setting_that_is_told_in_another_form_or_to_nobody_is_not_waited_for_without_end(clock, answer):
    server = FakeServer()
    admin = ShareAdmin(server.connect, clock=clock)
    server.then(m.IncrementalAlterConfigsRequest, m.Response())
    server.then(m.DescribeConfigsRequest, *[answer] * 500)

    await within(clock, 30, admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"}))

    await admin.close()


async def test_a_number_is_told_as_it_was_set_however_it_was_written(clock):
    async with world_on(clock) as world:
        before_s = clock.monotonic()
        await world.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "020000"})

        assert clock.monotonic() - before_s < 1


async def test_a_paused_group_hands_out_nothing_until_it_is_resumed(clock):
    async with world_on(clock) as world:
        consumer = world.consumer(member_id="m1")
        assert await within(world.clock, 3, consumer.poll(1)) == []
        await world.admin.pause_group("g")
        await world.send(b"a")
        assert await within(world.clock, 3, consumer.poll(1)) == []

        await world.admin.resume_group("g")

        assert [record.value for record in await within(world.clock, 3, consumer.poll(1))] == [b"a"]
        await consumer.close()


async def test_what_reads_is_asked_again_and_what_changes_is_not(clock):
    server = FakeServer()
    admin = ShareAdmin(server.connect, clock=clock)
    server.then(m.MetadataRequest, ConnectionResetError("gone"), None)
    server.then(m.CreateTopicRequest, ConnectionResetError("gone"))

    topics = await within(clock, 5, admin.list_topics())
    with pytest.raises(ConnectionLost):
        await within(clock, 5, admin.create_topic("b"))

    assert [topic.name for topic in topics] == ["orders"]
    assert len(server.seen(m.CreateTopicRequest)) == 1
    assert server.seen(m.MetadataRequest)
    await admin.close()


@pytest.mark.parametrize("act", ["unpark", "replay"])
async def test_a_change_of_a_parked_key_whose_answer_is_lost_is_open_and_not_sent_again(clock, act):
    """Sent again it would be told that the key is not parked, which the first one may have seen to."""
    server = FakeServer()
    admin = ShareAdmin(server.connect, clock=clock)
    server.then(m.ParkedKeysRequest, ConnectionResetError("gone"), m.ParkedKeysResponse())

    with pytest.raises(ConnectionLost):
        await within(clock, 5, admin.change_parked_key("g", act, "orders", 0, b"k"))

    assert len(server.seen(m.ParkedKeysRequest)) == 1
    await admin.close()


async def test_closing_a_breaker_is_not_sent_again_as_it_would_close_one_that_opened_meanwhile(clock):
    server = FakeServer()
    admin = ShareAdmin(server.connect, clock=clock)
    gone = ConnectionResetError("gone")
    server.then(m.ShareBreakerRequest, gone, gone, *2 * [m.ShareBreakerResponse()])

    with pytest.raises(ConnectionLost):
        await within(clock, 5, admin.close_breaker("g"))
    await within(clock, 5, admin.breaker("g"))

    assert [request.act for request in server.seen(m.ShareBreakerRequest)] == ["close", "tell", "tell"]
    await admin.close()


async def test_a_refused_setting_is_an_error_with_its_code(clock):
    async with world_on(clock) as world:
        with pytest.raises(ServerError) as caught:
            await world.admin.alter_topic_configs("orders", {"retention.ms": "often"})

        assert caught.value.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert not caught.value.retriable
