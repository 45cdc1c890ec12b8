"""Consumer groups at a socket: every version that is advertised, and what rights refuse."""

from __future__ import annotations

import uuid

import pytest

from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    DeleteTopicRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge import groups
from flowshare.server.edge.derived import handed_on
from flowshare.server.runtime.connection import InProcess
from tests.groups.builders import subscription
from tests.server.edge.classic import commit, join, one, stable, sync
from tests.server.edge.kit import edge, errors, ms, part

pytestmark = pytest.mark.asyncio

ADVERTISED = {api.key: api.versions for api in (*groups.ENDPOINTS, *handed_on())}
GROUP, TOPIC, TXN = ResourceType.GROUP, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def versions(key):
    low, high = ADVERTISED[key]
    return pytest.mark.parametrize("version", range(low, high + 1))


async def fetch(s, version, *, group="g", topics=(("t", (0,)),), ids=None):
    """OffsetFetch of one group: offsets by topic and partition, and the error of the whole. ids: of topics by name."""
    ids = ids or {}
    wanted = None
    if topics is not None:
        wanted = [part(name=name, topic_id=ids.get(name), partition_indexes=numbers) for name, numbers in topics]
    if version >= 8:
        asked = {"groups": [part(group_id=group, topics=wanted, member_id=None, member_epoch=-1)]}
    else:
        asked = {"group_id": group, "topics": wanted}
    answer = await s.ask("offset_fetch", version, require_stable=True, **asked)
    if version >= 8:
        (answer,) = answer.groups
    names = {topic_id: name for name, topic_id in ids.items()}
    named = {id(one): one.name if version < 10 else names[one.topic_id] for one in answer.topics}
    found = {(named[id(topic)], p.partition_index): p for topic in answer.topics for p in topic.partitions}
    return found, getattr(answer, "error_code", None)


# --- every version ----------------------------------------------------------------------------------------------------


@versions(ApiKey.JOIN_GROUP)
async def test_a_member_joins_in_every_version(version) -> None:
    async with edge() as e:
        s = await e.socket("shop")
        answer = await join(s, version)
        assert not errors(answer)
        assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, answer.member_id, "range")
        assert [(m.member_id, m.metadata) for m in answer.members] == [(answer.member_id, subscription("t"))]
        assert answer.member_id.startswith("shop-")
        if version >= 7:
            assert answer.protocol_type == "consumer"
        refused = await join(s, version, protocol_type="connect")
        assert errors(refused) == {"inconsistent_group_protocol"}
        assert refused.generation_id == -1


@versions(ApiKey.SYNC_GROUP)
async def test_a_member_gets_its_assignment_in_every_version(version) -> None:
    async with edge() as e:
        s = await e.socket()
        joined = await join(s)
        answer = await sync(s, joined.member_id, version)
        assert (errors(answer), answer.assignment) == (set(), b"mine")
        assert errors(await sync(s, joined.member_id, version, generation=9)) == {"illegal_generation"}
        other = await sync(s, joined.member_id, version, protocol_name="sticky")
        assert errors(other) == ({"inconsistent_group_protocol"} if version >= 5 else set())


async def test_the_assignments_of_hundreds_of_members_are_taken_in_one_request() -> None:
    async with edge() as e:
        s = await e.socket()
        leader = await join(s)
        others = [part(member_id=f"other-{number}", assignment=bytes(8_000)) for number in range(500)]
        own = part(member_id=leader.member_id, assignment=b"mine")
        answer = await sync(s, leader.member_id, assignments=[*others, own])
        assert (answer.error_code.name, answer.assignment) == ("none", b"mine")


@versions(ApiKey.HEARTBEAT)
async def test_a_member_is_heard_of_in_every_version(version) -> None:
    async with edge() as e:
        s = await e.socket()
        member_id = await stable(s)
        asked = {"group_id": "g", "member_id": member_id, "group_instance_id": None}
        assert not errors(await s.ask("heartbeat", version, generation_id=1, **asked))
        assert errors(await s.ask("heartbeat", version, generation_id=2, **asked)) == {"illegal_generation"}


@versions(ApiKey.LEAVE_GROUP)
async def test_a_member_leaves_in_every_version(version) -> None:
    async with edge() as e:
        s = await e.socket()
        member_id = await stable(s)

        async def leave():
            member = part(member_id=member_id, group_instance_id=None, reason="done")
            return await s.ask("leave_group", version, group_id="g", member_id=member_id, members=[member])

        assert not errors(await leave())
        assert errors(await leave()) == {"unknown_member_id"}


@versions(ApiKey.DESCRIBE_GROUPS)
async def test_groups_are_described_in_every_version(version) -> None:
    async with edge() as e:
        s = await e.socket("shop")
        member_id = await stable(s)
        answer = await s.ask(
            "describe_groups", version, groups=("g", "none"), include_authorized_operations=version >= 3
        )
        found, missing = answer.groups
        assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
        assert [
            (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment) for m in found.members
        ] == [(member_id, "shop", "127.0.0.1", subscription("t"), b"mine")]
        assert missing.group_state == "Dead"
        assert missing.error_code.name == ("group_id_not_found" if version >= 6 else "none")
        if version >= 3:
            assert found.authorized_operations & 1 << Operation.READ


