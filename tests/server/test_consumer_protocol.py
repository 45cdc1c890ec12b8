"""Groups of the consumer protocol (KIP-848) through the server: durability, restarts, conversion, offsets, settings."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from flowshare.core_errors import InvalidConfig
from flowshare.groups.consumer_types import ConsumerConfig
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    ConfiguredGroupsRequest,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteTopicRequest,
    DescribeConfigsRequest,
    DescribeGroupRequest,
    IncrementalAlterConfigsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    ShareGroupHeartbeatRequest,
)
from flowshare.server.groups import configs
from flowshare.server.groups.consumer import QUICK_BEAT_MS
from flowshare.server.groups.store import CONSUMER_GROUPS, GROUPS, MEMBERS
from flowshare.server.records.configs import ConfigApis
from flowshare.server.server import Server
from flowshare.server.settings import CONSUMER_CONFIGS, Settings
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import ManualClock, settle
from tests.server.classic_world import CONFIG, NONE, R_S, ClassicWorld, refuse
from tests.server.world import given_up, parked

pytestmark = pytest.mark.asyncio

SESSION_S, INTERVAL_MS = 45.0, 5_000


class ConsumerWorld(ClassicWorld):
    """A server with groups of the consumer protocol."""

    consumer = ConsumerConfig()

    def make(self):
        return Server(
            storage=self.storage, config=self.config, clock=self.clock, classic=self.classic, consumer=self.consumer
        )

    async def restart(self, *, config=None) -> None:
        await self.server.close()
        self.server = self.make()
        await self.start()

    def hb(self, member_id, epoch, *, group="g", connection=None, **fields):
        request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)
        return (connection or self.admin).send(replace(request, **fields))

    def enter(self, member_id="a", *, topics=("t",), **fields):
        """Join with epoch 0."""
        words = {"rebalance_timeout_ms": 60_000, "owned": (), "subscribed_topics": topics, **fields}
        return self.hb(member_id, 0, **words)

    async def member(self, member_id="a", **fields):
        answer = await self.enter(member_id, **fields)
        assert answer.error is NONE, answer.message
        return answer

    async def stable_again(self):
        """A member of the classic protocol and the generation of its group."""
        joined = await self.join()
        await self.sync(joined.member_id, joined.generation, [(joined.member_id, b"mine")])
        return joined.member_id, joined.generation

    async def describe(self, group="g"):
        return await self.admin.send(ConsumerGroupDescribeRequest(group_id=group))

    async def alter(self, validate_only=False, **settings):
        changes = {name.replace("_", "."): text for name, text in settings.items()}
        return await self.admin.send(
            IncrementalAlterConfigsRequest(
                resource_type="group", resource="g", configs=changes, validate_only=validate_only
            )
        )

    async def setting(self, name):
        answer = await self.admin.send(DescribeConfigsRequest(resource_type="group", resource="g"))
        (found,) = [entry.value for entry in answer.entries if entry.name == name]
        return found

    async def stored(self, prefix):
        return len(await self.storage.scan(prefix))


@asynccontextmanager
async def world(**fields):
    """A started server with a topic `t` of two partitions."""
    clock = ManualClock()
    made = ConsumerWorld(MemoryStorage(clock), clock, ServerConfig.embedded(), replace(CONFIG))
    made.consumer = ConsumerConfig(**fields)
    made.server = made.make()
    await made.start()
    await made.topic("t", 2)
    try:
        yield made
    finally:
        await made.close()


def places(answer):
    return [one.partition for one in answer.assignment]


# --- members ----------------------------------------------------------------------------------------------------------


async def test_two_members_share_a_topic_by_their_heartbeats() -> None:
    async with world() as w:
        first = await w.member("a")
        assert (places(first), first.heartbeat_interval_ms) == ([0, 1], INTERVAL_MS)
        second = await w.member("b")
        assert (places(second), second.heartbeat_interval_ms) == ([], QUICK_BEAT_MS)
        assert places(await w.hb("a", 2, owned=first.assignment)) == [0]
        assert (await w.hb("b", 3)).assignment is None
        done = await w.hb("a", 2, owned=first.assignment[:1])
        assert (done.member_epoch, done.heartbeat_interval_ms) == (3, INTERVAL_MS)
        assert places(await w.hb("b", 3)) == [1]

        told = await w.describe()
        assert (told.state, told.group_epoch, told.assignment_epoch, told.assignor) == ("Stable", 3, 3, "uniform")
        assert [(one.member_id, one.assigned[0].partitions, one.target[0].topic) for one in told.members] == [
            ("a", (0,), "t"),
            ("b", (1,), "t"),
        ]
        assert await w.groups(types=("consumer",)) == {"g": ("consumer", "Stable", "consumer")}


async def test_what_came_over_another_connection_frees_nothing_yet() -> None:
    async with world() as w:
        first = await w.member("a")
        await w.member("b")
        await w.hb("a", 2, owned=first.assignment)
        other = w.server.connect(client_id="again", host="h")
        assert (await w.hb("a", 2, owned=first.assignment[:1], connection=other)).member_epoch == 2
        assert (await w.hb("a", 2, connection=other)).member_epoch == 3


async def test_an_answer_leaves_when_what_it_says_is_written() -> None:
    async with world() as w:
        hold = asyncio.Event()
        w.storage.before_write = hold.wait
        waits = await parked(w.enter("a"))
        other = await parked(w.enter("b"))
        assert await w.stored(MEMBERS) == 0
        hold.set()
        w.storage.before_write = None
        assert (await waits).error is (await other).error is NONE
        assert (await w.stored(CONSUMER_GROUPS), await w.stored(MEMBERS)) == (1, 2)


async def test_what_cannot_be_written_is_told_to_nobody_and_written_later() -> None:
    async with world() as w:
        w.storage.before_write = refuse
        answer = await w.enter("a")
        assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        w.storage.before_write = None
        await w.clock.advance(1.0)
        await settle()
        assert await w.stored(MEMBERS) == 1
        assert places(await w.enter("a")) == [0, 1]


async def test_a_refused_write_while_time_passes_is_tried_again() -> None:
    async with world() as w:
        await w.member("a")
        w.storage.before_write = refuse
        await w.clock.advance(SESSION_S)
        await settle()
        assert await w.stored(MEMBERS) == 1
        w.storage.before_write = None
        await w.clock.advance(1.0)
        await settle()
        assert await w.stored(MEMBERS) == 0


async def test_members_go_on_after_a_restart_at_their_epochs() -> None:
    async with world() as w:
        first = await w.member("a")
        await w.restart()
        assert (await w.hb("a", 2, owned=first.assignment)).error is NONE
        await w.clock.advance(SESSION_S - 1)
        assert (await w.hb("a", 2)).error is NONE
        await w.clock.advance(SESSION_S)
        await settle()
        assert (await w.hb("a", 2)).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_changed_settings_act_though_who_changed_them_gives_up() -> None:
    async with world() as w:
        joined = await w.member()

        await given_up(w.storage, w.alter(consumer_heartbeat_interval_ms="700", consumer_session_timeout_ms="2000"))

        assert await w.setting("consumer.heartbeat.interval.ms") == "700"
        assert (await w.hb("a", joined.member_epoch)).heartbeat_interval_ms == 700


async def test_a_static_member_that_left_for_now_leaves_no_connection_behind() -> None:
    async with world() as w:
        for name in ("a", "b", "c"):
            connection = w.server.connect(client_id=name)
            await w.member(name, instance_id="i", connection=connection)
            assert (await w.hb(name, -2, instance_id="i", connection=connection)).error is NONE
            await connection.close()

        assert w.server.classic.entries["g"].heard == {}


async def test_static_members_leave_for_now_and_come_back() -> None:
    async with world() as w:
        await w.member("a", instance_id="i")
        assert (await w.enter("b", instance_id="i")).error is ErrorCode.UNRELEASED_INSTANCE_ID
        left = await w.hb("a", -2, instance_id="i")
        assert (left.error, left.member_epoch) == (NONE, -2)
        back = await w.member("b", instance_id="i")
        assert (places(back), back.member_epoch) == ([0, 1], 2)
        assert (await w.hb("a", 2, instance_id="i")).error is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_pattern": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_pattern": "x" * 5_000}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"group": "x" * 100_000}, ErrorCode.INVALID_GROUP_ID),
    ],
)
async def test_a_join_that_makes_no_sense_leaves_no_group(fields, error) -> None:
    async with world() as w:
        words = {"member_id": "a", **fields}
        assert (await w.enter(**words)).error is error
        assert await w.groups() == {}


async def test_a_group_takes_no_more_members_than_its_server_says() -> None:
    async with world(size_max=1) as w:
        await w.member("a")
        assert (await w.enter("b")).error is ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_a_pattern_follows_the_topics_that_may_be_described() -> None:
    async with world() as w:
        connection = w.server.connect(client_id="c", host="h")
        connection.may_describe = lambda name: name != "t-secret"
        answer = await w.member("a", topics=None, subscribed_pattern="t.*", connection=connection)
        assert places(answer) == [0, 1]
        for name in ("t-secret", "t-open", "other"):
            await w.topic(name, 1)
        assert sorted(places(await w.hb("a", 2, connection=connection))) == [0, 0, 1]
        (member,) = (await w.describe()).members
        assert {one.topic for one in member.assigned} == {"t", "t-open"}
        assert member.subscribed_pattern == "t.*"
        await w.admin.send(DeleteTopicRequest(name="t-open"))
        assert {one.topic for one in (await w.describe()).members[0].assigned} == {"t"}


async def test_without_an_engine_patterns_are_refused_and_names_are_not(monkeypatch) -> None:
    async with world() as w:
        monkeypatch.setitem(sys.modules, "re2", None)
        answer = await w.enter("a", topics=None, subscribed_pattern="t.*")
        assert answer.error is ErrorCode.UNSUPPORTED_VERSION
        assert "google-re2" in answer.message
        await w.member("a")
        w.server.classic.entries["g"].group.members["a"].pattern = "t.*"  # as if stored where there was one
        assert (await w.hb("a", 2)).error is NONE


# --- the other protocol -----------------------------------------------------------------------------------------------


async def test_an_empty_group_becomes_one_of_the_other_protocol_and_keeps_its_offsets() -> None:
    async with world() as w:
        classic = await w.stable()
        await w.commit(7, member_id=classic, generation=1)
        assert (await w.enter("a")).error is ErrorCode.GROUP_ID_NOT_FOUND
        await w.leave(classic)
        joined = await w.member("a")
        assert joined.member_epoch > 2
        assert await w.committed() == {("t", 0): 7}
        assert (await w.stored(GROUPS), await w.stored(CONSUMER_GROUPS)) == (0, 1)

        assert (await w.join()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await w.join("x")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert await w.beat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        await w.hb("a", -1)
        member_id, generation = await w.stable_again()
        assert generation > joined.member_epoch
        assert await w.committed() == {("t", 0): 7}
        assert (await w.stored(GROUPS), await w.stored(CONSUMER_GROUPS), await w.stored(MEMBERS)) == (1, 0, 0)
        await w.restart()
        assert await w.groups() == {"g": ("classic", "Stable", "consumer")}
        assert await w.beat(member_id, generation) is NONE


async def test_a_group_that_is_being_written_changes_its_protocol_a_little_later() -> None:
    async with world() as w:
        await w.member("a")
        await w.hb("a", -1)
        entry = w.server.classic.find("g")
        async with entry.members_lock:
            assert (await w.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id, _ = await w.stable_again()
        await w.leave(member_id)
        entry.writing += 1
        assert (await w.enter("a")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        entry.writing -= 1
        await w.member("a")


async def test_a_group_of_another_kind_is_not_taken_for_one_of_these() -> None:
    async with world() as w:
        assert (await w.hb("a", 3)).error is ErrorCode.UNKNOWN_MEMBER_ID
        await w.admin.send(
            ShareGroupHeartbeatRequest(group_id="g", member_id="s", member_epoch=0, subscribed_topics=("t",))
        )
        assert (await w.enter("a")).error is ErrorCode.GROUP_ID_NOT_FOUND
        assert (await w.describe()).error is ErrorCode.GROUP_ID_NOT_FOUND
        await w.stable(group="c")
        assert (await w.describe("c")).error is ErrorCode.GROUP_ID_NOT_FOUND
        assert (await w.hb("a", 3, group="c")).error is ErrorCode.UNKNOWN_MEMBER_ID
        await w.member("a", group="k")
        answer = await w.admin.send(DescribeGroupRequest(group_id="k"))
        assert (answer.error, answer.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


# --- offsets ----------------------------------------------------------------------------------------------------------


async def test_offsets_are_committed_and_read_at_the_members_epoch() -> None:
    async with world() as w:
        await w.member("a")
        assert await w.commit(3, member_id="a", generation=2) is NONE
        assert await w.commit(3, member_id="a", generation=7) is ErrorCode.STALE_MEMBER_EPOCH
        assert await w.commit(3, member_id="a", generation=2, version=8) is ErrorCode.UNSUPPORTED_VERSION
        assert await w.commit(3) is ErrorCode.UNKNOWN_MEMBER_ID
        request = OffsetFetchRequest(group_id="g", member_id="a", member_epoch=2)
        assert (await w.admin.send(request)).error is NONE
        stale = await w.admin.send(replace(request, member_epoch=1))
        assert stale.error is ErrorCode.STALE_MEMBER_EPOCH


async def test_a_transaction_commits_with_the_members_epoch() -> None:
    async with world() as w:
        await w.member("a")
        producer = await w.begin()
        assert await w.txn_commit(4, producer) is NONE
        assert await w.committed(stable=True, partitions=(("t", 0),)) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
        stale = await w.txn_commit(4, producer, member_id="a", generation=9)
        assert stale is ErrorCode.ILLEGAL_GENERATION
        assert await w.txn_commit(5, producer, member_id="a", generation=2) is NONE
        assert await w.end(producer, committed=True) is NONE
        assert await w.committed() == {("t", 0): 5}


async def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    async with world() as w:
        await w.topic("u", 1)
        await w.member("a")
        await w.commit(3, member_id="a", generation=2)
        await w.commit(4, member_id="a", generation=2, topic="u")
        answer = await w.admin.send(OffsetDeleteRequest(group_id="g", partitions=(("t", 0), ("u", 0))))
        assert [one.error for one in answer.partitions] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE]
        assert await w.committed() == {("t", 0): 3}


async def test_what_is_not_read_any_more_expires_by_its_commit_and_is_counted() -> None:
    async with world() as w:
        await w.member("a")
        await w.commit(3, member_id="a", generation=2)
        await w.clock.advance(R_S / 2)
        assert (await w.hb("a", 2)).error is NONE
        await w.clock.advance(R_S / 2 + 2)
        await settle()
        assert await w.committed() == {("t", 0): 3}
        assert w.server.stats()["offsets_expired"] == 0
        await w.hb("a", -1)
        await w.clock.advance(2.0)
        await settle()
        assert await w.groups() == {}
        assert w.server.stats()["offsets_expired"] == 1
        assert not await w.storage.scan(CONSUMER_GROUPS)


async def test_a_group_is_deleted_when_it_is_empty_and_stays_when_it_cannot_be_written() -> None:
    async with world() as w:
        await w.member("a")
        assert await w.delete() is ErrorCode.NON_EMPTY_GROUP
        await w.hb("a", -1)
        w.storage.before_write = refuse
        assert await w.delete() is not NONE
        w.storage.before_write = None
        assert await w.groups() == {"g": ("consumer", "Empty", "consumer")}
        assert await w.delete() is NONE
        await w.restart()
        assert await w.groups() == {}


@pytest.mark.parametrize("prefix", [CONSUMER_GROUPS, MEMBERS, configs.PREFIX], ids=["epochs", "member", "settings"])
async def test_what_cannot_be_read_is_refused_until_it_is_deleted(prefix) -> None:
    async with world() as w:
        await w.member("a")
        await w.alter(consumer_heartbeat_interval_ms="100")
        ((key, _),) = await w.storage.scan(prefix)
        await w.storage.write([(key, b"[")])
        await w.restart()
        assert (await w.hb("a", 2)).error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await w.delete() is NONE
        assert not await w.storage.scan(prefix)
        await w.member("a")


async def test_members_without_their_group_are_refused() -> None:
    async with world() as w:
        await w.member("a")
        ((key, _),) = await w.storage.scan(CONSUMER_GROUPS)
        await w.storage.write([(key, None)])
        await w.restart()
        assert (await w.hb("a", 2)).error is ErrorCode.UNKNOWN_SERVER_ERROR


# --- settings ---------------------------------------------------------------------------------------------------------


async def test_a_groups_settings_act_and_are_kept() -> None:
    async with world() as w:
        await w.member("a")
        assert (await w.alter(consumer_heartbeat_interval_ms="700", consumer_session_timeout_ms="2000")).error is NONE
        assert (await w.hb("a", 2)).heartbeat_interval_ms == 700
        await w.restart()
        assert await w.setting("consumer.session.timeout.ms") == "2000"
        assert (await w.admin.send(ConfiguredGroupsRequest())).group_ids == ("g",)
        await w.clock.advance(2.0)
        await settle()
        assert (await w.hb("a", 2)).error is ErrorCode.UNKNOWN_MEMBER_ID
        await w.alter(consumer_session_timeout_ms=None, consumer_heartbeat_interval_ms=None)
        assert await w.setting("consumer.session.timeout.ms") == "45000"
        assert (await w.admin.send(ConfiguredGroupsRequest())).group_ids == ()


async def test_settings_are_set_all_or_none() -> None:
    async with world() as w:
        for wrong in (
            {"consumer_session_timeout_ms": "1"},
            {"consumer_session_timeout_ms": "soon"},
            {"consumer_heartbeat_interval_ms": "50000"},
            {"consumer_no_such": "1"},
            {"share_heartbeat_interval_ms": "x"},
        ):
            answer = await w.alter(consumer_assignment_interval_ms="5", **wrong)
            assert answer.error is ErrorCode.INVALID_CONFIG, wrong
            assert await w.setting("consumer.assignment.interval.ms") == "0"
        assert (await w.alter(validate_only=True, consumer_assignment_interval_ms="5")).error is NONE
        assert await w.setting("consumer.assignment.interval.ms") == "0"
        await w.alter(consumer_assignment_interval_ms="5", share_heartbeat_interval_ms="100")
        assert await w.setting("consumer.assignment.interval.ms") == "5"
        assert await w.setting("share.heartbeat.interval.ms") == "100"


async def test_settings_are_bounded_in_number(monkeypatch) -> None:
    async with world() as w:
        monkeypatch.setattr(configs, "CONFIGURED_MAX", 0)
        assert (await w.alter(consumer_assignment_interval_ms="5")).error is ErrorCode.POLICY_VIOLATION


async def test_what_lies_outside_the_servers_bounds_by_now_is_moved_to_the_nearest() -> None:
    async with world() as w:
        await w.alter(consumer_session_timeout_ms="2000", consumer_heartbeat_interval_ms="1500")
        w.consumer = ConsumerConfig(
            session_timeout_min_ms=1_000, session_timeout_max_ms=1_400, session_timeout_ms=1_200
        )
        await w.restart()
        assert await w.setting("consumer.session.timeout.ms") == "1400"
        assert await w.setting("consumer.heartbeat.interval.ms") == "466"


async def test_the_servers_settings_are_read_and_checked() -> None:
    assert Settings.parse({}).consumer == ConsumerConfig()
    read = Settings.parse({"group.consumer.assignors": "range, uniform", "group.consumer.max.size": "7"}).consumer
    assert (read.assignors, read.size_max) == (("range", "uniform"), 7)
    for wrong in (
        {"group.consumer.assignors": "sticky"},
        {"group.consumer.assignors": ""},
        {"group.consumer.session.timeout.ms": "1"},
        {"group.consumer.heartbeat.interval.ms": "45000"},
        {"group.consumer.migration.policy": "bidirectional"},
    ):
        with pytest.raises(InvalidConfig):
            Settings.parse(wrong)
    assert all(setting.doc for setting in CONSUMER_CONFIGS.values())


async def test_where_consumer_groups_are_the_brokers_their_settings_are_refused() -> None:
    async with world() as w:
        request = IncrementalAlterConfigsRequest(
            resource_type="group", resource="g", configs={"consumer.session.timeout.ms": "5000"}
        )
        answer = await ConfigApis(w.server.share, w.storage).alter(request, w.admin)
        assert answer.error is ErrorCode.INVALID_CONFIG
        assert "left to Kafka" in answer.message
