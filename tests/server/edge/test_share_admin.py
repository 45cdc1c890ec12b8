"""ShareGroupDescribe, the share-offsets APIs and the state APIs, at a socket."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.protocol.rights import Operation, ResourceType
from tests.server.edge.kit import batch, edge, part
from tests.server.edge.test_share import Member, heartbeat, parts, ranges, ready

pytestmark = pytest.mark.asyncio

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4


async def alter(socket, *places, group_id="g"):
    """AlterShareGroupOffsets of (topic, partition, offset): top error, errors by place."""
    topics = [
        part(topic_name=name, partitions=[part(partition_index=number, start_offset=offset)])
        for name, number, offset in places
    ]
    answer = await socket.ask("alter_share_group_offsets", 0, group_id=group_id, topics=topics)
    found = {
        (topic.topic_name, one.partition_index): one.error_code.name
        for topic in answer.responses
        for one in topic.partitions
    }
    return answer.error_code.name, found


async def offsets(socket, *topics, group_id="g", version=1):
    """DescribeShareGroupOffsets: top error, (start, lag, error) by place; no topics: all there are."""
    asked = [part(topic_name=name, partitions=numbers) for name, numbers in topics]
    groups = [part(group_id=group_id, topics=asked or None)]
    (group,) = (await socket.ask("describe_share_group_offsets", version, groups=groups)).groups
    found = {
        (topic.topic_name, one.partition_index): (
            one.start_offset,
            getattr(one, "lag", None),
            one.error_code.name,
        )
        for topic in group.topics
        for one in topic.partitions
    }
    return group.error_code.name, found


async def test_groups_are_described_with_their_members() -> None:
    async with edge() as e:
        topic_id = await ready(e, partitions=2)
        s = await e.socket("me")
        joined = await heartbeat(s)

        answer = await s.ask("share_group_describe", 1, group_ids=("g", "none"), include_authorized_operations=True)

        group, missing = answer.groups
        (member,) = group.members
        (assigned,) = member.assignment.topic_partitions
        assert (group.group_id, group.group_state, group.assignor_name) == ("g", "Stable", "simple")
        assert (member.member_id, member.member_epoch, member.client_id) == ("m", joined.member_epoch, "me")
        assert member.client_host.endswith("127.0.0.1")
        assert (assigned.topic_id, assigned.topic_name, assigned.partitions) == (topic_id, "t", (0, 1))
        assert group.authorized_operations & (1 << Operation.DELETE)
        assert (missing.error_code.name, missing.group_state) == ("group_id_not_found", "Dead")


async def test_a_group_is_hidden_from_who_may_not_describe_it_or_its_topics() -> None:
    denied = (Operation.DESCRIBE, ResourceType.GROUP, "theirs"), (Operation.DESCRIBE, ResourceType.TOPIC, "u")
    async with edge(*denied) as e:
        await ready(e)
        await e.topic("u")
        s = await e.socket()
        await heartbeat(s)
        e.listener.authorizer.denied = ()
        open_socket = await e.socket()
        await heartbeat(open_socket, "t", "u", group_id="mixed")
        e.listener.authorizer.denied = denied

        answer = await s.ask(
            "share_group_describe", 1, group_ids=("theirs", "mixed", "g"), include_authorized_operations=False
        )

        assert [(one.group_id, one.error_code.name, len(one.members)) for one in answer.groups] == [
            ("theirs", "group_authorization_failed", 0),
            ("mixed", "topic_authorization_failed", 0),
            ("g", "none", 1),
        ]
        assert answer.groups[2].authorized_operations == -(2**31)


async def test_offsets_are_altered_described_and_deleted() -> None:
    async with edge() as e:
        await ready(e, partitions=2)
        s = await e.socket()

        assert await alter(s, ("t", 0, 1), ("t", 9, 0), ("none", 0, 0)) == (
            "none",
            {
                ("t", 0): "none",
                ("t", 9): "unknown_topic_or_partition",
                ("none", 0): "unknown_topic_or_partition",
            },
        )
        assert await offsets(s) == ("none", {("t", 0): (1, 2, "none")})
        assert await offsets(s, ("t", (0, 1)), ("none", (0,)), version=0) == (
            "none",
            {("t", 0): (1, None, "none"), ("t", 1): (-1, None, "none"), ("none", 0): (-1, None, "none")},
        )
        assert await offsets(s, group_id="none") == ("group_id_not_found", {})

        answer = await s.ask(
            "delete_share_group_offsets", 0, group_id="g", topics=[part(topic_name=n) for n in ("t", "none", "t")]
        )
        assert [(one.topic_name, one.error_code.name) for one in answer.responses] == [
            ("t", "none"),
            ("none", "unknown_topic_or_partition"),
        ]
        assert await offsets(s) == ("none", {})


async def test_offsets_of_a_group_with_members_stay() -> None:
    async with edge() as e:
        await ready(e)
        s = await e.socket()
        await heartbeat(s)

        answer = await s.ask("delete_share_group_offsets", 0, group_id="g", topics=[part(topic_name="t")])

        assert (await alter(s, ("t", 0, 0)))[0] == "non_empty_group"
        assert (answer.error_code.name, answer.responses) == ("non_empty_group", ())


async def test_offsets_need_rights_on_group_and_topics() -> None:
    async with edge() as e:
        await ready(e)
        await e.topic("secret")
        s = await e.socket()
        await alter(s, ("t", 0, 0), ("secret", 0, 0))
        rights = e.listener.authorizer

        rights.denied = ((Operation.READ, ResourceType.TOPIC, "secret"), (Operation.DESCRIBE, None, "secret"))
        assert await alter(s, ("t", 0, 0), ("secret", 0, 0)) == (
            "none",
            {("t", 0): "none", ("secret", 0): "topic_authorization_failed"},
        )
        assert await offsets(s) == ("none", {("t", 0): (0, 3, "none")})
        assert (await offsets(s, ("secret", (0,))))[1] == {("secret", 0): (-1, -1, "topic_authorization_failed")}
        names = [part(topic_name="secret")]
        answer = await s.ask("delete_share_group_offsets", 0, group_id="g", topics=names)
        assert [one.error_code.name for one in answer.responses] == ["topic_authorization_failed"]

        rights.denied = tuple((one, ResourceType.GROUP, "g") for one in Operation)
        assert (await alter(s, ("t", 0, 0)))[0] == "group_authorization_failed"
        assert (await offsets(s))[0] == "group_authorization_failed"
        answer = await s.ask("delete_share_group_offsets", 0, group_id="g", topics=names)
        assert answer.error_code.name == "group_authorization_failed"


# --- state ----------------------------------------------------------------------------------------------------------


class State:
    """The state APIs for partition 0 of one topic and group."""

    def __init__(self, socket, topic_id, *, version=None) -> None:
        self.socket = socket
        self.topic_id = topic_id
        self.version = version

    async def ask(self, name, version=0, *, partition=0, **fields):
        """The one result."""
        topics = [part(topic_id=self.topic_id, partitions=[part(partition=partition, **fields)])]
        answer = await self.socket.ask(f"{name}_share_group_state", version, group_id="g", topics=topics)
        return answer.results[0].partitions[0]

    async def initialize(self, epoch=1, start=0, **more):
        """Error name."""
        return (await self.ask("initialize", state_epoch=epoch, start_offset=start, **more)).error_code.name

    async def write(self, *batches, epoch=1, leader=0, start=0, complete=0, version=1, **more):
        """Error name."""
        answer = await self.ask(
            "write",
            version,
            state_epoch=epoch,
            leader_epoch=leader,
            start_offset=start,
            delivery_complete_count=complete,
            state_batches=[
                part(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
                for first, last, state, count in batches
            ],
            **more,
        )
        return answer.error_code.name

    async def read(self, leader=0):
        """Error name, state epoch, start offset, batches."""
        found = await self.ask("read", leader_epoch=leader)
        batches = [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in found.state_batches]
        return found.error_code.name, found.state_epoch, found.start_offset, batches

    async def summary(self):
        """Error name, state epoch, start offset, delivery-complete count."""
        topics = [part(topic_id=self.topic_id, partitions=[part(partition=0, leader_epoch=0)])]
        answer = await self.socket.ask("read_share_group_state_summary", 1, group_id="g", topics=topics)
        found = answer.results[0].partitions[0]
        return found.error_code.name, found.state_epoch, found.start_offset, found.delivery_complete_count


async def test_state_is_initialised_written_read_and_deleted() -> None:
    async with edge() as e:
        state = State(await e.socket(), await e.topic())

        assert await state.summary() == ("none", 0, -1, -1)
        assert (await state.read())[0] == "invalid_request"
        assert await state.write((0, 9, AVAILABLE, 1)) == "invalid_request"
        assert await state.initialize(3, 5) == "none"
        assert await state.read() == ("none", 3, 5, [])
        assert (
            await state.write((5, 9, AVAILABLE, 1), (10, 12, ACKNOWLEDGED, 1), epoch=3, start=5, complete=3) == "none"
        )
        assert await state.write((7, 8, AVAILABLE, 2), epoch=3, start=-1, complete=3) == "none"
        assert await state.read() == (
            "none",
            3,
            5,
            [(5, 6, AVAILABLE, 1), (7, 8, AVAILABLE, 2), (9, 9, AVAILABLE, 1), (10, 12, ACKNOWLEDGED, 1)],
        )
        assert await state.summary() == ("none", 3, 5, 3)
        assert (await state.ask("delete")).error_code.name == "none"
        assert (await state.ask("delete")).error_code.name == "none"
        assert await state.summary() == ("none", 0, -1, -1)


async def test_what_two_write_at_the_same_time_is_all_there() -> None:
    async with edge() as e:
        topic_id = await e.topic()
        writers = [State(await e.socket(), topic_id) for _ in range(4)]
        await writers[0].initialize()
        scan, everybody, reading = e.storage.scan, asyncio.Event(), []

        async def together(prefix):
            """All four read before one of them writes, and each reading lets others run, as a disk does."""
            reading.append(prefix)
            if len(reading) == len(writers):
                everybody.set()
            await everybody.wait()
            await asyncio.sleep(0)
            return await scan(prefix)

        e.storage.scan = together
        runs = [(5 * number, 5 * number + 4, AVAILABLE, number + 1) for number in range(4)]
        told = await asyncio.gather(*(one.write(run) for one, run in zip(writers, runs, strict=True)))

        assert told == ["none"] * 4
        assert (await writers[0].read())[3] == runs


async def test_old_epochs_are_fenced() -> None:
    async with edge() as e:
        state = State(await e.socket(), await e.topic())
        await state.initialize(3)

        assert await state.initialize(2) == "fenced_state_epoch"
        assert await state.write(epoch=2) == "fenced_state_epoch"
        assert (await state.read(leader=4))[0] == "none"
        assert (await state.read(leader=3))[0] == "fenced_leader_epoch"
        assert await state.write(epoch=3, leader=3) == "fenced_leader_epoch"
        assert await state.write(epoch=3, leader=4) == "none"


async def test_what_cannot_be_stored_is_refused() -> None:
    async with edge() as e:
        state = State(await e.socket(), await e.topic())
        await state.initialize()

        assert await state.initialize(-1) == "invalid_request"
        assert await state.initialize(1, -2) == "invalid_request"
        assert await state.initialize(partition=-1) == "invalid_request"
        assert await state.initialize(partition=7) == "unknown_topic_or_partition"
        for broken in ((5, 4, 0, 1), (-1, 4, 0, 1), (0, 1, ACQUIRED, 1), (0, 1, 9, 1), (0, 1, 0, -1)):
            assert await state.write(broken) == "invalid_request"
        assert await State(state.socket, None).initialize() == "invalid_request"
        assert await State(state.socket, uuid.uuid4()).initialize() == "unknown_topic_or_partition"
        assert await state.read() == ("none", 1, 0, [])


async def test_state_needs_the_right_to_act_for_the_cluster() -> None:
    async with edge((Operation.CLUSTER_ACTION, ResourceType.CLUSTER, None)) as e:
        state = State(await e.socket(), await e.topic())

        assert await state.initialize() == "cluster_authorization_failed"
        assert (await state.read())[0] == "cluster_authorization_failed"
        assert (await state.summary())[0] == "cluster_authorization_failed"


async def test_members_go_on_with_the_state_that_was_written_from_outside() -> None:
    async with edge() as e:
        topic_id = await ready(e, records=5)
        await e.storage.append("t", 0, batch(b"5", b"6"))
        m, state = Member(await e.socket()), State(await e.socket(), topic_id)
        first = await m.fetch((topic_id, 0, ()))
        assert ranges(parts(first)[topic_id, 0]) == [(0, 6, 1)]

        assert await state.write((0, 1, ACKNOWLEDGED, 1), (2, 6, AVAILABLE, 3), epoch=0, start=2, complete=0) == "none"
        found = await m.fetch(wait=20_000)

        assert ranges(parts(found)[topic_id, 0])[0][::2] == (2, 4)
        assert (await state.summary())[2] == 2
