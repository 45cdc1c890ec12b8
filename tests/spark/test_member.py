"""How a query's member takes an earlier one's place in its group, and leaves it."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace

import pytest

from flowshare.protocol.messages import TopicMetadata, TopicPartition
from flowshare.spark.source.member import GroupMember
from flowshare.spark.source.options import SourceOptions
from flowshare.spark.source.ranges import Range

PLACE = TopicPartition("id", 0)
ORDERS = uuid.UUID(int=7)


@pytest.mark.parametrize("answer", [TimeoutError, ConnectionError])
def test_what_is_in_the_write_ahead_log_is_never_given_back_as_not_delivered(answer):
    told = {}

    async def close(*, unrun):
        told.update(unrun)

    async def unanswered(types):
        raise answer

    options = SourceOptions.parse({"broker": "embedded:///nowhere", "topics": "orders", "group": "etl"})
    member = GroupMember(options, "member")
    member._member = SimpleNamespace(close=close)
    member._acknowledge = unanswered
    member._places[("orders", 0)] = PLACE
    member._holds.take([Range("orders", 0, 0, 299)], 100.0, None)
    member._run = [Range("orders", 0, 100, 199)]

    asyncio.run(member._leave())

    assert told == {PLACE: [(0, 99), (200, 299)]}


@pytest.mark.parametrize(("rack", "comes_back"), [("another", False), ("mine", True), (None, True), (OSError, True)])
def test_who_is_given_up_looks_whether_another_process_has_its_place_before_it_joins_again(rack, comes_back):
    options = SourceOptions.parse({"broker": "embedded:///nowhere", "topics": "orders", "group": "etl"})
    member = GroupMember(options, "member")
    member._looked_s = member._clock.monotonic()

    async def describe_group(_):
        if rack is OSError:
            raise OSError
        racks = {"another": "spark-other", "mine": member._life, None: None}
        others = SimpleNamespace(member_id="other", rack_id="spark-other", client_host="there")
        return SimpleNamespace(members=[others, SimpleNamespace(member_id="member", rack_id=racks[rack])])

    member._admin = SimpleNamespace(describe_group=describe_group)

    assert asyncio.run(member._joins_again()) == comes_back
    assert member.fenced != comes_back


def test_what_an_earlier_process_held_is_taken_over_though_its_partition_or_topic_is_assigned_later():
    later, told = uuid.UUID(int=8), {}

    async def adopt(held):
        told.update(held)

    async def describe_topics(names):
        assert names == {"later", "gone", "anew"}
        ids = {"later": later, "anew": uuid.UUID(int=9)}
        return [TopicMetadata(name=name, topic_id=topic_id) for name, topic_id in ids.items()]

    options = SourceOptions.parse({"broker": "embedded:///nowhere", "topics": "orders", "group": "etl"})
    member = GroupMember(options, "member", adopts=True)
    member._member = SimpleNamespace(adopt=adopt)
    member._admin = SimpleNamespace(describe_topics=describe_topics)
    member._topics["orders"] = str(ORDERS)
    member._places["orders", 0] = TopicPartition(ORDERS, 0)
    topics = {"orders": str(ORDERS), "later": str(later), "gone": str(ORDERS), "anew": str(later)}
    ranges = [Range("orders", 0, 0, 9), Range("orders", 1, 5, 9)]
    ranges += [Range(name, 0, 0, 4) for name in ("later", "gone", "anew")]

    asyncio.run(member._adopt(ranges, topics))

    assert told == {
        TopicPartition(ORDERS, 0): [(0, 9)],
        TopicPartition(ORDERS, 1): [(5, 9)],
        TopicPartition(later, 0): [(0, 4)],
    }
    assert member._holds.parts(Range("orders", 1, 5, 9))
    assert not member._holds.parts(Range("anew", 0, 0, 4))
