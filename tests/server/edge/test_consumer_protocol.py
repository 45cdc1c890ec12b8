"""Groups of the consumer protocol at a socket: every version that is advertised, and what rights refuse."""

from __future__ import annotations

import pytest

from flowshare.protocol.messages import ConsumerGroupHeartbeatRequest
from flowshare.protocol.rights import Operation, ResourceType
from tests.server.edge.kit import edge, errors, ms, part

pytestmark = pytest.mark.asyncio

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


def beat(s, version=1, epoch=0, member_id="m", *, owned=(), topics=("t",), **fields):
    """ConsumerGroupHeartbeat; a join unless told otherwise."""
    words = {
        "group_id": "g",
        "member_id": member_id,
        "member_epoch": epoch,
        "rebalance_timeout": ms(60_000),
        "subscribed_topic_names": topics,
        "topic_partitions": None
        if owned is None
        else [part(topic_id=one, partitions=numbers) for one, numbers in owned],
        **fields,
    }
    return s.ask("consumer_group_heartbeat", version, **words)


def describe(s, version=1, group="g", *, operations=False):
    return s.ask("consumer_group_describe", version, group_ids=(group,), include_authorized_operations=operations)


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_joins_goes_on_and_leaves_in_every_version(version) -> None:
    async with edge() as e:
        topic_id = await e.topic("t", 2)
        s = await e.socket("shop")
        joined = await beat(s, version, member_id="m" if version else "")  # before version 1 the server made ids, too
        assert not errors(joined)
        member_id, epoch = joined.member_id, joined.member_epoch
        assert member_id
        assert epoch > 0
        (place,) = joined.assignment.topic_partitions
        assert (place.topic_id, place.partitions) == (topic_id, (0, 1))

        went_on = await beat(s, version, epoch, member_id, owned=[(topic_id, (0, 1))], topics=None)
        assert (errors(went_on), went_on.assignment, went_on.heartbeat_interval) == (set(), None, ms(5_000))
        told = await describe(s, version, operations=True)
        (group,) = told.groups
        (member,) = group.members
        assert (group.group_state, group.assignor_name, group.error_code.name) == ("Stable", "uniform", "none")
        assert group.authorized_operations > 0
        assert (member.member_id, member.client_id, member.subscribed_topic_names) == (member_id, "shop", ("t",))
        assert [(one.topic_name, one.partitions) for one in member.assignment.topic_partitions] == [("t", (0, 1))]
        assert member.target_assignment.topic_partitions == member.assignment.topic_partitions
        if version >= 1:
            assert member.member_type == 1

        left = await beat(s, version, -1, member_id, owned=None, topics=None)
        assert (errors(left), left.member_epoch) == (set(), -1)
        assert errors(await beat(s, version, 5, member_id, owned=None, topics=None)) == {"unknown_member_id"}


async def test_a_pattern_is_said_from_version_1_on() -> None:
    async with edge((Operation.DESCRIBE, TOPIC, "t-secret")) as e:
        await e.topic("t-open")
        await e.topic("t-secret")
        s = await e.socket()
        joined = await beat(s, topics=None, subscribed_topic_regex="t-.*")
        assert len(joined.assignment.topic_partitions) == 1
        refused = await beat(s, member_id="n", topics=None, subscribed_topic_regex="(")
        assert errors(refused) == {"invalid_regular_expression"}
        assert refused.member_id is None


async def test_a_member_needs_to_read_the_group_and_to_describe_its_topics() -> None:
    async with edge((Operation.READ, GROUP, "closed"), (Operation.DESCRIBE, TOPIC, "secret")) as e:
        await e.topic("t")
        s = await e.socket()
        assert errors(await beat(s, group_id="closed")) == {"group_authorization_failed"}
        refused = await beat(s, topics=("t", "secret"))
        assert errors(refused) == {"topic_authorization_failed"}
        assert "secret" in refused.error_message


async def test_who_looks_at_a_group_may_describe_it_and_its_topics() -> None:
    async with edge((Operation.DESCRIBE, GROUP, "closed"), (Operation.DESCRIBE, TOPIC, "secret")) as e:
        await e.topic("secret")
        joins = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1,
            owned=(),
            subscribed_topics=("secret",),
        )
        await e.admin.send(joins)
        s = await e.socket()
        assert errors((await describe(s, group="closed")).groups[0]) == {"group_authorization_failed"}
        assert errors((await describe(s, group="none")).groups[0]) == {"group_id_not_found"}
        (hidden,) = (await describe(s)).groups
        assert (errors(hidden), hidden.members) == ({"topic_authorization_failed"}, ())


async def test_groups_are_listed_by_their_type() -> None:
    async with edge() as e:
        await e.topic("t")
        s = await e.socket()
        await beat(s)
        listed = await s.ask("list_groups", 5, states_filter=(), types_filter=("consumer",))
        assert [(one.group_id, one.group_type, one.group_state) for one in listed.groups] == [
            ("g", "consumer", "Stable")
        ]
        old = await s.ask("describe_groups", 5, groups=("g",), include_authorized_operations=False)
        assert (old.groups[0].group_state, errors(old.groups[0])) == ("Dead", set())