@versions(ApiKey.OFFSET_COMMIT)
async def test_offsets_are_committed_in_every_version(version) -> None:
    async with edge() as e:
        topic_id = await e.topic("t")
        s = await e.socket()
        t, other = one(topic_id=topic_id), one(partition=4, topic_id=topic_id)
        assert not errors(await commit(s, version, topics=t))
        assert errors(await commit(s, version, topics=other)) == {"unknown_topic_or_partition"}
        strange = await commit(s, version, group="none", generation=3, member_id="m", topics=t)
        assert errors(strange) == {"group_id_not_found" if version >= 9 else "illegal_generation"}
        found, _ = await fetch(s, 8)
        assert (found["t", 0].committed_offset, found["t", 0].metadata) == (7, "note")
        assert found["t", 0].committed_leader_epoch == (3 if version >= 6 else -1)


@versions(ApiKey.OFFSET_FETCH)
async def test_offsets_are_fetched_in_every_version(version) -> None:
    async with edge() as e:
        ids = {"t": await e.topic("t", 2), "none": uuid.uuid4()}
        s = await e.socket()
        await commit(s)
        found, error = await fetch(s, version, topics=(("t", (0, 1)), ("none", (0,))), ids=ids)
        assert {key: p.committed_offset for key, p in found.items()} == {("t", 0): 7, ("t", 1): -1, ("none", 0): -1}
        assert error is None or error.name == "none"
        if version >= 2:
            found, _ = await fetch(s, version, topics=None, ids=ids)
            assert set(found) == {("t", 0)}
        assert (await fetch(s, version, group="none", ids=ids))[0]["t", 0].committed_offset == -1


async def test_a_topic_id_that_is_not_known_is_told_by_itself() -> None:
    async with edge() as e:
        topic_id, unknown = await e.topic("t"), uuid.uuid4()
        s = await e.socket()
        answer = await commit(s, 10, topics=[*one(topic_id=topic_id), *one(topic_id=unknown), *one(topic_id=None)])
        told = {topic.topic_id: topic.partitions[0].error_code.name for topic in answer.topics}
        assert told == {topic_id: "none", unknown: "unknown_topic_id", None: "unknown_topic_id"}
        found, _ = await fetch(s, 10, topics=(("t", (0,)), ("none", (0,))), ids={"t": topic_id, "none": unknown})
        assert {key: p.error_code.name for key, p in found.items()} == {
            ("t", 0): "none",
            ("none", 0): "unknown_topic_id",
        }


@pytest.mark.parametrize("topics", [(("t", (0,)),), None])
async def test_an_offset_is_told_under_its_own_topics_id_though_that_is_made_anew(topics, monkeypatch) -> None:
    async with edge() as e:
        old = await e.topic("t")
        s = await e.socket()
        await commit(s)
        send, new = InProcess.send, []

        async def then_anew(connection, request):
            answer = await send(connection, request)
            if isinstance(request, OffsetFetchRequest):
                await e.admin.send(DeleteTopicRequest(name="t"))
                new.append(await e.topic("t"))
            return answer

        monkeypatch.setattr(InProcess, "send", then_anew)

        found, _ = await fetch(s, 10, topics=topics, ids={"t": old})

        assert len({old, *new}) == 2
        assert {key: p.committed_offset for key, p in found.items()} == {("t", 0): 7}


async def test_offsets_of_several_groups_are_fetched_at_once() -> None:
    async with edge((Operation.DESCRIBE, GROUP, "secret")) as e:
        await e.topic("t")
        s = await e.socket()
        await commit(s, group="a")
        groups = [part(group_id=name, topics=None, member_id=None, member_epoch=-1) for name in ("a", "secret", "b")]
        answer = await s.ask("offset_fetch", 9, groups=groups, require_stable=False)
        assert [(g.group_id, g.error_code.name, len(g.topics)) for g in answer.groups] == [
            ("a", "none", 1),
            ("secret", "group_authorization_failed", 0),
            ("b", "none", 0),
        ]


async def test_offsets_are_deleted() -> None:
    async with edge() as e:
        await e.topic("t")
        s = await e.socket()
        await commit(s)

        async def delete(group):
            topics = [part(name="t", partitions=[part(partition_index=0)])]
            return await s.ask("offset_delete", 0, group_id=group, topics=topics)

        answer = await delete("g")
        assert (errors(answer), len(answer.topics)) == (set(), 1)
        assert (await fetch(s, 8))[0]["t", 0].committed_offset == -1
        assert errors(await delete("none")) == {"group_id_not_found"}


