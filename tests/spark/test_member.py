"""How a query's member leaves its group."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from flowshare.protocol.messages import TopicPartition
from flowshare.spark.member import GroupMember
from flowshare.spark.options import SourceOptions
from flowshare.spark.ranges import Range

PLACE = TopicPartition("id", 0)


@pytest.mark.parametrize("answer", [TimeoutError, ConnectionError])
def test_what_is_in_the_write_ahead_log_is_never_given_back_as_not_delivered(answer):
    told = {}

    async def close(*, unrun, timeout_s):
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