@versions(ApiKey.TXN_OFFSET_COMMIT)
async def test_a_transactions_offsets_are_unstable_in_every_version(version) -> None:
    async with edge() as e:
        await e.topic("t")
        s = await e.socket()
        begun = await s.ask("init_producer_id", 1, transactional_id="x", transaction_timeout=ms(60_000))
        producer = {"transactional_id": "x", "producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        assert not errors(await s.ask("add_offsets_to_txn", 0, group_id="g", **producer))
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        answer = await s.ask("txn_offset_commit", version, group_id="g", topics=one(), **member, **producer)
        assert not errors(answer)
        assert (await fetch(s, 8))[0]["t", 0].error_code.name == "unstable_offset_commit"
        assert not errors(await s.ask("end_txn", 0, committed=True, **producer))
        assert (await fetch(s, 8))[0]["t", 0].committed_offset == 7


# --- rights -----------------------------------------------------------------------------------------------------------


async def test_who_may_not_read_a_group_is_no_member_of_it() -> None:
    async with edge((Operation.READ, GROUP, "g")) as e:
        await e.topic("t")
        s = await e.socket()
        member = part(member_id="m", group_instance_id=None, reason=None)
        refused = [
            await join(s),
            await sync(s, "m"),
            await s.ask("heartbeat", 0, group_id="g", member_id="m", generation_id=1),
            await s.ask("leave_group", 0, group_id="g", member_id="m"),
            await s.ask("leave_group", 5, group_id="g", members=[member]),
            await commit(s),
        ]
        assert [errors(answer) for answer in refused] == [{"group_authorization_failed"}] * len(refused)
        assert not e.server.classic.entries


@pytest.mark.parametrize("version", [1, 2, 8])
async def test_who_may_not_describe_a_group_sees_none_of_its_offsets(version) -> None:
    async with edge((Operation.DESCRIBE, GROUP, "g")) as e:
        s = await e.socket()
        found, error = await fetch(s, version)
        if version == 1:
            assert found["t", 0].error_code.name == "group_authorization_failed"
        else:
            assert (found, error.name) == ({}, "group_authorization_failed")
        answer = await s.ask("describe_groups", 6, groups=("g",), include_authorized_operations=False)
        assert errors(answer) == {"group_authorization_failed"}


async def test_topics_that_one_may_not_read_are_refused_one_by_one() -> None:
    async with edge((Operation.READ, TOPIC, "secret")) as e:
        await e.topic("t")
        await e.topic("secret")
        s = await e.socket()
        answer = await commit(s, topics=[*one(), *one(topic="secret")])
        by_topic = {topic.name: topic.partitions[0].error_code.name for topic in answer.topics}
        assert by_topic == {"t": "none", "secret": "topic_authorization_failed"}
        topics = [part(name=name, partitions=[part(partition_index=0)]) for name in ("t", "secret")]
        deleted = await s.ask("offset_delete", 0, group_id="g", topics=topics)
        by_topic = {topic.name: topic.partitions[0].error_code.name for topic in deleted.topics}
        assert by_topic == {"t": "none", "secret": "topic_authorization_failed"}


async def test_topics_that_one_may_not_see_are_left_out_of_all_offsets_and_refused_when_asked_for() -> None:
    async with edge((Operation.DESCRIBE, TOPIC, "secret")) as e:
        await e.topic("t")
        await e.topic("secret")
        s = await e.socket()
        await commit(s, topics=[*one(), *one(topic="secret")])
        assert set((await fetch(s, 8, topics=None))[0]) == {("t", 0)}
        found, _ = await fetch(s, 8, topics=(("secret", (0,)),))
        assert found["secret", 0].error_code.name == "topic_authorization_failed"
        assert found["secret", 0].committed_offset == -1


@pytest.mark.parametrize(
    ("denied", "error"),
    [
        ((Operation.WRITE, TXN, "x"), "transactional_id_authorization_failed"),
        ((Operation.READ, GROUP, "g"), "group_authorization_failed"),
        ((Operation.READ, TOPIC, "t"), "topic_authorization_failed"),
    ],
)
async def test_offsets_in_a_transaction_need_rights_on_all_three(denied, error) -> None:
    async with edge(denied) as e:
        await e.topic("t")
        s = await e.socket()
        asked = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "group_id": "g"}
        assert errors(await s.ask("txn_offset_commit", 2, topics=one(), **asked)) == {error}


async def test_who_may_not_delete_a_group_may_not_delete_its_offsets() -> None:
    async with edge((Operation.DELETE, GROUP, "g")) as e:
        s = await e.socket()
        assert errors(await s.ask("offset_delete", 0, group_id="g", topics=())) == {"group_authorization_failed"}


async def test_who_waited_for_a_group_is_told_nothing_of_it_when_the_right_was_taken_away_meanwhile() -> None:
    async with edge() as e:
        s = await e.socket()

        def after(answer):
            async def wait(request, connection):
                del request, connection
                e.listener.authorizer.denied = ((Operation.READ, ResourceType.GROUP, "g"),)
                return answer

            e.listener.authorizer.denied = ()
            return wait

        e.server._handlers[JoinGroupRequest] = after(JoinGroupResponse(member_id="m", leader="other", generation=7))
        joined = await join(s)
        assert (joined.error_code.name, joined.leader) == ("group_authorization_failed", "")
        e.server._handlers[SyncGroupRequest] = after(SyncGroupResponse(assignment=b"theirs"))
        synced = await sync(s, "m")
        assert (synced.error_code.name, synced.assignment) == ("group_authorization_failed", b"")
